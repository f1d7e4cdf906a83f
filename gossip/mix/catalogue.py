"""Mixing algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from typing_extensions import TypeIs

from gossip.api import Averaging, Mixer, Swapping
from gossip.mix.a2cid2 import A2Cid2
from gossip.mix.dsgd import Dsgd
from gossip.mix.exact_diffusion import d2, exact_diffusion
from gossip.mix.gradient_tracking import GradientTracking
from gossip.mix.k_gt import KGt
from gossip.mix.pet import Pet
from gossip.mix.quasi_global import QuasiGlobal

MIXERS: Mapping[str, Callable[..., Mixer]] = MappingProxyType(
    {
        "pet": Pet,
        "dsgd": Dsgd,
        "gradient_tracking": GradientTracking,
        "k_gt": KGt,
        "quasi_global": QuasiGlobal,
        "exact_diffusion": exact_diffusion,
        "d2": d2,
        "a2cid2": A2Cid2,
    }
)


def swaps(edge: Averaging | Swapping) -> TypeIs[Swapping]:
    """Whether ends swap messages of their own instead of applying one difference."""
    return hasattr(edge, "message")
