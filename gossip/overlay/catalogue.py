"""The overlays by the names of `overlay.kind` in the configuration."""

from typing import Any

from starling.gossip.catalogue import Catalogue, Entry, construct
from starling.gossip.errors import ConfigError
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.repeated import Repeated
from starling.gossip.overlay.weights import Lazy

_EXPERIMENTAL = frozenset(
    {"grid", "erdos_renyi", "half_random", "d_equi_static", "u_equi_static", "hyper_hypercube", "simple_base_k", "rendezvous"}
)
OVERLAYS: Catalogue[Overlay, None] = Catalogue(
    "overlay.kind",
    "starling.overlays",
    {
        kind: Entry(f"starling.gossip.overlay.{where}", maturity="experimental" if kind in _EXPERIMENTAL else "stable")
        for kind, where in {
            "ring": "static:Ring",
            "grid": "static:Grid",
            "torus": "static:Torus",
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
            "rendezvous": "one_peer:Rendezvous",
            "sticky": "sticky:Sticky",
            "pull": "pull:Pull",
        }.items()
    },
    members=("symmetric", "row", "period"),
    supplied=("seed", "weights"),
)


def overlay(
    kind: str,
    k: int,
    seed: int,
    *,
    average_every: int = 0,
    average_k: int | None = None,
    overlap: bool = False,
    gossips: int = 1,
    weights: str | None = None,
    trusted: bool = False,
    **params: Any,
) -> Overlay:
    """Return the overlay of a manifest; the arguments are the keys of its section `overlay`, and `pace.gossips`, None is the default.

    Of `k` and `seed`, the swarm's root seed, a kind gets what it takes; it must take those of `params`, e.g. factor, basis or eta.
    `trusted`: the machine's owner agrees to import what "module:Class" names. Raises ConfigError: unknown kind, a parameter it does
    not take, or a value it refuses.
    """
    constructor = OVERLAYS.load(kind, trusted=trusted)
    taken = OVERLAYS.parameters(kind, trusted=trusted)
    given: dict[str, Any] = {key: value for key, value in {"k": k, "seed": seed}.items() if key in taken}
    given |= {key: value for key, value in params.items() if value is not None}
    if weights not in {None, "lazy"}:
        if "weights" not in taken:
            raise ConfigError(f"overlay.weights: {kind} has its own weights, which may only be made lazy; got {weights!r}")
        given["weights"] = weights
    part = construct("overlay", kind, constructor, given)
    if weights == "lazy":
        part = Lazy(part)
    if not average_every:
        if overlap:
            raise ConfigError("overlay.overlap: there is nothing to overlap with while overlay.average_every = 0")
        return part if gossips == 1 else construct("pace", "gossips", Repeated, {"inner": part, "times": gossips})
    sweeps = {"inner": part, "every": average_every, "k": average_k or k, "overlap": overlap}
    return construct("overlay", "periodic", Periodic, sweeps)


def check(part: Overlay, n: int) -> None:
    """Raise ConfigError if the overlay's kind is undefined for n members, or its k is larger than the number of other members."""
    match part:
        case Periodic(inner=inner, k=k):
            _check_k(k, n)
            check(inner, n)
        case Lazy(overlay=inner) | Repeated(inner=inner):
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
