"""Relay for others: answer reservations and requests for circuits, and copy the bytes of circuits. `relay_slots` decides.

Circuit Relay v2 of libp2p, the side that it calls hop. Stock peers are served as others, where their records say that they are members.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import trio

from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.circuit import (
    STOP,
    HopMessage,
    Limit,
    PeerId,
    Reservation,
    Status,
    StopMessage,
    framed,
    peer_of,
    raw_of,
    read_message,
)
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate
from starling.node.net.libp2p.relay_slots import ALLOWANCES, Circuit, Mode, Refusal, RelaySlots
from starling.node.net.libp2p.streams import Stream, StreamBroken

ASK_S = 10.0  # seconds for the other end to accept a circuit
STATUS: Mapping[Refusal, Status.ValueType] = MappingProxyType(
    {
        "refused": Status.RESERVATION_REFUSED,
        "full": Status.RESOURCE_LIMIT_EXCEEDED,
        "not allowed": Status.PERMISSION_DENIED,
        "no reservation": Status.NO_RESERVATION,
    }
)


class Relay:
    """Relays for other peers, within its owner's limits."""

    def __init__(self, links: Links, announcing: Announcing, mode: Mode) -> None:
        self._links, self._announcing = links, announcing
        self.slots = RelaySlots(ALLOWANCES.get(mode))
        self._scopes: dict[int, trio.CancelScope] = {}  # of circuits

    async def serve_hop(self, stream: Stream, conversation: Conversation) -> None:
        """Answer a peer's requests on a stream; a circuit lasts as long as this runs. Raises HandshakeFailed, StreamBroken."""
        info = stream.connection.info
        with trio.fail_after(ASK_S):
            message = await read_message(conversation, HopMessage)
        if info.relay:
            await self._say(stream, Status.PERMISSION_DENIED)
        elif message.type == HopMessage.RESERVE:
            await self._reserve(stream, info)
        elif message.type == HopMessage.CONNECT:
            await self._connect(stream, conversation, peer_of(message.peer.id))
        else:
            await self._say(stream, Status.UNEXPECTED_MESSAGE)

    def lost(self, peer: str) -> None:
        """Note that a peer's last direct connection is closed."""
        self.slots.lost(peer)
        self._sweep()

    async def _reserve(self, stream: Stream, info: ConnectionInfo) -> None:
        if self._announcing.hidden:
            await self._say(stream, Status.RESERVATION_REFUSED)
            return
        now, member = trio.current_time(), self._links.is_known(info.peer)
        ends_at = self.slots.reserve(info.peer, info.origin, member, now)
        self._sweep()
        if isinstance(ends_at, str):
            await self._say(stream, STATUS[ends_at])
            return
        reservation = Reservation(expire=int(time.time() + ends_at - now))
        await self._answer(stream, HopMessage(type=HopMessage.STATUS, status=Status.OK, reservation=reservation, limit=self._limit()))

    async def _connect(self, stream: Stream, conversation: Conversation, target: str) -> None:
        info, now = stream.connection.info, trio.current_time()
        circuit = self.slots.begin(info.peer, info.prefix, target, self._links.is_known(info.peer), now)
        self._sweep()
        if isinstance(circuit, str):
            await self._say(stream, STATUS[circuit])
            return
        far: Stream | None = None
        scope = self._scopes[circuit.number] = trio.CancelScope(deadline=circuit.ends_at)
        try:
            with scope:
                if (taken := await self._ask(circuit)) is None:
                    self.slots.end(circuit)
                    await self._say(stream, Status.CONNECTION_FAILED)
                    return
                far, first = taken
                stream.keep_window()
                message = HopMessage(type=HopMessage.STATUS, status=Status.OK, limit=self._limit())
                await stream.write(framed(message))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.copy, circuit, stream, conversation.rest, far, nursery.cancel_scope)
                    nursery.start_soon(self.copy, circuit, far, first, stream, nursery.cancel_scope)
        finally:
            self.slots.end(circuit)
            self._scopes.pop(circuit.number, None)
            for each in filter(None, (stream, far)):
                each.reset()

    async def _ask(self, circuit: Circuit) -> tuple[Stream, bytes] | None:
        """Open a stream to the target -> the stream, and what came on it; None if the target refuses the circuit."""
        connection = self._links.direct(circuit.target)
        if connection is None:
            return None
        stream: Stream | None = None
        try:
            with trio.fail_after(ASK_S):
                stream = connection.open()
                conversation = Conversation(stream.read, stream.write)
                await negotiate(conversation, [STOP], initiator=True)
                source = PeerId(id=raw_of(circuit.source))
                await stream.write(framed(StopMessage(type=StopMessage.CONNECT, peer=source, limit=self._limit())))
                answer = await read_message(conversation, StopMessage)
        except (HandshakeFailed, StreamBroken, trio.TooSlowError):
            if stream is not None:
                stream.reset()
            return None
        if answer.type != StopMessage.STATUS or answer.status != Status.OK:
            stream.reset()
            return None
        return stream, conversation.rest

    async def copy(self, circuit: Circuit, source: Stream, first: bytes, to: Stream, scope: trio.CancelScope) -> None:
        """Forward one direction of a circuit, at its rate, until it ends."""
        data: bytes | memoryview = first
        try:
            while True:
                if data:
                    wait_s = self.slots.passed(circuit, len(data), trio.current_time())
                    if wait_s is None:
                        break
                    await trio.sleep(wait_s)
                    await to.write(data)
                data = await source.read()
                if not data:
                    to.finish()
                    return
        except StreamBroken:
            pass
        scope.cancel()

    def _limit(self) -> Limit:
        allowance = self.slots.allowance
        return Limit() if allowance is None else Limit(duration=int(allowance.circuit_s), data=allowance.circuit_bytes)

    def _sweep(self) -> None:
        """End the streams of circuits that are over."""
        open_now = {it.number for it in self.slots.circuits}
        for number, scope in self._scopes.items():
            if number not in open_now:
                scope.cancel()

    async def _say(self, stream: Stream, status: Status.ValueType) -> None:
        await self._answer(stream, HopMessage(type=HopMessage.STATUS, status=status))

    async def _answer(self, stream: Stream, message: HopMessage) -> None:
        await stream.write(framed(message))
        await stream.hang_up()
