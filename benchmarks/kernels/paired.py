"""Pairs of runs that differ only in their mix, with equal seeds, stored in one file per cell.

Torch-free: the command line calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import msgspec

from starling.gossip.errors import ConfigError
from starling.kernels.schema import NeverWorseCase
from starling.node.storage import private

if TYPE_CHECKING:
    from starling.node.simulate.results import Outcome

ARMS = ("default", "plain")
NOISE = 3.0  # standard errors beyond which a difference counts; over six seeds 1.5 % are that far below by chance


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Both runs of a cell with one seed: the metric at every evaluation after the first, mean over nodes."""

    seed: int
    metric: str
    higher_is_better: bool
    rounds: tuple[int, ...]
    """Done at each evaluation of the longer one."""
    default: tuple[float, ...]
    """Shorter where it diverged."""
    plain: tuple[float, ...]
    diverged: tuple[bool, bool]
    committed: tuple[float, float]
    """Share of the exchanges with living nodes."""


def pair(seed: int, default: Outcome, plain: Outcome) -> Pair:
    """Return what counts of two runs."""
    both = (default, plain)
    longer = max(both, key=lambda run: len(run.rows))
    return Pair(
        seed=seed,
        metric=plain.metric,
        higher_is_better=plain.higher_is_better,
        rounds=tuple(row.round for row in longer.rows[1:]),
        default=tuple(row.mean for row in default.rows[1:]),
        plain=tuple(row.mean for row in plain.rows[1:]),
        diverged=(default.diverged is not None, plain.diverged is not None),
        committed=(_committed(default), _committed(plain)),
    )


def _committed(run: Outcome) -> float:
    living = run.counts["meetings"] - run.counts["dead"]
    return run.counts["committed"] / living if living else 0.0


def compare(cell: str, data: str, pairs: Sequence[Pair]) -> NeverWorseCase:
    """Return the difference over all seeds, of which there is at least one."""
    first = pairs[0]
    sign = 1.0 if first.higher_is_better else -1.0
    lasts = min(len(curve) for each in pairs for curve in (each.default, each.plain))
    by_seed = [[sign * (each.default[at] - each.plain[at]) for each in pairs] for at in range(lasts)]
    means, errors = [fmean(each) for each in by_seed], [standard_error(each) for each in by_seed]
    noise = [NOISE * (error or 0.0) for error in errors]
    below = sum(mean < -limit for mean, limit in zip(means, noise, strict=True))
    above = sum(mean > limit for mean, limit in zip(means, noise, strict=True))
    worst = min(range(lasts), key=means.__getitem__, default=None)
    last = lasts - 1 if lasts else None
    ends = [_short(fmean(curve[last] for curve in curves)) if last is not None else None for curves in _curves(pairs)]
    default, plain = (sum(each.diverged[arm] for each in pairs) for arm in range(len(ARMS)))
    return NeverWorseCase(
        cell=cell,
        data=data,
        metric=first.metric,
        higher_is_better=first.higher_is_better,
        seeds=tuple(each.seed for each in pairs),
        rounds=first.rounds[:lasts],
        difference=tuple(map(_short, means)),
        error=tuple(None if error is None else _short(error) for error in errors),
        worst=None if worst is None else _short(means[worst]),
        worst_error=_at(errors, worst),
        worst_round=None if worst is None else first.rounds[worst],
        end=None if last is None else _short(means[last]),
        end_error=_at(errors, last),
        default_end=ends[0],
        plain_end=ends[1],
        below=below,
        above=above,
        diverged=(default, plain),
        committed=(fmean(each.committed[0] for each in pairs), fmean(each.committed[1] for each in pairs)),
        worse=below > 0 or default > plain,
    )


def _curves(pairs: Sequence[Pair]) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    return [each.default for each in pairs], [each.plain for each in pairs]


def _at(errors: Sequence[float | None], place: int | None) -> float | None:
    error = None if place is None else errors[place]
    return None if error is None else _short(error)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def standard_error(values: Sequence[float]) -> float | None:
    """Return that of a mean, by the sample standard deviation; None for one value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a file of results."""

    asked: dict[str, str]
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class Results:
    """A folder with one file per cell. Other settings need another folder: a file refuses them."""

    folder: Path

    def read(self, name: str, asked: Mapping[str, str]) -> dict[int, Pair]:
        """Return what was measured, by seed. Raises ConfigError: the file is none of results, or of other settings."""
        path = self.folder / f"{name}.json"
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"--keep: {path} is no file of results ({error}); remove it or name another folder") from error
        for key in dict.fromkeys((*asked, *stored.asked)):
            then, now = stored.asked.get(key, "nothing"), asked.get(key, "nothing")
            if then != now:
                raise ConfigError(
                    f"--keep: {path} was measured with {key} = {then}, now it is {now}; name another folder, or remove this one"
                )
        return {each.seed: each for each in stored.pairs}

    def write(self, name: str, asked: Mapping[str, str], pairs: Mapping[int, Pair]) -> None:
        """Replace a cell's file. Raises ConfigError: it cannot be written."""
        path = self.folder / f"{name}.json"
        stored = _Stored(asked=dict(asked), pairs=[pairs[seed] for seed in sorted(pairs)])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            private.replace(path, msgspec.json.encode(stored))
        except OSError as error:
            raise ConfigError(f"--keep: {path} cannot be written: {error.strerror}; name another folder") from error
