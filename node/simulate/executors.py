"""Executors that compute the runs of a sweep: any `concurrent.futures.Executor`. Torch-free.

`Processes` is the default of the command line. `cluster` uses dask, for more than one machine.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, ParamSpec, TypeVar

from starling.gossip.errors import ConfigError, GossipError
from starling.node import platform
from starling.node.simulate import worker

P = ParamSpec("P")
T = TypeVar("T")

DIED = "the process of this run ended abruptly, perhaps for want of memory; try fewer nodes, or fewer runs at a time"
_CONNECT_S = 5
Report = tuple[int, int, str]  # number of a run, rounds done, one line


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """A pool of one process, and both ends of the pipe that reports its progress and keeps it alive."""

    pool: ProcessPoolExecutor
    link: worker.Link
    child_end: worker.Link

    def close(self, *, wait: bool) -> None:
        """The process ends at once."""
        self.link.close()
        self.pool.shutdown(wait=wait, cancel_futures=True)


class Processes(Executor):
    """Up to `jobs` processes, each the only one of its pool, so that a dying one takes only its own run with it.

    Processes are started by `spawn`, with `threads` threads of numeric libraries, and reused by later runs. They end when this object is
    shut down, and by themselves if the process that made it is killed. Ctrl-C reaches only the process that made it.
    """

    def __init__(self, jobs: int, threads: int = 1) -> None:
        self._threads, self._closed, self._lock = threads, False, threading.Lock()
        self._idle: queue.LifoQueue[_Lane | None] = queue.LifoQueue()
        self._lanes: list[_Lane] = []
        for _ in range(jobs):
            self._idle.put(None)
        self._submitters = ThreadPoolExecutor(jobs)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule a call; if its process dies, its future raises GossipError."""
        return self._submitters.submit(self._run, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes at once: what they are computing is lost."""
        with self._lock:
            self._closed = True
        for lane in self._lanes:
            lane.link.close()
        self._submitters.shutdown(wait=wait, cancel_futures=True)
        for lane in self._lanes:
            lane.close(wait=wait)

    def reports(self) -> list[Report]:
        """Return the progress since the last call."""
        with self._lock:
            links = [] if self._closed else [lane.link for lane in self._lanes]
        reports: list[Report] = []
        for link in links:
            try:
                while link.poll():
                    reports.append(link.recv())
            except (EOFError, OSError):  # the process has died, which its run reports
                continue
        return reports

    def _run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        lane = self._idle.get()
        try:
            lane = lane or self._start()
            future = lane.pool.submit(fn, *args, **kwargs)
            lane.child_end.close()  # the process has it now
            return future.result()
        except BrokenExecutor as error:
            with self._lock:
                if lane in self._lanes and not self._closed:
                    self._lanes.remove(lane)
                    lane.close(wait=False)
            lane = None
            raise GossipError(DIED) from error
        finally:
            self._idle.put(lane)

    def _start(self) -> _Lane:
        context = get_context("spawn")
        parent_end, child_end = context.Pipe(duplex=True)
        args = (child_end, self._threads)
        lane = _Lane(ProcessPoolExecutor(1, context, worker.initialise, args), parent_end, child_end)
        # Blocked in this thread and in the process that it starts next: Ctrl-C reaches all processes of a terminal. Not before: the
        # the first pool starts multiprocessing's resource tracker, which unblocks the signal in the thread that made it.
        platform.block_interrupt()
        with self._lock:
            if self._closed:
                raise BrokenExecutor("shut down")
            self._lanes.append(lane)
        return lane


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of the dask cluster whose scheduler is at `address`, e.g. "tcp://10.0.0.1:8786"; each needs this package installed.

    Progress is known only run by run.

    Raises ConfigError: dask.distributed is not installed, or there is no scheduler.
    """
    if find_spec("distributed") is None:
        raise ConfigError("--cluster: needs dask.distributed, which is not installed; try `pip install 'starling-swarm[cluster]'`")
    import distributed  # noqa: PLC0415 — an extra that few need, and slow to import

    try:
        client = distributed.Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--cluster: no dask scheduler answers at {address!r}; start one with `dask scheduler`, and workers with `dask worker`"
        ) from error
    with client:
        yield client.get_executor()
