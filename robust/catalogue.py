"""Combining rules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gossip.catalogue import build
from gossip.errors import ConfigError
from robust.rules.api import Combination, Composed, Preparation
from robust.rules.before import Bucketing, Nnm
from robust.rules.bridge import Bridge
from robust.rules.centered_clip import CenteredClip
from robust.rules.clipped_mixing import CsNnm
from robust.rules.clipping import ClippedGossip, CsPlus, NormBound, Sac
from robust.rules.coordinate import MeaMed, Median, TrimmedMean
from robust.rules.diameter import Mda
from robust.rules.flag import Flag
from robust.rules.foolsgold import FoolsGold
from robust.rules.geometric import GeometricMedian
from robust.rules.krum import Bulyan, Krum, MultiKrum
from robust.rules.mean import Mean
from robust.rules.near import Balance, Nna
from robust.rules.ubar import Ubar

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
    """The rule that a name stands for; satisfies `gossip.api.Rule`.

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
