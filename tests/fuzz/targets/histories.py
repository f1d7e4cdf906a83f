"""Records of how others moved, as peers send them along: believed only if signed, bounded and whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from starling.robust.sketches import histories
from starling.robust.sketches.histories import BUCKETS, MOST, Histories, Record
from tests.fuzz.target import Choices, Target, reason_of

REASONS = {"sketch_size", "sketch_not_finite", "sketch_norm", "sketch_round", "sketch_distance", "sketch_signature"}
NAMES = ("us", "a", "b", "c", "d")
KNOWN = histories.observe(Histories(), "a", torch.linspace(-1.0, 1.0, BUCKETS), 5)
GOOD = histories.encode(torch.linspace(0.0, 1.0, BUCKETS))


def _hear(data: bytes) -> bool:
    """Some records one after the other, each a good sketch, a few bytes over and over, or just those."""
    choices, known, taken = Choices(data), KNOWN, False
    for _ in range(4):
        shape, piece = choices.below(3), choices.piece()
        repeated = (piece * (4 * BUCKETS // max(len(piece), 1) + 1))[: 4 * BUCKETS]
        sketch = (GOOD, repeated, piece)[shape]
        record = Record(choices.of(NAMES), choices.number() - choices.below(2), sketch, choices.piece())
        distance, source, signed = choices.below(300) - 2, choices.of(NAMES[1:]), choices.flag()
        try:
            known = histories.hear(
                known, record, distance, source, own="us", swarm="s", round=choices.number(), verify=lambda *_, signed=signed: signed
            )  # fmt: skip
        except ValueError as error:
            reason_of(error, REASONS)
            continue
        taken = True
        if not choices:
            break
    assert len(known.heard) <= MOST
    assert "us" not in known.heard
    for kept in known.heard.values():
        assert 1 <= kept.distance <= histories.FAR
        assert kept.record.subject != "a" or kept.source == "a"
    rows = histories.strangers(known)
    assert bool(torch.isfinite(rows).all())
    sent = histories.chosen(known, "b", 0.3)
    assert sent is None or "b" not in {sent.record.subject, sent.source}
    return taken


def _heard() -> Iterator[bytes]:
    yield bytes([0, 0, 2, 0, 0, 0, 0, 3, 0, 2, 1, 0])
    yield bytes([0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 1, 0])


def _lures() -> Iterator[bytes]:
    for value in (math.nan, math.inf, 3e38, 1e-45):
        few = torch.tensor([value]).numpy().tobytes()
        yield bytes([1, len(few), *few, 2, 0, 0, 0, 3, 1, 1])


HISTORY = Target(_hear, _heard, _lures, reach=40, bytes_per_byte=1 << 12)
