"""Dial peers: one attempt per peer at a time, shared by all that wait for it, at several addresses at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.negotiation import HandshakeFailed
from starling.node.net.libp2p.sockets import reason_of

MAX_DIALS, MAX_RUMORED_DIALS, MAX_RELAYED_DIALS = 32, 12, 12
"""At once: of peers that were met or whose address the owner gave, of those of whom others told, and of those behind relays, whose dials
may wait for that of the relay.
"""
DIAL_S, RUMORED_DIAL_S = 10.0, 5.0
NEXT_ADDRESS_S = 0.25  # seconds by which each address is dialled before the next (RFC 8305)


@dataclass(slots=True)
class _Attempt:
    peer: str
    endpoints: Sequence[Endpoint]
    rumored: bool
    done: trio.Event = field(default_factory=trio.Event)
    reason: str = ""


@dataclass(slots=True)
class Dialler:
    """Makes connections in `serve`, where they also run."""

    connect: Callable[[str, Endpoint], Awaitable[Connection]]
    """Makes a connection to a peer at an endpoint; raises OSError, UnicodeError or HandshakeFailed."""
    made: Callable[[Connection], None]  # registers a new connection before its callers are woken
    run: Callable[[Connection], Awaitable[None]]  # serves a connection until it ends; does not raise
    _attempts: dict[str, _Attempt] = field(default_factory=dict)  # dials under way, at most one per peer, which bounds the channel
    _channel: tuple[trio.MemorySendChannel[_Attempt], trio.MemoryReceiveChannel[_Attempt]] = field(
        default_factory=lambda: trio.open_memory_channel[_Attempt](math.inf)
    )
    _slots: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_DIALS))
    _rumored_slots: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_RUMORED_DIALS))
    _relayed_slots: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_RELAYED_DIALS))

    def under_way(self, peer: str) -> bool:
        """Tell if there is an attempt to reach a peer."""
        return peer in self._attempts

    def waits_for_relay(self, peer: str) -> bool:
        """Tell if the attempt to reach a peer may wait for that of a relay."""
        attempt = self._attempts.get(peer)
        return attempt is not None and any(each.relay for each in attempt.endpoints)

    async def dial(self, peer: str, endpoints: Sequence[Endpoint] = (), *, rumored: bool = False) -> str:
        """Wait for the attempt under way, or for one at these endpoints -> "", or why it failed, in one line."""
        attempt = self._attempts.get(peer)
        if attempt is None:
            attempt = self._attempts[peer] = _Attempt(peer, endpoints, rumored)
            self._channel[0].send_nowait(attempt)
        await attempt.done.wait()
        return attempt.reason

    async def serve(self) -> None:
        """Dial, and run the connections made, until cancelled."""
        async with trio.open_nursery() as nursery, self._channel[1] as attempts:
            async for attempt in attempts:
                nursery.start_soon(self._serve, attempt)

    async def _serve(self, attempt: _Attempt) -> None:
        made: list[Connection] = []
        try:
            relayed = any(each.relay for each in attempt.endpoints)
            async with self._relayed_slots if relayed else self._rumored_slots if attempt.rumored else self._slots:
                timeout_s = RUMORED_DIAL_S if attempt.rumored else DIAL_S
                made, attempt.reason = await first_of(attempt.endpoints, partial(self.connect, attempt.peer), timeout_s)
            for connection in made:
                self.made(connection)
        finally:
            del self._attempts[attempt.peer]
            attempt.done.set()
        async with trio.open_nursery() as nursery:
            for connection in made:
                nursery.start_soon(self.run, connection)


async def first_of(
    endpoints: Sequence[Endpoint], connect: Callable[[Endpoint], Awaitable[Connection]], timeout_s: float = DIAL_S
) -> tuple[list[Connection], str]:
    """Try a peer's addresses in order, each a quarter second after the one before or as soon as that failed.

    -> the connections made (two, if they finish together), and why the others failed, in one line
    """
    reasons: list[str] = []
    made: list[Connection] = []

    async def attempt(endpoint: Endpoint, failed: trio.Event, scope: trio.CancelScope) -> None:
        try:
            made.append(await connect(endpoint))
            scope.cancel()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot exist
            reasons.append(f"{endpoint.host}:{endpoint.port}: {reason_of(error)}")
        except HandshakeFailed as error:
            reasons.append(f"{endpoint.host}:{endpoint.port}: {error}")
        failed.set()

    try:
        with trio.move_on_after(timeout_s) as patience:
            async with trio.open_nursery() as nursery:
                for endpoint in endpoints:
                    failed = trio.Event()
                    nursery.start_soon(attempt, endpoint, failed, nursery.cancel_scope)
                    with trio.move_on_after(NEXT_ADDRESS_S):
                        await failed.wait()
    except BaseException:  # cancelled: nobody owns these connections
        with trio.CancelScope(shield=True):
            for connection in made:
                await connection.abandon()
        raise
    return made, "; ".join(reasons + ["no answer"] * patience.cancelled_caught)[:300]
