"""A byte stream of a connection: received bytes wait to be read, writes wait for the peer's window and for space in the queue.

Only the connection's writing task writes to the socket, so a cancelled `Stream.write` breaks its own stream only. Streams queue one piece
at a time, in turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from starling.node.net.libp2p.connection import Connection

HANG_UP_S = 5.0  # seconds for a peer to read an answer


class StreamBroken(Exception):
    """The stream was reset or its connection is gone."""


class Stream:
    """A byte stream. Made by `Connection.open` or for its `accept`; the last three methods are for the connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.broken = False
        self._session = connection.session
        self._chunks: deque[bytes | memoryview] = deque()
        self._finished = False
        self._arrived = trio.lowlevel.ParkingLot()
        self._credited = trio.lowlevel.ParkingLot()

    @property
    def unread(self) -> int:
        """Return the number of bytes received and not read."""
        return sum(map(len, self._chunks))

    async def read(self) -> bytes | memoryview:
        """Return received bytes, at least one; b"" at the end. Raises StreamBroken: it was reset or the connection is gone.

        Other tasks run only while there are none.
        """
        while not self._chunks:
            if self.broken:
                raise StreamBroken
            if self._finished:
                return b""
            await self._arrived.park()
        chunk = self._chunks.popleft()
        self._session.consumed(self.number, len(chunk))
        self.connection.queued()
        return chunk

    async def write(self, data: bytes | memoryview) -> None:
        """Queue all of `data`; waits for the peer's window and for space in the queue. Raises StreamBroken as `read`."""
        view = memoryview(data)
        while view:
            while not self.broken and self._session.room(self.number) == 0:
                await self._credited.park()
            async with self.connection.turn:
                while not self.broken and self.connection.is_full:
                    await self.connection.room.park()
                if self.broken:
                    raise StreamBroken
                view = view[self._session.send(self.number, view[: self.connection.queue_bytes]) :]
            self.connection.queued()

    def finish(self) -> None:
        """Send nothing after the queued bytes."""
        self._session.finish(self.number)
        self.connection.forget_if_closed(self.number)

    def reset(self) -> None:
        """Close the stream in both directions, if it is open."""
        self._session.reset(self.number)
        if self.connection.forget_if_closed(self.number):
            self.ended(broken=True)

    async def hang_up(self) -> None:
        """Stop writing, and wait until the peer, which reads the last bytes, closes the stream. Raises StreamBroken."""
        self.finish()
        with trio.move_on_after(HANG_UP_S):
            while await self.read():
                pass

    def keep_window(self) -> None:
        """Keep the window at its initial size."""
        self._session.keep_window(self.number)

    @property
    def window(self) -> int:
        """Return the most bytes that can arrive without a read."""
        return self._session.window(self.number)

    @property
    def waiting(self) -> bool:
        """Tell if `read` returns at once."""
        return bool(self._chunks)

    def arrived(self, data: bytes | memoryview) -> None:
        """Append bytes that came from the peer."""
        self._chunks.append(data)
        if self._arrived:
            self._arrived.unpark_all()

    def ended(self, *, broken: bool) -> None:
        """Note that no more bytes arrive."""
        self._finished = True
        self.broken = self.broken or broken
        if broken:
            self._chunks.clear()
            self.connection.room.unpark_all()
        self._arrived.unpark_all()
        self._credited.unpark_all()

    def credited(self) -> None:
        """Note that the peer accepts more bytes."""
        if self._credited:
            self._credited.unpark_all()
