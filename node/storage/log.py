"""The node's log: one JSON object per line in the run directory, and lines for a person where a terminal listens.

Lines that are too frequent for a terminal have the level debug and go to the file only.

Torch-free. Nothing global but one handler on Python's root logger, so that warnings of libraries land in the file and not on the
terminal. The file is bounded: at 8 MiB `log.jsonl` becomes `log.jsonl.1`, which replaces the one before.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from starling.node.status.log_line import LOG_NAME, log_line
from starling.node.status.record import earlier
from starling.node.storage import private

MAX_LOG_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The log of one run. Made by `open_log`."""

    _lines: "_Lines"
    _terminal: TextIO | None
    _bound: dict[str, object]

    def write(self, level: str, name: str, **fields: object) -> None:
        """Write one event, its name in snake_case; `text` is for a person, and fields that JSON does not know are as Python shows them."""
        now = time.time()
        record = {"time": now, "level": level, "event": name, **self._bound, **fields}
        self._lines.write(msgspec.json.encode(record, enc_hook=repr).decode() + "\n")
        if self._terminal is not None and level != "debug":
            with suppress(OSError):  # the terminal was closed; logging to the file continues
                when = time.strftime("%H:%M:%S", time.localtime(now))
                self._terminal.write(log_line(record, when) + "\n")
                self._terminal.flush()


@contextmanager
def open_log(
    run_dir: Path, *, peer_id: str, run_id: str, stderr: TextIO | None = None, max_bytes: int = MAX_LOG_BYTES
) -> Iterator[NodeLog]:
    """Open the log of this run, rotated at `max_bytes` and closed at the end of the block; every line has `peer_id` and `run_id`.

    If the file cannot be written, that is reported once on stderr; the run goes on and every line tries again. `stderr`, None for this
    process's, gets lines only while it is a terminal.
    """
    terminal = sys.stderr if stderr is None else stderr
    lines = _Lines(run_dir / LOG_NAME, max_bytes, terminal)
    bound: dict[str, object] = {"peer_id": peer_id, "run_id": run_id}
    libraries = _Libraries(NodeLog(lines, None, bound))
    root = logging.getLogger()
    root.addHandler(libraries)
    try:
        yield NodeLog(lines, terminal if terminal.isatty() else None, bound)
    finally:
        root.removeHandler(libraries)
        lines.close()


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
