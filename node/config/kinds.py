"""Which parts a configuration names, and which keys they take: a key that the chosen kind does not take is refused. Torch-free.

A section holds the keys of all its kinds, each with a default. Which of them a kind takes follows from its constructor; those that
depend on something else are listed in `_COMMON` and `_KIND`. Written down are only the keys that are taken, so what is shown
is what has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from starling.gossip.catalogue import Catalogue
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS
from starling.gossip.errors import ConfigError
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


# --- keys -----------------------------------------------------------------------------------------------------

_Values = Mapping[str, Any]
_COMMON: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "mix": frozenset({"kind", "theta", "clip_norm"}),
        "overlay": frozenset({"kind", "rerank_every", "weights", "average_every", "overlap"}),
        "robust": frozenset({"rule", "before"}),
        "compress": frozenset({"select", "request", "response"}),
        "optimizer": frozenset({"kind", "lr", "schedule", "warmup", "floor", "correction_lr"}),
        "admission": frozenset({"kind", "per_prefix"}),
        "partition": frozenset({"kind", "shards"}),
    }
)
_KIND: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "mix": {"pet": frozenset({"settled_edges"})},
        "overlay": {"sticky": frozenset({"degree"})},
        "compress": {"budget": frozenset({"budget_bytes"}), "layered": frozenset({"ratio", "budget_bytes"})},
        "optimizer": {"sgd": frozenset({"momentum", "weight_decay"}), "adamw": frozenset({"weight_decay"})},
        "admission": {
            "open": frozenset({"bits", "memory_kib", "epoch_s"}),
            "invite": frozenset({"depth", "quota"}),
            "allow": frozenset({"members"}),
        },
        "partition": {"dirichlet": frozenset({"alpha"})},
    }
)
"""What kinds take besides `_COMMON` and the parameters of their constructors."""
_FEEDBACK: Mapping[str, str] = MappingProxyType(
    {"feedback_beta": "ef21_sgdm", "feedback_control": "econtrol", "feedback_momentum": "dgc"}
)
"""Keys of mix.kind = psgd -> the only mix.feedback that takes them."""
_CONSTRUCTED: Mapping[str, str] = MappingProxyType(
    {"mix": "mix.kind", "overlay": "overlay.kind", "robust": "robust.rule", "compress": "compress.select"}
)
"""Sections whose kinds' constructors say what they take."""
_SELECTOR = MappingProxyType({"robust": "rule", "compress": "select"})


def selector(section: str) -> str:
    """The key of a section that names its kind."""
    return _SELECTOR.get(section, "kind")


def taken(section: str, values: _Values) -> frozenset[str] | None:
    """Keys that the chosen kind takes; None where any may be: sections without kinds, and kinds of which nothing is known.

    Args:
        section: of a manifest or scenario: "mix", "overlay", …
        values: of all its keys, defaults included.
    """
    kind = values.get(selector(section))
    if section not in _COMMON or not isinstance(kind, str):
        return None
    keys = _COMMON[section] | _KIND.get(section, {}).get(kind, frozenset())
    if section in _CONSTRUCTED and kind != BUDGET:
        catalogue = CATALOGUES[_CONSTRUCTED[section]]
        if kind not in catalogue:  # or "module:Class", which is not imported without consent
            return None
        keys |= frozenset(catalogue.parameters(kind)) | (frozenset() if kind in catalogue.built_in else {"params"})
    elif section == "optimizer" and kind not in OPTIMIZERS.built_in:
        keys |= {"params"}
    if section == "mix":
        keys -= {key for key, feedback in _FEEDBACK.items() if values.get("feedback") != feedback}
    if section == "overlay" and values.get("average_every"):
        keys |= {"k"}
    if section == "robust":
        keys |= {"nnm": {"b"}, "bucketing": {"bucket"}}.get(values.get("before", ""), set())
    return keys


def check_given(raw: _Values, config: Section) -> None:
    """Refuse keys that a file or `--set` gives and the chosen kind does not take.

    Args:
        raw: as given.
        config: what became of it, defaults included.

    Raises:
        ConfigError: one line with the kinds that take the key.
    """
    for section, values in raw.items():
        if isinstance(values, Mapping):
            _refuse(section, getattr(config, section), values)


def check_values(config: Section) -> None:
    """`check_given` for what was built otherwise: a key that the chosen kind does not take must have its default.

    Raises:
        ConfigError: it has another value.
    """
    for name, section in _sections(config):
        default = type(section)()
        _refuse(
            name, section, [key for key in section.__struct_fields__ if getattr(section, key) != getattr(default, key)]
        )


def written(config: Section) -> dict[str, Any]:
    """Plain data without the keys that the chosen kinds do not take."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    drop_untaken(plain, config, lambda _key: True)
    return plain


def drop_untaken(plain: dict[str, Any], defaults: Section, droppable: Callable[[str], bool]) -> None:
    """Delete keys that the chosen kinds do not take, in place.

    Args:
        plain: sections and keys, not necessarily all.
        defaults: where keys that `plain` lacks have their values.
        droppable: "section.key" -> whether it may be deleted.
    """
    for name, section in _sections(defaults):
        values = plain.get(name)
        if not isinstance(values, dict):
            continue
        keys = taken(name, {**{key: getattr(section, key) for key in section.__struct_fields__}, **values})
        if keys is not None:
            for key in [key for key in values if key not in keys and droppable(f"{name}.{key}")]:
                del values[key]


def _sections(config: Section) -> Iterator[tuple[str, Section]]:
    for name in config.__struct_fields__:
        if name in _COMMON:
            yield name, getattr(config, name)


def _refuse(name: str, section: Section, given: Iterable[str]) -> None:
    values = {key: getattr(section, key) for key in section.__struct_fields__} if name in _COMMON else {}
    keys = taken(name, values)
    if keys is None:
        return
    for key in given:
        if key not in keys:
            raise _foreign(name, key, values)


def _foreign(section: str, key: str, values: _Values) -> ConfigError:
    choose = selector(section)
    if section == "mix" and key in _FEEDBACK:
        feedback = _FEEDBACK[key]
        if values["kind"] == "psgd":
            return ConfigError(
                f"mix.{key}: {values['feedback']} has no such key; only {feedback} takes it, e.g. `--set mix.feedback={feedback}`; "
                "or leave it out"
            )
        values = {**values, "feedback": feedback}
    kinds = CATALOGUES[_CONSTRUCTED[section]].built_in if section in _CONSTRUCTED else tuple(_KIND[section])
    kinds = (*kinds, BUDGET) if section == "compress" else kinds
    takers = [kind for kind in kinds if key in (taken(section, {**values, choose: kind}) or ())]
    takes = f"only {', '.join(takers)} take{'s' if len(takers) == 1 else ''} it"
    cure = f"; {takes}, e.g. `--set {section}.{choose}={takers[0]}`" if takers else ""
    return ConfigError(f"{section}.{key}: {values[choose]} has no such key{cure}; or leave it out")
