"""Dialling several addresses at once, in tasks that outlive those who asked."""

import pytest
import trio

from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.dialler import Dialler, first_of
from tests.harness.virtual import virtual

ENDPOINT = parse("/ip4/127.0.0.1/tcp/1")


class Made:
    def __init__(self):
        self.closed = False

    async def abandon(self):
        self.closed = True
        await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_connection_that_is_made_is_handed_over():
    connection = Made()

    async def connect(endpoint):
        return connection

    assert await first_of([ENDPOINT], connect) == ([connection], "")
    assert not connection.closed


@pytest.mark.trio
async def test_a_connection_without_an_owner_is_closed():
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


@virtual
async def test_callers_share_an_attempt_and_its_connection_outlives_them():
    """It runs where the dialler serves: a caller that is cancelled ends neither the attempt nor the connection."""
    dialled, made, running = [], [], []

    async def connect(peer, endpoint):
        dialled.append(peer)
        await trio.sleep(1.0)
        if peer == "gone":
            raise OSError(111, "refused")
        return peer

    async def run(connection):
        running.append(connection)
        await trio.sleep_forever()

    dialler = Dialler(connect, made.append, run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialler.serve)
        with trio.move_on_after(0.5):
            await dialler.dial("p", [ENDPOINT])
        assert dialler.under_way("p")
        assert await dialler.dial("p") == ""
        assert (dialled, made) == (["p"], ["p"])
        assert not dialler.under_way("p")
        assert "refused" in await dialler.dial("gone", [ENDPOINT])
        assert running == ["p"]
        nursery.cancel_scope.cancel()
