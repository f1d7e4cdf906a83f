"""A whole node: the one nursery in which its services live, from listening to leaving.

    network ─▶ transfer (manifest) ─▶ engine ─▶ membership ─▶ state of a late joiner ─▶ quorum ─▶ training ─▶ finished ─▶ linger
                                        └─▶ exchange

The same object runs in production (`node.daemon.main`: libp2p, an engine process, a control socket) and in simulation
(`node.scenario`: memory network, inline engine, virtual time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from gossip.errors import ConfigError, EngineError, GossipError, RemoteProtocolError, TransportError
from gossip.exchange.clock import SwarmClock
from gossip.membership.events import Died, Joined, Left, MemberEvent, Reborn
from gossip.mix.facts import FACTS
from gossip.overlay.api import Overlay
from gossip.overlay.ranks import order_digest
from gossip.seeds import derive
from gossip.wire.schema import Beacon, BeaconQuery
from node import hostility
from node import manifest as manifests
from node.config import Manifest, NodeConfig
from node.daemon.admission import Admission, Papers
from node.daemon.beacon import BeaconService
from node.daemon.budget import Budget
from node.daemon.exchange import Exchange
from node.daemon.handles import TaskStatus
from node.daemon.joining import Joining, disjoint
from node.daemon.meetings import Meetings
from node.daemon.membership import Membership, Overheard
from node.daemon.partners import Drawn, Neighbors
from node.daemon.pulls import PulledExchange
from node.daemon.report import Report
from node.daemon.standing import Judge
from node.daemon.supervisor import EngineSupervisor, StartEngine
from node.daemon.training import Progress, Training
from node.daemon.transfer import Transfer
from node.daemon.witness import Witness
from node.engine import calls
from node.identity import Identity, verify
from node.net.api import Network
from node.overlay import overlay_of
from robust.reputation import Decision

FAREWELL_S = 0.7  # for telling everybody that we leave
LAST_SAVE_S = 1.2  # for the last checkpoint
MANIFEST_PAUSE_S = 1.0  # first pause between attempts to fetch the manifest; doubles up to a minute
MAX_REMEMBERED = 16  # addresses of members kept for the next run …
REMEMBER_S = 10.0  # … looked at so often
CONTRADICTED_S = 2.0  # first pause of a joiner that was told contradictory models; doubles up to a minute
PAYLOAD_BYTES_PER_PARAMETER = 32  # none is longer: two vectors of doubles, and a number for each coordinate …
PAYLOAD_BYTES = 64 << 10  # … with what goes with them
SETTLE_S = 3.0  # a joiner looks so long for members before it decides that it is alone


@dataclass(frozen=True, slots=True)
class Parts:
    """What a node is made of.

    Args:
        identity: its key.
        config: the volunteer's settings.
        manifest: the swarm's agreement, or None to fetch it by `swarm` from the bootstrap peers.
        swarm: swarm id.
        checkpoint: path of the checkpoint file; "" for none.
        export: path of the final model; "" for none.
        open_network: opens its place in a network.
        start_engine: opens one engine.
        unix_time: seconds since 1970, for people and incarnations.
        keep_manifest: told a fetched manifest, to store it.
        known: addresses of members of an earlier run, tried like bootstrap peers.
        remember: told the addresses of some members now and then, for the next run.
        decisions: bans and trust of earlier runs, times in unix seconds.
        keep_decisions: told those that hold whenever they change.
        papers: what it shows to be let in.
    """

    identity: Identity
    config: NodeConfig
    manifest: Manifest | None
    swarm: str
    checkpoint: str
    export: str
    open_network: Callable[[], AbstractAsyncContextManager[Network]]
    start_engine: StartEngine
    unix_time: Callable[[], float]
    keep_manifest: Callable[[Manifest], object]
    known: tuple[str, ...] = ()
    remember: Callable[[tuple[str, ...]], object] = lambda _addresses: None
    decisions: tuple[Decision, ...] = ()
    keep_decisions: Callable[[tuple[Decision, ...]], object] = lambda _decisions: None
    papers: Papers = Papers()  # noqa: RUF009 — frozen


class Node:
    """One node, running once.

    Args:
        parts: see Parts.
        report: where events go.
    """

    def __init__(self, parts: Parts, report: Report) -> None:
        self.parts = parts
        self.report = report
        self.manifest = parts.manifest
        self.progress = Progress()
        self.judge = Judge(
            me=parts.identity.peer_id, report=report, unix_time=parts.unix_time, refuse=self._refuse, cut=self._cut,
            inviter_of=self._inviter_of, known=lambda: self.membership.table if self.membership is not None else (),
            keep=parts.keep_decisions,
        )  # fmt: skip
        self.network: Network | None = None
        self.membership: Membership | None = None
        self.exchange: Meetings | None = None
        self.engine: EngineSupervisor | None = None
        self.training: Training | None = None
        self._joining: Joining | None = None
        self._witness: Witness | None = None
        self._beacons: BeaconService | None = None
        self._nursery: trio.Nursery | None = None
        self.began = trio.current_time()
        self.joined_late = False
        self._incs = 0
        self._listening = trio.Event()
        self._ready = trio.Event()
        self._stop = trio.Event()

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the run is finished and its linger over, or until `stop`.

        Raises:
            ConfigError: the person's input is wrong.
            GossipError: the node cannot go on.
        """
        hostility.check(self.parts.config)
        async with self.parts.open_network() as network, trio.open_nursery() as nursery:
            self.network, self._nursery = network, nursery
            self._listening.set()
            self.report.event("listening", f"listening on {', '.join(network.addresses)}", addresses=network.addresses)
            if (lies := hostility.warning(self.parts.config)) is not None:
                self.report.event("byzantine", lies, level="warning", attack=self.parts.config.attack)
            self.report.on_fault = self.judge.fault
            self.judge.resume(self.parts.decisions)
            nursery.start_soon(self._stop_when_told, nursery.cancel_scope)
            await self._live(network, nursery)
            await self._leave()
            nursery.cancel_scope.cancel()

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
        transfer = Transfer(network=network, report=self.report, manifest=self._manifest_bytes)
        await nursery.start(transfer.serve)
        self.progress.state = "joining"
        manifest = self.manifest = self.manifest or await self._fetch_manifest(transfer, network)
        if manifest.founder != network.peer_id:
            _consent(manifest, self.parts.config)
        admission = Admission(
            manifest=manifest, swarm=self.parts.swarm, identity=self.parts.identity, papers=self.parts.papers,
            operator=self.parts.config.operator, unix_s=self.parts.unix_time, report=self.report,
        )  # fmt: skip
        self.engine = engine = EngineSupervisor(
            start=self.parts.start_engine, opening=self._opening(manifest), silence_s=self.parts.config.engine_timeout_s, report=self.report
        )  # fmt: skip
        nursery.start_soon(engine.serve)
        clock = SwarmClock(patience_s=math.inf)  # until the quorum
        await admission.obtain()
        life = int(self.parts.unix_time() * 1000)
        self.membership = membership = Membership(
            network=network, identity=self.parts.identity, swarm=self.parts.swarm, section=manifest.membership, report=self.report,
            seed=manifest.seed, incarnation=life, clock=clock, admission=admission,
        )  # fmt: skip
        overlay = overlay_of(manifest)
        if manifest.overlay.rerank_every and manifest.overlay.kind != "pull":
            self._beacons = self._beacon_service(manifest, network, membership, life)
        membership.overheard = self._overheard
        exchange, partners = self._meetings(manifest, overlay, network, engine, membership, life)
        self.exchange = exchange
        engine.on_restart = exchange.reset_all
        await engine.ready()
        opened = engine.opened
        assert opened is not None
        self._ready.set()
        network.expect("exchange", PAYLOAD_BYTES_PER_PARAMETER * opened.parameters + PAYLOAD_BYTES)
        self.progress.local_steps, self.progress.epsilon = opened.local_steps, opened.epsilon
        self.progress.round = opened.round
        transfer.expect(opened)
        self._joining = Joining(transfer=transfer, engine=engine, report=self.report)
        await nursery.start(membership.serve)
        await nursery.start(exchange.serve)
        if self._witness is not None:
            await nursery.start(self._witness.serve)
        if self._beacons is not None:
            await nursery.start(self._beacons.serve)
        await nursery.start(self._follow_members, membership, exchange)
        nursery.start_soon(self._remember_members, membership)
        nursery.start_soon(membership.join, self._contacts())
        self.training = training = Training(
            me=network.peer_id, manifest=manifest, salt=self.parts.swarm.encode(), overlay=overlay, partners=partners,
            view=self._view, engine=engine, exchange=exchange, membership=membership, clock=clock, progress=self.progress,
            report=self.report, checkpoint_s=self.parts.config.checkpoint_s, fetch=self._fetch,
        )  # fmt: skip
        start_round = await self._start_round(training, membership, opened)
        transfer.give(engine, membership.may_read)
        await training.quorum(begun=start_round > 0)
        await training.run(start_round)
        await training.save(self.parts.export)
        self.progress.state = "finished"
        self.report.event("finished", f"all {manifest.pace.rounds} rounds done", round=self.progress.round)
        await trio.sleep(self.parts.config.linger_s)

    def _meetings(
        self, manifest: Manifest, overlay: Overlay, network: Network, engine: EngineSupervisor, membership: Membership, life: int
    ) -> tuple[Meetings, Callable[[int], Mapping[str, float]]]:  # fmt: skip
        """The exchange service that the manifest asks for, and whom it meets in a round."""
        parts, me = self.parts, network.peer_id
        near = Neighbors(overlay, lambda: membership.members, me, self._salt)
        if not FACTS[manifest.mix.kind].gathers:
            pairwise = Exchange(
                network=network, engine=engine, report=self.report, manifest=manifest, swarm=parts.swarm, me=me,
                fresh_inc=self._fresh_inc, may=lambda peer: peer in membership.members, admits=membership.admits,
                budget=Budget(manifest, parts.config), directions=near.directions, noted=self.judge.noted,
            )  # fmt: skip
            return pairwise, near.links
        witness = self._witness = Witness(
            network=network, report=self.report, swarm=parts.swarm, verify=verify, members=lambda: membership.members,
            life_of=membership.life_of, round=lambda: self.progress.round,
            seed=derive(int.from_bytes(parts.identity.seed[:7], "little"), "witness", life),
        )  # fmt: skip
        pulled = PulledExchange(
            network=network, engine=engine, report=self.report, manifest=manifest, swarm=parts.swarm, life=life,
            sign=parts.identity.sign, verify=verify, life_of=membership.life_of, admits=membership.admits,
            up_bytes_per_s=parts.config.up_bytes_per_s, first=self._fresh_inc(), witness=witness.heard, noted=self.judge.noted,
        )  # fmt: skip
        if manifest.overlay.kind != "pull":
            return pulled, near.row
        drawn = Drawn(
            lambda: membership.members, me, manifest.overlay.k, membership.prefixes, manifest.admission.per_prefix,
            self.judge.fine, parts.identity.seed, life,
        )  # fmt: skip
        return pulled, drawn.row

    def _beacon_service(self, manifest: Manifest, network: Network, membership: Membership, life: int) -> BeaconService:
        identity = self.parts.identity
        return BeaconService(
            network=network, report=self.report, swarm=self.parts.swarm, founder=manifest.founder, sign=identity.sign, verify=verify,
            members=lambda: membership.members, every=manifest.overlay.rerank_every, sync_s=manifest.membership.sync_s,
            seed=derive(int.from_bytes(identity.seed[:7], "little"), "beacon", life),
        )  # fmt: skip

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
                if self._witness is not None:
                    self._witness.receive(peer, message)

    async def _stop_when_told(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        await self._leave()
        scope.cancel()

    async def _leave(self) -> None:
        if self.progress.state == "leaving":
            return
        finished = self.progress.state == "finished"
        self.progress.state = "leaving"
        with trio.CancelScope(shield=True):
            if self.membership is not None:
                with trio.move_on_after(FAREWELL_S):
                    await self.membership.leave()
            if self.training is not None and not finished:
                with trio.move_on_after(LAST_SAVE_S):
                    await self.training.save()
        self.report.event("left", "left the swarm in order")

    # --- joining ------------------------------------------------------------------------------------------

    async def _fetch_manifest(self, transfer: Transfer, network: Network) -> Manifest:
        pause, said = MANIFEST_PAUSE_S, False
        while True:
            for address in self._contacts():
                try:
                    peer = await network.dial(address)
                    raw = await transfer.fetch_manifest(peer, self.parts.swarm)
                    manifest = manifests.from_bytes(raw, self.parts.swarm, peer)
                except RemoteProtocolError as error:
                    self.report.fault(error.peer, error.reason)
                except (TransportError, trio.TooSlowError):
                    continue
                else:
                    self.parts.keep_manifest(manifest)
                    return manifest
            if not said:
                told = ", ".join(self._contacts())
                self.report.event(
                    "bootstrap_unreachable", f"no bootstrap peer answers ({told}); trying on", level="warning"
                )
                said = True
            await trio.sleep(pause)
            pause = min(2 * pause, 60.0)

    async def _start_round(self, training: Training, membership: Membership, opened: calls.Opened) -> int:
        """The round to start at: the checkpoint's, or that of a model fetched from members who are further."""
        with trio.move_on_after(SETTLE_S if self._contacts() else 0.0):
            while len(membership.members) < 2:  # noqa: ASYNC110 — a short look at the start
                await trio.sleep(0.05)
        assert self._joining is not None
        start, pause = opened.round, CONTRADICTED_S
        while True:
            try:
                start = await training.catch_up(
                    opened.round, opened.round + (training.patience if opened.resumed else 0)
                )
            except EngineError as error:
                await training.recover(error)
                continue
            if opened.resumed or not self._joining.contradicted:
                break
            await trio.sleep(pause)  # others may come, or those who lied be found out
            pause = min(2 * pause, 60.0)
        self.joined_late = start > opened.round and not opened.resumed
        return start

    async def _fetch(self, newer_than: int) -> int | None:
        """Take over the model on which members agree, if it is past round `newer_than`. -> its round"""
        assert self._joining is not None
        assert self.membership is not None
        me, moment = self.parts.identity.peer_id, int(self.parts.unix_time() * 1e6)
        others = [peer for peer in self.membership.members if peer != me and self.judge.fine(peer)]
        others.sort(key=lambda peer: derive(moment, "source", me, peer))  # nobody can wait where we look first
        membership = self.membership
        order = disjoint(others, lambda peer: {*membership.prefixes(peer), self._inviter_of(peer)} - {""})
        return await self._joining.fetch(order, newer_than)

    def _contacts(self) -> tuple[str, ...]:
        """Bootstrap peers and members of an earlier run."""
        return tuple(dict.fromkeys((*self.parts.config.bootstrap, *self.parts.known)))

    def _opening(self, manifest: Manifest) -> calls.Open:
        config = self.parts.config
        shards = manifest.partition.shards
        shard = config.shard if config.shard >= 0 else derive(0, "shard", self.parts.identity.peer_id)
        return calls.Open(
            manifest=manifest, data=config.data, shard=shard % shards, device=config.device, threads=config.threads,
            checkpoint=self.parts.checkpoint, node=self.parts.identity.peer_id, privacy=config.privacy,
            attack=config.attack, attack_params=config.attack_params,
        )  # fmt: skip

    # --- reacting -----------------------------------------------------------------------------------------

    async def _follow_members(
        self, membership: Membership, exchange: Meetings, task_status: TaskStatus = trio.TASK_STATUS_IGNORED
    ) -> None:
        events = membership.subscribe()
        task_status.started()
        async for event in events:
            await self._member(event, exchange)

    async def _remember_members(self, membership: Membership) -> None:
        """Now and then, and at the end; a disk may be slow, and all else waits for it."""
        kept = self.parts.known
        try:
            while True:
                await trio.sleep(REMEMBER_S)
                kept = self._remember(membership, kept)
        finally:
            self._remember(membership, kept)

    def _remember(self, membership: Membership, kept: tuple[str, ...]) -> tuple[str, ...]:
        present = [member for peer, member in membership.table.items() if member.present and peer != membership.me]
        known = tuple(address for member in present for address in member.record.addresses[:1])[:MAX_REMEMBERED]
        if known and set(known) != set(kept):
            self.parts.remember(known)
        return known

    async def _member(self, event: MemberEvent, exchange: Meetings) -> None:
        match event:
            case Joined(peer=peer):
                self.report.event("peer_joined", f"{peer} joined", peer=peer)
                if self._witness is not None:
                    self._witness.welcome(peer)
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
        if self._witness is not None:
            self._witness.forget(peer)
        await exchange.revoke(peer, settled=True)

    def _cut(self, peer: str) -> None:
        """What a peer contributed to the correction is deleted."""
        if self.exchange is not None and self._nursery is not None:
            self._nursery.start_soon(partial(self.exchange.revoke, peer, settled=True))

    # --- being asked --------------------------------------------------------------------------------------

    async def command(self, op: str, fields: Mapping[str, object]) -> dict[str, object]:
        """Carry out what came over the control socket.

        Args:
            op: leave, stop, evaluate, export, ban, unban or trust.
            fields: `path` for export; `peer` for the last three; for ban `for_s` and `why` too, if wanted.

        Raises:
            GossipError: it cannot be done now.
        """
        if op in {"leave", "stop"}:
            self.stop()
            return {}
        if op == "revoke" and self.membership is not None:
            return {"removed": list(self.membership.revoke(str(fields.get("peer", ""))))}
        if op in {"ban", "unban", "trust"}:
            return self._decide(op, fields)
        if self.training is None or self.engine is None:
            raise GossipError("the node is still starting")
        if op == "evaluate":
            await self.training.evaluate()
            return {"metric": self.metric, "value": self.progress.value, "round": self.progress.value_round}
        if op == "export":
            path = Path(str(fields.get("path", "")))
            if not path.is_absolute():
                raise GossipError("export: path must be absolute")
            reply = await self.engine.call(calls.Save(str(path)))
            if isinstance(reply, calls.Refused):
                raise GossipError(reply.reason)
            return {"path": str(path)}
        raise GossipError(f"unknown command {op!r}")

    def _decide(self, op: str, fields: Mapping[str, object]) -> dict[str, object]:
        """The owner's word on a peer."""
        given, judge = str(fields.get("peer", "")), self.judge
        match op:
            case "ban":
                for_s = fields.get("for_s", math.inf)
                if not isinstance(for_s, float | int) or not for_s > 0:
                    raise GossipError(f"ban: for_s must be > 0, got {for_s!r}")
                peer = judge.ban(given, float(for_s), str(fields.get("why", "")))
            case "unban":
                peer = judge.unban(given)
            case _:
                peer = judge.trust(given)
        standing = judge.standing(peer)
        left_s = standing.until - trio.current_time()
        return {
            "peer": peer, "standing": standing.state, "trusted": standing.trusted, "why": standing.why,
            "shut_out_s": left_s if math.isfinite(left_s) else None,
        }  # fmt: skip

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
