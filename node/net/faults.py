"""What may go wrong on a memory network: rules from (source, destination, time) to a fate. The first answer wins.

Chance is drawn from a seed and a counter per directed link, so a run replays exactly whatever else happens around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf

from starling.gossip.seeds import derive

DEFAULT_DELAY_S = 0.001


@dataclass(frozen=True, slots=True)
class Deliver:
    """The frame arrives.

    Args:
        after_s: seconds under way, >= 0.
        bytes_per_s: rate of this directed link; frames queue behind one another.
    """

    after_s: float = DEFAULT_DELAY_S
    bytes_per_s: float = inf


@dataclass(frozen=True, slots=True)
class Drop:
    """The frame is lost, silently; a dial finds nobody."""


Rule = Callable[[str, str, float], Deliver | Drop | None]
"""(src, dst, now) -> fate, or None: no opinion."""


class _Chance:
    """Uniform numbers in [0, 1), independent per directed link and repeatable."""

    def __init__(self, seed: int, use: str) -> None:
        self._seed, self._use = seed, use
        self._drawn: Counter[tuple[str, str]] = Counter()

    def draw(self, src: str, dst: str) -> float:
        self._drawn[src, dst] += 1
        return derive(self._seed, self._use, src, dst, self._drawn[src, dst]) / 2**63


def loss(probability: float, seed: int = 0) -> Rule:
    """Each frame is lost with this probability, in [0, 1]."""
    chance = _Chance(seed, "loss")

    def rule(src: str, dst: str, _now: float) -> Drop | None:
        return Drop() if chance.draw(src, dst) < probability else None

    return rule


def delay(mean_s: float, jitter_s: float = 0.0, seed: int = 0) -> Callable[[str, str, float], Deliver]:
    """Each frame takes mean ± jitter seconds, uniformly; never less than 0."""
    chance = _Chance(seed, "delay")

    def rule(src: str, dst: str, _now: float) -> Deliver:
        return Deliver(max(0.0, mean_s + jitter_s * (2.0 * chance.draw(src, dst) - 1.0)))

    return rule


def partition(groups: Sequence[Collection[str]], start_s: float = -inf, end_s: float = inf) -> Rule:
    """From `start_s` until before `end_s` nothing passes between different groups. A peer in no group is cut off."""
    group_of = {peer: index for index, group in enumerate(groups) for peer in group}

    def rule(src: str, dst: str, now: float) -> Drop | None:
        together = group_of.get(src, -1) == group_of.get(dst, -2)
        return None if together or not start_s <= now < end_s else Drop()

    return rule


def slow(peer: str, bytes_per_s: float, after_s: float = DEFAULT_DELAY_S) -> Rule:
    """Every link of this peer, both ways, carries so many bytes a second."""

    def rule(src: str, dst: str, _now: float) -> Deliver | None:
        return Deliver(after_s, bytes_per_s) if peer in (src, dst) else None

    return rule
