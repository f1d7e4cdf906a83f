"""The fake engine, members and swarm for tests of services: real services over a network in memory."""

from collections.abc import Callable
from contextlib import asynccontextmanager

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.node.daemon.exchange.history import Transactions
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import MemoryNetwork
from starling.node.rpc import calls
from tests.harness.daemons import Reports

VIEW = b"everybody"
INCARNATION = 3


class FakeEngine:
    """An engine in the daemon's process: it records calls, answers after some virtual time, and can refuse or be dead.

    Subclasses define `answer(request)`.

    Attributes:
        dead: types of calls that find the engine process gone; (object,) for all.
        refuse: request -> the refusal, or None.
    """

    def __init__(self, cost_s: float = 0.002) -> None:
        self.cost_s = cost_s
        self.calls: list[calls.Request] = []
        self.dead: tuple[type, ...] = ()
        self.refuse: Callable[[calls.Request], calls.Refused | None] = lambda _call: None

    async def call(self, request: calls.Request) -> calls.Reply:
        await trio.sleep(self.cost_s)
        if isinstance(request, self.dead):
            raise EngineError("it is dead")
        self.calls.append(request)
        refused = self.refuse(request)
        return self.answer(request) if refused is None else refused

    def answer(self, request: calls.Request) -> calls.Reply:
        raise NotImplementedError

    def count(self, kind: type) -> int:
        return sum(isinstance(call, kind) for call in self.calls)


class _AllBut:
    """The set of all peers except some."""

    def __init__(self, strangers: set[str]) -> None:
        self._strangers = strangers

    def __contains__(self, peer: object) -> bool:
        return peer not in self._strangers


class Member:
    """Common parts of every member of a `Swarm`; subclasses add `exchange`, the service under test.

    Attributes:
        strangers: peers that are not members in this one's view.
    """

    def __init__(self, name: str, network: MemoryNetwork, engine: FakeEngine) -> None:
        self.name = name
        self.network = network
        self.engine = engine
        self.facts = Reports()
        self.transactions = Transactions(lambda: 0.0)
        self.strangers: set[str] = set()
        self.members = _AllBut(self.strangers)
        self.roster = (name,)

    def incarnation_of(self, peer: str) -> int | None:
        return INCARNATION if peer in self.members else None

    def admits(self, peer: str) -> bool:
        if peer in self.strangers:
            raise RemoteProtocolError(peer, "not_a_member")
        return True

    def silent(self, peer: str) -> bool:
        return False

    def lately_gone(self, peer: str) -> bool:
        return False

    def probe_now(self, peers, *, late: bool = False) -> None:
        """Do nothing: no peer is ever silent."""


class Swarm:
    """Members by name on one hub."""

    def __init__(self, hub: MemoryHub, members) -> None:
        self.hub = hub
        self.members = {member.name: member for member in members}

    def __getitem__(self, name: str):
        return self.members[name]

    @asynccontextmanager
    async def serving(self):
        """Run all services; every member knows the addresses of the others."""
        async with trio.open_nursery() as nursery:
            for one in self.members.values():
                for other in self.members.values():
                    if one is not other:
                        one.network.learn(other.name, other.network.addresses)
                await nursery.start(one.exchange.serve)
            yield nursery
            nursery.cancel_scope.cancel()

    async def all(self, function: Callable[[Member], object]) -> None:
        """Call an async function for all members at once and wait."""
        async with trio.open_nursery() as nursery:
            for member in self.members.values():
                nursery.start_soon(function, member)
