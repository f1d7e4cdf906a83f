"""TCP: listening with errors that a person understands, and noticing dead peers."""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import trio

from starling.gossip.errors import ConfigError
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint


def endpoint_of(key: str, address: str) -> Endpoint:
    """The endpoint in a multiaddr under a config key; ConfigError if it is malformed."""
    try:
        return addresses.parse(address)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


async def listen_on(listen: Sequence[str]) -> list[trio.SocketListener]:
    """Bind and listen on multiaddrs; ConfigError if one is malformed, a name, or cannot be bound."""
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
