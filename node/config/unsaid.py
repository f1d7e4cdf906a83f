"""What founded manifests mean that do not say it, as their mix did not have the keys yet. Torch-free.

By the bytes of a manifest a swarm is known, so what such swarms do is left out of them as it was then; what is the default today is said.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_WITHOUT: Mapping[str, Mapping[str, float]] = MappingProxyType({"sparse_outer": {"residual": 0.0, "outer_lr": 1.0}})
"""By mix, keys that it did not begin with, and what a founded manifest without them means."""


def meant(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return plain settings of a founded manifest with what they mean and do not say."""
    mix = raw.get("mix")
    return {**raw, "mix": {**_WITHOUT.get(str(mix.get("kind")), {}), **mix}} if isinstance(mix, dict) else raw


def leave_out(mix: dict[str, Any]) -> None:
    """Delete from a mix with all keys those that need not be said."""
    for key, value in _WITHOUT.get(mix["kind"], {}).items():
        if mix[key] == value:
            del mix[key]
