"""A swarm as one matrix product per round: the table values of mixing algorithms, with production functions on all rows at once.

Exchanges are exact and of whole vectors, and W is applied as given, directed or not; the reference trajectory and the simulator cover
real edges.

Shapes: n nodes, d parameters, D numbers of the shared vector.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starling.gossip.api import Mixer, Phase
from starling.gossip.mix.kinds import SWAPPED, kind_of
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.measure import matrix
from tests.harness.quadratics import relative_error

LOST = 1e8
"""A model with a larger coordinate has diverged."""


def matrices(overlay: Overlay, n: int) -> list[Tensor]:
    """Return W (n, n) of each round of a period."""
    period = overlay.period(n)
    assert period is not None
    return [torch.from_numpy(matrix(overlay, n, turn)) for turn in range(period)]


def cycle(Ws: list[Tensor]) -> Callable[[int], Tensor]:
    """Return round -> W, periodically."""
    return lambda turn: Ws[turn % len(Ws)]


def walk(
    mixer: Mixer,
    W: Callable[[int], Tensor],
    gradient: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    lr: float,
    steps: int = 1,
    momentum: float = 0.0,
    phase: Callable[[int], Phase] | None = None,
) -> Iterator[Tensor]:
    """Yield the models (n, d) after each round, without end.

    Args:
        mixer: any with exchanges of differences.
        W: round -> (n, n).
        gradient: models (n, d) -> the nodes' gradients; called once per local step.
        x: (n, d) the initial models.
        lr: of a local step, x <- x − lr·m with m <- momentum·m + direction.
        steps: local steps of a round.
        momentum: of the local optimiser, in [0, 1).
        phase: round -> its phase, whose local_steps are done; by default all rounds are equal.
    """
    assert kind_of(mixer.edge) not in SWAPPED
    state: Any = mixer.start(x)
    m = torch.zeros_like(x)
    flows = torch.zeros_like(mixer.shared(state, x))
    turn = 0
    while True:
        now = phase(turn) if phase else Phase(turn, steps, lr / (1.0 - momentum))
        for _ in range(int(now.local_steps)):
            direction, state = mixer.correct(state, gradient(x))
            m = momentum * m + direction
            x = x - lr * m
        x, state = mixer.publish(state, x, now)
        shared = mixer.shared(state, x)
        mixed = W(turn) @ shared
        if now.local_steps and (half := mixer.edge.gain(0.5, 1.0, now)):  # the gain of a link with weight 1/2
            flows = mixer.edge.flow(flows, 2.0 * half * (mixed - shared))
            state = mixer.corrected(state, flows)
        x, state = mixer.absorb(state, x, mixed, now)
        yield x
        turn += 1


def iterate(
    mixer: Mixer, W: Callable[[int], Tensor], gradient: Callable[[Tensor], Tensor], x: Tensor, rounds: int, **options: Any
) -> Tensor | None:
    """Return the models (n, d) after `rounds`, or None if they diverged. `options` as of `walk`."""
    for turn, after in enumerate(walk(mixer, W, gradient, x, **options), 1):
        x = after
        if (turn % 50 == 0 or turn == rounds) and not bool((x.abs() < LOST).all()):
            return None
        if turn == rounds:
            break
    return x


def error(x: Tensor | None, x_star: Tensor) -> float:
    """Return the relative squared error, infinite for diverged models."""
    return np.inf if x is None else relative_error(x, x_star)
