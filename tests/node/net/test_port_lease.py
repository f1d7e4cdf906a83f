"""A port of the router: asked for, renewed, given back, and never in the way when the router says anything else."""

import pytest
import trio

from starling.node.net.port_lease import LEASE_S, PORTS, Lease, PortLease
from tests.harness.daemons import Reports, until
from tests.harness.libp2p_nodes import peer_of

HERE = (f"/ip4/192.168.1.7/tcp/4001/p2p/{peer_of('me')}",)


class FakeRouter:
    """As miniupnpc gives it: whatever goes wrong is an Exception."""

    lanaddr, discoverdelay = "192.168.1.7", 0

    def __init__(self, *, there=1, taken=(), endless=False):
        self.there, self.taken, self.endless = there, set(taken), endless
        self.mapped, self.asked = {}, []

    def discover(self):
        return self.there

    def selectigd(self):
        return "http://192.168.1.1/"

    def externalipaddress(self):
        return "9.9.9.9"

    def addportmapping(self, outside, protocol, host, port, name, remote, lease_s):
        self.asked.append((outside, lease_s))
        if outside in self.taken:
            raise Exception("ConflictInMappingEntry")
        if self.endless and lease_s:
            raise Exception("OnlyPermanentLeasesSupported")
        self.mapped[outside] = (protocol, host, port)
        return True

    def deleteportmapping(self, port, protocol):
        return self.mapped.pop(port)[0] == protocol


async def leased(router, addresses=HERE):
    """What a node was told, and its events, when it stops."""
    given, reports = [], Reports()
    lease = PortLease(lambda: addresses, given.append, reports, lambda: router)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.serve)
        await until(lambda: reports.events, 5.0)
        held = dict(router.mapped)
        nursery.cancel_scope.cancel()
    return given, held, reports


@pytest.mark.trio
async def test_a_port_is_led_to_this_node_for_an_hour_and_given_back_at_the_end():
    router = FakeRouter()
    given, held, reports = await leased(router)
    assert given == [Lease("9.9.9.9", 4001)]
    assert held == {4001: ("TCP", "192.168.1.7", 4001)}
    assert router.asked == [(4001, LEASE_S)]
    assert router.mapped == {}
    assert reports.names == ["port_lease"]


@pytest.mark.trio
async def test_a_port_that_another_has_is_left_to_it_and_a_router_that_knows_no_end_is_asked_for_none():
    router = FakeRouter(taken=(4001, 4002), endless=True)
    given, _, _ = await leased(router)
    assert given == [Lease("9.9.9.9", 4003)]
    assert router.asked[-2:] == [(4003, LEASE_S), (4003, 0)]


@pytest.mark.trio
@pytest.mark.parametrize("router", [FakeRouter(there=0), FakeRouter(taken=range(4001, 4001 + PORTS))])
async def test_without_a_router_that_gives_one_a_node_goes_on(router):
    given, held, reports = await leased(router)
    assert given == []
    assert held == {}
    assert "no router gives" in reports.events[0][1]
