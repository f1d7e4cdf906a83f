"""Sketches of long vectors of which only directions are compared: count sketches.

The cosine of two sketches of s buckets is that of the vectors to about 1/√s: 1.6 % for 4096. Sketches are linear, so they can be added. An
attacker that knows the seed can make clones look slightly different: a component along the signs of one bucket is √(d/s) times as long in
the sketch.

Shapes: d parameters, s = BUCKETS.

Source: Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams".
"""

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator

BUCKETS = 4096
CHUNK = 1 << 18  # coordinates hashed at once
_CUT = 1e17


def sketch(x: Tensor, seed: int, buckets: int = BUCKETS, origin: Tensor | None = None) -> Tensor:
    """Count sketch (…, d), finite -> (…, buckets) float32: each coordinate is added with a random sign to a random bucket. Linear in x.

    `origin` (d,) is subtracted from x first, with differences clamped to ±1e17. Only sketches of equal seeds are comparable.
    """
    counts = x.new_zeros((*x.shape[:-1], buckets), dtype=torch.float32)
    for number, values in enumerate(torch.split(x, CHUNK, dim=-1)):
        chunk = values if origin is None else difference(values, origin[number * CHUNK : (number + 1) * CHUNK])
        source = generator(seed, "sketch", number)
        bucket = torch.randint(buckets, (chunk.shape[-1],), generator=source).to(x.device)
        sign = torch.randint(2, (chunk.shape[-1],), generator=source).to(x.device) * 2.0 - 1.0
        counts.index_add_(-1, bucket, chunk.to(torch.float32) * sign)
    return counts


def difference(x: Tensor, origin: Tensor) -> Tensor:
    """X − origin, clamped to ±1e17 so that sums of squares stay finite."""
    return (x - origin).clamp_(-_CUT, _CUT)
