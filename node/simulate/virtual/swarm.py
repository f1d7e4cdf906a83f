"""Whole nodes in virtual time: the production daemon and engine over a memory network, with faults as rules.

Run it under a clock that jumps when every task sleeps (`trio.testing.MockClock(autojump_threshold=0)`): an hour of a swarm takes as
long as its computing. The same seed gives the same run, bit for bit, if trio's scheduler is made deterministic as well.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from torch import Tensor

from starling.gossip.seeds import derive
from starling.node.admission.chain import Chain
from starling.node.config.initial_model import with_file_digest
from starling.node.config.manifest import create, swarm_id
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.app import Node
from starling.node.daemon.context import Machine, NodeSetup
from starling.node.daemon.events import Events
from starling.node.daemon.store import MemoryStore
from starling.node.engine.worker import Worker
from starling.node.identity import Identity
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.net.api import Network
from starling.node.net.faults import Rule
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from starling.node.simulate.virtual.inline_engine import open_inline

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0  # unix time at which virtual time starts; arbitrary, but incarnations are unix times
SECOND = 1000  # indices of nodes that others started are beyond
WORK_S = 1e-3  # virtual seconds of one piece of work that production gives to a thread


@dataclass(slots=True)
class VirtualNode:
    """One running node of a virtual swarm."""

    node: Node
    engine: Worker | None = None  # its current engine; None before the first has opened
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # cancelled by a crash
    ended: trio.Event = field(default_factory=trio.Event)  # the daemon ran to its end

    @property
    def peer_id(self) -> str:
        return self.node.setup.identity.peer_id

    @property
    def vector(self) -> Tensor:
        """Return the node's current model (d,)."""
        assert self.engine is not None
        return self.engine.vector


class VirtualSwarm:
    """Nodes by index; node 0 creates, and signs `manifest`.

    `rules` are faults, see `starling.node.net.faults`; the list may be changed while the swarm runs. `step_cost_s` gives virtual seconds of
    a local step by node index, `seed` identities and the network's random draws. `config` holds every node's own settings, of which `shard`
    and `bootstrap` are filled in. All `attacks` know each other; those changed later are of nodes that start then. Without a folder there
    are no checkpoints: a node that returns begins with a peer's model. `clock_off_s` gives by how many seconds a node's wall clock is wrong
    at present.

    With `fixed_deadlines` neighbors wait for each other as long as the manifest allows, instead of an adaptive deadline: messages of a
    virtual network vary so little that it leaves no room for a neighbor that itself waits for another.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        rules: list[Rule] | None = None,
        step_cost_s: Callable[[int], float] = lambda _index: 1e-3,
        seed: int = 0,
        config: NodeConfig | None = None,
        attacks: Mapping[int, str] | None = None,
        fixed_deadlines: bool = False,
        folder: Path | None = None,
        clock_off_s: Callable[[int], float] = lambda _index: 0.0,
    ) -> None:
        self._seed = seed
        manifest, self.config = with_file_digest(manifest, config or NodeConfig(linger_s=1e6, threads=1, trust=True))
        self.manifest = create(manifest, self.identity(0), int(EPOCH_S * 1000))
        self.swarm = swarm_id(self.manifest)
        pace = self.manifest.pace
        fixed = pace.changed(min_wait_s=pace.slot_s if pace.kind == "clock" else pace.max_wait_s)
        self.agreed = msgspec.structs.replace(self.manifest, pace=fixed if fixed_deadlines else pace)
        self.hub = MemoryHub(rules or (), seed)
        self.nodes: dict[int, VirtualNode] = {}
        self._step_cost_s = step_cost_s
        self._attacks = {} if attacks is None else attacks
        self._folder = folder
        self._clock_off_s = clock_off_s
        self._nursery: trio.Nursery | None = None
        self._seconds = 0
        self.stores: dict[int, MemoryStore] = {}  # storage of nodes at their last start, by index
        self.chains: dict[int, Chain] = {}  # invitations of nodes, by index

    def identity(self, index: int) -> Identity:
        """Return the key of a node: the same for the same seed."""
        return Identity.from_seed(b"".join(derive(self._seed, "identity", index, part).to_bytes(8, "little") for part in range(4)))

    @asynccontextmanager
    async def running(self, nodes: int) -> AsyncIterator[None]:
        """Start `nodes` nodes; on leaving all are stopped."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for index in range(nodes):
                await self.start(index)
            yield
            nursery.cancel_scope.cancel()

    def second(self, stage: int) -> None:
        """Start another node, which takes a stage of a crew."""
        assert self._nursery is not None
        self._seconds += 1
        self._nursery.start_soon(partial(self.start, SECOND + self._seconds, stage=stage))

    async def start(self, index: int, *, shard: int | None = None, stage: int | None = None) -> VirtualNode:
        """Start one node, for the first time or again after a crash; back when it is on the network.

        In a swarm of crews it takes `stage`, by default that of its index.
        """
        assert self._nursery is not None
        identity = self.identity(index)
        bootstrap = tuple(address_of(other.peer_id) for at, other in sorted(self.nodes.items()) if at != index)
        stages = self.manifest.crew.stages
        shard = (index // stages if shard is None else shard) % self.manifest.partition.shards
        config = msgspec.structs.replace(self.config, bootstrap=bootstrap[:8], shard=shard)
        if stages > 1:
            config = msgspec.structs.replace(config, stage=index % stages if stage is None else stage)
        if index in self._attacks:
            params = {"crew": ",".join(self.identity(attacker).peer_id for attacker in self._attacks)}
            attack = self._attacks[index]
            config = msgspec.structs.replace(config, attack=attack, attack_params=params, attack_agreed=True)

        @asynccontextmanager
        async def network(_report: Reporter) -> AsyncIterator[Network]:
            place = self.hub.join(identity.peer_id, config.limits)
            try:
                yield place
            finally:
                if not virtual.scope.cancel_called:
                    self.hub.crash(identity.peer_id)

        @asynccontextmanager
        async def engine() -> AsyncIterator[EngineHandle]:
            virtual.engine = Worker(trio.current_time)
            async with open_inline(virtual.engine, step_cost_s=self._step_cost_s(index)) as handle:
                yield handle

        machine = Machine(
            network,
            engine,
            lambda: EPOCH_S + trio.current_time() + self._clock_off_s(index),
            _inline,
            seconds=_Seconds(self) if stages > 1 else None,
        )
        setup = NodeSetup(identity, config, self.swarm, self._store(index), machine, self.chains.get(index, ()))
        virtual = self.nodes[index] = VirtualNode(Node(setup, Events(None, clock=machine.unix_time)))
        self._nursery.start_soon(self._live, virtual)
        await virtual.node.listening()
        return virtual

    def _store(self, index: int) -> MemoryStore:
        """Return a node's storage: between two starts only bans and trust, and its checkpoint if there is a folder."""
        checkpoint = self._folder / f"{index}.safetensors" if self._folder else None
        before = self.stores.get(index, MemoryStore())
        store = self.stores[index] = MemoryStore(self.agreed, before.decisions, checkpoint=checkpoint)
        return store

    async def _live(self, virtual: VirtualNode) -> None:
        with virtual.scope:
            await virtual.node.run()
        virtual.ended.set()

    async def crash(self, index: int) -> None:
        """End a node without a farewell; its identity may start again later."""
        virtual = self.nodes.pop(index)
        self.hub.crash(virtual.peer_id)
        virtual.scope.cancel()
        await virtual.ended.wait()

    async def leave(self, index: int) -> None:
        """Stop a node in order, with a farewell."""
        virtual = self.nodes.pop(index)
        virtual.node.stop()
        await virtual.ended.wait()

    async def finished(self) -> None:
        """Wait until every living node has done its rounds."""
        while not all(virtual.node.progress.state == "finished" for virtual in self.nodes.values()):  # noqa: ASYNC110 — a look costs no virtual time
            await trio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Satisfies `starling.node.daemon.context.SecondNodes`."""

    swarm: VirtualSwarm

    def prepare(self) -> None: ...

    def start(self, stage: int, bootstrap: tuple[str, ...]) -> bool:
        """Return a node of the same swarm."""
        del bootstrap
        self.swarm.second(stage)
        return True


async def _inline(work: Callable[[], T]) -> T:
    """Run `work` in the event loop instead of a thread: with an autojump clock, a task that waits for a thread counts as idle."""
    result = work()
    await trio.sleep(WORK_S)
    return result
