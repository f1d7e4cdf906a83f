"""Two players on every node: a game whose saddle is known, and training against an adversary.

A task's loss is descended along all parameters. Whoever ascends does so by the sign of its part: `versus`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from starling.gossip.rng import generator as derived
from starling.node.tasks.api import Source
from starling.node.tasks.digits import Digits


def versus(value: Tensor, *, minus: Tensor) -> Tensor:
    """A number equal to `value` whose gradient is that of `value` − `minus`: minimised by the one player, maximised by the other."""
    return value.detach() + (value - value.detach()) - (minus - minus.detach())


@dataclass(frozen=True)
class Play:
    """x'My + a'x − b'y + mu/2 (‖x‖² − ‖y‖²) of one node, or of the mean of all; `saddle` (2p,) is that of the mean."""

    M: Tensor
    a: Tensor
    b: Tensor
    mu: float
    saddle: Tensor
    samples: int = 1

    def batch(self, size: int, generator: Generator) -> "Play":
        return self

    def held_out(self, size: int) -> Iterator["Play"]:
        yield self

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ self.M @ y + self.a @ x - self.b @ y + self.mu / 2 * (x @ x - y @ y)


class Players(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.x, self.y = (nn.Parameter(torch.zeros(size, dtype=torch.float64)) for _ in range(2))


@dataclass(frozen=True)
class Bilinear:
    """min over x, max over y of the mean of all nodes' games; the error is ‖z − z*‖²/‖z*‖², z = (x, y).

    Args:
        nodes: as many as there are shards.
        size: unknowns of each player.
        mu: curvature of both, 0 for a bilinear game.
        spread: how much nodes' games differ.
    """

    nodes: int = 16
    size: int = 40
    mu: float = 0.0
    spread: float = 1.0
    metric = "error"
    higher_is_better = False

    def model(self, generator: Generator) -> nn.Module:
        return Players(self.size)

    def data(self, source: Source, device: str) -> Play:
        chance, p, n = derived(source.seed, "game"), self.size, self.nodes
        u, v = (torch.linalg.qr(_normal(chance, p, p))[0] for _ in range(2))
        common = u @ torch.diag(torch.linspace(0.3, 1, p, dtype=torch.float64)) @ v
        other = _normal(chance, n, p, p) / p**0.5
        M = common + self.spread * 0.3 * (other - other.mean(0))
        a, b = (_normal(chance, p) + self.spread * _normal(chance, n, p) for _ in range(2))
        field = torch.cat([torch.cat([self.mu * torch.eye(p), M.mean(0)], 1), torch.cat([-M.mean(0).T, self.mu * torch.eye(p)], 1)])
        saddle = torch.linalg.solve(field.double(), -torch.cat([a.mean(0), b.mean(0)]))
        return Play(M[source.shard], a[source.shard], b[source.shard], self.mu, saddle)

    def loss(self, model: nn.Module, batch: Play) -> Tensor:
        x, y = model.x, model.y
        return versus(batch(x, y.detach()), minus=batch(x.detach(), y))

    def score(self, model: nn.Module, batch: Play) -> tuple[float, float, int]:
        z = torch.cat([model.x, model.y])
        return float((z - batch.saddle).square().sum() / batch.saddle.square().sum()), float(batch(model.x, model.y)), 1


def _normal(chance: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=chance, dtype=torch.float64)


class Guarded(nn.Module):
    """A linear classifier of (m, 64) digits, and a disturbance of each class, of length `radius` at most, that is added to its images."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 10)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.disturbance = nn.Parameter(torch.zeros(10, 64))
        self.radius = radius

    def disturbed(self, x: Tensor, y: Tensor) -> Tensor:
        length = self.disturbance.norm(dim=1, keepdim=True).clamp(min=1e-9)
        return x + (self.disturbance * (self.radius / length).clamp(max=1.0))[y]


@dataclass(frozen=True)
class Robust(Digits):
    """Digits whose images an adversary disturbs, one disturbance for each class; radius 0 is plain training.

    The score is the accuracy where every held-out image is moved by `threat` along its own worst direction.
    """

    radius: float = 1.0
    threat: float = 1.0

    def model(self, generator: Generator) -> nn.Module:
        return Guarded(self.radius)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        x = x.flatten(1)
        value = cross_entropy(model.classifier(model.disturbed(x, y).detach()), y)
        if not self.radius:
            return value + 0.0 * model.disturbance.sum()
        weight, bias = model.classifier.weight.detach(), model.classifier.bias.detach()
        return versus(value, minus=cross_entropy(model.disturbed(x, y) @ weight.T + bias, y))

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[float, float, int]:
        x, y = batch
        with torch.enable_grad():
            moved = x.flatten(1).clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(cross_entropy(model.classifier(moved), y, reduction="sum"), moved)
        logits = model.classifier(x.flatten(1) + self.threat * normalize(slope, dim=1))
        return float((logits.argmax(1) == y).sum()), float(cross_entropy(logits, y, reduction="sum")), len(y)
