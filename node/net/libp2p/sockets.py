"""Listen on TCP with errors that a person understands, and detect dead peers."""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import trio

from starling.gossip.errors import ConfigError
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.platform import has_hung_up


def endpoint_of(key: str, address: str) -> Endpoint:
    """Return the endpoint in a multiaddr under a config key; ConfigError if it is malformed."""
    try:
        endpoint = addresses.parse(address)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    if endpoint.relay:
        raise ConfigError(f"{key}: {address!r} goes through a relay; a node finds relays itself, give /ip4/HOST/tcp/PORT")
    return endpoint


async def listen_on(listen: Sequence[str]) -> list[trio.SocketListener]:
    """Bind and listen on multiaddrs; ConfigError if one is malformed, a name, or cannot be bound.

    Of several, those of a version of IP that this machine lacks are left out.
    """
    listeners: list[trio.SocketListener] = []
    lacking = None
    for address in listen:
        endpoint = endpoint_of("listen", address)
        if not endpoint.protocol.startswith("ip"):
            raise ConfigError(f"listen: {address!r} is a name; listen on /ip4/… or /ip6/…, and put the name in announce")
        try:
            listeners += await _bind(endpoint, listeners)
        except OSError as error:
            if is_lacking(endpoint, error) and len(listen) > 1:
                lacking = address, error
                continue
            for listener in listeners:
                listener.socket.close()
            raise _cannot(address, error) from error
    if lacking is not None and not listeners:
        raise _cannot(*lacking) from lacking[1]
    return listeners


async def _bind(endpoint: Endpoint, others: Sequence[trio.SocketListener]) -> Sequence[trio.SocketListener]:
    """Listen at an endpoint; for port 0 use that of the existing listeners: one port to forward, and to store."""
    if not endpoint.port and others:
        with suppress(OSError):
            return await trio.open_tcp_listeners(others[0].socket.getsockname()[1], host=endpoint.host)
    return await trio.open_tcp_listeners(endpoint.port, host=endpoint.host)


def is_lacking(endpoint: Endpoint, error: OSError) -> bool:
    """Tell if all addresses of an IP version were requested, on a machine that has none of that version."""
    return endpoint.host in {"0.0.0.0", "::"} and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}  # noqa: S104 - all interfaces


def _cannot(address: str, error: OSError) -> ConfigError:
    hint = "; is a node running already? choose another port" if error.errno == errno.EADDRINUSE else ""
    return ConfigError(f"listen: {address!r}: {reason_of(error)}{hint}")


def reason_of(error: OSError | UnicodeError) -> str:
    """Return in a few words why a socket could not be made."""
    inner = error.__cause__.exceptions[0] if isinstance(error.__cause__, ExceptionGroup) else error  # trio's dialling
    code = getattr(inner, "errno", None)
    return os.strerror(code) if code is not None and code > 0 else str(inner)


def share_port(sock: trio.socket.SocketType) -> None:
    """Let other connections of this user use the local port of this one, as `punching` needs."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def tune(sock: trio.socket.SocketType) -> None:
    """Let the system notice within half a minute, where it can, that the other end lost its power."""
    wanted = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
    with suppress(OSError):  # the socket is already closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_ended(raw: trio.abc.AsyncResource) -> bool:
    """Tell if the other end of a connection has hung up, where the system says so, whatever it sent before."""
    return isinstance(raw, trio.SocketStream) and has_hung_up(raw.socket.fileno())


def hold_back(sock: trio.socket.SocketType, most_bytes: int) -> None:
    """Limit the system's buffer to about so many bytes beyond those in flight, where possible: data in it cannot be overtaken."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):  # the socket is already closed
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, most_bytes)
