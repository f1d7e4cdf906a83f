"""Members whose parameters are sharded over ranks by `fully_shard` (FSDP2): gathered at a round's end, and cut again.

Each tensor is gathered from all ranks, one after the other, and each rank has the whole vector in its memory. A correction is cut once a
round, and each rank subtracts its part. How much of it the gradients bear out is a sum over all ranks, once a local step.

A module that was evaluated holds whole parameters besides its shards: the shards are what is read and written, and the whole ones are
dropped before and after.

Shapes: d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.mix.borne import REMEMBERED, subtract
from starling.gossip.mix.memories import Memories, carry
from starling.node.script.correction import Correction
from starling.node.script.flows import Flows
from starling.node.script.gradients import Gradients
from starling.node.script.hooks import Hooks
from starling.node.script.memories import OptimizerMemories, _set_count
from starling.node.script.modes import quiet
from starling.node.script.parameters import Parameters
from starling.node.script.state_copies import Copies

Sum = Callable[[Sequence[float]], Sequence[float]]
"""Numbers of this rank -> their sums over all ranks."""


def is_sharded(model: nn.Module) -> bool:
    """Return whether any parameter of a model is one."""
    return any(isinstance(each, DTensor) for each in model.parameters()) or any(_modules(model))


def _modules(model: nn.Module) -> Iterable[FSDPModule]:
    return (each for each in model.modules() if isinstance(each, FSDPModule))


def reshard(model: nn.Module) -> None:
    """Drop whole parameters, so that those of the model are the optimizer's."""
    for each in _modules(model):
        each.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor. All ranks call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut(value: Tensor, like: Tensor) -> Tensor:
    """Return of a whole value what a tensor has of it here, of that tensor's dtype and device."""
    value = value.to(like.device, like.dtype)
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def here(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ShardedParameters(Parameters):
    """`Parameters` of shards. `read` and `write` are called by all ranks together."""

    move = Parameters.move_whole

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], copies: Copies = ()) -> None:
        """Raises ConfigError: as `Parameters`, and where parameters that are not trained are sharded."""
        reshard(model)
        super().__init__(model, optimizers, copies)
        for name, each in model.named_parameters():
            if isinstance(each, DTensor) and not each.requires_grad:
                raise ConfigError(
                    f"{name} is sharded and not trained: members compare such parameters, and none has it whole; train adapters with "
                    "DistributedDataParallel"
                )

    def read(self, into: Tensor) -> None:
        reshard(self._model)
        with quiet():
            for number, (place, each) in enumerate(zip(self.cut(into), self.named.values(), strict=True)):
                place.copy_(whole(each))
                if number in self.lost:
                    place.add_(self.lost[number].to(place.device))

    def write(self, vector: Tensor) -> None:
        reshard(self._model)
        with quiet():
            copies: dict[int, list[Tensor]] = {}
            for copy, number in self.copies.by_number():
                copies.setdefault(number, []).append(copy)
            for number, (place, each) in enumerate(zip(self.cut(vector), self.named.values(), strict=True)):
                new, wide = cut(place, each), self.layout.dtype
                for copy in copies.get(number, ()):
                    copy.sub_(each.to(wide) - new.to(wide))
                each.copy_(new)
                if number in self.lost:
                    self.lost[number].copy_(place).sub_(place.to(each.dtype))
            torch.clear_autocast_cache()
        reshard(self._model)

    def check_same(self) -> None:
        reshard(self._model)
        super().check_same()


class ShardedMemories(OptimizerMemories):
    """`OptimizerMemories` of shards. `read` and `write` are called by all ranks together."""

    def read(self, mean: Tensor, square: Tensor) -> None:
        pieces = self._pieces() or []
        with quiet():
            mean.zero_()
            square.zero_()
            for piece, m, v in zip(pieces, self._parameters.cut(mean), self._parameters.cut(square), strict=False):
                for place, kept in ((m, piece.mean), (v, piece.square)):
                    if kept is not None:
                        place.copy_(whole(kept))

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        pieces = self._pieces() or []
        with quiet():
            for piece, m, v in zip(pieces, self._parameters.cut(mean), self._parameters.cut(square), strict=False):
                for place, kept in ((m, piece.mean), (v, piece.square)):
                    if kept is not None:
                        kept.copy_(cut(place, kept))
        for piece in pieces:
            _set_count(piece.state, age)
        if any(piece.state for piece in pieces):
            self.steps = age

    def carry(self, other: Memories, base: Memories, steps: int) -> None:
        """As of `OptimizerMemories`, by `read` and `write`."""
        own, age, decays = (torch.empty_like(other[0]), torch.empty_like(other[1])), self.age(), self.decays()
        self.read(*own)
        carry(*own, other, base, decays or (), steps, age)
        self.write(*own, age)


class ShardedFlows(Flows):
    """`Flows` of shards: `stepped` is called by all ranks together."""

    def __init__(self, parameters: ShardedParameters, add: Sum) -> None:
        super().__init__()
        self._parameters, self._add = parameters, add
        self._pieces: list[Tensor] = []  # of c, what this rank has of each parameter
        self._dot = self._power = 0.0  # of this step and rank, as they are remembered

    def begin(self, c: Tensor, known: Sequence[float], *, active: bool) -> None:
        super().begin(c, known, active=active)
        if active:
            shards = zip(self._parameters.cut(c), self._parameters.named.values(), strict=True)
            self._pieces = [here(cut(place, each)).to(c.dtype).reshape(-1) for place, each in shards]

    def take_shard(self, gradient: Tensor, number: int, share: float) -> None:
        """Correct what this rank has of the gradient of a parameter, side by side and in place.

        `share` is what of it counts in sums over all ranks: 1 over the number of ranks that have the same.
        """
        before, after = self.known, subtract(self.known, self._pieces[number], gradient)
        self._dot += share * (after.dot - REMEMBERED * before.dot)
        self._power += share * (after.power - REMEMBERED * before.power)

    def stepped(self) -> None:
        super().stepped()
        if self.active:
            dot, power = self._add((self._dot, self._power))
            self._dot = self._power = 0.0
            self.known = self.known._replace(dot=self.known.dot + dot, power=self.known.power + power)


class ShardedGradients(Gradients):
    """`Gradients` of shards."""

    def __init__(self, parameters: ShardedParameters, ranks: int) -> None:
        super().__init__(parameters)
        self._shares = [1.0 / _holders(each, ranks) for each in parameters.named.values()]

    def correct(self, optimizer: Optimizer, correction: Correction, scale: float) -> None:
        """As of `Gradients`, by `ShardedFlows`."""
        assert isinstance(correction, ShardedFlows)
        with quiet():
            for number in self._of(optimizer):
                gradient = self._parameters[number].grad
                if gradient is None:
                    continue
                own = here(gradient)
                flat = own.to(self._layout.dtype).reshape(-1) / scale
                correction.take_shard(flat, number, self._shares[number])
                own.copy_(flat.mul_(scale).view_as(own))


def _holders(tensor: Tensor, ranks: int) -> int:
    """Return how many ranks have the same part of a tensor."""
    if not isinstance(tensor, DTensor):
        return ranks
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if not isinstance(placement, Shard))


class ShardedHooks(Hooks):
    """`Hooks` of shards."""

    def __init__(self, optimizers: Sequence[Optimizer], parameters: ShardedParameters, correction: Correction, ranks: int) -> None:
        super().__init__(optimizers, parameters, correction)
        self._gradients = ShardedGradients(parameters, ranks)
