"""Snapshots to draw, and a way to read the screen as text."""

from __future__ import annotations

import math

from node.status import VERSION, Event, Exchanges, PeerStatus, Point, StatusSnapshot

NOW = 1_000_000.0


def snapshot(**changes):
    """A node in the middle of its run, with every kind of peer."""
    peers = (
        PeerStatus(
            peer="12D3KooWalive01", state="alive", standing="active", edge=True, round=41, rtt_s=0.012, bytes_sent=1_200_000,
            bytes_received=1_300_000, committed=40, last_seen_s=0.4,
        ),
        PeerStatus(peer="12D3KooWquara03", state="quarantined", standing="quarantine", faults=3, score=18.5, last_seen_s=12.0),
        PeerStatus(peer="12D3KooWunkno02", state="suspect"),
    )  # fmt: skip
    fields = {
        "version": VERSION, "peer": "12D3KooWmyself9", "swarm": "ab" * 16, "name": "digits-of-ten", "time_s": NOW - 0.5,
        "uptime_s": 125.0, "state": "training", "task": "digits", "metric": "accuracy", "algorithm": "pet", "overlay": "sticky",
        "parameters": 4810, "device": "cpu", "round": 42, "rounds": 200, "local_steps": 840, "steps_per_s": 312.5, "loss": 0.2134,
        "value": 0.934, "value_round": 40, "members": 4, "bytes_sent": 2_400_000, "bytes_received": 2_500_000,
        "up_bytes_per_s": 12_000.0, "down_bytes_per_s": 13_000.0,
        "exchanges": Exchanges(committed=80, aborted=2, busy=1, timeout=3), "peers": peers,
        "loss_curve": tuple(Point(at, float(at), 2.3 * math.exp(-at / 15)) for at in range(43)),
        "value_curve": tuple(Point(at, float(at), 1 - 0.9 * math.exp(-at / 12)) for at in range(0, 41, 10)),
        "events": (
            Event(time_s=NOW - 60, name="peer_joined", text="…alive01 joined"),
            Event(time_s=NOW - 3, name="peer_fault", text="…quara03 broke the protocol: bad_frame", level="warning"),
            Event(time_s=NOW - 1, name="engine_lost", text="the engine died; restarting it", level="error"),
        ),
    }  # fmt: skip
    return StatusSnapshot(**{**fields, **changes})


def bare():
    """What a node can say in its first moment."""
    return StatusSnapshot(
        version=VERSION, peer="12D3KooWmyself9", swarm="ab", name="n", time_s=NOW, uptime_s=0.0, state="starting"
    )


def screen_text(app):
    """The screen as lines of text, as a person sees it."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in strips)
