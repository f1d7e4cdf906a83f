"""Mixing algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from typing_extensions import TypeIs

from starling.gossip.api import Averaging, Gathering, Mixer, Swapping
from starling.gossip.mix.a2cid2 import A2Cid2
from starling.gossip.mix.all_gather import psgd
from starling.gossip.mix.defended_tracking import DefendedTracking
from starling.gossip.mix.dsgd import choco, dsgd
from starling.gossip.mix.exact_diffusion import d2, exact_diffusion
from starling.gossip.mix.gather import Gather
from starling.gossip.mix.gradient_tracking import beer, gradient_tracking
from starling.gossip.mix.k_gt import KGt
from starling.gossip.mix.outer import Outer
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.push_sum import PushSum
from starling.gossip.mix.quasi_global import QuasiGlobal
from starling.gossip.mix.r_fast import r_fast

MIXERS: Mapping[str, Callable[..., Mixer]] = MappingProxyType(
    {
        "pet": Pet,
        "dsgd": dsgd,
        "gradient_tracking": gradient_tracking,
        "k_gt": KGt,
        "quasi_global": QuasiGlobal,
        "exact_diffusion": exact_diffusion,
        "d2": d2,
        "a2cid2": A2Cid2,
        "choco": choco,
        "beer": beer,
        "push_sum": PushSum,
        "r_fast": r_fast,
        "psgd": psgd,
        "outer": Outer,
        "gather": Gather,
        "defended_tracking": DefendedTracking,
    }
)


def swaps(edge: Averaging | Swapping | Gathering) -> TypeIs[Swapping]:
    """Whether ends swap messages of their own instead of applying one difference."""
    return hasattr(edge, "message")


def gathers(edge: Averaging | Swapping | Gathering) -> TypeIs[Gathering]:
    """Whether nodes ask peers for their vectors and combine what they were told."""
    return hasattr(edge, "rule")
