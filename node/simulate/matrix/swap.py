"""Swaps of messages, many at a time: `Terms.tell`, `told` and `starling.gossip.mix.edge_ledger.swap` over the rows of a table.

Weights are given to the mixing algorithm as plain numbers, one call for each that occurs.

Shapes: r rows of a table, D numbers of the shared vector, E kept per end of an edge, m swaps, h messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Selector, Swapping
from starling.gossip.compress import codec
from starling.gossip.mix.exchange_codec import Terms
from starling.node.simulate.matrix.batch import Sizes, Turn
from starling.node.simulate.matrix.edges import Edges, Life, Pair
from starling.node.simulate.matrix.grouping import grouped
from starling.node.simulate.matrix.rule_memory import End, Memory
from starling.node.simulate.matrix.sampler import Chances, indices, through
from starling.node.simulate.matrix.table import Table, table

_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """Ends of swaps, h of them.

    Args:
        rows: (h,) of the vectors.
        ends: (h) as rows of the swarm.
        give: (h,) weight that the peer gives to what is sent; 0: nothing is.
        take: (h,) weight given to what is received; 0: nothing is.
        mine: (h, D) own vectors when the messages were made.
        sent: (h, D) messages as they arrive.
        received: (h, D) those of the peers.
    """

    rows: NDArray[np.int64]
    ends: Sequence[End]
    give: NDArray[np.float64]
    take: NDArray[np.float64]
    mine: Tensor
    sent: Tensor
    received: Tensor

    def of(self, places: NDArray[np.int64]) -> Halves:
        """Some of them."""
        at = indices(places, self.mine)
        ends = [self.ends[place] for place in places.tolist()]
        return Halves(
            self.rows[places], ends, self.give[places], self.take[places], self.mine[at], self.sent[at], self.received[at]
        )  # fmt: skip


@dataclass(slots=True)
class Swaps:
    """What swaps keep between rounds.

    Args:
        swapping: what an exchange is.
        terms: codecs.
        selector: coordinates of a message.
        edges: names and seeds.
        kept: what each end remembers of its edge.
        atomic: both ends commit or none; otherwise each message has a fate of its own.
    """

    swapping: Swapping
    terms: Terms
    selector: Selector
    edges: Edges
    kept: Memory
    atomic: bool = True
    late: dict[Pair, Halves] = field(default_factory=dict)

    def exchange(self, turn: Turn, truth: Turn | None = None) -> Sizes:
        """All swaps of a round, or some of a slot that share no row: moves the vectors and what is kept.

        Args:
            turn: what ends read to tell it.
            truth: where some lie, the same with what they believe themselves.
        """
        self.hear(turn)
        m, told = len(turn.pairs), _read(turn)
        mine = told if truth is None else _read(truth)
        ends = [*turn.pairs, *(pair[::-1] for pair in turn.pairs)]
        give = np.concatenate((turn.back, turn.forth))
        lives = [self.edges.begin(pair) for pair in turn.pairs]
        said, bytes_ = self._say(told, ends, give, [*lives, *lives])
        sizes = Sizes(bytes_[:m], np.where(turn.lost & self.atomic, 0, bytes_[m:]))
        halves = Halves(
            np.concatenate((turn.asking, turn.answering)), ends, give, np.concatenate((turn.forth, turn.back)),
            mine, said, torch.cat((said[m:], said[:m])),
        )  # fmt: skip
        self._commit(turn.vectors, self._left(turn, halves))
        return sizes

    def void(self, pair: Pair) -> None:
        """An edge is no more."""
        self.late.pop(pair, None)
        self.kept.void(pair)

    def less_pending(self, turn: Turn) -> Turn:
        """The same, with ends that count as given what they have pending with others."""
        met = dict(zip(turn.rows[turn.asking].tolist(), turn.pairs, strict=True))
        met |= dict(zip(turn.rows[turn.answering].tolist(), turn.pairs, strict=True))
        late = [(pair, half) for pair, half in self.late.items() if pair[1] in met and met[pair[1]] != pair]
        if not late:
            return turn
        seen = Table(turn.vectors.wide.clone(), turn.vectors.width)
        for pair, half in sorted(late, key=lambda item: self.edges.rank[item[0][0]]):
            if half.give[0] > 0.0:
                _, kept = self.kept.read([pair[::-1]])
                given = self.swapping.sent(kept, half.sent, half.mine, float(half.give[0]))[1]
                seen.rows[int(np.searchsorted(turn.rows, pair[1]))] += given[0]
        return replace(turn, asks=seen, answers=seen)

    def _left(self, turn: Turn, halves: Halves) -> Halves:
        """What of it happens now."""
        m = len(turn.pairs)
        if not self.atomic:
            arrives = np.concatenate((~turn.back_lost, ~turn.forth_lost))
            return replace(halves, take=halves.take * arrives)
        for place in np.flatnonzero(turn.unproven & ~turn.lost).tolist():
            self.late[turn.pairs[place]] = halves.of(np.asarray([place + m]))
        now = np.concatenate((~turn.lost, ~(turn.lost | turn.unproven)))
        return halves if now.all() else halves.of(np.flatnonzero(now))

    def hear(self, turn: Turn) -> None:
        """Responders that learn by being met that an earlier swap was committed: it is done before anything is said."""
        if not self.late:
            return
        for place, pair in enumerate(turn.pairs):
            late = None if turn.lost[place] else self.late.pop(pair, None)
            if late is not None:
                self._commit(turn.vectors, replace(late, rows=turn.answering[place : place + 1]))

    def _say(
        self, mine: Tensor, ends: Sequence[End], give: NDArray[np.float64], lives: Sequence[Life]
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Messages (h, D) as they arrive, zeros where nothing is said, and the bytes of each."""
        said, sizes = table(len(ends), mine.shape[1], mine), np.zeros(len(ends), np.int64)
        for weight, places in _alike(give, mine.shape[1]):
            part = [ends[place] for place in places.tolist()]
            _, kept = self.kept.read(part)
            message = table(len(part), mine.shape[1], mine)
            message.rows.copy_(self.swapping.message(kept, mine[indices(places, mine)], weight))
            self._tell(message, places, [(lives[place], ends[place][0]) for place in places.tolist()], said, sizes)
        return said.rows, sizes

    def _tell(
        self, message: Table, places: NDArray[np.int64], who: Sequence[tuple[Life, int]], said: Table,
        sizes: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Messages through their supports and codec, into `said` at `places`."""
        supports = [
            self.selector.select(row, None, life.seed, life.seq)
            for row, (life, _) in zip(message.rows, who, strict=True)
        ]
        for group in grouped(supports, [life for life, _ in who], message):
            at = group.which.tolist()
            seeds = [self.edges.chance(who[place][0], self.edges.peers[who[place][1]]) for place in at]
            values = group.take(message, indices(group.which, message.wide))
            arrived = through(self.terms.response, values, Chances(seeds), range(len(at)))
            said.add(indices(places[group.which], said.wide), group.picks, group.spread(arrived), 1)
            sizes[places[group.which]] = [
                codec.size(support, self.terms.response, group.dim) for support in group.supports
            ]

    def _commit(self, vectors: Table, halves: Halves) -> None:
        """`sent`, then `received`, of all swaps."""
        slots, kept = self.kept.read(halves.ends)
        for weight, places in _alike(halves.give, vectors.width):
            at = indices(places, kept)
            kept[at], change = self.swapping.sent(kept[at], halves.sent[at], halves.mine[at], weight)
            vectors.rows.index_add_(0, indices(halves.rows[places], kept), change)
        for weight, places in _alike(halves.take, vectors.width):
            at = indices(places, kept)
            kept[at], change = self.swapping.received(kept[at], halves.received[at], halves.mine[at], weight)
            vectors.rows.index_add_(0, indices(halves.rows[places], kept), change)
        self.kept.table.rows[slots] = kept


def _read(turn: Turn) -> Tensor:
    """(2m, D) what each initiator reads, then each responder."""
    asking, answering = indices(turn.asking, turn.vectors.wide), indices(turn.answering, turn.vectors.wide)
    return torch.cat((turn.asks.rows.index_select(0, asking), turn.answers.rows.index_select(0, answering)))


def _alike(weights: NDArray[np.float64], width: int) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """Each weight but 0, and the places that have it, at most some million numbers of `width` at a time."""
    step = max(1, _NUMBERS // width)
    for weight in np.unique(weights[weights > 0.0]):
        places = np.flatnonzero(weights == weight)
        for start in range(0, places.size, step):
            yield float(weight), places[start : start + step]
