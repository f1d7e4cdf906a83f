"""A byte budget spent layer by layer, each layer's share by its gain.

Shapes: d parameters, L layers, C options.
"""

import math
from dataclasses import dataclass

import numpy as np

from starling.gossip.api import Quantizer
from starling.gossip.bounds import Bytes
from starling.gossip.compress import codec
from starling.gossip.compress.bit_allocation import least_error
from starling.gossip.compress.header import HEADER, LISTING
from starling.gossip.compress.support import Full, Indices, Support
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import Layout

_FACTORS = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0)
_WELL_SPENT = 0.95  # of the budget
_TRIES = 8  # tries to use the budget well; the cost of indices is known only once they are chosen


def layers_of(layout: Layout) -> tuple[tuple[int, int], ...]:
    """Offset and size of each parameter of a model."""
    ends = layout.offsets[1:]
    return tuple((offset, end - offset) for offset, end in zip(layout.offsets, ends, strict=False) if end > offset)


def listed_size(count: int, dim: int, quantizer: Quantizer) -> int:
    """Bytes of a payload of `count` coordinates, in [1, dim], of (dim,), with indices as spread out as random ones."""
    rest = dim - count
    index_bits = count * math.log2(dim / count) + (rest * math.log2(dim / rest) if rest else 0.0)
    return HEADER.size + LISTING.size + math.ceil(index_bits / 8) + quantizer.size(count)


@dataclass(frozen=True, slots=True)
class Layered:
    """Top-k of each layer, with the k_l that make the sum of the layers' errors ‖x_l − Q(x_l)‖ least.

    A layer's options are half to double its share by size: so the sum is no more than with one ratio for all layers (but for rounding to
    buckets), and no layer gets less than half of that. The rest of the budget goes to the largest coordinates left.
    Norms are added up, not squares, as by L-GreCo: squares would give the top-k of the whole vector.

    Source: L-GreCo, Alimohammadi et al. 2023 (arXiv:2210.17357). Deviations: the errors are of the vector at hand, not of sums of
    gradients; and bytes are the budget.

    Args:
        layers: (offset, size) of each, one after the other from 0 to d.
        budget_bytes: of the payload, header and indices included; at least one coordinate is sent.
        quantizer: of the values.
    """

    layers: tuple[tuple[int, int], ...]
    budget_bytes: Bytes
    quantizer: Quantizer

    def __post_init__(self) -> None:
        end = 0
        for offset, size in self.layers:
            if offset != end or size < 1:
                raise ValueError(f"layers must follow one another from 0 on, got ({offset}, {size}) at {end}")
            end = offset + size
        if not self.layers or self.budget_bytes < 1:
            raise ValueError(f"need a layer and budget_bytes >= 1, got {len(self.layers)}, {self.budget_bytes}")

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """x, reference: (d,) finite -> coordinates of x, or of its change since the reference, within the budget.

        Raises ValueError: the layers are not those of a (d,) vector.
        """
        dim = x.numel()
        if sum(self.layers[-1]) != dim:
            raise ValueError(f"layers end at {sum(self.layers[-1])}, the vector at {dim}")
        if codec.size(Full(), self.quantizer, dim) <= self.budget_bytes:
            return Full()
        magnitude = (x if reference is None else x - reference).abs()
        best, fits, too_many, count = self._spend(magnitude, 1), 1, dim, self._affordable(dim)
        for _ in range(_TRIES):
            support = self._spend(magnitude, count)
            size = codec.size(support, self.quantizer, dim)
            if size <= self.budget_bytes:
                best, fits = support, count
                if size >= _WELL_SPENT * self.budget_bytes:
                    break
            else:
                too_many = count
            if too_many - fits <= 1:
                break
            count = min(max(count * self.budget_bytes // size, fits + 1), too_many - 1)
        return best

    def _affordable(self, dim: int) -> int:
        """Return a first guess of how many coordinates fit; layers make indices cheaper."""
        fits, too_many = 1, dim
        while too_many - fits > 1:
            k = (fits + too_many) // 2
            size = listed_size(k, dim, self.quantizer)
            fits, too_many = (k, too_many) if size <= self.budget_bytes else (fits, k)
        return fits

    def _spend(self, magnitude: Tensor, count: int) -> Indices:
        """`count` coordinates of (d,), shared out among the layers."""
        largest = [magnitude[offset : offset + size].topk(min(size, count)) for offset, size in self.layers]
        sizes = np.array([[size] for _, size in self.layers])
        shares = count * sizes // magnitude.numel()
        options = np.minimum(np.rint(shares * np.array(_FACTORS)).astype(np.int64), np.minimum(sizes, count))
        errors = np.empty(options.shape)
        for layer, ((offset, size), top) in enumerate(zip(self.layers, largest, strict=True)):
            energy = magnitude[offset : offset + size].double().square().sum()
            gained = torch.nn.functional.pad(top.values.double().square().cumsum(0), (1, 0)).cpu()
            errors[layer] = (energy.cpu() - gained[options[layer]]).clamp_min(0.0).sqrt().numpy()
        choice = least_error(errors, options.astype(np.float64), count)
        taken = options[np.arange(len(choice)), list(choice)]
        chosen = [top.indices[:k] + offset for k, top, (offset, _) in zip(taken, largest, self.layers, strict=True)]
        rest = [top.indices[k:] + offset for k, top, (offset, _) in zip(taken, largest, self.layers, strict=True)]
        others = torch.cat(rest)
        filling = magnitude[others].topk(count - int(taken.sum())).indices
        return Indices(torch.cat([*chosen, others[filling]]).sort().values.cpu())
