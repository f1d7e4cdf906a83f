"""What relaying and punching need of the host they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.circuit import CircuitStream
from starling.node.net.libp2p.connection import Connection


@dataclass(frozen=True, slots=True)
class Where:
    """Of a connection to be: where the other end is, and by what way."""

    block: str  # what its limits are counted by
    origin: str = ""
    host: str = ""
    port: int = 0
    local: str = ""
    local_port: int = 0
    relay: str = ""
    relay_bytes: int = 0
    punched: bool = False


class Switch(Protocol):
    """A host."""

    @property
    def peer_id(self) -> str:
        """Our own id."""

    @property
    def is_hidden(self) -> bool:
        """Others cannot dial us."""

    def direct(self, peer: str) -> Connection | None:
        """The newest connection to a peer that goes through no relay."""

    def connections(self) -> Sequence[Connection]:
        """All that are open."""

    def is_known(self, peer: str) -> bool:
        """Whether it is a member, as far as the network is told, or was dialled."""

    def endpoints(self, peer: str) -> tuple[Endpoint, ...]:
        """Where a peer can be dialled; first where it answered."""

    def may_knock(self, endpoint: Endpoint) -> bool:
        """Count a dial of an address that a peer told. -> whether it may be made"""

    async def reach_directly(self, peer: str, endpoints: Sequence[Endpoint]) -> Connection:
        """A connection through no relay, dialling if needed. Raises OSError with the reason."""

    async def secured(
        self, raw: trio.SocketStream | CircuitStream, where: Where, expected: str | None, *, inbound: bool | None = None
    ) -> Connection:
        """Run the handshake, as its initiator if a peer is expected. Raises HandshakeFailed."""

    async def admit(self, raw: trio.SocketStream | CircuitStream, where: Where) -> None:
        """Run the handshake of an inbound connection, within its limits, and serve the connection until it ends."""

    async def welcome(self, connection: Connection) -> None:
        """Serve an inbound connection that is secured, if its limits allow it."""

    def relays_changed(self) -> None:
        """The relays at which we have a reservation changed."""
