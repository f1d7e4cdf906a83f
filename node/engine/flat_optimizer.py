"""Torch optimisers of one flat parameter vector.

Their state belongs to this node; `starling.node.engine.memories` shows it to exchanges.

Shapes: d parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.engine import stretches
from starling.node.engine.moments import NAMES, MomentFormat
from starling.node.engine.pieces import Piece
from starling.node.engine.side_state import named
from starling.node.engine.skip_dynamo import bare, without_tracer


@dataclass(frozen=True, slots=True)
class _Form:
    """Required form of a tensor of an optimiser's state."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


Make = Callable[[list[nn.Parameter]], Sequence[torch.optim.Optimizer]]
"""Torch optimisers of the parameters that the pieces are, each of which is stepped by one of them."""


_Owned = tuple[str, nn.Parameter, torch.optim.Optimizer]
"""(prefix of the names of a parameter's state, the parameter, the optimiser that steps it)."""


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
        kept: MomentFormat | None = None,
    ) -> None:
        without_tracer()
        self._by_coordinate = by_coordinate and like.ndim == 1
        self.kept, self.device = kept, like.device
        self.weighs_updates = weighs_updates
        self._pieces = pieces
        whole = self._cut(like)
        rows = 2 if self._by_coordinate else None  # rows of a parameter (n, …) that is stepped for a trial
        trials = [_still(part[:rows]) for part in whole]
        self._parameters = [nn.Parameter(part) for part in whole]  # placeholders; data and gradients are set for each step
        try:
            optimizers, tried = make(self._parameters), make(trials)
            for each in tried:
                each.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"optimizer.kind: it cannot step a flat vector: {error}") from error
        self.owned = _owned(optimizers, self._parameters)
        self._bare = {id(each): bare(each) for each in optimizers}
        self._groups = [group for each in optimizers for group in each.param_groups]
        self._stretches = stretches.Stretches(kept, like.dtype)
        self.stepped, self.loaded = 0, False
        self.fused = all(each.defaults.get("fused") for each in optimizers)
        self.template = {
            form: found
            for owned, part in zip(_owned(tried, trials), whole, strict=True)
            for name, tensor in _tensors([owned]).items()
            for form, found in self._forms(name, tensor, owned[1], part).items()
        }

    def _forms(self, name: str, tensor: Tensor, trial: Tensor, part: Tensor) -> dict[str, _Form]:
        """Return the required forms of a state of `part`, given the `tensor` that a trial has."""
        if self.kept is not None and name.rpartition(".")[2] in NAMES:
            forms = self.kept.forms(name, part.numel()).items()
            return {each: _Form(torch.Size((count,)), dtype, tensor.device) for each, (count, dtype) in forms}
        shape = part.shape if tensor.shape == trial.shape else tensor.shape
        return {name: _Form(shape, tensor.dtype, tensor.device)}

    def _cut(self, x: Tensor) -> list[Tensor]:
        """Return views of x (d,), one per piece, in its shape; x itself, of any shape, where there are none."""
        return [x[piece.start : piece.end].view(piece.shape) for piece in self._pieces] or [x]

    def step(
        self, x: Tensor, direction: Tensor, lr: float, shift: Tensor | None = None, weight: float = 1.0, chance: Generator | None = None
    ) -> None:
        """Change x (d,), detached from autograd, in place along a direction (d,), and then by −lr·shift (d,), at a rate lr >= 0.

        `weight` multiplies the first where updates are weighed; `chance` rounds moments that are stored in less than float32.
        """
        rate = lr * weight if self.weighs_updates else lr
        for group in self._groups:
            group["lr"] = rate
        values, gradients = (self._cut(x), self._cut(direction)) if self._pieces else ((x,), (direction,))
        parts = zip(self.owned, values, gradients, strict=True)
        if self.kept is not None or (self._by_coordinate and x.numel() > stretches.STRETCH and not self.fused):
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

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by torch's names, of several pieces after their number, for a checkpoint; shared, not copied. Empty before the
        first step.
        """
        return _tensors(self.owned)

    def load(self, state: Mapping[str, Tensor], taken: Callable[[], None] = lambda: None) -> None:
        """Restore the state of a checkpoint; ValueError if it does not fit, and nothing changed. `taken`: called after each tensor."""
        given = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        needed = {name: (tuple(form.shape), form.dtype) for name, form in self.template.items()}
        if given and given != needed:
            raise ValueError(f"optimizer state has {_difference(given, needed)}, needed are {_difference(needed, given)}")
        own: dict[str, Tensor] = {}
        for name, tensor in state.items():
            own[name] = tensor.clone().to(self.template[name].device)
            taken()
        self.share(own)
        self.loaded = bool(own)

    def set_age(self, age: int) -> None:
        """Set the number of steps of the state, where it counts them."""
        for name, each in self.state_dict().items():
            if name.rpartition(".")[2] == "step":
                each.fill_(age)

    def share(self, state: Mapping[str, Tensor]) -> None:
        """Use these tensors as the state, changed in place by every step. For simulations of many nodes in one array."""
        for prefix, parameter, optimizer in self.owned:
            optimizer.state[parameter] = named(state, prefix)


def _still(part: Tensor) -> nn.Parameter:
    """Return a parameter like a part of the vector, with a gradient, both zeros."""
    parameter = nn.Parameter(torch.zeros_like(part))
    parameter.grad = torch.zeros_like(part)
    return parameter


def _difference(of: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the entries of a mapping that another has not, in order of name."""
    return sorted(of.items() - other.items(), key=itemgetter(0))


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
