"""Slots of a rule's memory, one per peer; a new peer takes over the slot of the peer absent longest.

The memory (…, s) of a rule with `memory_slots` > 0 is as many equal parts, one for each slot; an empty slot is zeros.

Shapes: s numbers remembered.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from starling.gossip.lazy_torch import Tensor, torch

Peer = TypeVar("Peer", int, str)


def assign_slots(
    taken: Mapping[Peer, int], requested: Sequence[Peer], present: Sequence[bool], kept: Tensor, slots: int
) -> tuple[dict[Peer, int], Tensor, Tensor]:
    """Return slots of peers, the longest absent first; the memory (s,) with cleared slots for new peers; slots of `requested`.

    `taken` are the slots before, in that order. `requested` are k peers in order of peer id; those `present` have sent something. If they
    are more than slots >= 1, the last new ones get none. No argument is changed.
    """
    here = [peer for peer, sent in zip(requested, present, strict=True) if sent]
    absent = {peer: slot for peer, slot in taken.items() if peer not in here}
    stay = {peer: taken[peer] for peer in here if peer in taken}
    free = sorted(set(range(slots)) - set(taken.values()), reverse=True)
    given: dict[Peer, int] = {}
    for peer in here:
        if peer not in stay and (free or absent):
            given[peer] = free.pop() if free else absent.pop(next(iter(absent)))
    after = {**absent, **stay, **given}
    places = torch.tensor([after.get(peer, -1) for peer in requested], dtype=torch.int64, device=kept.device)
    return after, cleared(kept, slots, given.values()), places


def cleared(kept: Tensor, slots: int, which: Iterable[int]) -> Tensor:
    """Return a copy of the memory (…, s) with some slots empty."""
    kept = kept.clone()
    for slot in which:
        slot_of(kept, slots, slot).zero_()
    return kept


def slot_of(kept: Tensor, slots: int, slot: int) -> Tensor:
    """Return (…, s/slots), one slot of the memory, a view."""
    size = kept.shape[-1] // slots
    return kept[..., slot * size : (slot + 1) * size]
