"""Recorded runs, as snapshots and as files."""

import msgspec

from starling.node.status import record
from starling.node.status.snapshot import VERSION, Event, Point, StatusSnapshot, Transaction
from tests.harness.snapshots import IDS, full

START = 1_000_000.0


def at_second(second, **changes):
    """Return the status of a node that did one round per second, after this many seconds."""
    fields = {
        "version": VERSION,
        "peer": "12D3a",
        "swarm": "s",
        "name": "n",
        "time_s": 1e9 + second,
        "uptime_s": float(second),
        "state": "training",
        "round": second,
        "loss_curve": tuple(Point(at, float(at), 1 / (1 + at)) for at in range(second + 1)),
        "value_curve": tuple(Point(at, float(at), at / 100) for at in range(0, second + 1, 5)),
        "distance_curve": tuple(Point(at, float(at), 2.0) for at in range(second + 1)),
        "events": tuple(Event(1e9 + at, "tick", f"{at}") for at in range(second + 1))[-50:],
        "transactions": tuple(Transaction(1e9 + at, "12D3b", at, at, True, "committed") for at in range(second + 1))[-50:],
    }
    return StatusSnapshot(**{**fields, **changes})


def write(path, snapshots):
    befores = [None, *snapshots[:-1]]
    path.write_bytes(b"".join(record.line(before, now) for before, now in zip(befores, snapshots, strict=True) if now is not None))
    return path


def recorded(path, *, number=0, first_s=0, seconds=100):
    """Write a node's recorded run, one line per second."""
    path.parent.mkdir(exist_ok=True, parents=True)
    before = None
    with path.open("wb") as file:
        for at in range(first_s, first_s + seconds + 1):
            now = START + at
            told = full(number, 3, time_s=now, uptime_s=float(at), round=at, value_round=at, rounds=200)
            told = msgspec.structs.replace(
                told,
                loss_curve=full().loss_curve[: at + 1],
                events=tuple(Event(START + each, "round_mixed", f"{number} mixed {each}") for each in range(first_s, at + 1))[-50:],
                transactions=tuple(Transaction(START + each, IDS[1], each, each, True, "committed") for each in range(first_s, at + 1))[
                    -50:
                ],
            )
            file.write(record.line(before, told))
            before = told
    return path
