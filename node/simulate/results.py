"""What a simulation found, and how it is written down. Torch-free: the command line reads it.

Equal scenarios give equal bytes of JSON and CSV but for the key "wall", which holds what a clock on the wall says.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from starling.node.config.schema import Scalar

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


def over_seeds(finished: Sequence[Finished]) -> list[tuple[str, list[Finished]]]:
    """Runs that differ in nothing but the seed, with what they have in common as their title."""
    groups: dict[str, list[Finished]] = {}
    for run in finished:
        title = ", ".join(f"{key} = {value}" for key, value in run.labels.items() if key != "simulate.seed")
        groups.setdefault(title, []).append(run)
    return list(groups.items())


Progress = Callable[[int, str], None]
"""Told the rounds done and one line about them."""
