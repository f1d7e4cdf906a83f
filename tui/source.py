"""Where the terminal UI gets snapshots from. Sources never block and never raise: a failure is part of a reading.

SocketSource   one run directory: attaches to its node, and again when it comes back
DemoSource     a folder of run directories node-0, node-1 …
RecordSource   a recorded run; in starling.tui.replay
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starling.node.status.control import ControlError, NotRunning, Watch
from starling.node.status.record import RECORD_NAME
from starling.node.status.snapshot import StatusSnapshot

ATTACH_S = 1.0  # between attempts to attach


@dataclass(frozen=True, slots=True)
class Reading:
    """The last known state of one node.

    Args:
        name: of the node on the screen.
        snapshot: the newest received; None before the first.
        trouble: why nothing newer arrives, with the next command to try; None while attached.
        as_of: unix time of the moment in a replay; None where nothing is replayed.
    """

    name: str
    snapshot: StatusSnapshot | None = None
    trouble: str | None = None
    as_of: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the node ended as intended, so that its silence is not a failure."""
        return self.trouble is not None and self.snapshot is not None and self.snapshot.state in ("finished", "leaving")

    @property
    def live(self) -> bool:
        """Whether the snapshot is current."""
        return self.trouble is None and self.snapshot is not None


class StatusSource(Protocol):
    """One or several nodes."""

    @property
    def name(self) -> str:
        """Shown while it has no node."""
        ...

    def poll(self) -> tuple[Reading, ...]:
        """Readings of this moment, always in the same order. Called a few times a second; returns at once."""
        ...

    def close(self) -> None:
        """Detach."""
        ...


class SocketSource:
    """The node of one run directory.

    Args:
        run_dir: its directory; the node need not run yet.
        clock: seconds, monotonic.
        name: of the node on the screen; "": that of the directory.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        self.name = name or run_dir.name or str(run_dir)
        self._run_dir = run_dir
        self._clock = clock
        self._watch: Watch | None = None
        self._next_attempt = -1.0
        self._reading = Reading(self.name)

    def poll(self) -> tuple[Reading, ...]:
        """One reading."""
        try:
            if self._watch is None and self._clock() >= self._next_attempt:
                self._next_attempt = self._clock() + ATTACH_S
                self._watch = Watch(self._run_dir)
            if self._watch is not None and (snapshot := self._watch.poll()) is not None:
                self._reading = Reading(self.name, snapshot)
        except ControlError as error:
            self.close()
            self._reading = Reading(self.name, self._reading.snapshot, self._explained(error))
        return (self._reading,)

    def _explained(self, error: ControlError) -> str:
        """The error, and the record to replay if there is one."""
        record = self._run_dir / RECORD_NAME
        if isinstance(error, NotRunning) and self._reading.snapshot is None and record.is_file():
            return f"{error}, or replay its record with `starling tui {record}`"
        return str(error)

    def close(self) -> None:
        """Close the connection."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class DemoSource:
    """Every node of a demo: the folder's sub-directories node-0, node-1 …; new ones are found every ATTACH_S.

    Args:
        folder: the demo's folder.
        clock: seconds, monotonic.
        prefix: of the names of its nodes, where several demos are shown.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, prefix: str = "") -> None:
        self.name = str(folder)
        self._prefix = prefix
        self._folder = folder
        self._clock = clock
        self._nodes: dict[int, SocketSource] = {}
        self._next_look = -1.0

    def poll(self) -> tuple[Reading, ...]:
        """One reading per node, by number."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + ATTACH_S
            for number, path in node_dirs(self._folder).items():
                self._nodes.setdefault(number, SocketSource(path, self._clock, self._prefix + path.name))
        return tuple(reading for number in sorted(self._nodes) for reading in self._nodes[number].poll())

    def close(self) -> None:
        """Close all connections."""
        for node in self._nodes.values():
            node.close()


def node_dirs(folder: Path) -> dict[int, Path]:
    """Run directories of a demo's folder, by number."""
    numbered = ((path.name.removeprefix("node-"), path) for path in folder.glob("node-*") if path.is_dir())
    return {int(number): path for number, path in numbered if number.isdecimal()}
