"""Find and dial peers' endpoints: reported by others, given by the owner, or where a peer answered."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from starling.gossip.errors import PeerUnreachable
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.destinations import Destinations, Kind, is_met, is_name, kind_of
from starling.node.net.libp2p.dialler import Dialler
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.location import location_of
from starling.node.net.libp2p.negotiation import HandshakeFailed
from starling.node.net.libp2p.peers import PeerState, dialable
from starling.node.net.libp2p.sockets import share_port

DIAL_BACK_S = 4.0
MAX_LAN_ADDRESSES = 4
"""Addresses of a peer on the local network that are dialled with those that it announces."""


class PeerDialler:
    """Dials the peers of one host: one dial of a peer at a time, shared by all that wait for it.

    Attributes:
        destinations: which addresses may be dialled.
        through_relay: connects to a peer at an endpoint that names a relay; set before the first dial.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self.destinations = Destinations(frozenset())
        self.through_relay: Callable[[str, Endpoint], Awaitable[Connection]] = _no_relays
        self._dialler = Dialler(self._connect, links.register, links.run)

    async def serve(self) -> None:
        """Dial, and run the connections made, until cancelled."""
        await self._dialler.serve()

    def belong(self, kinds: Iterable[Kind]) -> None:
        """Dial addresses of these kinds too, as this node is in such networks."""
        self.destinations.own |= frozenset(kinds)

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """Store where a peer can be dialled, as reported by others; invalid addresses and those of other peers are ignored."""
        record = self._links.peer(peer)
        told = tuple(replace(each, rumored=True) for each in dialable(peer, addresses))
        where = record.answered  # perhaps no longer announced, but still valid
        record.endpoints = told if where is None or any(_same(where, each) for each in told) else (*told, where)
        self._links.make_known(peer)

    def also_at(self, address: str) -> None:
        """Dial a peer at this address of the local network too, besides those that it announces."""
        for endpoint in dialable(None, [address]):
            record = self._links.peer(endpoint.peer)
            if endpoint not in record.lan_endpoints:
                record.lan_endpoints = (*record.lan_endpoints, endpoint)[-MAX_LAN_ADDRESSES:]

    def answered(self, peer: str) -> str | None:
        """Return the multiaddr, with /p2p/ID, at which our last dial of a peer was answered; None if none was."""
        endpoint = self._links.peer(peer).answered
        return None if endpoint is None else str(replace(endpoint, peer=peer))

    def met(self, peer: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return those of a peer's addresses at whose host we met it, and names."""
        met_at = self._links.peer(peer).met_at
        return tuple(known for known in addresses for each in dialable(peer, [known]) if is_met(each, met_at))

    def endpoints(self, peer: str) -> tuple[Endpoint, ...]:
        """Return where a peer can be dialled; first where it answered."""
        record = self._links.peer(peer)
        answered = () if record.answered is None else (replace(record.answered, rumored=False),)
        others = (each for each in record.everywhere if not any(_same(each, first) for first in answered))
        return (*answered, *others)

    def may_knock(self, endpoint: Endpoint) -> bool:
        """Count a dial of an address that a peer reported, and return whether it is allowed."""
        return self.destinations.take(endpoint, "", trio.current_time())

    async def dial(self, address: str, *, given: bool = True) -> str:
        """Connect to a multiaddr with /p2p/ID and return the peer id. Raises PeerUnreachable with the reason in one line.

        `given`: by the owner, so this node is in networks of this kind; else an address where it met the peer, or a name, still rumored.
        """
        valid = (replace(each, rumored=not given and is_name(each)) for each in dialable(None, [address]))
        endpoints = [each for each in valid if each.peer]
        if not endpoints:
            raise PeerUnreachable(address, "not an address of the form /ip4/HOST/tcp/PORT/p2p/ID")
        peer = endpoints[0].peer
        while self._dialler.under_way(peer):
            await self._dialler.dial(peer)
        connection = await self.connection(peer, endpoints, at_once=True)
        if given and not connection.info.relay:
            self.belong([kind_of(connection.info.block)])
        if not self._links.peer(peer).endpoints:
            self._links.peer(peer).endpoints = tuple(endpoints)
        return peer

    async def dial_back(self, peer: str, port: int) -> tuple[str, bool]:
        """Dial the host of a peer's connection at a port and hang up.

        Returns the host, "" without a connection, and whether it is that peer that answers.
        """
        connection = self._links.direct(peer)
        if connection is None:
            return "", False
        host = connection.info.host
        with trio.move_on_after(DIAL_BACK_S), suppress(OSError):
            async with await trio.open_tcp_stream(host, port) as raw:
                return host, await self._links.recognises(raw, peer)
        return host, False

    async def connection(self, peer: str, endpoints: Sequence[Endpoint], *, at_once: bool = False) -> Connection:
        """Return a connection to a peer, dialling it at these endpoints if needed. Raises PeerUnreachable with the reason.

        `at_once`: also shortly after a dial of a stranger that failed.
        """
        if self._links.peers.refused(peer, trio.current_time()):
            raise PeerUnreachable(peer, "refused")
        connection = self._links.newest(peer)
        if connection is not None:
            return connection
        rumored, record = False, self._links.peer(peer)
        if not self._dialler.under_way(peer):
            paused = not at_once and trio.current_time() < record.paused_until
            if paused and self._links.ration.is_stranger(peer):
                raise PeerUnreachable(peer, "it could not be reached a moment ago")
            endpoints, rumored = self._chosen(peer, endpoints)
        reason = await self._dialler.dial(peer, endpoints, rumored=rumored)
        connection = self._links.newest(peer)
        record.dialled(reached=connection is not None, now=trio.current_time())
        if connection is None:
            self._links.peer(peer).answered = None
            raise PeerUnreachable(peer, reason or "connection closed at once")
        return connection

    async def direct_connection(self, peer: str, endpoints: Sequence[Endpoint]) -> Connection:
        """Return a connection without a relay, dialling if needed. Raises OSError with the reason."""
        connection = self._links.direct(peer)
        if connection is not None:
            return connection
        record, now = self._links.peer(peer), trio.current_time()
        is_own = peer == self._links.peer_id
        if is_own or self._links.peers.refused(peer, now) or self._dialler.waits_for_relay(peer):
            raise OSError("that peer may not be dialled now")
        if not self._dialler.under_way(peer):
            endpoints = self.destinations.choose(endpoints, record.met_at, now)
            if not endpoints:
                raise OSError("none of its addresses may be dialled, or not again so soon")
        reason = await self._dialler.dial(peer, endpoints, rumored=_rumored(record, endpoints))
        connection = self._links.direct(peer)
        if connection is None:
            raise OSError(reason or "connection closed at once")
        return connection

    def _chosen(self, peer: str, endpoints: Sequence[Endpoint]) -> tuple[Sequence[Endpoint], bool]:
        """Return those endpoints that may be dialled now, and whether all are rumors. Raises PeerUnreachable: there is none."""
        own = self._links.peer_id
        if peer == own:
            raise PeerUnreachable(peer, "that is this node itself")
        if not endpoints:
            raise PeerUnreachable(peer, "no known address")
        now, record = trio.current_time(), self._links.peer(peer)
        if not record.may_dial(now):
            raise PeerUnreachable(peer, "it closed the last connections at once")
        direct = self.destinations.choose([each for each in endpoints if not each.relay], record.met_at, now)
        through_relay = record.may_go_through_relay(now)
        relayed = [each for each in endpoints if each.relay not in {"", own}] if through_relay else []
        if not direct and not relayed:
            raise PeerUnreachable(peer, "none of its addresses may be dialled, or not again so soon")
        return [*direct, *relayed], _rumored(record, direct)

    async def _connect(self, peer: str, endpoint: Endpoint) -> Connection:
        self._links.make_known(peer)
        if endpoint.relay:
            return await self._connect_through_relay(peer, endpoint)
        resolved = await self._resolved(peer, endpoint)
        raw = await trio.open_tcp_stream(resolved.host, resolved.port)
        connection = None
        try:
            share_port(raw.socket)
            connection = await self._links.secured(raw, location_of(raw), peer)
        finally:
            if connection is None:
                await trio.aclose_forcefully(raw)
        self._links.peer(peer).answered = endpoint
        for each in (endpoint, resolved):
            self.destinations.answered(each)
        return connection

    async def _connect_through_relay(self, peer: str, endpoint: Endpoint) -> Connection:
        record = self._links.peer(peer)
        try:
            connection = await self.through_relay(peer, endpoint)
        except (OSError, HandshakeFailed):
            record.went_through_relay(reached=False, now=trio.current_time())
            raise
        record.went_through_relay(reached=True, now=trio.current_time())
        return connection

    async def _resolved(self, peer: str, endpoint: Endpoint) -> Endpoint:
        """Return where to connect to; for a name reported by others, one of its addresses that may be dialled. Raises OSError: none."""
        if not (endpoint.rumored and is_name(endpoint)):
            return endpoint
        answers = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=trio.socket.SOCK_STREAM)
        hosts = dict.fromkeys(str(address[0]) for *_, address in answers)
        met_at, now = self._links.peer(peer).met_at, trio.current_time()
        for host in hosts:
            each = replace(endpoint, protocol="ip6" if ":" in host else "ip4", host=host)
            if self.destinations.choose([each], met_at, now):
                return each
        raise OSError("resolves to no address that may be dialled, or not again so soon")


def _rumored(record: PeerState, endpoints: Sequence[Endpoint]) -> bool:
    return not record.met_at and all(each.rumored for each in endpoints)


def _same(one: Endpoint, other: Endpoint) -> bool:
    return (one.protocol, one.host, one.port, one.relay) == (other.protocol, other.host, other.port, other.relay)


async def _no_relays(_peer: str, _endpoint: Endpoint) -> Connection:
    raise OSError("this node uses no relays")
