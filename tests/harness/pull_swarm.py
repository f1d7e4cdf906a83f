"""Nodes that pull models over a network in memory, with an engine whose vectors are words."""

from types import SimpleNamespace

import msgspec
import trio

from starling.gossip.exchange.attestation import digest
from starling.node.config.schema import Manifest, PaceSection
from starling.node.daemon.exchange.pull_service import PulledExchange, Signing
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import MemoryNetwork
from starling.node.rpc import calls
from tests.harness.context import context
from tests.harness.memory_swarm import INCARNATION, VIEW, FakeEngine, Member, Swarm
from tests.harness.signatures import sign, verify

FIRST_NUMBER = 1000  # the last field before those of requests


class WordEngine(FakeEngine):
    """Publishes "NAME ROUND", accepts everything but "bad", and records the rounds it mixed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.heard: dict[str, bytes] = {}
        self.mixed: list[tuple[int, dict[str, bytes | None]]] = []
        self.padding = b""
        self.held: tuple[str, ...] | None = None

    def vector(self, round: int) -> bytes:
        return f"{self.name} {round}".encode() + self.padding

    def answer(self, request: calls.Request) -> calls.Reply:
        match request:
            case calls.Publish(round):
                return calls.Published(self.vector(round), digest(self.vector(round)))
            case calls.VerifyUpdate(peer, told, payload):
                if digest(payload) != told or payload.startswith(b"bad"):
                    return calls.Refused("peer", "bad_vector")
                self.heard[peer] = payload
            case calls.Mix(round, asked):
                self.mixed.append((round, {peer: self.heard.get(peer) for peer in asked}))
                self.heard = {}
                return calls.Done(clipped_or_excluded=self.held)
            case calls.Revoke(peer):
                self.heard.pop(peer, None)
        return calls.Done()


class PullMember(Member):
    """A member with the service of pulled exchanges."""

    def __init__(self, name: str, network: MemoryNetwork) -> None:
        super().__init__(name, network, WordEngine(name))
        self.witnessed: list = []
        self.noted: list = []
        manifest = msgspec.structs.replace(Manifest(), pace=PaceSection(max_wait_s=2.0))
        given = context(
            network=network,
            engine=self.engine,
            report=self.facts,
            manifest=manifest,
            swarm="swarm",
            incarnation=INCARNATION,
            identity=SimpleNamespace(peer_id=name, sign=lambda message: sign(name, message)),
        )
        self.limits = given.limits
        self.exchange = PulledExchange(
            given,
            self,
            Signing(FIRST_NUMBER, self.witnessed.append, verify),
            lambda outcomes, held: self.noted.append((outcomes, held)),
            (self.transactions.observe,),
        )

    async def round(self, number: int, peers: str, compute_s: float = 0.01):
        """Do local steps, then request from peers that are named by one letter each."""
        self.exchange.computing(number, {}, VIEW)
        await trio.sleep(compute_s)
        return await self.exchange.round(number, dict.fromkeys(peers, 0.5), VIEW)


class PullSwarm(Swarm):
    """Members by the letters of `names`."""

    def __init__(self, names: str, *, rules=()) -> None:
        hub = MemoryHub(rules)
        super().__init__(hub, [PullMember(name, hub.join(name)) for name in names])
