"""Bind a model's parameters, gradients and averaged buffers to its flat vector, in a way that is chosen once for each model (`bound`).

    Bound      parameters of the vector's dtype are views of it, and so are their gradients: nothing is copied
    Mastered   of other dtypes (bfloat16, float16, complex, several) the vector holds the values in full precision, so that no small step is
               rounded away; `load` rounds them to the parameters, `gather` adds up their gradients
    Carrying   either, with buffers behind the parameters: `load` writes them to the module, `collect` reads what it made of them

Shapes: d numbers of the vector, t of them of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, nn, torch
from starling.gossip.vector import Layout, as_named, bind_gradients, flatten, real, rebind, release_gradients, trainable

LOOKS = 64  # checks of parameters' memory, one of which also asks the module for them
Moves = tuple[Callable[[], None], ...]
"""Calls without arguments, so that where there is nothing to move nothing is called."""


class Moving(Protocol):
    """The copies between vector and module that are due around a module's computing."""

    @property
    def before(self) -> Moves:
        """Copies that are due before the module computes with the vector: none, or `load`."""

    @property
    def after_backward(self) -> Moves:
        """Copies that are due after a backward pass: none, or `gather`."""

    @property
    def after_step(self) -> Moves:
        """Copies that are due after a local step: none, or `collect`."""


class Binding(Moving, Protocol):
    """A module and its vector."""

    @property
    def x(self) -> Tensor:
        """The vector, (d,)."""

    def load(self) -> None:
        """Write the vector to the module."""

    def gather(self) -> None:
        """Add the parameters' gradients of a backward pass to the gradients' vector, and delete them."""

    def collect(self) -> None:
        """Read averaged buffers from the module."""

    def gradient(self) -> Tensor:
        """Return (t,) the gradients' vector, zero where it is new."""

    def release(self) -> None:
        """Free the gradients' vector, which is allocated again on use."""

    @property
    def check(self) -> Callable[[], None]:
        """Raises ConfigError: a parameter was replaced, so that it and the vector no longer know of each other."""


class Unmoved:
    """Moves of modules that compute with their own tensors: none. Satisfies `Moving`."""

    before: Moves = ()
    after_backward: Moves = ()
    after_step: Moves = ()


def move(moves: Moves) -> None:
    """Do all moves."""
    for each in moves:
        each()


@contextmanager
def lent(binding: Binding, x: Tensor) -> Iterator[None]:
    """Have the module compute with `x` (d,) meanwhile, which may be the vector itself."""
    own = binding.x if x is binding.x else binding.x.clone()
    try:
        binding.x.copy_(x)  # copying the vector to itself does nothing
        binding.load()
        yield
    finally:
        binding.x.copy_(own)
        binding.load()


def obstacle(module: nn.Module, layout: Layout) -> str:
    """Return what keeps a module's parameters from being views of all of a vector, in a few words; "" if nothing does."""
    other = [name for name, each in module.named_parameters() if each.requires_grad and each.dtype != layout.dtype]
    if other:
        return f"parameter {other[0]} is in less than {str(layout.dtype).removeprefix('torch.')}"
    return f"buffer {layout.buffers[0]} is averaged" if layout.carried else ""


def bound(module: nn.Module, layout: Layout) -> Binding:
    """Bind a module, whose parameters are on one device, to a new vector. Raises ValueError: the layout is not this model's."""
    release_gradients(module)
    plain = all(parameter.dtype == layout.dtype for parameter in trainable(module))
    binding: Binding = Bound(module, layout) if plain else Mastered(module, layout)
    return Carrying(binding, module, layout) if layout.carried else binding


class Places:
    """Addresses of a module's parameters, to detect when one is no longer a view of its vector."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._module, self._looks = module, 0
        names = zip(layout.names, trainable(module), strict=False)  # buffers follow the parameters
        self._held = [(name, each, each.data_ptr()) for name, each in names]

    def check(self) -> None:
        """Raises ConfigError: a parameter has other memory, or, looked at now and then, is another one."""
        self._looks += 1
        now = trainable(self._module) if self._looks % LOOKS == 0 else None
        for number, (name, parameter, place) in enumerate(self._held):
            if parameter.data_ptr() != place or (now is not None and now[number] is not parameter):
                raise ConfigError(
                    f"task.kind: parameter {name} was replaced while it was trained, as by `p.data = …`, and is no longer the one that is "
                    "exchanged; change its values in place, as by `p.data.copy_(…)`"
                )


class Bound:
    """Parameters and gradients are views. Satisfies `Binding`."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._module, self._layout = module, layout
        self.before: Moves = ()
        self.after_backward: Moves = ()
        self.after_step: Moves = ()
        self._gradient: Tensor | None = None
        self.x = flatten(module, layout)
        rebind(module, layout, self.x)
        self.check = Places(module, layout).check

    def load(self) -> None:
        """Do nothing."""

    def gather(self) -> None:
        """Do nothing."""

    def collect(self) -> None:
        """Do nothing."""

    def gradient(self) -> Tensor:
        """Return the vector of which gradients are views."""
        if self._gradient is None:
            self._gradient = bind_gradients(self._module, self._layout)
        return self._gradient

    def release(self) -> None:
        """Detach the gradients."""
        self._gradient = None
        release_gradients(self._module)


class Mastered:
    """The vector is a copy. Satisfies `Binding`."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._module, self._layout = module, layout
        self.before: Moves = (self.load,)
        self.after_backward: Moves = (self.gather,)
        self.after_step: Moves = ()
        self._parameters = trainable(module)
        self._gradient: Tensor | None = None
        self._into: list[Tensor] = []  # views of the gradient
        self.x = flatten(module, layout)
        self._masters = self._cut(self.x)
        with torch.no_grad():
            self._values = [real(each.data) for each in self._parameters]
        self.check = Places(module, layout).check

    def load(self) -> None:
        """Round the vector to the parameters, and delete gradients left by an abandoned backward pass."""
        release_gradients(self._module)
        with torch.no_grad():
            torch._foreach_copy_(self._values, self._masters)

    def gather(self) -> None:
        """Add the gradients there are, and delete them."""
        self.gradient()
        present = [(into, each.grad) for into, each in zip(self._into, self._parameters, strict=True) if each.grad is not None]
        if present:
            torch._foreach_add_([into for into, _ in present], [_dense(grad) for _, grad in present])
        release_gradients(self._module)

    def collect(self) -> None:
        """Do nothing."""

    def gradient(self) -> Tensor:
        """Return the vector to which gradients are added."""
        if self._gradient is None:
            self._gradient = self.x.new_zeros(self._layout.trained)
            self._into = self._cut(self._gradient)
        return self._gradient

    def release(self) -> None:
        """Free the vector and what is left of a backward pass."""
        self._gradient, self._into = None, []
        release_gradients(self._module)

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """Return views of a vector, one for each parameter in its shape."""
        layout, count = self._layout, len(self._parameters)
        places = zip(layout.offsets[:count], layout.offsets[1:], layout.shapes, strict=False)
        return [flat[begin:end].view(shape) for begin, end, shape in places]


def as_parameters(flat: Tensor, layout: Layout, module: nn.Module) -> dict[str, Tensor]:
    """Return what the module's parameters are with the values of a vector (t,), by name; gradients flow back into the vector."""
    named, parameters = as_named(flat, layout), dict(module.named_parameters())
    return {
        name: torch.complex(each[..., 0], each[..., 1]).to(parameters[name].dtype)
        if parameters[name].is_complex()
        else each.to(parameters[name].dtype)
        for name, each in named.items()
    }


def _dense(gradient: Tensor) -> Tensor:
    return real(gradient.to_dense() if gradient.is_sparse else gradient)


class Carrying:
    """`binding`, of whose vector the last numbers are those of buffers. Satisfies `Binding`."""

    def __init__(self, binding: Binding, module: nn.Module, layout: Layout) -> None:
        self._binding, self._module, self._layout = binding, module, layout
        self.before: Moves = (self.load,)
        self.after_backward = binding.after_backward
        self.after_step: Moves = (self.collect,)
        self.gather, self.gradient, self.release = binding.gather, binding.gradient, binding.release
        self.check = binding.check

    @property
    def x(self) -> Tensor:
        """Return the binding's vector (d,)."""
        return self._binding.x

    def load(self) -> None:
        """Write parameters and buffers."""
        self._binding.load()
        self._each(lambda buffer, place: buffer.copy_(place))

    def collect(self) -> None:
        """Read buffers, also such as the module has replaced by others. Raises ValueError: one has another shape now."""
        self._binding.collect()
        self._each(lambda buffer, place: place.copy_(buffer))

    def _each(self, copy: Callable[[Tensor, Tensor], Tensor]) -> None:
        places = as_named(self.x, self._layout)
        with torch.no_grad():
            for name in self._layout.buffers:
                buffer = real(self._module.get_buffer(name))
                if buffer.shape != places[name].shape:
                    raise ValueError(
                        f"buffer {name} has shape {tuple(buffer.shape)}, it was averaged with {tuple(places[name].shape)}; one that grows "
                        "stays at its node, task.buffers"
                    )
                copy(buffer, places[name])
