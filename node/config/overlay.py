"""Make the overlay that a manifest names, and check that it exists for so many members. Torch-free."""

from types import MappingProxyType
from typing import Final

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.sparse_outer import MOST_MEMBERS
from starling.gossip.overlay import catalogue
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.measure import check_static, matrix
from starling.node.config.robustness import check_rule
from starling.node.config.schema import Manifest

_SOME = 64  # rounds that are checked


def overlay_of(manifest: Manifest, *, trusted: bool = True) -> Overlay:
    """Return the overlay of a swarm; `trusted`: the machine's owner has agreed to import what "module:Class" names, which is asked before
    anything of a swarm runs.

    Raises ConfigError: parameters that its kind does not take, or refuses.
    """
    section, params = manifest.overlay, manifest.overlay.params()
    return catalogue.overlay(
        section.kind,
        params.pop("k", 1),
        manifest.seed,
        average_every=section.average_every,
        average_k=section.average_k,
        overlap=section.overlap,
        gossips=manifest.pace.gossips,
        weights=section.weights,
        trusted=trusted,
        **params,
    )


_EXACT: Final = MappingProxyType({"select": "full", "request": "identity", "response": "identity"})


def inexact(manifest: Manifest) -> list[str]:
    """Return a warning about what keeps averages over all members from being exact."""
    lossy = {key: getattr(manifest.compress, key) for key, exact in _EXACT.items() if getattr(manifest.compress, key) != exact}
    if not manifest.overlay.average_every or not lossy:
        return []
    said = ", ".join(f"compress.{key} = {value}" for key, value in lossy.items())
    exact = " ".join(f"--set compress.{key}={_EXACT[key]}" for key in lossy)
    return [f"overlay.average_every: averages of all go through {said}, so they are not exact; `{exact}` makes them so"]


def check_members(manifest: Manifest, n: int) -> None:
    """Check that overlay and mixing algorithm support n members, for callers who know n before anything starts.

    Raises ConfigError: they do not, and why.
    """
    if manifest.pace.kind == "clock" and manifest.overlay.kind == "sticky":
        return  # sticky edges exist for any number of members
    graph = overlay_of(manifest)
    catalogue.check(graph, n)
    facts = MIXERS.facts(manifest.mix.kind, trusted=True)
    if facts.broadcasts and n > MOST_MEMBERS:
        raise ConfigError(
            f"mix.kind: {manifest.mix.kind} sends every message to all members, of whom there may be {MOST_MEMBERS}, got {n}; "
            "try `--set mix.kind=pet`"
        )
    if facts.gathers:
        rounds = min(graph.period(n) or 1, _SOME)
        check_rule(manifest, max(len(graph.row(0, n, turn)) for turn in range(rounds)))
    if not facts.static:
        return
    try:
        check_static(matrix(graph, n, 0), lazy=manifest.mix.kind != "d2")
    except ValueError as error:
        raise ConfigError(
            f"mix.kind: on overlay={manifest.overlay.kind} of {n} nodes {error}; try `--set mix.kind=exact_diffusion`, or "
            "`--set overlay.weights=lazy`"
        ) from error
