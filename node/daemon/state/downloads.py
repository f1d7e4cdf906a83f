"""Download offered models from all holders at once, verify them chunk by chunk, and store partial ones over restarts.

The digests of all chunks are checked against the root of an offer and each chunk against its digest, before the engine sees a byte. Of a
model that several members hold the chunks come from all of them at once (`fetching`), and those received are kept (`partial`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import trio

from starling.gossip.chunk_times import LEAST_S, ChunkTimes
from starling.gossip.chunks import DIGEST_BYTES, Download, count, root
from starling.gossip.errors import TransportError
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, ChunkQuery, Digests, DigestsQuery, StateOffer
from starling.node.daemon.state.asking import SLOW_BYTES_PER_S, Asking
from starling.node.daemon.state.fetching import QUEUED_S, Fetching
from starling.node.daemon.state.partial import ModelFile, Partial
from starling.node.interfaces import Reporter
from starling.node.status.snapshot import Transfer as TransferStatus


@dataclass(slots=True)
class Incoming:
    """A model being downloaded."""

    began: float
    size: int
    times: ChunkTimes
    chunks: Download | None = None

    @property
    def received(self) -> int:
        """Return the number of bytes received."""
        return 0 if self.chunks is None else self.chunks.received

    def at_pace_s(self, now: float) -> float | None:
        """Return the time of the whole download at its average rate until `now`; None: nothing has arrived yet."""
        received = self.received
        return (now - self.began) * self.size / received if received else None


@dataclass(frozen=True, slots=True)
class Offered:
    """One peer's offer; `offer.size` is 0 if it has no model."""

    peer: str
    offer: StateOffer
    took_s: float = 0.0  # until it came


class Downloads:
    """Downloads of models; `partial`: where to store incomplete ones over restarts; None: nowhere."""

    def __init__(self, asking: Asking, report: Reporter, partial: Path | None) -> None:
        self._asking, self._report, self._partial = asking, report, partial
        self._cleared = False  # whether files of an earlier run were deleted
        self._incoming: dict[str, Incoming] = {}

    @contextmanager
    def receiving(self, peer: str, size: int, times: ChunkTimes) -> Iterator[Incoming]:
        """Show a download in the status while it is under way."""
        if size > MAX_CHUNK_BYTES:
            times.least_s = QUEUED_S
        self._incoming[peer] = incoming = Incoming(trio.current_time(), size, times)
        try:
            yield incoming
        finally:
            del self._incoming[peer]

    @property
    def incoming(self) -> tuple[TransferStatus, ...]:
        """Return the downloads under way, for the status."""
        now = trio.current_time()
        return tuple(TransferStatus(peer, "model", it.received, it.size, now - it.began) for peer, it in self._incoming.items())

    def at_pace_s(self, peer: str, now: float) -> float | None:
        """Return the time of the whole download from a peer at its rate until `now`; None: nothing has arrived yet."""
        return self._incoming[peer].at_pace_s(now) if peer in self._incoming else None

    async def download(self, chosen: Offered, holders: Sequence[Offered] = (), times: ChunkTimes | None = None) -> bytes | ModelFile | None:
        """Download an offered model, from all `holders` of the same digest at once, and check each chunk; None if none delivers it.

        `times`: when chunks come, if others are downloaded beside it. Returns its bytes, or, where parts of models are kept in files, the
        one that holds it, for the caller to delete. What several hold is kept over restarts. A peer whose chunk has another digest is a
        fault of that peer, and the others go on.
        """
        offer = chosen.offer
        sources = {it.peer: it.offer for it in (chosen, *holders) if it.offer.digest == offer.digest}
        with self.receiving(chosen.peer, offer.size, times or ChunkTimes()) as incoming:
            listed = await self._digests(offer, sources, incoming.times)
            return None if listed is None else await self._fetch(offer, sources, listed, incoming)

    async def _fetch(
        self, offer: StateOffer, sources: dict[str, StateOffer], listed: bytes, incoming: Incoming
    ) -> bytes | ModelFile | None:
        partial = file = None
        whole = False
        try:
            file = await self._new_file(offer.size)
            queued_s = QUEUED_S if offer.size > MAX_CHUNK_BYTES else 0.0  # a single chunk waits behind no other
            incoming.chunks = chunks = Download(
                offer.size,
                offer.digest,
                listed,
                slow_bytes_per_s=SLOW_BYTES_PER_S,
                least_s=queued_s,
                times=incoming.times,
                data=bytearray() if file is None else file.pages,
            )
            if len(sources) > 1 and self._partial is not None:
                partial = await self._resume(chunks, self._partial)

            async def ask(peer: str, index: int) -> bytes:
                query = ChunkQuery(sources[peer].snapshot, index * MAX_CHUNK_BYTES)
                try:
                    reply = await self._asking.ask(peer, Chunk, query, chunks.late_s(peer, index))
                except (TransportError, trio.TooSlowError):
                    return b""
                return reply.data if reply.snapshot == query.snapshot else b""

            answering = tuple(peer for peer in sources if peer not in incoming.times.let_down)
            whole = await Fetching(chunks, answering or tuple(sources), ask, self._report, partial, file).run()
            if not whole:
                return None
            return cast("bytes", chunks.data) if file is None else file
        finally:
            if file is not None and not whole:
                file.delete()
            if partial is not None:
                partial.close(finished=incoming.received == incoming.size)

    async def _new_file(self, size: int) -> ModelFile | None:
        """Return a file for a model; None: it is stored in memory."""
        if self._partial is None:
            return None
        with suppress(OSError):
            if not self._cleared:
                self._cleared = True
                await trio.to_thread.run_sync(ModelFile.clear, self._partial.parent)
            return await trio.to_thread.run_sync(ModelFile, self._partial.parent, size)
        return None

    async def _digests(self, offer: StateOffer, sources: dict[str, StateOffer], times: ChunkTimes) -> bytes | None:
        """Return the digests of all chunks, from any source; None: nobody gives them.

        The next source is asked as well where one is silent. Sources that give other ones are faults and are removed.
        """
        size = DIGEST_BYTES * count(offer.size)
        if size == DIGEST_BYTES:
            return b""  # a single chunk has the offer's digest
        right: list[bytes] = []
        asked: dict[str, float] = {}  # peer without an answer -> time of the request
        longest_s = LEAST_S + size / SLOW_BYTES_PER_S

        async def look(peer: str, scope: trio.CancelScope, ended: trio.Event) -> None:
            asked[peer] = trio.current_time()
            times.asked(peer, trio.current_time())
            try:
                listed = await self._listed(peer, sources[peer].snapshot, size)
            finally:
                times.given_up(peer, trio.current_time())
            del asked[peer]
            if len(listed) == size:
                if root(listed) == offer.digest:
                    right.append(listed)
                    scope.cancel()
                else:
                    del sources[peer]
                    self._report.fault(peer, "state_digest_mismatch")
            ended.set()

        async with trio.open_nursery() as nursery:
            for peer in tuple(sources):
                nursery.start_soon(look, peer, nursery.cancel_scope, ended := trio.Event())
                with trio.move_on_after(longest_s):
                    await ended.wait()
        if right:  # peers that were asked earlier have not answered
            times.let_down.update(peer for peer, since in asked.items() if trio.current_time() - since > longest_s)
        return right[0] if right else None

    async def _listed(self, peer: str, snapshot: int, size: int) -> bytes:
        """Return the digests that one peer gives, or as many as it gives."""
        listed = bytearray()
        with suppress(TransportError, trio.TooSlowError):
            while len(listed) < size:
                query = DigestsQuery(snapshot, len(listed))
                expected = min(MAX_CHUNK_BYTES, size - len(listed))
                reply = await self._asking.ask(peer, Digests, query, expected / SLOW_BYTES_PER_S)
                if reply.snapshot != query.snapshot or len(reply.data) != expected:
                    break
                listed += reply.data
        return bytes(listed)

    async def _resume(self, chunks: Download, path: Path) -> Partial | None:
        """Read what an earlier run received of this model -> where to store further chunks, None if the disk refuses."""

        def begin() -> Partial:
            partial = Partial(path, chunks.size)
            chunks.recover(partial.chunks())
            return partial

        try:
            partial = await trio.to_thread.run_sync(begin)
        except OSError as error:
            text = f"a download of the model is not kept for a restart: {error.strerror or error}"
            self._report.event("state_not_kept", text, level="warning")
            return None
        if chunks.received:
            text = f"{chunks.received / 1e6:,.1f} MB of a model of {chunks.size / 1e6:,.1f} MB are here from before"
            self._report.event("state_resumed", text, received=chunks.received, size=chunks.size)
        return partial
