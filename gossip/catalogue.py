"""Parts by name: one table per kind of part, from a name in a configuration to an object, or one clear line why not.

A name stands for one of three things, and the part is imported when it is used, never before:

    pet             an entry of the table below it: built in.
    every_nth       an entry point of a package installed on this machine, in the kind's group, e.g. `starling.selectors`.
    my_part:MyPart  a module and a class (or function) that can be imported here.

A manifest comes from a stranger and holds names, never code. Entry points need no consent: the machine's owner installed a package that
offers itself to Starling. `module:Class` may name anything importable, so callers pass `trusted=True` only with the owner's consent.

Tables import nothing, and facts of built-in parts stand in them: the daemon and the command line check names without torch.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from starling.gossip.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
F = TypeVar("F")
_NO_FACTS: Any = None


@dataclass(frozen=True, slots=True)
class Entry(Generic[F]):
    """A built-in part.

    Args:
        where: "module:attribute" of its class, or of a function that makes one.
        facts: what is known of it without importing it.
        given: arguments that the name itself fixes, e.g. {"bits": 8} for int8.
    """

    where: str
    facts: F = _NO_FACTS
    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def load(self) -> Callable[..., Any]:
        """The constructor."""
        module, _, name = self.where.partition(":")
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return _Given(made, self.given) if self.given else made


@dataclass(frozen=True, slots=True)
class _Given:
    """A constructor some of whose arguments are fixed."""

    constructor: Callable[..., Any]
    given: Mapping[str, Any]

    def __call__(self, **params: Any) -> Any:
        return self.constructor(**self.given, **params)

    @property
    def __signature__(self) -> inspect.Signature:
        whole = inspect.signature(self.constructor)
        return whole.replace(parameters=[p for name, p in whole.parameters.items() if name not in self.given])


class Catalogue(Mapping[str, Callable[..., T]], Generic[T, F]):
    """All parts of one kind by name. As a mapping: name -> constructor; what it does not have built in it looks up when asked.

    Args:
        key: of the configuration that names such parts, e.g. "mix.kind".
        group: of entry points.
        entries: the built-in ones.
        default: facts of a part that states none (`facts` on its class).
        members: what a part of this kind has; what "module:Class" names is called only if it declares them.
    """

    __slots__ = ("_default", "_entries", "group", "key", "members")

    def __init__(
        self,
        key: str,
        group: str,
        entries: Mapping[str, Entry[F]],
        default: F = _NO_FACTS,
        members: tuple[str, ...] = (),
    ) -> None:
        self.key, self.group, self.members = key, group, members
        self._entries, self._default = MappingProxyType(dict(entries)), default

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of the table, in its order."""
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        """Imports nothing."""
        return name in self._entries or name in self._installed()

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from (name for name in self._installed() if name not in self._entries)

    def __len__(self) -> int:
        return len({*self._entries, *self._installed()})

    def __getitem__(self, name: str) -> Callable[..., T]:
        """The constructor of a built-in or installed part.

        Raises:
            KeyError: there is none.
            ConfigError: it is a package's and cannot be used; the message names the package and what to do.
        """
        if name in self._entries:
            return cast("Callable[..., T]", self._entries[name].load())
        installed = self._installed()[name]
        self._check_unique(name, installed)
        return cast("Callable[..., T]", _load_installed(self.group, installed[0]))

    def load(self, name: str, *, trusted: bool = False) -> Callable[..., T]:
        """The constructor that a name stands for.

        Args:
            name: built in, installed, or "module:Class".
            trusted: the machine's owner agrees to import what "module:Class" names.

        Raises:
            ConfigError: unknown, not importable, or "module:Class" without consent.
        """
        if name in self._entries:
            return self[name]
        self.check(name)
        if ":" not in name:
            return self[name]
        if not trusted:
            raise ConfigError(
                f"{self.key}: {name!r} names code on this machine; `--set trust=true` if you agree to run it"
            )
        return cast("Callable[..., T]", _load_named(self.key, name, self.members))

    def check(self, name: str, key: str = "") -> None:
        """Whether this machine may have what a configuration names, without importing it.

        Args:
            name: from the configuration.
            key: where it stands, if not in this kind's own key.

        Raises:
            ConfigError: neither built in nor installed nor of the form module:Class, or several packages offer it.
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
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? try `--set {key}={close[0]}`, or " if close else ""
            raise ConfigError(
                f"{key}: {name!r} is unknown, choose one of {', '.join(sorted(known))}; {hint}`pip install` the package that offers it "
                f"({self.group}): peers send names, never code"
            )

    def facts(self, name: str, *, trusted: bool = False) -> F:
        """What is known of a part: of a built-in one from the table, else what its class states as `facts`.

        Raises:
            ConfigError: as `load`. Without consent "module:Class" is not imported, and has the default facts.
        """
        if name in self._entries:
            return self._entries[name].facts
        if ":" in name and not trusted:
            return self._default
        return cast("F", getattr(self.load(name, trusted=trusted), "facts", self._default))

    def parameters(self, name: str, *, trusted: bool = False) -> Mapping[str, inspect.Parameter]:
        """Keyword arguments that a part's constructor takes. Raises as `load`."""
        return parameters(self.load(name, trusted=trusted))

    def build(self, section: str, name: str, params: Mapping[str, Any], *, trusted: bool = False) -> T:
        """Make the object that `name` stands for.

        Args:
            section: where the name stands in the configuration, for messages: "task", "overlay", …
            name: as in `load`.
            params: keyword arguments of its constructor.
            trusted: as in `load`.

        Raises:
            ConfigError: as `load`, an unknown or missing parameter, or a value that the constructor refuses.
        """
        return construct(section, name, self.load(name, trusted=trusted), params)

    def _installed(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        """Names in order, and under each its entry points in order of package, whatever order the file system gives."""
        return _offered(self.group)

    def _check_unique(self, name: str, entries: tuple[EntryPoint, ...]) -> None:
        packages = [_package(entry) for entry in entries]
        if name in self._entries:
            raise ConfigError(
                f"{self.group}: {name!r} is built in, but {packages[0]} offers another one under that name; "
                f"its author must rename it: until then `pip uninstall {packages[0]}`"
            )
        if len(packages) > 1:
            raise ConfigError(
                f"{self.group}: {name!r} is offered by {' and '.join(packages)}; keep one: `pip uninstall {packages[-1]}`"
            )


def parameters(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Keyword arguments of a constructor by name, **kwargs left out."""
    return {
        name: parameter
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def build(section: str, catalogue: Mapping[str, Callable[..., T]], name: str, params: Mapping[str, Any]) -> T:
    """`Catalogue.build` for any mapping of names to constructors.

    Raises:
        ConfigError: unknown name, unknown or missing parameter, or a value the constructor refuses.
    """
    if isinstance(catalogue, Catalogue):
        made: T = catalogue.build(section, name, params)
        return made
    if name not in catalogue:
        raise ConfigError(f"{section}.kind: {name!r} is unknown, choose one of {', '.join(sorted(catalogue))}")
    return construct(section, name, catalogue[name], params)


def construct(section: str, name: str, constructor: Callable[..., T], params: Mapping[str, Any]) -> T:
    """Call a constructor with checked arguments.

    Args:
        section: where the part stands in the configuration, for messages.
        name: of the part.
        constructor: of the part.
        params: keyword arguments.

    Raises:
        ConfigError: an unknown or missing parameter, or a value that the constructor refuses.
    """
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


@cache
def _offered(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points of all installed packages by name; what is installed later is seen by the next process."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (takes long, and most processes never ask)

    by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry), entry.value)):
        by_name[entry.name] = (*by_name.get(entry.name, ()), entry)
    return by_name


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"


def _load_installed(group: str, entry: EntryPoint) -> Callable[..., Any]:
    package = _package(entry)
    remedy = f"try `pip install --upgrade {package}` or `pip uninstall {package}`"
    try:
        constructor = entry.load()
    except Exception as error:  # importing a stranger's module may raise anything
        raise ConfigError(
            f"{group}: {entry.name!r} of {package} cannot be imported: {_reason(error)}; {remedy}"
        ) from error
    if not callable(constructor):
        raise ConfigError(
            f"{group}: {entry.name!r} of {package} must be a class or function, got {entry.value}, a "
            f"{type(constructor).__name__}; {remedy}"
        )
    made: Callable[..., Any] = constructor
    return made


def _load_named(key: str, name: str, members: tuple[str, ...]) -> Callable[..., Any]:
    """What "module:Class" names. Importable is also os.system: only what declares itself a part of the kind is ever called."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # as above
        raise ConfigError(f"{key}: {name!r} is not installed here: {_reason(error)}") from error
    if not _declares(found, members):
        raise ConfigError(
            f"{key}: {name!r} must be a class with {', '.join(members)}, or a function annotated as returning one"
        )
    return cast("Callable[..., Any]", found)


def _declares(found: object, members: tuple[str, ...]) -> bool:
    made = found
    if inspect.isfunction(found):
        try:
            made = typing.get_type_hints(found).get("return")
        except (NameError, TypeError):
            return False
    return inspect.isclass(made) and all(has(made, member) for member in members)


def has(part: object, member: str) -> bool:
    """Whether a class, or an object, has an attribute, or a class declares it as a field."""
    return hasattr(part, member) or member in getattr(part, "__annotations__", {})


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
