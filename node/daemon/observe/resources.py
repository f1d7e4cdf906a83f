"""Resources that a node uses: processor, memory and disk, of the daemon and its engine together."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import trio
from msgspec import structs

from starling.node.status.snapshot import Resources

SAMPLE_S = 1.0  # seconds between two samples; calls in between return the last one
WALK_S = 10.0  # seconds between two walks through the run directory
MAX_FILES = 2000  # files in the run directory; with more its size is not known


class ResourceMonitor:
    """Samples two processes and the run directory, rarely enough to cost nothing; `clock` is real time in seconds.

    Satisfies `starling.node.daemon.context.Sensors`.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._processes: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}  # processor seconds by process id, at the last sample
        self._sampled_at = self._walked_at = clock()
        self._seen = Resources()
        self._seen = Resources(memory_bytes=self._processes_now(None)[1], disk_bytes=_bytes_of(folder))

    def on_battery(self) -> bool:
        """Return whether this machine has a battery and no external power."""
        battery = psutil.sensors_battery()
        return battery is not None and battery.power_plugged is False

    def usage(self, engine_pid: int | None) -> Resources:
        """Return the result of `sample`, with the number of tasks."""
        return structs.replace(self.sample(engine_pid), tasks=trio.lowlevel.current_statistics().tasks_living)

    def sample(self, engine: int | None) -> Resources:
        """Return the resources used now, at most a second old. `engine`: its process id; None while there is none."""
        now = self._clock()
        elapsed = now - self._sampled_at
        if elapsed < SAMPLE_S:
            return self._seen
        busy, memory = self._processes_now(engine)
        disk = self._seen.disk_bytes
        if now - self._walked_at >= WALK_S:
            self._walked_at, disk = now, _bytes_of(self._folder)
        self._sampled_at = now
        self._seen = Resources(cpu=busy / elapsed, memory_bytes=memory, disk_bytes=disk)
        return self._seen

    def _processes_now(self, engine: int | None) -> tuple[float, int]:
        """Return processor seconds since the last sample, and resident bytes. All seconds of a process started since then count."""
        pids = [os.getpid()] if engine is None else [os.getpid(), engine]
        spent, busy, memory = {}, 0.0, 0
        for pid in pids:
            try:
                process = self._processes.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    times, resident = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue
            self._processes[pid] = process
            spent[pid] = times.user + times.system
            busy += max(0.0, spent[pid] - self._spent.get(pid, 0.0))
            memory += resident
        self._processes = {pid: process for pid, process in self._processes.items() if pid in spent}
        self._spent = spent
        return busy, memory


def _bytes_of(folder: Path) -> int | None:
    """Return the bytes of all files in a folder and below, links not followed; None where there are too many, or it cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    total = entries = 0
    try:
        for where, folders, files in os.walk(folder, onerror=fail):
            entries += len(folders) + len(files)
            if entries > MAX_FILES:
                return None
            for name in files:
                with suppress(FileNotFoundError):  # the file is a checkpoint that was just renamed
                    total += Path(where, name).lstat().st_size
    except OSError:
        return None
    return total
