"""Push-sum: averaging over directed links, with a weight that is sent with the model.

Shapes: d parameters, D = d + 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.mix.running_sums import RunningSums

FLOOR = 1e-3  # weight below which a node waits: it was 1 in the beginning


@dataclass(frozen=True, slots=True)
class Weighted:
    """State of a node with numerator m = w·z + rest and model z."""

    w: Tensor  # (…, 1) push-sum weight; 1 in the beginning
    rest: Tensor  # (…, d) part of the numerator that is not in the model: zeros unless w is below the floor


@dataclass(frozen=True, slots=True)
class PushSum(MixerBase):
    """Stochastic gradient push: m_i −= lr·g_i(z_i); m and w are split with the same shares among receivers; z_i = m_i/w_i.

    The weights a node gives need sum to 1, those it takes need not: any directed overlay will do. Σ m and Σ w are kept through
    every message lost or late (`RunningSums`), so the models meet in the mean. The local step moves z, by 1/w times the gradient's
    step, hence m by the step itself.

    A node that gives and does not receive has its weight halved each round, and its steps grow as 1/w. Below the floor it waits: it
    neither gives nor steps, and its model stays as it is, until it has received. Nothing of m and w is lost over it. A node that
    crashes takes its m and w along, of the same kind as those that stay: the mean moves, and no bias remains.
    Where data differ the models stay away from the optimum as with `Dsgd`. Under an optimiser whose steps do not scale with the gradient
    (AdamW) 1/w is lost and a node counts by its weight.

    Source: Assran et al. 2019 (arXiv:1811.10792); running sums: Spiridonoff, Olshevsky and Paschalidis 2020 (arXiv:1811.03982).
    Deviation: sums instead of shares in each message; the floor.
    """

    edge: ClassVar[RunningSums] = RunningSums(FLOOR)
    asynchronous: ClassVar[bool] = True

    def start(self, x: Tensor) -> Weighted:
        """Start with weight 1."""
        return Weighted(torch.ones_like(x[..., :1]), torch.zeros_like(x))

    def correct(self, state: Weighted, gradient: Tensor) -> tuple[Tensor, Weighted]:
        """Return g/w, or 0 below the floor."""
        return torch.where(state.w < FLOOR, 0.0, gradient / state.w), state

    def shared(self, state: Weighted, x: Tensor) -> Tensor:
        """Return (…, d + 1): numerator, then weight."""
        return torch.cat((x * state.w + state.rest, state.w), dim=-1)

    def absorb(self, state: Weighted, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Weighted]:
        """Return the quotient; below the floor the model stays and the rest waits."""
        m, w = shared[..., :-1], shared[..., -1:].clone()
        wait = w < FLOOR
        z = torch.where(wait, x, m / torch.where(wait, 1.0, w))
        return z, Weighted(w, torch.where(wait, m - x * w, 0.0))
