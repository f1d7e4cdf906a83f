"""The parameters of a model that a user's own loop trains, read and written as one flat vector between its steps.

Parameters in less precision than the vector, as bfloat16, are rounded when they are written. What rounding took from the last vector
written is kept, so that mixes too small to move such a parameter add up:

    write(y)   p <- y rounded, lost <- y − p
    read       x <- p + lost: the last vector written, moved by what the optimiser did to p since

Shapes: d numbers of the vector.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.mix.rows import BLOCK
from starling.gossip.vector import Layout, as_named, real
from starling.node.script.modes import quiet
from starling.node.script.names import plain_names
from starling.node.script.state_copies import Copies, StateCopies

TRAINED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
"""Dtypes of parameters that are mixed."""


class Parameters:
    """The parameters of `model` that one of `optimizers` steps.

    Args:
        model: as the user made it, perhaps wrapped.
        optimizers: the innermost ones (`starling.node.script.optimizers.unwrapped`).
        copies: where optimisers keep copies of parameters, as for `StateCopies`.

    Attributes:
        named: the parameters by name, in the order of `model.named_parameters()`, shared ones once. Names have no wrappers' prefixes.
        layout: where each lies in the vector (d,), which is float64 where a parameter is, else float32.
        copies: of them, which optimisers keep.
        lost: by the number of a parameter, what rounding took of the last vector written.

    Raises ConfigError: the model has no trainable parameters, the optimisers hold none of them, or one has a dtype that is not mixed.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], copies: Copies = ()) -> None:
        trainable = _trainable(model)
        if not trainable:
            raise ConfigError("the model has no trainable parameters: set requires_grad on what is to be learned, before Swarm()")
        held = {id(each) for one in optimizers for group in one.param_groups for each in group["params"]}
        own = {name: each for name, each in trainable.items() if id(each) in held}
        if not own:
            raise ConfigError("the optimizer holds none of the model's trainable parameters: build it from the model given to Swarm")
        self._model = model
        self._left_out = [each for each in trainable.values() if id(each) not in held]
        self._frozen = set[int]()  # ids of parameters that the last round's end had and no step has changed since
        self.named: dict[str, nn.Parameter] = dict(zip(plain_names(own), own.values(), strict=True))
        self.layout = _layout(self.named)
        self.copies = StateCopies(self.named, optimizers, copies)
        with quiet():
            self.lost = {
                number: torch.zeros(each.shape, dtype=self.layout.dtype, device=each.device)
                for number, each in enumerate(self._values())
                if each.dtype != self.layout.dtype
            }

    def read(self, into: Tensor) -> None:
        """Copy the current values to `into` (d,), of the layout's dtype, on any device. Raises ValueError: it has another length."""
        with quiet():
            places = self.cut(into)
            torch._foreach_copy_(places, self._values())
            if self.lost:
                lost = [each.to(into.device) for each in self.lost.values()]
                torch._foreach_add_([places[number] for number in self.lost], lost)

    def write(self, vector: Tensor) -> None:
        """Give the parameters the values of `vector` (d,), in place, and move the optimisers' copies of them by the same differences.

        Autograd notices: a backward pass of a graph that needs the old values raises RuntimeError.

        Raises ValueError: the vector has another length. ConfigError: `copies` gave a tensor of another shape than its parameter.
        """
        with quiet():
            places, values = self.cut(vector), self._values()
            copies = list(self.copies.by_number())
            moved = {number: values[number].to(self.layout.dtype, copy=True) for _, number in copies}
            torch._foreach_copy_(values, places)
            torch.clear_autocast_cache()  # inside an autocast region the cache may hold casts of the old values
            if copies:
                torch._foreach_sub_(list(moved.values()), [values[number] for number in moved])
                torch._foreach_sub_([each for each, _ in copies], [moved[number].to(each.device) for each, number in copies])
            if self.lost:
                lost = list(self.lost.values())
                torch._foreach_copy_(lost, [places[number] for number in self.lost])
                torch._foreach_sub_(lost, [values[number] for number in self.lost])

    def move(self, own: Tensor, other: Tensor) -> None:
        """Add `other` − `own` (d,) to the parameters, and copy them to `own`, in host memory: in one pass where that is possible."""
        with quiet():
            values = self._values()
            plain = all(each.is_contiguous() and each.dtype == own.dtype and each.device == own.device for each in values)
            if plain and next(self.copies.by_number(), None) is None:
                # Three of these for each of the user's threads, which take part, are in its cache.
                length = 2 * BLOCK * torch.get_num_threads()
                for each in zip(values, self.cut(own), self.cut(other), strict=True):
                    for x, s, e in zip(*(torch.split(part.view(-1), length) for part in each), strict=True):
                        torch.sub(e, s, out=s)
                        s.add_(x)
                        x.copy_(s)
                torch.clear_autocast_cache()
                return
        self.move_whole(own, other)

    def move_whole(self, own: Tensor, other: Tensor) -> None:
        """Move the parameters by `read` and `write`."""
        with quiet():
            moved = torch.sub(other, own)
            self.read(own)
            own.add_(moved)
            self.write(own)

    def cut(self, flat: Tensor) -> list[Tensor]:
        """Return views of `flat` (d,), one for each parameter, in its shape. Raises ValueError: it has another length."""
        return list(as_named(flat, self.layout).values())

    def check_same(self) -> None:
        """Raise ConfigError: a parameter was replaced, or a trainable one was added, since this was made."""
        present = {id(each) for each in self._model.parameters()}
        for name, each in self.named.items():
            if id(each) not in present:
                raise ConfigError(
                    f"{name} is no longer a parameter of the model (replaced or wrapped after Swarm()): make the Swarm afterwards"
                )
        known = {id(each) for each in (*self.named.values(), *self._left_out)}
        for name, each in _trainable(self._model).items():
            if id(each) not in known:
                raise ConfigError(
                    f"{name} was no trainable parameter of the model when Swarm() was called (added or unfrozen after it): make the Swarm "
                    "afterwards"
                )

    def note_gradients(self, members: Iterable[Tensor]) -> None:
        """Note that an optimiser steps these parameters, as far as they have a gradient."""
        if self._frozen:
            for each in members:
                if each.grad is not None:
                    self._frozen.discard(id(each))

    def check_trained(self) -> None:
        """Check parameters that were frozen at a round's end: that is allowed for a while, as for a discriminator while its generator is
        trained.

        Raises ConfigError: a parameter was frozen from one round's end to the next, without a step in between; mixes move it all the same.
        """
        frozen = {id(each): name for name, each in self.named.items() if not each.requires_grad}
        for number in self._frozen & frozen.keys():
            raise ConfigError(
                f"{frozen[number]} was frozen for a whole round, in which mixes move it all the same: freeze it before Swarm(), or train "
                "it in every round"
            )
        self._frozen = set(frozen)

    def _values(self) -> list[Tensor]:
        return [real(each) for each in self.named.values()]


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _layout(named: dict[str, nn.Parameter]) -> Layout:
    for name, each in named.items():
        if each.dtype not in TRAINED:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in TRAINED)
            raise ConfigError(
                f"{name} is {str(each.dtype).removeprefix('torch.')}, which is not mixed; make it one of {names}, or freeze it"
            )
    wide = any(real(each).dtype == torch.float64 for each in named.values())
    shapes = tuple(tuple(real(each).shape) for each in named.values())
    return Layout(tuple(named), shapes, torch.float64 if wide else torch.float32)
