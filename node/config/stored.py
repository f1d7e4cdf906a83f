"""What the bytes of founded manifests say otherwise than settings do today: by them a swarm is known, so they stay. Torch-free.

mix.track, mix.drift_limit      of pet, are no more: the bytes say null
mix.residual, mix.outer_lr      of sparse_outer, which had neither: bytes without them mean 0 and 1, and not what is the default today
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_GONE: Mapping[str, tuple[str, ...]] = MappingProxyType({"pet": ("track", "drift_limit")})
"""By mix, keys that are no more."""
_WITHOUT: Mapping[str, Mapping[str, float]] = MappingProxyType({"sparse_outer": {"residual": 0.0, "outer_lr": 1.0}})
"""By mix, keys that it did not begin with, and what a founded manifest without them means."""


def read(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return plain settings of a founded manifest as they would be written today."""
    mix = raw.get("mix")
    return {**raw, "mix": {**_WITHOUT.get(str(mix.get("kind")), {}), **mix}} if isinstance(mix, dict) else raw


def write(plain: dict[str, Any]) -> None:
    """Change plain settings with all keys to those by whose bytes a manifest is known."""
    mix = plain["mix"]
    mix |= dict.fromkeys(_GONE.get(mix["kind"], ()))
    for key, value in _WITHOUT.get(mix["kind"], {}).items():
        if mix[key] == value:
            del mix[key]
