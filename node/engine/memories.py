"""The state of this node's optimiser in the form that exchanges of memories use (`starling.gossip.mix.memories`).

Shapes: t parameters, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor

from starling.gossip.mix.memories import Decay, MemoryExchange
from starling.gossip.mix.moments import averages_memories
from starling.gossip.replica import Replica
from starling.gossip.vector import stretches
from starling.node.engine.compression import memory_codec
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.memory_pieces import AGE, KNOWN, Piece, View, pieces_of, view_of
from starling.node.engine.moments import MomentFormat
from starling.node.engine.stretches import STRETCH
from starling.node.rpc.calls import Open

_LOADED = 1 << 20  # assumed age of an optimiser state from a checkpoint that does not give one


class Keeper(Protocol):
    """Holder of optimiser state: an optimiser of one vector, or one row of many in a simulation.

    Attributes:
        kept: how m and v are stored, if not in float32.
        device: where.
        stepped: steps done.
        loaded: the state came from a checkpoint.
    """

    kept: MomentFormat | None
    device: torch.device
    loaded: bool

    @property
    def stepped(self) -> int:
        """Return the number of steps done."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by torch's names, not copied; empty before the first step."""

    def set_age(self, age: int) -> None:
        """Set the number of steps of the state."""


class OptimizerMemory:
    """The averaged state of an optimiser. Satisfies `starling.gossip.mix.memories.Memory`.

    Args:
        current: gives the optimiser, another one after its memory was deleted.
        view: of the vector (t,) as what is shared.
        chance: of a number, rounds what is stored in less than float32.
    """

    def __init__(
        self, current: Callable[[], Keeper], pieces: Sequence[Piece], view: View, chance: Callable[[int], Generator | None]
    ) -> None:
        self._current, self._pieces, self._view, self._chance = current, pieces, view, chance
        self.decays: Sequence[Decay] = view.decays([piece.decay for piece in self._pieces])
        self._life: Keeper | None = None
        self._met = self._older = 0

    @property
    def life(self) -> Keeper:
        """Return the optimiser that holds the memory."""
        return self._followed()

    def _followed(self) -> Keeper:
        """Return the current optimiser; one that replaced another has no known state."""
        optimizer = self._current()
        if optimizer is not self._life:
            self._life, self._met = optimizer, 0
            self._older = _LOADED if optimizer.loaded else 0
        return optimizer

    @property
    def met(self) -> int:
        """Return the number of exchanges since the memory was empty."""
        self._followed()
        return self._met

    @met.setter
    def met(self, count: int) -> None:
        self._met = count

    @property
    def clock(self) -> int:
        """Return the number of local steps of this optimiser."""
        return self.life.stepped

    @property
    def age(self) -> int:
        """Return the number of local steps in the state: torch's count, where there is one."""
        optimizer = self.life
        state = optimizer.state_dict()
        counts = [int(each) for name, each in state.items() if name.rpartition(".")[2] == AGE]
        return max(counts) if counts else optimizer.stepped + self._older if state else 0

    def read(self) -> tuple[Tensor, Tensor]:
        """Return m and v (D,), as views where they are the optimiser's own vectors."""
        optimizer = self.life
        state = optimizer.state_dict()
        means = [self._read(optimizer, state, piece, piece.mean) for piece in self._pieces]
        squares = [self._read(optimizer, state, piece, piece.square) for piece in self._pieces]
        return self._view.shared(_side_by_side(means)), self._view.shared(_side_by_side(squares))

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        """Copy m and v to the optimiser's state, unless they are views of it, and set the age."""
        optimizer = self.life
        chance = self._chance(-1 - self.clock) if optimizer.kept is not None else None
        for piece in self._pieces:
            for values, name in ((mean, piece.mean), (square, piece.square)):
                if name is not None:
                    self._write(optimizer, piece, name, values, chance)
        optimizer.set_age(age)
        self._older = age - optimizer.stepped

    @staticmethod
    def _read(optimizer: Keeper, state: Mapping[str, Tensor], piece: Piece, name: str | None) -> Tensor:
        """Return the state (n,) of a piece under a name; zeros if there is none."""
        count, kept = piece.where.stop - piece.where.start, optimizer.kept
        if name is None or not state:
            return torch.zeros(count, device=optimizer.device)
        if kept is None:
            return state[name].view(-1)
        values = torch.empty(count, device=optimizer.device)
        for part, _ in stretches(slice(None), count, STRETCH):
            values[part] = kept.read(state, name, part.start, part.stop)
        return values

    def _write(self, optimizer: Keeper, piece: Piece, name: str, values: Tensor, chance: Generator | None) -> None:
        """Store a shared vector's (D,) part of a piece under a name."""
        state, kept = optimizer.state_dict(), optimizer.kept
        own = self._view.own(values, piece.where, lambda: self._read(optimizer, state, piece, name))
        if kept is None:
            if state[name].data_ptr() != own.data_ptr():
                state[name].view(-1).copy_(own)
            return
        for part, _ in stretches(slice(None), own.numel(), STRETCH):
            kept.write(state, name, part.start, own[part], chance)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def remembered(
    open_request: Open, replica: Replica, chance: Callable[[int], Generator | None], current: Callable[[], Optimizer], notes: list[str]
) -> MemoryExchange | None:
    """Return the exchanges of a node's optimiser state; None: this swarm averages models alone.

    `notes`: gets a line where the memory stays at home.
    """
    if not averages_memories(open_request.manifest):
        return None
    view = view_of(replica.mixer, replica.parameters.numel(), replica.form.numel())
    memory = OptimizerMemory(current, pieces_of(current()), view, chance)
    noised, unknown = bool(open_request.privacy.exchange_noise), not memory.decays
    if unknown:
        notes.append(
            f"mix.kind: moments finds no state named {', '.join(sorted(KNOWN))} in {open_request.manifest.optimizer.kind}; "
            "models alone are averaged, as with mix=dsgd"
        )
    elif noised:
        notes.append("privacy.exchange_noise: the optimiser's memory stays at home, as only models are sent with noise")
    return MemoryExchange(memory, memory_codec(open_request.manifest), home=noised or unknown)
