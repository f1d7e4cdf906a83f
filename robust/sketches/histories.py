"""What is remembered of how peers moved, in little room: count-sketches of summed updates, and such of others, signed by their subject.

Theory of operation. A node observes the peers it asks: a peer's history is the sum of its updates, its model minus the model that
it set out from as far as we know it. Of peers it never asks it hears: each signs the sketch of its own history, and with every model
a node sends on one record, near subjects more often than far ones. What was observed goes before what was heard, a newer record before
an older one, and nothing is taken that its subject did not sign, so nobody is framed by a history in its name. What a subject signs of
itself may be false: a record of a peer we ask is sent on only if it looks like what we saw.

Histories are compared by their cosine, which a sketch of s buckets keeps to about 1/√s: 1.6 % for 4096. It is linear, so sketches of
updates may be added up. Who knows its seed can make clones look different by little: what follows the signs of one bucket is √(d/s)
times as long in the sketch. All who compare records share a seed, so it is as secret as the swarm is small.

Shapes: d parameters, s = BUCKETS.

Source: Werthenbach and Pouwelse 2023, "Towards Sybil Resilience in Decentralized Learning" (arXiv:2306.15044), the records they gossip;
sketches after Charikar, Chen and Farach-Colton 2002. Signatures, sketches and bounds are ours; so is that a history is a sum of
updates, as the sum of differences of models that their code takes is no more than the last model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from starling.gossip.rng import generator

BUCKETS = 4096
MOST = 64
"""Peers observed, and records heard, that are kept; beyond it those whose last round is longest ago go."""
FAR = 16
"""Records about subjects farther away are not kept."""
LEAST_AGREEMENT = 0.5
"""Cosine of what a peer signs of itself and what we saw of it, from which on we send its record on."""
_NEARNESS = 0.8  # λ of the choice by distance
_CHUNK = 1 << 18  # coordinates that are hashed at once
_DOMAIN = b"starling/history/1\0"
_SLACK = 1e-3
_FAR = 1e17

Verify = Callable[[str, bytes, bytes], bool]
"""Peer, signature, message -> whether that peer, a member, signed it."""

Value = TypeVar("Value", bound="Observed | Kept")


@dataclass(frozen=True, slots=True)
class Record:
    """What a peer says of its own history.

    Args:
        subject: peer id.
        round: the last one that it covers.
        sketch: `encode`'s bytes.
        signature: the subject's, over `statement`.
    """

    subject: str
    round: int
    sketch: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A record as heard.

    Args:
        record: its signature is good.
        distance: from us to the subject, 1 where it told us itself.
        source: who told us.
    """

    record: Record
    distance: int
    source: str

    @property
    def round(self) -> int:
        """Of the record."""
        return self.record.round


@dataclass(frozen=True, slots=True)
class Observed:
    """A history as seen.

    Args:
        sketch: (s,) float32.
        round: of the last update.
    """

    sketch: Tensor
    round: int


@dataclass(frozen=True, slots=True)
class Histories:
    """What a node remembers of others' updates: at most MOST of each kind.

    Args:
        observed: by peer asked.
        heard: by subject.
    """

    observed: Mapping[str, Observed] = field(default_factory=dict)
    heard: Mapping[str, Kept] = field(default_factory=dict)


def sketch(x: Tensor, seed: int, buckets: int = BUCKETS, origin: Tensor | None = None) -> Tensor:
    """(…, d) -> (…, buckets) float32: every coordinate is added, with a random sign, to a random bucket. Linear in x.

    Args:
        x: finite.
        origin: (d,) what is taken from x first; None: nothing. No coordinate of a difference counts more than 1e17.
        seed: of the hash; sketches of one seed can be compared.
        buckets: s, >= 1.
    """
    counts = x.new_zeros((*x.shape[:-1], buckets), dtype=torch.float32)
    for number, values in enumerate(torch.split(x, _CHUNK, dim=-1)):
        chunk = values if origin is None else moved(values, origin[number * _CHUNK : (number + 1) * _CHUNK])
        chance = generator(seed, "sketch", number)
        bucket = torch.randint(buckets, (chunk.shape[-1],), generator=chance).to(x.device)
        sign = torch.randint(2, (chunk.shape[-1],), generator=chance).to(x.device) * 2.0 - 1.0
        counts.index_add_(-1, bucket, chunk.to(torch.float32) * sign)
    return counts


def moved(x: Tensor, origin: Tensor) -> Tensor:
    """X − origin, coordinates cut at ±1e17: nobody honest is that far, and sums of squares stay finite."""
    return (x - origin).clamp_(-_FAR, _FAR)


def observe(known: Histories, peer: str, update: Tensor, round: int) -> Histories:
    """With one more update of a peer.

    Args:
        known: before; not changed.
        peer: who was asked.
        update: (s,) sketch of how it moved.
        round: when.
    """
    before = known.observed.get(peer)
    total = update if before is None else before.sketch + update
    heard = {subject: kept for subject, kept in known.heard.items() if subject != peer or kept.source == peer}
    return Histories(_newest({**known.observed, peer: Observed(total, round)}), heard)


def hear(
    known: Histories, record: Record, distance: int, source: str, *, own: str, swarm: str, round: int, verify: Verify
) -> Histories:
    """With a record that a peer sent along, or unchanged where it is of no use.

    Args:
        known: before; not changed.
        record: any values.
        distance: from the sender to the subject; 0 is the sender itself.
        source: the sender.
        own: our peer id.
        swarm: its id.
        round: ours.
        verify: checks signatures of members; called last, because it costs most.

    Raises:
        ValueError: no honest peer sends this: "sketch_size", "sketch_not_finite", "sketch_norm", "sketch_round", "sketch_distance",
            "sketch_signature".
    """
    decode(record.sketch)
    if not 0 <= record.round <= round + 1:
        raise ValueError("sketch_round")
    if not 0 <= distance < FAR or (distance == 0) != (record.subject == source):
        raise ValueError("sketch_distance")
    before = known.heard.get(record.subject)
    if record.subject == own or (record.subject in known.observed and distance > 0):
        return known
    if before is not None and before.round >= record.round:
        return known
    if not verify(record.subject, record.signature, statement(swarm, record.round, record.sketch)):
        raise ValueError("sketch_signature")
    return replace(known, heard=_newest({**known.heard, record.subject: Kept(record, distance + 1, source)}))


def chosen(known: Histories, receiver: str, chance: float) -> Kept | None:
    """The record to send along with a model, or None; with probability ∝ λ·e^(−λ(distance − 1)), λ = 0.8.

    Never the receiver's own, nor one that it told us, nor one of a peer that signs other than we saw.

    Args:
        known: what there is.
        receiver: whom it goes to.
        chance: uniform in [0, 1).
    """
    fit = [
        kept
        for subject, kept in sorted(known.heard.items())
        if receiver not in {subject, kept.source} and _agrees(known.observed.get(subject), kept.record)
    ]
    odds = np.cumsum([math.exp(-_NEARNESS * (kept.distance - 1)) for kept in fit])
    return fit[int(np.searchsorted(odds, chance * odds[-1], side="right"))] if fit else None


def strangers(known: Histories) -> Tensor:
    """(K, s) sketches of those we only heard of, by subject: they are compared with, never averaged."""
    rows = [
        decode(kept.record.sketch) for subject, kept in sorted(known.heard.items()) if subject not in known.observed
    ]
    return torch.stack(rows) if rows else torch.zeros(0, BUCKETS)


def encode(sketch: Tensor) -> bytes:
    """(s,) finite -> s little-endian float32 of norm 1, or 0: only the direction is compared."""
    wide = sketch.double() / max(float(sketch.abs().max()), 1e-30)
    norm = float(torch.linalg.vector_norm(wide))
    return (wide / norm if norm > 0 else wide).numpy().astype("<f4").tobytes()


def decode(raw: bytes) -> Tensor:
    """What `encode` made -> (s,) float32.

    Raises:
        ValueError: "sketch_size", "sketch_not_finite" or "sketch_norm": it made no such thing.
    """
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
    """What a subject signs. `round` is in [0, 2^63)."""
    name = swarm.encode()
    return (
        _DOMAIN
        + len(name).to_bytes(4, "little")
        + name
        + round.to_bytes(8, "little")
        + hashlib.blake2b(sketch, digest_size=32).digest()
    )


def _agrees(seen: Observed | None, record: Record) -> bool:
    if seen is None:
        return True
    said = decode(record.sketch)
    norms = torch.linalg.vector_norm(said) * torch.linalg.vector_norm(seen.sketch)
    return float(said @ seen.sketch) >= LEAST_AGREEMENT * float(norms)


def _newest(entries: dict[str, Value]) -> dict[str, Value]:
    """At most MOST; of equal rounds the later names go."""
    kept = sorted(entries.items(), key=lambda entry: (-entry[1].round, entry[0]))[:MOST]
    return dict(sorted(kept))
