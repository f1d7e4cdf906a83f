"""Common code of all runs: the world as tensors, its model, steps and score. Needs only torch and NumPy."""

import json
import sys
import time

import numpy as np
import torch

torch.set_num_threads(1)


class World:
    """The file that `benchmarks.peers.world` wrote; its numbers are attributes."""

    def __init__(self, path: str) -> None:
        self._arrays = np.load(path)
        self.path = path
        self.__dict__.update(json.loads(self._arrays["settings"].tobytes()))

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._arrays[name].copy())

    def shard(self, node: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensor(f"x{node}"), self.tensor(f"y{node}")

    def model(self) -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        with torch.no_grad():
            for number, weight in enumerate(model.parameters()):
                weight.copy_(self.tensor(f"w{number}"))
        return model

    def sgd(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    def batches(self, node: int, start: int = 0):
        """Yield (x, y) endlessly, drawn with replacement, equal for equal arguments."""
        x, y = self.shard(node)
        chance = torch.Generator().manual_seed(1_000_000 * self.seed + 1000 * node + start)
        while True:
            rows = torch.randint(len(y), (self.batch,), generator=chance)
            yield x[rows], y[rows]

    def accuracy(self, model: torch.nn.Module) -> float:
        with torch.no_grad():
            return (model(self.tensor("test_x")).argmax(1) == self.tensor("test_y")).float().mean().item()


def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss(model, batch).backward()
    optimizer.step()


def ended(values: list[float], began: float, **more: object) -> None:
    """Print the last line of a run: the accuracy of each final model."""
    print(json.dumps({"values": values, "seconds": time.monotonic() - began, **more}), flush=True)


def world() -> World:
    return World(sys.argv[1])
