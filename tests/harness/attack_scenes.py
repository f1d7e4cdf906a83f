"""Small scenes for tests of attacks, and formulas written out with loops."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from starling.gossip.rng import generator
from starling.robust.attacks.api import Attack, Scene
from starling.robust.attacks.catalogue import ATTACKS

DTYPE = torch.float64


def targeting(*targets: str) -> tuple[str, ...]:
    """Return the names of the built-in attacks on these targets."""
    return tuple(name for name in ATTACKS.built_in if ATTACKS.facts(name).targets in targets)


def vectors(*rows: Sequence[float]) -> Tensor:
    """Return (n, d) float64."""
    return torch.tensor(rows, dtype=DTYPE)


def scene(**changes: Any) -> Scene:
    honest = vectors((1.0, 2.0), (3.0, 0.0), (5.0, 4.0))
    plain = Scene(
        own=vectors((2.0, 2.0))[0],
        before=vectors((3.0, 3.0))[0],
        start=vectors((0.5, -0.5))[0],
        honest=honest,
        members=torch.tensor([0, 1, 2]),
        receivers=honest[:2].clone(),
        index=torch.tensor([0, 1]),
        gradient=vectors((3.0, 4.0))[0],
        round=0,
        rounds=10,
        attackers=1,
        nodes=4,
        seed=7,
    )
    return replace(plain, **changes)


def drawn(seed: int, nodes: int, dim: int, **changes: Any) -> Scene:
    chance = torch.Generator().manual_seed(seed)
    honest = torch.randn(nodes, dim, generator=chance, dtype=DTYPE) + 1.0
    own, before, start, gradient = torch.randn(4, dim, generator=chance, dtype=DTYPE)
    numbers = torch.arange(nodes)
    return scene(
        own=own,
        before=before,
        start=start,
        honest=honest,
        members=numbers,
        receivers=honest.clone(),
        index=numbers,
        gradient=gradient,
        nodes=nodes + 1,
        **changes,
    )


def crafted(attack: Attack, seen: Scene, memory: Any = None) -> Tensor:
    return attack.craft(memory, seen, generator(0, "test"))[0]


def mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def std(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the standard deviation of each coordinate, with n − 1."""
    middle = mean(rows)
    return [math.sqrt(sum((row[c] - middle[c]) ** 2 for row in rows) / (len(rows) - 1)) for c in range(len(middle))]


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
