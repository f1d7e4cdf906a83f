"""Bytes queued in the system for a connection whose peer does not read, on Linux, which reports them."""

import array
import fcntl
import socket

import pytest
import trio

from starling.node.net.libp2p.connection import Connection, ConnectionInfo
from starling.node.net.limits import Pacer

NOT_SENT = 0x894B  # SIOCOUTQNSD: bytes of a socket that have not been sent
WAITED_S = 0.3

pytestmark = [pytest.mark.real, pytest.mark.skipif(not hasattr(socket, "SO_PASSCRED"), reason="asks Linux what it holds")]


class Plain:
    """A channel without encryption."""

    def __init__(self, stream):
        self.stream = stream

    async def records(self, limit):
        return [await self.stream.receive_some(limit)]

    async def write(self, *pieces):
        await self.stream.send_all(b"".join(pieces))


async def ignore(_stream):
    """Ignore inbound streams, of which there are none."""


def test_bytes_for_a_peer_that_does_not_read_stay_where_short_frames_can_overtake():
    """The system's buffer would accept megabytes on long or formerly fast lines, and delay a probe by all of it."""

    async def main():
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with listener, await listener.accept(), near:
            connection = Connection(ConnectionInfo("p", "", False, 0, 0), near, Plain(near), b"", Pacer(0), Pacer(0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run, ignore)
                stream = connection.open()
                connection.session.streams[stream.number].send_credit = 64 << 20
                nursery.start_soon(stream.write, bytes(32 << 20))
                await trio.sleep(WAITED_S)
                held = array.array("i", [0])
                fcntl.ioctl(near.socket.fileno(), NOT_SENT, held)
                nursery.cancel_scope.cancel()
        assert held[0] < connection.queue_bytes, "what it was told to hold, and no piece more"

    trio.run(main)
