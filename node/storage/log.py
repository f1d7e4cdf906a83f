"""The node's log: one JSON object per line in the run directory, and lines for a person where a terminal listens.

Lines that are too frequent for a terminal have the level debug and go to the file only.

Torch-free. Nothing global but one handler on Python's root logger, so that warnings of libraries land in the file and not on the
terminal. The file is bounded: at 8 MiB `log.jsonl` becomes `log.jsonl.1`, which replaces the one before.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from starling.node.status.log_line import LOG_NAME, log_line
from starling.node.status.record import earlier
from starling.node.status.snapshot import Exchanges

MAX_LOG_BYTES = 8 << 20

EventDict = MutableMapping[str, object]


@dataclass(frozen=True, slots=True)
class Totals:
    """Cumulative figures of a node since its start.

    Args:
        at_s: of a clock that only rises.
        round: rounds done, including those of a checkpoint or a peer's model.
        rounds, steps: done by this process.
        computed_s: spent in local steps.
        loss: mean training loss of the last round.
        exchanges: how they ended.
        bytes_sent, bytes_received: of frames.
        distance: consensus distance as this node sees it.
    """

    at_s: float
    round: int = 0
    rounds: int = 0
    steps: int = 0
    computed_s: float = 0.0
    loss: float | None = None
    exchanges: Exchanges = Exchanges()  # noqa: RUF009 — frozen
    bytes_sent: int = 0
    bytes_received: int = 0
    distance: float | None = None


def round_fields(before: Totals, now: Totals) -> dict[str, object]:
    """The fields of the event `round`: figures since the previous line. docs/observing.md explains each."""
    computing_s = now.computed_s - before.computed_s
    return {
        "round": now.round,
        "rounds": now.rounds - before.rounds,
        "loss": now.loss,
        "distance": now.distance,
        "steps": now.steps - before.steps,
        "computing_s": round(computing_s, 4),
        "waiting_s": round(max(0.0, now.at_s - before.at_s - computing_s), 4),
        **{name: getattr(now.exchanges, name) - getattr(before.exchanges, name) for name in Exchanges.__struct_fields__},
        "bytes_sent": max(0, now.bytes_sent - before.bytes_sent),  # a network forgets unknown peers after a while
        "bytes_received": max(0, now.bytes_received - before.bytes_received),
    }  # fmt: skip


@contextmanager
def open_log(
    run_dir: Path, *, peer_id: str, run_id: str, stderr: TextIO | None = None, max_bytes: int = MAX_LOG_BYTES
) -> Iterator[FilteringBoundLogger]:
    """The logger of this run; closed at the end of the block.

    If the file cannot be written, that is reported once on stderr; the run goes on and every line tries again.

    Args:
        run_dir: directory of `log.jsonl`.
        peer_id, run_id: bound to every line of the file.
        stderr: where a person may read; None: this process's. Gets lines only while it is a terminal.
        max_bytes: at which the file is rotated.
    """
    terminal = sys.stderr if stderr is None else stderr
    lines = _Lines(run_dir / LOG_NAME, max_bytes, terminal)
    sink = _Sink(lines, terminal if terminal.isatty() else None)
    logger = cast(
        "FilteringBoundLogger",
        structlog.wrap_logger(
            _Discard(),
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, sink],
            cache_logger_on_first_use=False,
        ),
    ).bind(peer_id=peer_id, run_id=run_id)
    libraries = _Libraries(logging.WARNING, sink=sink, bound={"peer_id": peer_id, "run_id": run_id})
    root = logging.getLogger()
    root.addHandler(libraries)
    try:
        yield logger
    finally:
        root.removeHandler(libraries)
        lines.close()


class _Lines:
    """A file of lines that is bounded and never ends the run."""

    def __init__(self, path: Path, max_bytes: int, complain: TextIO) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._complain = complain
        self._file: TextIO | None = None
        self._bytes = 0
        self._failed = False

    def write(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
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
                with suppress(OSError):
                    print(
                        f"starling: cannot write the log {self._path}: {error.strerror}; going on without it",
                        file=self._complain,
                        flush=True,
                    )

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing flushes what a full disk refused
                self._file.close()
            self._file = None


class _Sink:
    """The last processor: writes the event and hands structlog nothing to print."""

    def __init__(self, lines: _Lines, terminal: TextIO | None) -> None:
        self._lines = lines
        self._terminal = terminal

    def __call__(self, logger: object, method: str, event: EventDict) -> str:
        now = time.time()
        record = {"time": now, "level": event.pop("level", method), "event": event.pop("event", ""), **event}
        self._lines.write(msgspec.json.encode(record, enc_hook=repr).decode() + "\n")
        if self._terminal is not None and record["level"] != "debug":
            with suppress(OSError):  # the terminal was closed: the file goes on
                when = time.strftime("%H:%M:%S", time.localtime(now))
                self._terminal.write(log_line(record, when) + "\n")
                self._terminal.flush()
        return ""


class _Discard:
    """structlog's output logger; unused, as the sink has written already."""

    def msg(self, message: str) -> None:
        """Nothing."""

    debug = info = warning = error = critical = msg


class _Libraries(logging.Handler):
    """Warnings of libraries, as events of our own file."""

    def __init__(self, level: int, *, sink: _Sink, bound: dict[str, str]) -> None:
        super().__init__(level)
        self._sink = _Sink(sink._lines, None)  # noqa: SLF001 - the same file, no terminal
        self._bound = bound

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        level = record.levelname.lower()
        fields: EventDict = {"event": "library", "level": level, "library": record.name, "text": record.getMessage()}
        self._sink(None, level, {**fields, **self._bound})
