"""Replace a connection through a relay by a direct one: both ends connect at the same moment. `punch` is the protocol.

DCUtR of libp2p. Each end asks the relay, by libp2p's identify, at which address and port it sees this end, and connects from the port of
its connection to the relay, so that its NAT shows the same address and port to the other end.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

import trio

from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.circuit import PUNCH, HolePunch, endpoints_of, framed, packed, read_message
from starling.node.net.libp2p.connection import Connection, ConnectionInfo
from starling.node.net.libp2p.identify import Locals, seen_at
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.location import Location
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate
from starling.node.net.libp2p.peer_dialler import PeerDialler
from starling.node.net.libp2p.punch import MAX_ADDRESSES, Command, ConnectTo, Pairs, Punch, SayConnect, SaySync
from starling.node.net.libp2p.sockets import share_port
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.net.limits import origin_of

ANSWER_S = 10.0  # seconds for the other end's message, or the relay's answer
CONNECT_S, HANDSHAKE_S = 5.0, 10.0
FIRST_S = 3.0  # seconds for IPv6, where both ends can try IPv4 as well
AGAIN_S = 0.25  # seconds after a connection that was refused at once
LINGER_S = 5.0  # seconds that a relayed connection is kept after a direct one has begun
POLL_S = 1.0
MAX_AT_ONCE = 4


class Punching:
    """Hole punching for one host."""

    def __init__(self, links: Links, dialler: PeerDialler) -> None:
        self._links, self._dialler = links, dialler
        self.pairs = Pairs()
        self._opening: dict[str, trio.CancelScope] = {}
        self._made, self._to_serve = trio.open_memory_channel[Connection](MAX_AT_ONCE)

    async def serve(self) -> None:
        """Attempt hole punching, and serve the connections made, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._adopt)
            while True:
                self._replace_relayed()
                for connection in self._to_open():
                    nursery.start_soon(self._open, connection)
                await trio.sleep(POLL_S)

    async def serve_punch(self, stream: Stream, conversation: Conversation) -> None:
        """Answer the other end of a relayed connection, which wants a direct one. Raises HandshakeFailed, StreamBroken."""
        info = stream.connection.info
        if not info.relay or self._links.direct(info.peer) is not None:
            raise HandshakeFailed("there is a direct connection")
        if info.peer in self._opening:  # both began: the one with the smaller id continues
            if self._links.peer_id < info.peer:
                raise HandshakeFailed("this end has begun as well")
            self._opening[info.peer].cancel()
        with trio.fail_after(ANSWER_S):
            local, seen = await seen_at(self._links.direct(info.relay))
            core, commands = Punch(opens=False), []
            while core.state not in {"connecting", "over"}:
                message = await read_message(conversation, HolePunch)
                now = trio.current_time()
                commands = core.sync(now) if message.type == HolePunch.SYNC else core.connect(self._targets(message, info.peer), now)
                await self._say(stream, commands, seen)
        await self._connect(commands, info, local)

    def _to_open(self) -> list[Connection]:
        """Return relayed connections that others opened, whose peers are worth an attempt now."""
        now = trio.current_time()
        found = {}
        for each in self._links.connections():
            info = each.info
            if info.relay and info.inbound and not each.closing and self._links.is_known(info.peer):
                found[info.peer] = each
        return [
            each
            for peer, each in found.items()
            if peer not in self._opening and self._links.direct(peer) is None and self.pairs.may_try(peer, now)
        ][: MAX_AT_ONCE - len(self._opening)]

    def _replace_relayed(self) -> None:
        """Close the relayed connection once there is a direct one, after frames in flight have had time to arrive."""
        now = trio.current_time()
        for each in self._links.connections():
            direct = self._links.direct(each.info.peer) if each.info.relay else None
            if direct is not None and now - direct.info.since >= LINGER_S:
                each.close()

    async def _open(self, connection: Connection) -> None:
        """Dial the peer's own addresses, if it has any, else connect at the same moment as it does."""
        peer = connection.info.peer
        scope = self._opening[peer] = trio.CancelScope()
        try:
            with scope:
                direct = [each for each in self._dialler.endpoints(peer) if not each.relay]
                with suppress(OSError):
                    if direct:
                        await self._dialler.direct_connection(peer, direct)
                if self._links.direct(peer) is None and not connection.closing:
                    with suppress(HandshakeFailed, StreamBroken, trio.TooSlowError, OSError):
                        await self._attempt(connection)
        finally:
            del self._opening[peer]
        if self._links.direct(peer) is not None:
            self.pairs.met(peer)
        elif not scope.cancelled_caught:
            self.pairs.failed(peer, trio.current_time())

    async def _attempt(self, connection: Connection) -> None:
        info = connection.info
        local, seen = await seen_at(self._links.direct(info.relay))
        stream = connection.open()
        try:
            with trio.fail_after(ANSWER_S):
                conversation = Conversation(stream.read, stream.write)
                await negotiate(conversation, [PUNCH], initiator=True)
                core = Punch(opens=True)
                await self._say(stream, core.begin(trio.current_time()), seen)
                message = await read_message(conversation, HolePunch)
                if message.type != HolePunch.CONNECT:
                    return
                commands = core.connect(self._targets(message, info.peer), trio.current_time())
                await self._say(stream, commands, seen)
            await self._connect(commands, info, local)
        finally:
            stream.reset()

    async def _say(self, stream: Stream, commands: list[Command], seen: Sequence[Endpoint]) -> None:
        for command in commands:
            match command:
                case SayConnect():
                    told = [packed(each) for each in seen]
                    await stream.write(framed(HolePunch(type=HolePunch.CONNECT, ObsAddrs=told)))
                case SaySync():
                    await stream.write(framed(HolePunch(type=HolePunch.SYNC)))

    def _targets(self, message: HolePunch, peer: str) -> list[str]:
        """Return the addresses in a message that may be dialled."""
        told = endpoints_of(message.ObsAddrs, MAX_ADDRESSES)
        return [str(each) for each in told if self._dialler.may_knock(replace(each, peer=peer, rumored=True))]

    async def _connect(self, commands: list[Command], info: ConnectionInfo, locals_: Locals) -> None:
        """Connect to all addresses of an IP version at once; the first at which the peer answers is used. Raises nothing.

        Where both ends have both versions both try IPv6 first: at the same time each might take another connection.
        """
        made: list[Connection] = []

        async def attempt(endpoint: Endpoint, initiate: bool, scope: trio.CancelScope) -> None:
            with suppress(HandshakeFailed, OSError, trio.TooSlowError):
                made.append(await self._punched(endpoint, info.peer, initiate, locals_[endpoint.protocol]))
                scope.cancel()

        for command in commands:
            if not isinstance(command, ConnectTo):
                continue
            targets = [addresses.parse(each) for each in command.addresses]
            versions = sorted({each.protocol for each in targets} & locals_.keys(), reverse=True)
            try:
                for number, version in enumerate(versions):
                    await trio.sleep_until(command.at + number * FIRST_S)
                    with trio.move_on_after(FIRST_S if number + 1 < len(versions) else inf):
                        async with trio.open_nursery() as nursery:
                            for each in targets:
                                if each.protocol == version:
                                    nursery.start_soon(attempt, each, command.initiate, nursery.cancel_scope)
                    if made:
                        break
            except BaseException:
                with trio.CancelScope(shield=True):
                    for connection in made:
                        await connection.abandon()
                raise
        for number, connection in enumerate(made):
            if number:
                await connection.abandon()
            else:
                await self._made.send(connection)
        with trio.move_on_after(ANSWER_S * bool(made)):
            while made and self._links.direct(info.peer) is None and not made[0].closing:  # noqa: ASYNC110 - at once, nearly
                await trio.sleep(0.01)

    async def _punched(self, endpoint: Endpoint, peer: str, initiate: bool, local: tuple[str, int]) -> Connection:
        with trio.fail_after(CONNECT_S):
            raw = await _connected(endpoint, local)
        connection = None
        try:
            host = addresses.plain(endpoint.host)
            where = Location(addresses.block(host), origin_of(host), host, endpoint.port, *local, punched=True)
            with trio.fail_after(HANDSHAKE_S):
                connection = await self._links.secured(raw, where, peer if initiate else None, inbound=not initiate)
            if connection.info.peer != peer:
                await connection.abandon()
                raise HandshakeFailed("another peer answers there")
        finally:
            if connection is None:
                await trio.aclose_forcefully(raw)
        return connection

    async def _adopt(self) -> None:
        """Serve connections independently of the circuits over which they were arranged."""
        async with trio.open_nursery() as nursery:
            async for connection in self._to_serve:
                nursery.start_soon(self._links.welcome, connection)


async def _connected(endpoint: Endpoint, local: tuple[str, int]) -> trio.SocketStream:
    """Connect from this address and port, which another connection uses, retrying while that is refused. Raises OSError."""
    while True:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            share_port(sock)
            await sock.bind(local)
            await sock.connect((endpoint.host, endpoint.port))
        except ConnectionRefusedError:
            sock.close()
            await trio.sleep(AGAIN_S)
        except BaseException:
            sock.close()
            raise
        else:
            return trio.SocketStream(sock)
