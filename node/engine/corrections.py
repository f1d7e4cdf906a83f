"""Apply corrections to gradients or updates: alike for one vector (d,) and for rows (…, d) in a simulator.

Shapes: d parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Correct = Callable[[Tensor], Tensor]
"""A gradient (…, d) -> the direction of the step after the mixing algorithm's correction."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """How the mixing algorithm's correction enters local steps.

    Args:
        clip_norm: longest gradient, > 0; None: any.
        on_updates: corrections are added to what the optimiser makes of a gradient, not to the gradient.
        weighs_updates: the same for a node's weight.
    """

    clip_norm: float | None = None
    on_updates: bool = False
    weighs_updates: bool = False

    def shaped(self, gradient: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """Return a gradient (…, d) clipped, and times `weight`, a number or (…, 1), where gradients are weighed."""
        if self.clip_norm is not None:
            gradient = clipped(gradient, self.clip_norm)
        unweighed = self.weighs_updates or (isinstance(weight, float) and weight == 1.0)
        return gradient if unweighed else gradient * weight

    def corrected(self, gradient: Tensor, correct: Correct, weight: float | Tensor = 1.0) -> tuple[Tensor, Tensor | None]:
        """Return direction and shift of a step, each like the gradient (…, d); `correct` is called once."""
        gradient = self.shaped(gradient, weight)
        return (gradient, shift(gradient, correct)) if self.on_updates else (correct(gradient), None)


def shift(like: Tensor, correct: Correct) -> Tensor | None:
    """Return what a correction adds to a direction of 0 (…, d), which may not depend on the direction; None where it adds nothing."""
    nothing = like.new_zeros(()).expand_as(like)
    found = correct(nothing)
    return None if found is nothing else found


def clipped(gradient: Tensor, norm: float) -> Tensor:
    """Return gradients (…, d), each shortened to `norm` > 0 if it is longer. One that is not finite is returned as it is.

    Source: Pascanu, Mikolov and Bengio 2013 (arXiv:1211.5063), as `torch.nn.utils.clip_grad_norm_` without its epsilon.
    """
    lengths = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=torch.float64)
    shortened: Tensor = gradient * (norm / lengths.clamp(min=norm)).to(gradient.dtype)
    return shortened
