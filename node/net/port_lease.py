"""Keep a port of the router mapped to this node, by a protocol that the router supports.

What the router says of its own address is a hint: whether others reach this node there they say themselves (`ReachabilityService`). Any
device of the local network can answer as a router, and could so learn the port at which we listen, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import trio

from starling.node.interfaces import Reporter
from starling.node.net.lan import told

LEASE_S = 3600.0
AGAIN_S, POLL_S = 900.0, 10.0
LEAST_S = 120.0  # least seconds between two requests, however short a lease is
STOP_S = 0.5


class Lease(NamedTuple):
    """A router's port mapping: its outside address, the port there, and the lease time."""

    host: str
    port: int
    lasts_s: float = LEASE_S


class Router(Protocol):
    """A port-mapping protocol of a router. No answer, or lack of one, raises."""

    words: str  # for people

    async def lead(self, outside: int, port: int) -> Lease | None:
        """Forward a port of the router, `outside` or another that is free, to `port` of this node; or renew that."""

    async def give_back(self, outside: int, port: int) -> None:
        """End the forwarding of a port."""


def _routers() -> tuple[Router, ...]:
    from starling.node.net.nat_pmp import NatPmp  # noqa: PLC0415 — rarely needed
    from starling.node.net.upnp import Upnp  # noqa: PLC0415

    return Upnp(), NatPmp()


@dataclass(slots=True)
class PortLease:
    """Keeps a port mapped for a node with these `addresses`, while `serve` runs.

    `changed` is called with each new address and port outside, and with None when the router gives no more.
    """

    addresses: Callable[[], Sequence[str]]
    changed: Callable[[tuple[str, int] | None], object]
    report: Reporter
    make: Callable[[], Sequence[Router]] = _routers
    _told: str = ""

    async def serve(self) -> None:
        """Keep a port forwarded until cancelled; then release it."""
        routers, held, giver, inside = self.make(), None, None, 0
        try:
            while True:
                own = told(self.addresses())
                if not own:
                    await trio.sleep(POLL_S)
                    continue
                inside = own[0].port
                asked = routers if giver is None else (giver, *(it for it in routers if it is not giver))
                lease, giver = await self._first(asked, inside if held is None else held[1], inside)
                self._say(lease, giver, routers)
                now = None if lease is None else (lease.host, lease.port)
                if now != held:
                    held = now
                    self.changed(held)
                await trio.sleep(AGAIN_S if lease is None else max(LEAST_S, lease.lasts_s / 2))
        finally:
            if giver is not None and held is not None:
                with trio.move_on_after(STOP_S) as scope:
                    scope.shield = True
                    await giver.give_back(held[1], inside)

    @staticmethod
    async def _first(routers: Sequence[Router], outside: int, port: int) -> tuple[Lease | None, Router | None]:
        for router in routers:
            if (lease := await router.lead(outside, port)) is not None:
                return lease, router
        return None, None

    def _say(self, lease: Lease | None, giver: Router | None, routers: Sequence[Router]) -> None:
        text = f"no router gives this node a port ({', '.join(it.words for it in routers)})"
        if lease is not None and giver is not None:
            text = f"the router leads its port {lease.port} to this node ({giver.words})"
        if text != self._told:
            self._told = text
            self.report.event("port_lease", text, port=None if lease is None else lease.port)
