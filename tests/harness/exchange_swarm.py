"""Nodes for the tests of the exchange service: a real service over a memory network, and an engine that computes with integers."""

from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace

import msgspec
import trio

from starling.gossip.overlay.sticky import StickyEdges
from starling.node.config.schema import Manifest, PaceSection
from starling.node.daemon.exchange.rounds import RoundExchange
from starling.node.daemon.exchange.visits import VisitExchange
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import MemoryNetwork
from starling.node.rpc import calls
from tests.harness.context import context
from tests.harness.memory_swarm import VIEW, FakeEngine, Member, Swarm

ALL = 64  # maximal degree: as many as there may be peers


class CountingEngine(FakeEngine):
    """An engine whose model is one integer: exchanges average it, flows record the change over each edge.

    Args:
        x: the model.
        cost_s: virtual time of a call.
    """

    def __init__(self, x: int, cost_s: float = 0.002) -> None:
        super().__init__(cost_s)
        self.x = x
        self.flows: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.kept: dict[tuple[str, int, int], int] = {}
        self.mixed: list[int] = []

    def answer(self, request: calls.Request) -> calls.Reply:
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
            case calls.Revoke(peer):
                self.flows.pop(peer, None)
                self.kept = {key: v for key, v in self.kept.items() if key[0] != peer}
                self.settled.pop(peer, None)
            case calls.Mix(round):
                self.mixed.append(round)
        return calls.Done()

    def _add(self, peer: str, v: int) -> None:
        self.x += v
        self.flows[peer] = self.flows.get(peer, 0) + v


class PairwiseMember(Member):
    """A member with the service of pairwise exchanges."""

    def __init__(self, name: str, network: MemoryNetwork, x: int, pace: str, seed: int, sticky: StickyEdges | None) -> None:
        rng = Random(f"{name} {seed}")
        super().__init__(name, network, CountingEngine(x))
        manifest = msgspec.structs.replace(Manifest(), pace=PaceSection(kind=pace, **({"max_wait_s": 2.0} if pace == "steps" else {})))
        given = context(
            network=network, engine=self.engine, report=self.facts, manifest=manifest, swarm="swarm", identity=SimpleNamespace(peer_id=name)
        )
        common = given, self, lambda: rng.randrange(2**60), lambda *_: None, (self.transactions.observe,)
        if pace == "steps":
            self.exchange = RoundExchange(*common, lambda _round: {})
        else:
            self.exchange = VisitExchange(*common, sticky or StickyEdges(ALL, b"salt"))

    async def rounds(self, count: int, links: Callable[[int], Mapping[str, float]], compute_s: Callable[[], float]) -> None:
        turn = 0
        while turn < count:
            self.exchange.computing(turn, links(turn), VIEW)
            await trio.sleep(compute_s())
            outcome = await self.exchange.round(turn, links(turn), VIEW)
            turn = max(turn + 1, min(outcome.behind, count - 1))


class PairwiseSwarm(Swarm):
    """Members a, b, c … whose models begin at 0, 1000, 2000 … `sticky`: degree of members that limit theirs, by name."""

    def __init__(self, n: int, *, pace: str = "steps", rules=(), seed: int = 0, sticky: Mapping[str, StickyEdges] | None = None) -> None:
        hub = MemoryHub(rules, seed)
        names = [chr(ord("a") + i) for i in range(n)]
        super().__init__(
            hub, [PairwiseMember(name, hub.join(name), 1000 * i, pace, seed, (sticky or {}).get(name)) for i, name in enumerate(names)]
        )

    def imbalance(self) -> int:
        """Return the sum of |c_ij + c_ji| over all edges, settled flows included."""
        total = 0
        for one in self.members.values():
            for other in self.members.values():
                if one.name < other.name:
                    total += abs(_held(one, other) + _held(other, one))
        return total


def _held(one: PairwiseMember, other: PairwiseMember) -> int:
    return one.engine.flows.get(other.name, 0) + one.engine.settled.get(other.name, 0)
