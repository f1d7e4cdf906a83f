"""Hostile peers on real sockets: identities with a libp2p host each and no engine, which send real nodes what a test gives them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, islice
from math import inf

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Acknowledge, Busy, Hello, Lane, Message, Probe, Record, Request, Solicit, Spread
from starling.node.config.schema import LimitsSection
from starling.node.identity import Identity
from starling.node.net.libp2p import Libp2pNetwork, open_network
from tests.harness.hostile import key
from tests.harness.libp2p_nodes import LOOPBACK, Remembered

DIGEST = b"another-digest.."  # digest of a member list that nobody has


class RealStranger:
    """A peer that knows the swarm's id and its members' addresses.

    Args:
        network: its own host, listening.
        identity: its key.
        swarm: id of the swarm.
        credential: its admission; b"" for none.
    """

    def __init__(self, network: Libp2pNetwork, identity: Identity, swarm: str, credential: bytes = b"") -> None:
        self.network, self.identity, self.peer = network, identity, identity.peer_id
        self._swarm, self._credential = swarm, credential
        self.asked: dict[str, int] = {}  # exchanges requested of it, by peer
        self._nonces = count()
        self._acknowledged: dict[int, float] = {}  # time of each of its probes

    def record(self, identity: Identity | None = None, incarnation: int = 1, version: int = 0, status: str = "alive") -> Record:
        """Return a record signed by an identity, by default its own; only its own has a credential."""
        signer = identity or self.identity
        credential = b"" if identity else self._credential
        plain = Record(signer.peer_id, self._swarm, incarnation, version, status, tuple(self.network.addresses), b"", credential)
        return signer.sign_record(plain)

    async def dial(self, address: str) -> str:
        """Dial an address; return the peer there."""
        return await self.network.dial(address)

    async def tell(self, peer: str, message: Message | bytes, lane: Lane = "control") -> None:
        """Send something; ignore a refusal."""
        with suppress(PeerUnreachable):
            await self.network.send(peer, lane, message if isinstance(message, bytes) else encode(message))

    async def keep_saying(self, frames: Iterator[bytes], peers: Sequence[str], per_s: float) -> None:
        """Send frames to peers in rotation, this many per second however long each takes, until cancelled."""
        at = trio.current_time()
        for number, frame in enumerate(frames):
            await self.tell(peers[number % len(peers)], frame)
            at += 1.0 / per_s
            await trio.sleep_until(at)

    async def hear_nothing(self) -> None:
        """Receive what others send, and ignore it."""
        async for _ in self.network.inbound("control"):
            pass

    async def be_a_member(self, peers: Sequence[str]) -> None:
        """Introduce itself, answer whatever keeps it a member, and refuse every exchange as busy."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_probes)
            nursery.start_soon(self._refuse_exchanges)
            while True:
                for peer in peers:
                    await self.tell(peer, Hello(self.record(), DIGEST, 0.0))
                await trio.sleep(5.0)

    async def _answer_probes(self) -> None:
        async for inbound in self.network.inbound("control"):
            message = decode("control", inbound.peer, inbound.frame)
            if isinstance(message, Probe):
                await self.tell(inbound.peer, Acknowledge(message.nonce, message.view, message.swarm_time))
            elif isinstance(message, Acknowledge):
                self._acknowledged[message.nonce] = trio.current_time()
            elif isinstance(message, Hello):
                await self.tell(inbound.peer, Spread((self.record(),)))

    async def probe(self, peer: str, seconds: float, per_s: float = 10.0) -> list[float]:
        """Probe a peer repeatedly; return the seconds until each answer, infinite if none came within two further seconds."""
        asked = {}
        for nonce in islice(self._nonces, int(seconds * per_s)):
            asked[nonce] = trio.current_time()
            await self.tell(peer, Probe(nonce, DIGEST[:8], 0.0))
            await trio.sleep_until(asked[nonce] + 1.0 / per_s)
        await trio.sleep(2.0)
        return [self._acknowledged.get(nonce, inf) - at for nonce, at in asked.items()]

    async def _refuse_exchanges(self) -> None:
        async for inbound in self.network.inbound("exchange"):
            message = decode("exchange", inbound.peer, inbound.frame)
            if isinstance(message, Request | Solicit):
                self.asked[inbound.peer] = self.asked.get(inbound.peer, 0) + 1
                seq = message.seq if isinstance(message, Request) else 0
                await self.tell(inbound.peer, Busy(message.inc, seq, "busy", message.round), "exchange")


@asynccontextmanager
async def stranger(swarm: str, *name: object, credential: bytes = b"", identity: Identity | None = None) -> AsyncIterator[RealStranger]:
    """Run one hostile peer, listening on loopback, during the block."""
    mine = identity or key(*name)
    async with open_network(mine.seed, [LOOPBACK], [], LimitsSection(), Remembered()) as network:
        yield RealStranger(network, mine, swarm, credential)
