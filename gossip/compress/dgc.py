"""Deep gradient compression: a feedback scheme with momentum, and the ratios of its warm-up.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from starling.gossip.compress.compressor import Compressor
from starling.gossip.lazy_torch import Generator, Tensor, torch


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """State of `Dgc`: momentum u and velocity v not yet sent, both (…, d)."""

    momentum: Tensor
    velocity: Tensor


@dataclass(frozen=True, slots=True)
class Dgc:
    """Deep gradient compression: momentum is taken before compression, and what is sent loses its momentum.

    u ← m·u + g, v ← v + u, send Q(v), v −= Q(v), and u = 0 where something was sent: old momentum must not push on a coordinate that is
    up to date. Where everything is sent each round this is plain SGD, not momentum SGD; without the masking it is momentum SGD.

    Deviation: where the paper sets v to 0 at sent coordinates we subtract the message: the same if values are sent exactly, and
    what a quantizer takes off stays owed.

    Source: Lin et al. 2018 (arXiv:1712.01887). The ratio of its warm-up is `warm_up_ratio`.

    Args:
        momentum: m, in [0, 1).
        nesterov: u ← m·(u + g), v ← v + u + g instead.
        factor_masking: zero u where something was sent.
        clip_norm: bound of a gradient's norm if there were one node; 0 is none.
        nodes: n; each clips its gradient at clip_norm/√n, because norms of n independent gradients add up to √n times one.
    """

    momentum: float = 0.9
    nesterov: bool = False
    factor_masking: bool = True
    clip_norm: float = 0.0
    nodes: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not self.clip_norm >= 0.0:
            raise ValueError(f"clip_norm must be >= 0, got {self.clip_norm}")
        if self.nodes < 1:
            raise ValueError(f"nodes must be >= 1, got {self.nodes}")

    def start(self, x: Tensor) -> Accumulated:
        """Nothing accumulated."""
        return Accumulated(torch.zeros_like(x), torch.zeros_like(x))

    def compress(
        self, state: Accumulated, update: Tensor, compressor: Compressor, generator: Generator
    ) -> tuple[Tensor, Accumulated]:
        """Q(v), and u and v without what was sent."""
        gradient = self._clipped(update)
        if self.nesterov:
            momentum = self.momentum * (state.momentum + gradient)
            velocity = state.velocity + momentum + gradient
        else:
            momentum = self.momentum * state.momentum + gradient
            velocity = state.velocity + momentum
        message = compressor.compress(velocity, generator)
        if self.factor_masking:
            momentum = torch.where(message == 0, momentum, 0.0)
        return message, Accumulated(momentum, velocity - message)

    def receive(self, held: Tensor, message: Tensor) -> Tensor:
        """The message."""
        return message

    def restore(self, state: Accumulated, message: Tensor) -> Accumulated:
        """What did not arrive is owed again. The momentum masked for it stays lost: nobody kept it."""
        return replace(state, velocity=state.velocity + message)

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self.clip_norm == 0.0:
            return gradient
        norm = gradient.norm(dim=-1, keepdim=True)
        bound = self.clip_norm / self.nodes**0.5
        return torch.where(norm > bound, gradient * (bound / norm.clamp_min(bound)), gradient)


def warm_up_ratio(epoch: int, final: float, first: float = 0.25) -> float:
    """DGC's share of coordinates sent in an epoch of the warm-up: 25 %, 6.25 %, 1.56 %, .4 %, and then `final`.

    Source: Lin et al. 2018, section 3.3 (arXiv:1712.01887).

    Args:
        epoch: counted from 0.
        final: the ratio after the warm-up, in (0, 1].
        first: of epoch 0, in (0, 1); the ratio falls by this factor in each.

    Raises:
        ValueError: a ratio is out of bounds.
    """
    if not 0.0 < final <= 1.0 or not 0.0 < first < 1.0:
        raise ValueError(f"final must be in (0, 1] and first in (0, 1), got {final}, {first}")
    return max(final, first ** (epoch + 1))
