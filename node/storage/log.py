"""The node's log: one JSON object per line in the run directory, and lines for a person on standard error.

A terminal gets all lines but those of the level debug, which are too frequent for it. A pipe or a journal gets warnings and errors alone,
at most LINES_AN_HOUR of them; nothing if SHOWN is set, because another program shows the file, as in a container.

Torch-free. Nothing global but one handler on Python's root logger, so that warnings of libraries land in the file and not on the
terminal. The file is bounded: at 8 MiB `log.jsonl` becomes `log.jsonl.1`, which replaces the one before.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from starling.node.status.control import typed
from starling.node.status.log_line import LOG_NAME, MARKS, log_line
from starling.node.status.record import earlier
from starling.node.storage import private

MAX_LOG_BYTES = 8 << 20
MAX_LINE = 500  # characters on standard error: an event's text has at most 300
SHOWN = "STARLING_LOG_SHOWN"  # environment variable
LINES_AN_HOUR = 60  # peers choose how often they are at fault, and a container's log may have no other bound
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The log of one run. Made by `open_log`."""

    _lines: "_Lines"
    _shown: "_Terminal | _Pipe | None"
    _bound: dict[str, object]

    def write(self, level: str, name: str, **fields: object) -> None:
        """Write one event, its name in snake_case; `text` is for a person, and fields that JSON does not know are as Python shows them."""
        now = time.time()
        record = {"time": now, "level": level, "event": name, **self._bound, **fields}
        self._lines.write(msgspec.json.encode(record, enc_hook=repr).decode() + "\n")
        if self._shown is not None:
            with suppress(OSError):  # the terminal was closed; logging to the file continues
                self._shown.write(record, now)


@contextmanager
def open_log(
    run_dir: Path, *, peer_id: str, run_id: str, stderr: TextIO | None = None, max_bytes: int = MAX_LOG_BYTES
) -> Iterator[NodeLog]:
    """Open the log of this run, rotated at `max_bytes` and closed at the end of the block; every line has `peer_id` and `run_id`.

    If the file cannot be written, that is reported once on stderr; the run goes on and every line tries again. `stderr` is this
    process's by default.
    """
    stream = sys.stderr if stderr is None else stderr
    lines = _Lines(run_dir / LOG_NAME, max_bytes, stream)
    bound: dict[str, object] = {"peer_id": peer_id, "run_id": run_id}
    libraries = _Libraries(NodeLog(lines, None, bound))
    root = logging.getLogger()
    root.addHandler(libraries)
    try:
        shown = None if os.environ.get(SHOWN) else _Terminal(stream) if stream.isatty() else _Pipe(stream, run_dir)
        yield NodeLog(lines, shown, bound)
    finally:
        root.removeHandler(libraries)
        lines.close()


@dataclass(frozen=True, slots=True)
class _Terminal:
    """Lines for a person who watches."""

    _stream: TextIO

    def write(self, record: Mapping[str, object], now: float) -> None:
        if record["level"] != "debug":
            _print(self._stream, record, now)


@dataclass(slots=True)
class _Pipe:
    """Warnings and errors for a supervisor's journal; those above LINES_AN_HOUR are counted, which the next hour's first line says."""

    _stream: TextIO
    _run_dir: Path
    _since: float = -math.inf
    _count: int = 0

    def write(self, record: Mapping[str, object], now: float) -> None:
        if record["level"] not in MARKS:
            return
        if not 0.0 <= now - self._since < HOUR_S:  # clocks may be set back
            if (omitted := self._count - LINES_AN_HOUR) > 0:
                text = f"{omitted} warnings were left out here; see `starling logs --level warning --dir {typed(self._run_dir)}`"
                _print(self._stream, {"level": "warning", "event": "left_out", "text": text}, now)
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= LINES_AN_HOUR:
            _print(self._stream, record, now)


def _print(stream: TextIO, record: Mapping[str, object], now: float) -> None:
    line = log_line(record, time.strftime("%H:%M:%S", time.localtime(now)))
    stream.write((line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…") + "\n")
    stream.flush()


@dataclass(slots=True)
class _Lines:
    """A file of lines that is bounded and never ends the run."""

    _path: Path
    _max_bytes: int
    _complain: TextIO
    _file: TextIO | None = None
    _bytes: int = 0
    _failed: bool = False

    def write(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = os.fdopen(private.keep(self._path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")
                self._bytes = self._file.tell()
            self._file.write(line)
            self._file.flush()
            self._bytes += len(line.encode())
            if self._bytes >= self._max_bytes:
                self.close()
                self._path.replace(earlier(self._path))
        except OSError as error:
            self.close()
            if not self._failed:
                self._failed = True
                text = f"starling: cannot write the log {self._path}: {error.strerror}; going on without it"
                with suppress(OSError):
                    print(text, file=self._complain, flush=True)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing flushes lines that a full disk refused
                self._file.close()
            self._file = None


class _Libraries(logging.Handler):
    """Warnings of libraries, as events of our own file."""

    def __init__(self, log: NodeLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of a library."""
        self._log.write(record.levelname.lower(), "library", library=record.name, text=record.getMessage())
