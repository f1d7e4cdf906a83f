"""Selectors: which coordinates an exchange contains.

Those that look for what is large get the vector itself where a message is sent, which shrinks by what was sent. Where both ends move by
their difference they get a reference as well, what was last known of the peer's vector, and look at the difference from that: the vector
itself stays large where it is, however often it is sent.

`contraction` is the least share of ‖x‖² in the selected coordinates: for every vector, or in expectation over the seed for masks.

Shapes: d parameters, k kept coordinates.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from starling.gossip.bounds import PositiveShare, parameters
from starling.gossip.compress import topk
from starling.gossip.compress.header import BLOCK
from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support, blocks_in, most_blocks
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.seeds import derive


@dataclass(frozen=True, slots=True)
class Everything:
    """The whole vector."""

    def contraction(self, dim: int) -> float:
        """Return δ = 1."""
        return 1.0

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """Return the support of all of x (d,)."""
        return Full()


@parameters
class TopK:
    """The k = ⌈ratio·d⌉ coordinates of largest magnitude, exactly; of equal ones the lowest index.

    Source: Stich, Cordonnier and Jaggi 2018, Lemma A.1 (arXiv:1809.07599): δ = k/d for every vector.

    Args:
        ratio: share of the coordinates, in (0, 1].
    """

    ratio: PositiveShare = 0.1

    def contraction(self, dim: int) -> float:
        """Return δ = k/d."""
        return kept(self.ratio, dim) / dim

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> the largest of x, or of its difference from the reference."""
        return largest(x, kept(self.ratio, x.numel()), reference)


@parameters
class Mask(TopK):
    """A rolling seeded mask of whole blocks: no index bytes, and each coordinate is sent once per 1/ratio exchanges.

    Args:
        ratio: share of the blocks in one exchange, in (0, 1]; rounded up to whole blocks.
        block: coordinates in a block. Small vectors may want fewer than the default.
    """

    block: Annotated[int, Meta(ge=1, lt=2**16)] = BLOCK

    def contraction(self, dim: int) -> float:
        """δ = share of the blocks, in expectation over the seed."""
        return TopK.contraction(self, blocks_in(dim, self.block))

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,), of which only the length is used -> the blocks of this turn."""
        blocks = blocks_in(x.numel(), self.block)
        count = kept(self.ratio, blocks)
        return Full() if count == blocks else Blocks(seed, turn * count % blocks, count, self.block)


@parameters
class Fragments:
    """One fragment of the vector after another, each in its own exchange.

    Every edge begins at a part of its own, so that a node's exchanges of one round are about different parts. On an edge each part is
    exchanged once before any is twice; an exchange that is given up costs its part a cycle.

    Source: the schedule of Streaming DiLoCo, Douillard et al. 2025 (arXiv:2501.18512), whose fragments are sets of layers. Deviation: here
    they are of equal length, wherever layers end, so that no exchange takes more than another.

    Args:
        parts: stretches that the vector travels in, at most its parameters.
    """

    parts: Annotated[int, Meta(ge=2, lt=2**16)] = 8

    def contraction(self, dim: int) -> float:
        """δ = 1/parts, in expectation over the seed; at least (d/parts − 1)/d for the shortest part."""
        return dim // self.parts / dim

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,), of which only the length is used -> the part of this turn."""
        return Fragment((seed + turn) % self.parts, self.parts)


@dataclass(frozen=True, slots=True)
class RandomK(TopK):
    """A fresh draw without replacement in each exchange, rebuilt from its seed: no index bytes.

    Scaled by d/k it is unbiased with ω = d/k − 1. `Mask` varies less for the same bytes; this one is for comparison with the literature.
    Deviation: above 65,536 parameters it draws short blocks of neighbours, of 64 at most, because both ends would have to sort a
    permutation of all coordinates in every exchange.

    Source: Stich, Cordonnier and Jaggi 2018, Lemma A.1 (arXiv:1809.07599).
    """

    def contraction(self, dim: int) -> float:
        """Return δ = k/d, in expectation over the seed."""
        return TopK.contraction(self, blocks_in(dim, finest_block(dim)))

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,), of which only the length is used -> what this turn draws."""
        block = finest_block(x.numel())
        blocks = blocks_in(x.numel(), block)
        count = kept(self.ratio, blocks)
        return Full() if count == blocks else Blocks(derive(seed, "random_k", turn), 0, count, block)


@parameters
class Cocktail:
    """The largest coordinates inside a rolling seeded mask.

    The mask spreads the exchanges over the whole vector, and k coordinates out of a mask take fewer index bits than out of everything.
    Deviation: coordinates are listed, in the code of clustered lists, where the published code sends a bitmap over the mask: 4.1 bits
    for each at the defaults against 5.

    Source: Wang et al. 2023, CocktailSGD (ICML 2023, PMLR 202:36058), whose 4-bit setting is ratio = 0.02 with keep = 0.2.

    Args:
        ratio: share of the coordinates in one exchange, in (0, keep].
        keep: share of the mask's coordinates that is kept, in (0, 1]; the mask covers ratio/keep of the vector.
    """

    ratio: PositiveShare = 0.1
    keep: PositiveShare = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.ratio <= self.keep:
            raise ValueError(f"ratio must be in (0, keep = {self.keep:g}], got {self.ratio}")

    def contraction(self, dim: int) -> float:
        """δ = keep times the mask's share, in expectation over the seed."""
        return self.keep * self._mask.contraction(dim)

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> of this turn's blocks the largest of x, or of its difference from the reference."""
        mask = self._mask.select(x, None, seed, turn)
        known = None if reference is None else mask.take(reference)
        inside = largest(mask.take(x), kept(self.keep, mask.size(x.numel())), known)
        match mask, inside:
            case (_, Full()):
                return mask
            case (Full(), _):
                return inside
            case (Blocks(), Indices()):
                return Indices(mask.index(x.numel())[inside.indices])
        raise AssertionError("TopK selects listed coordinates or all")

    @property
    def _mask(self) -> Mask:
        return Mask(self.ratio / self.keep, BLOCK)


def with_wish(support: Indices, wish: Indices, limit: int) -> Indices:
    """Return our coordinates, at most `limit`, and those the other end asked for by its last response, at most `limit` in all.

    Ours come first. If not all wished ones fit, they are thinned evenly: a list of indices has no order of importance.
    """
    own = support.indices
    if own.numel() > limit:
        raise ValueError(f"limit must be >= {own.numel()}, the support's size, got {limit}")
    extra = wish.indices[~torch.isin(wish.indices, own)]
    room = min(limit - own.numel(), extra.numel())
    thinned = extra[torch.arange(room) * extra.numel() // max(room, 1)]
    return Indices(torch.cat([own, thinned]).sort().values)


def kept(ratio: float, total: int) -> int:
    """⌈ratio·total⌉, at least 1; a product that is an integer but for rounding counts as that integer."""
    return max(1, math.ceil(ratio * total * (1 - 1e-12)))


def largest(x: Tensor, count: int, reference: Tensor | None = None) -> Support:
    """Return the `count` coordinates where |x − reference| (d,) is largest."""
    return Full() if count == x.numel() else Indices(topk.largest(x, count, reference).cpu())


def finest_block(dim: int) -> int:
    """Coordinates in the shortest block that a payload may cut a (dim,) vector into, at most 64."""
    return -(-dim // most_blocks(dim))
