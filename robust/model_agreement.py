"""Choice of the model of a late joiner among those that a few unknown peers offer.

Honest models differ: members exchange with a few others, and are queried at different times. That difference is estimated from the closest
majority and from the distance travelled since the common initial model.

    scale     the least radius around some model that contains more than half of all, itself included
    cluster   all within max(NEAR · scale, SAME · travelled) of that model, `travelled` being its distance from the initial model
    state     the coordinate-wise median of the cluster, the mean of the middle two for an even number
    outside   models farther from every model of the cluster than WIDE times its diameter and than APART times the distance it travelled;
              none in the first EARLY rounds, in which honest nodes may still move in opposite directions

Two models at a right angle as seen from the initial model are √2 times their distance from it apart; APART is just more. A negated,
scaled or invented model is farther; an honest one that trained alone or on other data is not. Models neither in the cluster nor outside
are not blamed. If the closest majority is wider than APART times the distance travelled, and than NOISE times the length of the initial
model, there is no state.

With fewer than half of the models false, the state is within (1 + √m·NEAR) times the diameter of the true ones from each of them, or
SAME · travelled. More than half that are false and alike cannot be distinguished from the swarm.

Shapes: m models of d parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from starling.gossip.lazy_torch import Tensor, torch

NEAR = 3.0
SAME = 0.1
WIDE = 10.0
APART = 1.5
NOISE = 1e-3  # relative codec error of models that have hardly moved, as before the learning rate has risen
EARLY = 8
LEAD = 16  # rounds by which honest nodes may differ
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing a few models."""

    state: Tensor | None  # (d,) to start from; None without a consistent majority
    cluster: tuple[int, ...]  # ascending indices of the models in the cluster
    outside: tuple[int, ...]  # indices of models that no honest member can have

    def round(self, rounds: Sequence[int]) -> int:
        """Return the lower median of the rounds of all models that an honest member can have, in the order of the models.

        Also of those that do not agree: a liar with a copy of one model is half of those that do, and could choose.
        """
        return median_low(at for i, at in enumerate(rounds) if i not in self.outside)


def agree(models: Sequence[Tensor], origin: Tensor, rounds: Sequence[int], after_part: Callable[[], None] = lambda: None) -> Agreement:
    """Find the majority among m >= 1 models (d,), finite, of these claimed rounds; `origin` (d,) is the initial one.

    A model s − r <= LEAD rounds ahead may have travelled s/r times as far, at most twice; a larger claimed difference allows nothing.
    Inputs are not modified and read from front to back, twice; additional memory is one model. `after_part` is called when a part of each
    was read, so that a caller whose models are pages of files can give these back.
    Raises ValueError: there is no model, or shapes or lengths differ.
    """
    if not models or len(rounds) != len(models) or any(model.shape != origin.shape for model in models):
        raise ValueError("models must be one or more of the origin's shape, with a round each")
    count = len(models)
    if count == 1:
        return Agreement(models[0].clone(), (0,), ())
    spread = _Spread(*_distances(models, origin, after_part))
    cluster = spread.cluster()
    if not cluster:
        return Agreement(None, (), ())
    return Agreement(_median([models[i] for i in cluster], after_part), cluster, spread.outside(cluster, rounds))


def are_nearer(models: Sequence[Tensor], own: Tensor, after_part: Callable[[], None] = lambda: None) -> bool:
    """Return whether m >= 1 models (d,), finite, are nearer to each other than any of them is to `own` (d,); `after_part` as of `agree`."""
    apart, away, _ = _distances(models, own, after_part)
    return max(map(max, apart)) <= min(away)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Distances of models from each other and from the initial one, whose length is `length`."""

    apart: Sequence[Sequence[float]]
    travelled: Sequence[float]
    length: float

    def nearest(self, i: int) -> list[int]:
        """Return the closest majority around a model, itself first."""
        order = sorted(range(len(self.apart)), key=lambda j: (j != i, self.apart[i][j]))
        return order[: len(self.apart) // 2 + 1]

    def cluster(self) -> tuple[int, ...]:
        """Return the models that agree with the closest majority, ascending; none if that is too wide."""
        majority = min(map(self.nearest, range(len(self.apart))), key=self._radius)
        center, scale = majority[0], self._radius(majority)
        if scale > max(APART * min(self.travelled[i] for i in majority), NOISE * self.length):
            return ()
        reach = max(NEAR * scale, SAME * self.travelled[center])
        return tuple(i for i, away in enumerate(self.apart[center]) if away <= reach)

    def _radius(self, majority: Sequence[int]) -> float:
        return self.apart[majority[0]][majority[-1]]

    def outside(self, cluster: Sequence[int], rounds: Sequence[int]) -> tuple[int, ...]:
        """Return the models that no honest member of the cluster's swarm can have in these rounds."""
        reached = median(rounds[i] for i in cluster)
        if reached < EARLY:
            return ()
        typical = APART * median(self.travelled[i] for i in cluster)
        wide = WIDE * max(self.apart[i][j] for i in cluster for j in cluster)
        others = [i for i in range(len(self.apart)) if i not in cluster]
        return tuple(i for i in others if min(self.apart[i][j] for j in cluster) > max(wide, typical * _stretch(rounds[i], reached)))


def _stretch(one: float, other: float) -> float:
    """Factor by which a model of one round may have travelled farther than that of another."""
    first, last = sorted((max(1.0, one), max(1.0, other)))
    return min(2.0, last / first) if last - first <= LEAD else 1.0


def _distances(models: Sequence[Tensor], origin: Tensor, after_part: Callable[[], None]) -> tuple[list[list[float]], list[float], float]:
    """Return each model's distances to the others and to the origin, and the origin's length, in float64; inf where squares overflow."""
    count, length = len(models), 0.0
    total = [[0.0] * (count + 1) for _ in models]
    for start in range(0, origin.numel(), _CHUNK):
        parts = [vector[start : start + _CHUNK].double() for vector in (*models, origin)]
        length += float(parts[count].square().sum())
        for i in range(count):
            for j in (*range(i), count):
                total[i][j] += float((parts[i] - parts[j]).square().sum())
        after_part()
    apart = [[math.sqrt(total[max(i, j)][min(i, j)]) for j in range(count)] for i in range(count)]
    return apart, [math.sqrt(row[count]) for row in total], math.sqrt(length)


def _median(models: Sequence[Tensor], after_part: Callable[[], None]) -> Tensor:
    """Return the coordinate-wise median."""
    out = torch.empty_like(models[0])
    half = len(models) // 2
    for start in range(0, out.numel(), _CHUNK):
        stop = start + _CHUNK
        ordered = torch.stack([model[start:stop].double() for model in models]).sort(0).values
        middle = ordered[half] if len(models) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
        out[start:stop] = middle.to(out.dtype)
        after_part()
    return out
