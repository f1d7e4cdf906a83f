"""Rounds in which nodes ask peers for their vectors: every row's message through the codec, then each row's rule over what it was told.

A message is made once a round and row, the same for all who ask; only liars tell each something else. What is lost, late, not finite or
larger than any message may be is absent: it counts among those asked, and as no vector.

Shapes: N rows, m meetings, a askings, r rows that asked k peers each, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.support import Full
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.mix.gather import Gather, Gathered, told_by
from starling.gossip.mix.rule_memory import sit
from starling.node.simulate.matrix.batch import Sizes, Turn
from starling.node.simulate.matrix.byzantine import Liars, Seen, sent
from starling.node.simulate.matrix.edges import Edges, Pair
from starling.node.simulate.matrix.sampler import Chances, check_finite, indices, through
from starling.node.simulate.matrix.state import States

LossesOf = Callable[[Tensor, Tensor], Tensor]
"""Rows (r,) int64 and models (r, m, D) -> (r, m): what each is worth on the data that its row has just learned from."""

Lies = tuple[NDArray[np.int64], Tensor, Tensor]
"""Places among a round's askings (r,) ascending, what is told there (r, D), and which of it arrives (r,) bool."""
Group = tuple[NDArray[np.int64], NDArray[np.int64], int]
"""Rows (r,), where among the askings those of each are (r, k), and how many more each asks in vain."""
_NUMBERS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Askings:
    """Who asks whom in a round, sorted by who and then by the peer's id.

    Args:
        who: (a,) rows.
        whom: (a,) rows.
        arrives: (a,) bool.
    """

    who: NDArray[np.int64]
    whom: NDArray[np.int64]
    arrives: NDArray[np.bool_]


def askings(turn: Turn, rank: NDArray[np.int64]) -> Askings:
    """Each direction of a meeting that has a weight is one peer that asks the other.

    Args:
        turn: the round's meetings.
        rank: (N,) place of each row in the order of peer ids.
    """
    forth, back = np.flatnonzero(turn.forth > 0.0), np.flatnonzero(turn.back > 0.0)
    who = np.concatenate((turn.asking[forth], turn.answering[back]))
    whom = np.concatenate((turn.answering[forth], turn.asking[back]))
    arrives = ~np.concatenate((turn.lost[forth], turn.lost[back]))
    order = np.lexsort((rank[whom], who))
    return Askings(who[order], whom[order], arrives[order])


@dataclass(slots=True)
class Gathers:
    """What gathering needs between rounds: what the mixing algorithm keeps, and where in it each row's peers sit.

    Args:
        mixer: whose rule combines.
        terms: codecs; messages go through `response`.
        edges: names and seeds.
        states: of the mixing algorithm.
        losses: for rules that look at what a model is worth; None: there are none.
        late: nothing is ever pending.
    """

    mixer: Gather
    terms: Terms
    edges: Edges
    states: States
    losses: LossesOf | None = None
    late: dict[Pair, None] = field(default_factory=dict)
    _taken: dict[int, dict[int, int]] = field(default_factory=dict)

    def exchange(self, turn: Turn, gone: NDArray[np.int64], liars: Liars | None, seen: Seen) -> Sizes:
        """All askings of a round: moves the vectors to what the rules make of them, and what rules remember.

        Args:
            turn: the round's meetings.
            gone: (N,) how many each row asks in vain beyond these, as it does not know yet that they are dead.
            liars: None: everybody is honest.
            seen: what liars see.

        Raises:
            ValueError: "not_finite": the swarm has diverged.
        """
        asked, vectors = askings(turn, self.edges.rank), turn.vectors.rows
        messages = self._messages(vectors, asked, seen.round)
        lies = [] if liars is None else list(self._lies(liars, asked, seen))
        combined = vectors.clone()
        for rows, places, absent in _alike(asked, gone, vectors.shape[1]):
            present = torch.from_numpy(asked.arrives[places]).to(vectors.device)
            told = messages[indices(asked.whom[places].ravel(), vectors)].view(*places.shape, -1)
            for lied, said, arrives in lies:
                row, slot = np.nonzero(np.isin(places, lied))
                which = np.searchsorted(lied, places[row, slot])
                told[row, slot] = said[which]
                present[row, slot] &= arrives[which]
            told = torch.nn.functional.pad(told, (0, 0, 0, absent)) if absent else told
            self._combine(rows, asked.whom[places], told, torch.nn.functional.pad(present, (0, absent)), combined)
        vectors.copy_(combined)
        return self._sizes(turn, vectors.shape[1])

    def void(self, pair: Pair) -> None:
        """Nothing is kept of an edge."""

    def _messages(self, vectors: Tensor, asked: Askings, round: int) -> Tensor:
        """(N, D) what each row that is asked tells, as it arrives."""
        tell = np.unique(asked.whom)
        at = indices(tell, vectors)
        check_finite(vectors[at])
        seeds = [told_by(self.edges.seed, self.edges.peers[row], round) for row in tell]
        messages = torch.zeros_like(vectors)
        messages[at] = through(self.terms.response, vectors[at], Chances(seeds), range(len(tell)))
        return messages

    def _lies(self, liars: Liars, asked: Askings, seen: Seen) -> Iterator[Lies]:
        """What each liar tells the honest who ask it."""
        false = np.flatnonzero(liars.bad[asked.whom] & ~liars.bad[asked.who])
        for liar in np.unique(asked.whom[false]).tolist():
            places = false[asked.whom[false] == liar]
            told = liars.tell(seen, liar, asked.who[places].tolist())
            if told is not None:
                yield (
                    places,
                    *sent(told, self.terms.response, told_by(self.edges.seed, self.edges.peers[liar], seen.round)),
                )

    def _combine(
        self, rows: NDArray[np.int64], whom: NDArray[np.int64], told: Tensor, present: Tensor, combined: Tensor
    ) -> None:
        """Some rows (r,) that asked equally many: their rule over what they were told, into `combined`.

        Of the k columns of told and present those of `whom` (r, ·) come first; the others are gone.
        """
        at = indices(rows, combined)
        before = x, state = self.states.of(at)
        state, seats = self._seated(rows, whom, present, state)
        losses = None if self.losses is None else partial(self.losses, torch.from_numpy(rows))
        combined[at], state, _ = self.mixer.combine(state, combined[at], told, present, losses, seats)
        self.states.put(at, before, x, state)

    def _seated(
        self, rows: NDArray[np.int64], whom: NDArray[np.int64], present: Tensor, state: Gathered
    ) -> tuple[Gathered, Tensor | None]:
        """The state with empty seats for newcomers, and where each of those present sits (r, k); for rules that have seats."""
        count = self.mixer.rule.seats
        if not count:
            return state, None
        kept, seats = state.kept.clone(), present.new_full(present.shape, -1, dtype=torch.int64)
        for row, (me, peers) in enumerate(zip(rows.tolist(), whom.tolist(), strict=True)):
            here = present[row, : len(peers)]
            self._taken[me], kept[row], seats[row, : len(peers)] = sit(
                self._taken.get(me, {}), peers, here.tolist(), kept[row], count
            )
        return replace(state, kept=kept), seats

    def _sizes(self, turn: Turn, dim: int) -> Sizes:
        """A payload from whoever is asked to whom it was asked by; counted where it is lost as well, if nobody waits for a request."""
        size = codec.size(Full(), self.terms.response, dim)
        request, response = size * (turn.back > 0.0), size * ((turn.forth > 0.0) & ~turn.lost)
        return Sizes(request.astype(np.int64), response.astype(np.int64))


def _alike(asked: Askings, gone: NDArray[np.int64], width: int) -> Iterator[Group]:
    """Rows that ask equally many, of whom equally many are gone, some million numbers of `width` at a time."""
    rows, first, counts = np.unique(asked.who, return_index=True, return_counts=True)
    kinds, kind = np.unique(np.stack((counts, gone[rows])), axis=1, return_inverse=True)
    for number, (count, absent) in enumerate(kinds.T.tolist()):
        alike = np.flatnonzero(kind.ravel() == number)
        places = first[alike][:, None] + np.arange(count)
        step = max(1, _NUMBERS // (width * count))
        for start in range(0, len(alike), step):
            yield rows[alike[start : start + step]], places[start : start + step], absent
