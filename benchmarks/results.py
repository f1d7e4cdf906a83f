"""Stored results: one JSON file per recipe and day, with everything needed to believe or repeat it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.facts import Facts
from benchmarks.recipes import Recipe

FOLDER = Path(__file__).parent / "results"

Run = dict[str, Any]
Figures = dict[str, float | None]
"""Name -> value; None where there is none, as of a target that was not reached."""
_NUMBERS = re.compile(rb"\[\s*(-?[\d.][^\[\]{}\"]*?)\s*\]")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe's outcome."""

    name: str
    date: str
    """ISO, UTC; when it began."""
    facts: Facts
    load: tuple[float, float]
    """Load average of a minute before the first run and after the last."""
    recipe: Recipe
    figures: dict[str, float | None]
    """What the bounds are about; explained where they are measured, see `benchmarks.recipes`."""
    runs: list[Run]
    """What the figures were made of."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and what the recipe asks of it.

    Args:
        figure: name.
        value: measured; None meets no bound.
        bounds: (lowest, highest), each None where nothing is asked.
    """

    figure: str
    value: float | None
    bounds: tuple[float | None, float | None]

    @property
    def met(self) -> bool | None:
        """None: nothing is asked."""
        low, high = self.bounds
        if low is None and high is None:
            return None
        if self.value is None:
            return False
        return (low is None or self.value >= low) and (high is None or self.value <= high)


def verdicts(recipe: Recipe, figures: Mapping[str, float | None]) -> list[Verdict]:
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


def file_name(result: Result) -> str:
    """Of a stored result."""
    return f"{result.date[:10]}-{result.name}.json"


def save(result: Result, folder: Path) -> Path:
    """Write `YYYY-MM-DD-name.json`; a second one of a day replaces the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result)
    text = msgspec.json.format(msgspec.json.encode(result), indent=1)
    path.write_bytes(_NUMBERS.sub(_in_a_line, text) + b"\n")
    return path


def _in_a_line(numbers: re.Match[bytes]) -> bytes:
    """A curve has hundreds of points."""
    return b"[" + b", ".join(part.strip() for part in numbers[1].split(b",")) + b"]"


def newest(folder: Path) -> list[Result]:
    """The last result of every recipe, by name."""
    stored = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("*.json")]
    last = {result.name: result for result in sorted(stored, key=lambda result: result.date)}
    return [last[name] for name in sorted(last)]
