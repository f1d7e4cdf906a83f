"""Combining rules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from starling.gossip.catalogue import build
from starling.gossip.errors import ConfigError
from starling.robust.preaggregate.catalogue import Bucketing, Nnm
from starling.robust.rules.api import Combination, Composed, Preparation
from starling.robust.rules.bridge import Bridge
from starling.robust.rules.centered_clip import CenteredClip
from starling.robust.rules.clipped_mixing import CsNnm
from starling.robust.rules.clipping import ClippedGossip, CsPlus, NormBound, Sac
from starling.robust.rules.coordinate import MeaMed, Median, TrimmedMean
from starling.robust.rules.flag import Flag
from starling.robust.rules.foolsgold import FoolsGold
from starling.robust.rules.geometric import GeometricMedian
from starling.robust.rules.krum import Bulyan, Krum, MultiKrum
from starling.robust.rules.mean import Mean
from starling.robust.rules.minimum_diameter import Mda
from starling.robust.rules.nearest import Balance, Nna
from starling.robust.rules.ubar import Ubar

COMBINATIONS: Mapping[str, Callable[..., Combination]] = MappingProxyType(
    {
        "mean": Mean,
        "median": Median,
        "trimmed_mean": TrimmedMean,
        "meamed": MeaMed,
        "krum": Krum,
        "multi_krum": MultiKrum,
        "bulyan": Bulyan,
        "geometric_median": GeometricMedian,
        "mda": Mda,
        "centered_clip": CenteredClip,
        "sac": Sac,
        "cs_plus": CsPlus,
        "cs_nnm": CsNnm,
        "clipped_gossip": ClippedGossip,
        "norm_bound": NormBound,
        "nna": Nna,
        "ubar": Ubar,
        "balance": Balance,
        "bridge": Bridge,
        "flag": Flag,
        "foolsgold": FoolsGold,
    }
)
PREPARATIONS: Mapping[str, Callable[..., Preparation]] = MappingProxyType({"nnm": Nnm, "bucketing": Bucketing})


def rule(
    name: str, params: Mapping[str, Any] | None = None, before: str = "", before_params: Mapping[str, Any] | None = None
) -> Composed:
    """The rule that a name stands for; satisfies `starling.gossip.api.Rule`.

    Args:
        name: one of COMBINATIONS.
        params: of its constructor.
        before: one of PREPARATIONS, or "" for none.
        before_params: of that.

    Raises:
        ConfigError: unknown name or parameter, or a value that is refused.
    """
    first = build("robust", PREPARATIONS, before, before_params or {}) if before else None
    made = build("robust", COMBINATIONS, name, params or {})
    try:
        return Composed(made, first)
    except ValueError as error:
        raise ConfigError(f"robust.{error}") from error
