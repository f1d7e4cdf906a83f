"""UBAR: near, and no worse than we are.

Shapes: R rows, k peers, D numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, nothing
from starling.robust.rules.distances import nearest
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Ubar:
    """Of the ⌈share·k⌉ vectors nearest to ours those whose loss on our data is not above our own, or if there are none the one of least
    loss; their mean with weight 1 − α and our own with weight α.

    With one peer there is no second choice: it would be accepted whatever it says. An absent peer's vector is our own, hence near and
    no worse. Where data differ from node to node, or after several local steps, it tends to accept nobody, as every node's own loss is
    lower than anybody's.

    Source: Guo et al. 2020, UBAR (arXiv:2002.08569), with a share of 0.4 and α = 0.5.

    Args:
        share: of the peers, in (0, 1].
        alpha: α, in [0, 1].
    """

    share: float = 0.4
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"ubar: share must be in (0, 1], got {self.share}")
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"ubar: alpha must be in [0, 1], got {self.alpha}")

    def tolerates(self, k: int) -> int:
        """All but one."""
        return k - 1

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), nothing, and who is not accepted.

        Raises:
            ValueError: losses are not to be had.
        """
        if context.losses is None:
            raise ValueError("ubar needs the losses of models, which are not known here")
        peers = stack.count - 1
        near = nearest(stack.squares(), math.ceil(self.share * peers))
        ours, theirs = self._losses(stack, near, context)
        accepted = near & (theirs <= ours)
        if peers > 1:
            best = nearest(theirs, 1) & near
            accepted = torch.where(accepted.any(dim=1, keepdim=True), accepted, best)
        others = (1 - self.alpha) * accepted.double() / accepted.sum(dim=1, keepdim=True).clamp_min(1)
        weights = torch.cat([1 - others.sum(dim=1, keepdim=True), others], dim=1)
        return stack.combination(weights), context.kept, ~accepted

    def _losses(self, stack: Stack, near: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """(R, 1) our own and (R, k) float64 those of the near; infinity for the others, and for one that is no number."""
        assert context.losses is not None
        chosen = near.nonzero()[:, 1].view(len(near), -1)
        ours = context.losses(stack.own.unsqueeze(1)).double()
        theirs = torch.full(near.shape, torch.inf, dtype=torch.float64, device=near.device)
        for peer in chosen.unbind(1):  # one vector at a time: all of them would be a copy of what was told
            weights = torch.nn.functional.one_hot(peer + 1, stack.count).double()
            loss = context.losses(stack.combination(weights).unsqueeze(1)).double()
            theirs.scatter_(1, peer.unsqueeze(1), loss.nan_to_num(nan=torch.inf))
        return ours, theirs
