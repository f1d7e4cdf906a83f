"""Sections of a configuration, and the keys of the parts that they name. Torch-free.

A section has keys of its own. To these come the keys of its parts, which are the parameters of their constructors with the types, bounds
and defaults that are written there (`Catalogue.keys_of`). Making a section, from plain data or by its class, gives an instance of
a subclass with both: `MixSection(kind="pet", kappa=0.2)`. A key that the parts do not take is refused with the kinds that do.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import msgspec
from msgspec import inspect as types

from starling.gossip.catalogue import Catalogue, Key, Scalar
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTIONS
from starling.gossip.errors import ConfigError, closest
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.catalogue import OVERLAYS
from starling.node.catalogues import OPTIMIZERS, PACES, PARTITIONS, TASKS
from starling.node.config.admission import ADMISSIONS
from starling.robust.catalogue import PREAGGREGATIONS, RULES

SHOW = "`starling config show`"
CATALOGUES: Mapping[str, Catalogue[Any, Any]] = MappingProxyType(
    {
        "task.kind": TASKS,
        "optimizer.kind": OPTIMIZERS,
        "mix.kind": MIXERS,
        "overlay.kind": OVERLAYS,
        "robust.rule": RULES,
        "robust.before": PREAGGREGATIONS,
        "compress.select": SELECTIONS,
        "compress.request": QUANTIZERS,
        "compress.response": QUANTIZERS,
    }
)
"""Keys that name a part -> the parts."""
KINDS: Mapping[str, Catalogue[Any, Any]] = MappingProxyType(
    {**CATALOGUES, "partition.kind": PARTITIONS, "pace.kind": PACES, "admission.kind": ADMISSIONS}
)
"""The same, and kinds to which packages cannot add."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors, keys are given by name."""


class _Calls(msgspec.StructMeta):
    """Calling a section's class makes an instance of the subclass for the parts it names."""

    def __call__(self, **keys: Any) -> Any:
        kind: Any = self
        return super().__call__(**keys) if "BASE" in kind.__dict__ else convert(keys, kind, f"{kind.SECTION}.")


class PartSection(Section, frozen=True, metaclass=_Calls):
    """Base of sections that name parts. Every instance has the keys of the section and those of its parts.

    Attributes:
        SECTION: where it stands in a manifest or scenario.
        PARTS: keys that name a part whose parameters are keys too; the first is the section's kind.
        BASE: the section's class, of which an instance's class is a subclass.
    """

    SECTION: ClassVar[str]
    PARTS: ClassVar[tuple[str, ...]] = ("kind",)
    BASE: "ClassVar[type[PartSection]]"
    KEYS: ClassVar[tuple[Key, ...]] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> Any:
        """Pickle by the values, as the subclass has no name to import it by."""
        return _again, (self.BASE, msgspec.to_builtins(self))

    def params(self, key: str = "") -> dict[str, Any]:
        """Return the keys of the part that `key` names (default: the kind), without those of the section."""
        key = key or self.PARTS[0]
        keys = catalogue_of(self.BASE, key).keys_of(getattr(self, key))
        if keys is None:
            others = {each.name for part in self.PARTS if part != key for each in _keys(self.BASE, part, self) or ()}
            keys = tuple(each for each in self.KEYS if each.name not in others)
        values = ((each.name, getattr(self, each.name)) for each in keys if each in self.KEYS)
        return {name: value for name, value in values if value is not msgspec.UNSET}

    def changed(self, **values: Any) -> Self:
        """Return the section with other values. Where a part is replaced, keys that the new one does not take are dropped."""
        changed: Any = convert(merged(self, values), self.BASE, f"{self.SECTION}.")
        return cast("Self", changed)


S = TypeVar("S", bound=msgspec.Struct)


def _again(base: type[PartSection], values: dict[str, Any]) -> PartSection:
    return base(**values)


def names(config: Section) -> dict[str, str]:
    """Return key -> name of every part that a manifest, or a scenario, names."""
    chosen: dict[str, str] = {}
    for key in CATALOGUES:
        section, _, field = key.partition(".")
        if name := getattr(getattr(config, section, None), field, None):
            chosen[key] = name
    return chosen


def check_together(config: Section) -> None:
    """Raise ConfigError where values of a part's keys do not fit each other."""
    for place in KINDS:
        name, _, part = place.partition(".")
        section = getattr(config, name)
        if part in section.PARTS and (chosen := getattr(section, part)) is not None:
            catalogue_of(section, part).check_keys(name, chosen, section.params(part))


def typed(base: type[S], values: Mapping[str, Any], *, trusted: bool = False) -> type[S]:
    """Return the subclass of a section for the parts that it names. For parts that are not imported every scalar is accepted as a key.

    Keys that are missing have their defaults; `trusted`: look into all parts, whatever they import. Raises ConfigError: this machine does
    not have such a part; one line with the key, what is close and what there is.
    """
    if not issubclass(base, PartSection):
        return base
    fields = fields_of(base)
    named = {key: values.get(key, fields[key].default) for key in fields if f"{base.SECTION}.{key}" in KINDS}
    for key, name in named.items():
        if isinstance(name, str):
            catalogue_of(base, key).check(name, f"{base.SECTION}.{key}")
    keys: list[Key] = []
    unknown = False
    for part in base.PARTS:
        own = _keys(base, part, named, trusted=trusted)
        unknown |= own is None
        keys += [key for key in own or () if key.name not in fields and key.name not in {each.name for each in keys}]
    if unknown:
        given = sorted(values.keys() - fields.keys() - {key.name for key in keys})
        keys += [Key(name, Scalar, msgspec.NODEFAULT, "") for name in given if name.isidentifier() and name[0] != "_"]
    made: type[S] = _subclass(base, tuple(keys))
    return made


def catalogue_of(base: PartSection | type[PartSection], key: str) -> Catalogue[Any, Any]:
    """Return the catalogue of parts that a key of a section names."""
    return KINDS[f"{base.SECTION}.{key}"]


def _keys(base: type[PartSection], part: str, chosen: Any, *, trusted: bool = False) -> tuple[Key, ...] | None:
    name = chosen[part] if isinstance(chosen, dict) else getattr(chosen, part)
    return catalogue_of(base, part).keys_of(name, trusted=trusted) if isinstance(name, str) else ()


@cache
def _subclass(base: type[PartSection], keys: tuple[Key, ...]) -> Any:
    inside: dict[str, Any] = {
        "__module__": base.__module__,
        "__doc__": base.__doc__,
        "__annotations__": {key.name: key.type for key in keys},
        "BASE": base,
        "KEYS": keys,
    }
    inside |= {key.name: key.default for key in keys if key.default is not msgspec.NODEFAULT}
    return _Calls(base.__name__, (base,), inside, frozen=True, kw_only=True, forbid_unknown_fields=True)


def merged(section: PartSection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a section after some were set. Where these name other parts, keys that the new ones do not take, and defaults of
    the old ones, are dropped.
    """
    plain: dict[str, Any] = msgspec.to_builtins(section)
    base = section.BASE
    _converted({key: values[key] for key in values if key in base.__struct_fields__}, base, f"{base.SECTION}.")
    after = typed(base, {**plain, **values})
    stays = {*base.__struct_fields__, *(key.name for key in section.KEYS if plain.get(key.name, key.default) != key.default)}
    stays &= set(after.__struct_fields__)
    return {name: value for name, value in plain.items() if name in stays} | dict(values)


def convert(raw: Mapping[str, Any], kind: type[S], where: str = "", *, trusted: bool = False) -> S:
    """Convert plain data to a section or whole settings, called `where` in messages: "mix." or ""; `trusted` as in `typed`.

    Raises ConfigError: names the key, its value, what is allowed and the next command.
    """
    _check_keys(raw, where)
    if issubclass(kind, PartSection):
        own = {key: value for key, value in raw.items() if key in kind.__struct_fields__}
        _converted(own, kind, where)
        kind = typed(kind, raw, trusted=trusted)
    fields = fields_of(kind)
    inner: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            raise _foreign(kind, key, raw, where) if issubclass(kind, PartSection) else unknown_key(where, key, fields)
        inside = fields[key].type
        if isinstance(inside, types.StructType) and isinstance(value, dict):
            inner[key] = convert(value, inside.cls, f"{where}{key}.", trusted=trusted)
    for field in fields.values():
        if field.required and field.name not in raw:
            raise ConfigError(f"{where}{field.name}: {raw[kind.PARTS[0]]} needs it")  # type: ignore[attr-defined]
    config = _converted({key: value for key, value in raw.items() if key not in inner}, kind, where)
    return msgspec.structs.replace(config, **inner) if inner else config


def _check_keys(raw: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a key that is no text."""
    for key in raw:
        if not isinstance(key, str):
            raise ConfigError(f"{where}{shown(key)}: must be text, as all keys are")


def _converted(plain: Mapping[str, Any], kind: type[S], where: str) -> S:
    try:
        config = msgspec.convert(plain, kind, strict=True)
    except msgspec.ValidationError as error:
        place = str(error).rpartition(" - at `$.")[2].rstrip("`")
        raise _wrong_value(plain, kind, re.sub(r"\[.*?\]", "", place).split("."), where) from error
    for key in plain:
        _check_numbers(getattr(config, key), f"{where}{plainly(key)}")
    return config


@cache
def fields_of(kind: type[msgspec.Struct]) -> Mapping[str, types.Field]:
    """Return the keys of settings or of a section."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return MappingProxyType({field.name: field for field in info.fields})


def _check_numbers(value: object, where: str) -> None:
    """Check numbers that no type bounds: TOML has inf and nan, and tomllib reads whole numbers of any length. Raises ConfigError."""
    match value:
        case dict():
            for name, child in value.items():
                _check_numbers(child, f"{where}.{plainly(name)}")
        case float() if not math.isfinite(value):
            raise ConfigError(f"{where}: must be finite, got {value}; {SHOW} shows what is set")
        case int() if not -(2**63) <= value < 2**63:
            raise ConfigError(f"{where}: must be in [-2^63, 2^63), got {shown(value)}; {SHOW} shows what is set")
        case _:
            pass


def _foreign(kind: type[PartSection], key: str, raw: Mapping[str, Any], where: str) -> ConfigError:
    fields = fields_of(kind)
    for part in kind.PARTS:
        catalogue = catalogue_of(kind, part)
        takers = [n for n in catalogue.built_in if any(each.name == key for each in catalogue.keys_of(n) or ())]
        if takers:
            chosen = raw.get(part, fields[part].default) or f"{kind.SECTION} without {part}"
            return ConfigError(
                f"{where}{key}: {chosen} has no such key; only {', '.join(takers)} take{'s' if len(takers) == 1 else ''} it, "
                f"e.g. `--set {where}{part}={takers[0]}`; or leave it out"
            )
    return unknown_key(where, key, fields)


def unknown_key(where: str, key: str, fields: Mapping[str, types.Field]) -> ConfigError:
    """Return the error for a key that nothing takes, with the closest ones."""
    similar = closest(key, fields)
    hint = f"did you mean {where}{similar}? " if similar else ""
    return ConfigError(f"{where}{plainly(key)}: no such key; {hint}choose one of {', '.join(fields)}; see {SHOW}")


def _wrong_value(raw: Mapping[str, Any], kind: type[msgspec.Struct], path: Sequence[str], where: str) -> ConfigError:
    value: Any = raw
    wanted: types.Type = types.type_info(kind)
    for part in path:
        value = value.get(part, value) if isinstance(value, dict) else value
        if isinstance(wanted, types.StructType):
            wanted = fields_of(wanted.cls)[part].type
    hint = ""
    if isinstance(wanted, types.LiteralType) and isinstance(value, str):
        similar = closest(value, [str(choice) for choice in wanted.values])
        hint = f"; did you mean {similar}?" if similar else ""
    place = f"{where}{'.'.join(path)}"
    return ConfigError(f"{place}: must be {_allowed(wanted)}, got {shown(value)}{hint}; {SHOW} shows what is set")


def allowed(annotation: Any) -> str:
    """Describe the values that a key of this type takes, for messages."""
    return _allowed(types.type_info(annotation))


def _allowed(wanted: types.Type) -> str:
    match wanted:
        case types.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in sorted(values, key=str))
        case types.IntType() | types.FloatType():
            word = "a whole number" if isinstance(wanted, types.IntType) else "a number"
            bounds = {">": wanted.gt, ">=": wanted.ge, "<": wanted.lt, "<=": wanted.le}
            limits = " and ".join(f"{sign} {_bound(bound)}" for sign, bound in bounds.items() if bound is not None)
            return f"{word} {limits}".strip()
        case types.StrType(min_length=shortest, max_length=longest):
            limits = f" of {shortest or 0} to {longest} characters" if longest is not None else ""
            return f"text{limits}"
        case types.BoolType():
            return "true or false"
        case types.NoneType():
            return "null"
        case types.UnionType(types=choices):
            return " or ".join(_allowed(choice) for choice in choices)
        case types.VarTupleType(item_type=item):
            return f"a list, each {_allowed(item)}"
        case types.TupleType(item_types=items):
            return f"a list of {', '.join(_allowed(item) for item in items)}"
        case types.DictType(value_type=value):
            return f"a table, each value {_allowed(value)}"
        case _:
            return "a table"


def _bound(bound: float) -> str:
    """Format a bound as a person would: 0.5, 1000, 2^62, 2^63 - 1."""
    for beyond in (0, 1):
        power = int(bound) + beyond
        if bound == int(bound) and power >= 2**40 and power.bit_count() == 1:
            return f"2^{power.bit_length() - 1}" + (" - 1" if beyond else "")
    return f"{bound:.12g}"


def shown(value: object) -> str:
    """Return a value for a message, at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"


def plainly(key: str) -> str:
    """Return a key for a message: as it is if it is a name."""
    return key if key.isidentifier() and len(key) <= 64 else shown(key)
