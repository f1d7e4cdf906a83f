"""A router that speaks UPnP, through miniupnpc, whose errors are all of type Exception."""

import pytest

from starling.node.net.port_lease import LEASE_S, Lease
from starling.node.net.upnp import PORTS, Upnp


class FakeDevice:
    lanaddr, discoverdelay = "192.168.1.7", 0

    def __init__(self, *, there=1, taken=(), endless=False, says="9.9.9.9"):
        self.available, self.taken, self.endless, self.says = there, set(taken), endless, says
        self.mapped, self.asked = {}, []

    def discover(self):
        return self.available

    def selectigd(self):
        return "http://192.168.1.1/"

    def externalipaddress(self):
        if self.says is None:
            raise Exception("no route")
        return self.says

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


@pytest.mark.trio
async def test_a_port_is_mapped_for_an_hour_and_released():
    device = FakeDevice()
    router = Upnp(lambda: device)
    assert await router.lead(4001, 4001) == Lease("9.9.9.9", 4001)
    assert device.mapped == {4001: ("TCP", "192.168.1.7", 4001)}
    assert device.asked == [(4001, LEASE_S)]
    await router.give_back(4001, 4001)
    assert device.mapped == {}
    await router.give_back(4001, 4001)


@pytest.mark.trio
async def test_a_used_port_is_not_taken_and_permanent_leases_are_not_requested():
    device = FakeDevice(taken=(4001, 4002), endless=True)
    assert await Upnp(lambda: device).lead(4001, 4001) == Lease("9.9.9.9", 4003)
    assert device.asked[-2:] == [(4003, LEASE_S), (4003, 0)]


@pytest.mark.trio
@pytest.mark.parametrize("device", [FakeDevice(there=0), FakeDevice(taken=range(4001, 4001 + PORTS)), FakeDevice(says=None)])
async def test_a_router_without_a_port_raises_nothing(device):
    router = Upnp(lambda: device)
    assert await router.lead(4001, 4001) is None
    await router.give_back(4001, 4001)
