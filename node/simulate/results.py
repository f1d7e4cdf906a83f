"""Results of a simulation and their formats. Torch-free: the command line reads it.

Equal scenarios give equal bytes of JSON and CSV but for the key "wall", which holds times of this machine's clock.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

from starling.gossip.catalogue import Scalar
from starling.gossip.errors import ConfigError

SEED = "simulate.seed"
"""The label that tells repetitions of one variant apart."""
VERSION = 1
"""Of the JSON: raised when a reader of the one before would misread. New keys do not raise it."""
Progress = Callable[[int, str], None]
"""Called with the rounds done and one line about them."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation. With Byzantine nodes all figures but the costs are those of honest nodes.

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


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An honest node began to refuse a peer, by how far its model was."""

    round: int
    node: int
    peer: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        metric: its name.
        higher_is_better: which way it improves.
        parameters: d.
        rows: evaluations, the first before any round.
        counts: exchanges and nodes, by what became of them.
        undone: local steps taken back because a number was not finite.
        diverged: rounds after which models or figures were no longer finite; null if they always were. The rows end before.
        bad: numbers of the Byzantine nodes.
        refusals: in order of time, of the matrix engine where pairs are defended.
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
    refusals: tuple[Refusal, ...] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what set it apart."""

    labels: dict[str, Scalar]
    outcome: Outcome


AXES = {"rounds": "round", "bytes": "bytes_per_node", "seconds": "seconds"}
"""What a metric is drawn against: name -> field of a row."""


def reached(rows: Sequence[Row], target: float, *, higher_is_better: bool) -> Reached | None:
    """Return where the mean metric first was at the target or better; None if it never was, or the target is 0."""
    for row in rows if target else ():
        if row.mean >= target if higher_is_better else row.mean <= target:
            return Reached(round=row.round, seconds=row.seconds, bytes_per_node=row.bytes_per_node)
    return None


def to_json(scenario: dict[str, Any], finished: Sequence[Finished], planned: int) -> bytes:
    """Return the JSON of runs, in the sweep's order, of a scenario given as settings; fewer than `planned` after an interruption.

    Numbers that are not finite become null.
    """
    runs = []
    for run in finished:
        outcome = msgspec.to_builtins(run.outcome)
        outcome["wall"] = {"seconds": outcome.pop("wall_s")}
        runs.append({"labels": run.labels, **outcome})
    return msgspec.json.encode({"version": VERSION, "scenario": scenario, "planned": planned, "runs": runs})


def to_csv(finished: Sequence[Finished]) -> str:
    """Return one line per evaluation, labels first, without elapsed times."""
    keys, fields = _keys(finished), Row.__struct_fields__
    lines: list[Sequence[object]] = [(*keys, "metric", *fields)]
    for run in finished:
        labels = [run.labels.get(key, "") for key in keys]
        lines += [(*labels, run.outcome.metric, *msgspec.structs.astuple(row)) for row in run.outcome.rows]
    return _csv(lines)


def to_csv_over_seeds(finished: Sequence[Finished], group: Sequence[str] = ()) -> str:
    """One line per variant and evaluation: number of runs, then mean and standard deviation of every field over them.

    Where the runs of a variant differ in length, as when one diverged, only the evaluations that all have. `group` is that of `variants`.
    """
    keys = list(group) or varying(finished)
    fields = [name for name in Row.__struct_fields__ if name != "round"]
    columns = (f"{name}_{what}" for name in fields for what in ("mean", "sd"))
    lines: list[Sequence[object]] = [(*keys, "metric", "round", "runs", *columns)]
    for _, runs in variants(finished, group):
        labels = [runs[0].labels.get(key, "") for key in keys]
        for rows in zip(*(run.outcome.rows for run in runs), strict=False):
            figures = (figure for name in fields for figure in _mean_sd([getattr(row, name) for row in rows]))
            lines.append((*labels, runs[0].outcome.metric, rows[0].round, len(rows), *figures))
    return _csv(lines)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    """Return lines as CSV; None is an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _mean_sd(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation; None if undefined."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    return fmean(known), stdev(known) if len(known) > 1 else None


def _keys(finished: Iterable[Finished]) -> list[str]:
    return list(dict.fromkeys(key for run in finished for key in run.labels))


def check_group(labels: Iterable[Mapping[str, Scalar]], group: Sequence[str]) -> None:
    """Check that every key of `group` is a label of some run. Raises ConfigError: one is not."""
    known = dict.fromkeys(key for each in labels for key in each)
    for key in group:
        if key not in known:
            choice = f"choose among {', '.join(known)}" if known else "there is no [sweep]"
            raise ConfigError(f"--group: {key!r} is not swept here; {choice}")


def varying(finished: Sequence[Finished]) -> list[str]:
    """Keys whose labels differ between runs, but for the seed."""
    return [key for key in _keys(finished) if key != SEED and len({run.labels.get(key) for run in finished}) > 1]


def variants(finished: Sequence[Finished], group: Sequence[str] = ()) -> list[tuple[str, list[Finished]]]:
    """Runs grouped by the values of the keys `group`, each with these values as a short title. Empty: all that vary but the seed.

    Raises ConfigError: a key of `group` is no label of the runs.
    """
    check_group((run.labels for run in finished), group)
    keys, groups = group or varying(finished), dict[tuple[Scalar, ...], list[Finished]]()
    for run in finished:
        groups.setdefault(tuple(run.labels.get(key, "") for key in keys), []).append(run)
    return [(", ".join(map(_short, values)), runs) for values, runs in groups.items()]


def _short(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
