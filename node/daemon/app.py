"""One run of a node: its phases, in the nursery in which its services run.

    Starting ── network opens ──▶ Joining ── manifest ──▶ Opening ── engine, credential ──▶ RunningNode
                                     └──────▶ Fetching ──▶ ┘ the model of a swarm of scripts  │
    members ─▶ a late joiner's model ─▶ quorum ─▶ training ─▶ finished ─▶ linger ─▶ leave ◀───┘

`Node.phase` holds what exists now, so that nothing is optional within a phase; status and commands match on it.
The same object runs in production (`starling.node.daemon.main`: libp2p, an engine process, a control socket) and in simulation
(`starling.node.simulate.virtual`: memory network, inline engine, virtual time).
"""

import math
from dataclasses import dataclass

import trio

from starling.gossip.errors import GossipError
from starling.node.config import attack_consent, descriptions, initial_model, memory_estimate, schedule_hours, script
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.daemon.agreed import check_agreed, code_of
from starling.node.daemon.context import NodeContext, NodeSetup
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.events import Events
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.bootstrap import Bootstrap
from starling.node.daemon.progress import Progress
from starling.node.daemon.running import Begun, RunningNode
from starling.node.daemon.schedule import Schedule
from starling.node.daemon.state.start_model import StartFile, StartModel, Ways
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.trust.peer_policy import Enforcement, PeerPolicy
from starling.node.net.api import Network
from starling.node.rpc import calls


@dataclass(frozen=True, slots=True)
class Starting:
    """The network is not open yet."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Peers can reach this node; the manifest is being fetched."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """The manifest of a swarm of scripts is known; its initial model is being fetched, unless it is here."""

    manifest: Manifest
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class OpeningTask:
    """The manifest is known; the engine opens the task, and a credential is obtained."""

    context: NodeContext
    engine: EngineSupervisor


Phase = Starting | Joining | Fetching | OpeningTask | RunningNode


class Node:
    """A node's life from its start to its end, as one sequence of phases."""

    def __init__(self, setup: NodeSetup, events: Events) -> None:
        self.setup = setup
        self.events = events
        self.progress = Progress(events.changes.notify)
        self.policy = PeerPolicy(setup.identity.peer_id, events, setup.machine.unix_time, setup.store.keep_decisions)
        self.policy.resume(setup.store.known_decisions())
        self.manifest = setup.store.read_manifest()  # None until the manifest is fetched
        self.transactions = Transactions(setup.machine.unix_time)
        self.began = trio.current_time()
        self.phase: Phase = Starting()
        self.network: Network | None = None  # None until the network is open
        self._listening = trio.Event()
        self._ready = trio.Event()
        self._stop = trio.Event()

    @property
    def running(self) -> RunningNode:
        """Return the node with all of its services. Raises GossipError: it is still starting."""
        if not isinstance(self.phase, RunningNode):
            raise GossipError("the node is still starting")
        return self.phase

    async def run(self) -> None:
        """Run until the rounds are finished and the linger is over, or until `stop`.

        Raises ConfigError: the person's input is wrong; GossipError: the node cannot go on, or its model could not be saved at the end.
        """
        attack_consent.check(self.setup.config)
        schedule_hours.parse(self.setup.config.active)
        async with self.setup.machine.open_network(self.policy) as network, trio.open_nursery() as nursery:
            self.network, self.phase = network, Joining()
            self._listening.set()
            self.events.event("listening", f"listening on {', '.join(network.addresses)}", addresses=network.addresses)
            if (warning := attack_consent.warning(self.setup.config)) is not None:
                self.events.event("byzantine", warning, level="warning", attack=self.setup.config.attack)
            self.policy.enforce(Enforcement(network.refuse))
            nursery.start_soon(self._leave_when_stopped, nursery.cancel_scope)
            await self._live(network, nursery)
            await self._leave()
            nursery.cancel_scope.cancel()
        if isinstance(self.phase, RunningNode) and (why := self.phase.training.house.cannot_save):
            raise GossipError(f"the model could not be saved: {why}; free disk space (df -h) and `starling run` again")

    def stop(self) -> None:
        """End the run in order: farewell, checkpoint, done within three seconds."""
        self._stop.set()

    @property
    def is_listening(self) -> bool:
        """Return whether peers can reach this node."""
        return self._listening.is_set()

    async def listening(self) -> None:
        """Wait until peers can reach us."""
        await self._listening.wait()

    async def ready(self) -> tuple[str, ...]:
        """Wait until peers can reach us and the engine has opened the task -> our addresses."""
        await self._ready.wait()
        return self.running.context.network.addresses

    async def _live(self, network: Network, nursery: trio.Nursery) -> None:
        setup, report, store, machine = self.setup, self.policy, self.setup.store, self.setup.machine
        bootstrap = Bootstrap(setup.config.bootstrap, store.known_peers(), store.remember_peers, report)
        transfer = Transfer(network=network, report=report, manifest=self._manifest_bytes, partial=store.partial)
        await nursery.start(transfer.serve)
        if setup.config.lan and network.port is not None:
            from starling.node.net.lan import Lan  # noqa: PLC0415 — simulated nodes have no local network

            def found(address: str) -> None:
                network.also_at(address)
                bootstrap.add(address)

            nursery.start_soon(Lan(setup.swarm, network.peer_id, lambda: network.local, found, report).serve)
        if setup.config.map_port and network.port is not None:
            from starling.node.net.port_lease import PortLease  # noqa: PLC0415 — likewise

            nursery.start_soon(PortLease(lambda: network.local, network.leased, report).serve)
        manifest = await self._agree(network, transfer, bootstrap)
        stage = await self._stage(network, transfer, bootstrap, manifest)
        begins = await self._start(network, transfer, bootstrap, manifest)
        engine = EngineSupervisor(
            start=machine.start_engine,
            open_request=_open_request(setup, manifest, stage, begins),
            silence_s=_silence_s(setup, manifest),
            report=report,
        )
        context = NodeContext(setup, manifest, int(machine.unix_time() * 1000), network, engine, report)
        admission = Admission(context, store, setup.chain, machine.offload)
        self.phase = OpeningTask(context, engine)
        nursery.start_soon(engine.serve)
        await admission.obtain()
        opened = await engine.ready()
        begun = Begun(admission, bootstrap, transfer, self.policy, self.progress, self.transactions)
        running = self.phase = RunningNode(context, engine, opened, begun, stage, machine.seconds)
        members, of, cut = running.membership, running.membership.origins, running.contributions.cut
        self.policy.enforce(Enforcement(network.refuse, cut, of.inviters_of, of.invitations_of, lambda: members.table))
        self._ready.set()
        await running.serve(nursery)
        if setup.config.active or setup.config.pause_on_battery:
            nursery.start_soon(Schedule(setup.config, running.training.pause, machine.unix_time, machine.sensors.on_battery).serve)
        await running.train(store.model)

    async def _stage(self, network: Network, transfer: Transfer, bootstrap: Bootstrap, manifest: Manifest) -> int:
        """Return the stage of the model that this node computes, in a swarm of crews; -1 where there are none."""
        stages, given = manifest.crew.stages, self.setup.config.stage
        if stages == 1 or given >= 0:
            return given
        stage = 0 if manifest.founder == network.peer_id else await bootstrap.stage(transfer, network, stages)
        self.setup.store.keep_stage(stage)
        return stage

    async def _start(self, network: Network, transfer: Transfer, bootstrap: Bootstrap, manifest: Manifest) -> str:
        """Return the path of the initial model's file; a swarm of scripts fetches it if it is missing, and serves it from then on."""
        setup, wanted, place = self.setup, initial_model.sent(manifest), self.setup.store.start
        if wanted is None or place is None:
            return setup.config.start
        self.phase = Fetching(manifest, transfer)
        file = StartFile(place, wanted, setup.machine.offload)
        model = StartModel(file, setup.swarm, network, transfer, self.policy)

        async def dial(address: str) -> str:
            return await network.dial(address, given=address in bootstrap.given)

        await model.obtain(setup.config.start, Ways(lambda: bootstrap.addresses, dial))
        return str(place)

    async def _agree(self, network: Network, transfer: Transfer, bootstrap: Bootstrap) -> Manifest:
        """Return the swarm's manifest, which is fetched if this node lacks it."""
        self.progress.enter("joining")
        manifest = self.manifest
        if manifest is None:
            manifest = await bootstrap.fetch_manifest(transfer, network, self.setup.swarm)
            if (free := memory_estimate.here(self.setup.config)) is not None:
                memory_estimate.check(manifest, self.setup.config, free)
            self.setup.store.write_manifest(manifest)
            self.manifest = manifest
        check_agreed(manifest, self.setup.config, ours=manifest.founder == network.peer_id)
        if risk := descriptions.unprotected(manifest):
            self.events.event("unprotected", risk, level="warning")
        return manifest

    def _manifest_bytes(self, swarm: str) -> bytes | None:
        known = self.manifest
        return manifests.to_bytes(known) if known is not None and swarm == self.setup.swarm else None

    async def _leave_when_stopped(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        await self._leave()
        scope.cancel()

    async def _leave(self) -> None:
        if self.progress.state == "leaving":
            return
        self.progress.enter("leaving")
        if isinstance(self.phase, RunningNode):
            await self.phase.leave()
        self.events.event("left", "left the swarm in order")


def _silence_s(setup: NodeSetup, manifest: Manifest) -> float:
    """Return the seconds after which an engine that answers nothing is restarted; infinite where it waits for a script."""
    return math.inf if script.does_steps(setup.config, manifest) else setup.config.engine_timeout_s


def _open_request(setup: NodeSetup, manifest: Manifest, stage: int, begins: str) -> calls.Open:
    config, me = setup.config, setup.identity.peer_id
    return calls.Open(
        manifest=manifest,
        data=config.data,
        shard=manifests.shard_of(manifest, config.shard, me),
        device=config.device,
        threads=config.threads,
        checkpoint=str(setup.store.checkpoint or ""),
        node=me,
        privacy=config.privacy,
        numerics=config.numerics,
        attack=config.attack,
        attack_params=config.attack_params,
        code=code_of(config),
        start=begins,
        nice=config.nice,
        ranks=config.ranks,
        stage=stage,
        script=script.does_steps(config, manifest),
    )
