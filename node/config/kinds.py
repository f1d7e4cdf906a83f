"""Which parts a configuration names, and whether this machine has them. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starling.gossip.catalogue import Catalogue
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.catalogue import OVERLAYS
from starling.node.catalogues import OPTIMIZERS, TASKS
from starling.node.config.schema import Section
from starling.robust.catalogue import PREAGGREGATIONS, RULES

BUDGET = "budget"
"""Of compress.select: not a selector but a rule that chooses one, `node.engine.compression`."""
CATALOGUES: Mapping[str, Catalogue[Any, Any]] = MappingProxyType(
    {
        "task.kind": TASKS,
        "optimizer.kind": OPTIMIZERS,
        "mix.kind": MIXERS,
        "overlay.kind": OVERLAYS,
        "robust.rule": RULES,
        "robust.before": PREAGGREGATIONS,
        "compress.select": SELECTORS,
        "compress.request": QUANTIZERS,
        "compress.response": QUANTIZERS,
    }
)


def names(config: Section) -> dict[str, str]:
    """Key -> name of every part that a manifest, or a scenario, names."""
    chosen: dict[str, str] = {}
    for key in CATALOGUES:
        section, _, field = key.partition(".")
        name = getattr(getattr(config, section, None), field, "")
        if name and (key, name) != ("compress.select", BUDGET):
            chosen[key] = name
    return chosen


def check_names(config: Section) -> None:
    """Whether this machine has every part that a configuration names. Imports none of them.

    Raises:
        ConfigError: it has not; one line with the key, what is close and what there is.
    """
    for key, name in names(config).items():
        CATALOGUES[key].check(name, key)
