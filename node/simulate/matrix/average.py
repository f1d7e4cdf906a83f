"""Exchanges of differences, many at a time: `gossip.mix.exchange_codec` and `gossip.mix.edge_ledger` over the rows of a table.

    supports, grouped by shape ─▶ values through the request ─▶ difference ─▶ clip ─▶ through the response ─▶ v
    ─▶ flows of the edges and their totals ─▶ x[S] ± θ·v

Shapes: N rows, r rows of a table, D numbers of the shared vector, m exchanges, g of a group, k coordinates of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Averaging, Selector
from starling.gossip.compress import codec
from starling.gossip.compress.select.coordinates import with_wish
from starling.gossip.compress.support import Indices, Support
from starling.gossip.mix.exchange_codec import Terms
from starling.node.simulate.matrix.batch import Sizes, Turn
from starling.node.simulate.matrix.edges import Edges, Life, Pair
from starling.node.simulate.matrix.flows import Flows
from starling.node.simulate.matrix.grouping import Group, grouped
from starling.node.simulate.matrix.rule_memory import Memory
from starling.node.simulate.matrix.sampler import Chances, check_finite, indices, through
from starling.node.simulate.matrix.table import Picks, Table

_SHRINK = 0.9  # as the codec of a node does
_DOUBT = 1e-9  # two orders of summing in float64 differ by less


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What some exchanges do to one end each.

    Args:
        rows: (h,) of the table; a row may come more than once.
        picks: (h, …) coordinates.
        values: (h, …) as wide as `picks`.
        sign: of them.
    """

    rows: NDArray[np.int64]
    picks: Picks
    values: Tensor
    sign: int

    def to(self, vectors: Table) -> None:
        """vectors[rows, picks] += sign·values."""
        vectors.add(indices(self.rows, vectors.wide), self.picks, self.values, self.sign)


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """What a responder does once it hears that its initiator has committed: x[S] −= change.

    Args:
        picks: (1, …) S.
        change: (1, …) θ·v, as wide as `picks`.
        mine: (1, …) the responder's values when it answered.
    """

    picks: Picks
    change: Tensor
    mine: Tensor


@dataclass(slots=True)
class Differences:
    """What exchanges of differences keep between rounds.

    Args:
        averaging: what an exchange is.
        terms: codecs and clip.
        selector: coordinates of an exchange.
        edges: names and seeds.
        flows: if there are any.
        met: of each end of each edge the values when last exchanged (D,), where the selector looks at them.
        wish_limit: most coordinates of an exchange where responders wish for some; 0: they do not.
    """

    averaging: Averaging
    terms: Terms
    selector: Selector
    edges: Edges
    flows: Flows | None
    met: Memory | None = None
    wish_limit: int = 0
    late: dict[Pair, Late] = field(default_factory=dict)
    _wishes: dict[Pair, Indices] = field(default_factory=dict)

    def exchange(self, turn: Turn) -> Sizes:
        """All exchanges of a round, or some of a slot that share no row: moves the vectors and the flows."""
        changes = self._heard(turn)
        lives = [self.edges.begin(pair) for pair in turn.pairs]
        supports = [self._support(turn, place, life) for place, life in enumerate(lives)]
        sizes = Sizes(np.zeros(len(lives), np.int64), np.zeros(len(lives), np.int64))
        for group in grouped(supports, lives, turn.vectors):
            sizes.request[group.which], sizes.response[group.which] = self._bytes(group)
            happens = np.flatnonzero(~turn.lost[group.which])
            if happens.size:
                changes += self._group(turn, group.of(happens), lives, sizes)
        sizes.response[turn.lost] = 0
        self._apply(turn, changes)
        return sizes

    def hear(self, turn: Turn) -> None:
        """Only what responders learn from being met: what their initiators had committed."""
        self._apply(turn, self._heard(turn))

    def less_pending(self, turn: Turn) -> Turn:
        """The same, with responders that count as done what they have pending with others, or two of them would overshoot."""
        answering = dict(zip(turn.answering.tolist(), turn.pairs, strict=True))
        at = {int(turn.rows[row]): row for row in answering}
        changes = [
            Change(np.asarray([at[pair[1]]]), late.picks, late.change, -1)
            for pair, late in self.late.items()
            if pair[1] in at and answering[at[pair[1]]] != pair
        ]
        if not changes:
            return turn
        answers = Table(turn.vectors.wide.clone(), turn.vectors.width)
        for change in changes:
            change.to(answers)
        return replace(turn, answers=answers)

    def void(self, pair: Pair) -> None:
        """An edge is no more: nothing of it is pending or remembered. Its flow is another's business."""
        if self.late.pop(pair, None) is not None and self.flows is not None:
            self.flows.proven(pair)
        self._wishes.pop(pair, None)
        if self.met is not None:
            self.met.void(pair)

    def _apply(self, turn: Turn, changes: Sequence[Change]) -> None:
        for change in changes:
            change.to(turn.vectors)

    def _support(self, turn: Turn, place: int, life: Life) -> Support:
        """What the initiator chooses, and what the responder wished for the last time."""
        pair = turn.pairs[place]
        met = None if self.met is None else self.met.of(pair)
        support = self.selector.select(turn.asks.rows[turn.asking[place]], met, life.seed, life.seq)
        wish = self._wishes.pop(pair, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, self.wish_limit)
        return support

    def _group(self, turn: Turn, group: Group, lives: Sequence[Life], sizes: Sizes) -> list[Change]:
        """One group's exchanges -> what they do to the vectors; flows move."""
        vectors, which = turn.vectors, group.which
        pairs = [turn.pairs[place] for place in which.tolist()]
        asking, answering = turn.asking[which], turn.answering[which]
        theirs = group.take(turn.asks, indices(asking, vectors.wide))
        mine = group.take(turn.answers, indices(answering, vectors.wide))
        v = group.spread(agree(self.terms, mine, theirs, [self.edges.chance(lives[place]) for place in which]))
        thetas = (turn.forth[which] + turn.back[which]) / 2.0
        change = v * _column(thetas, v)
        unproven = turn.unproven[which]
        if self.flows is not None:
            ratio = group.count / group.dim
            gains = [self.averaging.gain(theta, ratio, turn.phase) for theta in thetas.tolist()]
            self._flow(pairs, unproven, group.picks, v, np.asarray(gains))
        forward = Change(asking, group.picks, change, 1)
        if self.met is not None:
            self._remember(turn, group, lives, theirs, mine, change, sizes)
        for place in np.flatnonzero(unproven).tolist():
            one = indices([place], v)
            self.late[pairs[place]] = Late(group.picks.of(one), change[one], mine[one])
        know = np.flatnonzero(~unproven)
        of = indices(know, change)
        return [forward, Change(answering[know], group.picks.of(of), change[of], -1)]

    def _flow(
        self, pairs: Sequence[Pair], unproven: NDArray[np.bool_], picks: Picks, v: Tensor, gains: NDArray[np.float64]
    ) -> None:
        """Flows where there is a gain."""
        assert self.flows is not None
        moving = np.flatnonzero(gains != 0.0)
        if moving.size == len(pairs):
            self.flows.move(pairs, unproven, picks, v * _column(gains, v))
        elif moving.size:
            at = indices(moving, v)
            self.flows.move(
                [pairs[place] for place in moving.tolist()], unproven[moving], picks.of(at),
                v[at] * _column(gains[moving], v),
            )  # fmt: skip

    def _remember(
        self,
        turn: Turn,
        group: Group,
        lives: Sequence[Life],
        theirs: Tensor,
        mine: Tensor,
        change: Tensor,
        sizes: Sizes,
    ) -> None:
        """Wishes for the next time, and what each end held this time."""
        assert self.met is not None
        pairs = [turn.pairs[place] for place in group.which.tolist()]
        for place, pair, support in zip(group.which, pairs, group.supports, strict=True):
            if not self.wish_limit:
                break
            answer = turn.answers.rows[turn.answering[place]]
            wish = self.selector.select(answer, self.met.of(pair[::-1]), 0, lives[place].seq)
            if isinstance(wish, Indices):
                self._wishes[pair] = wish
                sizes.response[place] = codec.values_size(support, self.terms.response, group.dim, wish)
        if group.along:
            return
        change = change[:, : group.count]
        slots = self.met.slots(pairs)
        self.met.table.put(slots, group.picks, group.picks.pad(theirs + change))
        proven = np.flatnonzero(~turn.unproven[group.which])
        if proven.size:
            at = indices(proven, mine)
            slots = self.met.slots([pairs[place][::-1] for place in proven])
            self.met.table.put(slots, group.picks.of(at), group.picks.pad(mine[at] - change[at]))

    def _heard(self, turn: Turn) -> list[Change]:
        """Responders that hear now that an earlier answer of theirs was committed."""
        if not self.late:
            return []
        changes = []
        for place, pair in enumerate(turn.pairs):
            late = None if turn.lost[place] else self.late.pop(pair, None)
            if late is None:
                continue
            if self.flows is not None:
                self.flows.proven(pair)
            if self.met is not None:
                count = late.mine.shape[1]
                held = late.picks.pad(late.mine - late.change[:, :count])
                slots = self.met.slots([pair[::-1]])
                self.met.table.put(slots, late.picks, held)
            changes.append(Change(turn.answering[place : place + 1], late.picks, late.change, -1))
        return changes

    def _bytes(self, group: Group) -> tuple[NDArray[np.int64] | int, NDArray[np.int64] | int]:
        """Of requests and of responses without a wish. Listed coordinates differ in how well they code."""
        first, dim = group.supports[0], group.dim
        response = codec.values_size(first, self.terms.response, dim)
        if isinstance(first, Indices):
            return np.asarray([codec.size(each, self.terms.request, dim) for each in group.supports]), response
        return codec.size(first, self.terms.request, dim), response


def agree(terms: Terms, mine: Tensor, theirs: Tensor, seeds: Sequence[int]) -> Tensor:
    """What `Terms.ask`, `heard` and `answer` come to: the v that both ends of each exchange apply.

    Args:
        terms: codecs and clip.
        mine: (g, k) the responders' values.
        theirs: (g, k) the initiators'.
        seeds: (g) of the chance that quantizers round by.

    Raises:
        ValueError: "not_finite".
    """
    everyone = range(len(seeds))
    check_finite(theirs)
    difference = mine - through(terms.request, theirs, Chances(seeds), everyone)
    check_finite(difference)
    for place in _longer(difference, terms):
        difference[place], _ = terms.clip(difference[place].cpu(), terms.clip_norm)
    chances, shrink = Chances(seeds), _SHRINK
    v = through(terms.response, difference, chances, everyone)
    over = _longer(v, terms)
    while over:
        at = indices(over, v)
        difference[at] *= shrink
        shrink *= shrink
        again = through(terms.response, difference[at], chances, over)
        v[at] = again
        over = [over[place] for place in _longer(again, terms)]
    return v


def _longer(v: Tensor, terms: Terms) -> list[int]:
    """Rows of (g, k) that the clip shortens. Norms of many rows may round differently from that of one: then it decides itself."""
    if terms.clip_norm == 0.0:
        return []
    norms = torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) / terms.clip_norm
    longer: list[int] = (norms > 1.0 - _DOUBT).nonzero().view(-1).tolist()
    return [
        place
        for place, norm in zip(longer, norms[longer].tolist(), strict=True)
        if norm > 1.0 + _DOUBT or terms.clip(v[place].cpu(), terms.clip_norm)[1]
    ]


def _column(numbers: NDArray[np.float64], like: Tensor) -> Tensor:
    """(g,) -> (g, 1), rounded as torch rounds a number that multiplies a tensor of that dtype."""
    return torch.from_numpy(numbers).to(like)[:, None]
