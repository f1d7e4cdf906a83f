"""Presets: values of many keys at once, for swarms of people who know each other and for swarms of strangers.

What a person gives goes before what a preset says, and the manifest records every key, so a preset is a way to begin, not a switch that
nodes look at. What remains of it in the manifest is a promise: the keys that protect may be set more strictly, never less. Torch-free.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.inspect import StructType

from starling.gossip.catalogue import Scalar
from starling.gossip.errors import ConfigError
from starling.node.config import toml
from starling.node.config.parts import Section, convert, fields_of, typed

S = TypeVar("S", bound=Section)

CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed values of a protective key.

    Args:
        words: the bound, for people.
        holds: whether a value keeps it.
        where: (key, value or values): it binds only where that other key has such a value; None: always.
    """

    words: str
    holds: Callable[[Any], bool]
    where: tuple[str, Scalar | tuple[Scalar | None, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key that a preset sets.

    Args:
        name: dotted, e.g. "overlay.k".
        value: what the preset sets it to where a file and `--set` do not.
        limit: how far it may differ; None: as one likes.
    """

    name: str
    value: Scalar | None
    limit: Limit | None = None


def _one_of(*values: Scalar | None) -> Limit:
    return Limit(" or ".join(shown(value) for value in values), lambda value: value in values)


def _at_least(least: float, where: tuple[str, Scalar] | None = None) -> Limit:
    return Limit(f"at least {least:g}", lambda value: value >= least, where)


def _between(least: float, most: float, where: tuple[str, Scalar] | None = None) -> Limit:
    return Limit(f"{least:g} to {most:g}", lambda value: least <= value <= most, where)


def shown(value: object) -> str:
    """Format a value for people: names as they are, other text in quotes and without terminal controls."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value.isidentifier() and value.isascii() else json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)


PRESETS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        "vouched": (
            Key("mix.kind", "pet", _one_of("pet", "moments")),
            Key("mix.clip_norm", 10.0, Limit("above 0 and at most 1000", lambda value: 0 < value <= 1000)),
            Key("mix.defended", True, _one_of(True)),
            Key("mix.flow_limit", 100.0, Limit("at most 100", lambda value: value <= 100, ("mix.kind", "pet"))),
            Key("mix.settled_edges", 8, _at_least(1, ("mix.kind", "pet"))),
            Key("overlay.kind", "sticky", _one_of("sticky")),
            Key("admission.kind", "invite", _one_of("invite", "allow")),
        ),
        "open": (
            Key("byzantine_fraction", 0.2, _at_least(0.2)),
            Key("mix.kind", "gather", _one_of("gather")),
            Key("overlay.kind", "pull", _one_of("pull")),
            Key("overlay.k", 6, _at_least(6, ("robust.rule", "cs_nnm"))),
            Key("robust.rule", "cs_nnm", _one_of("cs_nnm", "sac")),
            Key("robust.f", 2, _at_least(2, ("robust.rule", "cs_nnm"))),
            Key("robust.before", None, _one_of(None)),
            Key("robust.kappa", 3.0, _between(3, 4, ("robust.rule", "sac"))),
            Key("compress.select", "full", _one_of("full")),
            Key("compress.response", "fp16"),
            Key("pace.kind", "steps", _one_of("steps")),
            Key("pace.local_steps", 6),
            Key("optimizer.momentum", 0.9),
            Key("admission.kind", "open"),
            Key("admission.bits", 10, _at_least(10, ("admission.kind", "open"))),
            Key("admission.memory_kib", 8192),
            Key("admission.per_prefix", 1, _between(1, 2)),
        ),
    }
)
"""docs/robustness.md gives the reasons; a test compares its table with this one."""


def load(kind: type[S], file: Path | None = None, assignments: Sequence[str] = ()) -> S:
    """Load settings from a TOML file and `--set`; a preset named by either fills in what neither gives.

    `kind`: `Manifest`, or other settings with a key `preset`; a `file` of None is nothing but defaults; "preset=open" is an assignment.
    Raises ConfigError: unreadable, not TOML, a wrong key or value.
    """
    raw = toml.read(file) if file is not None else {}
    if file is not None:
        toml.check_format(file, raw)
    try:
        begun = convert(filled(raw, _named(raw, assignments), kind), kind)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}" if file is not None else str(error)) from error
    return toml.apply_set(begun, assignments)


def _named(raw: Mapping[str, Any], assignments: Sequence[str] = ()) -> str:
    """Return the preset that `--set` or else the file names, not checked; "custom" for none."""
    given = [text.strip().strip("\"'") for key, _, text in (each.partition("=") for each in assignments) if key.strip() == "preset"]
    chosen = given[-1] if given else raw.get("preset", CUSTOM)
    return chosen if isinstance(chosen, str) else CUSTOM


def asked(preset: str | None, assignments: Sequence[str]) -> tuple[str, ...]:
    """Return `--preset` and `--set` as assignments for `load`."""
    return (*(() if preset is None else (f"preset={preset}",)), *assignments)


def filled(raw: Mapping[str, Any], preset: str, kind: type[Section]) -> dict[str, Any]:
    """Return plain settings with missing keys of `kind` taken from a preset; "custom" has none.

    `raw` is not necessarily valid, and not changed.
    """
    full: dict[str, Any] = {name: dict(value) if isinstance(value, dict) else value for name, value in raw.items()}
    chosen = PRESETS.get(preset, ())
    for own in (False, True):  # a section's own keys first, as they decide which other keys exist
        for key in chosen:
            head, _, tail = key.name.partition(".")
            if head not in kind.__struct_fields__:
                continue
            section = full.setdefault(head, {} if tail else key.value)
            base = fields_of(kind)[head].type
            if isinstance(base, StructType) and isinstance(section, dict):
                of_parts = typed(base.cls, section) if own else base.cls
                if tail in fields_of(of_parts):
                    section.setdefault(tail, key.value)
    return full


def check(chosen: Any) -> None:
    """Check that settings, a `Manifest` or others with its keys, keep the promise of the preset they name, as far as they have its keys.

    Raises ConfigError: a key that protects is set less strictly than the preset allows.
    """
    preset: str = chosen.preset
    for key in PRESETS.get(preset, ()):
        if key.limit is None or key.name.partition(".")[0] not in chosen.__struct_fields__:
            continue
        limit = key.limit
        if limit.where is not None:
            name, values = limit.where
            if attrgetter(name)(chosen) not in (values if isinstance(values, tuple) else (values,)):
                continue
        if not limit.holds(value := attrgetter(key.name)(chosen)):
            raise ConfigError(
                f"{key.name}: must be {limit.words} with preset={preset}, got {shown(value)}; "
                f"try `--set {key.name}={shown(key.value)}`, or preset=custom, which promises nothing"
            )
    if preset == "open" and chosen.robust.rule == "cs_nnm":
        k, f = chosen.overlay.k, chosen.robust.f
        if 3 * f < k:
            raise ConfigError(
                f"robust.f: must be at least a third of overlay.k = {k} with preset=open, got {f}: a sample may hold more Byzantine "
                f"members than their fraction (docs/robustness.md); try `--set robust.f={-(-k // 3)}`"
            )
