"""What a recipe can say: TOML files in `benchmarks/recipes`, typed.

A recipe names figures and their bounds. `kind` says who measures: `demo` (`benchmarks.demos`) or `startup` (`benchmarks.startup`);
the names of the figures are explained there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

FOLDER = Path(__file__).parent / "recipes"

AtLeastOne = Annotated[int, Meta(ge=1)]
Nodes = Annotated[int, Meta(ge=2)]
Name = Annotated[str, Meta(pattern="^[a-z0-9_]+$")]


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every recipe says."""

    title: Annotated[str, Meta(min_length=1)]
    """The question in one line."""
    at_least: dict[str, float] = {}
    """Figure -> lower bound."""
    at_most: dict[str, float] = {}
    """Figure -> upper bound."""


class DemoRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="demo"):
    """The same swarm of node processes several times, with other settings and seeds."""

    seeds: Annotated[tuple[int, ...], Meta(min_length=1)] = (1, 2, 3)
    nodes: Nodes = 8
    rounds: AtLeastOne | None = None
    """None: the demo's default."""
    set: tuple[str, ...] = ()
    """`--set` of every case."""
    cases: dict[Name, tuple[str, ...]] = msgspec.field(default_factory=lambda: {"default": ()})
    """Name -> `--set` of this case alone."""
    compare: tuple[Name, Name] | None = None
    """Two cases, of which the first should be better at equal bytes."""

    def __post_init__(self) -> None:
        """The cases compared exist."""
        if self.compare is not None and not set(self.compare) <= self.cases.keys():
            raise ValueError(f"compare: must name two of {', '.join(self.cases)}, got {', '.join(self.compare)}")


class StartupRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="startup"):
    """How soon a node is there, and what its daemon takes."""

    repeats: AtLeastOne = 10
    """Starts of each kind, after one that is not counted."""
    nodes: Nodes = 8
    """Of the swarm in which memory is measured."""
    rounds: AtLeastOne = 200
    """Of that swarm's run."""


Recipe = DemoRecipe | StartupRecipe


def load(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        ValueError: it is none; the message names file and key.
    """
    try:
        recipe: Recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    return recipe


def find(name: str) -> Path:
    """A recipe's file from its path or bare name.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    for path in (Path(name), FOLDER / f"{name}.toml"):
        if path.is_file():
            return path
    raise ValueError(f"no recipe {name!r}; there are {', '.join(path.stem for path in everything())}")


def everything() -> list[Path]:
    """All recipes, by name."""
    return sorted(FOLDER.glob("*.toml"))
