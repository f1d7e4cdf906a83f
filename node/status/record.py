"""A recorded run: one status snapshot per line, JSON, in which curves, events and transactions hold only what is new.

A leaf: imports nothing of Starling but `starling.node.status.snapshot` and `starling.node.status.curve`.
`starling.node.daemon.observe.recorder` writes such files, the terminal UI replays them, and pandas
reads them: `pandas.read_json("record.jsonl", lines=True)`.

Theory of operation. The first line of a file, and of every start of the node, is a whole snapshot; every other holds only what is new
since the line before it. So a file is read from its beginning. A file that has grown too long is
renamed to NAME.1 and another is begun, with a whole line; `load` reads both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from msgspec import structs

from starling.node.status.curve import Curve
from starling.node.status.snapshot import Point, StatusSnapshot, decode, encode

RECORD_NAME: Final = "record.jsonl"
MAX_LINE_BYTES: Final = 16 << 20
"""A snapshot of 4,096 peers has some 2 MiB."""
MAX_KEPT: Final = 50
"""Events, and transactions, as in a snapshot."""
CURVES: Final = ("loss_curve", "value_curve", "distance_curve")
LISTS: Final = ("events", "transactions")
"""Fields of a snapshot that grow at their end."""

T = TypeVar("T")
Points = tuple[Point, ...]


def earlier(path: Path) -> Path:
    """Where the part of a record goes that was written before `path` was rotated."""
    return path.with_name(path.name + ".1")


# --- writing ------------------------------------------------------------------------------------------------


def line(before: StatusSnapshot | None, now: StatusSnapshot) -> bytes:
    """The line that follows the one of `before`, newline included.

    Args:
        before: the whole snapshot that was written last; None where a file begins.
        now: a whole snapshot. One of another start of the node is written whole.
    """
    if before is None or _is_restart(before, now):
        return encode(now)
    new = {name: _later(getattr(before, name), getattr(now, name)) for name in CURVES}
    new |= {name: _appended(getattr(before, name), getattr(now, name)) for name in LISTS}
    return encode(structs.replace(now, **new))


def _is_restart(before: StatusSnapshot, now: StatusSnapshot) -> bool:
    return now.uptime_s < before.uptime_s or now.peer != before.peer


def _later(before: Points, now: Points) -> Points:
    """Curves are thinned as they grow, so points are told apart by their time and not by their place."""
    if not before:
        return now
    return tuple(point for point in now if point.time_s > before[-1].time_s)


def _appended(before: tuple[T, ...], now: tuple[T, ...]) -> tuple[T, ...]:
    """What was added to a bounded list: `now` begins with the longest end of `before` that is still in it."""
    for dropped in range(len(before)):
        kept = before[dropped:]
        if now[: len(kept)] == kept:
            return now[len(kept) :]
    return now


# --- reading ------------------------------------------------------------------------------------------------


def load(path: Path) -> list[StatusSnapshot]:
    """The snapshots of a record, whole again, oldest first; at least one.

    Curves, events and transactions are those since the node's start, bounded as in a snapshot. What was written before the file was begun
    anew (NAME.1) comes first, if it is there. A torn last line is left out.

    Args:
        path: a `record.jsonl`.

    Raises:
        ValueError: it cannot be read, or is no record; one line that names the file.
    """
    found: list[StatusSnapshot] = []
    before = earlier(path)
    for part in (before, path) if before.exists() else (path,):
        try:
            with part.open("rb") as file:
                found.extend(_whole(_lines(part, file)))
        except OSError as error:
            raise ValueError(f"{part}: cannot be read: {error.strerror}; try `ls -l {part}`") from error
    if not found:
        raise ValueError(f"{path}: holds no whole snapshot, so it is no record, or one that has only just begun")
    return found


def _lines(path: Path, file: BinaryIO) -> Iterator[StatusSnapshot]:
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > MAX_LINE_BYTES:
            raise ValueError(f"{path}: line {number} has more than {MAX_LINE_BYTES >> 20} MiB, so this is no record")
        try:
            snapshot = decode(text)
        except ValueError as error:
            if not text.endswith(b"\n"):
                return  # torn: the node was killed, or writes it just now
            raise ValueError(f"{path}: line {number} is no record's: {error}") from error
        yield snapshot


def _whole(lines: Iterator[StatusSnapshot]) -> Iterator[StatusSnapshot]:
    """Complete every line of one file with the lines before it."""
    before, so_far = None, _SoFar()
    for now in lines:
        if before is not None and _is_restart(before, now):
            so_far = _SoFar()
        before = now
        yield so_far.whole(now)


class _SoFar:
    """The sum of the lines of one start of a node."""

    def __init__(self) -> None:
        self._curves = {name: Curve() for name in CURVES}
        self._so_far: dict[str, tuple[Any, ...]] = dict.fromkeys((*CURVES, *LISTS), ())

    def whole(self, now: StatusSnapshot) -> StatusSnapshot:
        """The next snapshot, whole. A field to which it adds nothing is the same object as before, as records are long."""
        for name, curve in self._curves.items():
            if new := getattr(now, name):
                for point in new:
                    curve.add(point.round, point.time_s, point.value)
                self._so_far[name] = curve.points
        for name in LISTS:
            if new := getattr(now, name):
                self._so_far[name] = (*self._so_far[name], *new)[-MAX_KEPT:]
        return structs.replace(now, **self._so_far)
