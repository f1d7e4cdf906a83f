"""Storage of the moments of Adam's family between steps, in less than float32. A step computes in float32 whatever is stored.

    bfloat16   rounded by chance. To the nearest the second moment would be a ratchet: at beta_2 = .999 it shrinks by a thousandth a step,
               less than half a step of bfloat16, so it could grow and never fall again
    int8       8 bits a number in blocks of `BLOCK` with one scale, on a root scale that leaves small numbers their size: Dettmers et al.
               2022 (arXiv:2110.02861) with that in place of their tables. The least level of a second moment is 1: where it became 0 the
               step would divide by epsilon

Shapes: n numbers, b blocks.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor

from starling.gossip.errors import ConfigError

Moments = Literal["float32", "bfloat16", "int8"]
BLOCK = 256
FAMILY = ("adam", "adamw", "nadam", "radam")
NAMES = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
"""Names of moments in the state of torch's optimisers."""
SCALES = ".scales"
_SQUARED = "_sq"  # suffix of second moments, which are not negative
_TINIEST = 1e-30


class MomentFormat(Protocol):
    """A form in which moments are stored."""

    def forms(self, name: str, count: int) -> Mapping[str, tuple[int, torch.dtype]]:
        """Return lengths and dtypes of the tensors that hold a moment of `count` numbers."""

    def write(self, into: Mapping[str, Tensor], name: str, start: int, values: Tensor, chance: Generator | None) -> None:
        """Store values (n,), float32, as the numbers from `start` on, a multiple of `BLOCK`, in the tensors of `forms`."""

    def read(self, of: Mapping[str, Tensor], name: str, start: int, end: int) -> Tensor:
        """Return the numbers [start, end), float32; a copy unless that is how they are stored."""


class Unchanged:
    """Moments in the form in which a step leaves them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def forms(self, name: str, count: int) -> Mapping[str, tuple[int, torch.dtype]]:
        return {name: (count, self._dtype)}

    def write(self, into: Mapping[str, Tensor], name: str, start: int, values: Tensor, chance: Generator | None) -> None:
        """Copy the values, unless they are views of the tensor."""
        place = into[name][start : start + values.numel()]
        if place.data_ptr() != values.data_ptr():
            place.copy_(values)

    def read(self, of: Mapping[str, Tensor], name: str, start: int, end: int) -> Tensor:
        """Return a view of the numbers."""
        return of[name][start:end]


class Bfloat16:
    """Moments rounded at random to one of the two nearest bfloat16 numbers."""

    def forms(self, name: str, count: int) -> Mapping[str, tuple[int, torch.dtype]]:
        return {name: (count, torch.bfloat16)}

    def write(self, into: Mapping[str, Tensor], name: str, start: int, values: Tensor, chance: Generator | None) -> None:
        """Add random low bits, and truncate."""
        into[name][start : start + values.numel()] = by_chance(values, chance)

    def read(self, of: Mapping[str, Tensor], name: str, start: int, end: int) -> Tensor:
        return of[name][start:end].float()


class Int8:
    """Moments as 8-bit levels of the square root of their share of the block's largest, with one scale per block."""

    def forms(self, name: str, count: int) -> Mapping[str, tuple[int, torch.dtype]]:
        """Return the forms of levels and of scales."""
        levels = torch.uint8 if name.endswith(_SQUARED) else torch.int8
        return {name: (count, levels), name + SCALES: (-(-count // BLOCK), torch.float32)}

    def write(self, into: Mapping[str, Tensor], name: str, start: int, values: Tensor, chance: Generator | None) -> None:
        """Store each value as its nearest level."""
        count, squared = values.numel(), name.endswith(_SQUARED)
        blocks = torch.nn.functional.pad(values, (0, -count % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(1).clamp_min_(_TINIEST)
        levels = (blocks.abs() / scales[:, None]).sqrt_().mul_(255 if squared else 127).round_()
        levels = levels.clamp_min_(1) if squared else levels.mul_(blocks.sign())
        into[name][start : start + count] = levels.view(-1)[:count].to(into[name].dtype)
        first = start // BLOCK
        into[name + SCALES][first : first + scales.numel()] = scales

    def read(self, of: Mapping[str, Tensor], name: str, start: int, end: int) -> Tensor:
        """Return the squares of the levels' shares, times the scales."""
        levels = torch.nn.functional.pad(of[name][start:end].float(), (0, -(end - start) % BLOCK)).view(-1, BLOCK)
        first = start // BLOCK
        shares = levels / (255 if name.endswith(_SQUARED) else 127)
        values: Tensor = shares * shares.abs() * of[name + SCALES][first : first + len(levels), None]
        return values.view(-1)[: end - start]


_KEPT: Mapping[Moments, MomentFormat] = MappingProxyType({"bfloat16": Bfloat16(), "int8": Int8()})


def kept(moments: Moments, optimizer: str) -> MomentFormat | None:
    """Return how an optimiser's moments are stored; None: unchanged. Raises ConfigError: it has no moments for that."""
    if moments == "float32":
        return None
    if optimizer not in FAMILY:
        raise ConfigError(
            f"numerics.moments: {moments} is for the optimisers {', '.join(FAMILY)}, and this swarm's is {optimizer}; leave it out"
        )
    return _KEPT[moments]


def by_chance(values: Tensor, chance: Generator | None) -> Tensor:
    """Map (n,) float32, finite -> bfloat16: one of the two nearest, in expectation the value."""
    noise = torch.randint(0, 1 << 16, values.shape, generator=chance, dtype=torch.int32).to(values.device)
    return ((values.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)
