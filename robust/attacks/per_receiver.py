"""Attacks that send each receiver another vector: to drive the honest apart, or to stay just within a receiver's threshold.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Scene, Target
from starling.robust.attacks.statistics import agreed_direction, mean, radius, uphill

_MIDDLE = 2**0.5  # of two honest vectors' distance, in distances from their mean
_FAR, _LEAST = 10.0, 1.0


@dataclass(frozen=True, slots=True)
class Dissensus:
    """x_i + epsilon · (x_i − μ): away from the others, as far as honest gossip would bring it nearer, epsilon times.

    Source: He, Karimireddy and Jaggi 2022 (arXiv:2202.01545), 5, for uniform weights of all nodes; epsilon = 3 for one peer a round.

    Args:
        epsilon: > 0.
    """

    epsilon: float = 3.0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _positive("epsilon", self.epsilon)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Another for each receiver."""
        return scene.receivers + self.epsilon * (scene.receivers - mean(scene.honest)), memory


@dataclass(frozen=True, slots=True)
class Spectral:
    """x_i + xi · v_i · Σ_j v_j x_j: the two halves of the swarm that mix slowest are driven apart.

    v is the unit eigenvector of the second smallest eigenvalue of the honest graph's Laplacian. Where the graph
    is not known, or every pair meets equally often, any v orthogonal to the ones is such a vector, and we take the one along
    which the honest differ most: with u the first principal axis of x_j − μ, the message is x_i + xi · u · ⟨u, x_i − μ⟩.
    The original searches xi for the largest damage to the receiver's rule; here it is given, or where the receiver's
    threshold is known the step is that long.

    Source: Gaucher, Dieuleveut and Hendrikx 2024, Byzantine-robust gossip: insights from a dual approach (arXiv:2405.03449).

    Args:
        xi: > 0.
    """

    xi: float = 3.0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _positive("xi", self.xi)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """To each its own; a receiver that is not honest gets its own vector where the graph is given."""
        step = self._by_axis(scene) if scene.links is None else self._by_graph(scene, scene.links)
        if scene.tau is not None:
            step = step * (scene.tau[:, None] / step.norm(dim=1, keepdim=True).clamp_min(_TINY))
        return scene.receivers + step, memory

    def _by_axis(self, scene: Scene) -> Tensor:
        away = scene.honest - mean(scene.honest)
        _, vectors = torch.linalg.eigh((away @ away.T).double())
        axis = vectors[:, -1].to(away) @ away
        length: Tensor = axis.norm()
        axis = axis / length.clamp_min(_TINY)
        along: Tensor = (scene.receivers - mean(scene.honest)) @ axis
        pushed: Tensor = self.xi * along[:, None] * axis
        return pushed

    def _by_graph(self, scene: Scene, links: Tensor) -> Tensor:
        weights = (links + links.T).double() / 2
        weights = weights - torch.diag(weights.diagonal())
        _, vectors = torch.linalg.eigh(torch.diag(weights.sum(dim=1)) - weights)
        slowest = vectors[:, min(1, len(links) - 1)].to(scene.honest)
        place = scene.index[:, None] == scene.members[None, :]
        share: Tensor = (place.to(slowest) * slowest).sum(dim=1)
        pushed: Tensor = self.xi * share[:, None] * (slowest @ scene.honest)
        return pushed


@dataclass(frozen=True, slots=True)
class Equivocation:
    """x_i ± scale · median ‖z_j − μ‖ · u, plus to receivers of even number, minus to the others.

    u is a random unit vector that all attackers share.

    Args:
        scale: > 0.
    """

    scale: float = 3.0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _positive("scale", self.scale)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Another for each receiver."""
        sides = 1.0 - 2.0 * (scene.index % 2).to(scene.own)
        return scene.receivers + sides[:, None] * self.scale * radius(scene.honest) * agreed_direction(scene), memory


@dataclass(frozen=True, slots=True)
class EdgeRiding:
    """x_i + τ_i · ḡ/‖ḡ‖: straight uphill, just as far as receiver i lets pass whole. The test of every rule that clips.

    Where the rule has no threshold, or it is not known: as far as two honest vectors are from each other, √2 · median ‖z_j − μ‖.
    """

    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Another for each receiver."""
        far = (
            scene.tau if scene.tau is not None else (_MIDDLE * radius(scene.honest)).expand(len(scene.receivers))
        )  # fmt: skip
        return scene.receivers + far[:, None] * uphill(scene), memory


@dataclass(frozen=True, slots=True)
class EdgeRidingMax:
    """x_i + 10 · max(1, ‖μ‖) · ḡ/‖ḡ‖: straight uphill and far away, for thresholds that follow what is received."""

    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Another for each receiver."""
        return scene.receivers + _FAR * mean(scene.honest).norm().clamp_min(_LEAST) * uphill(scene), memory


_TINY = 1e-12


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
