"""Selectors that draw coordinates: random-k, and top-k among coordinates that were drawn.

`contraction` holds in expectation over the seed.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.compress.header import BLOCK
from starling.gossip.compress.select.coordinates import Mask, TopK, check_ratio, kept
from starling.gossip.compress.support import Blocks, Full, Indices, Support, blocks_in, most_blocks
from starling.gossip.lazy_torch import Tensor
from starling.gossip.seeds import derive


@dataclass(frozen=True, slots=True)
class RandomK:
    """A fresh draw without replacement in each exchange, rebuilt from its seed: no index bytes.

    Scaled by d/k it is unbiased with ω = d/k − 1. `Mask` visits every coordinate before any twice and so varies less for the same bytes:
    this one is for comparison with the literature. Deviation: above 65,536 parameters it draws short blocks of neighbours, of 64 at
    most, because both ends would have to sort a permutation of all coordinates in every exchange.

    Source: Stich, Cordonnier and Jaggi 2018, Lemma A.1 (arXiv:1809.07599).

    Args:
        ratio: share of the coordinates, in (0, 1].
    """

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def contraction(self, dim: int) -> float:
        """δ = k/d, in expectation over the seed."""
        blocks = blocks_in(dim, finest_block(dim))
        return kept(self.ratio, blocks) / blocks

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,), of which only the length is used -> what this turn draws."""
        block = finest_block(x.numel())
        blocks = blocks_in(x.numel(), block)
        count = kept(self.ratio, blocks)
        return Full() if count == blocks else Blocks(derive(seed, "random_k", turn), 0, count, block)


@dataclass(frozen=True, slots=True)
class Cocktail:
    """The largest coordinates inside a rolling seeded mask.

    The mask spreads the exchanges over the whole vector, top-k spends them on what matters, and k coordinates out of a mask take fewer
    bits to name than out of everything. Deviation: coordinates are listed, in the code of clustered lists, where the published code
    sends a bitmap over the mask: 4.1 bits for each at the defaults against 5.

    Source: Wang et al. 2023, CocktailSGD (ICML 2023, PMLR 202:36058), whose 4-bit setting is ratio = 0.02 with keep = 0.2.

    Args:
        ratio: share of the coordinates in one exchange, in (0, keep].
        keep: share of the mask's coordinates that is kept, in (0, 1]; the mask covers ratio/keep of the vector.
    """

    ratio: float
    keep: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.keep <= 1.0:
            raise ValueError(f"keep must be in (0, 1], got {self.keep}")
        if not 0.0 < self.ratio <= self.keep:
            raise ValueError(f"ratio must be in (0, keep = {self.keep:g}], got {self.ratio}")

    def contraction(self, dim: int) -> float:
        """δ = keep times the mask's share, in expectation over the seed."""
        return self.keep * self._mask.contraction(dim)

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,) finite -> the largest of this turn's blocks."""
        mask = self._mask.select(x, None, seed, turn)
        inside = TopK(self.keep).select(mask.take(x), None, seed, turn)
        match mask, inside:
            case (_, Full()):
                return mask
            case (Full(), _):
                return inside
            case (Blocks(), Indices()):
                return Indices(mask.index(x.numel())[inside.indices])
        raise AssertionError("TopK lists coordinates or takes them all")

    @property
    def _mask(self) -> Mask:
        return Mask(self.ratio / self.keep, BLOCK)


def finest_block(dim: int) -> int:
    """Coordinates in the shortest block that a payload may cut a (dim,) vector into, at most 64."""
    return -(-dim // most_blocks(dim))
