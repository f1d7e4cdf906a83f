"""The nodes that the page shows: polled at most once a second while the page is open, released afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starling.node.status.check import Check
from starling.tui.source import Reading, StatusSource
from starling.tui.view import View, labels_of
from starling.tui.web.blocks import Document
from starling.tui.web.pages import PageRequest, Verdicts, document, place_of

POLL_S = 0.9  # a node publishes once a second
IDLE_S = 10.0  # without a request before connections are closed
FIRST_S = 0.3  # seconds in which a newly attached node sends its first snapshot
KEPT_S = 60.0  # seconds for which verdicts are reused
MAX_EXAMINED = 64  # nodes whose checks are cached

Examine = Callable[[Path], Awaitable[Sequence[Check]]]


class Poller:
    """Answers what pages ask. `clock`: unix time, for the age of figures; `monotonic`: for all else; both in seconds."""

    def __init__(
        self,
        sources: Sequence[StatusSource],
        examine: Examine,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = tuple(sources)
        self._clock, self._monotonic = clock, monotonic
        self._doctor = _Doctor(examine, monotonic)
        self._readings: tuple[Reading, ...] = ()
        self._polled = self._asked = -IDLE_S

    async def document(self, asked: PageRequest) -> Document:
        """Return the page at this moment."""
        now = self._monotonic()
        if now - self._asked >= IDLE_S:
            self._poll()
            await asyncio.sleep(FIRST_S)
            self._poll()
        elif now - self._polled >= POLL_S:
            self._poll()
        self._asked = self._monotonic()
        view = View(
            self._readings,
            place_of(asked.node, [reading.name for reading in self._readings]),
            waiting_for=", ".join(source.name for source in self._sources),
            now=self._clock(),
            labels=labels_of(self._readings),
        )
        return document(asked, view, self._verdicts(asked, view))

    def let_go(self) -> None:
        """Close the connections to all nodes if there was no request for a while; called regularly."""
        if self._monotonic() - self._asked >= IDLE_S:
            self.close()

    def close(self) -> None:
        """Close the connections to all nodes."""
        for source in self._sources:
            source.close()

    def _poll(self) -> None:
        self._polled = self._monotonic()
        self._readings = tuple(reading for source in self._sources for reading in source.poll())

    def _verdicts(self, asked: PageRequest, view: View) -> Verdicts:
        if asked.page != "doctor" or view.reading is None or view.reading.run_dir is None:
            return None
        return self._doctor.verdicts(view.reading.run_dir)


class _Doctor:
    """Runs `starling doctor` once at a time, and caches the checks for KEPT_S."""

    def __init__(self, examine: Examine, clock: Callable[[], float]) -> None:
        self._examine, self._clock = examine, clock
        self._found: dict[Path, tuple[float, Verdicts]] = {}
        self._running: asyncio.Task[None] | None = None

    def verdicts(self, run_dir: Path) -> Verdicts:
        """Return the checks of `starling doctor`; None while they are not known."""
        at, checks = self._found.get(run_dir, (-KEPT_S, None))
        if self._clock() - at < KEPT_S:
            return checks
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(run_dir))
        return None

    async def _run(self, run_dir: Path) -> None:
        checks: Verdicts
        try:
            checks = await self._examine(run_dir)
        except ValueError as error:
            checks = str(error)
        if len(self._found) >= MAX_EXAMINED:
            self._found.pop(next(iter(self._found)))
        self._found[run_dir] = self._clock(), checks
