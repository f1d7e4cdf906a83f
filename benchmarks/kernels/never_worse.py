"""Is the default mix ever worse than plain averages? A grid of cells, each simulated with both on the same seeds, partners and batches.

A cell is a split of the data, an optimiser, a schedule, a rate, and calm or faults (`starling.kernels.schema.NEVER_WORSE_AXES`). Digits
ship with Starling; texts are those of a folder, else made up (`starling.kernels.texts`). Results are written down cell by cell, so that a
run that was cut off goes on.

Torch-free: the command line calls it, and worker processes compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from starling import __version__
from starling.gossip.errors import ConfigError, GossipError
from starling.kernels.paired import ARMS, Results, compare, pair
from starling.kernels.schema import NEVER_WORSE_AXES, NeverWorseCase
from starling.kernels.texts import Text
from starling.node.config import toml
from starling.node.config.assignments import assignments
from starling.node.simulate import rules
from starling.node.simulate.runs import Sweep
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import Cell as Run

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from starling.node.simulate.runs import Show

LOOKS = 20  # evaluations of a run, at least; up to twice as many where the rounds are no multiple
LOSS, TRIES = 0.3, 1  # probability that a message is lost, and how often it is sent
CRASHES = 2  # nodes that crash at half time, one a round
STEP_S = 1.0  # seconds of a local step with faults: a node that waits in vain, up to half a minute, misses rounds, not the run
FASTER = 20.0  # factor of the rate in half of the cells
LOCAL_STEPS = 10
_CLASSIFIED = {"sgd": 0.02, "adamw": 0.002, "muon": 0.03}  # rates that suit plain averages, of short sweeps
_WRITTEN = {"sgd": 0.1, "adamw": 0.005, "muon": 0.01}


class Cell(NamedTuple):
    """One combination of the grid."""

    split: str
    optimizer: str
    schedule: str
    rate: str
    faults: str

    @property
    def name(self) -> str:
        """Return the name that patterns match."""
        return "/".join(self)

    @property
    def file(self) -> str:
        """Return the name of its file of results, without suffix."""
        return "-".join(self)


class _Split(NamedTuple):
    nodes: int
    keys: Mapping[str, Any]
    rates: Mapping[str, float]
    text: str = ""  # folder in data/text with its texts


_TEXT = {
    "task": "text",
    "task.batch_size": 8,
    "task.context": 16,
    "task.width": 32,
    "task.layers": 1,
    "task.heads": 2,
    "partition": "by_file",
}
_SPLITS: Mapping[str, _Split] = MappingProxyType(
    {
        "by_label": _Split(8, {"task": "digits", "partition": "by_label"}, _CLASSIFIED),
        "dirichlet": _Split(8, {"task": "digits", "partition": "dirichlet", "partition.alpha": 0.3}, _CLASSIFIED),
        "iid": _Split(8, {"task": "digits", "partition": "iid"}, _CLASSIFIED),
        "by_language": _Split(4, _TEXT, _WRITTEN, "languages"),
        "by_author": _Split(6, _TEXT, _WRITTEN, "authors"),
    }
)


def cells(patterns: Sequence[str] = ()) -> list[Cell]:
    """Return the cells that a pattern is for, all if there is none. Raises ConfigError: a pattern is for no cell."""
    every = [Cell(*each) for each in product(*NEVER_WORSE_AXES)]
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in every):
            named = "; ".join(", ".join(names) for names in NEVER_WORSE_AXES)
            raise ConfigError(
                f"--cells: {pattern!r} is no SPLIT/OPTIMIZER/SCHEDULE/RATE/FAULTS of {named}; "
                "try `starling bench never-worse --cells 'by_label/sgd/*'`"
            )
    return [cell for cell in every if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)]


def wanted(chosen: Sequence[Cell]) -> dict[str, int]:
    """Return the texts that cells learn from, by name: how many nodes learn from them."""
    splits = [_SPLITS[cell.split] for cell in chosen]
    return {split.text: split.nodes for split in splits if split.text}


def keys(cell: Cell, rounds: int, path: Path | None) -> dict[str, Any]:
    """Return what both runs of a cell set but for the seed; `path` is the folder of its texts."""
    split = _SPLITS[cell.split]
    rate = split.rates[cell.optimizer] * (FASTER if cell.rate == "twentyfold" else 1.0)
    given = {
        "simulate.salt": "never-worse",
        "simulate.nodes": split.nodes,
        "simulate.sample": 0,
        **split.keys,
        "optimizer": cell.optimizer,
        "optimizer.lr": rate,
        "optimizer.schedule": cell.schedule,
        "pace.rounds": rounds,
        "pace.local_steps": LOCAL_STEPS,
        "pace.evaluate_every": max(1, rounds // LOOKS),
    }
    if path is not None:
        given["task.path"] = path
    if cell.faults == "faults":
        half = rounds // 2
        given |= {"network.step_s": STEP_S, "faults.loss": LOSS, "faults.tries": TRIES}
        given |= {"faults.crash": 1.0, "faults.churn_from": half, "faults.churn_until": half + CRASHES}
    return given


def scenarios(cell: Cell, rounds: int, path: Path | None, default: Sequence[str] = ()) -> tuple[Scenario, Scenario]:
    """Return those of the default mix, with what is given for it as `--set` takes it, and of plain averages; both of seed 0.

    Raises ConfigError: a key is wrong, or is none of mix.
    """
    common = toml.apply_set(Scenario(), assignments(keys(cell, rounds, path)))
    for text in default:
        if text.partition("=")[0].strip().partition(".")[0] != "mix":
            raise ConfigError(f"--set: must be a key of mix, got {text!r}; try `--set mix.kappa=0.2`")
    return toml.apply_set(common, default), toml.apply_set(common, ["mix=dsgd"])


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings that all cells share.

    Args:
        rounds: of every run, at least 4.
        seeds: of every cell, at least one.
        default: `--set` of the default's runs, keys of mix.
        texts: by name, as `starling.kernels.texts.prepare` gives them.
        results: where pairs are stored.
    """

    rounds: int
    seeds: Sequence[int]
    default: Sequence[str]
    texts: Mapping[str, Text]
    results: Results

    def check(self, chosen: Sequence[Cell]) -> list[str]:
        """Check all cells before the first is measured -> warnings, one line each, without repetition.

        Raises ConfigError: a cell cannot be simulated, or its file is of other settings.
        """
        warnings: dict[str, None] = {}
        for cell in chosen:
            for scenario in scenarios(cell, self.rounds, self._text(cell).path, self.default):
                warnings |= dict.fromkeys(rules.check_one(scenario))
            self.results.read(cell.file, self.asked(cell))
        return list(warnings)

    def asked(self, cell: Cell) -> dict[str, str]:
        """Return what a cell's results depend on."""
        text = self._text(cell)
        given = {key: str(value) for key, value in keys(cell, self.rounds, text.path).items()}
        given |= {"task.path": text.shown} if text.path is not None else {}
        return given | {"--set": " ".join(self.default), "starling": __version__}

    def measure(self, cell: Cell, executor: Executor, show: Show) -> NeverWorseCase:
        """Simulate the missing runs of a cell; return its case. After an interruption, finished pairs are reused.

        Raises GossipError: a run failed.
        """
        asked, text = self.asked(cell), self._text(cell)
        known = self.results.read(cell.file, asked)
        missing = [seed for seed in self.seeds if seed not in known]
        if missing:
            both = scenarios(cell, self.rounds, text.path, self.default)
            runs = [
                Run({"seed": seed, "mix": arm}, toml.apply_set(scenario, [f"simulate.seed={seed}"]))
                for seed in missing
                for arm, scenario in zip(ARMS, both, strict=True)
            ]
            under_way = Sweep(runs, executor, show)
            try:
                under_way.check()
                under_way.run()
            finally:
                finished = under_way.finished
                for place, seed in enumerate(missing):
                    one, other = (finished.get(len(ARMS) * place + arm) for arm in range(len(ARMS)))
                    if one is not None and other is not None:
                        known[seed] = pair(seed, one.outcome, other.outcome)
                if known:
                    self.results.write(cell.file, asked, known)
            for failed in under_way.failed.values():
                error = failed.failure.error()
                raise type(error)(f"{cell.name}, seed {failed.labels['seed']}, {failed.labels['mix']}: {error}")
        return compare(cell.name, text.shown, [known[seed] for seed in self.seeds])

    def _text(self, cell: Cell) -> Text:
        return self.texts.get(_SPLITS[cell.split].text, Text("digits"))


def measured(bench: Bench, chosen: Sequence[Cell], executor: Executor, show: Show) -> Iterator[NeverWorseCase | GossipError]:
    """Measure cell after cell; one that fails is its error, and the others go on."""
    for number, cell in enumerate(chosen):

        def within(fraction: float, line: str, number: int = number, cell: Cell = cell) -> None:
            show((number + fraction) / len(chosen), f"{number + 1}/{len(chosen)}  {cell.name}  {line}")

        within(0.0, "")
        try:
            yield bench.measure(cell, executor, within)
        except GossipError as error:
            yield error
