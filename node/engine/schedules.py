"""The learning rate of each round, and the phase that corrections divide by: where they meet rates."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from starling.gossip.api import Phase
from starling.node.config.schema import OptimizerSection

CLIMB = 10.0  # `Phase.climb` for sgd (decision 0023 has measurements)
DECAYS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "constant": lambda _done, _floor: 1.0,
        "cosine": lambda done, floor: floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done)),
        "linear": lambda done, floor: floor + (1.0 - floor) * (1.0 - done),
        "exponential": lambda done, floor: math.pow(floor, done),
    }
)
"""(share of the rounds after the warm-up that are done, floor) -> the rate as a share of lr."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rate in each round: linear warm-up to lr, then decay to floor · lr at the end of the run; lr throughout an endless run.

    It is never 0, because the gain of the correction divides by it: lr > 0, floor in (0, 1]. `warmup` is a share of the rounds, in [0, 1);
    0 rounds are an endless run.
    """

    kind: Literal["constant", "cosine", "linear", "exponential"]
    lr: float
    rounds: int
    warmup: float = 0.0
    floor: float = 0.05

    def at(self, round: int) -> float:
        """Return the rate of `round` >= 0; constant after the last one."""
        if self.rounds == 0:
            return self.lr
        warm = self.warmup * self.rounds
        if round < warm:
            return self.lr * min(1.0, (round + 1) / warm)
        done = min(1.0, (round - warm) / (self.rounds - warm))
        return self.lr * DECAYS[self.kind](done, self.floor)


def schedule(section: OptimizerSection, rounds: int) -> Schedule:
    """Return the manifest's schedule over `rounds` (0: endless)."""
    return Schedule(section.schedule, section.lr, rounds, section.warmup, section.floor)


def ramp(rounds_since_join: int, ramp_rounds: int) -> float:
    """Return the factor in (0, 1] on a late joiner's rate, 1 after `ramp_rounds` >= 0: its optimiser's state is empty."""
    return min(1.0, (rounds_since_join + 1) / max(1, ramp_rounds))


def phase(section: OptimizerSection, rates: Schedule, round: int, local_steps: float, ramped: float = 1.0) -> Phase:
    """Return the phase of a round with its eta_c, where a late joiner's rate is `ramped`, in (0, 1].

    For sgd a constant unit gradient moves a coordinate by lr/(1 − momentum) a step. All others are corrected in units of their updates;
    their flows' gain keeps to the highest rate.
    """
    kept, climb = (1.0 - section.momentum, CLIMB) if section.kind == "sgd" else (1.0, 1.0)
    return Phase(round, local_steps, rates.at(round) * ramped / kept, highest_lr=rates.lr / kept, climb=climb)
