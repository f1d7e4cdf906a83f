"""List what is experimental in a configuration, for people. Torch-free.

A built-in part is *stable* once a default, a preset, an example or a recipe of the benchmarks uses it: it keeps its keys and its meaning
while manifests have the format they have. All others are *experimental*: they may change, or go, without notice.
"""

from collections.abc import Iterator

from starling.node.catalogues import TRAINERS
from starling.node.config.parts import KINDS
from starling.node.config.schema import Manifest

_ASKED_FOR = frozenset(TRAINERS.facts(name).key for name in TRAINERS.experimental)


def label(key: str) -> str:
    """Return what is experimental about a key of a configuration: "Experimental.", or the names that it may have; "": nothing is."""
    if key in KINDS:
        names = ", ".join(KINDS[key].experimental)
        return f"Experimental: {names}." if names else ""
    return "Experimental." if key in _ASKED_FOR else ""


def experimental(manifest: Manifest) -> Iterator[str]:
    """Yield the experimental parts that a manifest uses, each as "key = value"."""
    for key, parts in KINDS.items():
        section, _, field = key.partition(".")
        if (name := getattr(getattr(manifest, section), field)) in parts.experimental:
            yield f"{key} = {name}"
    if manifest.crew.stages > 1 and "crew.stages" in _ASKED_FOR:
        yield f"crew.stages = {manifest.crew.stages}"
