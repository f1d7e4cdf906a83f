"""Exchanges of differences, many at a time: `ExchangeCodec` and `gossip.mix.edge_ledger` over the rows of a table.

    supports, grouped by shape ─▶ values through the request ─▶ difference ─▶ clip ─▶ through the response ─▶ v
    ─▶ flows of the edges and their totals ─▶ x[S] ± θ·v

Both ends hold the same flow with opposite signs, so one vector per edge is enough. The total of a node changes with its flows; a
node's ledger sums them anew, which rounds differently.

Shapes: N rows, D numbers of the shared vector, g exchanges of a group, k values and w coordinates of one, h ends.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.api import Averaging, Selector
from starling.gossip.compress import codec
from starling.gossip.compress.select.coordinates import with_wish
from starling.gossip.compress.support import Indices, Support
from starling.gossip.mix.borne import kept
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.personal import SHARES
from starling.node.simulate.matrix.batch import Batch, Pending, Sizes
from starling.node.simulate.matrix.byzantine import View
from starling.node.simulate.matrix.distances import Defence, Undefended
from starling.node.simulate.matrix.edges import Edge, Edges, EdgeVectors, Pair, index
from starling.node.simulate.matrix.memories import RowMemories
from starling.node.simulate.matrix.table import Coordinates, Group, Rows, add, check_finite, grouped, read, through, write

_SHRINK = 0.9  # as `ExchangeCodec.encode_difference` does
_DOUBT = 1e-9  # relative difference between norms of many rows and of one row, by rounding


Choose = Callable[[Sequence[int], Tensor], Tensor]
"""Rows of the swarm (h) and their vectors (h, 3, D) after each of `SHARES` of a step -> (h,) the share to take."""


@dataclass(slots=True)
class Flows:
    """The flows of all edges, as their initiators hold them, and the sum of each row's."""

    edge: Averaging  # the effect of an exchange on a flow
    totals: Tensor  # (N, D)
    most: int  # closed edges whose flows can still be revoked, per row
    open: EdgeVectors = field(init=False)
    _settled: list[dict[int, Tensor]] = field(init=False)  # per row: other end -> flow, oldest first
    _rest: set[int] = field(init=False, default_factory=set)  # rows with flows that can no longer be revoked

    def __post_init__(self) -> None:
        self.open = EdgeVectors(torch.zeros_like(self.totals[0]))
        self._settled = [{} for _ in self.totals]

    def move(self, pairs: Sequence[Pair], coordinates: Coordinates, moved: Tensor, keeps: float | Tensor = 1.0) -> Tensor:
        """New flows of g edges, each once, where moved (g, w) = gain·v and `keeps` (g, 1) -> (g, w) by how much they changed."""
        at = self.open.slots(pairs)
        before = read(self.open.rows, at, coordinates)
        after = self.edge.flow(before, moved, keeps)
        write(self.open.rows, at, coordinates, after)
        return after - before

    def revoke(self, row: int, pairs: Sequence[Pair]) -> list[int]:
        """Delete the flows of a lost node's edges, open (`pairs`) and closed -> the rows at the other ends, ascending."""
        others = set()
        for pair in pairs:
            flow = self.open.pop(pair)
            if flow is not None:
                other, sign = (pair[1], -1) if pair[0] == row else (pair[0], 1)
                self.totals[other] -= sign * flow
                others.add(other)
        for other, settled in enumerate(self._settled):
            if row in settled:
                self.totals[other] -= settled.pop(row)
                others.add(other)
        self._settled[row] = {}
        self._rest.discard(row)
        for each in (row, *self._without(others)):  # the row may return, without flows
            self.totals[each] = 0.0
        return sorted(others)

    def _without(self, rows: Iterable[int]) -> list[int]:
        """Return the rows that have no flow left, whose total is 0 and not what rounding has left of it."""
        flowing = {row for pair in self.open for row in pair} | self._rest
        return [row for row in rows if row not in flowing and not self._settled[row]]

    def delete(self, pair: Pair) -> None:
        """The flow of an edge is deleted at both ends."""
        flow = self.open.pop(pair)
        for me, other, own in ((*pair, flow), (*pair[::-1], None if flow is None else -flow)):
            for gone in (own, self._settled[me].pop(other, None)):
                if gone is not None:
                    self.totals[me] -= gone
        for row in self._without(pair):
            self.totals[row] = 0.0

    def settle(self, pair: Pair) -> None:
        """Settle the flow of an orderly closed edge: each end keeps it, the latest `most` of them revocable."""
        flow = self.open.pop(pair)
        if flow is None:
            return
        for me, other, own in ((*pair, flow), (*pair[::-1], -flow)):
            settled = self._settled[me]
            settled[other] = own + settled.pop(other, 0.0)
            while len(settled) > self.most:
                del settled[next(iter(settled))]
                self._rest.add(me)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Changes that exchanges make to one endpoint each."""

    rows: NDArray[np.int64]  # (h,) rows of the vectors; a row may occur more than once
    ends: Sequence[Pair]  # (h,) pairs of rows of the swarm
    group: Group  # the supports of the exchanges
    change: Tensor  # (h, w) of the vectors
    flow: Tensor | None  # (h, w) change of the total flow; None where there is none
    known: Tensor | None  # (h, k) the peers' values afterwards, for selectors that compare with them

    def of(self, places: NDArray[np.int64]) -> "Update":
        """Return the changes at `places`."""
        at = index(places, self.change)
        flow, known = (part if part is None else part[at] for part in (self.flow, self.known))
        return Update(self.rows[places], [self.ends[place] for place in places], self.group.of(places), self.change[at], flow, known)


@dataclass(slots=True)
class Differences:
    """Exchanges of differences: flows, estimates of peers and pending commits that are stored between rounds."""

    codec: ExchangeCodec
    selector: Selector
    edges: Edges
    flows: Flows | None
    known: EdgeVectors | None = None  # by end: (D,) last known vector of the peer, for comparing selectors
    wish_limit: int = 0  # largest number of coordinates of an exchange if responders request some as well
    choose: Choose | None = None  # share of a step that each end takes; None: all
    memories: RowMemories | None = None  # the optimisers' memories, if they are averaged; None: they are not
    defence: Defence = field(default_factory=Undefended)
    pending: Pending[Update] = field(default_factory=Pending)
    _wishes: dict[Pair, Indices] = field(default_factory=dict)
    _named: list[Pair] = field(default_factory=list)

    def exchange(self, batch: Batch, honest: Batch, view: View, unreachable: NDArray[np.int64]) -> Sizes:
        """Run all exchanges of a batch: move the vectors and the flows. `honest` is not needed: attackers apply what they claim."""
        rows = batch.rows.tolist()
        self.defence.begin(rows, batch.vectors)
        updates = self._resolved(batch)
        opened = [self.edges.begin(pair) for pair in batch.pairs]
        supports = [self._support(batch, place, each) for place, each in enumerate(opened)]
        sizes = np.zeros((2, len(opened)), np.int64)
        for group in grouped(supports, batch.vectors.shape[1], batch.vectors):
            sizes[:, group.which] = self._sizes(group)
            happens = group.of(np.flatnonzero(~batch.lost[group.which]))
            if len(happens.which):
                updates += self._group(batch, happens, opened, sizes)
        sizes[1, batch.lost] = 0
        self._commit(updates, batch.vectors)
        if self.memories is not None:
            self.memories.apply(self.edges.rank)
        self.defence.end(rows, batch.vectors)
        self._refuse()
        return sizes

    def _refuse(self) -> None:
        """Delete the flows of pairs in which an end has started to refuse the other."""
        named, self._named = self._named, []
        for pair in named:
            self.remove(pair)
            if self.flows is not None:
                self.flows.delete(pair)

    def resolve(self, batch: Batch) -> None:
        """Apply only what responders learn from these exchanges: the transactions that their initiators had committed."""
        self._commit(self._resolved(batch), batch.vectors)
        if self.memories is not None:
            self.memories.apply(self.edges.rank)

    def less_pending(self, batch: Batch) -> Batch:
        """Return the batch with pending updates of responders on other edges applied, or two of them would overshoot."""
        elsewhere = self.pending.elsewhere(batch, 1)
        if not elsewhere:
            return batch
        vectors = batch.vectors.clone()
        for row, update in elsewhere:
            add(vectors, index(row, vectors), update.group.coordinates, update.change)
        return replace(batch, read=(batch.read[0], vectors))

    def remove(self, pair: Pair) -> None:
        """Remove an edge: its pending updates count for the total flow, which is revoked or closed afterwards."""
        update = self.pending.pop(pair, None)
        if update is not None:
            self._commit([update], None)
        self._wishes.pop(pair, None)
        if self.memories is not None:
            self.memories.remove(pair)
        if self.known is not None:
            self.known.pop(pair)
            self.known.pop(pair[::-1])

    def told(self, batch: Batch, state: Any) -> Batch:
        """Return the batch with what local steps bore out of corrections, where not all counts."""
        borne = None if self.flows is None else self.flows.edge.borne(state)
        return batch if borne is None else replace(batch, borne=borne[:, 0].cpu().numpy())

    def correction(self, rows: Rows) -> Tensor | None:
        """Return the sums (r, D) of the flows of `rows`; None for mixing algorithms without flows."""
        return None if self.flows is None else self.flows.totals[rows]

    def _resolved(self, batch: Batch) -> list[Update]:
        if self.memories is not None:
            for place in np.flatnonzero(~batch.lost).tolist():
                self.memories.resolve(batch.pairs[place])
        return self._remembered([replace(update, rows=row) for row, update in self.pending.resolve(batch)])

    def _support(self, batch: Batch, place: int, opened: Edge) -> Support:
        """Return the coordinates that the initiator selects, joined with those that the responder requested last time."""
        pair = batch.pairs[place]
        own = batch.read[0][batch.ends[0, place]]
        support = self.selector.select(own, self._known(pair), opened.seed, opened.transactions)
        wish = self._wishes.pop(pair, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, self.wish_limit)
        return support

    def _known(self, end: Pair) -> Tensor | None:
        """Return (D,): what this end knows of the other's vector."""
        if self.known is None:
            return None
        known = self.known.get(end)
        return self.known.initial if known is None else known

    def _group(self, batch: Batch, group: Group, opened: Sequence[Edge], sizes: Sizes) -> list[Update]:
        """Do one group's exchanges; return their effects on both ends."""
        which = group.which
        pairs, rows = [batch.pairs[place] for place in which], batch.ends[:, which]
        remote, own = (group.take(vectors, index(at, vectors)) for vectors, at in zip(batch.read, rows, strict=True))
        generators = [[self.edges.generator(opened[place]) for place in which] for _ in range(2)]
        agreed, lengths = agree(self.codec, own, remote, *generators)
        root = math.sqrt(group.supports[0].ratio(group.dim)) if self.known is None else 1.0  # else the largest are exchanged
        applied, distances = ((each / root).tolist() for each in (torch.linalg.vector_norm(agreed, dim=1), lengths))
        progress = self.defence.progress(pairs, group, (remote, own))
        shares, credit = self.defence.meet(pairs, applied, distances, progress, batch.phase.round)
        self._named += [pair for pair, share in zip(pairs, shares.min(axis=0), strict=True) if not share]
        v = group.spread(agreed)
        self._compare(batch, group, (v, -v))
        thetas = batch.weights[:, which].mean(axis=0)
        flow, opposite = None, None
        known: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.flows is not None:
            flow, opposite = self._moved(batch, self.flows, group, v, shares.min(axis=0) * credit[1])
        shares = shares * credit
        if self.memories is not None:
            sizes[:, which] += self.memories.meet(
                pairs, group.supports, (thetas * shares).T.tolist(), generators, batch.unproven[which], group.dim
            )
        if self.wish_limit:
            self._wish(batch, group, opened, sizes)
        if self.known is not None:
            rests = [agreed * _column(1.0 - thetas * share, v) for share in shares]
            known = (remote + rests[0], own - rests[1])
        steps = v * _column(thetas * shares[0], v), -(v * _column(thetas * shares[1], v))
        if self.choose is not None:
            one, other = (self._chosen(self.choose, batch, group, end, step) for end, step in enumerate(steps))
            steps = one, other
        initiators = Update(rows[0], pairs, group, steps[0], flow, known[0])
        responders = Update(rows[1], [pair[::-1] for pair in pairs], group, steps[1], opposite, known[1])
        unproven = batch.unproven[which]
        for place in np.flatnonzero(unproven):
            self.pending[pairs[place]] = responders.of(np.asarray([place]))
        return self._remembered([initiators, responders.of(np.flatnonzero(~unproven)) if unproven.any() else responders])

    def _compare(self, batch: Batch, group: Group, differences: tuple[Tensor, Tensor]) -> None:
        """Let each end compare its model with the one that it was told, which differs from it by (g, w), where it needs to."""
        for end, difference in enumerate(differences):
            ends = [batch.pairs[place][:: 1 - 2 * end] for place in group.which]
            places = np.flatnonzero(self.defence.due(ends))
            if not len(places):
                continue
            due = group.of(places)
            own = batch.read[end][index(batch.ends[end, due.which], batch.read[end])]
            told = own.clone()
            add(told, index(np.arange(len(places)), told), due.coordinates, difference[index(places, difference)])
            self.defence.compare([ends[place] for place in places], torch.stack([own, told], 1), batch.phase.round)

    def _moved(
        self, batch: Batch, flows: Flows, group: Group, v: Tensor, shares: NDArray[np.float64]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Apply shares (g,) of the differences v (g, w) of one group to the flows -> (g, w) changes at both ends."""
        which = group.which
        ratio, thetas = group.supports[0].ratio(group.dim), batch.weights[:, which].mean(axis=0).tolist()
        gains = np.asarray([flows.edge.gain(theta, ratio, batch.phase) for theta in thetas])
        if not gains.any():
            return None, None
        s = 1.0 if batch.borne is None else batch.borne[batch.ends[:, which]].min(axis=0)
        flow = flows.move(
            [batch.pairs[place] for place in which], group.coordinates, v * _column(gains * s * shares, v), _column(kept(s), v)
        )
        return flow, -flow

    def _chosen(self, choose: Choose, batch: Batch, group: Group, end: int, step: Tensor) -> Tensor:
        """Return (g, w): what the ends take of a step (g, w)."""
        at, models = batch.ends[end, group.which], []
        for share in SHARES:
            moved = batch.vectors[index(at, batch.vectors)].clone()
            add(moved, index(np.arange(len(at)), moved), group.coordinates, share * step)
            models.append(moved)
        rows = [batch.pairs[place][end] for place in group.which]
        return step * choose(rows, torch.stack(models, 1))[:, None].to(step)

    def _wish(self, batch: Batch, group: Group, opened: Sequence[Edge], sizes: Sizes) -> None:
        """Store the coordinates that responders request for the next exchange; their responses carry them."""
        for place in group.which:
            pair, answer = batch.pairs[place], batch.read[1][batch.ends[1, place]]
            wish = self.selector.select(answer, self._known(pair[::-1]), 0, opened[place].transactions)
            if isinstance(wish, Indices):
                self._wishes[pair] = wish
                sizes[1, place] += len(wish.describe(group.dim))

    def _remembered(self, updates: list[Update]) -> list[Update]:
        """Return the updates, after storing in the selector what they reveal of the peers, as `Support.put` does."""
        for update in updates:
            if update.known is not None and self.known is not None:
                slots, group = self.known.slots(update.ends), update.group
                learned = group.spread(update.known - group.take(self.known.rows, slots))
                add(self.known.rows, slots, group.coordinates, learned)
        return updates

    def _commit(self, updates: Sequence[Update], vectors: Tensor | None) -> None:
        """Apply updates to the vectors, if given, and to the total flows."""
        for update in updates:
            if vectors is not None:
                add(vectors, index(update.rows, vectors), update.group.coordinates, update.change)
            if update.flow is not None and self.flows is not None:
                rows = index([me for me, _ in update.ends], update.flow)
                add(self.flows.totals, rows, update.group.coordinates, update.flow)

    def _sizes(self, group: Group) -> NDArray[np.int64]:
        """Return (2, g) bytes of requests and of responses without requested coordinates. Listed coordinates differ in coded size."""
        differ = isinstance(group.supports[0], Indices)
        each = group.supports if differ else group.supports[:1]
        requests = [codec.size(support, self.codec.request, group.dim) for support in each]
        response = codec.values_size(group.supports[0], self.codec.response, group.dim)
        return np.stack(np.broadcast_arrays(requests, np.full(len(group.which), response)))


def agree(
    exchange_codec: ExchangeCodec, own: Tensor, remote: Tensor, asking: Sequence[Generator], answering: Sequence[Generator]
) -> tuple[Tensor, Tensor]:
    """Return the v that both ends of each exchange apply: the result of `encode_request`, `decode_request` and `encode_difference`.

    Beside it (g,) the length of each before it was clipped.

    Values (g, k): the responders' `own`, the initiators' `remote`; requests are rounded by `asking` (g), responses by `answering`.

    Raises ValueError: "not_finite".
    """
    check_finite(remote)
    difference = own - through(exchange_codec.request, remote, asking)
    check_finite(difference)
    lengths = torch.linalg.vector_norm(difference, dim=1)
    for place, clipped in _longer(difference, exchange_codec):
        difference[place] = clipped
    v, shrink = through(exchange_codec.response, difference, answering), _SHRINK
    over = [place for place, _ in _longer(v, exchange_codec)]
    while over:
        at = index(over, v)
        difference[at] *= shrink
        shrink *= shrink
        v[at] = again = through(exchange_codec.response, difference[at], [answering[place] for place in over])
        over = [over[place] for place, _ in _longer(again, exchange_codec)]
    return v, lengths


def _longer(v: Tensor, exchange_codec: ExchangeCodec) -> list[tuple[int, Tensor]]:
    """Rows of (g, k) that the clip shortens, each with what it is shortened to."""
    limit = exchange_codec.clip_norm
    if limit == 0.0:
        return []
    norms = torch.linalg.vector_norm(v, dim=1, dtype=torch.float64)
    near = (norms > limit * (1.0 - _DOUBT)).nonzero().view(-1).tolist()
    clipped = ((place, *exchange_codec.clip(v[place].cpu(), limit)) for place in near)
    return [(place, shorter) for place, shorter, longer in clipped if longer]


def _column(numbers: NDArray[np.float64], like: Tensor) -> Tensor:
    """Map (g,) -> (g, 1), rounded as torch rounds a number that multiplies a tensor of that dtype."""
    return torch.from_numpy(numbers).to(like)[:, None]
