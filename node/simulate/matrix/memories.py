"""Exchanges of what optimisers remember, for the rows of a swarm: those of nodes, one pair after the other.

Shapes: N rows, D numbers of the shared vector, g exchanges of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.api import Mixer
from starling.gossip.compress.header import TRAILER
from starling.gossip.compress.support import Support
from starling.gossip.mix.memories import Forged, Learned, Memory, MemoryCodec, MemoryExchange
from starling.node.engine.memories import OptimizerMemory
from starling.node.engine.memory_pieces import pieces_of, view_of
from starling.node.engine.moments import MomentFormat
from starling.node.engine.optimizers import optimizer
from starling.node.simulate.matrix.batch import Sizes
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.local import LocalSteps


class RowState:
    """The state of one row from when it was empty. Satisfies `starling.node.engine.memories.Keeper`."""

    kept: MomentFormat | None = None
    loaded = False

    def __init__(self, local: LocalSteps, row: int) -> None:
        self._local, self._row = local, row
        self.lives, self._began = local.life(row)
        self.device = local.like.device

    @property
    def stepped(self) -> int:
        """Return the number of local steps since this state was made."""
        return self._local.life(self._row)[1] - self._began

    def state_dict(self) -> dict[str, Tensor]:
        return self._local.state_of(self._row)

    def set_age(self, age: int) -> None:
        """Let it be of so many steps."""
        self._local.set_age(self._row, age)


class RowMemories:
    """The memories of all rows, and what exchanges will do to them: at the end of a batch, or when a responder learns of a commit."""

    def __init__(
        self, local: LocalSteps, codec: MemoryCodec, mixer: Mixer, dim: int, forged: Mapping[int, Forged] = MappingProxyType({})
    ) -> None:
        """`forged`: by row, of those that lie."""
        made = optimizer(local.section, local.like[0], model=local.problem.model)
        pieces, view = pieces_of(made), view_of(mixer, local.problem.layout.trained, dim)
        self._ends: list[MemoryExchange] = []
        for row in range(len(local.like)):
            memory: Memory = OptimizerMemory(_lives(local, row), pieces, view, lambda _: None)
            self._ends.append(MemoryExchange(memory, codec, home=not memory.decays, forged=forged.get(row)))
        self._due: list[tuple[int, int, Learned]] = []
        self._pending: dict[Pair, tuple[int, int, Learned]] = {}

    def meet(
        self,
        pairs: Sequence[Pair],
        supports: Sequence[Support],
        thetas: Sequence[Sequence[float]],
        generators: Sequence[Sequence[Generator]],
        unproven: NDArray[np.bool_],
        dim: int,
    ) -> Sizes:
        """Do exchanges, none of which is lost; where `unproven`, responders do not know yet. Return (2, g) bytes.

        `thetas`: of each, what the initiator and what the responder moves by.
        """
        sizes = np.zeros((2, len(pairs)), np.int64)
        for place, ((one, other), support, (theta, at_other)) in enumerate(zip(pairs, supports, thetas, strict=True)):
            initiator, responder = self._ends[one], self._ends[other]
            requested = initiator.told(support, generators[0][place])
            said, at_responder = responder.answer(support, at_other, requested, generators[1][place])
            at_initiator = initiator.answered(support, theta, said)
            sizes[:, place] = len(requested.values) + TRAILER.size, len(said.values) + TRAILER.size
            if at_initiator is not None:
                self._due.append((one, other, at_initiator))
            if at_responder is not None and unproven[place]:
                self._pending[one, other] = (other, one, at_responder)
            elif at_responder is not None:
                self._due.append((other, one, at_responder))
        return sizes

    def resolve(self, pair: Pair) -> None:
        """The responder of a pair learns that its last exchange counts."""
        done = self._pending.pop(pair, None)
        if done is not None:
            self._due.append(done)

    def remove(self, pair: Pair) -> None:
        """Remove an edge; pending exchanges on it are void."""
        self._pending.pop(pair, None)

    def apply(self, rank: NDArray[np.int64]) -> None:
        """Add what was committed, each row's in order of its peers, whose ids have this rank (N,)."""
        due, self._due = self._due, []
        for row, _, learned in sorted(due, key=lambda each: (each[0], rank[each[1]])):
            self._ends[row].learn(learned)


def _lives(local: LocalSteps, row: int) -> Callable[[], RowState]:
    """Return what gives the state of a row, another one after it was emptied."""
    state = RowState(local, row)

    def current() -> RowState:
        nonlocal state
        if local.life(row)[0] != state.lives:
            state = RowState(local, row)
        return state

    return current
