"""Input of all frameworks: the digits cut into shards, a model, and the amount of training.

`scripts/*.py` read the file and know nothing of this project: each is run by the interpreter of its framework's environment.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch

from starling.gossip.rng import generator
from starling.node.config.schema import PartitionSection
from starling.node.tasks.digits import Digits, built_in
from starling.node.tasks.partition import cut


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the run.

    Args:
        nodes: how many train; the data are cut into as many shards.
        rounds: how often models are averaged.
        local_steps: SGD steps of a node between two averages.
        lr, momentum, batch: of SGD.
        alpha: of the Dirichlet law by which classes are dealt to shards.
        seed: of the cut and of the first model.
    """

    nodes: int = 4
    rounds: int = 40
    local_steps: int = 10
    lr: float = 0.05
    momentum: float = 0.9
    batch: int = 32
    alpha: float = 0.3
    seed: int = 0

    def write(self, path: Path) -> None:
        """Write an .npz: x0, y0, x1 …, the test split, the six arrays of a 64-64-10 network, and the numbers above as JSON."""
        train, test = built_in()
        parts = cut(PartitionSection(kind="dirichlet", alpha=self.alpha, shards=self.nodes), len(train.y), self.seed, labels=train.y)
        shards = {f"{name}{shard}": array[rows] for shard, rows in enumerate(parts) for name, array in (("x", train.x), ("y", train.y))}
        model = Digits().model(generator(self.seed, "init"))
        first = {f"w{number}": weight.detach().numpy() for number, weight in enumerate(model.parameters())}
        settings = np.frombuffer(msgspec.json.encode(self), dtype=np.uint8)
        np.savez(path, **shards, **first, test_x=test.x, test_y=test.y, settings=settings)

    def bytes_of_parameters(self) -> int:
        """Return the bytes of one dense float32 model."""
        return 4 * sum(parameter.numel() for parameter in Digits().model(torch.Generator()).parameters())
