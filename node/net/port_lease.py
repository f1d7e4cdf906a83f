"""A port of the router that leads to this node, asked for by UPnP and renewed; miniupnpc, in threads.

What the router says of its own address is a hint: whether others reach this node there they say themselves (`ReachabilityService`). Any
device of the local network can answer as a router, and could so learn the port at which we listen, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import trio

from starling.node.interfaces import Reporter
from starling.node.net.lan import in_thread, told

LEASE_S = 3600
RENEW_S, AGAIN_S, LOOK_S = LEASE_S / 2, 900.0, 10.0
DISCOVER_MS = 2000
PORTS = 8  # tried, from that of this node on
STOP_S = 0.5
NAME = "starling"


class Router(Protocol):
    """What is used of `miniupnpc.UPnP`, whose methods raise Exception."""

    discoverdelay: int
    lanaddr: str

    def discover(self) -> int:
        """How many devices answered."""

    def selectigd(self) -> str:
        """Choose the router among them."""

    def externalipaddress(self) -> str:
        """Its address outside."""

    def addportmapping(
        self, port: int, protocol: str, host: str, own_port: int, name: str, remote: str, lease_s: int, /
    ) -> bool:  # fmt: skip
        """Lead a port to a host."""

    def deleteportmapping(self, port: int, protocol: str, /) -> bool:
        """End that."""


class Lease(NamedTuple):
    """What a router gave: its address, as it says, and the port there."""

    host: str
    port: int


def _router() -> Router:
    import miniupnpc  # noqa: PLC0415 — rarely needed

    router: Router = miniupnpc.UPnP()
    return router


@dataclass(slots=True)
class PortLease:
    """Keeps a port for a node with these `addresses`, while `serve` runs; `changed` is called with each new lease, and None at its end."""

    addresses: Callable[[], Sequence[str]]
    changed: Callable[[Lease | None], object]
    report: Reporter
    make: Callable[[], Router] = _router
    _router: Router | None = None
    _held: Lease | None = None
    _told: str = field(default="")

    async def serve(self) -> None:
        """Until cancelled; then the port is given back."""
        try:
            while True:
                own = told(self.addresses())
                if not own:
                    await trio.sleep(LOOK_S)
                    continue
                lease = await in_thread(partial(self._ask, own[0].port))
                self._say(lease)
                if lease != self._held:
                    self._held = lease
                    self.changed(lease)
                await trio.sleep(AGAIN_S if lease is None else RENEW_S)
        finally:
            if self._held is not None:
                with trio.move_on_after(STOP_S) as scope:
                    scope.shield = True
                    await in_thread(self._give_back)

    def _ask(self, port: int) -> Lease | None:
        """In a thread: of the router found before, else of one that is looked for; a port that was given, else the next that is free."""
        try:
            if self._router is None:
                router = self.make()
                router.discoverdelay = DISCOVER_MS
                if not router.discover():
                    return None
                router.selectigd()
                self._router = router
            first = port if self._held is None else self._held.port
            for each in range(first, min(first + PORTS, 65536)):
                if self._add(self._router, each, port):
                    return Lease(self._router.externalipaddress(), each)
        except Exception:  # noqa: BLE001 - miniupnpc raises nothing else, and routers answer anything
            self._router = None
        return None

    @staticmethod
    def _add(router: Router, outside: int, port: int) -> bool:
        for lease_s in (LEASE_S, 0):  # some routers know no end
            try:
                if router.addportmapping(outside, "TCP", router.lanaddr, port, NAME, "", lease_s):
                    return True
            except Exception:  # noqa: BLE001, S112 - as above: the port is taken, or it wants another time
                continue
        return False

    def _give_back(self) -> None:
        """In a thread."""
        if self._router is not None and self._held is not None:
            try:
                self._router.deleteportmapping(self._held.port, "TCP")
            except Exception:  # noqa: BLE001 - it ends by itself
                return

    def _say(self, lease: Lease | None) -> None:
        text = (
            "no router gives this node a port (UPnP)"
            if lease is None
            else f"the router leads its port {lease.port} to this node"
        )
        if text != self._told:
            self._told = text
            self.report.event("port_lease", text, port=None if lease is None else lease.port)
