"""Map ports on a router by UPnP, with miniupnpc in threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starling.node.net.lan import in_thread
from starling.node.net.port_lease import LEASE_S, Lease

DISCOVER_MS = 2000
PORTS = 8  # ports tried, beginning with the requested one
NAME = "starling"


class Device(Protocol):
    """The methods of `miniupnpc.UPnP` that are used; they raise Exception."""

    discoverdelay: int
    lanaddr: str

    def discover(self) -> int:
        """Return how many devices answered."""

    def selectigd(self) -> str:
        """Choose the router among them."""

    def externalipaddress(self) -> str:
        """Return the router's outside address."""

    def addportmapping(self, port: int, protocol: str, host: str, own_port: int, name: str, remote: str, lease_s: int, /) -> bool:
        """Forward a port to a host."""

    def deleteportmapping(self, port: int, protocol: str, /) -> bool:
        """Stop forwarding a port."""


def _device() -> Device:
    import miniupnpc  # noqa: PLC0415 — rarely needed

    device: Device = miniupnpc.UPnP()
    return device


@dataclass(slots=True)
class Upnp:
    """Maps ports by UPnP. Satisfies `starling.node.net.port_lease.Router`."""

    make: Callable[[], Device] = _device
    words: str = "UPnP"
    _found: Device | None = None

    async def lead(self, outside: int, port: int) -> Lease | None:
        """Forward a port by the router used before, else one that is discovered: a given port, else the next free one."""
        return await in_thread(partial(self._lead, outside, port))

    async def give_back(self, outside: int, port: int) -> None:
        """End the mapping of the outside port; one that is not ended expires."""
        await in_thread(partial(self._give_back, outside))

    def _lead(self, first: int, port: int) -> Lease | None:
        try:
            if self._found is None:
                device = self.make()
                device.discoverdelay = DISCOVER_MS
                if not device.discover():
                    return None
                device.selectigd()
                self._found = device
            for each in range(first, min(first + PORTS, 65536)):
                if self._add(self._found, each, port):
                    return Lease(self._found.externalipaddress(), each)
        except Exception:  # noqa: BLE001 - miniupnpc raises nothing else, and routers answer anything
            self._found = None
        return None

    @staticmethod
    def _add(device: Device, outside: int, port: int) -> bool:
        for lease_s in (int(LEASE_S), 0):  # some routers accept only leases without an end
            try:
                if device.addportmapping(outside, "TCP", device.lanaddr, port, NAME, "", lease_s):
                    return True
            except Exception:  # noqa: BLE001, S112 - as above: the port is taken, or it wants another time
                continue
        return False

    def _give_back(self, outside: int) -> None:
        if self._found is not None:
            try:
                self._found.deleteportmapping(outside, "TCP")
            except Exception:  # noqa: BLE001 - as above
                return
