"""The state lane: the manifest for holders of an invite, the model for late joiners.

Serving: a query makes the engine hold a snapshot; chunks and their digests are read from it by offset. There is one snapshot at a time: it
is kept while it is fresh, and while it is being read for as long as reading takes on a slow line, so that a new query does not interrupt a
download. A node that fetches a model itself offers none. Under other numbers there may be what is lent to all who know them, as
`starling.node.daemon.state.start_model` does.
Fetching: peers make offers of a schema, size and root of digests (`starling.gossip.chunks`). The digests of all chunks are checked against
the root and each chunk against its digest, before the engine sees a byte. Of a model that several members hold the chunks come from all of
them at once (`fetching`), and those received are kept over restarts (`partial`). `starling.node.daemon.state.model_sync` decides which of
several models to install.

What a peer can cause here: one snapshot per `SNAPSHOT_FRESH_S`; MAX_REPLIES chunks of 1 MiB at a time; for newcomers, a model as old as
a download over a slow line takes.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import trio

from starling.gossip.chunks import DIGEST_BYTES, Download, count, root
from starling.gossip.errors import EngineError, RemoteProtocolError, TransportError
from starling.gossip.seeds import derive
from starling.gossip.wire import frames
from starling.gossip.wire.schema import (
    MAX_CHUNK_BYTES,
    Chunk,
    ChunkQuery,
    Digests,
    DigestsQuery,
    ManifestQuery,
    ManifestReply,
    Message,
    SeatQuery,
    SeatReply,
    StateOffer,
    StateQuery,
)
from starling.node.daemon.state.asking import REPLY_S, Asking
from starling.node.daemon.state.fetching import AHEAD_S, Fetching
from starling.node.daemon.state.partial import ModelFile, Partial
from starling.node.interfaces import EngineHandle, Reporter, TaskStatus
from starling.node.net.api import Network
from starling.node.rpc import calls
from starling.node.status.snapshot import Transfer as TransferStatus

SNAPSHOT_FRESH_S = 1.0
OFFER_GRACE_S = 1.0
MAX_REPLIES = 4  # to one peer at a time; its further queries meanwhile are dropped, and an honest one repeats them
SLOW_BYTES_PER_S = 64 << 10  # and longer by what a long answer takes on a slow line, until it is known what it takes
SNAPSHOT_BYTES_PER_S = 16 << 20  # that a busy engine packs and hashes at the least, its local step in between
WIDEST_SCALAR = 8  # bytes of a float64
STATE_HEADER_BYTES = 64 << 10

Query = ManifestQuery | StateQuery | ChunkQuery | DigestsQuery | SeatQuery
Lent = Callable[[str, ChunkQuery | DigestsQuery], Awaitable[None]]
"""Answers a peer's query by itself."""


@dataclass(slots=True)
class Incoming:
    """A model being downloaded."""

    began: float
    size: int
    chunks: Download | None = None

    @property
    def received(self) -> int:
        """Bytes that are here."""
        return 0 if self.chunks is None else self.chunks.received


@dataclass(frozen=True, slots=True)
class Offered:
    """One peer's offer; `offer.size` is 0 if it has no model."""

    peer: str
    offer: StateOffer


class Transfer:
    """The state lane of one node; `manifest` gives the canonical bytes of a manifest by swarm id, or None.

    `partial`: where to keep what was received of a model over restarts; None: nowhere.
    """

    def __init__(
        self, *, network: Network, report: Reporter, manifest: Callable[[str], bytes | None], partial: Path | None = None
    ) -> None:  # fmt: skip
        self._partial = partial
        self._cleared = False  # of files that an earlier run left
        self._network = network
        self._report = report
        self._manifest = manifest
        self._max_state_bytes = 0
        self._engine: EngineHandle | None = None
        self._schema = b""
        self._held: tuple[calls.Held, float] | None = None
        self._holding = trio.Lock()
        self._read_at = -math.inf
        self._replying: Counter[str] = Counter()
        self._lent: dict[int, Lent] = {}
        self.asking = Asking(network)
        self._nonce = 0
        self._incoming: dict[str, Incoming] = {}
        self._may: Callable[[str], bool] = lambda _peer: True
        # which stage of a crew a newcomer should take; None: not known, or there are no crews
        self.seats: Callable[[str], int] | None = None

    def expect(self, opened: calls.Opened) -> None:
        """Refuse offers of models with another schema than this engine's, or of more bytes."""
        self._schema = opened.schema
        self._max_state_bytes = WIDEST_SCALAR * opened.parameters + STATE_HEADER_BYTES

    @property
    def _patience_s(self) -> float:
        """How long an engine may take for what it is asked about a model of this size."""
        return REPLY_S + self._max_state_bytes / SNAPSHOT_BYTES_PER_S

    def give(self, engine: EngineHandle, may: Callable[[str], bool]) -> None:
        """From now on serve this engine's model to peers for which `may` returns True."""
        self._engine, self._held, self._may = engine, None, may

    def lend(self, snapshot: int, lent: Lent) -> None:
        """From now on have `lent` answer whoever knows the number of this snapshot."""
        self._lent[snapshot] = lent

    def _lent_by(self, query: Message) -> Lent | None:
        return self._lent.get(query.snapshot) if isinstance(query, ChunkQuery | DigestsQuery) else None

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer and route frames until cancelled."""
        inbound = self._network.inbound("state")
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for item in inbound:
                try:
                    message = frames.decode("state", item.peer, item.frame)
                    of_model = isinstance(message, StateQuery | ChunkQuery | DigestsQuery)
                    if of_model and not self._may(item.peer) and self._lent_by(message) is None:
                        continue
                    if isinstance(message, SeatQuery) and self.seats is None:
                        continue  # who asks tries again
                except RemoteProtocolError as error:
                    self._report.fault(error.peer, error.reason)
                    continue
                if isinstance(message, Query):
                    if self._replying[item.peer] < MAX_REPLIES:
                        self._replying[item.peer] += 1
                        nursery.start_soon(self._respond, item.peer, message)
                else:
                    self.asking.route(item.peer, message)

    async def _respond(self, peer: str, query: Query) -> None:
        try:
            if isinstance(query, ChunkQuery | DigestsQuery) and (lent := self._lent_by(query)) is not None:
                with trio.fail_after(REPLY_S):
                    await lent(peer, query)
                return
            reply = await self._reply(peer, query)
            with trio.fail_after(REPLY_S):
                await self._network.send(peer, "state", frames.encode(reply))
        except (EngineError, TransportError, trio.TooSlowError):
            return  # the peer repeats its query, or asks another
        finally:
            self._replying -= Counter((peer,))

    async def _reply(self, peer: str, query: Query) -> Message:
        if isinstance(query, SeatQuery):
            assert self.seats is not None
            return SeatReply(query.nonce, self.seats(peer))
        if isinstance(query, ManifestQuery):
            return ManifestReply(query.swarm, self._manifest(query.swarm) or b"")
        if self._engine is None:
            if isinstance(query, StateQuery):
                return StateOffer(query.nonce, 0, 0, 0, b"", b"")
            empty: type[Chunk | Digests] = Digests if isinstance(query, DigestsQuery) else Chunk
            return empty(query.snapshot, query.offset, b"")
        if isinstance(query, DigestsQuery):
            held = self._held[0] if self._held is not None else None
            there = (
                held.digests[query.offset :][:MAX_CHUNK_BYTES]
                if held is not None and held.snapshot == query.snapshot
                else b""
            )
            return Digests(query.snapshot, query.offset, there)
        if isinstance(query, StateQuery):
            held = await self._hold(self._engine)
            return StateOffer(query.nonce, held.snapshot, held.round, held.size, held.digest, held.schema)
        with trio.fail_after(self._patience_s):
            read = await self._engine.call(calls.ReadChunk(query.snapshot, query.offset, MAX_CHUNK_BYTES))
        if isinstance(read, calls.ChunkRead) and read.data:
            self._read_at = trio.current_time()
        return Chunk(query.snapshot, query.offset, read.data if isinstance(read, calls.ChunkRead) else b"")

    async def _hold(self, engine: EngineHandle) -> calls.Held:
        with trio.fail_after(self._patience_s):
            async with self._holding:  # queries during a snapshot share it
                if self._held is not None and self._stays(*self._held):
                    return self._held[0]
                held = await engine.call(calls.Snapshot())
                if not isinstance(held, calls.Held):
                    raise EngineError("the engine gave no snapshot")
                self._held, self._read_at = (held, trio.current_time()), -math.inf
                return held

    def _stays(self, held: calls.Held, made_at: float) -> bool:
        now = trio.current_time()
        reading = now - self._read_at < REPLY_S + MAX_CHUNK_BYTES / SLOW_BYTES_PER_S
        read_s = held.size / SLOW_BYTES_PER_S if reading else 0.0
        return now - made_at < SNAPSHOT_FRESH_S + read_s

    async def fetch_manifest(self, peer: str, swarm: str) -> bytes:
        """Canonical manifest bytes from a peer, unchecked: the caller compares the hash.

        Raises TransportError, trio.TooSlowError: no answer; RemoteProtocolError: the peer does not know this swarm.
        """
        reply = await self.asking.ask(peer, ManifestReply, ManifestQuery(swarm))
        if not reply.manifest:
            raise RemoteProtocolError(peer, "unknown_swarm")
        return reply.manifest

    async def ask_stage(self, peer: str) -> int:
        """The stage of a crew that a member says is wanted most. Raises TransportError, trio.TooSlowError: no answer."""
        self._nonce += 1
        nonce = derive(self._nonce, "seat_query", self._network.peer_id) >> 1
        return (await self.asking.ask(peer, SeatReply, SeatQuery(nonce))).stage

    async def answers(self, peer: str, swarm: str) -> bool:
        """Whether a peer answers as any node does that is on the network, also while its engine opens and it is no member."""
        try:
            await self.fetch_manifest(peer, swarm)
        except (TransportError, trio.TooSlowError):
            return False
        except RemoteProtocolError:  # it does not have the manifest yet either
            pass
        return True

    async def offers(self, peers: Sequence[str]) -> list[Offered]:
        """Offers of these peers, in order of peer id; without those that do not answer or offer another model.

        Once two have offered a model, the others have as long again as these took, and `OFFER_GRACE_S`: otherwise a silent peer would cost
        `REPLY_S`, and of a large model as long as a snapshot may take.
        """
        offers: list[Offered] = []
        began = trio.current_time()

        async def ask(peer: str, scope: trio.CancelScope) -> None:
            self._nonce += 1
            nonce = derive(self._nonce, "state_query", self._network.peer_id) >> 1
            try:
                reply = await self.asking.ask(peer, StateOffer, StateQuery(nonce), patience_s=self._patience_s)
            except (TransportError, trio.TooSlowError):
                return
            if reply.size > self._max_state_bytes or (reply.size and reply.schema != self._schema):
                self._report.fault(peer, "state_of_another_model")
                return
            offers.append(Offered(peer, reply))
            if reply.size and sum(offered.offer.size > 0 for offered in offers) == 2:
                scope.deadline = 2.0 * trio.current_time() - began + OFFER_GRACE_S

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer, nursery.cancel_scope)
        return sorted(offers, key=lambda item: item.peer)

    @contextmanager
    def receiving(self, peer: str, size: int) -> Iterator[Incoming]:
        """Show a download among those under way, while it is."""
        self._incoming[peer] = incoming = Incoming(trio.current_time(), size)
        try:
            yield incoming
        finally:
            del self._incoming[peer]

    @property
    def incoming(self) -> tuple[TransferStatus, ...]:
        """Downloads under way, for the status."""
        now = trio.current_time()
        return tuple(
            TransferStatus(peer, "model", it.received, it.size, now - it.began) for peer, it in self._incoming.items()
        )

    async def download(self, chosen: Offered, holders: Sequence[Offered] = ()) -> bytes | ModelFile | None:
        """Download an offered model, from all `holders` of the same digest at once, and check each chunk; None if none delivers it.

        -> its bytes, or, where parts of models are kept in files, the one that holds it, for the caller to delete.

        What several hold is kept over restarts. A peer whose chunk has another digest is a fault of that peer, and the others go on.
        """
        offer, sources = (
            chosen.offer,
            {it.peer: it.offer for it in (chosen, *holders) if it.offer.digest == chosen.offer.digest},
        )
        self._incoming[chosen.peer] = incoming = Incoming(trio.current_time(), offer.size)
        listed = partial = file = None
        whole = False
        try:
            listed = await self._digests(offer, sources)
            if listed is None:
                return None
            file = await self._new_file(offer.size)
            queued_s = 2.0 * AHEAD_S if offer.size > MAX_CHUNK_BYTES else 0.0  # the only chunk waits behind no other
            incoming.chunks = chunks = Download(
                offer.size, offer.digest, listed, slow_bytes_per_s=SLOW_BYTES_PER_S, least_s=queued_s,
                data=bytearray() if file is None else file.pages,
            )  # fmt: skip
            if len(sources) > 1 and self._partial is not None:
                partial = await self._resume(chunks, self._partial)

            async def ask(peer: str, index: int) -> bytes:
                query = ChunkQuery(sources[peer].snapshot, index * MAX_CHUNK_BYTES)
                try:
                    reply = await self.asking.ask(peer, Chunk, query, chunks.late_s(peer, index))
                except (TransportError, trio.TooSlowError):
                    return b""
                return reply.data if reply.snapshot == query.snapshot else b""

            whole = await Fetching(chunks, tuple(sources), ask, self._report, partial, file).run()
            if not whole:
                return None
            return cast("bytes", chunks.data) if file is None else file
        finally:
            del self._incoming[chosen.peer]
            if file is not None and not whole:
                file.delete()
            if partial is not None:
                partial.close(finished=incoming.received == incoming.size)

    async def _new_file(self, size: int) -> ModelFile | None:
        """A file for a model; None: it is to be kept in memory."""
        if self._partial is None:
            return None
        with suppress(OSError):
            if not self._cleared:
                self._cleared = True
                await trio.to_thread.run_sync(ModelFile.clear, self._partial.parent)
            return await trio.to_thread.run_sync(ModelFile, self._partial.parent, size)
        return None

    async def _digests(self, offer: StateOffer, sources: dict[str, StateOffer]) -> bytes | None:
        """The digests of all chunks, from any source; those that give other ones are faults and are removed. None: nobody gives them."""
        size = DIGEST_BYTES * count(offer.size)
        if size == DIGEST_BYTES:
            return b""  # the offer's digest says what the chunk's is
        for peer, source in list(sources.items()):
            listed = bytearray()
            with suppress(TransportError, trio.TooSlowError):
                while len(listed) < size:
                    query = DigestsQuery(source.snapshot, len(listed))
                    expected = min(MAX_CHUNK_BYTES, size - len(listed))
                    reply = await self.asking.ask(peer, Digests, query, expected / SLOW_BYTES_PER_S)
                    if reply.snapshot != query.snapshot or len(reply.data) != expected:
                        break
                    listed += reply.data
            if len(listed) == size:
                if root(whole := bytes(listed)) == offer.digest:
                    return whole
                del sources[peer]
                self._report.fault(peer, "state_digest_mismatch")
        return None

    async def _resume(self, chunks: Download, path: Path) -> Partial | None:
        """Take what an earlier run received of this model. -> where to keep what comes, None if the disk does not take it"""

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
