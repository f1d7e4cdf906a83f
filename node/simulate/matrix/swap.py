"""Swaps of messages, many at a time: `ExchangeCodec` and `starling.gossip.mix.edge_ledger.swap` over the rows of a table.

Shapes: r rows of a table, D numbers of the shared vector, E stored per end of an edge, m swaps, h ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.api import Common, Controlling, Selector, Swapping
from starling.gossip.compress import codec
from starling.gossip.mix import common_draw
from starling.gossip.mix.edge_ledger import mean_of
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.node.simulate.matrix.batch import Batch, Pending, Sizes
from starling.node.simulate.matrix.byzantine import View
from starling.node.simulate.matrix.edges import Edge, Edges, EdgeVectors, Pair, index
from starling.node.simulate.matrix.table import Rows, add, grouped, through


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One endpoint's part of some swaps."""

    rows: NDArray[np.int64]  # (h,) rows of the vectors
    ends: Sequence[Pair]  # (h,) pairs of rows of the swarm
    give: Tensor  # (h, 1) weight that the peer gives to what is sent; 0: nothing is
    take: Tensor  # (h, 1) weight given to what is received; 0: nothing is
    local: Tensor  # (h, D) own vectors when the messages were made
    sent: Tensor  # (h, D) messages as they arrive
    received: Tensor  # (h, D) the peers' messages

    def of(self, places: NDArray[np.int64]) -> "Update":
        """Return the updates at `places`."""
        at, ends = index(places, self.local), [self.ends[place] for place in places]
        return Update(self.rows[places], ends, self.give[at], self.take[at], self.local[at], self.sent[at], self.received[at])


class Draw(NamedTuple):
    """Seeds and chance with which a message is compressed."""

    sender: int  # row
    seed: int  # of the selector
    turn: int
    chance: Callable[[], Generator]  # creates the quantizer's random generators


@dataclass(slots=True)
class Swaps:
    """Swaps: public copies and pending commits that are stored between rounds."""

    swapping: Swapping
    codec: ExchangeCodec
    selector: Selector
    edges: Edges
    kept: EdgeVectors  # state of each end of an edge (E,)
    pending: Pending[Update] = field(default_factory=Pending)

    def exchange(self, batch: Batch, honest: Batch, view: View, unreachable: NDArray[np.int64]) -> Sizes:
        """Run all swaps of a batch: move the vectors and the public copies.

        Attackers make messages of what `batch` reads, but change what they keep by their true vectors, which `honest` reads.
        """
        self.resolve(batch)
        m, read, local = len(batch.pairs), _read(batch), _read(honest)
        opened = [self.edges.begin(pair) for pair in batch.pairs] * 2
        ends = [*batch.pairs, *(pair[::-1] for pair in batch.pairs)]
        give, take = (torch.tensor(weights.ravel()[:, None]).to(local) for weights in (batch.weights[::-1], batch.weights))
        sent, bytes_ = self._messages(read, ends, give, opened, batch.phase.round)
        received = torch.cat((sent[m:], sent[:m]))
        update = Update(batch.ends.ravel(), ends, give, take, local, sent, received)
        for place in np.flatnonzero(batch.unproven & ~batch.lost).tolist():
            self.pending[batch.pairs[place]] = update.of(np.asarray([place + m]))
        now = np.concatenate((~batch.lost, ~(batch.lost | batch.unproven)))
        self._conclude(batch.vectors, update if now.all() else update.of(np.flatnonzero(now)))
        sizes = bytes_.reshape(2, m)
        sizes[1, batch.lost] = 0
        return sizes

    def resolve(self, batch: Batch) -> None:
        """Commit what responders learn from these swaps that their initiators have committed: before any message is made."""
        for row, update in self.pending.resolve(batch):
            self._commit(batch.vectors, replace(update, rows=row))

    def less_pending(self, batch: Batch) -> Batch:
        """Return the batch with pending updates of its rows on other edges applied."""
        vectors = batch.vectors.clone()
        for row, update in self.pending.elsewhere(batch, 0, 1):
            if update.give > 0.0:
                kept = self.kept.read(update.ends)
                change = self.swapping.sent(kept, update.sent, update.local, update.give)[1]
                add(vectors, index(row, vectors), None, change)
        return replace(batch, read=(vectors, vectors))

    def remove(self, pair: Pair) -> None:
        self.pending.pop(pair, None)
        self.kept.pop(pair)
        self.kept.pop(pair[::-1])

    def told(self, batch: Batch, state: Any) -> Batch:
        """Return the batch: messages are about models and trackers."""
        return batch

    def correction(self, rows: Rows) -> Tensor | None:
        """None: messages correct no local steps."""
        return None

    def _messages(
        self, local: Tensor, ends: Sequence[Pair], give: Tensor, opened: Sequence[Edge], round: int
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Messages (h, D) as they arrive, zeros where nothing is sent, and the bytes of each."""
        at = (give[:, 0] > 0.0).nonzero().view(-1)
        places = at.cpu().numpy()
        kept = self.kept.read([ends[place] for place in places])
        made = self.swapping.message(kept, local[at], give[at])
        messages, sizes = torch.zeros_like(local), np.zeros(len(ends), np.int64)
        draws = [self._drawn(ends[place][0], opened[place], round) for place in places]
        messages[at], sizes[places] = self._encoded(made, draws)
        return messages, sizes

    def _drawn(self, sender: int, opened: Edge, round: int) -> Draw:
        """Return the draw of a row's message on an edge."""
        chance = partial(self.edges.generator, opened, self.edges.peers[sender])
        return Draw(sender, opened.seed, opened.transactions, chance)

    def _encoded(self, made: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, NDArray[np.int64]]:
        """Messages (g, D) of rows -> (g, D) as they arrive, and the bytes of each (g,)."""
        arrive, sizes, dim = torch.zeros_like(made), np.zeros(len(made), np.int64), made.shape[1]
        supports = [self.selector.select(row, None, draw.seed, draw.turn) for row, draw in zip(made, draws, strict=True)]
        for group in grouped(supports, dim, made):
            at = index(group.which, made)
            values = group.take(made, at)
            arrived = group.spread(through(self.codec.response, values, [draws[place].chance() for place in group.which]))
            add(arrive, at, group.coordinates, arrived)
            sizes[group.which] = [codec.size(support, self.codec.response, dim) for support in group.supports]
        return arrive, sizes

    def _conclude(self, vectors: Tensor, update: Update) -> None:
        """Commit all updates of a round."""
        self._commit(vectors, update)

    def _commit(self, vectors: Tensor, update: Update) -> None:
        """`sent`, then `received`, of all swaps."""
        slots, rows = self.kept.slots(update.ends), index(update.rows, vectors)
        for half, weights, messages in (
            (self.swapping.sent, update.give, update.sent),
            (self.swapping.received, update.take, update.received),
        ):
            at = (weights[:, 0] > 0.0).nonzero().view(-1)
            kept, change = half(self.kept.rows[slots[at]], messages[at], update.local[at], weights[at])
            self.kept.rows[slots[at]] = kept
            add(vectors, rows[at], None, change)


@dataclass(slots=True)
class Commons(Swaps):
    """Swaps in which a row sends all others the same, and all take the mean of all in the order of peer ids."""

    swapping: Common

    def _drawn(self, sender: int, opened: Edge, round: int) -> Draw:
        """Return a draw that depends on the sender and the round only."""
        seed, peer = self.edges.seed, self.edges.peers[sender]
        return Draw(sender, common_draw.mask_seed(seed, peer), round, partial(common_draw.chance, seed, peer, round))

    def _encoded(self, made: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the first of each sender, and those of its others that differ from it."""
        first = {draw.sender: place for place, draw in reversed(list(enumerate(draws)))}
        places = np.asarray([first[draw.sender] for draw in draws])
        alike = (made == made[index(places, made)]).all(1).cpu().numpy()
        source = np.where(alike, places, np.arange(len(made)))
        once, where = np.unique(source, return_inverse=True)
        arrive, sizes = super(Commons, self)._encoded(made[index(once, made)], [draws[place] for place in once])
        return arrive[index(where, made)], sizes[where]

    def _conclude(self, vectors: Tensor, update: Update) -> None:
        """The mean, where a row has swapped with all others; else the changes of those it has swapped with."""
        rows = index(np.unique(update.rows), vectors)
        vectors[rows] = self.swapping.base(vectors[rows])
        self._commit(vectors, update)
        for row in np.unique(update.rows).tolist():
            at = np.flatnonzero(update.rows == row)
            mean = self._mean(update, at)
            if mean is not None:
                vectors[row] = mean

    def _mean(self, update: Update, at: NDArray[np.int64]) -> Tensor | None:
        """Return the mean (D,) of all estimates after the swaps at these places of one row; None if some are missing or differ."""
        both = torch.minimum(update.give, update.take)[index(at, update.give), 0]
        if not bool((both > 0.0).all()) or not bool(((1.0 / both).round() == len(at) + 1).all()):
            return None
        ends = [update.ends[place] for place in at]
        own, remote = self.swapping.estimates(self.kept.rows[self.kept.slots(ends)])
        if not bool((own == own[0]).all()):
            return None
        known = {peer: estimate for (_, peer), estimate in zip(ends, remote, strict=True)} | {ends[0][0]: own[0]}
        return mean_of([known[row] for row in sorted(known, key=self.edges.rank.__getitem__)])


@dataclass(slots=True)
class Controls(Commons):
    """Swaps that leave estimates of both ends' updates, whose differences correct local steps."""

    swapping: Controlling

    def correction(self, rows: Rows) -> Tensor:
        """Return (r, D), the sums of the flows of some rows, zeros where a row has no edge."""
        ends = [
            [pair if pair[0] == row else pair[::-1] for pair in self.edges.of(row)]
            for row in torch.arange(len(self.edges.peers))[rows].tolist()
        ]
        return torch.stack([self.swapping.flows(self.kept.read(each)) for each in ends])


def _read(batch: Batch) -> Tensor:
    """Return (2m, D): what each initiator reads, then each responder."""
    return torch.cat([vectors[index(at, vectors)] for vectors, at in zip(batch.read, batch.ends, strict=True)])
