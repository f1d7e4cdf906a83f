"""How much of a correction later gradients confirm, or refute.

A local step's raw gradient g is later than the correction e that it is stepped along with. β = ⟨g, e⟩/‖e‖² is 1 where e is what sources of
data differ by, and 0 where it is the noise of earlier batches. With the true difference δ, ‖δ − τe‖² <= ‖δ‖² for τ up to 2β: the share of
e that counts is the largest that is no farther from δ than no correction is, by a β that is some of its standard errors less or more than
what was seen: less where a correction has to be shown to be right, more where it counts until it is shown to be wrong.

Shapes: "…" as in `starling.gossip.api`.
"""

from dataclasses import replace
from typing import Any, Protocol, TypeVar

from starling.gossip.lazy_torch import Tensor, torch

REMEMBERED = 0.98  # share of a running mean that a local step keeps
LEAST = 1e-30  # a square that is as good as 0
_A_SECOND = 0.5  # `equivalent` is 1 with one gradient and 2 with two


class Compared(Protocol):
    """What was seen of a correction and of gradients later than it: running means from 0, (…, 1) each."""

    @property
    def dot(self) -> Tensor:
        """Of ⟨g, e⟩."""

    @property
    def dot_squared(self) -> Tensor:
        """Of ⟨g, e⟩²."""

    @property
    def norm_squared(self) -> Tensor:
        """Of ‖e‖²."""

    @property
    def weight(self) -> Tensor:
        """Of 1, by which the others are divided for means without a bias towards 0."""


State = TypeVar("State", bound=Any)  # a dataclass that is a `Compared`


def compared(state: State, dot: Tensor, norm_squared: Tensor, **others: Tensor) -> State:
    """The running means, and `others` of that name, with one more gradient; one whose products are not finite is left out."""
    seen = {
        "dot": dot,
        "dot_squared": dot.square(),
        "norm_squared": norm_squared,
        "weight": torch.ones_like(dot),
        **others,
    }
    known = torch.stack([torch.isfinite(each) for each in seen.values()]).all(0)
    moved = {
        name: torch.where(known, REMEMBERED * getattr(state, name) + (1.0 - REMEMBERED) * each, getattr(state, name))
        for name, each in seen.items()
    }
    found: State = replace(state, **moved)
    return found


def equivalent(state: Compared) -> Tensor:
    """(…, 1) number of gradients of equal weight whose mean has the variance of these."""
    weight = state.weight.clamp_min(LEAST)
    return (1.0 + REMEMBERED) / (1.0 - REMEMBERED) * weight / (2.0 - weight)


def confirmed_share(state: Compared, errors: float, besides: float | Tensor = 0.0) -> Tensor:
    """The share that counts where it has to be shown right, (…, 1) in [0, 1]; 0 before there is a gradient.

    β is so many standard errors less than seen: of that of batches, and of a variance `besides` of ⟨g, e⟩.
    """
    return _share(state, -errors, _variance(state) / equivalent(state).clamp_min(1.0) + besides)


def unrefuted_share(state: Compared, errors: float, besides: float | Tensor = 0.0) -> Tensor:
    """The share that counts until it is shown wrong, (…, 1) in [0, 1]; 1 until there are two gradients.

    β is so many standard errors more than seen: of that of batches, and of a variance `besides` of ⟨g, e⟩.
    """
    others = equivalent(state) - 1.0
    found = _share(state, errors, _variance(state) / others.clamp_min(LEAST) + besides)
    return torch.where(others < _A_SECOND, torch.ones_like(found), found)


def _variance(state: Compared) -> Tensor:
    """(…, 1) of ⟨g, e⟩ of single gradients."""
    weight = state.weight.clamp_min(LEAST)
    return (state.dot_squared / weight - (state.dot / weight).square()).clamp_min(0.0)


def _share(state: Compared, errors: float, variance: Tensor) -> Tensor:
    """2β in [0, 1], β so many errors more than seen."""
    weight = state.weight.clamp_min(LEAST)
    dot = state.dot / weight + errors * variance.sqrt()
    return (2.0 * dot * weight / state.norm_squared.clamp_min(LEAST)).clamp(0.0, 1.0)
