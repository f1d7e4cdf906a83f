"""State of a user's optimisers as flat vectors, by the names of torch's optimisers (`KNOWN`).

Exchanges of memories (`starling.gossip.mix.memories`) see of them what they see of the engine's optimiser of one vector
(`starling.node.engine.memories`): m, v, their age, and how fast they forget.

Shapes: d numbers of the vector.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from starling.gossip.mix.memories import Decay, Memories, carry
from starling.gossip.vector import real
from starling.node.engine.memory_pieces import AGE, KNOWN, MEANS, SQUARE
from starling.node.script.modes import quiet
from starling.node.script.parameters import Parameters


@dataclass(frozen=True, slots=True)
class _Piece:
    """State of one parameter.

    Args:
        owner: the optimiser that steps it.
        state: all that is remembered; empty before the first step.
        mean: the tensor of m; None: there is none yet.
        square: the tensor of v; None: there is none.
        first: what m is multiplied by in a step, by the parameter's group; None: the group does not say.
        second: the same of v.
    """

    owner: Optimizer
    state: MutableMapping[str, Any]
    mean: Tensor | None
    square: Tensor | None
    first: float | None
    second: float | None


class OptimizerMemories:
    """Optimiser state of `optimizers`, which step `parameters`, as flat vectors.

    Args:
        optimizers: the innermost ones (`starling.node.script.optimizers.unwrapped`).
        parameters: of these optimisers.

    Attributes:
        steps: local steps done, to be kept by whoever counts them: the age of memories that have no count of their own.
    """

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Parameters) -> None:
        self._optimizers, self._parameters = tuple(optimizers), parameters
        self.steps = 0

    @property
    def known(self) -> bool:
        """Tell if all state is known by name: it may be missing before the first local step, but not after it."""
        pieces = self._pieces()
        return pieces is not None and (self.steps == 0 or any(piece.state for piece in pieces))

    def decays(self) -> tuple[Decay, ...] | None:
        """Return the decay rates by coordinate, in order and without gaps; None: not all is known, or an optimiser has no state yet.

        A parameter that its optimiser has not stepped yet counts as the others of that optimiser. Neighbouring parameters of one optimiser
        with equal decays are one piece.
        """
        pieces = self._pieces() or []
        squared = {id(piece.owner): piece.square is not None for piece in pieces if piece.state}
        found: list[tuple[Optimizer, Decay]] = []
        begins = self._parameters.layout.offsets
        for piece, start, stop in zip(pieces, begins, begins[1:], strict=False):  # the pieces are unknown, so there are none
            has_square = piece.square is not None if piece.state else squared.get(id(piece.owner))
            second = piece.second if has_square else None
            if has_square is None or piece.first is None or (has_square and second is None):
                return None
            last = found[-1] if found else None
            if last is not None and last[0] is piece.owner and (last[1].mean, last[1].square) == (piece.first, second):
                found[-1] = (piece.owner, Decay(slice(last[1].where.start, stop), piece.first, second))
            else:
                found.append((piece.owner, Decay(slice(start, stop), piece.first, second)))
        return tuple(decay for _, decay in found) or None

    def age(self) -> int:
        """Return the number of local steps in the state: the optimisers' largest count, `steps` where they have none; 0: empty."""
        states = [piece.state for piece in self._pieces() or [] if piece.state]
        counts = [int(state[AGE]) for state in states if AGE in state]
        return max(counts) if counts else self.steps if states else 0

    def read(self, mean: Tensor, square: Tensor) -> None:
        """Copy m and v to these (d,); 0 where there is none, or it is not known. Raises ValueError: they have another length."""
        pieces = self._pieces() or []
        for into, kept in ((mean, [each.mean for each in pieces]), (square, [each.square for each in pieces])):
            with quiet():
                places = self._parameters.cut(into)
                if len(kept) < len(places) or any(each is None for each in kept):
                    into.zero_()
                copied = [(place, real(each)) for place, each in zip(places, kept, strict=False) if each is not None]
                if copied:
                    torch._foreach_copy_([place for place, _ in copied], [each for _, each in copied])

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        """Replace existing, known state by m and v (d,) of `age` local steps, and set its counts.

        Raises ValueError: m or v has another length.
        """
        pieces = self._pieces() or []
        for values, kept in ((mean, [each.mean for each in pieces]), (square, [each.square for each in pieces])):
            with quiet():
                places = self._parameters.cut(values)
                copied = [(real(each), place) for place, each in zip(places, kept, strict=False) if each is not None]
                if copied:
                    torch._foreach_copy_([each for each, _ in copied], [place for _, place in copied])
        for piece in pieces:
            _set_count(piece.state, age)
        if any(piece.state for piece in pieces):
            self.steps = age

    def carry(self, other: Memories, base: Memories, steps: int) -> None:
        """Add to m and v (d,) what exchanges changed elsewhere, `steps` local steps ago: from `base` to `other`. All must be known."""
        age, begins = self.age(), self._parameters.layout.offsets
        for piece, start, stop in zip(self._pieces() or [], begins, begins[1:], strict=False):
            if piece.mean is None or piece.first is None:
                continue
            kept = [piece.mean] if piece.square is None else [piece.mean, piece.square]
            with quiet():
                own = [real(each).to(other[0].dtype).reshape(-1) for each in kept]
                ends = [[each[start:stop].to(own[0].device) for each in pair] for pair in (other, base)]
                decay = Decay(slice(0, stop - start), piece.first, None if piece.square is None else piece.second)
                carry(own[0], own[-1], (ends[0][0], ends[0][1]), (ends[1][0], ends[1][1]), [decay], steps, age)
                for flat, each in zip(own, kept, strict=True):
                    if flat.data_ptr() != each.data_ptr():  # the tensor has another dtype or order
                        real(each).copy_(flat.view(real(each).shape))
            _set_count(piece.state, age)

    def _pieces(self) -> list[_Piece] | None:
        """Return the state of each parameter; None: not all of it is known."""
        owners: dict[int, list[tuple[Optimizer, Mapping[str, Any]]]] = {}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for each in group["params"]:
                    owners.setdefault(id(each), []).append((optimizer, group))
        found = []
        for parameter in self._parameters.named.values():
            held = owners.get(id(parameter), [])
            piece = _piece(parameter, *held[0]) if len(held) == 1 else None  # two states of one parameter cannot be averaged
            if piece is None:
                return None
            found.append(piece)
        return found


def _piece(parameter: nn.Parameter, owner: Optimizer, group: Mapping[str, Any]) -> _Piece | None:
    """Return an optimiser's state of a parameter; None: not all is known by name, or it has another shape."""
    state = getattr(owner, "state", {}).get(parameter, {})
    first, second = group.get("betas", (group.get("momentum"), None))
    betas = (None if first is None else float(first), None if second is None else float(second))
    names = {name for name, value in state.items() if value is not None}
    mean = next((name for name in MEANS if name in names), None)
    vectors = [state[name] for name in names - {AGE}]
    if names and (mean is None or not names <= KNOWN or not all(_shaped(each, parameter) for each in vectors)):
        return None
    return _Piece(owner, state if names else {}, state.get(mean), state.get(SQUARE), *betas)


def _shaped(value: object, parameter: nn.Parameter) -> bool:
    """Return whether a state has one number for each of the parameter."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return False
    return value.is_complex() if parameter.is_complex() else value.is_floating_point()


def _set_count(state: MutableMapping[str, Any], age: int) -> None:
    """Set the count of local steps of a state, if it has one: a tensor, or a number of Python's."""
    count = state.get(AGE)
    if isinstance(count, Tensor):
        with quiet():
            count.fill_(age)
    elif count is not None:
        state[AGE] = type(count)(age)
