"""Parts by name: one table per kind of part, from a name in a configuration to an object, or a one-line error.

A name is one of three things, and the part is imported when it is used, never before:

    pet             an entry of the table below it: built in.
    every_nth       an entry point of a package installed on this machine, in the kind's group, e.g. `starling.selectors`.
    my_part:MyPart  a module and a class (or function) that can be imported here.

A manifest comes from other people and holds names, never code. Entry points need no consent: the machine's owner installed a package that
offers itself to Starling. `module:Class` may name anything importable, so callers pass `trusted=True` only with the owner's consent.

Tables import nothing and contain the facts of built-in parts: the daemon and the command line check names without torch.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from msgspec import NODEFAULT, UNSET, UnsetType

from starling.gossip.errors import ConfigError, closest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
F = TypeVar("F")
Scalar = str | int | float | bool
_NO_FACTS: Any = None
Maturity = Literal["stable", "experimental"]
"""Whether a built-in part may change, or go, without notice."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[F]):
    """A built-in part."""

    where: str  # "module:attribute" of its class, or of a function that makes one
    facts: F = _NO_FACTS  # properties that are known without importing it
    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Arguments that the name fixes, e.g. {"bits": 8} for int8."""
    keys: str = ""  # "module:attribute" whose parameters are the part's keys, if not the part's own
    maturity: Maturity = "stable"

    def load(self) -> Callable[..., Any]:
        """Return the constructor."""
        made = _attribute(self.where)
        return partial(made, **self.given) if self.given else made


@dataclass(frozen=True, slots=True)
class Key:
    """A parameter of a part that the configuration sets."""

    name: str  # of the parameter
    type: Any  # the type with its bounds, for msgspec
    default: Any  # msgspec.NODEFAULT: it must be set
    meaning: str  # from the docstring


class Catalogue(Mapping[str, Callable[..., T]], Generic[T, F]):
    """All parts of one kind by name. As a mapping: name -> constructor; entry points are looked up on use.

    `key` is that of the configuration, e.g. "mix.kind", `group` that of entry points, `default` the facts of a part that states none
    (`facts` on its class). A "module:Class" is called only if it declares `members`; `supplied` parameters come from the node, all others
    are keys of the configuration. `heavy` parts import torch: their parameters are keys only where `Entry.keys` says which. `sparse`: keys
    that are not set are left out, so that a part decides on its own defaults.
    """

    __slots__ = ("_default", "_entries", "_heavy", "_sparse", "group", "key", "members", "supplied")

    def __init__(
        self,
        key: str,
        group: str,
        entries: Mapping[str, Entry[F]],
        default: F = _NO_FACTS,
        members: tuple[str, ...] = (),
        supplied: tuple[str, ...] = (),
        *,
        heavy: bool = False,
        sparse: bool = False,
    ) -> None:
        self.key, self.group, self.members, self.supplied, self._heavy = key, group, members, supplied, heavy
        self._entries, self._default, self._sparse = MappingProxyType(dict(entries)), default, sparse

    @property
    def built_in(self) -> tuple[str, ...]:
        """Return the names of the table, in its order."""
        return tuple(self._entries)

    @property
    def entries(self) -> Mapping[str, Entry[F]]:
        """Return the built-in parts by name."""
        return self._entries

    def __contains__(self, name: object) -> bool:
        """Return whether the name is known; imports nothing."""
        return name in self._entries or name in self._installed()

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from (name for name in self._installed() if name not in self._entries)

    def __len__(self) -> int:
        return len({*self._entries, *self._installed()})

    def __getitem__(self, name: str) -> Callable[..., T]:
        """Return the constructor of a built-in or installed part; KeyError if there is none, ConfigError if a package's cannot be used."""
        if name in self._entries:
            return cast("Callable[..., T]", self._entries[name].load())
        installed = self._installed()[name]
        self._check_unique(name, installed)
        return cast("Callable[..., T]", _load_installed(self.group, installed[0]))

    def load(self, name: str, *, trusted: bool = False) -> Callable[..., T]:
        """Return the constructor of a part; ConfigError if it is unknown, not importable, or "module:Class" without consent (`trusted`)."""
        if name in self._entries:
            return self[name]
        self.check(name)
        if ":" not in name:
            return self[name]
        if not trusted:
            raise ConfigError(f"{self.key}: {name!r} names code on this machine; `--set trust=true` if you agree to run it")
        return cast("Callable[..., T]", _load_named(self.key, name, self.members))

    def check(self, name: str, key: str = "") -> None:
        """Raise ConfigError unless a name is built in, of the form module:Class, or offered by one package; imports nothing.

        `key` of the configuration, if not this kind's own.
        """
        key = key or self.key
        if ":" in name:
            module, _, attribute = name.partition(":")
            if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
                raise ConfigError(f"{key}: must look like my_module:MyClass, got {name!r}")
            return
        installed = self._installed()
        if name in installed:
            self._check_unique(name, installed[name])
        elif name not in self._entries:
            known = {*self._entries, *installed}
            close = closest(name, known)
            hint = f"did you mean {close}? try `--set {key}={close}`, or " if close else ""
            raise ConfigError(
                f"{key}: {name!r} is unknown, choose one of {', '.join(sorted(known))}; {hint}`pip install` the package that offers it "
                f"({self.group}): peers send names, never code"
            )

    def facts(self, name: str, *, trusted: bool = False) -> F:
        """Facts of a part: of a built-in one from the table, else its class attribute `facts`; ConfigError as `load`.

        Without consent "module:Class" is not imported, and has the default facts.
        """
        if name in self._entries:
            return self._entries[name].facts
        if ":" in name and not trusted:
            return self._default
        return cast("F", getattr(self.load(name, trusted=trusted), "facts", self._default))

    @property
    def experimental(self) -> tuple[str, ...]:
        """Names of built-in parts that may change, or go, without notice."""
        return tuple(name for name, entry in self._entries.items() if entry.maturity == "experimental")

    def parameters(self, name: str, *, trusted: bool = False) -> Mapping[str, inspect.Parameter]:
        """Keyword arguments that a part's constructor takes. Raises as `load`."""
        return parameters(self.load(name, trusted=trusted))

    def extended(self, entries: Mapping[str, Entry[F]]) -> Catalogue[T, F]:
        """Return this catalogue with more built-in parts."""
        merged = {**self._entries, **entries}
        return Catalogue(self.key, self.group, merged, self._default, self.members, self.supplied, heavy=self._heavy, sparse=self._sparse)

    def keys_of(self, name: str, *, trusted: bool = False) -> tuple[Key, ...] | None:
        """Return a part's keys in the configuration, ConfigError as `load`; None: not known without importing torch, or code without
        consent.
        """
        constructor = self.keyed(name, trusted=trusted)
        if constructor is None:
            return None
        keys = _keys(constructor, self.supplied)
        return tuple(replace(key, type=key.type | UnsetType, default=UNSET) for key in keys) if self._sparse else keys

    def check_keys(self, section: str, name: str, params: Mapping[str, Any]) -> None:
        """Raise ConfigError where values of a part's keys do not fit each other, if that is known without what the node supplies."""
        constructor = self.keyed(name)
        taken = parameters(constructor).values() if constructor is not None else ()
        if constructor is not None and all(it.name in params or it.default is not it.empty for it in taken):
            construct(section, name, constructor, params)

    def keyed(self, name: str, *, trusted: bool = False) -> Callable[..., Any] | None:
        """Return the callable whose parameters are the part's keys; None and ConfigError as `keys_of`."""
        entry = self._entries.get(name)
        if entry is not None and entry.keys:
            return _attribute(entry.keys)
        return None if (self._heavy or ":" in name) and not trusted else self.load(name, trusted=trusted)

    def warnings(self, name: str, agreed: Any, *, trusted: bool = False) -> list[str]:
        """Warnings of `check(agreed)` of a part's class, or of that of its keys, if it has one.

        Raises ConfigError: as `load`, or it cannot work with this manifest.
        """
        entry = self._entries.get(name)
        made = _attribute(entry.keys) if entry and entry.keys else self.load(name, trusted=trusted)
        check: Callable[[Any], list[str]] | None = getattr(made, "check", None)
        return check(agreed) if check else []

    def build(self, section: str, name: str, params: Mapping[str, Any], *, trusted: bool = False) -> T:
        """Make a part by name; arguments and errors as in `load` and `construct`."""
        return construct(section, name, self.load(name, trusted=trusted), params)

    def _installed(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        return offered(self.group)

    def _check_unique(self, name: str, entries: tuple[EntryPoint, ...]) -> None:
        packages = [_package(entry) for entry in entries]
        if name in self._entries:
            raise ConfigError(
                f"{self.group}: {name!r} is built in, but {packages[0]} offers another one under that name; "
                f"its author must rename it: until then `pip uninstall {packages[0]}`"
            )
        if len(packages) > 1:
            raise ConfigError(f"{self.group}: {name!r} is offered by {' and '.join(packages)}; keep one: `pip uninstall {packages[-1]}`")


def parameters(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Keyword arguments of a constructor by name, without **kwargs and what its name in the table fixes."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    return {
        name: parameter
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in fixed
    }


@cache
def _keys(constructor: Callable[..., Any], supplied: tuple[str, ...]) -> tuple[Key, ...]:
    meanings = _meanings(constructor)
    keys = [(name, it, _names_at(constructor, name)) for name, it in parameters(constructor).items() if name not in supplied]
    return tuple(
        Key(name, _hint(at, it.annotation), NODEFAULT if it.default is it.empty else it.default, meanings.get(name, ""))
        for name, it, at in keys
    )


def _names_at(constructor: Callable[..., Any], name: str) -> dict[str, Any] | None:
    """Global names where a parameter is annotated: of a dataclass's field the module of the class that declares it."""
    made = constructor.func if isinstance(constructor, partial) else constructor
    for each in made.__mro__ if inspect.isclass(made) else ():
        if name in inspect.get_annotations(each):
            return vars(sys.modules[each.__module__])
    return getattr(made.__init__ if inspect.isclass(made) else made, "__globals__", None)


def _hint(names: dict[str, Any] | None, annotation: Any) -> Any:
    """Return a parameter's type; any scalar where it has none that can be evaluated here."""
    try:
        stated = SimpleNamespace(__annotations__={"it": annotation})
        hint = typing.get_type_hints(stated, names, include_extras=True)["it"]
    except (NameError, TypeError):
        return Scalar
    return Scalar if hint in {inspect.Parameter.empty, Any} else hint


def _meanings(constructor: Callable[..., Any]) -> dict[str, str]:
    """Entries of "Args:" in the docstrings of a constructor and of the classes it inherits from, by name."""
    found: dict[str, str] = {}
    for each in reversed(getattr(constructor, "__mro__", (constructor,))):
        _, _, text = inspect.cleandoc(each.__doc__ or "").partition("Args:\n")
        entries = re.split(r"^    (\w+): ", text.partition("\n\n")[0], flags=re.MULTILINE)[1:]
        found |= {name: " ".join(entry.split()) for name, entry in zip(entries[::2], entries[1::2], strict=True)}
    return found


def construct(section: str, name: str, constructor: Callable[..., T], params: Mapping[str, Any]) -> T:
    """Call a part's constructor; ConfigError, with `section`, for an unknown or missing parameter, or a value that it refuses."""
    known = parameters(constructor)
    for key in params:
        if key not in known:
            raise ConfigError(f"{section}.{key}: {name} has no such key, it takes {', '.join(sorted(known)) or 'none'}")
    for parameter in known.values():
        if parameter.default is parameter.empty and parameter.name not in params:
            raise ConfigError(f"{section}.{parameter.name}: {name} needs it")
    try:
        return constructor(**params)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error


def _attribute(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


@cache
def offered(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points of all installed packages by name, each in order of package; later installations are seen by the next process."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (takes long, and most processes never ask)

    by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry), entry.value)):
        by_name[entry.name] = (*by_name.get(entry.name, ()), entry)
    return by_name


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"


def _imported(get: Callable[[], Any], failed: str, remedy: str = "") -> Any:
    try:
        return get()
    except Exception as error:  # importing a package's module may raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{failed}: {reason}{remedy}") from error


def _load_installed(group: str, entry: EntryPoint) -> Any:
    package = _package(entry)
    remedy = f"; try `pip install --upgrade {package}` or `pip uninstall {package}`"
    made = _imported(entry.load, f"{group}: {entry.name!r} of {package} cannot be imported", remedy)
    if not callable(made):
        raise ConfigError(
            f"{group}: {entry.name!r} of {package} must be a class or function, got {entry.value}, a {type(made).__name__}{remedy}"
        )
    return made


def _load_named(key: str, name: str, members: tuple[str, ...]) -> Any:
    """Return the constructor at "module:Class". os.system is importable too: only what declares the members of the kind is ever called."""
    module, _, attribute = name.partition(":")
    found = _imported(lambda: getattr(importlib.import_module(module), attribute), f"{key}: {name!r} is not installed here")
    if not _declares(found, members):
        raise ConfigError(f"{key}: {name!r} must be a class with {', '.join(members)}, or a function annotated as returning one")
    return found


def _declares(found: object, members: tuple[str, ...]) -> bool:
    made = found
    if inspect.isfunction(found):
        try:
            made = typing.get_type_hints(found).get("return")
        except (NameError, TypeError):
            return False
    return inspect.isclass(made) and all(has(made, member) for member in members)


def has(part: object, member: str) -> bool:
    """Tell if a class, or an object, has an attribute, or a class declares it as a field."""
    return hasattr(part, member) or member in getattr(part, "__annotations__", {})
