"""Faults of a memory network: rules from (source, destination, time) to the fate of a frame. The first rule that decides applies.

Random numbers come from a seed and a counter per directed link, so a run replays exactly.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from starling.gossip.seeds import derive

DEFAULT_DELAY_S = 0.001


@dataclass(frozen=True, slots=True)
class Deliver:
    """The frame arrives after `after_s` >= 0 and, on a link with a rate, behind earlier ones."""

    after_s: float = DEFAULT_DELAY_S
    bytes_per_s: float = inf


@dataclass(frozen=True, slots=True)
class Drop:
    """The frame is lost; a dial fails."""


Rule = Callable[[str, str, float], Deliver | Drop | None]
"""(src, dst, now) -> fate, or None to leave it to the next rule."""


class _LinkRandom:
    """Uniform numbers in [0, 1), independent per directed link and repeatable."""

    def __init__(self, seed: int, use: str) -> None:
        self._seed, self._use = seed, use
        self._drawn: Counter[tuple[str, str]] = Counter()

    def draw(self, src: str, dst: str) -> float:
        self._drawn[src, dst] += 1
        return derive(self._seed, self._use, src, dst, self._drawn[src, dst]) / 2**63


def loss(probability: float, seed: int = 0) -> Rule:
    """Return a rule by which each frame is lost with this probability, in [0, 1]."""
    random = _LinkRandom(seed, "loss")

    def rule(src: str, dst: str, _now: float) -> Drop | None:
        return Drop() if random.draw(src, dst) < probability else None

    return rule


def delay(mean_s: float, jitter_s: float = 0.0, seed: int = 0) -> Callable[[str, str, float], Deliver]:
    """Return a rule by which each frame takes mean ± jitter seconds, uniformly; never less than 0."""
    random = _LinkRandom(seed, "delay")

    def rule(src: str, dst: str, _now: float) -> Deliver:
        return Deliver(max(0.0, mean_s + jitter_s * (2.0 * random.draw(src, dst) - 1.0)))

    return rule
