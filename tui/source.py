"""Sources of snapshots. They never block and never raise: a failure is part of a reading.

SocketSource   one run directory: attaches to its node, and again when it comes back
DemoSource     a folder of run directories node-0, node-1 …, and `alone`
RecordSource   a recorded run, at the position of a replay
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from starling.node.status import demo_folder, final
from starling.node.status import format as show
from starling.node.status.control import ControlError, NotRunning, Watch, typed
from starling.node.status.record import RECORD_NAME, load
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.replay import Playback

ATTACH_S = 1.0  # seconds between attempts to attach
SILENT_S = 5.0  # a record has a line a second


@dataclass(frozen=True, slots=True)
class Reading:
    """The last known state of one node."""

    name: str  # of the node on the screen
    snapshot: StatusSnapshot | None = None  # the newest received; None before the first
    trouble: str | None = None  # why nothing newer arrives, with the next command to try; None while attached
    result: str = ""  # how the node's last run ended, by the file that it left; "" if it left none or is attached
    as_of: float | None = None  # unix time of the moment in a replay; None where nothing is replayed
    run_dir: Path | None = None  # of the node; None in a replay
    alone: float | None = None  # in a demo: last value of the lone node, which trains on node-0's data

    @property
    def ended(self) -> bool:
        """Return whether the node left a result or ended as intended, so that its silence is not a failure."""
        intended = self.trouble is not None and self.snapshot is not None and self.snapshot.state in ("finished", "leaving")
        return bool(self.result) or intended

    @property
    def live(self) -> bool:
        """Return whether the snapshot is current."""
        return self.trouble is None and self.snapshot is not None


class StatusSource(Protocol):
    """Source of the status of one or several nodes."""

    @property
    def name(self) -> str:
        """Return the name that is shown while there is no node."""

    def poll(self) -> tuple[Reading, ...]:
        """Readings of this moment, always in the same order. Called a few times a second; returns at once."""

    def close(self) -> None:
        """Close connections and files."""


class SocketSource:
    """The node of one run directory, which need not run yet; `clock` is monotonic, in seconds; a `name` of "" is the directory's."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        self.name = name or run_dir.name or str(run_dir)
        self._run_dir = run_dir
        self._clock = clock
        self._watch: Watch | None = None
        self._next_attempt = -1.0
        self._reading = Reading(self.name, run_dir=run_dir)

    def poll(self) -> tuple[Reading, ...]:
        try:
            if self._watch is None and self._clock() >= self._next_attempt:
                self._next_attempt = self._clock() + ATTACH_S
                self._watch = Watch(self._run_dir)
            if self._watch is not None and (snapshot := self._watch.poll()) is not None:
                self._reading = Reading(self.name, snapshot, run_dir=self._run_dir)
        except NotRunning as error:
            self.close()
            self._reading = self._reading if self._reading.result else self._ended(str(error))
        except ControlError as error:
            self.close()
            self._reading = Reading(self.name, self._reading.snapshot, str(error), run_dir=self._run_dir)
        return (self._reading,)

    def _ended(self, trouble: str) -> Reading:
        """Return the status that the node left at its end, else the last that it sent; with the record to replay if there is one."""
        snapshot, result, record = self._reading.snapshot, "", self._run_dir / RECORD_NAME
        replay = f"; its record is replayed by `starling tui {typed(record)}`" if record.is_file() else ""
        try:
            last = final.load(self._run_dir)
        except ValueError as error:
            trouble = f"{trouble}; {error}"
        else:
            if last is not None:
                snapshot, result = last.snapshot, final.how_ended(last, self._run_dir) + replay
        return Reading(self.name, snapshot, trouble + (replay if snapshot is None else ""), result, run_dir=self._run_dir)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class DemoSource:
    """All nodes of a demo: the folder's sub-directories node-0, node-1 …; new ones are detected every ATTACH_S.

    `prefix`: of the names of its nodes, if several demos are shown; `clock`: monotonic, in seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, prefix: str = "") -> None:
        self.name = str(folder)
        self._prefix = prefix
        self._folder = folder
        self._clock = clock
        self._nodes: dict[int, SocketSource] = {}
        self._alone: SocketSource | None = None
        self._next_look = -1.0

    def poll(self) -> tuple[Reading, ...]:
        """Return one reading per node, by number."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + ATTACH_S
            for number, path in demo_folder.nodes(self._folder).items():
                self._nodes.setdefault(number, SocketSource(path, self._clock, self._prefix + path.name))
            lone = self._folder / demo_folder.ALONE
            if self._alone is None and lone.is_dir():
                self._alone = SocketSource(lone, self._clock)
        readings = [reading for number in sorted(self._nodes) for reading in self._nodes[number].poll()]
        (alone,) = self._alone.poll() if self._alone is not None else (None,)
        value = alone.snapshot.value if alone is not None and alone.snapshot is not None else None
        return tuple(replace(reading, alone=value) for reading in readings)

    def close(self) -> None:
        """Close all connections."""
        for node in (*self._nodes.values(), *filter(None, (self._alone,))):
            node.close()


class RecordSource:
    """One node's record, >= 1 snapshots: shows the newest one up to the position of a replay."""

    def __init__(self, name: str, snapshots: Sequence[StatusSnapshot], playback: Playback) -> None:
        self.name = name
        self._snapshots = sorted(snapshots, key=lambda snapshot: snapshot.time_s)
        self._times = [snapshot.time_s for snapshot in self._snapshots]
        self._playback = playback

    def poll(self) -> tuple[Reading, ...]:
        """Return the node as it was at the position."""
        now = self._playback.position().time_s
        after = bisect_right(self._times, now)
        if after == 0:
            return (Reading(self.name, None, f"the record of {self.name} begins later", as_of=now),)
        snapshot = self._snapshots[after - 1]
        silent_s = now - snapshot.time_s
        trouble = f"nothing was recorded for {show.duration(silent_s)}" if silent_s > SILENT_S else None
        return (Reading(self.name, snapshot, trouble, as_of=now),)

    def close(self) -> None: ...


def open_sources(paths: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> tuple[list[StatusSource], Playback | None]:
    """Sources of directories (which need not exist yet) or files written by a node, and the time axis of these; >= 1 paths.

    Raises ValueError: a file is no record; one line that names it.
    """
    named = list(zip(names_of(paths), paths, strict=True))
    records = {name: load(path) for name, path in named if path.is_file()}
    times = [snapshot.time_s for record in records.values() for snapshot in record]
    playback = Playback(min(times), max(times), clock) if times else None
    sources: list[StatusSource] = []
    for name, path in named:
        if playback is not None and name in records:
            sources.append(RecordSource(name, records[name], playback))
        else:
            sources.append(source_for(path, name, alone=len(paths) == 1))
    return sources, playback


def source_for(path: Path, name: str = "", *, alone: bool = True) -> StatusSource:
    """Return a demo's folder or a run directory, whichever `path` is; `alone`: the only source, so a demo's nodes need no prefix."""
    if demo_folder.nodes(path):
        return DemoSource(path, prefix="" if alone else f"{name}/")
    return SocketSource(path, name=name)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the name of each on the screen: its directory, with as many parent directories as make it unique."""
    places = [path.resolve() for path in paths]
    places = [
        place.parent if place.name == RECORD_NAME else place.with_suffix("") if place.suffix == ".jsonl" else place for place in places
    ]
    names: list[str] = []
    for number, place in enumerate(places):
        others = {other.parts for other in places if other != place}
        length = 1
        while length < len(place.parts) and any(other[-length:] == place.parts[-length:] for other in others):
            length += 1
        name = "/".join(place.parts[-length:])
        again = places[:number].count(place)
        names.append(f"{name} ({again + 1})" if again else name)
    return names
