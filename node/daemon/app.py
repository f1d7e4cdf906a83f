"""A whole node: the one nursery in which its services live, from listening to leaving.

    network ─▶ transfer (manifest) ─▶ engine ─▶ membership ─▶ state of a late joiner ─▶ quorum ─▶ training ─▶ finished ─▶ linger
                                        └─▶ exchange

The same object runs in production (`starling.node.daemon.main`: libp2p, an engine process, a control socket) and in simulation
(`starling.node.simulate.virtual`: memory network, inline engine, virtual time).
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import trio

from starling.gossip.errors import ConfigError, EngineError, GossipError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Died, Joined, Left, MemberEvent, Reborn
from starling.gossip.overlay.ranks import order_digest
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Beacon, BeaconQuery
from starling.node.config import attack_consent
from starling.node.config import manifest as manifests
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.context import NodeContext
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.events import Events
from starling.node.daemon.exchange.api import Meetings
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.bootstrap import Bootstrap
from starling.node.daemon.membership.service import Membership, Overheard
from starling.node.daemon.services import Partners, beacon_service, meetings
from starling.node.daemon.state.model_sync import ModelSync, disjoint
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.training import Progress, Training
from starling.node.daemon.trust.equivocation import EquivocationDetector
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.interfaces import TaskStatus
from starling.node.net.api import Network
from starling.node.rpc import calls

FAREWELL_S = 0.7  # for telling everybody that we leave
LAST_SAVE_S = 1.2  # for the last checkpoint
CONTRADICTED_S = 2.0  # first pause of a joiner that was told contradictory models; doubles up to a minute
PAYLOAD_BYTES_PER_PARAMETER = 32  # none is longer: two vectors of doubles, and a number for each coordinate …
PAYLOAD_BYTES = 64 << 10  # … with what goes with them
SETTLE_S = 3.0  # a joiner looks so long for members before it decides that it is alone


class Node:
    """One node, running once.

    Args:
        parts: see NodeContext.
        report: where events go.
    """

    def __init__(self, parts: NodeContext, report: Events) -> None:
        self.parts = parts
        self.report = report
        self.manifest = parts.manifest
        self.progress = Progress()
        self.policy = PeerPolicy(
            me=parts.identity.peer_id, report=report, unix_time=parts.unix_time, refuse=self._refuse, cut=self._cut,
            inviter_of=self._inviter_of, known=lambda: self.membership.table if self.membership is not None else (),
            keep=parts.keep_decisions,
        )  # fmt: skip
        self.bootstrap = Bootstrap(parts.config.bootstrap, parts.known, parts.remember, report)
        self.network: Network | None = None
        self.membership: Membership | None = None
        self.exchange: Meetings | None = None
        self.engine: EngineSupervisor | None = None
        self.training: Training | None = None
        self.partners: Partners | None = None
        self.transactions = Transactions(parts.unix_time)
        self._model_sync: ModelSync | None = None
        self._equivocation: EquivocationDetector | None = None
        self._beacons: BeaconService | None = None
        self._nursery: trio.Nursery | None = None
        self.began = trio.current_time()
        self.joined_late = False
        self._incs = 0
        self._listening = trio.Event()
        self._ready = trio.Event()
        self._stop = trio.Event()
        self.policy.resume(parts.decisions)

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the run is finished and its linger over, or until `stop`.

        Raises:
            ConfigError: the person's input is wrong.
            GossipError: the node cannot go on.
        """
        attack_consent.check(self.parts.config)
        async with self.parts.open_network() as network, trio.open_nursery() as nursery:
            self.network, self._nursery = network, nursery
            self._listening.set()
            self.report.event("listening", f"listening on {', '.join(network.addresses)}", addresses=network.addresses)
            if (lies := attack_consent.warning(self.parts.config)) is not None:
                self.report.event("byzantine", lies, level="warning", attack=self.parts.config.attack)
            self.report.on_fault = self.policy.fault
            self.policy.enforce()
            nursery.start_soon(self._stop_when_told, nursery.cancel_scope)
            await self._live(network, nursery)
            await self._leave()
            nursery.cancel_scope.cancel()
        if self.training is not None and self.training.cannot_save:
            raise GossipError(
                f"the model could not be saved: {self.training.cannot_save}; free disk space (df -h) and `starling run` again"
            )

    def stop(self) -> None:
        """End the run in order: farewell, checkpoint, done within three seconds."""
        self._stop.set()

    @property
    def is_listening(self) -> bool:
        """Peers can reach us."""
        return self._listening.is_set()

    async def listening(self) -> None:
        """Wait until peers can reach us."""
        await self._listening.wait()

    async def ready(self) -> None:
        """Wait until peers can reach us and the engine has taken the manifest and the data."""
        await self._listening.wait()
        await self._ready.wait()

    async def _live(self, network: Network, nursery: trio.Nursery) -> None:
        parts, report = self.parts, self.report
        transfer = Transfer(network=network, report=report, manifest=self._manifest_bytes)
        await nursery.start(transfer.serve)
        manifest = await self._agree(network, transfer)
        admission = Admission(
            manifest=manifest, swarm=parts.swarm, identity=parts.identity, papers=parts.papers, operator=parts.config.operator,
            unix_s=parts.unix_time, report=report,
        )  # fmt: skip
        self.engine = engine = EngineSupervisor(
            start=parts.start_engine,
            opening=self._opening(manifest),
            silence_s=parts.config.engine_timeout_s,
            report=report,
        )
        nursery.start_soon(engine.serve)
        await admission.obtain()
        life, clock, overlay = int(parts.unix_time() * 1000), SwarmClock(patience_s=math.inf), overlay_of(manifest)
        self.membership = membership = Membership(
            network=network, identity=parts.identity, swarm=parts.swarm, section=manifest.membership, report=report,
            seed=manifest.seed, incarnation=life, clock=clock, admission=admission,
        )  # fmt: skip
        membership.overheard = self._overheard
        self._beacons = beacon_service(parts, manifest, network, membership, report, life)
        exchange, self.partners, self._equivocation = meetings(
            parts=parts, manifest=manifest, overlay=overlay, network=network, engine=engine, membership=membership, policy=self.policy,
            report=report, life=life, round=lambda: self.progress.round, salt=self._salt, fresh_inc=self._fresh_inc,
            transactions=self.transactions,
        )  # fmt: skip
        self.exchange = exchange
        engine.on_restart = exchange.reset_all
        opened = await self._open(engine, network, transfer)
        await self._meet(nursery, membership, exchange)
        self.training = training = Training(
            me=network.peer_id, manifest=manifest, salt=parts.swarm.encode(), overlay=overlay, partners=self.partners.of,
            view=self._view, engine=engine, exchange=exchange, membership=membership, clock=clock, progress=self.progress,
            report=report, checkpoint_s=parts.config.checkpoint_s, fetch=self._fetch,
        )  # fmt: skip
        start_round = await self._start_round(training, membership, opened)
        transfer.give(engine, membership.may_read)
        await training.quorum(begun=start_round > 0)
        await training.run(start_round)
        await training.save(parts.export)
        self.progress.enter("finished")
        report.event("finished", f"all {manifest.pace.rounds} rounds done", round=self.progress.round)
        await trio.sleep(parts.config.linger_s)
        if training.cannot_save:  # somebody may have freed disk space meanwhile
            await training.save(parts.export)

    async def _agree(self, network: Network, transfer: Transfer) -> Manifest:
        """What the swarm has agreed on, fetched if we do not have it."""
        self.progress.enter("joining")
        if self.manifest is None:
            self.manifest = await self.bootstrap.fetch_manifest(transfer, network, self.parts.swarm)
            self.parts.keep_manifest(self.manifest)
        if self.manifest.founder != network.peer_id:
            _consent(self.manifest, self.parts.config)
        return self.manifest

    async def _open(self, engine: EngineSupervisor, network: Network, transfer: Transfer) -> calls.Opened:
        """Wait for the engine, and tell everybody what it found."""
        await engine.ready()
        opened = engine.opened
        assert opened is not None
        network.expect("exchange", PAYLOAD_BYTES_PER_PARAMETER * opened.parameters + PAYLOAD_BYTES)
        self.progress.local_steps, self.progress.epsilon = opened.local_steps, opened.epsilon
        self.progress.round = opened.round
        transfer.expect(opened)
        self._model_sync = ModelSync(transfer=transfer, engine=engine, report=self.report)
        self._ready.set()
        return opened

    async def _meet(self, nursery: trio.Nursery, membership: Membership, exchange: Meetings) -> None:
        """Serve peers, and look for them."""
        await nursery.start(membership.serve)
        await nursery.start(exchange.serve)
        for service in (self._equivocation, self._beacons):
            if service is not None:
                await nursery.start(service.serve)
        await nursery.start(self._follow_members, membership, exchange)
        nursery.start_soon(self.bootstrap.watch, membership)
        nursery.start_soon(membership.join, self.bootstrap.addresses)

    def _salt(self, round: int) -> bytes:
        """What mixes into the ranks of a round."""
        return self._beacons.salt(round) if self._beacons is not None else self.parts.swarm.encode()

    def _view(self, round: int) -> bytes:
        """What both ends of an exchange of that round must agree on: the members, and their order where it changes."""
        assert self.membership is not None
        view = self.membership.view
        return view if self._beacons is None else order_digest(view, self._beacons.salt(round))

    def _overheard(self, peer: str, message: Overheard) -> None:
        match message:
            case Beacon() | BeaconQuery():
                if self._beacons is not None:
                    self._beacons.receive(peer, message)
            case _:
                if self._equivocation is not None:
                    self._equivocation.receive(peer, message)

    async def _stop_when_told(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        await self._leave()
        scope.cancel()

    async def _leave(self) -> None:
        if self.progress.state == "leaving":
            return
        finished = self.progress.state == "finished"
        self.progress.enter("leaving")
        with trio.CancelScope(shield=True):
            if self.membership is not None:
                with trio.move_on_after(FAREWELL_S):
                    await self.membership.leave()
            if self.training is not None and not finished:
                with trio.move_on_after(LAST_SAVE_S):
                    await self.training.save()
        self.report.event("left", "left the swarm in order")

    # --- joining ------------------------------------------------------------------------------------------

    async def _start_round(self, training: Training, membership: Membership, opened: calls.Opened) -> int:
        """The round to start at: the checkpoint's, or that of a model fetched from members who are further."""
        with trio.move_on_after(SETTLE_S if self.bootstrap.addresses else 0.0):
            while len(membership.members) < 2:  # noqa: ASYNC110 — a short look at the start
                await trio.sleep(0.05)
        assert self._model_sync is not None
        start, pause = opened.round, CONTRADICTED_S
        while True:
            try:
                start = await training.catch_up(
                    opened.round, opened.round + (training.patience if opened.resumed else 0)
                )
            except EngineError as error:
                await training.recover(error)
                continue
            if opened.resumed or not self._model_sync.contradicted:
                break
            await trio.sleep(pause)  # others may come, or those who lied be found out
            pause = min(2 * pause, 60.0)
        self.joined_late = start > opened.round and not opened.resumed
        return start

    async def _fetch(self, newer_than: int) -> int | None:
        """Take over the model on which members agree, if it is past round `newer_than`. -> its round"""
        assert self._model_sync is not None
        assert self.membership is not None
        me, moment = self.parts.identity.peer_id, int(self.parts.unix_time() * 1e6)
        others = [peer for peer in self.membership.members if peer != me and self.policy.fine(peer)]
        others.sort(key=lambda peer: derive(moment, "source", me, peer))  # nobody can wait where we look first
        membership = self.membership
        order = disjoint(others, lambda peer: {*membership.prefixes(peer), self._inviter_of(peer)} - {""})
        return await self._model_sync.fetch(order, newer_than)

    def _opening(self, manifest: Manifest) -> calls.Open:
        config = self.parts.config
        shards = manifest.partition.shards
        shard = config.shard if config.shard >= 0 else derive(0, "shard", self.parts.identity.peer_id)
        return calls.Open(
            manifest=manifest, data=config.data, shard=shard % shards, device=config.device, threads=config.threads,
            checkpoint=self.parts.checkpoint, node=self.parts.identity.peer_id, privacy=config.privacy,
            attack=config.attack, attack_params=config.attack_params,
            code=str(Path.cwd()) if config.trust else "",
        )  # fmt: skip

    # --- reacting -----------------------------------------------------------------------------------------

    async def _follow_members(
        self, membership: Membership, exchange: Meetings, task_status: TaskStatus = trio.TASK_STATUS_IGNORED
    ) -> None:
        events = membership.subscribe()
        task_status.started()
        async for event in events:
            await self._member(event, exchange)

    async def _member(self, event: MemberEvent, exchange: Meetings) -> None:
        match event:
            case Joined(peer=peer):
                self.report.event("peer_joined", f"{peer} joined", peer=peer)
                if self._equivocation is not None:
                    self._equivocation.welcome(peer)
            case Died(peer=peer):
                self.report.event("peer_died", f"{peer} is gone; its flow is deleted", level="warning", peer=peer)
                await self._gone(peer, exchange)
            case Left(peer=peer):
                self.report.event("peer_left", f"{peer} left", peer=peer)
                await self._gone(peer, exchange)
            case Reborn(peer=peer):
                self.report.event("peer_reborn", f"{peer} came back as a new life; its old flow is deleted", peer=peer)
                await self._gone(peer, exchange)
            case _:
                return

    def _refuse(self, peer: str, until: float) -> None:
        if self.network is not None:
            self.network.refuse(peer, until)

    def _inviter_of(self, peer: str) -> str:
        """Who answers for a peer; nobody for whom the founder itself invited, or its guests could have the founder shut out."""
        inviter = self.membership.inviter_of(peer) if self.membership is not None else None
        return inviter if inviter is not None and self.manifest is not None and inviter != self.manifest.founder else ""

    async def _gone(self, peer: str, exchange: Meetings) -> None:
        """What came of a peer is deleted."""
        if self._equivocation is not None:
            self._equivocation.forget(peer)
        await exchange.revoke(peer, settled=True)

    def _cut(self, peer: str) -> None:
        """What a peer contributed to the correction is deleted."""
        if self.exchange is not None and self._nursery is not None:
            self._nursery.start_soon(partial(self.exchange.revoke, peer, settled=True))

    @property
    def metric(self) -> str:
        """The task's figure of merit; "" until the engine has opened."""
        opened = self.engine.opened if self.engine is not None else None
        return opened.metric if opened is not None else ""

    # --- small parts --------------------------------------------------------------------------------------

    def _manifest_bytes(self, swarm: str) -> bytes | None:
        known = self.manifest is not None and swarm == self.parts.swarm
        return manifests.to_bytes(self.manifest) if known and self.manifest is not None else None

    def _fresh_inc(self) -> int:
        """A number that no earlier life of an edge is likely to have had."""
        self._incs += 1
        return derive(self._incs, "inc", self.parts.identity.peer_id, int(self.parts.unix_time() * 1e6)) >> 3


def _consent(manifest: Manifest, config: NodeConfig) -> None:
    """A manifest is somebody else's word: it may name code or files of this machine only if its owner agrees.

    Raises:
        ConfigError: it does, and the owner has not agreed.
    """
    task = manifest.task
    if config.trust:
        return
    if ":" in task.kind:
        raise ConfigError(
            f"task.kind: this swarm wants to run {task.kind!r} of your installation; join with --set trust=true if you agree"
        )
    if "path" in task.params and not config.data:
        raise ConfigError(
            f"task.params.path: this swarm wants to read {task.params['path']!r} on your machine; join with --data PATH of "
            "your own, or with --set trust=true if you agree"
        )
