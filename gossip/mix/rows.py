"""Numbers stored per node with vectors, and the operations that differ between one vector and the rows of an array.

A number is a float for one vector, which is far faster than a tensor of one number, and a tensor (…, 1) of float64 for an array. Rules are
written once, with these operations; what is done to the vectors themselves is the same call for both.

Shapes: "…" as in `starling.gossip.api`; d parameters, n numbers per node.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeAlias

from starling.gossip.lazy_torch import Tensor, torch

Number: TypeAlias = Any
"""A float, or (…, 1) of them."""
BLOCK = 1 << 15  # coordinates that are worked on at once: six such blocks are in a core's cache, and a call costs less than its work
_DEVICE_BLOCK = 1 << 22  # on an accelerator, where a call takes longer than a block of that size


@dataclass(frozen=True, slots=True)
class Rows:
    """Operations on the numbers of vectors (…, d)."""

    read: Callable[[Tensor], Sequence[Number]]  # (…, n) -> the n numbers of each node
    number: Callable[[Tensor], Number]  # (…) -> a number
    at_least: Callable[[Number, float], Number]
    at_most: Callable[[Number, float], Number]
    finite: Callable[[Number], Any]
    any: Callable[[Number], bool]  # whether any row's number is not 0
    pick: Callable[[Any, Number, Number], Number]  # the first number where something holds, else the second


def _one_of(first: Any, one: Number, other: Number) -> Number:
    return one if first else other


def _each_of(first: Any, one: Number, other: Number) -> Number:
    return torch.where(first, one, other)


ONE = Rows(methodcaller("tolist"), methodcaller("item"), max, min, math.isfinite, bool, _one_of)
"""For one vector."""
MANY = Rows(
    methodcaller("split", 1, -1),
    lambda dots: dots[..., None].double(),
    lambda number, least: number.clamp_min(least),
    lambda number, most: number.clamp_max(most),
    lambda number: torch.isfinite(torch.as_tensor(number)),
    lambda number: bool(number.any()),
    _each_of,
)
"""For the rows of an array."""


def rows_of(x: Tensor) -> Rows:
    """Return the operations for vectors like x."""
    return ONE if x.dim() == 1 else MANY


def numbers(x: Tensor, count: int) -> Tensor:
    """Return zeros (…, n) for `count` numbers beside each vector of x (…, d)."""
    host = x.device.type == "mps"  # a device without float64
    return torch.zeros((*x.shape[:-1], count), dtype=torch.float64, device="cpu" if host else x.device)


def written(values: Sequence[Number], like: Tensor) -> Tensor:
    """Return n numbers of each node as a tensor like (…, n)."""
    if like.dim() == 1:
        return like.new_tensor(values)
    return torch.cat([torch.as_tensor(each, dtype=like.dtype).expand_as(like[..., :1]) for each in values], -1)


def blocks(*vectors: Tensor) -> Iterator[Sequence[Tensor]]:
    """Cut vectors (…, d) into blocks -> a part of each vector; an array is one block."""
    x = vectors[0]
    length = BLOCK if x.device.type == "cpu" else _DEVICE_BLOCK
    if x.dim() > 1 or x.numel() <= length:
        return iter((vectors,))
    return zip(*(torch.split(each, length, -1) for each in vectors), strict=True)
