"""Selectors that come near top-k for less: a threshold estimated on a sample, and top-k chunk by chunk.

Both give the same support on every device: equal magnitudes are kept together or in order of index. `contraction` holds for every vector.

Shapes: d parameters, k kept coordinates.
"""

import operator
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from starling.gossip.bounds import parameters
from starling.gossip.compress import topk
from starling.gossip.compress.select.coordinates import TopK, kept, largest
from starling.gossip.compress.support import Full, Indices, Support
from starling.gossip.compress.topk import Magnitudes
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.seeds import derive

_SAMPLE = 0.01  # share of the coordinates looked at for the threshold …
_ABOVE = 256  # … or enough that this many of them are above it: the rank is then known within ± 6 %, one standard deviation
_FEWEST, _MOST = 0.8, 1.3  # of k
_LOWER = 0.8
_ATTEMPTS = 10
_WORTH_SORTING = 4  # times k: with more survivors the estimate is useless
_AT_ONCE = {"cpu": 1 << 18}  # coordinates: temporaries stay in cache
_AT_ONCE_ELSEWHERE = 1 << 24  # an accelerator would wait for each piece


@dataclass(frozen=True, slots=True)
class SampledTopK(TopK):
    """All coordinates above a threshold estimated from a sample to be near the k-th largest: between .8 k and 1.3 k, k = ⌈ratio·d⌉.

    If more survive, the k largest survivors are taken; if fewer, the threshold falls by a fifth, ten times at most, and then the choice
    is exact. So what is taken is always the largest there is, and no shorter than promised. The sample is every s-th coordinate, s odd,
    from a start that the seed gives: layer widths are even, so no column is sampled alone.

    Source: Lin et al. 2018, Deep Gradient Compression (arXiv:1712.01887), section 3, with the limits of its published code. Deviations:
    the sample holds 256 coordinates above the threshold where the code's fixed 1 % may hold none, and a surplus below 1.3 k is sent,
    not cut off by index.
    """

    def contraction(self, dim: int) -> float:
        """Return δ = .8 k/d."""
        k = kept(self.ratio, dim)
        return 1.0 if k == dim else kept(_FEWEST, k) / dim

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> nearly the k largest of x, or of its difference from the reference."""
        dim = x.numel()
        k = kept(self.ratio, dim)
        if k == dim:
            return Full()
        stride = max(1, int(dim / max(_SAMPLE * dim, _ABOVE / self.ratio)))
        stride -= 1 - stride % 2
        magnitudes = Magnitudes(x, reference)
        sample = magnitudes.part(slice(derive(seed, "sampled_top_k", turn) % stride, None, stride))
        threshold = float(sample.topk(max(1, round(k / dim * sample.numel())), sorted=False).values.min())
        for _ in range(_ATTEMPTS):
            found = magnitudes.above(threshold, _WORTH_SORTING * k, operator.ge)
            if found is None:
                break
            survivors, values = found
            if survivors.numel() > _MOST * k:
                best = topk.largest(values, k)
                return Indices(survivors[best].cpu())
            if survivors.numel() >= _FEWEST * k:
                return Indices(survivors.cpu())
            threshold *= _LOWER
        return largest(x, k, reference)


@parameters
class ChunkTopK(TopK):
    """The k' = ⌈ratio·chunk⌉ largest of every chunk of neighbours: always equally many, without a sort of the whole vector.

    Layers of small values get their share too: where layers differ in scale it keeps less of ‖x‖² than top-k, but never less than k/d.

    Source: the lemma of TopK chunk by chunk; chunks as in Peng, Quesnelle and Kingma 2024 (arXiv:2411.19870).

    Args:
        chunk: coordinates in a chunk, 64 to 4,096; the last one may be shorter. Short ones round k' up by much: one of 64 in every
            chunk is 1.6 %.
    """

    chunk: Annotated[int, Meta(ge=64, le=4096)] = 4096

    def contraction(self, dim: int) -> float:
        """Return δ: the smallest share that a chunk keeps."""
        return least_share(self.ratio, self.chunk, dim)

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> of every chunk the largest of x, or of its difference from the reference."""
        indices = largest_of_chunks(x if reference is None else x - reference, self.chunk, self.ratio)
        return Full() if indices.numel() == x.numel() else Indices(indices.cpu())


def least_share(ratio: float, chunk: int, dim: int) -> float:
    """Return the smallest share ⌈ratio·length⌉/length of the chunks of a (dim,) vector; the last chunk may be short."""
    lengths = {min(chunk, dim), dim % chunk or chunk}
    return min(kept(ratio, length) / length for length in lengths)


def largest_of_chunks(x: Tensor, chunk: int, ratio: float) -> Tensor:
    """Return the places of the ⌈ratio·length⌉ largest |x| (d,) of each chunk: int64 on x's device, ascending; of equal ones the first."""
    dim = x.numel()
    whole, each = 0 if chunk >= dim else dim - dim % chunk, kept(ratio, chunk)
    step = max(_AT_ONCE.get(x.device.type, _AT_ONCE_ELSEWHERE) // chunk, 1) * chunk
    found = [_largest_of_rows(x[start : min(start + step, whole)].abs().view(-1, chunk), each) + start for start in range(0, whole, step)]
    if whole < dim:
        found.append(topk.largest(x[whole:], kept(ratio, dim - whole)) + whole)
    return torch.cat(found)


def _largest_of_rows(magnitude: Tensor, k: int) -> Tensor:
    """Map (r, c) -> flat places (r·k,) of each row's k largest, ascending."""
    threshold = magnitude.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    chosen = magnitude >= threshold
    if int(chosen.sum()) > k * len(magnitude):  # ties
        above = magnitude > threshold
        ties = chosen & ~above
        chosen = above | (ties & (ties.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return chosen.view(-1).nonzero().view(-1)
