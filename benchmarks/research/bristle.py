"""Bristle: only the output layer is trained and exchanged, and weighted class by class by F1 scores on local test data.

The layers below are agreed and frozen, so a model is one column of h weights for each of C classes, and evaluating a received one is
cheap. Three steps: a choice of models to evaluate (near ones first, some far ones); weights per class from F1 scores on local data; and
for classes without local data a weight from the classes with data.

The last step can be attacked: a peer that is good at the classes that a node has data of may send anything for the others, and may
overstate how many classes it shares. The weight bounds the effect: at most 6 times a certainty in [0, 1], beside 1 for the own model, so
k peers move a column by at most 6k/(1 + 6k) of the way to the farthest of them. Columns are not clipped: clip them first where peers are
not trusted.

Nodes cannot train the output layer only, and send no F1 scores.

Shapes: C classes, h weights a class (bias included), k received models, q of them evaluated.

Source: Verbraeken, de Vos and Pouwelse 2021 (arXiv:2110.11006); constants and the order of steps after their code, whose last version
evaluates ten drawn at random instead.
"""

from collections.abc import Callable

from starling.gossip.lazy_torch import Generator, Tensor, torch

ALPHA = 0.4  # share parameter of the choice: 0 evaluates the nearest third only, 1 the farthest only
QUOTA = 10  # number of models evaluated, up to rounding
_WORST = -100.0

Scores = Callable[[Tensor], Tensor]
"""Output layers (…, C, h) -> (…, C) F1 of each class on local test data, in [0, 1]."""


def quotas(alpha: float = ALPHA, q: int = QUOTA) -> tuple[int, int, int]:
    """Return how many of the nearest, the middle and the farthest third are evaluated: (1 − α)²q, 2α(1 − α)q, α²q, each rounded.

    Raises ValueError: alpha is not in [0, 1] or q not >= 1.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    if q < 1:
        raise ValueError(f"q must be >= 1, got {q}")
    shares = ((1.0 - alpha) ** 2, 2.0 * alpha * (1.0 - alpha), alpha**2)
    near, middle, far = (int(share * q + 0.5) for share in shares)
    return near, middle, far


def prioritised(own: Tensor, received: Tensor, generator: Generator, alpha: float = ALPHA, q: int = QUOTA) -> Tensor:
    """Return the distance prioritiser: ascending indices of the received models (k, C, h), finite, to evaluate, by their distance to
    our own (C, h).

    They are split into thirds, the nearer ones larger if uneven; of each third `quotas` many are drawn, or all of it.
    """
    distance = torch.linalg.vector_norm((received - own).flatten(1).double(), dim=1)
    thirds = torch.sort(distance, stable=True).indices.tensor_split(3)
    drawn = [third[torch.randperm(len(third), generator=generator)[:quota]] for third, quota in zip(thirds, quotas(alpha, q), strict=True)]
    return torch.cat(drawn).sort().values


def selected(theirs: Tensor, familiar: Tensor, shared: Tensor) -> Tensor:
    """Return (k, C) bool: the classes used to judge each peer, which are its best ones among ours, as many as it claims to share.

    So a peer is not blamed for classes that it has no data of. Of equal scores the lower class comes first. `theirs` (k, C) is F1 on local
    test data, `familiar` (C,) bool the classes with local data, `shared` (k,) the number of these that a peer claims to have data of; it is
    clamped.
    """
    ranked = torch.where(familiar, theirs, -1.0).sort(dim=-1, descending=True, stable=True).indices
    place = torch.empty_like(ranked).scatter_(-1, ranked, torch.arange(theirs.shape[-1]).expand_as(ranked))
    return familiar & (place < shared[:, None])


def certainty(theirs: Tensor, judged: Tensor) -> Tensor:
    """Map (k, C) F1 in [0, 1] -> (k,) certainty: max(0, mean − standard deviation) over the classes (k, C) used to judge a model; 0 without
    any.
    """
    count = judged.sum(dim=-1).clamp(min=1)
    mean = torch.where(judged, theirs, 0.0).sum(dim=-1) / count
    spread = torch.where(judged, (theirs - mean[:, None]) ** 2, 0.0).sum(dim=-1) / count
    return (mean - spread.sqrt()).clamp(min=0.0)


def merits(own: Tensor, theirs: Tensor) -> Tensor:
    """Return the advantage of other models (…, C) per class: Δ^(3 + F1) where F1 is higher, −Δ^(4 + F1) where lower; `own` (C,) is ours.

    Δ = 10·|F1 − F1_j| with the own F1 in the exponent: the better the own model, the more a difference counts, most if it is a loss.
    """
    distance = 10.0 * (theirs - own).abs()
    return torch.where(theirs > own, distance ** (3.0 + own), -(distance ** (4.0 + own)))


def emphasis(merit: Tensor) -> Tensor:
    """Return max(0, 10·σ(merit/100) − 4): 0 for much worse, 1 for equal, below 6 for much better models."""
    return (10.0 * torch.sigmoid(merit / 100.0) - 4.0).clamp(min=0.0)


def weights(own: Tensor, theirs: Tensor, familiar: Tensor, shared: Tensor) -> Tensor:
    """Return (k, C), weights of received columns relative to the own weight 1, in [0, 6·certainty], from F1 on local test data: `own` (C,),
    `theirs` (k, C).

    For a class used to judge the peer: from its merit there, at least −100. For a class without local data: from the sum of its merits. For
    all other classes 0. `familiar` and `shared` as in `selected`; F1 of unfamiliar classes is ignored.
    """
    judged = selected(theirs, familiar, shared)
    merit = torch.where(judged, merits(own, theirs), 0.0)
    counted = torch.where(familiar, merit.clamp(min=_WORST), merit.sum(dim=-1, keepdim=True))
    return torch.where(judged | ~familiar, certainty(theirs, judged)[:, None] * emphasis(counted), 0.0)


def integrate(own: Tensor, received: Tensor, shares: Tensor) -> Tensor:
    """Return (W + Σ ω_j W_j)/(1 + Σ ω_j), class by class, of W (C, h), W_j (k, C, h), finite, and ω (k, C) >= 0."""
    counted = shares.to(own.dtype)[..., None]
    return own + (counted * (received - own)).sum(dim=0) / (1.0 + counted.sum(dim=0))


def combine(
    own: Tensor,
    received: Tensor,
    familiar: Tensor,
    shared: Tensor,
    score: Scores,
    generator: Generator,
    alpha: float = ALPHA,
    q: int = QUOTA,
) -> Tensor:
    """Return (C, h), the own output layer after one round: choose, score, weight, integrate. Evaluates about q + 1 output layers.

    `own` (C, h), `received` (k, C, h), finite, k may be 0; `familiar` and `shared` as in `selected`; `score` gives F1 of output layers on
    local test data; the generator, alpha and q are those of the choice.
    """
    chosen = prioritised(own, received, generator, alpha, q)
    found = score(torch.cat((own[None], received[chosen])))
    return integrate(own, received[chosen], weights(found[0], found[1:], familiar, shared[chosen]))
