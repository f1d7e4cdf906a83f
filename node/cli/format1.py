"""Manifests and scenarios of before to those of today: `starling manifest convert`.

Format 1 had the keys of all kinds in every section, `params` tables for parts of packages and tasks, and zeros or empty strings where
a part's own default was meant. Early files of format 2 may have keys that are no more (`starling.node.config.parts.REMOVED`).
"""

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starling.gossip.errors import ConfigError
from starling.node.config import presets
from starling.node.config.parts import REMOVED, PartSection, Section, convert, fields_of, keys_of_format_1, typed
from starling.node.config.schema import FORMAT, Manifest
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import flat

_RENAMED: Mapping[str, str] = MappingProxyType({"bad_share": "byzantine_fraction", "robust.b": "robust.f"})
_OWN_DEFAULT = (
    ("overlay", "weights"), ("overlay", "factor"), ("overlay", "basis"), ("overlay", "eta"), ("compress", "chunk"),
    ("compress", "budget_bytes"), ("robust", "before"),
)  # fmt: skip
"""Keys whose 0 or "" meant that they are not set."""
_SIGNED = ("founder", "founded_ms", "signature")


def converted(old: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A manifest or scenario in today's keys, checked, and notes on what is lost. Keys left out have their defaults.

    Raises ConfigError: of today's format and without a key that is no more, or wrong there too.
    """
    kept, removed = _without_removed(old)
    if removed and not keys_of_format_1(old) and old.get("format", FORMAT) == FORMAT:
        convert(presets.filled(kept, kept.get("preset", presets.CUSTOM), _kind(kept)), _kind(kept))
        return kept, removed
    old = kept
    if old.get("format", 1) != 1:
        raise ConfigError(f"format: is {old['format']} and needs no conversion; look with `starling manifest show`")
    kind = _kind(old)
    notes = removed + [
        f"{key}: left out, a signature is of the old bytes; found it as a new swarm" for key in _SIGNED if old.get(key)
    ]
    new: dict[str, Any] = {} if kind is Scenario else {"format": FORMAT}
    for key, value in old.items():
        if key not in {*_SIGNED, "format"}:
            new[_RENAMED.get(key, key)] = dict(value) if isinstance(value, dict) else value
    for name, section in new.items():
        if isinstance(section, dict) and _is_of_parts(kind, name):
            section.update(section.pop("params", {}))
            for key in [key for key in section if (name, key) in _OWN_DEFAULT and not section[key]]:
                del section[key]
            if name == "robust" and "b" in section:
                section["f"] = section.pop("b")
            if name == "overlay" and section.get("average_every"):
                section["average_k"] = section.get("k", 1)
    if grid := new.get("sweep", {}).get("grid"):
        new["sweep"] = new["sweep"] | {"grid": {_key(key): value for key, value in flat(grid, "")}}
    full = presets.filled(new, new.get("preset", presets.CUSTOM), kind)
    for name, section in new.items():
        if isinstance(section, dict) and _is_of_parts(kind, name):
            taken = typed(fields_of(kind)[name].type.cls, full[name]).__struct_fields__  # type: ignore[attr-defined]
            for key in [key for key in section if key not in taken]:
                del section[key]
    convert(presets.filled(new, new.get("preset", presets.CUSTOM), kind), kind)
    return new, notes


def _kind(settings: Mapping[str, Any]) -> type[Section]:
    return Scenario if settings.keys() & {"simulate", "sweep", "faults", "network", "attack"} else Manifest


def _without_removed(old: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings without keys that are no more, and a note for each that was set; a 0 of format 1 was not."""
    kept: dict[str, Any] = copy.deepcopy(dict(old))
    notes = []
    for key, why in REMOVED.items():
        section, _, field = key.partition(".")
        if isinstance(inside := kept.get(section), dict):
            params = inside.get("params")
            given = [table.pop(field, None) for table in (inside, params) if isinstance(table, dict)]
            if any(given):
                notes.append(f"{key}: left out, {why}")
    return kept, notes


def _is_of_parts(kind: type[Section], name: str) -> bool:
    inside = getattr(fields_of(kind).get(name, None), "type", None)
    return issubclass(getattr(inside, "cls", Section), PartSection)


def _key(keys: str) -> str:
    """Dotted keys of a sweep, one or several."""
    named = [re.sub(r"^(\w+)\.params\.", r"\1.", key.strip()) for key in keys.split(",")]
    return ", ".join(_RENAMED.get(key, key) for key in named)
