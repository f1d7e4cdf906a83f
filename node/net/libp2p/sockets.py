"""TCP as we want it: listening with errors a person understands, dialling several addresses at once, noticing the dead."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

from starling.gossip.errors import ConfigError
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.noise import HandshakeFailed

DIAL_S = 10.0
NEXT_ADDRESS_S = 0.25  # head start of each address over the next (RFC 8305)


def endpoint_of(key: str, address: str) -> Endpoint:
    """The endpoint in a multiaddr that a person wrote under a config key.

    Raises:
        ConfigError: malformed.
    """
    try:
        return addresses.parse(address)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


async def listen_on(listen: Sequence[str]) -> list[trio.SocketListener]:
    """Bind and listen on multiaddrs.

    Raises:
        ConfigError: one is malformed, a name, or cannot be bound.
    """
    listeners: list[trio.SocketListener] = []
    for address in listen:
        endpoint = endpoint_of("listen", address)
        if not endpoint.protocol.startswith("ip"):
            raise ConfigError(
                f"listen: {address!r} is a name; listen on /ip4/… or /ip6/…, and put the name in announce"
            )
        try:
            listeners += await trio.open_tcp_listeners(endpoint.port, host=endpoint.host)
        except OSError as error:
            for listener in listeners:
                listener.socket.close()
            hint = "; is a node running already? choose another port" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"listen: {address!r}: {reason_of(error)}{hint}") from error
    return listeners


async def first_of(
    endpoints: Sequence[Endpoint], connect: Callable[[Endpoint], Awaitable[Connection]]
) -> tuple[list[Connection], str]:
    """Try addresses in order, each a quarter second after the one before or as soon as that failed.

    Args:
        endpoints: where to try.
        connect: makes a connection; raises OSError, UnicodeError or HandshakeFailed.

    Returns:
        What was made (two, if they finish together; none, if none does), and why the others were not, in one line.
    """
    reasons: list[str] = []
    made: list[Connection] = []

    async def attempt(endpoint: Endpoint, failed: trio.Event, scope: trio.CancelScope) -> None:
        try:
            made.append(await connect(endpoint))
            scope.cancel()
        except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
            reasons.append(f"{endpoint.host}:{endpoint.port}: {reason_of(error)}")
        except HandshakeFailed as error:
            reasons.append(f"{endpoint.host}:{endpoint.port}: {error}")
        failed.set()

    try:
        with trio.move_on_after(DIAL_S) as patience:
            async with trio.open_nursery() as nursery:
                for endpoint in endpoints:
                    failed = trio.Event()
                    nursery.start_soon(attempt, endpoint, failed, nursery.cancel_scope)
                    with trio.move_on_after(NEXT_ADDRESS_S):
                        await failed.wait()
    except BaseException:  # cancelled: no one will use these connections
        with trio.CancelScope(shield=True):
            for connection in made:
                await connection.abandon()
        raise
    return made, "; ".join(reasons + ["no answer"] * patience.cancelled_caught)[:300]


def reason_of(error: OSError | UnicodeError) -> str:
    """Why a socket could not be made, in a few words."""
    inner = error.__cause__.exceptions[0] if isinstance(error.__cause__, ExceptionGroup) else error  # trio's dialling
    code = getattr(inner, "errno", None)
    return os.strerror(code) if code is not None and code > 0 else str(inner)


def tune(sock: trio.socket.SocketType) -> None:
    """Notice within half a minute that the other end lost its power, where the system can."""
    wanted = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
    with suppress(OSError):  # it is gone already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
