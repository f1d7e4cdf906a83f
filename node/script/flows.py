"""Apply the flows that the engine holds as a correction to a script's sgd gradients. Satisfies `Correction`.

The arithmetic is that of `starling.gossip.mix.borne`, so a script's steps are those of a task.

Shapes: d parameters, n of a stretch of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.mix.borne import REMEMBERED, Borne, subtract


class Flows:
    """Applies the part of a correction c (d,) that the last gradients confirm.

    Attributes:
        active: whether there is one.
        known: numbers that belong to it.
    """

    def __init__(self) -> None:
        self._c = torch.empty(0, device="cpu")
        self.active = False
        self.known = Borne()
        self._stretches: list[Borne] = []  # `known` after each stretch that was taken

    def begin(self, c: Tensor, known: Sequence[float], *, active: bool) -> None:
        """Continue with c (d,), which is not copied, and its numbers."""
        self._c, self.known, self.active = c, Borne(*known), active
        self._stretches = []

    def take(self, gradient: Tensor, start: int) -> None:
        """Correct a part (n,) of the gradient in place, which begins at coordinate `start`."""
        c = self._c[start : start + gradient.numel()].to(gradient.device)
        self._stretches.append(subtract(self.known, c, gradient))

    def stepped(self) -> None:
        """Note that a local step is over, and add the products of its parts to the stored ones."""
        first, *others = self._stretches or [subtract(self.known, self._c[:0], self._c[:0])]
        before, known = self.known, first
        for each in others:
            known = known._replace(
                dot=known.dot + each.dot - REMEMBERED * before.dot, power=known.power + each.power - REMEMBERED * before.power
            )
        self.known, self._stretches = known, []
