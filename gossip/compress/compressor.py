"""A compressor Q for use in an algorithm or a proof: select, quantise, put back. No wire: a library class that nodes do not use.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starling.gossip.api import Quantizer, Selector
from starling.gossip.lazy_torch import Generator, Tensor, torch


class ContractiveSelector(Selector, Protocol):
    """A selector that says how much of ‖x‖² it keeps."""

    def contraction(self, dim: int) -> float:
        """Least share kept."""
        ...


class BoundedQuantizer(Quantizer, Protocol):
    """A quantizer that says how much of ‖x‖² its error can be."""

    @property
    def omega(self) -> float:
        """Bound of the relative squared error, < 1."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """First select, then quantise what was selected, e.g. `Chain(TopK(0.01), Int8())`.

    The error is ‖x‖² − ‖x_S‖² outside the support and at most omega·‖x_S‖² on it, hence δ = δ_S·(1 − omega).

    Args:
        selector: sees no reference; its seed is drawn.
        quantizer: omega < 1.
    """

    selector: ContractiveSelector
    quantizer: BoundedQuantizer

    def __post_init__(self) -> None:
        if not self.quantizer.omega < 1.0:
            raise ValueError(f"quantizer must have omega < 1 to be a contraction, got {self.quantizer.omega}")

    def contraction(self, dim: int) -> float:
        """δ of the two together."""
        return self.selector.contraction(dim) * (1.0 - self.quantizer.omega)

    def compress(self, x: Tensor, generator: Generator) -> Tensor:
        """x: (d,) finite -> Q(x): (d,), in the support's subspace."""
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        support = self.selector.select(x, None, seed, 0)
        values = support.take(x)
        decoded = self.quantizer.decode(self.quantizer.encode(values, generator), values.numel())
        return support.add(torch.zeros_like(x), decoded.to(x))
