"""Committed effects as the bytes that crossed the wire, from the commit until they are mixed: an eighth of the numbers that they say.

Shapes: D numbers of the shared vector, k of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Effect
from starling.gossip.compress.support import Support
from starling.gossip.lazy_torch import Tensor

FEWEST = 1 << 16  # smallest number of values of an effect that is stored encoded


@dataclass(frozen=True, slots=True)
class EncodedEffect:
    """A `starling.gossip.api.Effect` whose values (k,) are decoded when they are needed, to the same bits each time."""

    peer: str
    support: Support
    decode: Callable[[], Tensor]
    theta: float
    gain: float
    keeps: float = 1.0
    memory: Any = None


def encoded(effect: Effect, value: Callable[[], Tensor]) -> Effect | EncodedEffect:
    """Replace the values of an effect by a function that recomputes them; return a short effect unchanged."""
    if effect.value.numel() < FEWEST:
        return effect
    return EncodedEffect(effect.peer, effect.support, value, effect.theta, effect.gain, effect.keeps, effect.memory)


def decoded(effect: Effect | EncodedEffect) -> Effect:
    """Return the effect with its values."""
    if isinstance(effect, Effect):
        return effect
    return Effect(effect.peer, effect.support, effect.decode(), effect.theta, effect.gain, effect.keeps, effect.memory)


def added(x: Tensor, effect: Effect | EncodedEffect) -> Tensor:
    """Return x (D,) plus all of an effect's values, a new tensor; decoded values make room for it."""
    if isinstance(effect, Effect):
        return effect.support.add(x, effect.value)
    return effect.support.onto(x, effect.decode())
