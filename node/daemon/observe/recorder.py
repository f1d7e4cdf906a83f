"""Writes the run's record (`starling.node.status.record`), and the log's one line a round.

Theory of operation. Both sample the node periodically and keep the last sample: no round waits for them, and however fast rounds are there
is at most one log line per MIN_ROUND_S, which then sums up several rounds.

The record is bounded: at half of `max_bytes` the file is renamed to NAME.1, which replaces the one before, and the next begins with a whole
line. A line longer than a RECORD_LINES-th of `max_bytes` is followed by a pause as many times longer, so that a record of thousands of
peers still covers a useful time. A file that cannot be written is reported once; every later line tries again, and includes what the lost
ones would have held.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from starling.node import platform
from starling.node.config.schema import RecordSection
from starling.node.daemon.app import Node
from starling.node.daemon.progress import Computed
from starling.node.daemon.running import RunningNode
from starling.node.interfaces import Reporter
from starling.node.net.api import Traffic
from starling.node.status.record import earlier, line
from starling.node.status.snapshot import EngineFigures, Exchanges, StatusSnapshot
from starling.node.storage import private

MIN_PAUSE_S = 0.1
MIN_ROUND_S = 1.0
RECORD_LINES = 1000  # lines of any length for which a record has room at least
_BLOCK = 1 << 16


@dataclass(slots=True)
class Recorder:
    """Writes a line to the file at `path` every `section.every_s` until cancelled, and a last one then."""

    section: RecordSection
    path: Path
    snapshot: Callable[[], StatusSnapshot]
    report: Reporter
    _file: int | None = None
    _bytes: int = 0
    _before: StatusSnapshot | None = None  # the last snapshot written
    _failed: bool = False

    async def serve(self) -> None:
        """Record until cancelled; returns at once where recording is off."""
        if not self.section.every_s:
            return
        try:
            while True:
                line_bytes = self._write()
                await trio.sleep(self._pause_s(line_bytes))
        finally:
            self._write()
            self._close()

    def _pause_s(self, line_bytes: int) -> float:
        stretched = max(1.0, line_bytes * RECORD_LINES / self.section.max_bytes)
        return max(MIN_PAUSE_S, self.section.every_s) * stretched

    def _write(self) -> int:
        """Write one line -> its length, 0 if it could not be written."""
        now = self.snapshot()
        try:
            if self._file is None:
                self._open()
            text = line(self._before, now)
            if self._bytes and self._bytes + len(text) > self.section.max_bytes // 2:
                self._close()
                self.path.replace(earlier(self.path))
                self._open()
                text = line(self._before, now)
            assert self._file is not None
            left = memoryview(text)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self._close()  # an incomplete line is cut off when the file is opened again
            if not self._failed:
                self._failed = True
                advice = "training goes on, and so does the record once it can; free some disk space or look at the directory's permissions"
                self.report.event("cannot_record", f"{self.path} cannot be written: {error.strerror}; {advice}", level="error")
            return 0
        self._before = now
        self._bytes += len(text)
        if self._failed:
            self._failed = False
            self.report.event("records_again", "the record goes on")
        return len(text)

    def _open(self) -> None:
        """Open the file and continue after its last whole line; a new file begins with a whole snapshot."""
        self._file = private.keep(self.path, os.O_RDWR)
        self._bytes = _end_of_lines(self._file)
        os.ftruncate(self._file, self._bytes)
        os.lseek(self._file, 0, os.SEEK_END)
        if not self._bytes:
            self._before = None

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def _end_of_lines(file: int) -> int:
    """Return the number of bytes up to and including the last newline."""
    end = os.lseek(file, 0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        newline = platform.read_at(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Cumulative figures of a node since its start."""

    at_s: float  # time on a monotonic clock
    round: int = 0  # rounds done, including those of a checkpoint or a fetched model
    computed: Computed = field(default_factory=Computed)  # by this process
    figures: EngineFigures = EngineFigures()  # noqa: RUF009 — frozen
    exchanges: Exchanges = Exchanges()  # noqa: RUF009 — frozen
    traffic: Traffic = field(default_factory=Traffic)


def round_fields(before: Totals, now: Totals) -> dict[str, object]:
    """Return the fields of the event `round`: figures since the previous line. docs/observing.md explains each."""
    computing_s = now.computed.seconds - before.computed.seconds
    return {
        "round": now.round,
        "rounds": now.computed.rounds - before.computed.rounds,
        "loss": now.figures.loss,
        "distance": now.figures.distance,
        "steps": now.computed.steps - before.computed.steps,
        "computing_s": round(computing_s, 4),
        "waiting_s": round(max(0.0, now.at_s - before.at_s - computing_s), 4),
        **{name: getattr(now.exchanges, name) - getattr(before.exchanges, name) for name in Exchanges.__struct_fields__},
        # the network forgets unknown peers after a while
        "bytes_sent": max(0, now.traffic.bytes_sent - before.traffic.bytes_sent),
        "bytes_received": max(0, now.traffic.bytes_received - before.traffic.bytes_received),
    }


def totals(node: Node) -> Totals:
    """Return a node's figures since its start."""
    progress, network = node.progress, node.network
    traffic = network.total_traffic if network is not None else Traffic()
    exchanges = node.phase.exchange.stats if isinstance(node.phase, RunningNode) else Exchanges()
    return Totals(trio.current_time(), progress.round, replace(progress.computed), progress.figures, exchanges, traffic)


@dataclass(frozen=True, slots=True)
class RoundLog:
    """Logs one line a round, or one a second for several rounds; `write` takes its fields."""

    totals: Callable[[], Totals]
    write: Callable[[dict[str, object]], object]

    async def serve(self) -> None:
        """Sample until cancelled, and once more then."""
        before = self.totals()
        try:
            while True:
                await trio.sleep(MIN_ROUND_S)
                before = self._sample(before)
        finally:
            self._sample(before)

    def _sample(self, before: Totals) -> Totals:
        now = self.totals()
        if now.computed.rounds == before.computed.rounds:
            return before
        self.write(round_fields(before, now))
        return now
