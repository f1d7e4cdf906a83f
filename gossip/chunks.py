"""A model in chunks, each with a digest: verified one by one, from any sender, and requested from several peers at once.

A state of `size` bytes is split into chunks of MAX_CHUNK_BYTES, the last one shorter. The SHA-256 of all of them, 32 bytes each, are the
list of its `digests`; the SHA-256 of that list is its `root`. Whoever knows a root from several members can take the list from any peer,
and each chunk from any other, and knows of each who sent something else.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from mmap import mmap
from typing import Literal

from starling.gossip.chunk_times import SLACK, SPREADS, ChunkTimes
from starling.gossip.robust_deadline import late_after
from starling.gossip.wire.schema import MAX_CHUNK_BYTES

DIGEST_BYTES = 32
TRIES = 3  # failed requests in a row after which a peer gets no more
AGAIN = 2.0  # factor of the time after which a chunk requested from several peers is requested from one more


def count(size: int, chunk_bytes: int = MAX_CHUNK_BYTES) -> int:
    """Number of chunks of a state of so many bytes."""
    return -(-size // chunk_bytes)


def digests(state: bytes, chunk_bytes: int = MAX_CHUNK_BYTES) -> bytes:
    """Digests of all chunks of a state, one after the other."""
    view = memoryview(state)
    return digests_of(view[at : at + chunk_bytes] for at in range(0, len(state), chunk_bytes))


def digests_of(parts: Iterable[bytes | memoryview]) -> bytes:
    """Return the digests of the chunks, in order, as `digests`."""
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def root(listed: bytes) -> bytes:
    """Return the digest of a list of digests, 32 bytes."""
    return hashlib.sha256(listed).digest()


@dataclass(slots=True)
class Download:
    """Choose the peer for each chunk, and store received chunks. `now` is local time in seconds.

    Args:
        size: bytes of the state, > 0.
        root: root of its digests, known from the members that offer it.
        listed: its digests, checked against `root`; of a single chunk they need not be known.
        slow_bytes_per_s: rate that a peer is given credit for before it has sent a chunk, > 0.
        least_s: time in which no chunk is asked for again, >= 0.
        times: when chunks came, of this download and of others of the same fetch.
        data: where chunks are put, `size` bytes; empty: in memory.
    """

    size: int
    root: bytes
    listed: bytes = b""
    chunk_bytes: int = MAX_CHUNK_BYTES
    slow_bytes_per_s: float = 64 << 10
    least_s: float = 4.0
    times: ChunkTimes = field(default_factory=ChunkTimes)
    data: bytearray | mmap = field(default_factory=bytearray)
    missing: int = field(init=False)  # chunks
    _have: bytearray = field(init=False)
    _waiting: deque[int] = field(init=False)
    _asked: dict[int, dict[str, float]] = field(default_factory=dict)  # chunks in flight: peer -> time of the request
    _failed: Counter[str] = field(default_factory=Counter)
    _gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.data = self.data or bytearray(self.size)
        self.missing = count(self.size, self.chunk_bytes)
        self._have, self._waiting = bytearray(self.missing), deque(range(self.missing))
        if len(self.listed) != DIGEST_BYTES * self.missing and (self.listed or self.missing > 1):
            raise ValueError(f"{len(self.listed)} bytes of digests for {self.missing} chunks")

    @property
    def received(self) -> int:
        """Return the bytes that have arrived."""
        return self.size - sum(self.length(index) for index, have in enumerate(self._have) if not have)

    def length(self, index: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)

    def is_right(self, index: int, data: bytes) -> bool:
        """Return whether these bytes are that chunk."""
        digest = hashlib.sha256(data).digest()
        if not self.listed:
            return root(digest) == self.root
        return digest == self.listed[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def recover(self, found: Iterable[tuple[int, bytes]]) -> int:
        """Store those of these chunks that are right, before any peer is asked. -> how many"""
        before = self.missing
        for index, data in found:
            if 0 <= index < len(self._have) and not self._have[index] and self.is_right(index, data):
                self._store(index, data)
        self._waiting = deque(index for index, have in enumerate(self._have) if not have)
        return before - self.missing

    def take(self, peer: str, now: float) -> int | None:
        """Return the chunk to request from this peer at `now`, which counts as requested; None if there is none at present."""
        if peer in self._gone:
            return None
        if self._waiting:
            index = self._waiting.popleft()
        else:  # late chunks are requested from another peer too, so that a slow peer does not delay the end
            usual_s = self.times.usual_s() or self.times.least_s
            late = [
                (since, index)
                for index, asked in self._asked.items()
                if not self._have[index]
                and peer not in asked
                and now - (since := max(asked.values())) > usual_s * AGAIN ** (len(asked) - 1)
            ]
            if not late:
                return None
            index = min(late)[1]
        self._asked.setdefault(index, {})[peer] = now
        self.times.asked(peer, now)
        return index

    def arrived(self, peer: str, index: int, data: bytes, now: float) -> Literal["new", "known", "wrong"]:
        """Store a chunk that a peer was asked for; after a wrong one, which is reported once, this peer is asked for nothing more."""
        asked = self._asked.get(index, {})
        if not self.is_right(index, data):
            blamed = peer in self._gone
            self._gone.add(peer)
            self._return(peer, index, now)
            return "known" if blamed else "wrong"
        self._failed[peer] = 0
        self.times.arrived(peer, now - asked.pop(peer), now)
        if not asked:
            self._asked.pop(index)
        if self._have[index]:
            return "known"
        self._store(index, data)
        return "new"

    def late_s(self, peer: str, index: int) -> float:
        """Return the seconds after which this chunk is late if it comes from this peer, by its last durations."""
        took = self.times.of(peer)
        return max(self.least_s, late_after(took, SPREADS, SLACK) if took else self.length(index) / self.slow_bytes_per_s)

    def failed(self, peer: str, index: int, now: float) -> None:
        """A peer sent nothing usable for a chunk in time; after TRIES in a row it is asked for nothing more."""
        self._failed[peer] += 1
        if self._failed[peer] >= TRIES:
            self._gone.add(peer)
        self._return(peer, index, now)

    def is_gone(self, peer: str) -> bool:
        """Return whether this peer gets no more requests."""
        return peer in self._gone

    def _return(self, peer: str, index: int, now: float) -> None:
        asked = self._asked.get(index, {})
        if asked.pop(peer, None) is not None:
            self.times.given_up(peer, now)
        if not asked and self._asked.pop(index, None) is not None and not self._have[index]:
            self._waiting.appendleft(index)

    def _store(self, index: int, data: bytes) -> None:
        at = index * self.chunk_bytes
        self.data[at : at + len(data)] = data
        self._have[index] = 1
        self.missing -= 1
