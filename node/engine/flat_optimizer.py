"""Torch optimisers of one flat parameter vector.

Their state belongs to this node; `starling.node.engine.memories` shows it to exchanges.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.engine import stretches
from starling.node.engine.eager import bare, without_tracer
from starling.node.engine.moments import NAMES, Kept
from starling.node.engine.pieces import Piece


@dataclass(frozen=True, slots=True)
class _Form:
    """Required form of a tensor of an optimiser's state."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


Make = Callable[[list[nn.Parameter]], Sequence[torch.optim.Optimizer]]
"""Torch optimisers of the parameters that the pieces are, each of which is stepped by one of them."""


_Owned = tuple[str, nn.Parameter, torch.optim.Optimizer]
"""What stands before the names of a parameter's state, the parameter, and the optimiser that steps it."""


class Optimizer:
    """Torch optimisers of one flat vector `like` (d,). Raises ConfigError if one cannot step from a gradient alone (LBFGS, SparseAdam).

    `weighs_updates`: a node's weight multiplies what the optimiser makes of a gradient. `pieces`: what the vector is cut into, all of it
    and in order; none: it is one parameter. `by_coordinate`: a coordinate's step depends on no other, so long vectors (d,) are stepped
    `stretches.STRETCH` at a time, with the same bits, unless they are stepped in one pass. `kept`: how moments are stored between steps, if
    not as they are.
    """

    def __init__(
        self,
        make: Make,
        like: Tensor,
        *,
        weighs_updates: bool = False,
        pieces: Sequence[Piece] = (),
        by_coordinate: bool = False,
        kept: Kept | None = None,
    ) -> None:
        without_tracer()
        self._by_coordinate = by_coordinate and like.ndim == 1
        self.kept, self.device = kept, like.device
        self.weighs_updates = weighs_updates
        self._pieces = pieces
        whole = self._cut(like)
        trials = [nn.Parameter(torch.zeros_like(part[: self._tried(part)])) for part in whole]
        self._parameters = [nn.Parameter(part) for part in whole]  # stand for others' data and gradients
        try:
            self._optimizers, tried = make(self._parameters), make(trials)
            for trial in trials:
                trial.grad = torch.zeros_like(trial)
            for each in tried:
                each.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"optimizer.kind: it cannot step a flat vector: {error}") from error
        self.owned = _owned(self._optimizers, self._parameters)
        self._bare = {id(each): bare(each) for each in self._optimizers}
        self._stretches = stretches.Stretches(kept)
        self._rate = math.nan  # of the last step
        self.stepped, self.loaded = 0, False
        self._fused = all(each.defaults.get("fused") for each in self._optimizers)
        self.template = dict(
            form for name, tensor in _tensors(_owned(tried, trials)).items() for form in self._forms(name, tensor, trials, whole)
        )

    def _tried(self, part: Tensor) -> int:
        """Return how many rows of a parameter (n, …) a trial step has."""
        return min(2, len(part)) if self._by_coordinate else len(part)

    def _forms(self, name: str, tensor: Tensor, trials: Sequence[Tensor], whole: Sequence[Tensor]) -> list[tuple[str, _Form]]:
        """Return the required forms of a state, given a trial's `tensor`."""
        number, plain = int(name.partition(".")[0]) if len(trials) > 1 else 0, name.rpartition(".")[2]
        of = whole[number]
        if self.kept is not None and plain in NAMES:
            forms = self.kept.forms(name, of.numel()).items()
            return [(each, _Form(torch.Size((count,)), dtype, tensor.device)) for each, (count, dtype) in forms]
        shape = of.shape if tensor.shape == trials[number].shape else tensor.shape
        return [(name, _Form(shape, tensor.dtype, tensor.device))]

    def _cut(self, x: Tensor) -> list[Tensor]:
        """Views of x (d,), one per piece, in its shape; x itself, of any shape, where there are none."""
        return [x[piece.start : piece.end].view(piece.shape) for piece in self._pieces] or [x]

    def step(
        self, x: Tensor, direction: Tensor, lr: float, shift: Tensor | None = None, weight: float = 1.0, chance: Generator | None = None
    ) -> None:
        """Change x (d,), detached from autograd, in place along a direction (d,), and then by −lr·shift (d,), at a rate lr >= 0.

        `weight` multiplies the first where updates are weighed; `chance` rounds moments that are stored in less than float32.
        """
        rate = lr * weight if self.weighs_updates else lr
        if rate != self._rate:
            self._set(rate)
        values, gradients = (self._cut(x), self._cut(direction)) if self._pieces else ((x,), (direction,))
        parts = zip(self.owned, values, gradients, strict=True)
        if self.kept is not None or (self._by_coordinate and x.numel() > stretches.STRETCH and not self._fused):
            for (_, parameter, optimizer), value, gradient in parts:
                self._stretches.step(optimizer, self._bare[id(optimizer)], parameter, value, gradient, chance)
        else:
            for (_, parameter, _), value, gradient in parts:
                parameter.data, parameter.grad = value, gradient
            for step in self._bare.values():
                step()
        for parameter in self._parameters:
            parameter.grad = None
        self.stepped += 1
        if shift is not None:
            x.sub_(shift, alpha=lr)

    def _set(self, rate: float) -> None:
        self._rate = rate
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by torch's names, of several pieces after their number, for a checkpoint; shared, not copied. Empty before the
        first step.
        """
        return _tensors(self.owned)

    def load(self, state: Mapping[str, Tensor], taken: Callable[[], None] = lambda: None) -> None:
        """Take over the state of a checkpoint; ValueError if it does not fit, and nothing changed. `taken`: called after each tensor."""
        if state and state.keys() != self.template.keys():
            raise ValueError(f"optimizer state has {sorted(state)}, needed are {sorted(self.template)}")
        for name, tensor in state.items():
            needed = self.template[name]
            if tensor.shape != needed.shape or tensor.dtype != needed.dtype:
                raise ValueError(
                    f"optimizer state {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"needed is {needed.dtype} of shape {tuple(needed.shape)}"
                )
        if not state:
            return
        own: dict[str, Tensor] = {}
        for name, tensor in state.items():
            own[name] = tensor.clone().to(self.template[name].device)
            taken()
        self.share(own)
        self.loaded = True

    def set_age(self, age: int) -> None:
        """Let the state be of so many steps, where it counts them."""
        for name, each in self.state_dict().items():
            if name.rpartition(".")[2] == "step":
                each.fill_(age)

    def share(self, state: Mapping[str, Tensor]) -> None:
        """Use these tensors as the state, changed in place by every step. For simulations of many nodes in one array."""
        for prefix, parameter, optimizer in self.owned:
            optimizer.state[parameter] = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _owned(optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[nn.Parameter]) -> list[_Owned]:
    """Return the owner of each parameter."""
    owners = {id(each): one for one in optimizers for group in one.param_groups for each in group["params"]}
    prefixes = [f"{number}." for number in range(len(parameters))] if len(parameters) > 1 else [""]
    return [(prefix, each, owners.get(id(each), optimizers[0])) for prefix, each in zip(prefixes, parameters, strict=True)]


def _tensors(owned: Sequence[_Owned]) -> dict[str, Tensor]:
    """Return the tensors of all states, by the prefix of the parameter and torch's name."""
    return {
        prefix + name: value
        for prefix, parameter, optimizer in owned
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
