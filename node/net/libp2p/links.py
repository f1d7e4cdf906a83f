"""The open connections of a host: secured, admitted within limits, registered, served and ended.

    accept ── handshake (the oldest is dropped) ── connection limits ── Connection.run ── a task per stream

An error in a connection's task ends that connection only.
"""

import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import trio

from starling.node.config.schema import LimitsSection
from starling.node.interfaces import Reporter
from starling.node.net.api import Connected, Disconnected
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.circuit import CircuitStream
from starling.node.net.libp2p.connection import Connection, ConnectionInfo
from starling.node.net.libp2p.guards import AcceptRate, Handshakes, is_full, make_room
from starling.node.net.libp2p.location import Location, location_of
from starling.node.net.libp2p.negotiation import HandshakeFailed
from starling.node.net.libp2p.noise import Identity, recognise, secure
from starling.node.net.libp2p.peers import PeerState, PeerTable
from starling.node.net.libp2p.relay_slots import Mode
from starling.node.net.libp2p.sockets import has_ended, tune
from starling.node.net.libp2p.streams import Stream
from starling.node.net.libp2p.turns import Ration
from starling.node.net.libp2p.yamux import STRANGE_WINDOW, WINDOW
from starling.node.net.limits import Pacer
from starling.node.versions import Range

HANDSHAKE_S = 10.0


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of a host's owner. `relay`: what it carries for members that others cannot dial. `spoken`: versions of every lane."""

    limits: LimitsSection
    up: Pacer
    down: Pacer
    relay: Mode
    spoken: Mapping[str, Range]


class Links:
    """Connections of one host, and the stored state of each peer.

    Attributes:
        peers: state of each peer remembered.
        serve_stream: serves a stream that a peer opened; set before the first connection.
        lost: called with a peer whose last direct connection is gone.
    """

    def __init__(
        self,
        identity: Identity,
        settings: HostSettings,
        announcing: Announcing,
        announce: Callable[[Connected | Disconnected], None],
        report: Reporter,
    ) -> None:
        self._identity, self._settings, self._announcing = identity, settings, announcing
        self._announce, self._report = announce, report
        # stored apart from the thousands of known peers, as every new connection scans it
        self._open: dict[str, list[Connection]] = {}
        self.peers = PeerTable(settings.limits.frames_per_s, self._open)
        self.serve_stream: Callable[[Stream], Awaitable[None]] = _refused
        self.lost: tuple[Callable[[str], None], ...] = ()
        self._handshakes: Handshakes[trio.CancelScope] = Handshakes()
        self._accept_rate = AcceptRate()
        self.ration = Ration(self._expects)

    @property
    def peer_id(self) -> str:
        return self._identity.peer

    @property
    def callers(self) -> tuple[str, ...]:
        """Return peers that have opened a connection to us."""
        return tuple(
            each.info.peer
            for each in self.connections()
            if each.info.inbound and not (each.closing or each.info.relay or each.info.punched)
        )

    def connections(self) -> list[Connection]:
        """Return all open connections."""
        return [each for connections in self._open.values() for each in connections]

    def to(self, peer: str) -> tuple[Connection, ...]:
        """Return the connections to a peer, the oldest first."""
        return tuple(self._open.get(peer, ()))

    def direct(self, peer: str) -> Connection | None:
        """Return the newest connection to a peer that goes through no relay."""
        alive = [each for each in self._open.get(peer, ()) if not (each.closing or each.info.relay)]
        return alive[-1] if alive else None

    def newest(self, peer: str) -> Connection | None:
        """Return the connection to a peer to send on: the newest direct one, else the newest."""
        alive = [each for each in self._open.get(peer, ()) if not each.closing]
        return self.direct(peer) or (alive[-1] if alive else None)

    def origin(self, peer: str) -> str | None:
        """Return the public address prefix of a peer's newest direct connection; "" for a private address, None without one."""
        connection = self.direct(peer)
        return connection.info.origin if connection is not None else None

    def peer(self, name: str) -> PeerState:
        """Return a peer's state."""
        return self.peers.get(name, trio.current_time())

    def is_known(self, peer: str) -> bool:
        """Return whether the peer is a member, as far as the network knows, or was dialled."""
        return self.peer(peer).known.is_set()

    def make_known(self, peer: str) -> None:
        """Accept long frames of a peer, and full-size windows."""
        self.peer(peer).known.set()
        for connection in self._open.get(peer, ()):
            connection.session.most_window = WINDOW

    def refuse(self, peer: str, until: float) -> None:
        """Drop and refuse everything of `peer` until `until` on trio's clock."""
        self.peer(peer).refused_until = until
        for connection in self._open.get(peer, ()):
            connection.close()

    def _expects(self, members: Collection[str], where: Location) -> bool:
        """Return whether one of these members is not connected, and was met or announces itself at this location."""
        return any(peer not in self._open and self.peers.is_at(peer, where.block, where.host) for peer in members)

    def close_gone(self) -> None:
        """Close connections from addresses that this machine no longer has."""
        for connection in self.connections():
            if connection.info.local and self._announcing.is_gone(connection.info.local):
                connection.close()

    async def drained(self) -> None:
        """Wait until all that was sent is handed to the operating system."""
        circuits_first = sorted(self.connections(), key=lambda each: not each.info.relay)  # circuits run inside the other connections
        for connection in circuits_first:
            await connection.drained()

    async def accept(self, raw: trio.SocketStream) -> None:
        """Serve an inbound connection."""
        try:
            where = location_of(raw)
        except OSError:
            await trio.aclose_forcefully(raw)
            return
        await self.admit(raw, where)

    async def admit(self, raw: trio.SocketStream | CircuitStream, where: Location) -> None:
        """Run the handshake of an inbound connection, within its limits, and serve the connection until it ends."""
        now, limits = trio.current_time(), self._settings.limits
        established = [each.info for each in self.connections()]
        if not self._accept_rate.allowed(where.block, now) or is_full(established, where.block, limits, now):
            await trio.aclose_forcefully(raw)
            return
        connection = None
        try:
            with self._contained(where.host or where.block):
                connection = await self.ration.admitted(where, partial(has_ended, raw), partial(self._secured_in_time, raw, where))
        except HandshakeFailed:
            return
        finally:
            if connection is None:
                await trio.aclose_forcefully(raw)
        if connection is not None:
            await self.welcome(connection)

    async def _secured_in_time(self, raw: trio.SocketStream | CircuitStream, where: Location) -> Connection | None:
        """Run the handshake of an inbound connection; None: it took too long, or others need its place. Raises HandshakeFailed."""
        scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_S)
        victim = self._handshakes.begin(where.block, scope)
        if victim is not None:
            victim.cancel()
        connection = None
        try:
            with scope:
                connection = await self.secured(raw, where, None)
        finally:
            self._handshakes.end(scope)
        return connection

    async def welcome(self, connection: Connection) -> None:
        """Serve an inbound connection that is secured, if its limits allow it."""
        info, now = connection.info, trio.current_time()
        present = sorted(self.connections(), key=lambda each: each.info.since)
        leaving = make_room([each.info for each in present], info, self._settings.limits, now)
        if leaving is None or self.peers.refused(info.peer, now) or info.peer == self.peer_id:
            await connection.abandon()
            return
        for each in present:
            if each.info in leaving:
                each.close()
        self.register(connection)
        await self.run(connection)

    async def secured(
        self, raw: trio.SocketStream | CircuitStream, where: Location, expected: str | None, *, inbound: bool | None = None
    ) -> Connection:
        """Run the handshake, as its initiator if a peer is expected; `inbound`: which end counts as the dialler. Raises HandshakeFailed."""
        if isinstance(raw, trio.SocketStream):
            tune(raw.socket)
        peer, channel, received = await secure(raw, self._identity, expected)
        now = trio.current_time()
        info = ConnectionInfo(
            peer=peer,
            inbound=expected is None if inbound is None else inbound,
            since=now,
            useful_at=now,
            **{name: getattr(where, name) for name in Location.__slots__},
        )
        # a circuit is already paced in the connection to the relay
        up, down = (Pacer(0), Pacer(0)) if where.relay else (self._settings.up, self._settings.down)
        return Connection(info, raw, channel, received, up, down)

    async def recognises(self, raw: trio.SocketStream, peer: str) -> bool:
        """Return whether that peer answers on a connection, which cannot be used afterwards."""
        return await recognise(raw, self._identity, peer)

    def register(self, connection: Connection) -> None:
        """Add a connection that is about to run."""
        info = connection.info
        self.peer(info.peer).dialled(reached=True, now=info.since)
        if not info.relay:
            self.peer(info.peer).met_at = info.block
            self._announcing.met_public |= bool(info.origin)
        if info.peer not in self._open:
            self._announce(Connected(info.peer))
        self._open.setdefault(info.peer, []).append(connection)
        if not self.is_known(info.peer):
            connection.session.most_window = STRANGE_WINDOW

    async def run(self, connection: Connection) -> None:
        """Serve a registered connection until it ends; does not raise."""
        peer = connection.info.peer
        try:
            with self._contained(peer):
                await connection.run(self.serve_stream)
        finally:
            self._remove(connection)
        if connection.violation is not None:
            self._report.fault(peer, connection.violation)

    def _remove(self, connection: Connection) -> None:
        peer = connection.info.peer
        connections = self._open[peer]
        connections.remove(connection)
        if not connections:
            del self._open[peer]
            self.peer(peer).other_version.clear()  # the peer may return upgraded
            self._announce(Disconnected(peer))
        if not connection.info.relay and self.direct(peer) is None:
            for lost in self.lost:
                lost(peer)
        self.peer(peer).connection_closed(connection.info, trio.current_time())

    @contextmanager
    def _contained(self, peer: str) -> Iterator[None]:
        """Close one peer's connection on any error: a bug that a peer can trigger must not end the node."""
        try:
            yield
        except HandshakeFailed:
            raise
        except Exception as error:  # noqa: BLE001
            self._report.event(
                "connection_failed",
                f"closed a connection with {peer} after an internal error: {error!r}",
                level="error",
                peer=peer,
                traceback="".join(traceback.format_exception(error)),
            )


async def _refused(stream: Stream) -> None:
    stream.reset()
