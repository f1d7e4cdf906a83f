"""Mixing algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from typing_extensions import TypeIs

from gossip.api import Averaging, Mixer, Swapping
from gossip.mix.dsgd import Dsgd
from gossip.mix.gradient_tracking import GradientTracking
from gossip.mix.pet import Pet

MIXERS: Mapping[str, Callable[..., Mixer]] = MappingProxyType(
    {"pet": Pet, "dsgd": Dsgd, "gradient_tracking": GradientTracking}
)


def swaps(edge: Averaging | Swapping) -> TypeIs[Swapping]:
    """Whether ends swap messages of their own instead of applying one difference."""
    return hasattr(edge, "message")
