"""A model as one flat vector: the trainable parameters, in the order of their definition, side by side.

Buffers may follow them, which nodes average along with the parameters and no gradient moves. Complex numbers are pairs of real ones.

Shapes: d numbers of the vector, t of them of parameters.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from starling.gossip.lazy_torch import Tensor, nn, torch

_WIDE = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32", "complex64": "float32"}
"""Of each dtype that is trained the real one that holds its numbers."""

SAMPLED = 1 << 16


@dataclass(frozen=True)
class Layout:
    """The place of each parameter in the flat vector, followed by each buffer that is averaged."""

    names: tuple[str, ...]  # dotted, unique, as in `named_parameters`; shared parameters appear once
    shapes: tuple[tuple[int, ...], ...]  # shape of each; complex ones have a last dimension of 2
    dtype: torch.dtype  # of the vector
    carried: int = 0  # buffers among the names, the last ones

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the first coordinate of each parameter, and d at the end."""
        return tuple(accumulate((math.prod(shape) for shape in self.shapes), initial=0))

    @property
    def dim(self) -> int:
        """Return the length of the flat vector."""
        return self.offsets[-1]

    @property
    def trained(self) -> int:
        """Return t, the numbers of parameters, which come first."""
        return self.offsets[len(self.names) - self.carried]

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the names of the buffers."""
        return self.names[len(self.names) - self.carried :]

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that are equal where names and shapes are, in the same order. The dtype may differ: values are converted."""
        digest = hashlib.blake2b(digest_size=16)
        for name, shape in zip(self.names, self.shapes, strict=True):
            raw = name.encode()
            digest.update(len(raw).to_bytes(4, "little") + raw + len(shape).to_bytes(4, "little"))
            digest.update(b"".join(length.to_bytes(8, "little") for length in shape))
        return digest.digest()


def layout(model: nn.Module, carried: Sequence[str] = ()) -> Layout:
    """Return the layout of a model's trainable parameters and of its buffers of these names.

    The vector is float64 where a parameter is, else float32. Raises ValueError: there are no parameters, or some of
    another dtype.
    """
    named = _trainable(model)
    if not named:
        raise ValueError("the model has no trainable parameters; set requires_grad on the parameters to train")
    dtypes = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in named.items()}
    for name, dtype in dtypes.items():
        if dtype not in _WIDE:
            raise ValueError(
                f"parameter {name} is {dtype}, which is not trained here; make it one of {', '.join(_WIDE)}, or freeze it, "
                "requires_grad_(False)"
            )
    shapes = [tuple(real(each).shape) for each in (*named.values(), *map(model.get_buffer, carried))]
    wide = any(_WIDE[dtype] == "float64" for dtype in dtypes.values())
    return Layout((*named, *carried), tuple(shapes), torch.float64 if wide else torch.float32, len(carried))


def real(tensor: Tensor) -> Tensor:
    """Return the tensor, of a complex one a view in pairs."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor


def flatten(model: nn.Module, layout: Layout) -> Tensor:
    """Return a copy (d,) of a model's parameters, all on one device, and of the buffers of the layout.

    Raises ValueError: the layout is not this model's.
    """
    named, buffers = _trainable(model), layout.buffers
    tensors = [real(each) for each in (*named.values(), *map(model.get_buffer, buffers))]
    if (*named, *buffers) != layout.names or tuple(tuple(each.shape) for each in tensors) != layout.shapes:
        raise ValueError("the layout belongs to another model")
    with torch.no_grad():
        return torch.cat([each.reshape(-1).to(layout.dtype) for each in tensors])


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained, each once, in the order of their definition."""
    return list(_trainable(model).values())


def bind(model: nn.Module, layout: Layout) -> tuple[Tensor, Tensor]:
    """Move a model's parameters, all on one device, into one flat vector (d,) and their gradients, zero, into another (t,).

    Afterwards writing to either vector writes to the model, and `backward` adds into the gradients' vector. Clear it with `zero_()`:
    `zero_grad` would cut the gradients loose.

    Raises ValueError: the layout is not this model's, or its parameters are of another dtype (`starling.gossip.binding`).
    """
    params = bind_parameters(model, layout)
    return params, bind_gradients(model, layout)


def bind_parameters(model: nn.Module, layout: Layout) -> Tensor:
    """Bind parameters alone, as `bind` -> the first vector."""
    params = flatten(model, layout)
    rebind(model, layout, params)
    return params


def rebind(model: nn.Module, layout: Layout, params: Tensor) -> None:
    """Move the parameters of a model of this layout into a vector (d,), which has their values."""
    parameters = trainable(model)
    if any(parameter.dtype != layout.dtype for parameter in parameters):
        raise ValueError("parameters of another dtype than the vector's cannot be views of it")
    for parameter, value in zip(parameters, as_named(params, layout).values(), strict=False):  # buffers follow
        parameter.data = value


def bind_gradients(model: nn.Module, layout: Layout) -> Tensor:
    """Bind the model's gradients to a new zero vector (t,) and return it; `release_gradients` undoes it."""
    parameters = trainable(model)
    grads = torch.zeros(layout.trained, dtype=layout.dtype, device=parameters[0].device)
    for parameter, begin, end in zip(parameters, layout.offsets, layout.offsets[1:], strict=False):
        parameter.grad = grads[begin:end].view(parameter.shape)
    return grads


def release_gradients(model: nn.Module) -> None:
    """Leave a model without gradients, whose vector is freed if nobody else has it."""
    for parameter in _trainable(model).values():
        parameter.grad = None


def as_named(flat: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Views into `flat` (d,), one per parameter, in its shape."""
    if flat.shape != (layout.dim,):
        raise ValueError(f"flat must be ({layout.dim},), got {tuple(flat.shape)}")
    return {
        name: flat[start : start + math.prod(shape)].view(shape)
        for name, shape, start in zip(layout.names, layout.shapes, layout.offsets, strict=False)  # offsets end with d
    }


STRETCH = 1 << 20
"""Coordinates that are worked on at a time, so that what is made meanwhile does not grow with the vector."""


def stretches(index: slice | Tensor, count: int, each: int = 0) -> Iterator[tuple[slice, slice | Tensor]]:
    """Places [0, count) in pieces of `each`, 0: `STRETCH`, with their part of `index`: that many coordinates in order, or such a slice."""
    each = each or STRETCH
    for start in range(0, count, each):
        part = slice(start, min(start + each, count))
        if isinstance(index, slice):
            first = index.start or 0
            yield part, slice(first + part.start, first + part.stop)
        else:
            yield part, index[part]


def blank(count: int, like: Tensor) -> Tensor:
    """Return (count,), zeros of the dtype and the device of `like` that take no memory, and must not be written to."""
    return like.new_zeros(()).expand(count)


def zeros(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros like `like`, of any shape. Many of them on a CPU take memory where they are written to, and until then none."""
    dtype, count = dtype or like.dtype, like.numel()
    if sys.platform != "win32" and like.device.type == "cpu" and count >= STRETCH:
        pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=dtype).view(like.shape)
    return torch.zeros_like(like, dtype=dtype)


def squares(x: Tensor) -> float:
    """Return Σ of the squares of x (k,), in float64, computed in blocks."""
    return sum(float(x[part].double().square().sum()) for part, _ in stretches(slice(None), x.numel()))


def products(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """Return a·b, b·b and a·a of (k,) each, in float64, computed in blocks."""
    found = (0.0, 0.0, 0.0)
    for part, _ in stretches(slice(None), b.numel()):
        x, y = a[part].double(), b[part].double()
        found = (found[0] + float(x @ y), found[1] + float(y @ y), found[2] + float(x @ x))
    return found


def swap(a: Tensor, b: Tensor) -> None:
    """Exchange the numbers of two vectors (d,), which may be one, SAMPLED at a time."""
    for one, other in zip(torch.split(a, SAMPLED), torch.split(b, SAMPLED), strict=True):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def sampled(x: Tensor) -> tuple[Tensor, float]:
    """Return a view of at most SAMPLED coordinates of x (d,), evenly spread, and by what their norm estimates that of all."""
    stride = -(-x.numel() // SAMPLED) | 1  # an odd one falls on all columns of matrices whose widths are powers of two
    part = x[::stride]
    return part, math.sqrt(x.numel() / max(1, part.numel()))


def finite(x: Tensor) -> bool:
    """Tell if all numbers of x, of any shape, are finite. Of a sum that is finite no part is infinite or NaN; else each is looked at.

    The sum is 10 to 40 times as fast as torch.isfinite of each.
    """
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
