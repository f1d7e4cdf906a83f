"""The defence of pairs, for the rows of a swarm: each row judges its peers by `starling.robust.distances`, as nodes do.

Shapes: N rows, r of them, D numbers of the shared vector, m exchanges, g of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.vector import sampled
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.table import Group
from starling.node.simulate.results import Refusal
from starling.robust.distances import Distances, share
from starling.robust.progress import progress_of

Progress = tuple[Sequence[float | None], Sequence[float | None]]
"""Of the peers of both ends (g each); None: unknown."""


class Defence(Protocol):
    """The reaction of rows to the differences from their peers. `refusals`: whom honest rows began to refuse. `exposed`: pairs of an honest
    row and a liar that exchanged.
    """

    @property
    def refusals(self) -> Sequence[Refusal]: ...

    @property
    def exposed(self) -> Collection[Pair]: ...

    def begin(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Take vectors (r, D) of rows before their exchanges."""

    def progress(self, pairs: Sequence[Pair], group: Group, values: tuple[Tensor, Tensor]) -> Progress:
        """Return for each end of the pairs (g) how much of its way the other has made, None if unknown; `values` (g, k) of both ends."""

    def meet(
        self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], progress: Progress, round: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Record the distance (g) of each pair, unclipped, and both ends' progress; return the share of the difference that each end
        leaves, and of its step that the other's progress does, each (2, g).

        Both are 0 for an end that refuses the other from now on.
        """

    def due(self, ends: Sequence[Pair]) -> NDArray[np.bool_]:
        """Return (g,) whether a row of (row, peer) needs the losses of both models of their exchange."""

    def compare(self, ends: Sequence[Pair], models: Tensor, round: int) -> None:
        """Let each row of (row, peer) compare its model with the peer's (g, 2, D), before effects are added."""

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Take vectors (r, D) of rows after their exchanges."""


class Undefended:
    """Rows that take what they are shown. Satisfies `Defence`."""

    refusals: Sequence[Refusal] = ()
    exposed: Collection[Pair] = ()

    def begin(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Do nothing."""

    def progress(self, pairs: Sequence[Pair], group: Group, values: tuple[Tensor, Tensor]) -> Progress:
        """Return that it is unknown."""
        return [None] * len(pairs), [None] * len(pairs)

    def meet(
        self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], progress: Progress, round: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all of both."""
        return np.ones((2, len(pairs))), np.ones((2, len(pairs)))

    def due(self, ends: Sequence[Pair]) -> NDArray[np.bool_]:
        return np.zeros(len(ends), np.bool_)

    def compare(self, ends: Sequence[Pair], models: Tensor, round: int) -> None: ...

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Do nothing."""


@dataclass(slots=True)
class RowDistances:
    """Rows that judge by distances, except `liars` (N,). The `first` rows begin with `start` (D,). Satisfies `Defence`.

    `watched`: whether progress is measured. `losses`: of models (r, m, D) of rows (r,) on what these learned from last -> (r, m); None:
    they are not computed.
    """

    liars: NDArray[np.bool_]
    start: Tensor
    first: InitVar[int]
    watched: bool
    losses: Callable[[Tensor, Tensor], Tensor] | None = None
    refusals: list[Refusal] = field(default_factory=list)
    exposed: set[Pair] = field(default_factory=set)
    _rows: list[Distances] = field(init=False)
    _after: dict[int, Tensor] = field(init=False)
    _began: dict[int, Tensor] = field(default_factory=dict)  # (D,) of rows that joined, the vector of their first exchange

    def __post_init__(self, first: int) -> None:
        self._rows = [Distances() for _ in self.liars]
        self._after = dict.fromkeys(range(first), sampled(self.start)[0].clone())

    def begin(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Measure how far rows went since their last exchanges."""
        for row, vector in zip(rows, vectors, strict=True):
            if row in self._after:
                now, scale = sampled(vector)
                self._rows[row].stepped(scale * float((now - self._after[row]).norm()))
            elif self.watched:
                self._began[row] = vector.clone()

    def progress(self, pairs: Sequence[Pair], group: Group, values: tuple[Tensor, Tensor]) -> Progress:
        """Return it where coordinates are exchanged."""
        if group.coefficients or not self.watched:
            return [None] * len(pairs), [None] * len(pairs)
        (one, other), (initiators, responders) = values, zip(*pairs, strict=True)
        return self._made(group, initiators, one, other), self._made(group, responders, other, one)

    def _made(self, group: Group, rows: Sequence[int], own: Tensor, peers: Tensor) -> list[float | None]:
        """Return the progress of peers' values (g, k) along the ways of `rows`, whose values are `own` (g, k)."""
        began = torch.stack([self._began.get(row, self.start) for row in rows])
        return [progress_of(*each) for each in zip(own - group.take(began, torch.arange(len(rows))), own - peers, strict=True)]

    def meet(
        self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], progress: Progress, round: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what each end's reference leaves of a difference and the other's progress of the step, each (2, g), and judge both ends
        by the other; liars take all.
        """
        ends = ((pairs, progress[0]), ([pair[::-1] for pair in pairs], progress[1]))
        met = np.asarray([[self._met(*each, round) for each in zip(end, applied, distances, part, strict=True)] for end, part in ends])
        return met[..., 0], met[..., 1]

    def _met(self, pair: Pair, applied: float, distance: float, progress: float | None, round: int) -> tuple[float, float]:
        me, peer = pair
        if self.liars[me]:
            return 1.0, 1.0
        if self.liars[peer]:
            self.exposed.add((me, peer))
        taken = share(applied, self._rows[me].reference(str(peer), round))
        credit = self._rows[me].credit(str(peer), round, progress)
        strike = self._rows[me].met(str(peer), distance, round, progress)
        if strike is None or not strike.refused:
            return taken, credit
        self.refusals.append(Refusal(round=round, node=me, peer=peer))
        return 0.0, 0.0

    def due(self, ends: Sequence[Pair]) -> NDArray[np.bool_]:
        """Return those of whom honest rows need losses."""
        computed = self.losses is not None
        return np.asarray([computed and not self.liars[me] and self._rows[me].losses.due(str(peer)) for me, peer in ends], np.bool_)

    def compare(self, ends: Sequence[Pair], models: Tensor, round: int) -> None:
        """Compute the losses of both models of each row."""
        assert self.losses is not None
        losses = self.losses(torch.tensor([me for me, _ in ends]), models).tolist()
        for (me, peer), (ours, theirs) in zip(ends, losses, strict=True):
            self._rows[me].losses.record(str(peer), ours, theirs, round)

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Remember the vectors from which rows continue."""
        for row, vector in zip(rows, vectors, strict=True):
            self._after[row] = sampled(vector)[0].clone()
