"""Open a libp2p host: bind its sockets, find its addresses, and run it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from starling.node import versions
from starling.node.config.schema import LimitsSection
from starling.node.interfaces import Reporter
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.host import Libp2pNetwork
from starling.node.net.libp2p.links import HostSettings
from starling.node.net.libp2p.noise import Identity
from starling.node.net.libp2p.relay_slots import Mode
from starling.node.net.libp2p.sockets import endpoint_of, listen_on
from starling.node.net.limits import Pacer
from starling.node.versions import Range

DRAIN_S = 0.4


@asynccontextmanager
async def open_network(
    private_key_bytes: bytes,
    listen: Sequence[str],
    announce: Sequence[str],
    limits: LimitsSection,
    report: Reporter,
    *,
    up_bytes_per_s: int = 0,
    down_bytes_per_s: int = 0,
    relay: Mode = "off",
    spoken: Mapping[str, Range] = versions.LANES,
) -> "AsyncIterator[Libp2pNetwork]":
    """Listen and stay reachable while the block runs, with the peer id of a 32-byte Ed25519 seed and caps on traffic, 0 for none.
    `relay`: what it carries for members that others cannot dial. `spoken`: versions of every lane.

    `listen`: multiaddrs /ip4|ip6/HOST/tcp/PORT, port 0 picks one; `announce`: others to announce instead, or none. Raises ConfigError if
    one is malformed or cannot be listened on.
    """
    identity = Identity.from_seed(private_key_bytes)
    listeners = await listen_on(listen)
    bound = tuple(listener.socket.getsockname()[:2] for listener in listeners)
    configured = tuple(replace(endpoint_of("announce", address), peer=identity.peer) for address in announce)
    announcing = Announcing(identity.peer, configured, bound)
    announcing.poll(addresses.interfaces())
    manager = trio.open_nursery()
    nursery = await manager.__aenter__()
    try:
        settings = HostSettings(limits, Pacer(up_bytes_per_s), Pacer(down_bytes_per_s), relay, spoken)
        network = Libp2pNetwork(identity, announcing, settings, report)
        nursery.start_soon(network.serve, listeners)
        yield network
        with trio.move_on_after(DRAIN_S):
            await network.drained()
    finally:
        nursery.cancel_scope.cancel()
        await manager.__aexit__(None, None, None)
        network.close()
