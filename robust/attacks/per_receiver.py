"""Attacks that send each receiver another vector: to drive the honest apart, or to stay just within a receiver's threshold.

Shapes: d parameters, h honest vectors, r receivers.
"""

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.attacks.api import Formula, Scene
from starling.robust.attacks.statistics import TINY, agreed_direction, mean, positive, radius, uphill

_APART = 2**0.5  # distance of two honest vectors, in distances from their mean
_FAR, _LEAST = 10.0, 1.0


def dissensus(epsilon: float = 3.0) -> Formula:
    """x_i + epsilon · (x_i − μ): away from the others, epsilon times as far as honest gossip brings it nearer.

    Source: He, Karimireddy and Jaggi 2022 (arXiv:2202.01545), 5, for uniform weights of all nodes; epsilon = 3 for one peer a round.

    Args:
        epsilon: > 0.
    """
    positive("epsilon", epsilon)
    return Formula(lambda scene, _: scene.receivers + epsilon * (scene.receivers - mean(scene.honest)))


def spectral(xi: float = 3.0) -> Formula:
    """x_i + xi · v_i · Σ_j v_j x_j: drives the two halves of the swarm apart that mix slowest.

    v is the unit eigenvector of the second smallest eigenvalue of the honest graph's Laplacian; a receiver outside it gets its own
    vector. Where the graph is not known, or every pair meets equally often, any v orthogonal to the ones is such a vector, and we take
    the one of largest honest variance: with u the first principal axis of x_j − μ, the message is x_i + xi · u · ⟨u, x_i − μ⟩. The
    original searches xi for the largest damage to the receiver's rule; here it is given, or the step is as long as the receiver's
    threshold where that is known.

    Source: Gaucher, Dieuleveut and Hendrikx 2024, Byzantine-robust gossip: insights from a dual approach (arXiv:2405.03449).

    Args:
        xi: > 0.
    """
    positive("xi", xi)

    def message(scene: Scene, _: object) -> Tensor:
        step = _along_axis(scene, xi) if scene.links is None else _along_mode(scene, scene.links, xi)
        if scene.tau is not None:
            step = step * (scene.tau[:, None] / step.norm(dim=1, keepdim=True).clamp_min(TINY))
        return scene.receivers + step

    return Formula(message)


def _along_axis(scene: Scene, xi: float) -> Tensor:
    away = scene.honest - mean(scene.honest)
    _, vectors = torch.linalg.eigh((away @ away.T).double())
    axis = vectors[:, -1].to(away) @ away
    length: Tensor = axis.norm()
    axis = axis / length.clamp_min(TINY)
    along: Tensor = (scene.receivers - mean(scene.honest)) @ axis
    pushed: Tensor = xi * along[:, None] * axis
    return pushed


def _along_mode(scene: Scene, links: Tensor, xi: float) -> Tensor:
    weights = (links + links.T).double() / 2
    weights = weights - torch.diag(weights.diagonal())
    _, vectors = torch.linalg.eigh(torch.diag(weights.sum(dim=1)) - weights)
    slowest = vectors[:, min(1, len(links) - 1)].to(scene.honest)
    place = scene.index[:, None] == scene.members[None, :]
    share: Tensor = (place.to(slowest) * slowest).sum(dim=1)
    pushed: Tensor = xi * share[:, None] * (slowest @ scene.honest)
    return pushed


def equivocation(scale: float = 3.0) -> Formula:
    """x_i ± scale · median ‖z_j − μ‖ · u, plus to receivers of even number, minus to the others.

    u is a random unit vector that all attackers share.

    Args:
        scale: > 0.
    """
    positive("scale", scale)

    def message(scene: Scene, _: object) -> Tensor:
        sides = 1.0 - 2.0 * (scene.index % 2).to(scene.own)
        return scene.receivers + sides[:, None] * scale * radius(scene.honest) * agreed_direction(scene)

    return Formula(message)


def edge_riding() -> Formula:
    """x_i + τ_i · ḡ/‖ḡ‖: straight uphill, just as far as receiver i accepts unclipped. The test of every rule that clips.

    Where the rule has no threshold, or it is not known: as far as two honest vectors are from each other, √2 · median ‖z_j − μ‖.
    """

    def message(scene: Scene, _: object) -> Tensor:
        far = scene.tau if scene.tau is not None else _APART * radius(scene.honest).expand(len(scene.receivers))
        return scene.receivers + far[:, None] * uphill(scene)

    return Formula(message)


def edge_riding_max() -> Formula:
    """x_i + 10 · max(1, ‖μ‖) · ḡ/‖ḡ‖: straight uphill and far away, for thresholds that depend on received vectors."""

    def message(scene: Scene, _: object) -> Tensor:
        far: Tensor = _FAR * mean(scene.honest).norm().clamp_min(_LEAST)
        return scene.receivers + far * uphill(scene)

    return Formula(message)
