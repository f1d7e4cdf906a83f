"""Shared by tests of the real network: peers on loopback, a recording reporter, and attackers."""

import hashlib
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import wraps

import trio

from starling.node import versions
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Inbound
from starling.node.net.libp2p import Libp2pNetwork, open_network
from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.negotiation import Conversation, negotiate
from starling.node.net.libp2p.noise import Channel, ChannelBroken, Identity, secure

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PATIENCE_S = 30.0


class Remembered:
    """A reporter that records events and faults."""

    def __init__(self):
        self.faults: list[tuple[str, str]] = []
        self.events: list[tuple[str, dict]] = []

    def event(self, name, text, *, level="info", **fields):
        self.events.append((name, fields))

    def fault(self, peer, reason):
        self.faults.append((peer, reason))


def on_sockets(test):
    """Run an async test on real sockets, with a timeout."""

    @wraps(test)
    def run(*args, **kwargs):
        async def main():
            with trio.fail_after(PATIENCE_S):
                await test(*args, **kwargs)

        trio.run(main)

    return run


def seed_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def peer_of(name: str) -> str:
    return Identity.from_seed(seed_of(name)).peer


def node(name: str, *, listen=LOOPBACK, report=None, up=0, down=0, relay="off", **limits):
    """Make one listening peer, whose id follows from its name."""
    return open_network(
        seed_of(name),
        [listen] if listen else [],
        [],
        LimitsSection(**limits),
        report or Remembered(),
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        relay=relay,
    )


@asynccontextmanager
async def nodes(*names: str, **settings) -> AsyncIterator[list[Libp2pNetwork]]:
    """Make several peers that do not know each other yet."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node(name, **settings)) for name in names]


async def next_frame(network: Libp2pNetwork, lane) -> Inbound:
    with trio.fail_after(10):
        return await network.inbound(lane).receive()


async def next_event(network: Libp2pNetwork):
    with trio.fail_after(10):
        return await network.events().receive()


async def hang_up(network: Libp2pNetwork, peer: str) -> None:
    """Close every connection to a peer."""
    connections = network.links.to(peer)
    for connection in connections:
        connection.close()
    for connection in connections:
        await connection.over.wait()


async def until(condition) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await trio.sleep(0.01)


async def raw_connection(network: Libp2pNetwork) -> trio.SocketStream:
    endpoint = parse(network.addresses[0])
    return await trio.open_tcp_stream(endpoint.host, endpoint.port)


@asynccontextmanager
async def attacker(network: Libp2pNetwork, name: str = "mallory") -> AsyncIterator[Channel]:
    """Connect an authenticated peer that writes arbitrary muxer bytes."""
    stream = await raw_connection(network)
    async with stream:
        _, channel, _ = await secure(stream, Identity.from_seed(seed_of(name)), network.peer_id)
        yield channel


async def ended(channel: Channel) -> bool:
    """Return whether the victim closes the connection soon; its answers are discarded."""
    with trio.move_on_after(10):
        with suppress(ChannelBroken):
            while await channel.read():
                pass
        return True
    return False


async def lane_opened(channel, lane: str) -> None:
    """Open stream 1 for a lane by hand, including answers."""
    await channel.write(struct.pack("!BBHII", 0, 1, 1, 1, 0))
    inbox = bytearray()

    async def receive() -> bytes:
        while True:
            while len(inbox) >= 12:
                _, kind, _, _, length = struct.unpack("!BBHII", inbox[:12])
                size = length if kind == 0 else 0
                if len(inbox) < 12 + size:
                    break
                body = bytes(inbox[12 : 12 + size])
                del inbox[: 12 + size]
                if body:
                    return body
            inbox.extend(await channel.read())

    async def send(data: bytes) -> None:
        await channel.write(struct.pack("!BBHII", 0, 0, 0, 1, len(data)) + data)

    await negotiate(Conversation(receive, send), versions.ids(lane, versions.LANES[lane]), initiator=True)


def data(body: bytes, length: int | None = None) -> bytes:
    """Return a data frame on stream 1, possibly with a false length."""
    return struct.pack("!BBHII", 0, 0, 0, 1, len(body) if length is None else length) + body
