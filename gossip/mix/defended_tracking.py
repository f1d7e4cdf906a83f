"""Gradient tracking for swarms with Byzantine members: the influence of a peer is bounded by our own gradients, and fades.

Shapes: d parameters, D = 2d + 2 numbers of the shared vector: model, tracker, and the running means of two of our norms.
"""

from dataclasses import dataclass

from starling.gossip.api import Phase
from starling.gossip.bounds import NonNegative, ShareBelowOne, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase

_MEMORY = 0.9  # decay of the running means


@dataclass(frozen=True, slots=True)
class Bounded:
    """Swaps that move a tracker by no more than the gradients of either end allow. Satisfies `starling.gossip.api.Swapping`.

        y_i += w·clip(y_j − y_i, tracker_clip · min(‖g_i‖, ‖g_j‖ as j says))
        x_i += w·clip(x_j − x_i, step_clip · ‖our step‖)

    Where both ends give the link one weight, the changes of their trackers are the same bits with opposite signs, so Σ y stays (two
    kinds of machine may differ in the last bit of a norm). With a threshold of each end's own, trackers of honest nodes would follow
    something else than the mean gradient. A peer's claim can only lower our threshold. No state per edge: E = 0.
    """

    tracker_clip: float  # >= 0; 0 is off
    step_clip: float  # >= 0; 0 is off

    def begin(self, origin: Tensor) -> Tensor:
        """Return an empty state."""
        return origin[..., :0]

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return the shared vector itself."""
        return local

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Change nothing."""
        return edge_state, torch.zeros_like(local)

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Towards the peer's model and tracker, no further than the thresholds."""
        dim = local.shape[-1] // 2 - 1
        x, y, rest = (message - local).tensor_split((dim, 2 * dim), dim=-1)
        gradient, step = local[..., -2:-1], local[..., -1:]
        if self.tracker_clip:
            y = shortened(y, self.tracker_clip * torch.minimum(gradient, message[..., -2:-1].clamp_min(0.0)))
        if self.step_clip:
            x = shortened(x, self.step_clip * step)
        return edge_state, torch.cat((take * x, take * y, torch.zeros_like(rest)), dim=-1)

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> Tensor:
        """Return the difference of the shared vectors, before clipping."""
        return message - local


@dataclass(frozen=True, slots=True)
class Defended:
    """State of a node between rounds."""

    y: Tensor  # (…, d) the tracker
    previous: Tensor  # (…, d) the last gradient in it
    origin: Tensor  # (…, d) the model before this round's local steps
    gradient: Tensor  # (…, 1) running mean of the norms of our gradients; 0: there was none yet
    step: Tensor  # (…, 1) likewise of how far a round's local steps led


@parameters
class DefendedTracking(MixerBase):
    """Gradient tracking whose correction c_i = y_i − g_i, all that neighbors influence, is clipped, leaks and is bounded.

        exchange    y_i += w·clip(y_j − y_i, tracker_clip · min(‖g_i‖, ‖g_j‖)),   x_i += w·clip(x_j − x_i, step_clip · s_i)
        after it    c_i <- (1 − tracker_leak)·(y_i − g_i), shortened to tracker_cap · ‖g_i‖;   y_i <- g_i + c_i

    In plain gradient tracking one false value biases a swarm for ever, and no test distinguishes it from an honest one when data differ.
    Here it is (1 − leak)^t of itself after t rounds, and values of a peer met in a share p of the rounds add up to at most
    (1 − leak)/leak · p·w·clip·‖g_i‖. A leak of 1 would be DSGD. With all four at 0 it is `GradientTracking`, bit for bit.
    Norms are running means of our own stochastic gradients' and steps': a peer cannot raise them. A new node starts with c = 0.

    Σ c stays 0 without a leak and while no cap is met; a leak shrinks all c alike, a cap does not: its bias fades as false values do.

    Source: ours. Gradient tracking is that of Nedić, Olshevsky and Shi 2017 (arXiv:1607.03218); clipping about one's own vector that
    of He, Karimireddy and Jaggi 2022 (arXiv:2202.01545), and anchored to one's own steps as in the rule `sac`.

    Args:
        tracker_clip: in norms of gradients, >= 0; 0 is off.
        tracker_leak: share of the correction that a round forgets, in [0, 1).
        tracker_cap: longest correction, in norms of our gradients, >= 0; 0 is off.
        step_clip: longest way that an exchange moves a model before it is weighted, in steps of our own, >= 0; 0 is off.
    """

    tracker_clip: NonNegative = 0.25
    tracker_leak: ShareBelowOne = 0.2
    tracker_cap: NonNegative = 1.0
    step_clip: NonNegative = 3.0

    @property
    def edge(self) -> Bounded:
        """Return clipped swaps."""
        return Bounded(self.tracker_clip, self.step_clip)

    def start(self, x: Tensor) -> Defended:
        """Zeros: the first local step sets y to the first gradient."""
        norm = torch.zeros_like(x[..., :1])
        return Defended(torch.zeros_like(x), torch.zeros_like(x), x.clone(), norm, norm)

    def correct(self, state: Defended, gradient: Tensor) -> tuple[Tensor, Defended]:
        """Return the new y = y + g − (g before)."""
        y = state.y + (gradient - state.previous)
        return y, Defended(y, gradient.clone(), state.origin, _running(state.gradient, gradient), state.step)

    def publish(self, state: Defended, x: Tensor, phase: Phase) -> tuple[Tensor, Defended]:
        """Return the model unchanged, and measure the local steps if there were any."""
        if not phase.local_steps:
            return x, state
        step = _running(state.step, x - state.origin)
        return x, Defended(state.y, state.previous, state.origin, state.gradient, step)

    def shared(self, state: Defended, x: Tensor) -> Tensor:
        """Return (…, 2d + 2): x, y, the running means."""
        return torch.cat((x, state.y, state.gradient, state.step), dim=-1)

    def absorb(self, state: Defended, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Defended]:
        """Return the averaged model, and a tracker whose correction has leaked and is no longer than it may be."""
        dim = x.shape[-1]
        mixed, y = shared[..., :dim].clone(), shared[..., dim : 2 * dim].clone()
        if self.tracker_leak or self.tracker_cap:
            correction = (1.0 - self.tracker_leak) * (y - state.previous)
            if self.tracker_cap:
                correction = shortened(correction, self.tracker_cap * state.gradient)
            y = state.previous + correction
        return mixed, Defended(y, state.previous, mixed.clone(), state.gradient, state.step)


def shortened(v: Tensor, tau: Tensor) -> Tensor:
    """Rows of v (…, d) no longer than tau (…, 1) >= 0, an odd function of v; v itself where all are short enough. Not modified."""
    norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True, dtype=torch.float64)
    longer = norm > tau
    if not bool(longer.any()):
        return v
    return torch.where(longer, (v.double() * (tau.double() / norm)).to(v.dtype), v)  # a norm may be beyond float32


def _running(edge_state: Tensor, vector: Tensor) -> Tensor:
    """Return the running mean of norms (…, 1) after one more vector (…, d); the first counts whole."""
    norm = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return torch.where(edge_state == 0.0, norm, _MEMORY * edge_state + (1.0 - _MEMORY) * norm)
