"""Histories of peers' updates in bounded memory: sketches of summed updates, and gossiped ones signed by their subject.

A node observes the peers that it pulls from: a peer's history is the sum of its updates, each its model minus the model that it started
from as far as known. Of other peers it receives signed records: each peer signs the sketch of its own history, and every model is sent
along with one record, of near subjects more often than of far ones. Observations take precedence over records, newer records over older
ones, and a record needs its subject's signature. A subject may sign a false history of itself: a record of an observed peer is forwarded
only if it resembles the observation. Nodes do not exchange these records yet.

Sketches are those of `starling.robust.sketches`. All nodes that compare records share a seed, so it is no secret in a large swarm.

Shapes: s = BUCKETS.

Source: Werthenbach and Pouwelse 2023, "Towards Sybil Resilience in Decentralized Learning" (arXiv:2306.15044), the records they gossip.
Deviations: signatures, sketches and bounds; a history is a sum of updates, since the sum of model differences in their code is only the
last model.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.sketches import BUCKETS

MAX_HISTORIES = 64  # largest number of observations, and of records; the one with the oldest round is evicted first
MAX_HOPS = 16  # records that were forwarded this many times are refused
LEAST_AGREEMENT = 0.5  # smallest cosine of a peer's record and our observation of it at which the record is forwarded
_NEARNESS = 0.8  # λ of the draw by distance
_DOMAIN = b"starling/history/1\0"
_SLACK = 1e-3

Verify = Callable[[str, bytes, bytes], bool]
"""(peer, signature, message) -> whether that peer, a member, signed the message."""

Value = TypeVar("Value", bound="Observed | Received")


@dataclass(frozen=True, slots=True)
class Record:
    """A peer's signed statement of its own history."""

    subject: str  # peer id
    round: int  # last round that it covers
    sketch: bytes  # as `encode` makes it
    signature: bytes  # the subject's signature over `statement`


@dataclass(frozen=True, slots=True)
class Received:
    """A received record."""

    record: Record  # with a verified signature
    distance: int  # hops from the subject, 1 if it was sent by the subject itself
    source: str  # peer that sent it

    @property
    def round(self) -> int:
        """Return the last round of the record."""
        return self.record.round


@dataclass(frozen=True, slots=True)
class Observed:
    """An observed history (s,) float32, and the round of the last update in it."""

    sketch: Tensor
    round: int


@dataclass(frozen=True, slots=True)
class Histories:
    """All histories that a node stores, at most MAX_HISTORIES of each kind."""

    observed: Mapping[str, Observed] = field(default_factory=dict)  # by peer pulled from
    records: Mapping[str, Received] = field(default_factory=dict)  # received, by subject


def observe(known: Histories, peer: str, update: Tensor, round: int) -> Histories:
    """Add the sketch (s,) of an update observed in a round; `known` is not modified."""
    before = known.observed.get(peer)
    total = update if before is None else before.sketch + update
    records = {subject: received for subject, received in known.records.items() if subject != peer or received.source == peer}
    return Histories(_newest({**known.observed, peer: Observed(total, round)}), records)


def add_record(
    known: Histories, record: Record, distance: int, source: str, *, own: str, swarm: str, round: int, verify: Verify
) -> Histories:
    """Add a received record, unless it is known or superseded; `known` is not modified.

    `distance` counts the hops from the subject to the sender, `source`; 0 if that is the subject. `round` is ours. `verify` checks
    signatures of members; called last, as it is the most expensive check.

    Raises ValueError: the record is invalid: "sketch_size", "sketch_not_finite", "sketch_norm", "sketch_round", "sketch_distance",
    "sketch_signature".
    """
    decode(record.sketch)
    if not 0 <= record.round <= round + 1:
        raise ValueError("sketch_round")
    if not 0 <= distance < MAX_HOPS or (distance == 0) != (record.subject == source):
        raise ValueError("sketch_distance")
    before = known.records.get(record.subject)
    if record.subject == own or (record.subject in known.observed and distance > 0):
        return known
    if before is not None and before.round >= record.round:
        return known
    if not verify(record.subject, record.signature, statement(swarm, record.round, record.sketch)):
        raise ValueError("sketch_signature")
    return replace(known, records=_newest({**known.records, record.subject: Received(record, distance + 1, source)}))


def draw_record(known: Histories, receiver: str, draw: float) -> Received | None:
    """Draw the record to send to `receiver` with a model, or None; with probability ∝ λ·e^(−λ(distance − 1)), λ = 0.8; `draw` is uniform in
    [0, 1).

    Excluded are the receiver's own, those received from it, and those that contradict our observation of the subject.
    """
    fit = [
        received
        for subject, received in sorted(known.records.items())
        if receiver not in {subject, received.source} and _agrees(known.observed.get(subject), received.record)
    ]
    odds = np.cumsum([math.exp(-_NEARNESS * (received.distance - 1)) for received in fit])
    return fit[int(np.searchsorted(odds, draw * odds[-1], side="right"))] if fit else None


def unobserved(known: Histories) -> Tensor:
    """Return (K, s), sketches of subjects known from records only, sorted by subject; used in comparisons, never averaged."""
    rows = [decode(kept.record.sketch) for subject, kept in sorted(known.records.items()) if subject not in known.observed]
    return torch.stack(rows) if rows else torch.zeros(0, BUCKETS)


def encode(sketch: Tensor) -> bytes:
    """Map (s,) finite -> s little-endian float32, scaled to norm 1 unless 0: only the direction is compared."""
    wide = sketch.double() / max(float(sketch.abs().max()), 1e-30)
    norm = float(torch.linalg.vector_norm(wide))
    return (wide / norm if norm > 0 else wide).numpy().astype("<f4").tobytes()


def decode(raw: bytes) -> Tensor:
    """Inverse of `encode` for untrusted bytes -> (s,) float32. Raises ValueError: "sketch_size", "sketch_not_finite" or "sketch_norm"."""
    if len(raw) != 4 * BUCKETS:
        raise ValueError("sketch_size")
    values = torch.from_numpy(np.frombuffer(raw, "<f4").astype(np.float32))
    if not bool(torch.isfinite(values).all()):
        raise ValueError("sketch_not_finite")
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    if norm != 0.0 and abs(norm - 1.0) > _SLACK:
        raise ValueError("sketch_norm")
    return values


def statement(swarm: str, round: int, sketch: bytes) -> bytes:
    """Return the message that a subject signs. `round` is in [0, 2^63)."""
    name = swarm.encode()
    return _DOMAIN + len(name).to_bytes(4, "little") + name + round.to_bytes(8, "little") + hashlib.blake2b(sketch, digest_size=32).digest()


def _agrees(seen: Observed | None, record: Record) -> bool:
    if seen is None:
        return True
    claimed = decode(record.sketch)
    norms = torch.linalg.vector_norm(claimed) * torch.linalg.vector_norm(seen.sketch)
    return float(claimed @ seen.sketch) >= LEAST_AGREEMENT * float(norms)


def _newest(entries: dict[str, Value]) -> dict[str, Value]:
    """Return the MAX_HISTORIES entries with the newest rounds; of equal rounds the lesser keys."""
    newest = sorted(entries.items(), key=lambda entry: (-entry[1].round, entry[0]))[:MAX_HISTORIES]
    return dict(sorted(newest))
