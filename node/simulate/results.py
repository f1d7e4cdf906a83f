"""What a simulation found, and how it is written down. Torch-free: the command line reads it.

Equal scenarios give equal bytes of JSON and CSV but for the key "wall", which holds what a clock on the wall says.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

from starling.gossip.errors import ConfigError
from starling.node.config.schema import Scalar

SEED = "simulate.seed"
"""The label that tells repetitions of one variant apart."""
VERSION = 1
"""Of the JSON: raised when a reader of the one before would misread. New keys do not raise it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation.

    Args:
        round: rounds done.
        seconds: virtual time.
        bytes_per_node: sent, payloads of all exchanges so far, mean over the nodes that ever were.
        exchanges_per_node: committed so far, mean over the same.
        alive: nodes that take part.
        loss: of the mean model on held-out data; null without a model.
        mean_model: metric of the mean model.
        mean, min, max: metric over the nodes evaluated.
        consensus_distance: Ξ, Ξ² = mean over living nodes of ‖x_i − x̄‖².
        attack_success: how often the nodes evaluated do what an attack wants of them; null where that cannot be counted.

    Where some nodes lie, all but the costs is about the honest alone.
    """

    round: int
    seconds: float
    bytes_per_node: float
    exchanges_per_node: float
    alive: int
    loss: float | None
    mean_model: float
    mean: float
    min: float
    max: float
    consensus_distance: float
    attack_success: float | None = None


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The first evaluation at which the mean metric was at the target."""

    round: int
    seconds: float
    bytes_per_node: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        metric: its name.
        higher_is_better: which way it improves.
        parameters: d.
        rows: evaluations, the first before any round.
        counts: exchanges and nodes, by what became of them.
        undone: local steps taken back because a number was not finite.
        diverged: rounds after which models or figures had become so; null if they had not. The rows end before.
        bad: numbers of the nodes that lie.
        target: where it was reached; null if it was not, or none is set.
        wall_s: how long it took on this machine.
    """

    metric: str
    higher_is_better: bool
    parameters: int
    rows: tuple[Row, ...]
    counts: dict[str, int]
    undone: int
    diverged: int | None
    target: Reached | None
    wall_s: float
    bad: tuple[int, ...] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what set it apart."""

    labels: dict[str, Scalar]
    outcome: Outcome


AXES = {"rounds": "round", "bytes": "bytes_per_node", "seconds": "seconds"}
"""What a metric is drawn against: name -> field of a row."""


def reached(rows: Sequence[Row], target: float, *, higher_is_better: bool) -> Reached | None:
    """Where the mean metric first was at the target or beyond it; 0 is no target."""
    for row in rows if target else ():
        if row.mean >= target if higher_is_better else row.mean <= target:
            return Reached(round=row.round, seconds=row.seconds, bytes_per_node=row.bytes_per_node)
    return None


def document(scenario: dict[str, Any], finished: Sequence[Finished], planned: int) -> dict[str, Any]:
    """The JSON of one or more runs.

    Args:
        scenario: as settings.
        finished: runs, in the sweep's order.
        planned: how many there were to be: fewer are there after an interruption.
    """
    runs = []
    for run in finished:
        plain = msgspec.to_builtins(run.outcome)
        plain["wall"] = {"seconds": plain.pop("wall_s")}
        runs.append({"labels": run.labels, **plain})
    return {"version": VERSION, "scenario": scenario, "planned": planned, "runs": runs}


def to_json(found: dict[str, Any]) -> bytes:
    """Numbers that are not finite become null."""
    return msgspec.json.encode(found)


def to_csv(finished: Sequence[Finished]) -> str:
    """One line an evaluation, labels first; nothing a clock on the wall says."""
    keys = list(dict.fromkeys(key for run in finished for key in run.labels))
    fields = Row.__struct_fields__
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*keys, "metric", *fields))
    for run in finished:
        labels = [run.labels.get(key, "") for key in keys]
        for row in run.outcome.rows:
            values = (getattr(row, field) for field in fields)
            writer.writerow((*labels, run.outcome.metric, *("" if value is None else value for value in values)))
    return text.getvalue()


def to_csv_over_seeds(finished: Sequence[Finished], group: Sequence[str] = ()) -> str:
    """One line per variant and evaluation: number of runs, then mean and standard deviation of every field over them.

    Args:
        finished: runs. Of a variant whose runs differ in length, as when one diverged, the evaluations that all have.
        group: see `variants`.
    """
    keys = list(group) or varying(finished)
    fields = [name for name in Row.__struct_fields__ if name != "round"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (*keys, "metric", "round", "runs", *(f"{name}_{what}" for name in fields for what in ("mean", "sd")))
    )
    for _, runs in variants(finished, group):
        labels = [runs[0].labels.get(key, "") for key in keys]
        for rows in zip(*(run.outcome.rows for run in runs), strict=False):
            cells = (_mean_sd([getattr(row, name) for row in rows]) for name in fields)
            writer.writerow(
                (*labels, runs[0].outcome.metric, rows[0].round, len(rows), *(cell for pair in cells for cell in pair))
            )
    return text.getvalue()


def _mean_sd(values: Sequence[float | None]) -> tuple[object, object]:
    """Mean and sample standard deviation, empty where there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "", ""
    return fmean(known), stdev(known) if len(known) > 1 else ""


def check_group(labels: Iterable[Mapping[str, Scalar]], group: Sequence[str]) -> None:
    """Whether every key of `group` is a label of some run.

    Raises:
        ConfigError: one is not.
    """
    known = dict.fromkeys(key for each in labels for key in each)
    for key in group:
        if key not in known:
            choice = f"choose among {', '.join(known)}" if known else "there is no [sweep]"
            raise ConfigError(f"--group: {key!r} is not swept here; {choice}")


def varying(finished: Sequence[Finished]) -> list[str]:
    """Keys whose labels differ between runs, but for the seed."""
    keys = dict.fromkeys(key for run in finished for key in run.labels if key != SEED)
    return [key for key in keys if len({run.labels.get(key) for run in finished}) > 1]


def variants(finished: Sequence[Finished], group: Sequence[str] = ()) -> list[tuple[str, list[Finished]]]:
    """Runs that belong together, with a short title: the values of the keys that tell them apart.

    Args:
        finished: runs.
        group: keys that tell them apart; empty: all that vary but the seed.

    Raises:
        ConfigError: a key of `group` is no label of the runs.
    """
    check_group((run.labels for run in finished), group)
    keys = list(group) or varying(finished)
    groups: dict[tuple[Scalar, ...], list[Finished]] = {}
    for run in finished:
        groups.setdefault(tuple(run.labels.get(key, "") for key in keys), []).append(run)
    return [(", ".join(map(_short, values)), runs) for values, runs in groups.items()]


def _short(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


Progress = Callable[[int, str], None]
"""Told the rounds done and one line about them."""
