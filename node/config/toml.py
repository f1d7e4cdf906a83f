"""Convert TOML and `--set` to typed settings and back; an error is one line that says what is wrong and what is allowed.

Works for every `Section` of `starling.node.config.schema`; what the keys mean and their bounds are there.
"""

import ast
import inspect
import math
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w
from msgspec import inspect as types

from starling.gossip.errors import ConfigError
from starling.node.config import maturity
from starling.node.config.parts import SHOW, PartSection, Section, convert, fields_of, merged, plainly, shown, typed, unknown_key
from starling.node.versions import MANIFEST, unreadable

S = TypeVar("S", bound=Section)

_MAX_FILE_BYTES = 1 << 20
_MAX_KEY_PARTS = 8  # most parts of a dotted key; our deepest has 3
# Strings, also unterminated ones, and comments, in which no key is. Possessive quantifiers: hostile text is read once.
_NO_KEYS = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+"{0,5}|"(?:[^"\\\n]|\\.)*+"?|'{3}(?:[^']|'(?!''))*+'{0,5}|'[^'\n]*+'?|#[^\n]*+''', re.DOTALL
)
# The lookbehind: else it begins again at each letter of a word, 30 s for a number of 60 kB.
_LONG_KEY = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{_MAX_KEY_PARTS},}}")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]i?)?(?P<what>bit|bps|b|byte|bytes|b/s|bit/s|byte/s)?", re.ASCII)


def load(path: Path, kind: type[S]) -> S:
    """Load the settings in a TOML file. Raises ConfigError: unreadable, not TOML, or a wrong key or value."""
    raw = read(path)
    check_format(path, raw)
    try:
        return convert(raw, kind)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_format(path: Path, raw: Mapping[str, Any]) -> None:
    """Raise ConfigError for a manifest of another version than this program reads, before a key that it does not know is called wrong."""
    if (version := raw.get("format", MANIFEST.newest)) not in MANIFEST:
        raise ConfigError(f"{path}: {unreadable('format: is', version, MANIFEST, f'write `format = {MANIFEST.newest}`')}")


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file, keys and values unchecked. Raises ConfigError: unreadable, or not TOML."""
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


def parse(text: str) -> dict[str, Any]:
    """Parse TOML text, keys and values unchecked.

    Raises:
        ConfigError: it is not TOML, or a key has more than 8 parts: a stranger's file of 60 kB with one key would cost gigabytes.
    """
    if _LONG_KEY.search(_NO_KEYS.sub("s", text)):
        raise ConfigError(f"not TOML of settings: a key has more than {_MAX_KEY_PARTS} parts; compare with {SHOW}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also Python's, for a number of thousands of digits
        raise ConfigError(f"not TOML: {_one_line(error)}; compare with {SHOW}") from error


def to_toml(config: Section) -> str:
    """Return settings as TOML, defaults included; keys without a value are left out."""
    return tomli_w.dumps(_without_null(msgspec.to_builtins(config)))


def _without_null(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    return {key: _without_null(value) for key, value in plain.items() if value is not None}


def render(config: Section) -> str:
    """Return all settings as TOML, each with its meaning, as `starling config show` prints them."""
    lines: list[str] = []
    _render(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def apply_set(config: S, assignments: Sequence[str]) -> S:
    """Return settings with some keys replaced, as `--set` does it; where a kind is replaced, keys that the new one does not take are
    dropped.

    Assignments are `path=value`, the path dotted. One that names a section sets the section's `kind`. Values are TOML, or else plain text:
    `pace.rounds=50`, `mix=dsgd`, `task.model=cnn`. Raises ConfigError: not of that form, an unknown key, or a wrong value.
    """
    raw: dict[str, Any] = msgspec.to_builtins(config)
    of_parts: list[tuple[list[str], str]] = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if any("\ud800" <= character <= "\udfff" for character in assignment):  # undecodable bytes of the command line
            raise ConfigError(f"--set: must be text (UTF-8), got {shown(assignment)}; type it again")
        path = [part.strip() for part in name.split(".")]
        if not equals or not all(path):
            raise ConfigError(f"--set: must look like pace.rounds=50, got {shown(assignment)}; {SHOW} lists the keys")
        section = getattr(config, path[0], None)
        if isinstance(section, PartSection) and len(path) > 1 and path[1] not in section.BASE.__struct_fields__:
            of_parts.append((path, text.strip()))  # keys that depend on parts, which another assignment may name
        else:
            _assign(raw, type(config), path, text.strip())
    for name in type(config).__struct_fields__:
        if isinstance(section := getattr(config, name), PartSection):
            raw[name] = merged(section, {key: raw[name][key] for key in section.BASE.__struct_fields__})
    for path, text in of_parts:
        _assign(raw, type(config), path, text)
    return convert(raw, type(config))


def parse_rate(text: str) -> int:
    """Parse bytes per second as a person writes them: "10mbit", "2.5MB/s", "800k", "65536"; "0" and "none" are 0, no cap.

    A bare k, m or g counts bytes; ki, mi, gi are powers of two.

    Raises ConfigError: not a rate.
    """
    cleaned = text.strip().lower()
    match = _RATE.fullmatch("0" if cleaned == "none" else cleaned)
    if match is None or len(cleaned) > 32:
        raise ConfigError(f"rate: must look like 10mbit, 2.5MB or 65536 (bytes a second), got {shown(text)}; 0 is no cap")
    rate = float(match["number"]) * _UNITS[match["unit"] or ""]
    rate /= 8.0 if (match["what"] or "").startswith(("bit", "bps")) else 1.0
    if rate >= 2**62:
        raise ConfigError(f"rate: must be below 4e18 bytes a second, got {shown(text)}; 0 is no cap")
    return math.ceil(rate)


def _assign(raw: dict[str, Any], kind: type[msgspec.Struct], path: Sequence[str], text: str) -> None:
    fields = fields_of(kind)
    head, *rest = path
    if head not in fields:
        raise unknown_key("", head, fields)
    wanted, at, done = fields[head].type, raw, [head]
    for part in rest:
        prefix = ".".join(map(plainly, done)) + "."
        match wanted:
            case types.StructType(cls=cls):
                whole = issubclass(cls, PartSection)
                fields = fields_of(typed(cls, at[done[-1]]) if whole else cls)
                if part not in fields and not whole:
                    raise unknown_key(prefix, part, fields)
                wanted = fields[part].type if part in fields else types.AnyType()
            case types.DictType(value_type=value_type) if isinstance(at.get(done[-1], {}), dict):
                wanted = value_type
            case _:
                raise ConfigError(f"{prefix}{plainly(part)}: {prefix[:-1]} is a value and has no keys; see {SHOW}")
        at = at.setdefault(done[-1], {})
        done.append(part)
    if isinstance(wanted, types.StructType):
        inner = fields_of(wanted.cls)
        if "kind" not in inner:
            where = ".".join(map(plainly, done))
            raise ConfigError(f"{where}: is a section; set one of {', '.join(f'{where}.{key}' for key in inner)}; see {SHOW}")
        at, wanted = at[done[-1]], inner["kind"].type
        done.append("kind")
    at[done[-1]] = _value(text, wanted)


def _value(text: str, wanted: types.Type) -> object:
    """Parse TOML where it is TOML, else return the text itself; where text is wanted only quotes make it TOML."""
    if isinstance(wanted, types.StrType | types.LiteralType) and not text.startswith(('"', "'")):
        number = isinstance(wanted, types.LiteralType) and isinstance(wanted.values[0], int) and text.isdecimal()
        return int(text) if number else text
    if text == "null" and isinstance(wanted, types.UnionType) and types.NoneType() in wanted.types:
        return None
    try:
        parsed = tomllib.loads(f"value = {text}\n")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _render(config: Section, prefix: str, lines: list[str]) -> None:
    """Append values first, then sections: TOML has no way back out of a table. Keys without a value become comments."""
    documented = meanings(type(config))
    plain = msgspec.to_builtins(config)
    inner = {key: getattr(config, key) for key in plain if isinstance(getattr(config, key), Section)}
    tables = {key: value for key, value in plain.items() if key not in inner and isinstance(value, dict)}
    for key, value in plain.items():
        if key not in inner and key not in tables:
            labels = textwrap.wrap(maturity.label(f"{prefix}{key}"), 120)
            lines += [f"# {line}" for line in (*documented.get(key, ()), *labels)]
            lines.append(f"# {key} =" if value is None else tomli_w.dumps({key: value}, multiline_strings=False).strip())
    for key, table in tables.items():
        lines += ["", *(f"# {line}" for line in documented.get(key, ())), f"[{prefix}{key}]"]
        lines += [tomli_w.dumps({name: value}).strip() for name, value in table.items()]
    for key, section in inner.items():
        doc = (inspect.getdoc(type(section)) or "").splitlines()
        lines += ["", *(f"# {line}" for line in doc), f"[{prefix}{key}]"]
        _render(section, f"{prefix}{key}.", lines)


@cache
def meanings(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, ...]]:
    """Return the meaning of each key: the string below the field, read from the source, or for a part's key the entry in its docstring."""
    if issubclass(kind, PartSection) and "BASE" in kind.__dict__:
        own = {key.name: tuple(textwrap.wrap(key.meaning, 120)) for key in kind.KEYS}
        return {**meanings(kind.BASE), **own}
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
