"""Rules that average our own vector with the vectors nearest to it.

Shapes: R rows, k peers, m = k + 1 vectors, D numbers each.
"""

import math

from starling.gossip.api import Combined
from starling.gossip.bounds import NonNegative, Positive, PositiveShare, Share, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, OneNumber, Tolerant, check_count
from starling.robust.rules.distances import nearest, norms
from starling.robust.rules.stack import Stack


@parameters
class Nna(Tolerant):
    """Nearest neighbor averaging: the mean of our own vector and the k − f nearest to it.

    An absent peer counts as our own vector, hence as one of the nearest: f of those present are excluded, however few they are.

    Source: Farhadkhani et al. 2023, MoNNA (arXiv:2209.10931).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("nna", self.f, stack.count, self.f + 2)
        accepted = stack.count - 1 - self.f
        chosen = nearest(stack.squares(), accepted).double()
        weights = torch.cat([torch.ones_like(chosen[:, :1]), chosen], dim=1) / (accepted + 1)
        return stack.combination(weights), context.state, chosen == 0


@parameters
class Balance(OneNumber):
    """Our own vector with weight `share`, and the mean of the vectors within γ·exp(−decay·t)·‖x‖ of it with the rest.

    Without such vectors our own stays. An absent peer counts as our own vector. The state is t, the number of rounds. The threshold is
    relative to the norm of our vector: a model near 0 accepts no peer, a large pretrained one accepts all.

    Source: Fang et al. 2024, BALANCE (arXiv:2406.10416), with γ = 0.3, share 0.5 and a decay of 1/(rounds of the run).

    Args:
        gamma: γ, > 0.
        share: weight of our own vector, their α, in [0, 1].
        decay: per round, >= 0.
    """

    gamma: Positive = 0.3
    share: Share = 0.4
    decay: NonNegative = 0.0

    def reduce(self, stack: Stack, context: Context) -> Combined:
        limit = self.gamma * torch.exp(-self.decay * context.state.double()) * norms(context.own)
        accepted = stack.squares().sqrt() <= limit
        return stack.combination(_weights(accepted, self.share)), context.state + 1, ~accepted


@parameters
class Ubar:
    """The own vector with weight α, and with 1 − α the mean of those of the ⌈share·k⌉ nearest whose loss on own data is not above its own.

    If there are none, the one of least loss among the nearest; not with k = 1, as any vector would then be accepted. An absent peer
    counts as our own vector. With data that differ from node to node, or after several local steps, it tends to accept no peer, since
    every node's own loss is the lowest.

    Source: Guo et al. 2020, UBAR (arXiv:2002.08569), with a share of 0.4 and α = 0.5.

    Args:
        share: of the peers, in (0, 1].
        alpha: α, in [0, 1].
    """

    share: PositiveShare = 0.4
    alpha: Share = 0.5

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """Raise ValueError: losses are not available."""
        if context.losses is None:
            raise ValueError("ubar needs the losses of models, which are not available here")
        peers = stack.count - 1
        near = nearest(stack.squares(), math.ceil(self.share * peers))
        ours = context.losses(stack.own.unsqueeze(1)).double()
        theirs = torch.full(near.shape, torch.inf, dtype=torch.float64, device=near.device)
        for peer in near.nonzero()[:, 1].view(len(near), -1).unbind(1):  # one vector at a time, to bound memory
            weights = torch.nn.functional.one_hot(peer + 1, stack.count).double()
            loss = context.losses(stack.combination(weights).unsqueeze(1)).double()
            theirs.scatter_(1, peer.unsqueeze(1), loss.nan_to_num(nan=torch.inf))
        accepted = near & (theirs <= ours)
        if peers > 1:
            accepted = torch.where(accepted.any(dim=1, keepdim=True), accepted, nearest(theirs, 1) & near)
        return stack.combination(_weights(accepted, self.alpha)), context.state, ~accepted


def _weights(accepted: Tensor, share: float) -> Tensor:
    """Map (R, k) bool -> (R, m) weights: `share` for our own vector and the rest evenly for the accepted; 1 for our own without any."""
    others = (1 - share) * accepted.double() / accepted.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.cat([1 - others.sum(dim=1, keepdim=True), others], dim=1)
