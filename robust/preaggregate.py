"""Pre-aggregation: linear maps of the vectors before a combining rule, as small matrices for `Stack.mixed`.

Shapes: R rows, k peers, m = k + 1 vectors.
"""

from typing import Annotated

from msgspec import Meta

from starling.gossip.bounds import parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator
from starling.robust.rules.api import OneNumber, Tolerant, check_count
from starling.robust.rules.distances import between, nearest
from starling.robust.rules.stack import Stack


@parameters
class Nnm(Tolerant):
    """Nearest neighbor mixing: every vector becomes the mean of the m − f nearest to it, itself included.

    Source: Allouah et al. 2023, "Fixing by mixing" (arXiv:2302.01772).
    """

    def prepare(self, stack: Stack, state: Tensor) -> tuple[Stack, Tensor]:
        check_count("nnm", self.f, stack.count, 2 * self.f + 1)
        return stack.mixed(neighborly(between(stack.gram()), self.f)), state


def neighborly(distances: Tensor, f: int) -> Tensor:
    """Return (R, m, m), the mixing that makes each vector the mean of its m − f nearest, itself included, f in [0, m).

    Distances (R, m, m) may be monotone functions of these; the diagonal is ignored.
    """
    distances = distances.clone()
    distances.diagonal(dim1=1, dim2=2).fill_(-1.0)  # the vector itself comes first, even if others are equal to it
    count = distances.shape[1] - f
    return nearest(distances, count).double() / count


@parameters
class Bucketing(OneNumber):
    """The peers' vectors in random order, averaged in buckets of `bucket` (the last may be smaller). Our own stays separate.

    The state is the number of rounds: the order follows from it and the seed, and is the same in all rows.

    Source: Karimireddy, He and Jaggi 2022 (arXiv:2006.09365), where our own vector would be in a bucket too.

    Args:
        bucket: vectors of a bucket, >= 1.
        seed: of the order; an attacker that knows it can choose its bucket.
    """

    bucket: Annotated[int, Meta(ge=1, le=16)] = 2
    seed: int = 0

    def prepare(self, stack: Stack, state: Tensor) -> tuple[Stack, Tensor]:
        rounds = [int(number) for number in state[:, 0].tolist()]
        mixing = {number: self._mixing(stack.count - 1, number) for number in set(rounds)}
        return stack.mixed(torch.stack([mixing[number] for number in rounds]).to(stack.own.device)), state + 1

    def _mixing(self, peers: int, number: int) -> Tensor:
        order = torch.randperm(peers, generator=generator(self.seed, "bucketing", number))
        buckets = torch.split(order, self.bucket)
        mixing = torch.zeros((len(buckets) + 1, peers + 1), dtype=torch.float64)
        mixing[0, 0] = 1.0
        for index, bucket in enumerate(buckets, start=1):
            mixing[index, bucket + 1] = 1 / len(bucket)
        return mixing
