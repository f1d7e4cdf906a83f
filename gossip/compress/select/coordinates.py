"""Selectors: which coordinates an exchange is about.

`contraction` is the share of ‖x‖² the selected coordinates hold at least: for every vector, or in expectation over the seed for Mask.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.gossip.compress.header import BLOCK
from starling.gossip.compress.support import Blocks, Full, Indices, Support, blocks_in
from starling.gossip.compress.topk import largest
from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class Everything:
    """The whole vector."""

    def contraction(self, dim: int) -> float:
        """δ."""
        return 1.0

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,) -> all of it."""
        return Full()


@dataclass(frozen=True, slots=True)
class Mask:
    """A rolling seeded mask of whole blocks: no index bytes, and each coordinate's turn comes once per 1/ratio exchanges.

    Args:
        ratio: share of the blocks in one exchange, in (0, 1]; rounded up to whole blocks.
        block: coordinates in a block. Small vectors may want fewer than the default.
    """

    ratio: float
    block: int = BLOCK

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if not 1 <= self.block < 2**16:
            raise ValueError(f"block must be in [1, 65535], got {self.block}")

    def contraction(self, dim: int) -> float:
        """δ = share of the blocks, in expectation over the seed."""
        blocks = blocks_in(dim, self.block)
        return kept(self.ratio, blocks) / blocks

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,), of which only the length is used -> the blocks of this turn."""
        blocks = blocks_in(x.numel(), self.block)
        count = kept(self.ratio, blocks)
        return Full() if count == blocks else Blocks(seed, turn * count % blocks, count, self.block)


@dataclass(frozen=True, slots=True)
class TopK:
    """The k = ⌈ratio·d⌉ coordinates of largest magnitude, exactly; of equal ones the lowest index.

    Source: Stich, Cordonnier and Jaggi 2018, Lemma A.1 (arXiv:1809.07599): δ = k/d for every vector.

    Args:
        ratio: share of the coordinates, in (0, 1].
    """

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def contraction(self, dim: int) -> float:
        """δ = k/d."""
        return kept(self.ratio, dim) / dim

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x: (d,) finite -> the largest of it."""
        return _largest(x, None, kept(self.ratio, x.numel()))


@dataclass(frozen=True, slots=True)
class DriftTopK:
    """The k = ⌈ratio·d⌉ coordinates that moved most since the last exchange with this peer.

    Below a ratio of some 5 % it beats a mask of equal bytes. A peer never met counts as met at zero: the first exchange
    is about the largest coordinates. Source: as TopK, of x − reference.

    Args:
        ratio: share of the coordinates, in (0, 1].
    """

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def contraction(self, dim: int) -> float:
        """δ = k/d of ‖x − reference‖²."""
        return kept(self.ratio, dim) / dim

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> where they differ most."""
        return _largest(x, reference, kept(self.ratio, x.numel()))


def with_wish(support: Indices, wish: Indices, limit: int) -> Indices:
    """Our coordinates and those the other end asked for, at most `limit` of them.

    Ours come first. If not all wished ones fit, they are thinned evenly, because a list of indices no longer says which matter most.

    Args:
        support: ours, at most `limit`.
        wish: the other end's, from its last response.
        limit: >= size of `support`.
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


def check_ratio(ratio: float) -> None:
    """Raises ValueError unless ratio is in (0, 1]."""
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio must be in (0, 1], got {ratio}")


def _largest(x: Tensor, reference: Tensor | None, count: int) -> Support:
    """Where |x − reference| (d,) is largest, in `count` places."""
    return Full() if count == x.numel() else Indices(largest(x, count, reference).cpu())
