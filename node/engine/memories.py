"""What this node's optimiser remembers, as exchanges of memories see it (`starling.gossip.mix.memories`).

Torch's optimisers keep it by parameter, under names of their own; nodes share one vector, perhaps a part of the model, perhaps with buffers
behind it that no optimiser knows.

Shapes: t parameters, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from starling.gossip.api import Mixer
from starling.gossip.mix.memories import Decay, MemoryExchange
from starling.gossip.mix.moments import averages_memories
from starling.gossip.mix.personal import Personal
from starling.gossip.replica import Replica
from starling.gossip.spans import Spans, take
from starling.node.engine.compression import memory_codec
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.moments import SCALES, Kept
from starling.node.rpc.calls import Open

MEANS = ("exp_avg", "momentum_buffer")
SQUARE = "exp_avg_sq"
AGE = "step"
KNOWN = frozenset({*MEANS, SQUARE, AGE})
"""Names in the state of torch's optimisers of what is averaged."""
_LOADED = 1 << 20  # age of a memory that came from a checkpoint without saying how old it is


@dataclass(frozen=True, slots=True)
class Piece:
    """A parameter of an optimiser: where it lies in the vector (t,), under which names its memory is kept, and how fast it forgets."""

    where: slice
    mean: str
    square: str | None
    decay: Decay


def pieces_of(optimizer: Optimizer) -> tuple[Piece, ...]:
    """Return the pieces of an optimiser's memory; none: it keeps none, or one of which not all is known by name."""
    names = {name.removesuffix(SCALES) for name in optimizer.template}
    found, start = [], 0
    for prefix, parameter, owner in optimizer.owned:
        where = slice(start, start + parameter.numel())
        start = where.stop
        own = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        mean = next((name for name in MEANS if name in own), None)
        if mean is None or not own <= KNOWN:
            return ()
        group = _group(owner, parameter)
        first, second = group.get("betas", (group.get("momentum"), None))
        square = prefix + SQUARE if SQUARE in own else None
        decay = Decay(where, float(first), None if square is None else float(second))
        found.append(Piece(where, prefix + mean, square, decay))
    return tuple(found)


def _group(owner: torch.optim.Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    for group in owner.param_groups:
        if any(each is parameter for each in group["params"]):
            return group
    return owner.defaults


class Keeper(Protocol):
    """What keeps a memory: an optimiser of one vector, or that of a row of many in a simulation.

    Attributes:
        kept: how m and v are kept, if not as they are.
        device: where.
        stepped: steps done.
        loaded: the state came from a checkpoint.
    """

    kept: Kept | None
    device: torch.device
    loaded: bool

    @property
    def stepped(self) -> int:
        """Steps done."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by torch's names, not copied; empty before the first step."""

    def begin(self) -> None:
        """Fill the state with zeros."""

    def set_age(self, age: int) -> None:
        """Let the state be of so many steps."""


class OptimizerMemory:
    """The memory of an optimiser. Satisfies `starling.gossip.mix.memories.Memory`.

    Args:
        current: gives the optimiser, another one after its memory was deleted.
        view: of the vector (t,) as what is shared.
        chance: of a number, rounds what is kept in less than float32.
    """

    def __init__(
        self,
        current: Callable[[], Keeper],
        pieces: Sequence[Piece],
        view: View,
        chance: Callable[[int], Generator | None],
    ) -> None:
        self._current, self._pieces, self._view, self._chance = current, pieces, view, chance
        self.decays: Sequence[Decay] = view.decays([piece.decay for piece in self._pieces])
        self._life: Keeper | None = None
        self._met = self._older = 0

    @property
    def life(self) -> Keeper:
        """Return the optimiser."""
        return self._followed()

    def _followed(self) -> Keeper:
        """Return the optimiser; of another one than before nothing is known yet."""
        optimizer = self._current()
        if optimizer is not self._life:
            self._life, self._met = optimizer, 0
            self._older = _LOADED if optimizer.loaded else 0
        return optimizer

    @property
    def met(self) -> int:
        """Exchanges since the memory was empty."""
        self._followed()
        return self._met

    @met.setter
    def met(self, count: int) -> None:
        self._met = count

    @property
    def clock(self) -> int:
        """Return the local steps of this optimiser."""
        return self.life.stepped

    @property
    def age(self) -> int:
        """Return the local steps that are remembered: torch's count of them, where it keeps one."""
        optimizer = self.life
        state = optimizer.state_dict()
        counts = [int(each) for name, each in state.items() if name.rpartition(".")[2] == AGE]
        return max(counts) if counts else optimizer.stepped + self._older if state else 0

    def read(self) -> tuple[Tensor, Tensor]:
        """Return m and v (D,), where they are the optimiser's own vectors these."""
        optimizer = self.life
        state = optimizer.state_dict()
        means = [self._read(optimizer, state, piece, piece.mean) for piece in self._pieces]
        squares = [self._read(optimizer, state, piece, piece.square) for piece in self._pieces]
        return self._view.shared(_side_by_side(means)), self._view.shared(_side_by_side(squares))

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        """Copy m and v to where they are kept, unless they are there already, and set the age."""
        optimizer = self.life
        if not optimizer.state_dict():
            optimizer.begin()
        state, kept = optimizer.state_dict(), optimizer.kept
        chance = self._chance(-1 - self.clock) if kept is not None else None
        for values, names in (
            (mean, [piece.mean for piece in self._pieces]),
            (square, [piece.square for piece in self._pieces]),
        ):
            for piece, name in zip(self._pieces, names, strict=True):
                if name is not None:
                    before = self._read(optimizer, state, piece, name)
                    _write(kept, state, name, self._view.own(values, piece.where, before), chance)
        optimizer.set_age(age)
        self._older = age - optimizer.stepped

    @staticmethod
    def _read(optimizer: Keeper, state: Mapping[str, Tensor], piece: Piece, name: str | None) -> Tensor:
        """Return (n,) what is kept of a piece under a name; zeros where there is nothing."""
        count, kept = piece.where.stop - piece.where.start, optimizer.kept
        if name is None or not state:
            return torch.zeros(count, device=optimizer.device)
        return state[name].view(-1) if kept is None else kept.read(state, name, 0, count)


def _write(kept: Kept | None, state: Mapping[str, Tensor], name: str, values: Tensor, chance: Generator | None) -> None:
    if kept is not None:
        kept.write(state, name, 0, values, chance)
    elif state[name].data_ptr() != values.data_ptr():
        state[name].view(-1).copy_(values)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True, slots=True)
class View:
    """How parameters (t,) become the shared vector: those in `spans`, all where there are none, and `behind` zeros for buffers."""

    spans: Spans = ()
    behind: int = 0

    def shared(self, values: Tensor) -> Tensor:
        """Return (D,), perhaps the values (t,) themselves."""
        part = take(values, self.spans) if self.spans else values
        return torch.nn.functional.pad(part, (0, self.behind)) if self.behind else part

    def own(self, shared: Tensor, where: slice, before: Tensor) -> Tensor:
        """Return parameters `where`, of a shared vector (D,) and, where they are not shared, of what was `before` (n,)."""
        if not self.spans:
            return shared[where]
        start, found = 0, before.clone()
        for span in self.spans:
            first, last = max(span.start, where.start), min(span.stop, where.stop)
            if first < last:
                at = start + first - span.start
                found[first - where.start : last - where.start] = shared[at : at + last - first]
            start += span.stop - span.start
        return found

    def decays(self, pieces: Sequence[Decay]) -> tuple[Decay, ...]:
        """Return the decays of the shared vector's coordinates, given those of the parameters."""
        found: list[Decay] = []
        whole = self.spans or (slice(0, pieces[-1].where.stop),) if pieces else ()
        for span in whole:
            for each in pieces:
                length = min(span.stop, each.where.stop) - max(span.start, each.where.start)
                if length > 0:
                    start = found[-1].where.stop if found else 0
                    found.append(Decay(slice(start, start + length), each.mean, each.square))
        if self.behind and found:
            start = found[-1].where.stop
            found.append(Decay(slice(start, start + self.behind), found[-1].mean, None))
        return tuple(found)


def view_of(mixer: Mixer, trained: int, dim: int) -> View:
    """Return how a mixing algorithm shares `trained` parameters in vectors (dim,)."""
    spans = mixer.spans if isinstance(mixer, Personal) else ()
    shared = sum(span.stop - span.start for span in spans) if spans else trained
    return View(spans, dim - shared)


def remembered(
    opening: Open, replica: Replica, chance: Callable[[int], Generator | None], current: Callable[[], Optimizer],
    notes: list[str],
) -> MemoryExchange | None:  # fmt: skip
    """Return the exchanges of what a node's optimiser remembers; None: this swarm averages models alone.

    `notes`: gets a line where the memory stays at home.
    """
    if not averages_memories(opening.manifest):
        return None
    view = view_of(replica.mixer, replica.parameters.numel(), replica.form.numel())
    memory = OptimizerMemory(current, pieces_of(current()), view, chance)
    noised, unknown = bool(opening.privacy.exchange_noise), not memory.decays
    if unknown:
        notes.append(
            f"mix.kind: moments does not know what {opening.manifest.optimizer.kind} remembers by the names {', '.join(sorted(KNOWN))}; "
            "models alone are averaged, as with mix=dsgd"
        )
    elif noised:
        notes.append("privacy.exchange_noise: the optimiser's memory stays at home, as only models are sent with noise")
    return MemoryExchange(memory, memory_codec(opening.manifest), home=noised or unknown)
