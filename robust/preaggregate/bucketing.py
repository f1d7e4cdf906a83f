"""Bucketing: before a rule, the peers' vectors are averaged in random buckets. Linear and never stored: `Stack.mixed`.

Shapes: R rows, k peers, m = k + 1 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator
from starling.robust.rules.api import Combination
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Bucketing:
    """The peers' vectors in random order, averaged in buckets of `size` (the last may be smaller). Our own stays by itself.

    It remembers how many rounds there were: the order follows from the seed and that number, and is the same in all rows.

    Source: Karimireddy, He and Jaggi 2022 (arXiv:2006.09365), where our own vector would be in a bucket too.

    Args:
        size: >= 1.
        seed: of the order; whoever knows it can choose its bucket.
    """

    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"bucketing: size must be >= 1, got {self.size}")

    def tolerates(self, rule: Combination, k: int) -> int:
        """What the rule does of so many buckets: a bad one spoils no more than one."""
        return rule.tolerates(-(-k // self.size))

    def start(self, own: Tensor) -> Tensor:
        """Round 0."""
        return own.new_zeros((own.shape[0], 1))

    def prepare(self, stack: Stack, kept: Tensor) -> tuple[Stack, Tensor]:
        """In buckets, and the number of rounds."""
        rounds = [int(turn) for turn in kept[:, 0].tolist()]
        mixing = {turn: self._mixing(stack.count - 1, turn) for turn in set(rounds)}
        return stack.mixed(torch.stack([mixing[turn] for turn in rounds]).to(stack.own.device)), kept + 1

    def _mixing(self, peers: int, turn: int) -> Tensor:
        order = torch.randperm(peers, generator=generator(self.seed, "bucketing", turn))
        buckets = range(0, peers, self.size)
        mixing = torch.zeros((len(buckets) + 1, peers + 1), dtype=torch.float64)
        mixing[0, 0] = 1.0
        for index, first in enumerate(buckets, start=1):
            bucket = order[first : first + self.size]
            mixing[index, bucket + 1] = 1 / len(bucket)
        return mixing
