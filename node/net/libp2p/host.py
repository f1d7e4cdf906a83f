"""A libp2p host: listens, dials, limits connections, and carries frames on three lanes. See `starling.node.net.api`.

Identities, peer ids, multistream-select and the Noise handshake are py-libp2p's, the muxer and the switch our own, because its swarm ends
the node when a handler raises, never returns inbound slots, dials by itself, remembers failures for a minute and takes 0.2 s per
connection to close. Stock libp2p peers can connect.

    accept ── handshake (the oldest is dropped) ── connection limits ── Connection.run ── a task per stream ── inbox of the lane
    send ── newest connection, or one dial shared by all senders ── the lane's stream, opened once ── queue
    circuits ── `relay` for others, `relayed` for this node, and `punching` makes connections of both ends at once out of them

An error in a connection's task ends that connection only.
"""

import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import trio

from starling.gossip.errors import LocalProtocolError, OtherVersion, PeerUnreachable
from starling.gossip.limits import TokenBucket
from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node import versions
from starling.node.config.schema import LimitsSection
from starling.node.interfaces import Reporter
from starling.node.net.api import Connected, Disconnected, Inbound, Traffic, Way
from starling.node.net.inbox import IN_A_ROW, Inboxes
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.circuit import HOP, IDENTIFY, PUNCH, STOP, CircuitStream
from starling.node.net.libp2p.connection import Connection, ConnectionInfo, Stream, StreamBroken
from starling.node.net.libp2p.destinations import Destinations, is_met, is_name, kind_of, own_kinds
from starling.node.net.libp2p.dialler import Dialler
from starling.node.net.libp2p.guards import AcceptRate, Handshakes, is_full, make_room
from starling.node.net.libp2p.lanes import (
    LEAST_UNFINISHED_BYTES,
    TELL_VERSIONS,
    FrameTooLong,
    PartialFrames,
    accept,
    ask_versions,
    lane_ids,
    may_carry,
    open_lane,
    read_frames,
    takes_exchanges,
    tell_versions,
    write_frame,
)
from starling.node.net.libp2p.noise import Conversation, HandshakeFailed, Identity, recognise, secure
from starling.node.net.libp2p.peers import PeerState, PeerTable, dialable
from starling.node.net.libp2p.punching import Punching
from starling.node.net.libp2p.relay import Relay
from starling.node.net.libp2p.relay_slots import Mode
from starling.node.net.libp2p.relayed import Relayed
from starling.node.net.libp2p.sockets import share_port, tune
from starling.node.net.libp2p.switch import Where
from starling.node.net.libp2p.yamux import STRANGE_WINDOW, WINDOW
from starling.node.net.limits import Pacer, origin_of
from starling.node.versions import Range

HANDSHAKE_S = 10.0
DIAL_BACK_S = 4.0
MAX_BESIDE = 4
OTHER_VERSIONS_PER_S, OTHER_VERSIONS_AT_ONCE = 1 / 60, 8  # of peers that are told about; anybody can make a new id
INTERFACES_S = 3.0  # between looks at this machine's addresses, each a few tenths of a millisecond


class Libp2pNetwork(Inboxes):
    """Satisfies `starling.node.net.api.Network`. Made by `node.net.libp2p.opening`. `spoken`: versions of every lane."""

    def __init__(
        self, identity: Identity, announcing: Announcing, limits: LimitsSection, report: Reporter, pacers: tuple[Pacer, Pacer],
        relay: Mode = "off",
        spoken: Mapping[str, Range] = versions.LANES,
    ) -> None:  # fmt: skip
        super().__init__(identity.peer, (), limits.inbox_frames)
        self._announcing = announcing
        self._identity = identity
        self._limits = limits
        self._report = report
        self._up, self._down = pacers
        self._destinations = Destinations(frozenset())
        # apart from the thousands of peers remembered, as every new connection scans it
        self._open: dict[str, list[Connection]] = {}
        self._peers = PeerTable(limits.frames_per_s, self._open)
        self._dialler = Dialler(self._connect, self._register, self._run)
        self._handshakes: Handshakes[trio.CancelScope] = Handshakes()
        self._accept_rate = AcceptRate()
        self._longest: dict[Lane, int] = dict(MAX_FRAME_BYTES)
        self._unfinished = PartialFrames()
        self._spoken, self._lanes = spoken, lane_ids(spoken)
        self._other_versions = TokenBucket(OTHER_VERSIONS_PER_S, OTHER_VERSIONS_AT_ONCE)
        self._relay, self._relayed, self._punching = Relay(self, relay), Relayed(self), Punching(self)
        self._others: dict[str, Callable[[Stream, Conversation], Awaitable[None]]] = {
            TELL_VERSIONS: self._serve_versions,
            HOP: self._relay.serve_hop,
            STOP: self._relayed.serve_stop,
            PUNCH: self._punching.serve_punch,
            IDENTIFY: self._punching.serve_identify,
        }
        self._use_addresses()

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Per peer."""
        return self._peers.traffic

    @property
    def total_traffic(self) -> Traffic:
        """With all peers since the start, also those no longer remembered."""
        return self._peers.total_traffic

    @property
    def announced(self) -> tuple[str, ...]:
        """Of `addresses` those for every member to read: no private ones once a peer was met at a public one."""
        return tuple(map(str, self._announcing.told))

    @property
    def local(self) -> tuple[str, ...]:
        """Multiaddrs with /p2p/ID of this machine's interfaces, where we listen."""
        return tuple(map(str, addresses.reachable(self._announcing.bound, self.peer_id, self._announcing.hosts)))

    @property
    def port(self) -> int | None:
        """Where we listen, or are forwarded from; None if we do not listen."""
        return self._announcing.port

    @property
    def met_public(self) -> bool:
        """Whether a peer was met at a public address."""
        return self._announcing.met_public

    @property
    def callers(self) -> tuple[str, ...]:
        """Peers of which a connection is open that they opened."""
        return tuple(
            each.info.peer for each in self.connections()
            if each.info.inbound and not (each.closing or each.info.relay or each.info.punched)
        )  # fmt: skip

    @property
    def is_hidden(self) -> bool:
        """Others cannot dial us."""
        return self._announcing.hidden

    @property
    def relays(self) -> tuple[str, ...]:
        """Peers through which others reach us."""
        return self._relayed.relays

    @property
    def relayed(self) -> tuple[str, ...]:
        """Addresses, through relays, at which others reach us."""
        return tuple(map(str, self._announcing.relayed)) if self.is_hidden else ()

    @property
    def circuits(self) -> tuple[tuple[str, str], ...]:
        """Pairs of peers between which this node relays."""
        return tuple((it.source, it.target) for it in self._relay.slots.circuits)

    def way(self, peer: str) -> Way | None:
        """By what way we are connected to a peer; None: we are not."""
        connection = self._newest(peer)
        if connection is None:
            return None
        if not connection.info.relay:
            return "direct"
        return "relayed" if takes_exchanges(connection.info) else "control"

    def relay_of(self, peer: str) -> str:
        """The relay through which we are connected to a peer; "" for none."""
        connection = self._newest(peer)
        return "" if connection is None else connection.info.relay

    def found(self, *, hidden: bool, host: str) -> None:
        """Others cannot dial us, so only relays are announced; or they reach us at this host, "" for none that we did not know."""
        self._announcing.hidden = hidden
        if host != self._announcing.observed:
            self._announcing.observed = host
            self.look_at_interfaces()

    def leased(self, outside: tuple[str, int] | None) -> None:
        """The router leads this host and port to us, or does so no more."""
        with suppress(ValueError):  # it says something that is no address
            self._announcing.leased = None if outside is None else (addresses.canonical(outside[0]), outside[1])
            self.look_at_interfaces()

    async def dial_back(self, peer: str, port: int) -> tuple[str, bool]:
        """Dial the host of a peer's connection at a port and hang up. -> the host, "" without a connection; and whether it is that peer"""
        connection = self.direct(peer)
        if connection is None:
            return "", False
        host = connection.info.host
        with trio.move_on_after(DIAL_BACK_S), suppress(OSError):
            async with await trio.open_tcp_stream(host, port) as raw:
                return host, await recognise(raw, self._identity, peer)
        return host, False

    def origin(self, peer: str) -> str | None:
        """The public address prefix of a peer's newest direct connection; "" for a private address, None without one."""
        connection = self.direct(peer)
        return connection.info.origin if connection is not None else None

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """Remember where a peer can be dialled, by what others told; invalid addresses and those of others are ignored."""
        record = self._peer(peer)
        told = tuple(replace(each, rumored=True) for each in dialable(peer, addresses))
        where = record.answered  # no longer told to everybody, perhaps, and still right
        record.endpoints = told if where is None or any(_same(where, each) for each in told) else (*told, where)
        self._make_known(peer)

    def also_at(self, address: str) -> None:
        """A peer may be at this address of the local network too, which is dialled beside those that it announces."""
        for endpoint in dialable(None, [address]):
            record = self._peer(endpoint.peer)
            if endpoint not in record.beside:
                record.beside = (*record.beside, endpoint)[-MAX_BESIDE:]

    def receives(self, peer: str) -> bool:
        """Whether a frame of `peer` has come in part, and the rest is on its way."""
        return self._unfinished.of(peer)

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Set the longest frame of a lane; a longer one is refused when its length is read."""
        self._longest[lane] = min(frame_bytes, MAX_FRAME_BYTES[lane])
        self._unfinished.limit = max(2 * max(self._longest.values()), LEAST_UNFINISHED_BYTES)

    def cap(self, up_bytes_per_s: int, down_bytes_per_s: int) -> None:
        """Other caps on traffic from now on; 0 is none."""
        self._up.change(up_bytes_per_s)
        self._down.change(down_bytes_per_s)

    def answered(self, peer: str) -> str | None:
        """The multiaddr, with /p2p/ID, at which our last dial of a peer was answered; None if none was."""
        endpoint = self._peer(peer).answered
        return None if endpoint is None else str(replace(endpoint, peer=peer))

    def met(self, peer: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Those of these addresses of a peer at whose host we met it, and names."""
        met_at = self._peer(peer).met_at
        return tuple(known for known in addresses for each in dialable(peer, [known]) if is_met(each, met_at))

    async def dial(self, address: str, *, given: bool = True) -> str:
        """Connect to a multiaddr with /p2p/ID and return the peer id. Raises PeerUnreachable with the reason in one line.

        `given`: by the owner, so networks of this kind are ours; else an address at which we met the peer, or a name, a rumor again.
        """
        found = (replace(each, rumored=not given and is_name(each)) for each in dialable(None, [address]))
        endpoints = [each for each in found if each.peer]
        if not endpoints:
            raise PeerUnreachable(address, "not an address of the form /ip4/HOST/tcp/PORT/p2p/ID")
        peer = endpoints[0].peer
        while self._dialler.under_way(peer):
            await self._dialler.dial(peer)
        connection = await self._reach(peer, endpoints)
        if given and not connection.info.relay:
            self._destinations.own |= {kind_of(connection.info.block)}
        if not self._peer(peer).endpoints:
            self._peer(peer).endpoints = tuple(endpoints)
        return peer

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Queue one frame on the lane's stream, dialling and opening it if needed. Raises LocalProtocolError if it is too long,
        PeerUnreachable if no known address answers, the peer is refused or the connection broke.
        """
        if len(frame) > MAX_FRAME_BYTES[lane]:
            raise LocalProtocolError(f"{len(frame)} bytes exceed MAX_FRAME_BYTES[{lane!r}]")
        record = self._peer(peer)
        lock, record.at_once = record.locks[lane], record.at_once + 1
        if lock.locked() or record.at_once >= IN_A_ROW:
            record.at_once = 0
            await lock.acquire()  # lets other tasks run
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            lock.acquire_nowait()
        try:
            stream = await self._outgoing(peer, record, lane, len(frame))
            try:
                await write_frame(stream, frame)
            except StreamBroken:
                lost = stream.connection.closing
                reason = "connection lost while sending" if lost else "it did not take the frame, and reset the stream"
                raise PeerUnreachable(peer, reason) from None
        finally:
            lock.release()
        record.traffic.bytes_sent += len(frame)

    def refuse(self, peer: str, until: float) -> None:
        """Drop and refuse everything of `peer` until `until` on trio's clock."""
        self._peer(peer).refused_until = until
        for connection in self._open.get(peer, ()):
            connection.close()

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Accept, dial and serve connections; for `open_network`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dialler.serve)
            nursery.start_soon(self._watch_interfaces)
            nursery.start_soon(self._relayed.serve)
            nursery.start_soon(self._punching.serve)
            if listeners:
                nursery.start_soon(trio.serve_listeners, self._accept, listeners)

    async def drained(self) -> None:
        """Wait until all that was sent is handed to the operating system."""
        for connection in sorted(
            self.connections(), key=lambda each: not each.info.relay
        ):  # circuits are in the others
            await connection.drained()

    async def _watch_interfaces(self) -> None:
        """A laptop moves to another network: say so, and do not wait for connections that cannot live."""
        while True:
            await trio.sleep(INTERFACES_S)
            self.look_at_interfaces()

    def look_at_interfaces(self) -> None:
        """Find this node's addresses anew, and close connections from addresses that it no longer has."""
        if self._announcing.look(addresses.interfaces()):
            self._use_addresses()
            self._punching.pairs.moved()
            known = self.addresses
            self._report.event(
                "addresses_changed", f"this node's addresses are now {', '.join(known)}", addresses=known
            )
        for connection in self.connections():
            if connection.info.local and self._announcing.is_gone(connection.info.local):
                connection.close()

    def _use_addresses(self) -> None:
        announcing = self._announcing
        self.addresses = tuple(map(str, announcing.known))
        bound = addresses.reachable(announcing.bound, self.peer_id, announcing.hosts)
        self._destinations.own |= own_kinds(announcing.known, bound)

    async def _accept(self, raw: trio.SocketStream) -> None:
        try:
            where = _where(raw)
        except OSError:
            await trio.aclose_forcefully(raw)
            return
        await self.admit(raw, where)

    async def admit(self, raw: trio.SocketStream | CircuitStream, where: Where) -> None:
        """Run the handshake of an inbound connection, within its limits, and serve the connection until it ends."""
        now = trio.current_time()
        established = [each.info for each in self.connections()]
        if not self._accept_rate.allowed(where.block, now) or is_full(established, where.block, self._limits, now):
            await trio.aclose_forcefully(raw)
            return
        scope = trio.CancelScope(deadline=now + HANDSHAKE_S)
        victim = self._handshakes.begin(where.block, scope)
        if victim is not None:
            victim.cancel()
        connection = None
        try:
            with self._contained(where.host or where.block), scope:
                connection = await self.secured(raw, where, None)
        except HandshakeFailed:
            return
        finally:
            self._handshakes.end(scope)
            if connection is None:
                await trio.aclose_forcefully(raw)
        if connection is not None:
            await self.welcome(connection)

    async def welcome(self, connection: Connection) -> None:
        """Serve an inbound connection that is secured, if its limits allow it."""
        info = connection.info
        present = sorted(self.connections(), key=lambda each: each.info.since)
        leaving = make_room([each.info for each in present], info, self._limits, trio.current_time())
        if leaving is None or self._peers.refused(info.peer, trio.current_time()) or info.peer == self.peer_id:
            await connection.abandon()
            return
        for each in present:
            if each.info in leaving:
                each.close()
        self._register(connection)
        await self._run(connection)

    async def secured(
        self, raw: trio.SocketStream | CircuitStream, where: Where, expected: str | None, *, inbound: bool | None = None
    ) -> Connection:
        """Run the handshake, as its initiator if a peer is expected; `inbound`: who counts as having dialled. Raises HandshakeFailed."""
        if isinstance(raw, trio.SocketStream):
            tune(raw.socket)
        peer, channel, received = await secure(raw, self._identity, expected)
        now = trio.current_time()
        info = ConnectionInfo(
            peer=peer, inbound=expected is None if inbound is None else inbound, since=now, useful_at=now,
            **{name: getattr(where, name) for name in Where.__slots__},
        )  # fmt: skip
        up, down = (
            (Pacer(0), Pacer(0)) if where.relay else (self._up, self._down)
        )  # paced in the connection to the relay
        return Connection(info, raw, channel, received, up, down)

    def _register(self, connection: Connection) -> None:
        peer = connection.info.peer
        if connection.info.relay:
            self._peer(peer)  # is remembered from now on; where it is was not seen
        else:
            self._peer(peer).met_at = connection.info.block
            self._announcing.met_public |= bool(connection.info.origin)
        if peer not in self._open:
            self.announce(Connected(peer))
        self._open.setdefault(peer, []).append(connection)
        if not self._peer(peer).known.is_set():
            connection.session.most_window = STRANGE_WINDOW

    @contextmanager
    def _contained(self, peer: str) -> Iterator[None]:
        """A bug that one peer can trigger ends that peer's connection, not the node."""
        try:
            yield
        except HandshakeFailed:
            raise
        except Exception as error:  # noqa: BLE001
            self._report.event(
                "connection_failed", f"closed a connection with {peer} after an internal error: {error!r}",
                level="error", peer=peer, traceback="".join(traceback.format_exception(error)),
            )  # fmt: skip

    async def _run(self, connection: Connection) -> None:
        peer = connection.info.peer
        try:
            with self._contained(peer):
                await connection.run(self._serve_stream)
        finally:
            connections = self._open[peer]
            connections.remove(connection)
            if not connections:
                del self._open[peer]
                self._peer(peer).other_version.clear()  # it may come back upgraded
                self.announce(Disconnected(peer))
            if not connection.info.relay and self.direct(peer) is None:
                self._relay.lost(peer)
                self._relayed.lost(peer)
            self._peer(peer).connection_closed(connection.info, trio.current_time())
        if connection.violation is not None:
            self._report.fault(peer, connection.violation)

    async def _serve_stream(self, stream: Stream) -> None:
        connection, accepted = stream.connection, await accept(stream, (*self._lanes, *self._others))
        if accepted is None:
            stream.reset()
            return
        protocol, conversation = accepted
        if protocol in self._others:
            try:
                await self._others[protocol](stream, conversation)
            except (HandshakeFailed, StreamBroken, trio.TooSlowError):
                pass
            finally:
                stream.reset()
            return
        lane, received = self._lanes[protocol], conversation.rest
        info, record = connection.info, self._peer(connection.info.peer)

        inbox = self._inboxes[lane]

        def deliver(frame: memoryview) -> bool:
            if inbox.full(info.peer):
                return False
            info.useful_at, record.rejected_dials = trio.current_time(), 0
            within = record.bucket.take(1, info.useful_at)
            dropped = inbox.put(Inbound(info.peer, lane, frame)) if within else (info.peer,)
            for peer in dropped:
                self._peer(peer).traffic.frames_dropped += 1
            if info.peer not in dropped:
                record.traffic.bytes_received += len(frame)
            elif not record.dropped.take(1, info.useful_at):
                connection.violation = "frame_flood"
                connection.close()
                stream.reset()
            return True

        try:
            await read_frames(
                stream, lane, received, self._unfinished, deliver,
                room=partial(inbox.room, info.peer), known=record.known, longest=self._longest,
            )  # fmt: skip
        except FrameTooLong:
            connection.violation = "frame_too_long"
            connection.close()
        finally:
            stream.reset()

    async def _outgoing(self, peer: str, record: PeerState, lane: Lane, size: int) -> Stream:
        for last in (False, True):
            connection = await self._reach(peer, (*record.endpoints, *record.beside))
            if not may_carry(connection.info, lane, size):
                raise PeerUnreachable(peer, f"its relay does not carry {size} bytes of the {lane} lane")
            stream = record.outgoing.pop(lane, None)
            if stream is not None and stream.connection is not connection:
                stream.finish()  # a newer connection is likelier to be alive
                stream = None
            try:
                if other := record.other_version.get(lane):
                    raise OtherVersion(peer, other)
                if stream is None or stream.broken:
                    stream = await open_lane(connection, lane, self._spoken)
            except HandshakeFailed as error:
                raise await self._no_lane(connection, lane, str(error)) from None
            except StreamBroken:
                if last:
                    raise PeerUnreachable(peer, "connection lost") from None
            else:
                record.outgoing[lane] = stream
                return stream
        raise AssertionError("unreachable")

    async def _serve_versions(self, stream: Stream, conversation: Conversation) -> None:
        told = await tell_versions(stream, conversation, self._spoken)
        if told is not None and (other := versions.mismatch(self._spoken, told)):
            self._tell_other_version(stream.connection.info.peer, other)
        await stream.hang_up()

    async def _no_lane(self, connection: Connection, lane: Lane, why: str) -> PeerUnreachable:
        """Find out why a peer did not take a lane's stream: mostly one of us is to be upgraded, and both learn which."""
        peer = connection.info.peer
        with suppress(StreamBroken):
            told = await ask_versions(connection, self._spoken)
            other = versions.mismatch({lane: self._spoken[lane]}, told)
            if other and not connection.closing:
                self._tell_other_version(peer, other)
                self._peer(peer).other_version[lane] = other
                return OtherVersion(peer, other)
        return PeerUnreachable(peer, why)

    def _tell_other_version(self, peer: str, why: str) -> None:
        if not self._peer(peer).other_version and self._other_versions.take(1, trio.current_time()):
            self._report.event("other_version", f"{peer} {why}", level="warning", peer=peer)

    async def _reach(self, peer: str, endpoints: Sequence[Endpoint]) -> Connection:
        if self._peers.refused(peer, trio.current_time()):
            raise PeerUnreachable(peer, "refused")
        connection = self._newest(peer)
        if connection is not None:
            return connection
        rumored = False
        if not self._dialler.under_way(peer):
            if peer == self.peer_id:
                raise PeerUnreachable(peer, "that is this node itself")
            if not endpoints:
                raise PeerUnreachable(peer, "no known address")
            now, record = trio.current_time(), self._peer(peer)
            if not record.may_dial(now):
                raise PeerUnreachable(peer, "it closed the last connections at once")
            relayed = [each for each in endpoints if each.relay not in {"", self.peer_id}]
            endpoints = self._destinations.choose([each for each in endpoints if not each.relay], record.met_at, now)
            rumored = not record.met_at and all(each.rumored for each in endpoints)
            if record.may_go_through_relay(now):
                endpoints = [*endpoints, *relayed]
            if not endpoints:
                raise PeerUnreachable(peer, "none of its addresses may be dialled, or not again so soon")
        reason = await self._dialler.dial(peer, endpoints, rumored=rumored)
        connection = self._newest(peer)
        if connection is None:
            self._peer(peer).answered = None
            raise PeerUnreachable(peer, reason or "connection closed at once")
        return connection

    async def _connect(self, peer: str, endpoint: Endpoint) -> Connection:
        self._make_known(peer)
        if endpoint.relay:
            return await self._connect_through_relay(peer, endpoint)
        resolved = await self._resolved(peer, endpoint)
        raw = await trio.open_tcp_stream(resolved.host, resolved.port)
        connection = None
        try:
            share_port(raw.socket)
            connection = await self.secured(raw, _where(raw), peer)
        finally:
            if connection is None:
                await trio.aclose_forcefully(raw)
        self._peer(peer).answered = endpoint
        for each in (endpoint, resolved):
            self._destinations.answered(each)
        return connection

    async def _connect_through_relay(self, peer: str, endpoint: Endpoint) -> Connection:
        record = self._peer(peer)
        try:
            connection = await self._relayed.connect(peer, endpoint)
        except (OSError, HandshakeFailed):
            record.went_through_relay(reached=False, now=trio.current_time())
            raise
        record.went_through_relay(reached=True, now=trio.current_time())
        return connection

    async def reach_directly(self, peer: str, endpoints: Sequence[Endpoint]) -> Connection:
        """A connection through no relay, dialling if needed. Raises OSError with the reason."""
        connection = self.direct(peer)
        if connection is not None:
            return connection
        record, now = self._peer(peer), trio.current_time()
        if peer == self.peer_id or self._peers.refused(peer, now) or self._dialler.waits_for_relay(peer):
            raise OSError("that peer may not be dialled now")
        if not self._dialler.under_way(peer):
            endpoints = self._destinations.choose(endpoints, record.met_at, now)
            if not endpoints:
                raise OSError("none of its addresses may be dialled, or not again so soon")
        rumored = not record.met_at and all(each.rumored for each in endpoints)
        reason = await self._dialler.dial(peer, endpoints, rumored=rumored)
        connection = self.direct(peer)
        if connection is None:
            raise OSError(reason or "connection closed at once")
        return connection

    def endpoints(self, peer: str) -> tuple[Endpoint, ...]:
        """Where a peer can be dialled; first where it answered."""
        record = self._peer(peer)
        answered = () if record.answered is None else (replace(record.answered, rumored=False),)
        told = (*record.endpoints, *record.beside)
        others = (each for each in told if not any(_same(each, first) for first in answered))
        return (*answered, *others)

    def is_known(self, peer: str) -> bool:
        """Whether it is a member, as far as the network is told, or was dialled."""
        return self._peer(peer).known.is_set()

    def may_knock(self, endpoint: Endpoint) -> bool:
        """Count a dial of an address that a peer told. -> whether it may be made"""
        return self._destinations.take(endpoint, "", trio.current_time())

    def relays_changed(self) -> None:
        """The relays at which we have a reservation changed."""
        self._announcing.relayed = self._relayed.endpoints()
        if self.is_hidden:
            through = self.relays
            text = (
                f"reached through a relay of {' and of '.join(through)}"
                if through
                else "no member relays for this node any more"
            )
            self._report.event("relays", text, relays=through)

    async def _resolved(self, peer: str, endpoint: Endpoint) -> Endpoint:
        """Where to connect to; of a name that others told, an address of it that may be dialled. Raises OSError: there is none."""
        if not (endpoint.rumored and is_name(endpoint)):
            return endpoint
        found = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=trio.socket.SOCK_STREAM)
        hosts = dict.fromkeys(str(address[0]) for *_, address in found)
        met_at, now = self._peer(peer).met_at, trio.current_time()
        for host in hosts:
            each = replace(endpoint, protocol="ip6" if ":" in host else "ip4", host=host)
            if self._destinations.choose([each], met_at, now):
                return each
        raise OSError("resolves to no address that may be dialled, or not again so soon")

    def _make_known(self, peer: str) -> None:
        """Take long frames of a peer, through windows of full size."""
        self._peer(peer).known.set()
        for connection in self._open.get(peer, ()):
            connection.session.most_window = WINDOW

    def connections(self) -> list[Connection]:
        """All that are open."""
        return [each for connections in self._open.values() for each in connections]

    def direct(self, peer: str) -> Connection | None:
        """The newest connection to a peer that goes through no relay."""
        alive = [each for each in self._open.get(peer, ()) if not (each.closing or each.info.relay)]
        return alive[-1] if alive else None

    def _newest(self, peer: str) -> Connection | None:
        alive = [each for each in self._open.get(peer, ()) if not each.closing]
        return self.direct(peer) or (alive[-1] if alive else None)

    def _peer(self, name: str) -> PeerState:
        return self._peers.get(name, trio.current_time())


def _same(one: Endpoint, other: Endpoint) -> bool:
    return (one.protocol, one.host, one.port, one.relay) == (other.protocol, other.host, other.port, other.relay)


def _where(raw: trio.SocketStream) -> Where:
    """Raises OSError: it is closed."""
    (host, port), (local, local_port) = raw.socket.getpeername()[:2], raw.socket.getsockname()[:2]
    return Where(addresses.block(host), origin_of(host), addresses.plain(host), port, local, local_port)
