"""SCAFFOLD, SCALLION and SCAFCOM: control variates at a server; a node sends one compressed vector per round.

Shapes: n nodes, d parameters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Round:
    """State after a round."""

    up: float  # numbers that a node sent, so far; positions not counted
    down: float  # numbers that the server sent to each, so far
    model: Numbers  # (d,) the server's


def controlled(
    kind: Literal["scaffold", "scallion", "scafcom"],
    gradient: Callable[[int, Numbers], Numbers],
    x: Numbers,
    n: int,
    *,
    lr: float,
    steps: int,
    kept: int,
    seed: int,
    mean_of: float = 0.2,
    server_lr: float = 1.0,
    share: float = 1.0,
) -> Iterator[Round]:
    """Yield endless rounds. Of node i, v_i is the mean gradient of K local steps along g − c_i + c:

        scaffold   c_i <- v_i                                     sent whole
        scallion   q = α C(v_i − c_i), c_i += q                   C unbiased, `kept` of d drawn; α = kept/d
        scafcom    u_i += β (v_i − u_i), q = C(u_i − c_i), c_i += q      C the `kept` largest
        server     x −= η_g K η (c + mean q/α),   c += mean q     α = 1 but for scallion, for which it makes the step unbiased

    Source: Karimireddy et al. 2020 (arXiv:1910.06378); Huang, Li and Li 2023 (arXiv:2308.08165), whose step has no 1/α.

    Args:
        gradient: (node, model (d,)) -> (d,).
        x: (d,) where the server begins.
        lr: η > 0; steps: K >= 1; server_lr: η_g > 0.
        kept: numbers of a message, in [1, d].
        mean_of: β of scafcom, in (0, 1].
        share: of the nodes, each drawn by itself, that take part in a round, in (0, 1].
    """
    d = len(x)
    if not 1 <= kept <= d:
        raise ValueError(f"kept must be in [1, d = {d}], got {kept}")
    return _rounds(kind, gradient, x.copy(), n, (lr, steps, kept, mean_of, server_lr, share), np.random.default_rng(seed))


def _rounds(
    kind: str,
    gradient: Callable[[int, Numbers], Numbers],
    x: Numbers,
    n: int,
    settings: tuple[float, int, int, float, float, float],
    chance: np.random.Generator,
) -> Iterator[Round]:
    lr, steps, kept, mean_of, server_lr, share = settings
    d, up, down = len(x), 0, 0
    control, own, mean = np.zeros(d), np.zeros((n, d)), np.zeros((n, d))
    alpha = kept / d if kind == "scallion" else 1.0
    while True:
        there, moved = np.flatnonzero(chance.random(n) < share), np.zeros(d)
        for i in there:
            y = x.copy()
            for _ in range(steps):
                y -= lr * (gradient(int(i), y) - own[i] + control)
            v = (x - y) / (steps * lr) + own[i] - control
            mean[i] += mean_of * (v - mean[i])
            message = _message(kind, v - own[i], mean[i] - own[i], kept, chance)
            own[i] += alpha * message
            moved += alpha * message
            up += d if kind == "scaffold" else kept
        down += d * len(there)
        if len(there):
            x -= server_lr * steps * lr * (control + moved / (len(there) * alpha))
        control += moved / n
        yield Round(up / n, down / n, x.copy())


def _message(kind: str, change: Numbers, of_mean: Numbers, kept: int, chance: np.random.Generator) -> Numbers:
    if kind == "scaffold":
        return change
    message, d = np.zeros_like(change), len(change)
    if kind == "scallion":
        at = chance.choice(d, kept, replace=False)
        message[at] = change[at] * d / kept
    else:
        at = np.argsort(-np.abs(of_mean))[:kept]
        message[at] = of_mean[at]
    return message
