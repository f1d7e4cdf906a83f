"""The defence of pairs, for the rows of a swarm: each row judges its peers by `starling.robust.distances`, as nodes do.

Shapes: N rows, r of them, D numbers of the shared vector, m exchanges, g of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.vector import sampled
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.results import Refusal
from starling.robust.distances import Distances, share


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

    def refused(self, pairs: Sequence[Pair], round: int) -> NDArray[np.bool_]:
        """Return (m,) whether an end of a pair refuses the other in this round."""

    def meet(self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], round: int) -> NDArray[np.float64]:
        """Record the distance (g) of each pair, unclipped; return (2, g) the share that each end applies.

        It is 0 for an end that refuses the other from now on.
        """

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Take vectors (r, D) of rows after their exchanges."""


class Undefended:
    """Rows that take what they are shown. Satisfies `Defence`."""

    refusals: Sequence[Refusal] = ()
    exposed: Collection[Pair] = ()

    def begin(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Do nothing."""

    def refused(self, pairs: Sequence[Pair], round: int) -> NDArray[np.bool_]:
        """Return that none is."""
        return np.zeros(len(pairs), np.bool_)

    def meet(self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], round: int) -> NDArray[np.float64]:
        """Return all of it."""
        return np.ones((2, len(pairs)))

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Do nothing."""


@dataclass(slots=True)
class RowDistances:
    """Rows that judge by distances, except `liars` (N,). The `first` rows begin with `start` (D,). Satisfies `Defence`."""

    liars: NDArray[np.bool_]
    start: InitVar[Tensor]
    first: InitVar[int]
    refusals: list[Refusal] = field(default_factory=list)
    exposed: set[Pair] = field(default_factory=set)
    _rows: list[Distances] = field(init=False)
    _until: dict[Pair, int] = field(default_factory=dict)  # (refusing, refused) -> end of the refusal
    _after: dict[int, Tensor] = field(init=False)

    def __post_init__(self, start: Tensor, first: int) -> None:
        self._rows = [Distances() for _ in self.liars]
        self._after = dict.fromkeys(range(first), sampled(start)[0].clone())

    def begin(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Measure how far rows went since their last exchanges."""
        for row, vector in zip(rows, vectors, strict=True):
            if row in self._after:
                now, scale = sampled(vector)
                self._rows[row].stepped(scale * float((now - self._after[row]).norm()))

    def refused(self, pairs: Sequence[Pair], round: int) -> NDArray[np.bool_]:
        """Return those under a refusal."""
        return np.asarray([self._refuses(*pair, round) or self._refuses(*pair[::-1], round) for pair in pairs], np.bool_)

    def _refuses(self, row: int, peer: int, round: int) -> bool:
        return round < self._until.get((row, peer), -1)

    def meet(self, pairs: Sequence[Pair], applied: Sequence[float], distances: Sequence[float], round: int) -> NDArray[np.float64]:
        """Return what each end's reference leaves, and judge both ends by the other; liars take all."""
        ends = (pairs, [pair[::-1] for pair in pairs])
        return np.asarray(
            [[self._met(*pair, short, long, round) for pair, short, long in zip(end, applied, distances, strict=True)] for end in ends]
        )

    def _met(self, me: int, peer: int, applied: float, distance: float, round: int) -> float:
        if self.liars[me]:
            return 1.0
        if self.liars[peer]:
            self.exposed.add((me, peer))
        taken = share(applied, self._rows[me].reference(str(peer), round))
        strike = self._rows[me].met(str(peer), distance, round)
        if strike is None or not strike.refused:
            return taken
        self.refusals.append(Refusal(round=round, node=me, peer=peer))
        self._until[me, peer] = round + 1 + strike.refused
        return 0.0

    def end(self, rows: Sequence[int], vectors: Tensor) -> None:
        """Remember the vectors from which rows continue."""
        for row, vector in zip(rows, vectors, strict=True):
            self._after[row] = sampled(vector)[0].clone()
