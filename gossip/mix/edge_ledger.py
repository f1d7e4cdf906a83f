"""State of a node per edge: flows that can be settled or revoked, or the memory of a swapping edge.

Shapes: D numbers of the shared vector, E numbers kept per edge.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starling.gossip.api import Averaging, Common, Effect, Swapped, Swapping
from starling.gossip.compress.support import Blocks, Indices, Support
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import blank, squares, stretches, zeros

STRETCH = 1 << 18  # coordinates that are added at a time: what is made meanwhile stays in the processor's cache
DOMINANT = 3.0  # times the whole correction. An honest peer's flow is about as long; that of a steady Byzantine push, ten times


@dataclass(frozen=True, slots=True)
class Ledger:
    """The flows of one node. Every part is (D,)."""

    total: Tensor  # the sum of all below, added in one fixed order so that it never drifts from them
    rest: Tensor  # flows of settled edges that are too old to be revoked
    flows: Mapping[str, Tensor]  # c_ij per open edge
    settled: Mapping[str, Tensor]  # flows of edges closed in order, the oldest first


def opened(like: Tensor) -> Ledger:
    """Return a ledger without edges. `like` (D,) has the shared vector's length, dtype and device."""
    return Ledger(zeros(like), blank(like.numel(), like), {}, {})


def average(edge: Averaging, ledger: Ledger, shared: Tensor, effects: Iterable[Effect], *, owned: bool = False) -> tuple[Tensor, Ledger]:
    """Apply shared[S] += θ·v and c_ij[S] <- flow(c_ij[S], G·v, share) for each effect in turn; recompute the total where it changed.

    `owned`: nobody else uses `shared` and the ledger, which are changed in place and returned, a stretch at a time; of the effects only one
    is looked at at a time.
    """
    dim, flows = shared.numel(), dict(ledger.flows)
    shared, total = (shared, ledger.total) if owned else (shared.clone(), ledger.total.clone())
    ours = set(flows) if owned else set[str]()
    touched: list[Support] = []

    def book(effect: Effect) -> Support | None:
        """Update the flow; return the support on which flows have changed."""
        change = effect.support.spread(effect.value, dim)
        moving = moves(effect)
        if moving and effect.peer not in ours:
            there = flows.get(effect.peer)
            flows[effect.peer] = zeros(total, edge.stored(total.dtype)) if there is None else there.clone()
            ours.add(effect.peer)
        for place in effect.support.places(dim, STRETCH):
            part = place.part
            place.write(shared, (effect.theta * change[part]).add_(place.read(shared)))
            if moving:
                flow = flows[effect.peer]
                kept, moved = place.read(flow), effect.gain * change[part]
                place.write(flow, edge.flow(kept, moved, effect.keeps).to(flow.dtype))
        return effect.support if moving else None

    for where in map(book, effects):  # each effect is freed before the next one is decoded
        if where is not None and not any(_covers(where, other, dim) for other in touched):
            touched.append(where)
    for support in touched:
        for place in support.places(dim, STRETCH):
            place.write(total, _sum(ledger.rest, flows, ledger.settled, place.read))
    return shared, Ledger(total, ledger.rest, flows, ledger.settled)


def _covers(one: Support, other: Support, dim: int) -> bool:
    """Tell if both are the same coordinates, as far as that is known without listing them."""
    listed = isinstance(one, Blocks | Indices) or isinstance(other, Blocks | Indices)
    return not listed and one.index(dim) == other.index(dim)


class Moving(Protocol):
    """The part of an effect that determines whether it moves a flow."""

    @property
    def gain(self) -> float:
        """Return the flow per unit of difference."""

    @property
    def keeps(self) -> float:
        """Return the share of the old flow that is kept."""


def moves(effect: Moving) -> bool:
    """Return whether it changes a flow."""
    return effect.gain != 0.0 or effect.keeps != 1.0


def swap(
    edge: Swapping, kept: Mapping[str, Tensor], shared: Tensor, origin: Tensor, swaps: Sequence[Swapped]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply both halves of each swap in turn; return shared (D,) and the memory per edge. `origin` (D,) is the initial shared vector."""
    kept = dict(kept)
    for done in swaps:
        remembered = kept[done.peer] if done.peer in kept else edge.begin(origin)
        if done.sent is not None:
            remembered, change = edge.sent(remembered, done.sent, done.local, done.give)
            shared = shared + change
        if done.received is not None:
            remembered, change = edge.received(remembered, done.received, done.local, done.take)
            shared = shared + change
        kept[done.peer] = remembered
    return shared, kept


def swap_common(
    edge: Common, kept: Mapping[str, Tensor], shared: Tensor, origin: Tensor, swaps: Sequence[Swapped]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Swap where all send the same to all: the mean of all estimates, if every peer's swap is about `shared`.

    What is committed late, of an earlier round, is added to that.
    """
    fresh = [torch.equal(done.local, shared) for done in swaps]
    late = [done for done, new in zip(swaps, fresh, strict=True) if not new]
    now = [done for done, new in zip(swaps, fresh, strict=True) if new]
    added, kept = swap(edge, kept, torch.zeros_like(shared), origin, late)
    mixed, kept = swap(edge, kept, edge.base(shared), origin, now)
    known = {done.peer: edge.estimates(kept[done.peer]) for done in now}
    if now and len(known) == len(now) and all(map(partial(_of_all, len(now) + 1), now)):
        ours = [own for own, _ in known.values()]
        if all(torch.equal(own, ours[0]) for own in ours):
            estimates = {peer: remote for peer, (_, remote) in known.items()} | {now[0].node: ours[0]}
            mixed = mean_of([estimate for _, estimate in sorted(estimates.items())])
    return (mixed + added if late else mixed), kept


def _of_all(members: int, done: Swapped) -> bool:
    """Tell if both messages of a swap went through, and the peer's counts for its share of so many members."""
    return done.sent is not None and done.received is not None and round(1.0 / done.take) == members


def mean_of(estimates: Sequence[Tensor]) -> Tensor:
    """Return the mean of some (…, D), added in this order."""
    total = estimates[0]
    for estimate in estimates[1:]:
        total = total + estimate
    return total / len(estimates)


def settle(ledger: Ledger, peer: str, most: int) -> Ledger:
    """Close an edge: its flow stays, revocable until `most` later edges were closed."""
    if peer not in ledger.flows:
        return ledger
    flows, settled, rest = dict(ledger.flows), dict(ledger.settled), ledger.rest
    flow = flows.pop(peer)
    settled[peer] = settled.pop(peer) + flow if peer in settled else flow
    while len(settled) > most:
        rest = rest + settled.pop(next(iter(settled)))
    return _ledger(rest, flows, settled)


def revoke(ledger: Ledger, peer: str) -> Ledger:
    """Delete c_ij, and the settled flow of this peer."""
    return _ledger(
        ledger.rest,
        {p: flow for p, flow in ledger.flows.items() if p != peer},
        {p: flow for p, flow in ledger.settled.items() if p != peer},
    )


def dominated(before: Ledger, after: Ledger) -> bool:
    """Tell if the revoked flow was far longer than the whole correction: the remaining flows were compensating for it.

    They would now push as hard the other way; starting all edges again, without correction, errs by less.
    """
    one, other = before.total, after.total
    moved = sum(squares(one[part] - other[part]) for part, _ in stretches(slice(None), one.numel()))
    return math.sqrt(moved) > DOMINANT * math.sqrt(squares(one))


def _ledger(rest: Tensor, flows: Mapping[str, Tensor], settled: Mapping[str, Tensor]) -> Ledger:
    return Ledger(_sum(rest, flows, settled, lambda whole: whole), rest, flows, settled)


def _sum(rest: Tensor, flows: Mapping[str, Tensor], settled: Mapping[str, Tensor], read: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of what `read` takes of each, a new vector."""
    total = read(rest).clone()
    for peer in sorted(flows.keys() | settled.keys()):
        for part in (settled, flows):
            if peer in part:
                total += read(part[peer])
    return total
