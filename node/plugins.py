"""What other packages installed on this machine add to the catalogues, by entry point.

A package that offers a selector says so in its pyproject.toml, and from then on a manifest may name it as it names a built-in one:

    [project.entry-points."starling.selectors"]
    every_nth = "every_nth:EveryNth"

A manifest comes from a stranger and holds names only: no code ever comes from a peer. What a name stands for was put here by the
machine's owner, in a package that offers itself to Starling; it is imported when it is named, not before. So a package that is broken
or not wanted by anybody does no harm, and needs no `trust`. docs/extending.md shows one from end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from starling.gossip.errors import ConfigError

T = TypeVar("T")

SELECTORS = "starling.selectors"
QUANTIZERS = "starling.quantizers"


class Installed(Mapping[str, Callable[..., T]]):
    """A catalogue's own entries and those that packages offer, the latter imported when they are looked up.

    Args:
        group: of entry points.
        built_in: name -> constructor.
        offered: name -> entry points of that name, of one package each.
    """

    __slots__ = ("_built_in", "_group", "_offered")

    def __init__(
        self, group: str, built_in: Mapping[str, Callable[..., T]], offered: Mapping[str, tuple[EntryPoint, ...]]
    ) -> None:
        self._group = group
        self._built_in = built_in
        self._offered = offered

    def __getitem__(self, name: str) -> Callable[..., T]:
        """The constructor of that name.

        Raises:
            KeyError: there is none.
            ConfigError: it is a package's, and cannot be used; the message names the package and what to do.
        """
        if name not in self._offered:
            return self._built_in[name]
        entries = self._offered[name]
        _check_unique(self._group, name, entries, self._built_in)
        return _load(self._group, entries[0])

    def __contains__(self, name: object) -> bool:
        """Imports nothing."""
        return name in self._built_in or name in self._offered

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._built_in, *self._offered}))

    def __len__(self) -> int:
        return len({*self._built_in, *self._offered})


def catalogue_with_plugins(group: str, built_in: Mapping[str, Callable[..., T]]) -> Mapping[str, Callable[..., T]]:
    """The catalogue that `starling.gossip.catalogue.build` is given: built-in entries and those of installed packages, in order of name.

    Args:
        group: of entry points: SELECTORS, QUANTIZERS or another part's.
        built_in: the catalogue in `gossip`.
    """
    return Installed(group, built_in, _offered(group))


def check_name(key: str, group: str, built_in: Collection[str], name: str) -> None:
    """Whether this machine has what a manifest names, without importing it.

    Args:
        key: where the name stands, for the message: "compress.select".
        group: of entry points.
        built_in: the catalogue's names; for those who must not import what they stand for.
        name: from the manifest.

    Raises:
        ConfigError: nothing of that name is built in or installed here, or several packages offer it.
    """
    offered = _offered(group)
    if name in offered:
        _check_unique(group, name, offered[name], built_in)
    elif name not in built_in:
        raise ConfigError(
            f"{key}: {name!r} is neither built in nor offered by a package installed on this machine, and peers send names, "
            f"never code; `pip install` the package that offers it ({group}), or choose one of "
            f"{', '.join(sorted({*built_in, *offered}))}"
        )


def _offered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Names in order, and under each its entry points in order of package: whatever order the file system gives them in."""
    found = sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry), entry.value))
    by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in found:
        by_name[entry.name] = (*by_name.get(entry.name, ()), entry)
    return by_name


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"


def _check_unique(group: str, name: str, entries: tuple[EntryPoint, ...], built_in: Collection[str]) -> None:
    packages = [_package(entry) for entry in entries]
    if name in built_in:
        raise ConfigError(
            f"{group}: {name!r} is built in, but {packages[0]} offers another one under that name; "
            f"its author must rename it: until then `pip uninstall {packages[0]}`"
        )
    if len(packages) > 1:
        raise ConfigError(
            f"{group}: {name!r} is offered by {' and '.join(packages)}; keep one: `pip uninstall {packages[-1]}`"
        )


def _load(group: str, entry: EntryPoint) -> Callable[..., T]:
    package = _package(entry)
    remedy = f"try `pip install --upgrade {package}` or `pip uninstall {package}`"
    try:
        constructor = entry.load()
    except Exception as error:  # importing a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{group}: {entry.name!r} of {package} cannot be imported: {reason}; {remedy}") from error
    if not callable(constructor):
        raise ConfigError(
            f"{group}: {entry.name!r} of {package} must be a class or function, got {entry.value}, a "
            f"{type(constructor).__name__}; {remedy}"
        )
    made: Callable[..., T] = constructor
    return made
