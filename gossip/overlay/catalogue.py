"""The overlays by the names of `overlay.kind` in the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gossip.catalogue import build
from gossip.overlay.api import Overlay
from gossip.overlay.base_k import BaseK
from gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from gossip.overlay.static import Ring, StaticExponential
from gossip.overlay.sticky import Sticky

OVERLAYS: Mapping[str, Callable[..., Overlay]] = MappingProxyType(
    {
        "ring": Ring,
        "static_exponential": StaticExponential,
        "one_peer_exponential": OnePeerExponential,
        "hypercube": Hypercube,
        "base_k": BaseK,
        "random_matching": RandomMatching,
        "sticky": Sticky,
    }
)


def overlay(kind: str, k: int, seed: int) -> Overlay:
    """The overlay of a manifest; of `k` and `seed` it gets what its kind takes.

    Args:
        kind: a name in OVERLAYS.
        k: base_k: most peers of a node in one round, >= 1.
        seed: root of shared chance, 0 <= seed < 2**63.

    Raises:
        ConfigError: unknown kind, or a value it refuses.
    """
    offered = {"k": k, "seed": seed}
    taken = inspect.signature(OVERLAYS[kind]).parameters if kind in OVERLAYS else {}
    return build("overlay", OVERLAYS, kind, {key: value for key, value in offered.items() if key in taken})
