"""Choose the outer parameters that all continue from where members' differ. Pure functions.

A member's messages say the digest of its outer parameters before a round that no message changes any more, so what differs there stays
different. With f of n members liars (`starling.gossip.limits.tolerable`) a node takes

    alike    what f + 1 members report, as one of them is honest: the most common such, of equally common ones that of the least digest
    median   else the lower median of each coordinate, one voice for each member; 2·f + 1 voices at least

The lower median of a coordinate is a number that a member has, and lies between two honest members' as long as fewer than half lie. It
commutes with functions that do not decrease, as adding a message is, and stays the median if one voice becomes the median. So nodes need
not do this in the same round: who hears the same messages meanwhile ends with equal bits.

Shapes: d parameters, m members' outer parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starling.gossip.errors import LocalProtocolError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.limits import tolerable

UNKNOWN = bytes(8)
"""Digest in messages of a node that has not been part of enough rounds to know parameters that nothing changes any more."""
GIVEN = 4
"""Rounds for which a node gives its earlier outer parameters to others, from one in which members' differ on: who asks may be slower."""
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Wanted:
    """Outer parameters that a node needs from others."""

    sources: Mapping[bytes, tuple[str, ...]]  # peers that have them, by digest
    own: int  # voices that the node's own count, with peers that have the same
    voices: int  # that are needed, those included


NOTHING = Wanted({}, 0, 0)


def parted(own: bytes, other: bytes) -> bool:
    """Return whether two digests are of different outer parameters; of UNKNOWN ones nothing is known."""
    return UNKNOWN not in (own, other) and own != other


def wanted(own: bytes, reported: Mapping[str, bytes], members: int) -> Wanted:
    """Return what a node with `own` digest needs of what peers report in a round of so many `members`; NOTHING: it keeps its own.

    Digests that are UNKNOWN say nothing; a node whose own is keeps it.
    """
    sources: dict[bytes, tuple[str, ...]] = {}
    for peer, digest in sorted(reported.items()):
        if digest != UNKNOWN:
            sources[digest] = (*sources.get(digest, ()), peer)
    if own == UNKNOWN or not sources.keys() - {own}:
        return NOTHING
    liars = tolerable(members)
    counts = Counter({digest: len(peers) for digest, peers in sources.items()})
    counts[own] += 1
    common = min(counts, key=lambda digest: (-counts[digest], digest))
    others = {digest: peers for digest, peers in sources.items() if digest != own}
    if counts[common] > liars:
        return NOTHING if common == own else Wanted({common: others[common]}, 0, counts[common])
    return Wanted(others, counts[own], 2 * liars + 1) if counts.total() > 2 * liars else NOTHING


class Choice:
    """One node's choice after a round: what it needs of others, and what it got."""

    def __init__(self) -> None:
        self._wanted = NOTHING
        self._own: Tensor | None = None
        self._fetched: dict[bytes, Tensor] = {}

    def compare(self, digest: bytes, own: Tensor | None, reported: Mapping[str, bytes], members: int) -> Wanted:
        """Begin with our outer parameters (d,), None if they are not known, their digest, and what peers report; return what is needed."""
        self._own, self._fetched = own, {}
        self._wanted = NOTHING if own is None else wanted(digest, reported, members)
        return self._wanted

    def needs(self, digest: bytes) -> bool:
        """Return whether the outer parameters with that digest are needed."""
        return digest in self._wanted.sources

    def store(self, digest: bytes, outer: Tensor) -> None:
        """Store needed outer parameters (d,)."""
        self._fetched[digest] = outer

    def choose(self) -> Tensor:
        """Return (d,) what to continue from, once. Raises LocalProtocolError: too few are stored."""
        needed, fetched, own = self._wanted, self._fetched, self._own
        self._wanted, self._fetched, self._own = NOTHING, {}, None
        voices = {digest: len(needed.sources[digest]) for digest in sorted(fetched)}
        total = sum(voices.values()) + needed.own
        if not fetched or own is None or total < needed.voices:
            raise LocalProtocolError(f"outer parameters of {total} members are stored, which is too few")
        ours = [own.to(fetched[next(iter(voices))])] * bool(needed.own)
        chosen = lower_median([*(fetched[digest] for digest in voices), *ours], [*voices.values(), *[needed.own] * len(ours)])
        return chosen.to(own)


def lower_median(vectors: Sequence[Tensor], voices: Sequence[int]) -> Tensor:
    """Return (d,) the lower median of each coordinate of m >= 1 finite vectors (d,), which are read from front to back and not modified.

    `voices` (m,) says how often each counts, >= 1. A single vector keeps its bits; of several a zero is positive, as both zeros are equal.
    """
    if len(vectors) == 1:
        return vectors[0].clone()
    out, rank = torch.empty_like(vectors[0]), (sum(voices) - 1) // 2
    repeats = torch.tensor(voices, device=out.device)
    for start in range(0, out.numel(), _CHUNK):
        part = torch.stack([vector[start : start + _CHUNK].to(out) for vector in vectors])
        ordered = part.repeat_interleave(repeats, dim=0).sort(0).values
        out[start : start + _CHUNK] = ordered[rank] + 0.0
    return out
