"""Nodes for the tests of the exchange service: a real service over a memory network, and an engine that counts in integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

import msgspec
import trio

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.node.config.schema import Manifest, PaceSection
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.service import Exchange
from starling.node.net.memory import MemoryHub, MemoryNetwork
from starling.node.rpc import calls

VIEW = b"everybody"


class CountingEngine:
    """An engine whose model is one integer: exchanges average it, flows record what moved over each edge.

    Args:
        x: the model.
        cost_s: virtual time of a call.
    """

    def __init__(self, x: int, cost_s: float = 0.002) -> None:
        self.x = x
        self.cost_s = cost_s
        self.flows: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.kept: dict[tuple[str, int, int], int] = {}
        self.mixed: list[int] = []
        self.calls: list[calls.Request] = []
        self.refuse: Callable[[calls.Request], calls.Refused | None] = lambda _call: None
        self.dead = False

    async def call(self, request: calls.Request) -> calls.Reply:
        await trio.sleep(self.cost_s)
        if self.dead:
            raise EngineError("it is dead")
        self.calls.append(request)
        refused = self.refuse(request)
        return self._answer(request) if refused is None else refused

    def restart(self) -> None:
        """From a checkpoint: the model stays, flows and what was under way are gone."""
        self.dead = False
        self.flows, self.settled, self.kept = {}, {}, {}

    def _answer(self, request: calls.Request) -> calls.Reply:
        match request:
            case calls.Offer(peer, inc, seq):
                self.kept[peer, inc, seq] = 0
                return calls.Offered(str(self.x).encode(), 1.0)
            case calls.Answer(peer, inc, seq, payload=payload):
                v = self.kept[peer, inc, seq] = (self.x - int(payload)) // 2
                return calls.Answered(str(v).encode())
            case calls.Apply(peer, inc, seq, payload):
                assert self.kept.pop((peer, inc, seq)) == 0
                self._add(peer, int(payload))
            case calls.Commit(peer, inc, seq):
                if (peer, inc, seq) not in self.kept:
                    return calls.Refused("state", "nothing is pending")
                self._add(peer, -self.kept.pop((peer, inc, seq)))
            case calls.Drop(peer, inc, seq):
                self.kept.pop((peer, inc, seq), None)
            case calls.Settle(peer):
                self.settled[peer] = self.settled.get(peer, 0) + self.flows.pop(peer, 0)
            case calls.Revoke(peer, settled):
                self.flows.pop(peer, None)
                self.kept = {key: v for key, v in self.kept.items() if key[0] != peer}
                if settled:
                    self.settled.pop(peer, None)
            case calls.Mix(round):
                self.mixed.append(round)
        return calls.Done()

    def _add(self, peer: str, v: int) -> None:
        self.x += v
        self.flows[peer] = self.flows.get(peer, 0) + v


class Facts:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.faults: list[tuple[str, str]] = []

    def event(self, name, text, *, level="info", **fields):
        self.events.append(name)

    def fault(self, peer, reason):
        self.faults.append((peer, reason))


class Plenty:
    """No limit known."""

    def __call__(self, peer: str) -> int:
        return 0

    def observe(self, peer: str, sent_bytes: int, seconds: float) -> None: ...

    def forget(self, peer: str) -> None: ...


class Member:
    """One node as far as exchanges go."""

    def __init__(self, name: str, network: MemoryNetwork, x: int, pace: str, seed: int) -> None:
        rng = Random(f"{name} {seed}")
        self.name = name
        self.network = network
        self.engine = CountingEngine(x)
        self.facts = Facts()
        self.transactions = Transactions()
        self.strangers: set[str] = set()
        manifest = msgspec.structs.replace(Manifest(), pace=PaceSection(kind=pace, max_wait_s=2.0))
        self.exchange = Exchange(
            network=network, engine=self.engine, report=self.facts, manifest=manifest, swarm="swarm", me=name,
            fresh_inc=lambda: rng.randrange(2**60), may=lambda peer: peer not in self.strangers, admits=self.admits,
            budget=Plenty(), transactions=self.transactions,
        )  # fmt: skip

    def admits(self, peer: str) -> bool:
        if peer in self.strangers:
            raise RemoteProtocolError(peer, "not_a_member")
        return True

    async def rounds(
        self, count: int, links: Callable[[int], Mapping[str, float]], compute_s: Callable[[], float]
    ) -> None:
        turn = 0
        while turn < count:
            self.exchange.computing(turn, links(turn), VIEW)
            await trio.sleep(compute_s())
            outcome = await self.exchange.round(turn, links(turn), VIEW)
            turn = max(turn + 1, min(outcome.behind, count - 1))


class Swarm:
    """Members a, b, c … on one network. Their models begin at 0, 1000, 2000 …"""

    def __init__(self, n: int, *, pace: str = "steps", rules=(), seed: int = 0) -> None:
        self.hub = MemoryHub(rules, seed)
        self.pace, self.seed = pace, seed
        names = [chr(ord("a") + i) for i in range(n)]
        self.members = {name: Member(name, self.hub.join(name), 1000 * i, pace, seed) for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @asynccontextmanager
    async def serving(self):
        async with trio.open_nursery() as nursery:
            for one in self.members.values():
                for other in self.members.values():
                    if one is not other:
                        one.network.learn(other.name, other.network.addresses)
                await nursery.start(one.exchange.serve)
            yield nursery
            nursery.cancel_scope.cancel()

    def imbalance(self) -> int:
        """Sum of |c_ij + c_ji| over all edges, settled flows included."""
        total = 0
        for one in self.members.values():
            for other in self.members.values():
                if one.name < other.name:
                    total += abs(_held(one, other) + _held(other, one))
        return total

    async def all(self, function: Callable[[Member], object]) -> None:
        """Call an async function for every member at once and wait."""
        async with trio.open_nursery() as nursery:
            for member in self.members.values():
                nursery.start_soon(function, member)


def _held(one: Member, other: Member) -> int:
    return one.engine.flows.get(other.name, 0) + one.engine.settled.get(other.name, 0)
