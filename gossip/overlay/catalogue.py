"""The overlays by the names of `overlay.kind` in the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

from starling.gossip.catalogue import build
from starling.gossip.errors import ConfigError
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.base_k import BaseK, HyperHypercube, SimpleBaseK
from starling.gossip.overlay.equitopo import (
    DirectedEquiDyn,
    DirectedEquiStatic,
    UndirectedEquiDyn,
    UndirectedEquiStatic,
)
from starling.gossip.overlay.grid import Grid, Torus
from starling.gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.pull import Pull
from starling.gossip.overlay.random_graph import ErdosRenyi, HalfRandom
from starling.gossip.overlay.rendezvous import Rendezvous
from starling.gossip.overlay.static import Alone, Complete, Ring, StaticExponential
from starling.gossip.overlay.sticky import Sticky
from starling.gossip.overlay.weights import RULES, Lazy

OVERLAYS: Mapping[str, Callable[..., Overlay]] = MappingProxyType(
    {
        "ring": Ring,
        "grid": Grid,
        "torus": Torus,
        "static_exponential": StaticExponential,
        "erdos_renyi": ErdosRenyi,
        "half_random": HalfRandom,
        "d_equi_static": DirectedEquiStatic,
        "u_equi_static": UndirectedEquiStatic,
        "complete": Complete,
        "alone": Alone,
        "one_peer_exponential": OnePeerExponential,
        "hypercube": Hypercube,
        "hyper_hypercube": HyperHypercube,
        "simple_base_k": SimpleBaseK,
        "base_k": BaseK,
        "random_matching": RandomMatching,
        "od_equi_dyn": DirectedEquiDyn,
        "ou_equi_dyn": UndirectedEquiDyn,
        "rendezvous": Rendezvous,
        "sticky": Sticky,
        "pull": Pull,
    }
)
WEIGHTS = (*RULES, "lazy")
"""What `overlay.weights` may say: `lazy` for every kind, a rule for those where degrees differ."""


def overlay(
    kind: str, k: int, seed: int, *, average_every: int = 0, overlap: bool = False, weights: str | None = None,
    factor: float | None = None, basis: int | None = None, eta: float | None = None,
) -> Overlay:  # fmt: skip
    """The overlay of a manifest. Of `k` and `seed` a kind gets what it takes; of the others it must take what is given.

    Args:
        kind: a name in OVERLAYS.
        k: base_k, simple_base_k, hyper_hypercube, pull, sweeps of periodic averaging: most peers of a node in one round, >= 1.
        seed: root of shared chance, 0 <= seed < 2**63.
        average_every: H > 0: an exact global average by a sweep after every H rounds with local steps. 0: none.
        overlap: local steps go on during a sweep. Needs average_every.
        weights: a name in WEIGHTS; None: the kind's own rule.
        factor: erdos_renyi: a of the edge probability (1 + a) ln n / n.
        basis: d_equi_static, u_equi_static: how many shifts.
        eta: od_equi_dyn, ou_equi_dyn: share of the basis graph.

    Raises:
        ConfigError: unknown kind, a parameter it does not take, or a value it refuses.
    """
    taken = inspect.signature(OVERLAYS[kind]).parameters if kind in OVERLAYS else {}
    params: dict[str, object] = {key: value for key, value in {"k": k, "seed": seed}.items() if key in taken}
    asked = {"factor": factor, "basis": basis, "eta": eta, "weights": None if weights == "lazy" else weights}
    params |= {key: value for key, value in asked.items() if value is not None}
    if kind in OVERLAYS and "weights" in params and "weights" not in taken:
        raise ConfigError(f"overlay.weights: {kind} has a rule of its own, it may only be made lazy; got {weights!r}")
    part = build("overlay", OVERLAYS, kind, params)
    if weights == "lazy":
        part = Lazy(part)
    if not average_every:
        if overlap:
            raise ConfigError("overlay.overlap: there is nothing to overlap with while overlay.average_every = 0")
        return part
    sweeps = {"inner": part, "every": average_every, "k": k, "overlap": overlap}
    return build("overlay", {"periodic": Periodic}, "periodic", sweeps)


def check(part: Overlay, n: int) -> None:
    """Whether an overlay can be had for n members.

    Args:
        part: from `overlay`.
        n: members, >= 1.

    Raises:
        ConfigError: its kind is undefined for n, or its k is larger than the number of peers there are.
    """
    match part:
        case Periodic(inner=inner, k=k):
            _check_k(k, n)
            check(inner, n)
        case Lazy(overlay=inner):
            check(inner, n)
        case BaseK(k=k) | SimpleBaseK(k=k) | HyperHypercube(k=k):
            _check_k(k, n)
        case Pull(k=k) if k >= max(2, n):
            raise ConfigError(f"overlay.k: must be < n = {n}, got {k}: nobody asks itself; try k = {max(1, n - 1)}")
    try:
        part.row(0, n, 0)
    except ValueError as error:
        raise ConfigError(f"overlay: {error}") from error


def _check_k(k: int, n: int) -> None:
    if k >= max(2, n):
        raise ConfigError(
            f"overlay.k: must be < n = {n}, got {k}: a node meets at most the n − 1 others (Takezawa et al. 2023, "
            f"arXiv:2305.11420); try k = {max(1, n - 1)}"
        )
