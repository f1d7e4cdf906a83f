"""Ask the other end of a connection, by libp2p's identify, at which address and port it sees this one.

An end that a relay sees at an IPv4 address also has its public IPv6 addresses, with the same port: those no router translates, and a
firewall that lets in only what answers is opened in the same way, also between two NATs that give every destination another port.
"""

from __future__ import annotations

import socket

import trio

from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.circuit import IDENTIFY, PUNCH, Identify, endpoints_of, framed, packed, read_message
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.destinations import kind_of
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate
from starling.node.net.libp2p.streams import Stream

ANSWER_S = 10.0  # seconds for the other end's answer
ANYWHERE = "2000::1"  # any public IPv6 address

Locals = dict[str, tuple[str, int]]
"""Local address for connections of each version, ip4 or ip6."""


async def serve_identify(stream: Stream, _conversation: Conversation) -> None:
    """Tell a peer at which address we see it. Raises StreamBroken."""
    info = stream.connection.info
    message = Identify(protocol_version="ipfs/0.1.0", agent_version="starling", protocols=[PUNCH])
    if info.host and info.port:
        message.observed_addr = packed(addresses.at(info.host, info.port))
    await stream.write(framed(message))
    stream.finish()
    with trio.move_on_after(ANSWER_S):
        while await stream.read():
            pass


async def seen_at(relay: Connection | None) -> tuple[Locals, tuple[Endpoint, ...]]:
    """Return our address and port of the connection to a relay, and what it sees them as; the same with our public IPv6
    address.

    Raises HandshakeFailed, StreamBroken, trio.TooSlowError.
    """
    if relay is None:
        raise HandshakeFailed("the relay is gone")
    stream = relay.open()
    try:
        conversation = Conversation(stream.read, stream.write)
        with trio.fail_after(ANSWER_S):
            await negotiate(conversation, [IDENTIFY], initiator=True)
            message = await read_message(conversation, Identify)
    finally:
        stream.reset()
    seen = endpoints_of([message.observed_addr], 1)
    if not seen:
        raise HandshakeFailed("the relay does not say where it sees us")
    port = relay.info.local_port
    locals_ = {seen[0].protocol: (relay.info.local, port)}
    if seen[0].protocol == "ip4" and (host := own_ipv6()):
        locals_["ip6"] = host, port
        seen = (*seen, addresses.at(host, port))
    return locals_, seen


def own_ipv6() -> str:
    """Return this machine's public IPv6 address, from which it would send to others; "" if it has none. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect((ANYWHERE, 9))
            host = str(probe.getsockname()[0])
    except OSError:
        return ""
    return host if kind_of(host) == "public" else ""
