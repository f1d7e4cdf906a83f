"""Stored results: one JSON file per recipe and day, with everything needed to believe or repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.facts import Facts
from benchmarks.recipes import Recipe

FOLDER = Path(__file__).parent / "results"

Run = dict[str, Any]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe's outcome."""

    name: str
    date: str
    """ISO, UTC; when it began."""
    facts: Facts
    load: tuple[float, float]
    """Load average of a minute before the first run and after the last."""
    recipe: Recipe
    figures: dict[str, float]
    """What the bounds are about; see `benchmarks.demos` and `benchmarks.startup`."""
    runs: list[Run]
    """What the figures were made of."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and what the recipe asks of it.

    Args:
        figure: name.
        value: measured.
        bounds: (lowest, highest), each None where nothing is asked.
    """

    figure: str
    value: float
    bounds: tuple[float | None, float | None]

    @property
    def met(self) -> bool | None:
        """None: nothing is asked."""
        low, high = self.bounds
        if low is None and high is None:
            return None
        return (low is None or self.value >= low) and (high is None or self.value <= high)


def verdicts(recipe: Recipe, figures: Mapping[str, float]) -> list[Verdict]:
    """Every figure, in the order measured.

    Raises:
        ValueError: the recipe bounds a figure that nobody measured.
    """
    missing = sorted((recipe.at_least.keys() | recipe.at_most.keys()) - figures.keys())
    if missing:
        raise ValueError(f"no figure {', '.join(missing)}; there are {', '.join(figures)}")
    return [
        Verdict(name, value, (recipe.at_least.get(name), recipe.at_most.get(name))) for name, value in figures.items()
    ]


def save(result: Result, folder: Path) -> Path:
    """Write `YYYY-MM-DD-name.json`; a second one of a day replaces the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.date[:10]}-{result.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return path


def newest(folder: Path) -> list[Result]:
    """The last result of every recipe, by name."""
    stored = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("*.json")]
    last = {result.name: result for result in sorted(stored, key=lambda result: result.date)}
    return [last[name] for name in sorted(last)]
