"""Bristle: only the output layer is learned, and another's column for a class counts as much as it is better at classes one can judge.

The layers below are agreed and frozen, so a model is one column of h weights for each of C classes, and to try a peer's is cheap. Three
steps: which of those told are tried (near ones first, some far ones); how much each is worth, class by class, from F1 scores on data of
our own; and for classes of which we have no data, how much from the classes of which we have.

That last step is what can be attacked: who is good at the classes we hold may say anything about those we do not, and nothing here sees
it; nor that it shares more classes with us than it says. What bounds it is the weight: at most 6 times a certainty in [0, 1], beside our
own 1, so k peers move a column by no more than 6k/(1 + 6k) of the way to the farthest of them. The columns are not clipped: put a norm
bound before it where peers are strangers.

For research: no node calls it, since none learns its output layer only.

Shapes: C classes, h weights a class (a bias is one of them), k peers told, q of them tried.

Source: Verbraeken, de Vos and Pouwelse 2021 (arXiv:2110.11006); constants and the order of steps after their code, whose last version
tries ten drawn at random instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

ALPHA = 0.4
"""How far the choice leans to the distant third."""
QUOTA = 10
"""Peers tried at most, about."""
_WORST = -100.0

Scores = Callable[[Tensor], Tensor]
"""Heads (…, C, h) -> (…, C) F1 of each class on our own test data, in [0, 1]."""


def quotas(alpha: float = ALPHA, q: int = QUOTA) -> tuple[int, int, int]:
    """How many of the near, the middle and the far third are tried: (1 − α)²q, 2α(1 − α)q, α²q, each rounded.

    Args:
        alpha: in [0, 1].
        q: >= 1.

    Raises:
        ValueError: out of these bounds.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    if q < 1:
        raise ValueError(f"q must be >= 1, got {q}")
    shares = ((1.0 - alpha) ** 2, 2.0 * alpha * (1.0 - alpha), alpha**2)
    near, middle, far = (int(share * q + 0.5) for share in shares)
    return near, middle, far


def tried(own: Tensor, told: Tensor, generator: Generator, alpha: float = ALPHA, q: int = QUOTA) -> Tensor:
    """The distance prioritiser: which of those told are worth an evaluation, ascending.

    They are sorted by distance and cut into thirds, as even as can be, the nearer ones larger; of each third so many are drawn as
    `quotas` says, or all it has.

    Args:
        own: (C, h).
        told: (k, C, h), finite.
        generator: draws.
        alpha, q: as in `quotas`.
    """
    apart = torch.linalg.vector_norm((told - own).flatten(1).double(), dim=1)
    thirds = torch.sort(apart, stable=True).indices.tensor_split(3)
    drawn = [
        third[torch.randperm(len(third), generator=generator)[:quota]]
        for third, quota in zip(thirds, quotas(alpha, q), strict=True)
    ]
    return torch.cat(drawn).sort().values


def selected(theirs: Tensor, familiar: Tensor, shared: Tensor) -> Tensor:
    """(k, C) bool: the classes by which each peer is judged, those of ours at which it is best, as many as it shares with us.

    Whoever has no data of a class that we hold is not blamed for it. Equal scores: the lower class.

    Args:
        theirs: (k, C) F1 on our test data.
        familiar: (C,) bool, the classes of which we have data.
        shared: (k,) how many of them the peer says it has data of too; fewer than 0 count as 0, more than all as all.
    """
    ranked = torch.where(familiar, theirs, -1.0).sort(dim=-1, descending=True, stable=True).indices
    place = torch.empty_like(ranked).scatter_(-1, ranked, torch.arange(theirs.shape[-1]).expand_as(ranked))
    return familiar & (place < shared[:, None])


def certainty(theirs: Tensor, judged: Tensor) -> Tensor:
    """(k, C) F1 -> (k,) how far a head can be trusted: max(0, mean − deviation) over the classes it is judged by; 0 where there are none.

    Args:
        theirs: in [0, 1].
        judged: (k, C) bool.
    """
    count = judged.sum(dim=-1).clamp(min=1)
    mean = torch.where(judged, theirs, 0.0).sum(dim=-1) / count
    spread = torch.where(judged, (theirs - mean[:, None]) ** 2, 0.0).sum(dim=-1) / count
    return (mean - spread.sqrt()).clamp(min=0.0)


def merits(own: Tensor, theirs: Tensor) -> Tensor:
    """How much better a class is served by another's column: Δ^(3 + F1) where it is better, −Δ^(4 + F1) where it is worse.

    With Δ = 10·|F1 − F1_j| and F1 our own: the better we are already, the more a difference counts, and most where it is a loss.

    Args:
        own: (C,) F1 of our head.
        theirs: (…, C) F1 of others.
    """
    apart = 10.0 * (theirs - own).abs()
    return torch.where(theirs > own, apart ** (3.0 + own), -(apart ** (4.0 + own)))


def emphasis(merit: Tensor) -> Tensor:
    """Max(0, 10·σ(merit/100) − 4): from 0 for the worst over 1 for equals to less than 6."""
    return (10.0 * torch.sigmoid(merit / 100.0) - 4.0).clamp(min=0.0)


def weights(own: Tensor, theirs: Tensor, familiar: Tensor, shared: Tensor) -> Tensor:
    """(k, C) weights of others' columns beside our own 1, in [0, 6·certainty].

    Of a class that a peer is judged by it is that of its merit, at least −100; of a class that we do not hold that of the sum of all its
    merits, however bad; of the others 0.

    Args:
        own: (C,) F1 of our head on our test data; foreign entries are not looked at.
        theirs: (k, C) of others, likewise.
        familiar: (C,) bool, the classes of which we have data.
        shared: (k,) as in `selected`.
    """
    judged = selected(theirs, familiar, shared)
    merit = torch.where(judged, merits(own, theirs), 0.0)
    counted = torch.where(familiar, merit.clamp(min=_WORST), merit.sum(dim=-1, keepdim=True))
    return torch.where(judged | ~familiar, certainty(theirs, judged)[:, None] * emphasis(counted), 0.0)


def integrate(own: Tensor, told: Tensor, shares: Tensor) -> Tensor:
    """(W + Σ ω_j W_j)/(1 + Σ ω_j), class by class.

    Args:
        own: (C, h).
        told: (k, C, h), finite.
        shares: (k, C), >= 0.
    """
    counted = shares.to(own.dtype)[..., None]
    return own + (counted * (told - own)).sum(dim=0) / (1.0 + counted.sum(dim=0))


def combine(
    own: Tensor,
    told: Tensor,
    familiar: Tensor,
    shared: Tensor,
    score: Scores,
    generator: Generator,
    alpha: float = ALPHA,
    q: int = QUOTA,
) -> Tensor:
    """(C, h) our output layer after hearing others: those tried, weighed and integrated. Evaluates at most about q + 1 heads.

    Args:
        own: (C, h).
        told: (k, C, h), finite; k may be 0.
        familiar: (C,) bool, the classes of which we have data.
        shared: (k,) as in `selected`.
        score: F1 of heads on test data of our own.
        generator: draws who is tried.
        alpha, q: as in `quotas`.
    """
    chosen = tried(own, told, generator, alpha, q)
    found = score(torch.cat((own[None], told[chosen])))
    return integrate(own, told[chosen], weights(found[0], found[1:], familiar, shared[chosen]))
