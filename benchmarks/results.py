"""Stored results: one JSON file per recipe and day, with everything needed to verify or repeat it."""

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
SPREADS = 3.0
"""Standard deviations over seeds that a figure may differ by from a stored one."""
_NUMBERS = re.compile(rb"\[\s*(-?[\d.][^\[\]{}\"]*?)\s*\]")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a recipe."""

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
    spread: dict[str, float] = {}
    """Standard deviation of a figure over seeds, where more than one was run. Of results stored before there is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and the recipe's bound on it.

    Args:
        figure: name.
        value: measured; None meets no bound.
        bounds: (lowest, highest), each None for no bound.
    """

    figure: str
    value: float | None
    bounds: tuple[float | None, float | None]

    @property
    def met(self) -> bool | None:
        """Return whether the bound is met; None: there is no bound."""
        low, high = self.bounds
        if low is None and high is None:
            return None
        if self.value is None:
            return False
        return (low is None or self.value >= low) and (high is None or self.value <= high)


def verdicts(recipe: Recipe, figures: Mapping[str, float | None]) -> list[Verdict]:
    """Return the verdict on every figure, in the order measured.

    Raises:
        ValueError: the recipe bounds a figure that was not measured.
    """
    missing = sorted((recipe.at_least.keys() | recipe.at_most.keys()) - figures.keys())
    if missing:
        raise ValueError(f"no figure {', '.join(missing)}; there are {', '.join(figures)}")
    return [Verdict(name, value, (recipe.at_least.get(name), recipe.at_most.get(name))) for name, value in figures.items()]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a figure between two results of one recipe.

    Args:
        figure: name.
        then: stored.
        now: measured.
        tolerance: how far apart they may be.
    """

    figure: str
    then: float | None
    now: float | None
    tolerance: float

    @property
    def within(self) -> bool:
        """Return whether the difference is within the tolerance; a missing figure is not."""
        if self.then is None or self.now is None:
            return self.then is self.now
        return abs(self.now - self.then) <= self.tolerance


def compare(stored: Result, measured: Result, relative: float) -> list[Difference]:
    """Return the differences of all figures of both, in the order measured.

    Args:
        stored: the older one.
        measured: of the same recipe.
        relative: share of the stored value that machines of another maker may differ by. A figure over seeds may differ by SPREADS of its
            standard deviations as well, whichever is more.
    """
    names = dict.fromkeys((*measured.figures, *stored.figures))
    return [
        Difference(
            name,
            stored.figures.get(name),
            measured.figures.get(name),
            max(relative * abs(stored.figures.get(name) or 0.0), SPREADS * stored.spread.get(name, 0.0)),
        )
        for name in names
    ]


def read(path: Path) -> Result:
    """Return a stored result.

    Raises:
        ValueError: it cannot be read, or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: no stored result: {error}") from error


def file_name(result: Result) -> str:
    """Return the file name of a stored result."""
    return f"{result.date[:10]}-{result.name}.json"


def save(result: Result, folder: Path) -> Path:
    """Write `YYYY-MM-DD-name.json`; a second one of a day replaces the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result)
    text = msgspec.json.format(msgspec.json.encode(result), indent=1)
    path.write_bytes(_NUMBERS.sub(_in_a_line, text) + b"\n")
    return path


def _in_a_line(numbers: re.Match[bytes]) -> bytes:
    """Put a list of numbers on one line: a curve has hundreds of points."""
    return b"[" + b", ".join(part.strip() for part in numbers[1].split(b",")) + b"]"


def newest(folder: Path) -> list[Result]:
    """Return the last result of every recipe, by name."""
    stored = [msgspec.json.decode(path.read_bytes(), type=Result) for path in folder.glob("*.json")]
    last = {result.name: result for result in sorted(stored, key=lambda result: result.date)}
    return [last[name] for name in sorted(last)]
