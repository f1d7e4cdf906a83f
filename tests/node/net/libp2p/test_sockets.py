"""Dialling several addresses at once."""

import pytest
import trio

from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.sockets import first_of

ENDPOINT = parse("/ip4/127.0.0.1/tcp/1")


class Made:
    """A connection that says whether its socket is closed."""

    def __init__(self):
        self.closed = False

    async def abandon(self):
        self.closed = True
        await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_connection_that_is_made_is_handed_over():
    """Its new owner closes it."""
    connection = Made()

    async def connect(endpoint):
        return connection

    assert await first_of([ENDPOINT], connect) == ([connection], "")
    assert not connection.closed


@pytest.mark.trio
async def test_a_connection_that_nobody_will_have_is_closed():
    """Who dialled is cancelled in the moment in which it succeeds."""
    connections = [Made(), Made()]
    left = list(connections)

    async def connect(endpoint):
        if len(left) == 1:
            scope.cancel()
        return left.pop()

    with trio.CancelScope() as scope:
        await first_of([ENDPOINT], connect)
        left_over = await first_of([ENDPOINT], connect)
        raise AssertionError(left_over)
    assert connections[0].closed
    assert not connections[1].closed
