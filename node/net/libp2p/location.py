"""Location of the other end of a connection."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from starling.node.net.libp2p import addresses
from starling.node.net.limits import origin_of


@dataclass(frozen=True, slots=True)
class Location:
    """Location of the other end of a new connection, and the way to it."""

    block: str  # address block by which limits are counted
    origin: str = ""
    host: str = ""
    port: int = 0
    local: str = ""
    local_port: int = 0
    relay: str = ""
    relay_bytes: int = 0
    punched: bool = False


def location_of(raw: trio.SocketStream) -> Location:
    """Return where the other end of a connection is. Raises OSError: it is closed."""
    (host, port), (local, local_port) = raw.socket.getpeername()[:2], raw.socket.getsockname()[:2]
    return Location(addresses.block(host), origin_of(host), addresses.plain(host), port, local, local_port)
