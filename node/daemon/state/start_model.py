"""The initial model of a swarm of scripts: fetched from members before the engine is opened, and served to newcomers from then on.

The manifest says the root of its digests and its size (`starling.node.config.initial_model`), so it does not matter who sends it. The file
is requested like a snapshot, by a number derived from the swarm's id: newcomers need it before they are members, and a peer without an
invite does not know the number.

    peer              holder
    DigestsQuery  ->
                  <-  Digests: of all chunks, in one message
    ChunkQuery    ->
                  <-  Chunk

All bootstrap peers are asked for the digests at once. Those that give the right ones are asked for the chunks, several at a time
(`starling.node.daemon.state.fetching`); who gives wrong ones is at fault. A peer that does not have the file itself gives empty digests.
If no peer is left that gives the rest, all are asked again, after pauses, until the file is whole.

What a peer can cause: MAX_REPLIES chunks of 1 MiB for it under way, and MOST_REPLIES for all peers together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import trio

from starling.gossip.chunk_times import ChunkTimes
from starling.gossip.chunks import DIGEST_BYTES, Download, count, digests, root
from starling.gossip.errors import GossipError, TransportError
from starling.gossip.seeds import derive
from starling.gossip.wire import frames
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, ChunkQuery, Digests, DigestsQuery
from starling.node.config.initial_model import Chunked
from starling.node.daemon.context import Offload
from starling.node.daemon.state.asking import SLOW_BYTES_PER_S
from starling.node.daemon.state.fetching import QUEUED_S, Fetching
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import Reporter
from starling.node.net.api import Network
from starling.node.storage import start_file
from starling.node.storage.start_file import Received

T = TypeVar("T")

MOST_REPLIES = 16  # replies in flight to all peers together
MAX_PARALLEL_QUERIES = 16  # addresses that are tried concurrently
SOURCES = 8  # peers from which chunks are fetched concurrently
GRACE_S = 1.0  # seconds to wait for others, beyond twice the time of the first peer with the file
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between attempts


def number(swarm: str) -> int:
    """Return the snapshot number by which the file is requested in a swarm of this id."""
    return derive(0, "start", swarm) >> 1


@dataclass(frozen=True, slots=True)
class Ways:
    """The means of reaching bootstrap peers."""

    addresses: Callable[[], Sequence[str]]  # returns the addresses known at present
    dial: Callable[[str], Awaitable[str]]  # address -> peer; raises TransportError


@dataclass(frozen=True, slots=True)
class StartFile:
    """The file of the initial model on this node's disk.

    Args:
        path: where it is, or will be; `start.part` beside it is used while it is received.
        wanted: what the manifest says of it.
        offload: runs what reads and hashes files.
    """

    path: Path
    wanted: Chunked
    offload: Offload

    async def listed(self) -> bytes | None:
        """Return the digests of its chunks; None: there is none, or another one."""
        return await self.offload(lambda: start_file.listed(self.path, self.wanted))

    async def copied(self, given: Path) -> bytes:
        """Copy a file of the owner's to its place -> the digests of its chunks. Raises ConfigError: it is another one."""
        return await self.offload(lambda: start_file.keep(given, self.path, self.wanted))

    async def chunk(self, offset: int, listed: bytes) -> bytes:
        """Return the chunk that begins there; b"" if there is none, or the file has been damaged."""
        at = offset // MAX_CHUNK_BYTES * DIGEST_BYTES

        def read() -> bytes:
            data = start_file.chunk(self.path, offset)
            return data if data and digests(data) == listed[at : at + DIGEST_BYTES] else b""

        return await self.offload(read)

    async def received(self) -> Received:
        """Return the partly received file. Raises GossipError: the disk refuses it."""
        return await self._on_disk(lambda: Received(self.path, self.wanted.size))

    async def finish(self, file: Received) -> None:
        """Move the received file to its place. Raises GossipError: the disk refuses it."""
        await self._on_disk(file.finish)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        try:
            return await self.offload(work)
        except OSError as error:
            raise GossipError(
                f"the model that the swarm begins with cannot be written to {self.path}: {error.strerror}; free disk space (df -h) and "
                "`starling run` again"
            ) from error


@dataclass(slots=True)
class StartModel:
    """Fetches and serves the initial model of the swarm with this id, in `file`."""

    file: StartFile
    swarm: str
    network: Network
    transfer: Transfer
    report: Reporter
    _listed: bytes = b""
    _replies: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MOST_REPLIES))

    async def obtain(self, given: str, ways: Ways) -> None:
        """Put the file in its place, and serve it from then on; returns once it is complete and verified.

        `given`: a file of the owner's that is copied, "" for none: then it is fetched.

        Raises ConfigError: that file is another one; GossipError: the disk does not take it.
        """
        listed = await self.file.listed()
        if listed is None and given:
            listed = await self.file.copied(Path(given))
        self._listed = await self._fetched(ways) if listed is None else listed
        self.transfer.lend(number(self.swarm), self._answer)

    async def _answer(self, peer: str, query: ChunkQuery | DigestsQuery) -> None:
        """Answer a request. Raises TransportError: the answer cannot be sent."""
        async with self._replies:
            if isinstance(query, DigestsQuery):
                there = self._listed[query.offset :][:MAX_CHUNK_BYTES]
                reply: Chunk | Digests = Digests(query.snapshot, query.offset, there)
            else:
                reply = Chunk(query.snapshot, query.offset, await self.file.chunk(query.offset, self._listed))
            await self.network.send(peer, "state", frames.encode(reply))

    async def _fetched(self, ways: Ways) -> bytes:
        """Fetch the file, trying until it is complete -> the digests of its chunks."""
        size, began, pause, warned = self.file.wanted.size, trio.current_time(), FIRST_PAUSE_S, False
        text = f"fetching the model that the swarm begins with, {size / 1e6:,.1f} MB"
        self.report.event("start_fetching", text, size=size)
        file = await self.file.received()
        while (found := await self._attempt(file, ways) or await self._laid(file)) is None:
            if not warned:
                text = f"no bootstrap peer gives all of the model that the swarm begins with; still trying, or copy it to {self.file.path}"
                self.report.event("start_missing", text, level="warning")
                warned = True
            await trio.sleep(pause)
            pause = min(2.0 * pause, LONGEST_PAUSE_S)
        took_s = trio.current_time() - began
        text = f"the model that the swarm begins with is here, {size / 1e6:,.1f} MB in {took_s:,.1f} s"
        self.report.event("start_fetched", text, size=size)
        return found

    async def _attempt(self, file: Received, ways: Ways) -> bytes | None:
        """Request missing chunks from the known peers -> the digests of all chunks; None: some are still missing."""
        holders, listed = await self._holders(ways)
        if not holders:
            return None
        size = self.file.wanted.size
        queued_s = QUEUED_S if size > MAX_CHUNK_BYTES else 0.0  # a single chunk waits behind no other
        chunks = Download(
            size,
            self.file.wanted.root,
            listed,
            slow_bytes_per_s=SLOW_BYTES_PER_S,
            least_s=queued_s,
            times=(times := ChunkTimes()),
            data=file.pages,
        )
        if file.begun:
            await self.file.offload(lambda: chunks.recover(file.chunks()))
        file.begun = True

        async def ask(peer: str, index: int) -> bytes:
            query = ChunkQuery(number(self.swarm), index * MAX_CHUNK_BYTES)
            try:
                reply = await self.transfer.asking.ask(peer, Chunk, query, chunks.late_s(peer, index))
            except (TransportError, trio.TooSlowError):
                return b""
            return reply.data if reply.snapshot == query.snapshot else b""

        with self.transfer.downloads.receiving(holders[0], size, times) as incoming:
            incoming.chunks = chunks
            whole = await Fetching(chunks, holders, ask, self.report, file=file).run()
        if not whole:
            return None
        await self.file.finish(file)
        return listed

    async def _laid(self, file: Received) -> bytes | None:
        """Return the digests of the file, if its owner has put it in its place meanwhile."""
        listed = await self.file.listed()
        if listed is not None:
            file.discard()
        return listed

    async def _holders(self, ways: Ways) -> tuple[list[str], bytes]:
        """Return at most SOURCES peers that have the file, and the digests that they give."""
        found: dict[str, bytes] = {}
        asked: set[str] = set()  # several addresses may belong to one peer
        looks, began = trio.Semaphore(MAX_PARALLEL_QUERIES), trio.current_time()

        async def look(address: str, scope: trio.CancelScope) -> None:
            async with looks:
                with suppress(TransportError, trio.TooSlowError):
                    peer = await ways.dial(address)
                    if peer in asked:
                        return
                    asked.add(peer)
                    if listed := await self._digests_of(peer):
                        found[peer] = listed
                        if len(found) == 1:
                            scope.deadline = 2.0 * trio.current_time() - began + GRACE_S

        async with trio.open_nursery() as nursery:
            for address in ways.addresses():
                nursery.start_soon(look, address, nursery.cancel_scope)
        holders = sorted(found)[:SOURCES]
        return holders, found[holders[0]] if holders else b""

    async def _digests_of(self, peer: str) -> bytes:
        """Return the digests of all chunks from this peer; b"": it has none, or gives others. Raises TransportError, trio.TooSlowError."""
        query, length = DigestsQuery(number(self.swarm), 0), DIGEST_BYTES * count(self.file.wanted.size)
        reply = await self.transfer.asking.ask(peer, Digests, query, length / SLOW_BYTES_PER_S)
        if reply.snapshot != query.snapshot or not reply.data:
            return b""
        if len(reply.data) == length and root(reply.data) == self.file.wanted.root:
            return reply.data
        self.report.fault(peer, "state_digest_mismatch")
        return b""
