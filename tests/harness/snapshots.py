"""Snapshots of nodes in several states, to draw, print and export."""

import math

from starling.node.status.snapshot import VERSION, Event, Exchanges, PeerStatus, Point, Resources, StatusSnapshot, Transaction

NOW = 1_000_000.0
IDS = tuple(f"12D3KooW{'abcdefgh'[number] * 40}node{number}" for number in range(8))
METHOD = "pairwise edge tracking over sticky edges, int4, 20 local steps a round"
AGREED = (
    ("learns", "handwritten digits, labels in unequal shares (Dirichlet 0.3), 8 shards"),
    ("method", METHOD),
    ("steps", "SGD, rate 0.02, cosine schedule, 32 samples a step"),
    ("members", "anyone with the invite"),
)
OUTCOMES = ("committed", "committed", "aborted", "committed", "busy", "committed", "timeout", "committed")


def snapshot(**changes):
    """Return a node in the middle of its run, with every kind of peer."""
    peers = (
        PeerStatus(
            peer="12D3KooWalive01",
            state="alive",
            standing="active",
            edge=True,
            round=41,
            rtt_s=0.012,
            bytes_sent=1_200_000,
            bytes_received=1_300_000,
            committed=40,
            last_seen_s=0.4,
        ),
        PeerStatus(peer="12D3KooWquara03", state="quarantined", standing="quarantine", faults=3, score=18.5, last_seen_s=12.0),
        PeerStatus(peer="12D3KooWunkno02", state="suspect"),
    )
    fields = {
        "version": VERSION,
        "peer": "12D3KooWmyself9",
        "swarm": "ab" * 16,
        "name": "digits-of-ten",
        "time_s": NOW - 0.5,
        "uptime_s": 125.0,
        "state": "training",
        "task": "digits",
        "metric": "accuracy",
        "algorithm": "pet",
        "overlay": "sticky",
        "parameters": 4810,
        "device": "cpu",
        "round": 42,
        "rounds": 200,
        "local_steps": 840,
        "steps_per_s": 312.5,
        "loss": 0.2134,
        "value": 0.934,
        "value_round": 40,
        "members": 4,
        "bytes_sent": 2_400_000,
        "bytes_received": 2_500_000,
        "up_bytes_per_s": 12_000.0,
        "down_bytes_per_s": 13_000.0,
        "exchanges": Exchanges(committed=80, aborted=2, busy=1, timeout=3),
        "peers": peers,
        "loss_curve": tuple(Point(at, float(at), 2.3 * math.exp(-at / 15)) for at in range(43)),
        "value_curve": tuple(Point(at, float(at), 1 - 0.9 * math.exp(-at / 12)) for at in range(0, 41, 10)),
        "events": (
            Event(time_s=NOW - 60, name="peer_joined", text="…alive01 joined"),
            Event(time_s=NOW - 3, name="peer_fault", text="…quara03 broke the protocol: bad_frame", level="warning"),
            Event(time_s=NOW - 1, name="engine_lost", text="the engine died; restarting it", level="error"),
        ),
    }
    return StatusSnapshot(**{**fields, **changes})


def bare():
    """Return a node's status in its first moment."""
    return StatusSnapshot(version=VERSION, peer="12D3KooWmyself9", swarm="ab", name="n", time_s=NOW, uptime_s=0.0, state="starting")


def full(number=0, count=8, **changes):
    """Return a node of a swarm of `count` with every figure known."""
    others = [other for other in range(count) if other != number]
    peers = tuple(
        PeerStatus(
            peer=IDS[other],
            state="alive",
            standing="active" if other % 3 else "probation",
            edge=abs(other - number) in (1, count - 1, 3),
            round=40 + other % 3,
            rtt_s=0.001 * (other + 1),
            bytes_sent=100_000 * (other + 1),
            bytes_received=90_000 * (other + 1),
            committed=10 * other,
            faults=other % 2,
            last_seen_s=0.5 * other,
            addresses=(f"/ip4/127.0.0.1/tcp/{4000 + other}",),
            score=1.5 * (other % 2),
            contribution=2.0 * other,
            staleness=0.05 * other,
            clipped=0.1 * (other % 4),
            inviter=IDS[0] if other else "",
        )
        for other in others
    )
    transactions = tuple(
        Transaction(
            time_s=NOW - 24 + at,
            peer=IDS[others[at % len(others)]],
            round=20 + at,
            number=at // len(others) + 1,
            asked=at % 2 == 0,
            outcome=OUTCOMES[at % len(OUTCOMES)],
            bytes_sent=2400 + 10 * at,
            bytes_received=2500 + 10 * at,
            clip=None if OUTCOMES[at % len(OUTCOMES)] != "committed" else 1.0 if at % 3 else 0.62,
            seconds=0.004 * (at + 1),
        )
        for at in range(24 if others else 0)
    )
    fields = {
        "peer": IDS[number],
        "peers": peers,
        "members": count,
        "transactions": transactions,
        "local_steps": 840 + 20 * number,
        "value": 0.934 - 0.002 * number,
        "paced_per_s": 290.0 + number,
        "distance": 0.0123 + 0.0005 * number,
        "distance_curve": tuple(Point(at, float(at), 0.05 * math.exp(-at / 20)) for at in range(1, 43)),
        "method": METHOD,
        "agreed": AGREED,
        "up_limit_bytes_per_s": 50_000,
        "ranks": IDS[:count],
        "links": tuple((one, (one + 3) % count) for one in range(0, count, 2)),
        "resources": Resources(cpu=1.2, memory_bytes=412_000_000, disk_bytes=3_100_000, gpu=0.41, gpu_memory_bytes=900_000_000),
        "events": tuple(Event(time_s=NOW - 60 + 2 * at, name="peer_joined", text=f"{IDS[at % 8]} joined", level="info") for at in range(8))
        + snapshot().events,
    }
    return snapshot(**{**fields, **changes})
