"""A port of the router is requested, renewed and returned, and unexpected answers of the router do no harm."""

import pytest
import trio

from starling.node.net.port_lease import LEAST_S, Lease, PortLease
from tests.harness.daemons import Reports, until
from tests.harness.libp2p_nodes import peer_of

HERE = (f"/ip4/192.168.1.7/tcp/4001/p2p/{peer_of('me')}",)


class FakeRouter:
    """A router that gives the listed answers in turn, then repeats the last one."""

    def __init__(self, words, *gives):
        self.words, self.gives, self.asked, self.ended = words, list(gives), [], []

    async def lead(self, outside, port):
        self.asked.append((outside, port, trio.current_time()))
        return self.gives.pop(0) if len(self.gives) > 1 else self.gives[0]

    async def give_back(self, outside, port):
        self.ended.append((outside, port))


async def leased(seconds, *routers):
    """Return the node's port events when it stops."""
    given, reports = [], Reports()
    lease = PortLease(lambda: HERE, given.append, reports, lambda: routers)
    with trio.move_on_after(seconds):
        await lease.serve()
    return given, reports


@pytest.mark.trio
async def test_a_port_is_renewed_at_half_its_lifetime_and_released_at_the_end(autojump_clock):
    router = FakeRouter("A", Lease("9.9.9.9", 4003, 1000.0), Lease("9.9.9.9", 4003, 10.0))
    given, reports = await leased(501.0 + LEAST_S, router)
    assert given == [("9.9.9.9", 4003)]
    begin = router.asked[0][2]
    asked = [(outside, port, round(at - begin)) for outside, port, at in router.asked]
    assert asked == [(4001, 4001, 0), (4003, 4001, 500), (4003, 4001, 500 + LEAST_S)]
    assert router.ended == [(4003, 4001)]
    assert reports.texts == ["the router leads its port 4003 to this node (A)"]


@pytest.mark.trio
async def test_the_router_that_gave_a_port_is_asked_first(autojump_clock):
    first, second = FakeRouter("A", None), FakeRouter("B", Lease("9.9.9.9", 4001), None)
    given, reports = await leased(1801.0, first, second)
    assert [len(it.asked) for it in (first, second)] == [2, 2]
    assert second.asked[1][2] <= first.asked[1][2]
    assert given == [("9.9.9.9", 4001), None]
    assert reports.texts[-1] == "no router gives this node a port (A, B)"
    assert (first.ended, second.ended) == ([], [])


@pytest.mark.trio
async def test_a_node_without_private_addresses_requests_no_port(autojump_clock):
    router = FakeRouter("A", Lease("9.9.9.9", 4001))
    addresses = [f"/ip4/8.8.8.8/tcp/4001/p2p/{peer_of('me')}"]
    with trio.move_on_after(100.0):
        await PortLease(lambda: addresses, print, Reports(), lambda: [router]).serve()
    assert router.asked == []
    addresses[:] = HERE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(PortLease(lambda: addresses, print, Reports(), lambda: [router]).serve)
        await until(lambda: router.asked, 1.0)
        nursery.cancel_scope.cancel()
