"""Communication shared by all ranks of an island (`starling.node.extras.islands.island`).

Shapes: d parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from starling.node import platform
from starling.node.engine.numerics import Gradients
from starling.node.tasks.batches import part, samples

TIMEOUT = timedelta(days=365)  # a paused node may compute nothing for hours; the death of a rank is noticed at once


class RankGroup:
    """Communication among all ranks. Construction returns when all ranks are connected."""

    def __init__(self, rank: int, ranks: int, meeting: str, device: str, buffers: Sequence[Tensor]) -> None:
        """`meeting`: a file that does not exist yet; `buffers`: those of the model."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", platform.LOOPBACK)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=TIMEOUT
        )
        dist.barrier()
        self.rank, self.ranks = rank, ranks
        self._order = torch.zeros(2, dtype=torch.int64, device=device)
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)
        self._averaged = [each for each in buffers if each.is_floating_point()]

    def order(self, step: int = 0, seed: int = 0) -> tuple[int, int]:
        """The local step to compute and the seed of its layers, given by rank 0."""
        self._order.copy_(torch.tensor([step, seed]))
        dist.broadcast(self._order, 0)
        given: list[int] = self._order.tolist()
        return given[0], given[1]

    def share(self, x: Tensor) -> None:
        """Broadcast the model (d,) and its buffers."""
        for each in (x, *self._averaged):
            dist.broadcast(each, 0)

    def compute(self, gradients: Gradients, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]) -> float:
        """Compute this rank's part of a batch; at rank 0 return the batch's loss, with its gradient in `gradient` (d,)."""
        count = samples(batch) or 0
        ends = [count * place // self.ranks for place in range(self.ranks + 1)]
        sizes = [end - begin for begin, end in pairwise(ends)]
        parts = [part(batch, begin, end) for begin, end in pairwise(ends)]
        there = [place for place, size in enumerate(sizes) if size]
        shares = gradients.parts.shares(batch, [parts[place] for place in there], [sizes[place] for place in there])
        weight = dict(zip(there, shares, strict=True)).get(self.rank, 0.0)
        self._loss.zero_()
        if weight:
            self._loss += weight * gradients.compute(parts[self.rank], gradient, seed + self.rank, reset)
            gradient.mul_(weight)
        else:
            gradient.zero_()
        dist.reduce(self._loss, 0)
        dist.reduce(gradient, 0)
        for each in self._averaged:
            each.mul_(weight)
            dist.reduce(each, 0)
        return float(self._loss)
