"""Committed effects as the bytes that crossed the wire, from the commit until they are mixed: an eighth of the numbers that they say.

Shapes: D numbers of the shared vector, k of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from starling.gossip.api import Drift, Effect
from starling.gossip.compress.support import Support

FEWEST = 1 << 16  # values of an effect that is worth it


@dataclass(frozen=True, slots=True)
class SealedDrift:
    """As `starling.gossip.api.Drift`, without its value."""

    decode: Callable[[], Tensor]
    weight: float


@dataclass(frozen=True, slots=True)
class Sealed:
    """As `starling.gossip.api.Effect`, without its values (k,): `decode` makes them anew, the same bits each time."""

    peer: str
    support: Support
    decode: Callable[[], Tensor]
    norm: float  # Euclidean, of the values
    theta: float
    gain: float
    drift: SealedDrift | None = None


def sealed(effect: Effect, value: Callable[[], Tensor], drift: Callable[[], Tensor]) -> Effect | Sealed:
    """An effect whose values, and those of its drift, can be made anew; itself where they are few."""
    if effect.value.numel() < FEWEST:
        return effect
    moved = None if effect.drift is None else SealedDrift(drift, effect.drift.weight)
    return Sealed(effect.peer, effect.support, value, norm(effect), effect.theta, effect.gain, moved)


def opened(effect: Effect | Sealed) -> Effect:
    """With its values."""
    if isinstance(effect, Effect):
        return effect
    drift = None if effect.drift is None else Drift(effect.drift.decode(), effect.drift.weight)
    return Effect(effect.peer, effect.support, effect.decode(), effect.theta, effect.gain, drift)


def norm(effect: Effect | Sealed) -> float:
    """Euclidean norm of its values."""
    return effect.norm if isinstance(effect, Sealed) else float(effect.value.norm())
