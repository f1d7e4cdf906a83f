"""Where a rule keeps what it knows of each of its peers: every peer has a seat, and whoever was absent longest gives up its own.

What a rule with `seats` > 0 remembers, (…, s), is as many equal parts, one for each seat; zeros are a seat of which nothing is known.

Shapes: s numbers remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from starling.gossip.lazy_torch import Tensor, torch

Peer = TypeVar("Peer", int, str)


def seated(taken: Mapping[Peer, int], here: Sequence[Peer], seats: int) -> tuple[dict[Peer, int], tuple[int, ...]]:
    """Who sits where after a round, the longest absent first, and the seats that newcomers were given, which are to be emptied.

    Args:
        taken: before, in that order; not changed.
        here: peers that told something, in order of peer id. If there are more than seats, the last of the newcomers stand.
        seats: >= 1.
    """
    after = {peer: seat for peer, seat in taken.items() if peer not in here}
    stay = {peer: taken[peer] for peer in here if peer in taken}
    free = sorted(set(range(seats)) - set(taken.values()), reverse=True)
    given: dict[Peer, int] = {}
    for peer in here:
        if peer not in stay and (free or after):
            given[peer] = free.pop() if free else after.pop(next(iter(after)))
    return {**after, **stay, **given}, tuple(given.values())


def sit(
    taken: Mapping[Peer, int], asked: Sequence[Peer], present: Sequence[bool], kept: Tensor, seats: int
) -> tuple[dict[Peer, int], Tensor, Tensor]:
    """One node's round -> who sits where, what is remembered with nothing known of newcomers (s,), and the seats of those asked (k,).

    Args:
        taken: as in `seated`.
        asked: k peers, in order of peer id.
        present: which of them told something.
        kept: (s,) not changed.
        seats: >= 1.
    """
    after, given = seated(taken, [peer for peer, here in zip(asked, present, strict=True) if here], seats)
    places = torch.tensor([after.get(peer, -1) for peer in asked], dtype=torch.int64, device=kept.device)
    return after, emptied(kept, seats, given), places


def emptied(kept: Tensor, seats: int, which: Iterable[int]) -> Tensor:
    """A copy of (…, s) in which nothing is known of some seats."""
    kept = kept.clone()
    for seat in which:
        part(kept, seats, seat).zero_()
    return kept


def part(kept: Tensor, seats: int, seat: int) -> Tensor:
    """(…, s/seats) what is remembered of one seat, a view."""
    size = kept.shape[-1] // seats
    return kept[..., seat * size : (seat + 1) * size]
