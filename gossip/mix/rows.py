"""Numbers kept per node beside vectors, and the operations that differ between one vector and the rows of an array.

A number is a float for one vector, which is far faster than a tensor of one number, and a tensor (…, 1) of float64 for an array. Rules are
written once, with these operations; what is done to the vectors themselves is the same call for both.

Shapes: "…" as in `starling.gossip.api`; d parameters, n numbers per node, w coordinates of a block.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, cast

from starling.gossip.lazy_torch import Tensor, torch

Number: TypeAlias = Any
"""A float, or (…, 1) of them."""
BLOCK = (
    1 << 15
)  # coordinates that are worked on at once: six such blocks are in a core's cache, and a call costs less than its work
TURNS = 4  # local steps in which each block of a long vector is compared once
_DEVICE_BLOCK = 1 << 22  # elsewhere than on a CPU, where a call takes longer than a block of the above


class Rows(Protocol):
    """Operations for vectors (…, d)."""

    def read(self, kept: Tensor) -> Sequence[Number]:
        """Return the n numbers kept of each node in (…, n)."""

    def written(self, numbers: Sequence[Number], like: Tensor) -> Tensor:
        """Return n numbers of each node as a tensor like (…, n)."""

    def dot(self, a: Tensor, b: Tensor) -> Number:
        """Return the inner product of each row."""

    def add(self, into: Tensor, x: Tensor, factor: Number) -> None:
        """Add a multiple of each row of x to `into`, in place."""

    def factor(self, number: Number, like: Tensor, /) -> float | Tensor:
        """Return a number as what vectors like (…, d) can be multiplied by."""

    def at_least(self, number: Number, least: float) -> Number:
        """Return the larger of both."""

    def at_most(self, number: Number, most: float) -> Number:
        """Return the smaller of both."""

    def root(self, number: Number) -> Number:
        """Return the square root."""

    def finite(self, number: Number) -> Any:
        """Return whether it is neither infinite nor NaN."""

    def pick(self, first: Any, one: Number, other: Number) -> Number:
        """Return one number where `first` holds, else the other."""

    def any(self, number: Number) -> bool:
        """Return whether the number of any row is not 0."""


class One:
    """Operations for one vector (d,)."""

    at_least, at_most, root, finite, any = staticmethod(max), staticmethod(min), math.sqrt, math.isfinite, bool

    @staticmethod
    def read(kept: Tensor) -> list[float]:
        """Return the numbers as floats."""
        numbers: list[float] = kept.tolist()
        return numbers

    @staticmethod
    def written(numbers: Sequence[float], like: Tensor) -> Tensor:
        """Return floats as a tensor."""
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)

    @staticmethod
    def dot(a: Tensor, b: Tensor) -> float:
        """Return the inner product."""
        return float(torch.dot(a, b))

    @staticmethod
    def add(into: Tensor, x: Tensor, factor: float) -> None:
        """Add a multiple of x."""
        into.add_(x, alpha=factor)

    @staticmethod
    def factor(number: float, _like: Tensor, /) -> float:
        """Return the number."""
        return number

    @staticmethod
    def pick(first: bool, one: float, other: float) -> float:
        """Return one of both."""
        return one if first else other


class Many:
    """Operations for the rows of an array (…, d)."""

    @staticmethod
    def read(kept: Tensor) -> Sequence[Tensor]:
        """Return each number of all rows."""
        return torch.split(kept, 1, -1)

    @staticmethod
    def written(numbers: Sequence[Number], like: Tensor) -> Tensor:
        """Return the numbers side by side."""
        return torch.cat([torch.as_tensor(each, dtype=like.dtype).expand_as(like[..., :1]) for each in numbers], -1)

    @staticmethod
    def dot(a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product of each row."""
        products: Tensor = torch.linalg.vecdot(a, b)[..., None].double()
        return products

    @staticmethod
    def add(into: Tensor, x: Tensor, factor: Tensor) -> None:
        """Add a multiple of each row."""
        into.addcmul_(x, factor.to(x.dtype))

    @staticmethod
    def factor(number: Tensor, like: Tensor, /) -> Tensor:
        """Return the numbers in the dtype of the vectors."""
        return number.to(like.dtype)

    @staticmethod
    def at_least(number: Tensor, least: float) -> Tensor:
        """Return the larger of both for each row."""
        return number.clamp_min(least)

    @staticmethod
    def at_most(number: Tensor, most: float) -> Tensor:
        """Return the smaller of both for each row."""
        return number.clamp_max(most)

    @staticmethod
    def root(number: Tensor) -> Tensor:
        """Return the square root for each row."""
        return number.sqrt()

    @staticmethod
    def finite(number: Number) -> Tensor:
        """Return whether each is finite."""
        return torch.isfinite(torch.as_tensor(number))

    @staticmethod
    def pick(first: Tensor, one: Number, other: Number) -> Tensor:
        """Return one of both for each row."""
        picked: Tensor = torch.where(first, one, other)
        return picked

    @staticmethod
    def any(number: Tensor) -> bool:
        """Return whether any is not 0."""
        return bool(number.any())


ONE, MANY = cast("Rows", One()), cast("Rows", Many())


def rows_of(x: Tensor) -> Rows:
    """Return the operations for vectors like x."""
    return ONE if x.dim() == 1 else MANY


def numbers(x: Tensor, count: int) -> Tensor:
    """Return zeros (…, n) for `count` numbers beside each vector of x (…, d)."""
    host = x.device.type == "mps"  # which knows no float64
    return torch.zeros((*x.shape[:-1], count), dtype=torch.float64, device="cpu" if host else x.device)


def any_of(some: Tensor) -> bool:
    """Return whether one of (…, 1) bool is true."""
    return bool(some if some.dim() == 1 else some.any())


def parts(x: Tensor, length: int) -> Sequence[Tensor]:
    """Return views of x (…, d), blocks of this length in order, of which the last may be shorter."""
    return (x,) if x.shape[-1] <= length else torch.split(x, length, -1)


def cut(scratch: Tensor, like: Tensor) -> Tensor:
    """Return as much of scratch (…, n) as `like` (…, w), w <= n, is long."""
    width = like.shape[-1]
    return scratch if scratch.shape[-1] == width else scratch[..., :width]


def blocks(x: Tensor, step: int | None) -> tuple[int, Iterator[bool], int]:
    """Return how long blocks of x (…, d) are, of each in order whether it is compared, and how many times those that are stand for all.

    In local step `step` every fourth block of a long vector is compared, each in its turn; None: all of them are, and all of an array.
    """
    dim = x.shape[-1]
    if x.dim() > 1:
        return dim, iter((True,)), 1
    length = min(dim, BLOCK if x.device.type == "cpu" else _DEVICE_BLOCK)
    count = -(-dim // length)
    turns = 1 if step is None else min(TURNS, count)
    due = 0 if step is None else step % turns
    return length, (number % turns == due for number in range(count)), turns
