"""A recorded run: one status snapshot per line, JSON, in which curves, events and transactions hold only what is new.

A leaf: imports nothing of Starling but `starling.node.status.snapshot`.
`starling.node.daemon.observe.recorder` writes such files, the terminal UI replays them, and pandas
reads them: `pandas.read_json("record.jsonl", lines=True)`.

Theory of operation. The first line of a file, and of every start of the node, is a whole snapshot; every other holds only what is new
since the line before it. So a file is read from its beginning. A file that has grown too long is
renamed to NAME.1 and another is begun, with a whole line; `load` reads both.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from msgspec import structs

from starling.node.status.snapshot import Point, StatusSnapshot, decode, encode

RECORD_NAME: Final = "record.jsonl"
MAX_LINE_BYTES: Final = 16 << 20  # a snapshot of 4,096 peers has some 2 MiB
MAX_POINTS: Final = 240  # of a curve
MAX_KEPT: Final = 50  # events, and transactions, as in a snapshot
CURVES: Final = ("loss_curve", "value_curve", "distance_curve")
LISTS: Final = ("events", "transactions")  # fields of a snapshot that grow at their end

T = TypeVar("T")


def earlier(path: Path) -> Path:
    """Return the path of the part of a record that was written before `path` was rotated."""
    return path.with_name(path.name + ".1")


class Curve:
    """A curve of any length in at most `limit` >= 4 points: the first, the last, and evenly spaced ones between.

    Every `stride`-th point offered is stored; when they become too many, every second one is dropped and the stride doubles. Memory
    is bounded, and what remains is always the offered sequence at one stride.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        if limit < 4:
            raise ValueError(f"limit must be >= 4, got {limit}")
        self._limit = limit
        self._stride = 1
        self._offered = 0
        self._kept: list[Point] = []
        self._last: Point | None = None

    def add(self, round: int, time_s: float, value: float) -> None:
        """Offer a point, `time_s` after the start. A value that is not finite is left out: JSON has no such numbers."""
        if not math.isfinite(value):
            return
        self._last = Point(round, time_s, value)
        if self._offered % self._stride == 0:
            self._kept.append(self._last)
            if len(self._kept) == self._limit:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._offered += 1

    @property
    def points(self) -> tuple[Point, ...]:
        """Return the points, oldest first."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)


def line(before: StatusSnapshot | None, now: StatusSnapshot) -> bytes:
    """Return the line that follows the one of `before`, newline included: whole at the start of a file (None), or after a restart of
    the node.
    """
    if before is None or _is_restart(before, now):
        return encode(now)
    new = {name: appended(getattr(before, name), getattr(now, name)) for name in LISTS}
    for name in CURVES:  # thinned as they grow, so a point is identified by its time and not by its place
        last_s = max((point.time_s for point in getattr(before, name)), default=-math.inf)
        new[name] = tuple(point for point in getattr(now, name) if point.time_s > last_s)
    return encode(structs.replace(now, **new))


def _is_restart(before: StatusSnapshot | None, now: StatusSnapshot) -> bool:
    return before is None or now.uptime_s < before.uptime_s or now.peer != before.peer


def appended(before: tuple[T, ...], now: tuple[T, ...]) -> tuple[T, ...]:
    """Return the entries added to a bounded list: `now` begins with the longest tail of `before` that is still in it."""
    for dropped in range(len(before)):
        tail = before[dropped:]
        if now[: len(tail)] == tail:
            return now[len(tail) :]
    return now


def load(path: Path) -> list[StatusSnapshot]:
    """Return the complete snapshots of a `record.jsonl`, oldest first; at least one.

    Curves, events and transactions are those since the node's start, bounded as in a snapshot. Lines of the rotated file (NAME.1) come
    first, if it exists. A partial last line is left out.

    Raises ValueError: it cannot be read, or is no record; one line that names the file.
    """
    snapshots: list[StatusSnapshot] = []
    before = earlier(path)
    for part in (before, path) if before.exists() else (path,):
        try:
            with part.open("rb") as file:
                snapshots.extend(_whole(_lines(part, file)))
        except OSError as error:
            raise ValueError(f"{part}: cannot be read: {error.strerror}; try `ls -l {part}`") from error
    if not snapshots:
        raise ValueError(f"{path}: has no complete snapshot, so it is not a record, or has just been started")
    return snapshots


def _lines(path: Path, file: BinaryIO) -> Iterator[StatusSnapshot]:
    for number in itertools.count(1):
        if not (text := file.readline(MAX_LINE_BYTES + 1)):
            return
        if len(text) > MAX_LINE_BYTES:
            raise ValueError(f"{path}: line {number} has more than {MAX_LINE_BYTES >> 20} MiB, so this is no record")
        try:
            snapshot = decode(text)
        except ValueError as error:
            if not text.endswith(b"\n"):
                return  # an incomplete line: the node was killed, or is writing it now
            raise ValueError(f"{path}: line {number} is no record's: {error}") from error
        yield snapshot


def _whole(lines: Iterator[StatusSnapshot]) -> Iterator[StatusSnapshot]:
    """Yield every line completed by earlier lines of the same start; unchanged fields share objects, as records are long."""
    before: StatusSnapshot | None = None
    curves: dict[str, Curve] = {}
    so_far: dict[str, tuple[Any, ...]] = {}
    for now in lines:
        if _is_restart(before, now):
            curves = {name: Curve() for name in CURVES}
            so_far = dict.fromkeys((*CURVES, *LISTS), ())
        before = now
        for name, curve in curves.items():
            if new := getattr(now, name):
                for point in new:
                    curve.add(point.round, point.time_s, point.value)
                so_far[name] = curve.points
        for name in LISTS:
            if new := getattr(now, name):
                so_far[name] = (*so_far[name], *new)[-MAX_KEPT:]
        yield structs.replace(now, **so_far)
