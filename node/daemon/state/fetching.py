"""Fetch one model from several peers at once: each is asked for the chunks that `starling.gossip.chunks` assigns to it, by its speed.

A peer is asked for one chunk at a time, and while chunks come quickly for up to WINDOW: as many as come in AHEAD_S, so that what is under
way is in time also where the line is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from starling.gossip.chunks import Download
from starling.node.daemon.state.partial import Partial
from starling.node.interfaces import Reporter

WINDOW = 4  # chunks in flight from one peer, which answers as many at a time
AHEAD_S = 2.0
QUEUED_S = 2.0 * AHEAD_S  # seconds that a chunk may wait behind others
POLL_S = 1.0  # seconds between two checks whether a chunk of another peer is late
PROGRESS_S = 10.0


class File(Protocol):
    """A file, mapped into memory, that chunks are put into."""

    def release(self) -> None:
        """Release the written pages from memory."""


@dataclass(slots=True)
class Fetching:
    """A download under way. `ask(peer, index)` returns the bytes of a chunk from a peer, b"" if none came in time."""

    chunks: Download
    sources: Sequence[str]
    ask: Callable[[str, int], Awaitable[bytes]]
    report: Reporter
    partial: Partial | None = None  # file that stores the received chunks
    file: File | None = None  # file into which the chunks are put; None: memory
    _beside: Counter[str] = field(default_factory=Counter)  # chunks in flight beyond the first, by peer
    _changed: trio.Event = field(default_factory=trio.Event)
    _reported_at: float = field(default_factory=trio.current_time)

    async def run(self) -> bool:
        """Fetch the missing chunks -> whether the sources gave all of them."""
        async with trio.open_nursery() as nursery:
            for peer in self.sources:
                nursery.start_soon(self._keep_asking, peer, nursery)
            while self.chunks.missing and not all(map(self.chunks.is_gone, self.sources)):
                await self._changed.wait()
            nursery.cancel_scope.cancel()
        return not self.chunks.missing

    async def _keep_asking(self, peer: str, nursery: trio.Nursery) -> None:
        while self.chunks.missing and not self.chunks.is_gone(peer):
            changed, began = self._changed, trio.current_time()
            index = self.chunks.take(peer, began)
            if index is None:
                with trio.move_on_after(POLL_S):
                    await changed.wait()
            elif await self._get(peer, index):
                took_s = trio.current_time() - began
                more = WINDOW - 1 if WINDOW * took_s <= AHEAD_S else int(AHEAD_S / took_s) - 1
                for _ in range(more - self._beside[peer]):
                    self._beside[peer] += 1
                    nursery.start_soon(self._ask_beside, peer)

    async def _ask_beside(self, peer: str) -> None:
        """Request a further chunk concurrently, until none is left, one does not come, or they have become slow."""
        while self.chunks.missing:
            began, index = trio.current_time(), self.chunks.take(peer, trio.current_time())
            if index is None or not await self._get(peer, index) or trio.current_time() - began > 2.0 * AHEAD_S:
                break
        self._beside[peer] -= 1

    async def _get(self, peer: str, index: int) -> bool:
        """Request a chunk from a peer -> whether it came."""
        data = await self.ask(peer, index)
        if len(data) != self.chunks.length(index):  # a peer that sends a byte at a time would delay us for days
            self.chunks.failed(peer, index, trio.current_time())
            self._notify()
            return False
        came = self.chunks.arrived(peer, index, data, trio.current_time())
        self._notify()
        if came == "wrong":
            self.report.fault(peer, "state_digest_mismatch")
        if came == "new":
            self._note_progress()
            if self.file is not None:
                self.file.release()
            if self.partial is not None:
                with suppress(OSError):  # the chunk is not stored, and the download continues
                    await trio.to_thread.run_sync(self.partial.write, index, data)
        return came != "wrong"

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _note_progress(self) -> None:
        if trio.current_time() < self._reported_at + PROGRESS_S:
            return
        self._reported_at = trio.current_time()
        size, received, peers = self.chunks.size, self.chunks.received, ", ".join(self.sources)
        text = f"{100 * received // size} % of a model of {size / 1e6:,.0f} MB received from {peers}"
        self.report.event("state_progress", text, peers=tuple(self.sources), received=received, size=size)
