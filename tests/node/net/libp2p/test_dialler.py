"""Dialling several addresses at once, in tasks that outlive their callers."""

from functools import partial

import pytest
import trio
import trio.lowlevel

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
async def test_a_new_connection_is_handed_to_its_caller():
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
    """The dialler's own task runs it: cancelling a caller ends neither the attempt nor the connection."""
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


@virtual
async def test_rumored_addresses_that_stay_silent_leave_the_slots_of_others_free():
    """Otherwise records of peers that do not exist would occupy every slot for ten seconds."""

    async def connect(peer, endpoint):
        if peer.startswith("silent"):
            await trio.sleep_forever()
        return peer

    async def run(connection):
        await trio.lowlevel.checkpoint()

    dialler = Dialler(connect, lambda _connection: None, run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialler.serve)
        for each in range(64):
            nursery.start_soon(partial(dialler.dial, f"silent {each}", [ENDPOINT], rumored=True))
        await trio.sleep(0.1)
        began = trio.current_time()
        assert await dialler.dial("met", [ENDPOINT]) == ""
        assert trio.current_time() == began
        assert await dialler.dial("new", [ENDPOINT], rumored=True) == ""
        assert trio.current_time() - began < 60.0
        nursery.cancel_scope.cancel()
