"""One peer's access to a network in memory (`starling.node.net.memory`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

import trio

from starling.gossip.errors import LocalProtocolError, PeerUnreachable
from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Inbound, Traffic, Way
from starling.node.net.inbox import Inboxes
from starling.node.net.limits import Pacer

if TYPE_CHECKING:
    from starling.node.net.memory import MemoryHub


def address_of(peer: str) -> str:
    """Return the one address of a peer on a memory network."""
    return f"/memory/{peer}/p2p/{peer}"


class MemoryNetwork(Inboxes):
    """One peer's access to a hub; satisfies `starling.node.net.api.Network`. Made by `MemoryHub.join`."""

    def __init__(self, hub: MemoryHub, peer_id: str, limits: LimitsSection) -> None:
        super().__init__(peer_id, limits.inbox_frames)
        self.addresses = (address_of(peer_id),)
        self.up, self.down = Pacer(0), Pacer(0)
        self._hub = hub
        self.dialled: set[str] = set()  # peers that answered this node's dial; set by the hub
        self._known: set[str] = set()
        self._refused: dict[str, float] = {}
        self._traffic: dict[str, Traffic] = {}

    @property
    def announced(self) -> tuple[str, ...]:
        return self.addresses

    port, met_public, callers, relays, relayed, circuits, local = None, False, (), (), (), (), ()
    """There are no ports, and everybody can be dialled."""

    def way(self, peer: str) -> Way | None:
        """Return how a peer is connected; never through a relay."""
        return "direct" if self._hub.connected(self.peer_id, peer) else None

    def leased(self, outside: tuple[str, int] | None) -> None: ...

    def ration(self, members: Callable[[], Collection[str]]) -> None: ...

    def also_at(self, address: str) -> None: ...

    def relay_of(self, _peer: str) -> str:
        return ""

    def found(self, *, hidden: bool, host: str) -> None: ...

    async def dial_back(self, peer: str, port: int) -> tuple[str, bool]:
        """Fail: there are no ports."""
        await trio.lowlevel.checkpoint()
        return "", False

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        return MappingProxyType(self._traffic)

    @property
    def total_traffic(self) -> Traffic:
        return sum(self._traffic.values(), Traffic())

    def origin(self, peer: str) -> str | None:
        """Return the address prefix that the hub gives a connected peer."""
        return self._hub.origins.get(peer, "") if self._hub.connected(self.peer_id, peer) else None

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """Note that a peer can be dialled if one of the addresses is its memory address."""
        if address_of(peer) in addresses:
            self._known.add(peer)
        else:
            self._known.discard(peer)

    def receives(self, _peer: str) -> bool:
        """Return False: frames arrive whole."""
        return False

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Do nothing: frames are not assembled here."""

    def cap(self, up_bytes_per_s: int, down_bytes_per_s: int) -> None:
        """Limit sending and receiving to so many bytes a second from now on; 0 is no cap."""
        self.up.change(up_bytes_per_s)
        self.down.change(down_bytes_per_s)

    def answered(self, peer: str) -> str | None:
        """Return the peer's memory address, if this node dialled it."""
        return address_of(peer) if peer in self.dialled else None

    def met(self, peer: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return the peer's memory address, if this node met it."""
        return tuple({address_of(peer)} & set(addresses)) if peer in self._traffic else ()

    async def dial(self, address: str, *, given: bool = True) -> str:
        """Connect to a memory address -> the peer id; PeerUnreachable as `MemoryHub.connection`."""
        peer = address.rpartition("/")[2]
        if address != address_of(peer):
            raise PeerUnreachable(address, "not a memory address with /p2p/ID")
        await self._hub.connection(self.peer_id, peer)
        self._known.add(peer)
        return peer

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Send a frame; LocalProtocolError if it is too long, PeerUnreachable if there is no connection and none can be made."""
        if len(frame) > MAX_FRAME_BYTES[lane]:
            raise LocalProtocolError(f"{len(frame)} bytes exceed MAX_FRAME_BYTES[{lane!r}]")
        await trio.lowlevel.checkpoint()
        if peer not in self._known and not self._hub.connected(self.peer_id, peer):
            raise PeerUnreachable(peer, "no known address")
        await self._hub.carry(self.peer_id, peer, lane, frame)
        self._traffic_of(peer).bytes_sent += len(frame)

    def refuse(self, peer: str, until: float) -> None:
        """Close and reject connections of a peer until `until` on trio's clock."""
        self._refused[peer] = until
        self._hub.sever(self.peer_id, peer)

    def refuses(self, peer: str) -> bool:
        """Tell if the peer is refused now."""
        return trio.current_time() < self._refused.get(peer, -inf)

    def arrive(self, inbound: Inbound) -> None:
        """Receive a frame; for the hub."""
        dropped = self._inboxes[inbound.lane].put(inbound)
        for peer in dropped:
            self._traffic_of(peer).frames_dropped += 1
        if inbound.peer not in dropped:
            self._traffic_of(inbound.peer).bytes_received += len(inbound.frame)

    def stop(self) -> None:
        """End every channel; for the hub."""
        self.close()

    def _traffic_of(self, peer: str) -> Traffic:
        return self._traffic.setdefault(peer, Traffic())
