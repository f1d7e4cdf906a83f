"""Which of a few models that strangers offer are of one swarm: for who joins late and knows nothing but where training began.

Honest models differ: members exchange with some others only, and are asked at different moments. How much they may differ nobody tells the
joiner, so it is measured: against how close the closest majority is, and against how far that has come from the common beginning.

    scale     the least radius in which some model has more than half of all, itself included
    cluster   all within max(NEAR · scale, SAME · way) of that model, `way` being its distance from the beginning
    state     the coordinate median of the cluster, the mean of the middle two where it is even
    outside   who is farther from every one of the cluster than WIDE times its diameter and than APART times its way; nobody in the first
              EARLY rounds, in which honest nodes may still go opposite ways

Two models that went the same way, more or less, are at most √2 times their way apart: that is a right angle at the beginning, and APART
lies just beyond. A model that was turned around, blown up or made up lies beyond it; an honest one that merely trained alone, or on other
data, does not. Who is left out of the cluster but not outside is not blamed. Of two models that are farther than APART apart nobody
can say which one is true: there is no state then.

Fewer than half of the models false: the state is within 1 + √m·NEAR times the diameter of the true ones from each of them, or
SAME · way. More than half, all alike: they are the swarm, as far as the joiner can know.

Shapes: m models of d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

NEAR = 3.0
SAME = 0.1
WIDE = 10.0
APART = 1.5
EARLY = 8
LEAD = 16
"""Rounds that honest nodes may be apart."""
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a few models have in common.

    Args:
        state: (d,) to begin with; None if there is no majority that goes together.
        cluster: indices of the models it was made of, in order.
        outside: indices of those that no honest member can have.
    """

    state: Tensor | None
    cluster: tuple[int, ...]
    outside: tuple[int, ...]


def agree(models: Sequence[Tensor], origin: Tensor, rounds: Sequence[int]) -> Agreement:
    """Find the majority among models. Inputs are not modified; memory beyond them is one model.

    Args:
        models: m >= 1 of (d,), finite.
        origin: (d,) where training began.
        rounds: that each is said to be of. In s − r <= LEAD rounds more a model may have come s/r times as far, at most twice as far;
            beyond that no claim is an excuse.

    Raises:
        ValueError: no model, or shapes that differ.
    """
    if not models or len(rounds) != len(models) or any(model.shape != origin.shape for model in models):
        raise ValueError("models must be one or more of the origin's shape, with a round each")
    count = len(models)
    if count == 1:
        return Agreement(models[0].clone(), (0,), ())
    apart = [[0.0] * count for _ in models]
    for i in range(count):
        for j in range(i):
            apart[i][j] = apart[j][i] = _distance(models[i], models[j])
    way = [_distance(model, origin) for model in models]
    nearest = [sorted(range(count), key=lambda j, i=i: (j != i, apart[i][j])) for i in range(count)]  # type: ignore[misc]
    needed = count // 2  # others, to be more than half with oneself
    center = min(range(count), key=lambda i: apart[i][nearest[i][needed]])
    scale = apart[center][nearest[center][needed]]
    majority = nearest[center][: needed + 1]
    if scale > APART * min(way[i] for i in majority):
        return Agreement(None, (), ())
    reach = max(NEAR * scale, SAME * way[center])
    cluster = tuple(i for i in range(count) if apart[center][i] <= reach)
    diameter = max(apart[i][j] for i in cluster for j in cluster)
    gone, at = median(way[i] for i in cluster), median(rounds[i] for i in cluster)
    outside = tuple(
        i
        for i in range(count)
        if at >= EARLY
        and i not in cluster
        and min(apart[i][j] for j in cluster) > max(WIDE * diameter, APART * gone * _stretch(rounds[i], at))
    )
    return Agreement(_middle([models[i] for i in cluster]), cluster, outside)


def _stretch(one: float, other: float) -> float:
    """How many times as far a model of one round may have come as that of another."""
    first, last = sorted((max(1.0, one), max(1.0, other)))
    return min(2.0, last / first) if last - first <= LEAD else 1.0


def _distance(one: Tensor, other: Tensor) -> float:
    """Euclidean, in float64; inf where squares overflow."""
    total = 0.0
    for start in range(0, one.numel(), _CHUNK):
        part = one[start : start + _CHUNK].double() - other[start : start + _CHUNK].double()
        total += float(part.square().sum())
    return math.sqrt(total)


def _middle(models: Sequence[Tensor]) -> Tensor:
    """Coordinate by coordinate the median."""
    out = torch.empty_like(models[0])
    half = len(models) // 2
    for start in range(0, out.numel(), _CHUNK):
        stop = start + _CHUNK
        ordered = torch.stack([model[start:stop].double() for model in models]).sort(0).values
        middle = ordered[half] if len(models) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
        out[start:stop] = middle.to(out.dtype)
    return out
