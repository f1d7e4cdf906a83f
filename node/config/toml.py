"""From a person's TOML and `--set` to typed settings and back, or one line that says what is wrong and what is allowed.

Works for every `Section` of `starling.node.config.schema`; what the keys mean and their bounds are there.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import tomli_w
from msgspec import inspect as types

from starling.gossip.errors import ConfigError
from starling.node.config import kinds
from starling.node.config.schema import Section

S = TypeVar("S", bound=Section)

_MAX_FILE_BYTES = 1 << 20
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_RATE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]i?)?(?P<what>bit|bps|b|byte|bytes|b/s|bit/s|byte/s)?", re.ASCII
)
_SHOW = "`starling config show`"


def load(path: Path, kind: type[S]) -> S:
    """The settings in a TOML file.

    Raises:
        ConfigError: unreadable, not TOML, or a wrong key or value.
    """
    raw = read(path)
    try:
        return convert(raw, kind)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """What stands in a TOML file, keys and values unchecked.

    Raises:
        ConfigError: unreadable, or not TOML.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; try `ls -l {path}`") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: has more than {_MAX_FILE_BYTES} bytes, which is no settings file; name another")
    try:
        return parse(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text (UTF-8), which is no settings file; name another") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def from_toml(text: str, kind: type[S]) -> S:
    """Settings from TOML text; missing keys take their defaults.

    Raises:
        ConfigError: not TOML, or a wrong key or value.
    """
    return convert(parse(text), kind)


def parse(text: str) -> dict[str, Any]:
    """What TOML text says, keys and values unchecked.

    Raises:
        ConfigError: not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also Python's, of a number of thousands of digits
        raise ConfigError(f"not TOML: {_one_line(error)}; compare with {_SHOW}") from error


def to_toml(config: Section) -> str:
    """Settings as TOML, defaults included, but for keys that the chosen kinds do not take."""
    return tomli_w.dumps(kinds.written(config))


def render(config: Section) -> str:
    """All settings as TOML, each with its meaning: what `starling config show` prints."""
    lines: list[str] = []
    _render(config, kinds.written(config), "", lines)
    return "\n".join(lines).strip() + "\n"


def convert(raw: Mapping[str, Any], kind: type[S], *, whole: bool = False) -> S:
    """Plain data to settings.

    Args:
        raw: sections and keys.
        kind: of settings.
        whole: `raw` has every key of every kind, as a manifest on the wire; else keys that the chosen kinds do not take are refused.

    Raises:
        ConfigError: names the key, its value, what is allowed and the next command.
    """
    _check_keys(raw, kind, "")
    try:
        config = msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        where = str(error).rpartition(" - at `$.")[2].rstrip("`")
        path = re.sub(r"\[.*?\]", "", where).split(".")
        raise _wrong_value(raw, kind, path) from error
    _check_numbers(config, "")
    kinds.check_names(config)
    if not whole:
        kinds.check_given(raw, config)
    return config


def apply_set(config: S, assignments: Sequence[str]) -> S:
    """Settings with some keys replaced, as `--set` does it.

    Args:
        config: what to start from; not changed. Where a kind is replaced, keys that the new one does not take are dropped.
        assignments: `path=value`, the path dotted. One that names a section sets the section's `kind`. Values are TOML, or
            else plain text: `pace.rounds=50`, `mix=dsgd`, `task.params.model=cnn`.

    Raises:
        ConfigError: not of that form, an unknown key, or a wrong value.
    """
    raw, given = kinds.written(config), set[str]()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if any("\ud800" <= character <= "\udfff" for character in assignment):  # bytes that are no text
            raise ConfigError(f"--set: must be text (UTF-8), got {_shown(assignment)}; type it again")
        path = [part.strip() for part in name.split(".")]
        if not equals or not all(path):
            raise ConfigError(f"--set: must look like pace.rounds=50, got {_shown(assignment)}; {_SHOW} lists the keys")
        _assign(raw, type(config), path, text.strip())
        given.add(".".join(path[:2]))
    kinds.drop_untaken(raw, config, lambda key: key not in given)
    return convert(raw, type(config))


def parse_rate(text: str) -> int:
    """Bytes per second in what a person writes: "10mbit", "2.5MB/s", "800k", "65536"; "0" and "none" are 0, no cap.

    A bare k, m or g counts bytes; ki, mi, gi are powers of two.

    Raises:
        ConfigError: not a rate.
    """
    cleaned = text.strip().lower()
    match = _RATE.fullmatch("0" if cleaned == "none" else cleaned)
    if match is None or len(cleaned) > 32:
        raise ConfigError(
            f"rate: must look like 10mbit, 2.5MB or 65536 (bytes a second), got {_shown(text)}; 0 is no cap"
        )
    rate = float(match["number"]) * _UNITS[match["unit"] or ""]
    rate /= 8.0 if (match["what"] or "").startswith(("bit", "bps")) else 1.0
    if rate >= 2**62:
        raise ConfigError(f"rate: must be below 4e18 bytes a second, got {_shown(text)}; 0 is no cap")
    return math.ceil(rate)


# --- checking -----------------------------------------------------------------------------------------------


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, types.Field]:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return MappingProxyType({field.name: field for field in info.fields})


def _check_keys(raw: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    fields = _fields(kind)
    for key, value in raw.items():
        if key not in fields:
            raise _unknown_key(prefix, key, fields)
        inner = fields[key].type
        if isinstance(inner, types.StructType) and isinstance(value, dict):
            _check_keys(value, inner.cls, f"{prefix}{key}.")


def _check_numbers(value: object, where: str) -> None:
    """TOML knows inf and nan, and no bound in `node.config.schema` keeps inf out; tomllib knows whole numbers of any
    length, msgpack does not.
    """
    match value:
        case Section():
            inner = {name: getattr(value, name) for name in value.__struct_fields__}
        case dict():
            inner = value
        case float() if not math.isfinite(value):
            raise ConfigError(f"{where}: must be finite, got {value}; {_SHOW} shows what is set")
        case int() if not -(2**63) <= value < 2**63:
            raise ConfigError(f"{where}: must be in [-2^63, 2^63), got {_shown(value)}; {_SHOW} shows what is set")
        case _:
            return
    for name, child in inner.items():
        _check_numbers(child, f"{where}.{_plain(name)}" if where else _plain(name))


def _unknown_key(prefix: str, key: str, fields: Mapping[str, types.Field]) -> ConfigError:
    close = difflib.get_close_matches(key, fields, n=1)
    hint = f"did you mean {prefix}{close[0]}? " if close else ""
    return ConfigError(f"{prefix}{_plain(key)}: no such key; {hint}choose one of {', '.join(fields)}; see {_SHOW}")


def _wrong_value(raw: Mapping[str, Any], kind: type[msgspec.Struct], path: Sequence[str]) -> ConfigError:
    value: Any = raw
    wanted: types.Type = types.type_info(kind)
    for part in path:
        value = value.get(part, value) if isinstance(value, dict) else value
        if isinstance(wanted, types.StructType):
            wanted = _fields(wanted.cls)[part].type
    hint = ""
    if isinstance(wanted, types.LiteralType) and isinstance(value, str):
        close = difflib.get_close_matches(value, [str(choice) for choice in wanted.values], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
    return ConfigError(
        f"{'.'.join(path)}: must be {_allowed(wanted)}, got {_shown(value)}{hint}; {_SHOW} shows what is set"
    )


def _allowed(wanted: types.Type) -> str:
    match wanted:
        case types.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in sorted(values, key=str))
        case types.IntType() | types.FloatType():
            word = "a whole number" if isinstance(wanted, types.IntType) else "a number"
            bounds = {">": wanted.gt, ">=": wanted.ge, "<": wanted.lt, "<=": wanted.le}
            limits = " and ".join(f"{sign} {bound:.12g}" for sign, bound in bounds.items() if bound is not None)
            return f"{word} {limits}".strip()
        case types.StrType(min_length=shortest, max_length=longest):
            limits = f" of {shortest or 0} to {longest} characters" if longest is not None else ""
            return f"text{limits}"
        case types.BoolType():
            return "true or false"
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


def _assign(raw: dict[str, Any], kind: type[msgspec.Struct], path: Sequence[str], text: str) -> None:
    fields = _fields(kind)
    head, *rest = path
    if head not in fields:
        raise _unknown_key("", head, fields)
    wanted, at, done = fields[head].type, raw, [head]
    for part in rest:
        prefix = ".".join(map(_plain, done)) + "."
        match wanted:
            case types.StructType(cls=cls):
                fields = _fields(cls)
                if part not in fields:
                    raise _unknown_key(prefix, part, fields)
                wanted = fields[part].type
            case types.DictType(value_type=value_type) if isinstance(at.get(done[-1], {}), dict):
                wanted = value_type
            case _:
                raise ConfigError(f"{prefix}{_plain(part)}: {prefix[:-1]} is a value and has no keys; see {_SHOW}")
        at = at.setdefault(done[-1], {})
        done.append(part)
    if isinstance(wanted, types.StructType):
        inner = _fields(wanted.cls)
        if "kind" not in inner:
            where = ".".join(map(_plain, done))
            raise ConfigError(
                f"{where}: is a section; set one of {', '.join(f'{where}.{key}' for key in inner)}; see {_SHOW}"
            )
        at, wanted = at[done[-1]], inner["kind"].type
        done.append("kind")
    at[done[-1]] = _value(text, wanted)


def _value(text: str, wanted: types.Type) -> object:
    """TOML where it is TOML, else the text itself; where text is wanted only quotes make TOML of it."""
    if isinstance(wanted, types.StrType | types.LiteralType) and not text.startswith(('"', "'")):
        return int(text) if text.isdecimal() and isinstance(wanted, types.LiteralType) and _numeric(wanted) else text
    try:
        parsed = tomllib.loads(f"value = {text}\n")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _numeric(wanted: types.LiteralType) -> bool:
    return all(isinstance(value, int) for value in wanted.values)


# --- showing ------------------------------------------------------------------------------------------------


def _render(config: Section, plain: dict[str, Any], prefix: str, lines: list[str]) -> None:
    """Values first, then sections: TOML has no way back out of a table."""
    documented = meanings(type(config))
    inner = {key: getattr(config, key) for key in plain if isinstance(getattr(config, key), Section)}
    tables = {key: value for key, value in plain.items() if key not in inner and isinstance(value, dict)}
    for key, value in plain.items():
        if key not in inner and key not in tables:
            lines += [f"# {line}" for line in documented.get(key, ())]
            lines.append(tomli_w.dumps({key: value}, multiline_strings=False).strip())
    for key, table in tables.items():
        lines += ["", *(f"# {line}" for line in documented.get(key, ())), f"[{prefix}{key}]"]
        lines += [tomli_w.dumps({name: value}).strip() for name, value in table.items()]
    for key, section in inner.items():
        doc = (inspect.getdoc(type(section)) or "").splitlines()
        lines += ["", *(f"# {line}" for line in doc), f"[{prefix}{key}]"]
        _render(section, plain[key], f"{prefix}{key}.", lines)


@cache
def meanings(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, ...]]:
    """The string below each field of a section, which only its source keeps; or that of the section it adds to."""
    base = kind.__base__
    inherited = meanings(base) if base not in {None, msgspec.Struct} and issubclass(base, msgspec.Struct) else {}
    return {**inherited, **_own_meanings(kind)}


def _own_meanings(kind: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=field)):
                name = field
            case ast.Expr(value=ast.Constant(value=str() as text)) if name:
                found[name] = tuple(inspect.cleandoc(text).splitlines())
            case _:
                pass
    return found


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"


def _plain(key: str) -> str:
    return key if key.isidentifier() and len(key) <= 64 else _shown(key)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
