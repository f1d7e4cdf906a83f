"""Expand a scenario with a grid into its runs."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from starling.gossip.catalogue import Scalar
from starling.gossip.errors import ConfigError
from starling.node.config import presets, toml
from starling.node.simulate.results import SEED
from starling.node.simulate.schema import Scenario, SweepSection

MAX_CELLS = 10_000
_PRESET = "preset"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep."""

    labels: Mapping[str, Scalar]  # what distinguishes it: dotted key -> value; empty for a single run
    scenario: Scenario  # the scenario, with an empty sweep


def title(labels: Mapping[str, Scalar]) -> str:
    """Return the labels of a run in one line."""
    return ", ".join(f"{key} = {value}" for key, value in labels.items())


def read(file: Path | None, given: Sequence[str] = ()) -> tuple[Scenario, tuple[Cell, ...]]:
    """Return the scenario of a TOML file, None: of the defaults, with what is `given` as `--set` takes it, "preset=open" too; and its runs.

    Raises ConfigError: unreadable, not TOML, or as `cells`.
    """
    scenario = presets.load(Scenario, file, given)
    return scenario, cells(scenario, lambda more: presets.load(Scenario, file, (*given, *more)))


def cells(scenario: Scenario, again: Callable[[Sequence[str]], Scenario] | None = None) -> tuple[Cell, ...]:
    """Return all runs, the last key of the file changing fastest and seeds fastest of all.

    `again` makes the scenario anew with more assignments: a preset in the grid gives values to the keys that were not given, which a
    scenario no longer knows. Without it such a preset is only a name.

    Raises ConfigError: an unknown key, a value it does not take, or too many runs.
    """
    axes = [_axis(key, values) for key, values in flat(scenario.sweep.grid, "")]
    if scenario.sweep.seeds:
        axes.append([{SEED: seed} for seed in scenario.sweep.seeds])
    count = math.prod(map(len, axes))
    if count > MAX_CELLS:
        raise ConfigError(f"sweep: must be at most {MAX_CELLS} runs, got {count}; try fewer values")
    result = []
    for combination in itertools.product(*axes):
        labels = {key: value for part in combination for key, value in part.items()}
        given = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in labels.items()]
        try:
            begun = scenario if again is None or _PRESET not in labels else again([f"{_PRESET}={labels[_PRESET]}"])
            alone = msgspec.structs.replace(begun, sweep=SweepSection())
            result.append(Cell(labels, toml.apply_set(alone, given)))
        except ConfigError as error:
            raise ConfigError(f"sweep.grid: {error}") from error
    return tuple(result)


def flat(grid: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; unquoted dotted keys are tables in TOML."""
    for key, value in grid.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _axis(key: str, values: object) -> list[dict[str, Scalar]]:
    """Return the settings that one key of the grid goes through."""
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"sweep.grid: {key}: must be a list of values, got {values!r}; try `{key} = [1, 2]`")
    names = [name.strip() for name in key.split(",")]
    axis = []
    for value in values:
        together = value if len(names) > 1 else [value]
        if not isinstance(together, list | tuple) or len(together) != len(names):
            raise ConfigError(f"sweep.grid: {key}: must be lists of {len(names)} values, got {value!r}; try `[[1, 2], [3, 4]]`")
        for name, each in zip(names, together, strict=True):
            if not isinstance(each, str | int | float | bool):
                raise ConfigError(f"sweep.grid: {name}: must be text or a number, got {each!r}; try `{name} = [1, 2]`")
            if name.split(".")[0] == "sweep":
                raise ConfigError(f"sweep.grid: {name}: a sweep cannot change itself; use keys of the other sections")
        axis.append(dict(zip(names, together, strict=True)))
    return axis
