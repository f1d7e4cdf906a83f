"""Serve this node's model to others: offers, and chunks and digests of the engine's snapshot.

A query makes the engine hold a snapshot; chunks and their digests are read from it by offset. There is one snapshot at a time: it is kept
while it is fresh, and while it is being read for as long as reading takes on a slow line, so that a query does not interrupt a download.
What a peer can cause: one snapshot per `SNAPSHOT_FRESH_S`; for newcomers, a model as old as a download over a slow line takes.

Outer parameters of an earlier round, which peers ask for by digest, never change: the engine has a snapshot of each, or none.
"""

import math

import trio

from starling.gossip.errors import EngineError
from starling.gossip.limits import keep
from starling.gossip.mix.common_outer import GIVEN
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, ChunkQuery, Digests, DigestsQuery, StateOffer, StateQuery
from starling.node.daemon.state.asking import REPLY_S, SLOW_BYTES_PER_S
from starling.node.interfaces import EngineHandle
from starling.node.rpc import calls

SNAPSHOT_FRESH_S = 1.0
SNAPSHOT_BYTES_PER_S = 16 << 20  # least rate at which a busy engine packs and hashes, with a local step in between


def engine_s(most_bytes: int) -> float:
    """Return how long an engine may take for a request about a model of at most so many bytes."""
    return REPLY_S + most_bytes / SNAPSHOT_BYTES_PER_S


class Snapshots:
    """Snapshots of one node's model; `most_bytes`: its largest size."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._engine: EngineHandle | None = None
        self._held: tuple[calls.SnapshotInfo, float] | None = None
        self._outer: dict[int, calls.SnapshotInfo] = {}  # by number
        self._holding = trio.Lock()
        self._read_at = -math.inf

    def give(self, engine: EngineHandle) -> None:
        """Offer this engine's model from now on."""
        self._engine, self._held, self._outer = engine, None, {}

    async def offer(self, query: StateQuery) -> StateOffer:
        """Return an offer, of 0 bytes while there is no engine. Raises EngineError, trio.TooSlowError."""
        none = StateOffer(query.nonce, 0, 0, 0, b"", b"")
        if self._engine is None:
            return none
        held = await (self._hold_outer(self._engine, query.outer) if query.outer else self._hold(self._engine))
        return none if held is None else StateOffer(query.nonce, held.snapshot, held.round, held.size, held.digest, held.schema)

    def digests(self, query: DigestsQuery) -> Digests:
        """Return digests of chunks from an offset on; empty if the snapshot was deleted."""
        model = None if self._engine is None or self._held is None else self._held[0]
        held = model if model is not None and model.snapshot == query.snapshot else self._outer.get(query.snapshot)
        part = b"" if held is None else held.digests[query.offset :][:MAX_CHUNK_BYTES]
        return Digests(query.snapshot, query.offset, part)

    async def chunk(self, query: ChunkQuery) -> Chunk:
        """Return a chunk from an offset on; empty if the snapshot was deleted. Raises EngineError, trio.TooSlowError."""
        if self._engine is None:
            return Chunk(query.snapshot, query.offset, b"")
        with trio.fail_after(engine_s(self.most_bytes)):
            read = await self._engine.call(calls.ReadChunk(query.snapshot, query.offset, MAX_CHUNK_BYTES))
        data = read.data if isinstance(read, calls.ChunkRead) else b""
        if data and query.snapshot not in self._outer:
            self._read_at = trio.current_time()
        return Chunk(query.snapshot, query.offset, data)

    async def _hold(self, engine: EngineHandle) -> calls.SnapshotInfo:
        with trio.fail_after(engine_s(self.most_bytes)):
            async with self._holding:  # queries during a snapshot share it
                if self._held is not None and self._stays(*self._held):
                    return self._held[0]
                held = await engine.call(calls.Snapshot())
                if not isinstance(held, calls.SnapshotInfo):
                    raise EngineError("the engine gave no snapshot")
                self._held, self._read_at = (held, trio.current_time()), -math.inf
                return held

    async def _hold_outer(self, engine: EngineHandle, outer: bytes) -> calls.SnapshotInfo | None:
        with trio.fail_after(engine_s(self.most_bytes)):
            held = await engine.call(calls.SnapshotOuter(outer))
        if not isinstance(held, calls.SnapshotInfo):
            return None
        keep(self._outer, held.snapshot, held, GIVEN)
        return held

    def _stays(self, held: calls.SnapshotInfo, made_at: float) -> bool:
        now = trio.current_time()
        reading = now - self._read_at < REPLY_S + MAX_CHUNK_BYTES / SLOW_BYTES_PER_S
        read_s = held.size / SLOW_BYTES_PER_S if reading else 0.0
        return now - made_at < SNAPSHOT_FRESH_S + read_s
