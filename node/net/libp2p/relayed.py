"""Use other nodes' relays: reservations while others cannot dial us, circuits from and to others.

Circuit Relay v2 of libp2p, the sides that it calls client and stop. Inside a circuit both ends authenticate each other and encrypt as in
any other connection.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import trio

from starling.node.net.libp2p.addresses import MAX_BYTES, Endpoint
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.circuit import (
    HOP,
    CircuitStream,
    HopMessage,
    PeerId,
    Status,
    StopMessage,
    framed,
    peer_of,
    raw_of,
    read_message,
)
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.location import Location
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate
from starling.node.net.libp2p.peer_dialler import PeerDialler
from starling.node.net.libp2p.reservations import Reservations
from starling.node.net.libp2p.streams import Stream, StreamBroken

ASK_S = 10.0
POLL_S = 1.0
USUALLY_S = 1800.0  # seconds of a reservation whose relay does not state them
PER_RELAY = 2  # most addresses of one relay
WORDS = {
    Status.RESERVATION_REFUSED: "it refuses",
    Status.RESOURCE_LIMIT_EXCEEDED: "it is full",
    Status.PERMISSION_DENIED: "it does not relay",
    Status.CONNECTION_FAILED: "it does not reach that peer",
    Status.NO_RESERVATION: "that peer has no place there",
}


class Relayed:
    """Keeps reservations at relays and connects through them; `changed` is called with the relays and addresses through them after a
    change.
    """

    def __init__(
        self, links: Links, dialler: PeerDialler, announcing: Announcing, changed: Callable[[tuple[str, ...], tuple[Endpoint, ...]], None]
    ) -> None:
        self._links, self._dialler, self._announcing, self._changed = links, dialler, announcing, changed
        self._reservations = Reservations()
        self._told: tuple[str, ...] = ()

    @property
    def relays(self) -> tuple[str, ...]:
        """Return peers at which we have a reservation."""
        return self._reservations.held(trio.current_time())

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints at which others reach this node through relays, one of each relay before the second of any."""
        ways = [
            [
                Endpoint(each.protocol, each.host, each.port, self._links.peer_id, relay=relay)
                for each in self._dialler.endpoints(relay)
                if not each.relay
            ]
            for relay in self.relays
        ]
        turns = (each[place] for place in range(PER_RELAY) for each in ways if place < len(each))
        return tuple(dict.fromkeys(each for each in turns if len(str(each)) <= MAX_BYTES))

    def lost(self, peer: str) -> None:
        """Note that the last direct connection to a peer is closed."""
        self._reservations.lost(peer)
        self._tell()

    async def serve(self) -> None:
        """Keep reservations while others cannot dial us, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                if self._announcing.hidden:
                    for peer in self._reservations.ask(self._candidates(), trio.current_time()):
                        nursery.start_soon(self._reserve, peer)
                elif self._told:
                    self._reservations = Reservations()
                self._tell()
                await trio.sleep(POLL_S)

    async def serve_stop(self, stream: Stream, conversation: Conversation) -> None:
        """Serve the connection in a circuit that a relay opened to us. Raises HandshakeFailed, StreamBroken."""
        relay = stream.connection.info.peer
        with trio.fail_after(ASK_S):
            message = await read_message(conversation, StopMessage)
        allowed = not stream.connection.info.relay and relay in self.relays and message.type == StopMessage.CONNECT
        status = Status.OK if allowed else Status.PERMISSION_DENIED
        peer_of(message.peer.id)
        await stream.write(framed(StopMessage(type=StopMessage.STATUS, status=status)))
        if not allowed:
            stream.finish()
            return
        stream.keep_window()
        where = Location(f"via {relay}", relay=relay, relay_bytes=message.limit.data)
        await self._links.admit(CircuitStream(stream, conversation.rest), where)

    async def connect(self, peer: str, endpoint: Endpoint) -> Connection:
        """Return a connection to a peer through the relay that its endpoint names. Raises OSError or HandshakeFailed."""
        at = Endpoint(endpoint.protocol, endpoint.host, endpoint.port, endpoint.relay, endpoint.rumored)
        relay = await self._dialler.direct_connection(endpoint.relay, [at])
        stream: Stream | None = None
        try:
            stream = relay.open()
            conversation, answer = await _ask(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=raw_of(peer))))
            _check(answer)
            where = Location(f"via {relay.info.peer}", relay=relay.info.peer, relay_bytes=answer.limit.data)
            return await self._links.secured(CircuitStream(stream, conversation.rest), where, peer)
        except BaseException as error:
            if stream is not None:
                stream.reset()
            if isinstance(error, StreamBroken | trio.BrokenResourceError):
                raise HandshakeFailed("relay: the circuit ended") from error
            raise

    def _candidates(self) -> list[str]:
        """Return peers that we dialled, which others can perhaps dial too; in random order, so that not all nodes ask the same one."""
        dialled = {
            each.info.peer
            for each in self._links.connections()
            if not (each.info.inbound or each.info.relay or each.info.punched or each.closing)
        }
        return sorted(dialled, key=lambda peer: hashlib.blake2b(f"{self._links.peer_id} {peer}".encode()).digest())

    async def _reserve(self, relay: str) -> None:
        connection, stream = self._links.direct(relay), None
        lasts_s = None
        try:
            if connection is not None:
                stream = connection.open()
                with trio.fail_after(ASK_S):
                    _, answer = await _ask(stream, HopMessage(type=HopMessage.RESERVE))
                if answer.status == Status.OK:
                    ends_at = answer.reservation.expire
                    lasts_s = ends_at - time.time() if ends_at else USUALLY_S
        except (HandshakeFailed, StreamBroken, trio.TooSlowError):
            pass
        finally:
            if stream is not None:
                stream.reset()
        if lasts_s is None:
            self._reservations.refused(relay, trio.current_time())
        else:
            self._reservations.granted(relay, lasts_s, trio.current_time())
        self._tell()

    def _tell(self) -> None:
        if self.relays != self._told:
            self._told = self.relays
            self._changed(self.relays, self.endpoints())


def _check(answer: HopMessage) -> None:
    """Raise HandshakeFailed: it is no circuit."""
    if answer.status != Status.OK:
        raise HandshakeFailed(f"relay: {WORDS.get(answer.status, 'it gives no circuit')}")


async def _ask(stream: Stream, message: HopMessage) -> tuple[Conversation, HopMessage]:
    """Ask a relay and return its answer. Raises HandshakeFailed: it does not answer."""
    conversation = Conversation(stream.read, stream.write)
    await negotiate(conversation, [HOP], initiator=True)
    await stream.write(framed(message))
    answer = await read_message(conversation, HopMessage)
    if answer.type != HopMessage.STATUS:
        raise HandshakeFailed("relay: it answers something else")
    return conversation, answer
