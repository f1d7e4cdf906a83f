"""The overlays by the names of `overlay.kind` in the configuration."""

from __future__ import annotations

from typing import Any

from starling.gossip.catalogue import Catalogue, Entry, construct
from starling.gossip.errors import ConfigError
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.weights import RULES, Lazy

OVERLAYS: Catalogue[Overlay, None] = Catalogue(
    "overlay.kind",
    "starling.overlays",
    {
        kind: Entry(f"starling.gossip.overlay.{where}")
        for kind, where in {
            "ring": "static:Ring",
            "grid": "grid:Grid",
            "torus": "grid:Torus",
            "static_exponential": "static:StaticExponential",
            "erdos_renyi": "random_graph:ErdosRenyi",
            "half_random": "random_graph:HalfRandom",
            "d_equi_static": "equitopo:DirectedEquiStatic",
            "u_equi_static": "equitopo:UndirectedEquiStatic",
            "complete": "static:Complete",
            "alone": "static:Alone",
            "one_peer_exponential": "one_peer:OnePeerExponential",
            "hypercube": "one_peer:Hypercube",
            "hyper_hypercube": "base_k:HyperHypercube",
            "simple_base_k": "base_k:SimpleBaseK",
            "base_k": "base_k:BaseK",
            "random_matching": "one_peer:RandomMatching",
            "od_equi_dyn": "equitopo:DirectedEquiDyn",
            "ou_equi_dyn": "equitopo:UndirectedEquiDyn",
            "rendezvous": "rendezvous:Rendezvous",
            "sticky": "sticky:Sticky",
            "pull": "pull:Pull",
        }.items()
    },
    members=("symmetric", "row", "period"),
)
WEIGHTS = (*RULES, "lazy")
"""What `overlay.weights` may say: `lazy` for every kind, a rule for those where degrees differ."""


def overlay(
    kind: str, k: int, seed: int, *, average_every: int = 0, overlap: bool = False, weights: str | None = None,
    trusted: bool = False, **params: Any,
) -> Overlay:  # fmt: skip
    """The overlay of a manifest. Of `k` and `seed` a kind gets what it takes; of the others it must take what is given.

    Args:
        kind: a name in OVERLAYS, or "module:Class".
        k: base_k, simple_base_k, hyper_hypercube, pull, sweeps of periodic averaging: most peers of a node in one round, >= 1.
        seed: root of shared chance, 0 <= seed < 2**63.
        average_every: H > 0: an exact global average by a sweep after every H rounds with local steps. 0: none.
        overlap: local steps go on during a sweep. Needs average_every.
        weights: a name in WEIGHTS; None: the kind's own rule.
        trusted: the machine's owner agrees to import what "module:Class" names.
        **params: the kind's own, e.g. factor, basis or eta; None: its default.

    Raises:
        ConfigError: unknown kind, a parameter it does not take, or a value it refuses.
    """
    constructor = OVERLAYS.load(kind, trusted=trusted)
    taken = OVERLAYS.parameters(kind, trusted=trusted)
    given: dict[str, Any] = {key: value for key, value in {"k": k, "seed": seed}.items() if key in taken}
    given |= {key: value for key, value in params.items() if value is not None}
    if weights not in {None, "lazy"}:
        if "weights" not in taken:
            raise ConfigError(
                f"overlay.weights: {kind} has a rule of its own, it may only be made lazy; got {weights!r}"
            )
        given["weights"] = weights
    part = construct("overlay", kind, constructor, given)
    if weights == "lazy":
        part = Lazy(part)
    if not average_every:
        if overlap:
            raise ConfigError("overlay.overlap: there is nothing to overlap with while overlay.average_every = 0")
        return part
    sweeps = {"inner": part, "every": average_every, "k": k, "overlap": overlap}
    return construct("overlay", "periodic", Periodic, sweeps)


def check(part: Overlay, n: int) -> None:
    """Whether an overlay is defined for n members.

    Args:
        part: from `overlay`.
        n: members, >= 1.

    Raises:
        ConfigError: its kind is undefined for n, or its k is larger than the number of other members.
    """
    match part:
        case Periodic(inner=inner, k=k):
            _check_k(k, n)
            check(inner, n)
        case Lazy(overlay=inner):
            check(inner, n)
        case _ if isinstance(getattr(part, "k", None), int):
            _check_k(part.k, n)  # type: ignore[attr-defined]
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
