"""A node with all of its services: members, exchanges, training. Made when the engine has opened the task."""

from __future__ import annotations

import math
from collections.abc import Collection

import trio

from starling.gossip.errors import EngineError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Died, Joined, Left, MemberEvent, Reborn
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Beacon, BeaconQuery
from starling.node.config.overlay import overlay_of
from starling.node.daemon.context import NodeContext
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.beacon import MemberOrder
from starling.node.daemon.membership.bootstrap import Bootstrap
from starling.node.daemon.membership.service import Membership, Overheard
from starling.node.daemon.progress import Progress
from starling.node.daemon.services import beacon_service, exchange_services
from starling.node.daemon.state.model_sync import ModelSync, disjoint
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.training import Training
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls

FAREWELL_S = 0.7  # for the farewell to all members
LAST_SAVE_S = 1.2  # for the last checkpoint
CONTRADICTED_S = 2.0  # first pause of a joiner that was offered contradictory models; doubles up to a minute
PAYLOAD_BYTES_PER_PARAMETER = 32  # upper bound: two vectors of doubles, and an index for each coordinate …
PAYLOAD_BYTES = 64 << 10  # … with their headers
SETTLE_S = 3.0  # a joiner looks for members for so long before it starts alone


class RunningNode:
    """One node's services. Satisfies `starling.node.daemon.trust.peer_policy.Enforcement`.

    Args:
        context: what services share.
        engine: the context's engine, with its restarts.
        opened: what it said when it opened the task.
        admission: who may be a member, and our own credential.
        bootstrap: addresses to begin with.
        transfer: gives and takes models.
        policy: reputation of peers.
        progress: written by training.
        transactions: records exchanges for the status.
    """

    def __init__(
        self, context: NodeContext, engine: EngineSupervisor, opened: calls.Opened, admission: Admission, bootstrap: Bootstrap,
        transfer: Transfer, policy: PeerPolicy, progress: Progress, transactions: Transactions,
    ) -> None:  # fmt: skip
        overlay, clock = overlay_of(context.manifest), SwarmClock(patience_s=math.inf)
        self.context = context
        self.engine = engine
        self.opened = opened
        self.policy = policy
        self._bootstrap = bootstrap
        self.transfer = transfer
        self._progress = progress
        self._cut: dict[str, None] = {}  # peers whose contribution is to be deleted, in order
        self._cut_added = trio.Event()
        self.membership = Membership(context, clock, admission)
        self.beacons = beacon_service(context, self.membership)
        self.order = MemberOrder(self.membership, context.swarm, self.beacons)
        self.exchange, self.neighbors, self.equivocation = exchange_services(
            context, self.membership, overlay, self.order, policy, progress, transactions
        )
        self._model_sync = ModelSync(transfer=transfer, engine=engine, report=context.report)
        self.training = Training(
            context,
            engine,
            self.membership,
            overlay,
            self.neighbors,
            self.order,
            self.exchange,
            clock,
            progress,
            self._fetch,
        )
        engine.before_resuming(self.exchange.reset_all)
        context.network.expect("exchange", PAYLOAD_BYTES_PER_PARAMETER * opened.parameters + PAYLOAD_BYTES)
        progress.figures, progress.round = opened.figures, opened.round
        transfer.expect(opened)

    # --- life ----------------------------------------------------------------------------------------------------

    async def serve(self, nursery: trio.Nursery) -> None:
        """Start all services in `nursery`; returns when they serve."""
        await nursery.start(self.membership.serve, self._overheard)
        await nursery.start(self.exchange.serve)
        for service in (self.equivocation, self.beacons):
            if service is not None:
                await nursery.start(service.serve)
        await nursery.start(self._follow_members)
        nursery.start_soon(self._cut_contributions)
        nursery.start_soon(self._bootstrap.watch, self.membership)
        nursery.start_soon(self.membership.join, self._bootstrap.addresses)

    async def train(self, export: str) -> None:
        """Catch up with the swarm, train until the manifest's rounds are done, save, and linger.

        Args:
            export: path of the final model; "" for none.
        """
        context, training = self.context, self.training
        start_round = await self._start_round()
        self.transfer.give(self.engine, self.membership.may_read)
        await training.quorum(begun=start_round > 0)
        await training.run(start_round)
        await training.save(export)
        self._progress.enter("finished")
        done = self._progress.round
        context.report.event("finished", f"all {context.manifest.pace.rounds} rounds done", round=done)
        await trio.sleep(context.config.linger_s)
        if training.cannot_save:  # disk space may have been freed meanwhile
            await training.save(export)

    async def leave(self, *, save: bool) -> None:
        """Say farewell to the members and, if `save`, write the last checkpoint; within FAREWELL_S + LAST_SAVE_S."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(FAREWELL_S):
                await self.membership.leave()
            if save:
                with trio.move_on_after(LAST_SAVE_S):
                    await self.training.save()

    async def _start_round(self) -> int:
        """The round to start at: the checkpoint's, or that of a model fetched from members who are further."""
        opened, training = self.opened, self.training
        with trio.move_on_after(SETTLE_S if self._bootstrap.addresses else 0.0):
            while len(self.membership.members) < 2:  # noqa: ASYNC110 — for a short time at the start
                await trio.sleep(0.05)
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
            await trio.sleep(pause)  # more members may come, or the liars be banned
            pause = min(2 * pause, 60.0)
        self._progress.joined_late = start > opened.round and not opened.resumed
        return start

    async def _fetch(self, newer_than: int) -> int | None:
        """Take over the model on which members agree, if it is past round `newer_than`. -> its round"""
        me, moment, membership = self.context.me, int(self.context.unix_time() * 1e6), self.membership
        others = [peer for peer in membership.members if peer != me and self.policy.allows(peer)]
        others.sort(key=lambda peer: derive(moment, "source", me, peer))  # no peer can arrange to be asked first
        order = disjoint(others, lambda peer: {*membership.prefixes(peer), self.inviter_of(peer)} - {""})
        return await self._model_sync.fetch(order, newer_than)

    # --- messages and members -----------------------------------------------------------------------------

    def _overheard(self, peer: str, message: Overheard) -> None:
        """A control message that is not about membership."""
        match message:
            case Beacon() | BeaconQuery():
                if self.beacons is not None:
                    self.beacons.receive(peer, message)
            case _:
                if self.equivocation is not None:
                    self.equivocation.receive(peer, message)

    async def _follow_members(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        events = self.membership.subscribe()
        task_status.started()
        async for event in events:
            await self._member(event)

    async def _member(self, event: MemberEvent) -> None:
        report = self.context.report
        match event:
            case Joined(peer=peer):
                report.event("peer_joined", f"{peer} joined", peer=peer)
                if self.equivocation is not None:
                    self.equivocation.welcome(peer)
                return
            case Died(peer=peer):
                report.event("peer_died", f"{peer} is gone; its flow is deleted", level="warning", peer=peer)
            case Left(peer=peer):
                report.event("peer_left", f"{peer} left", peer=peer)
            case Reborn(peer=peer):
                report.event(
                    "peer_reborn", f"{peer} restarted; the flow of its earlier incarnation is deleted", peer=peer
                )
            case _:
                return
        if self.equivocation is not None:
            self.equivocation.forget(peer)
        await self.exchange.revoke(peer)

    # --- enforcing verdicts -------------------------------------------------------------------------------

    def refuse(self, peer: str, until: float) -> None:
        """Close connections of `peer` and refuse it until `until` on trio's clock; -inf admits it again."""
        self.context.network.refuse(peer, until)

    def cut(self, peer: str) -> None:
        """Delete soon what a peer contributed to the correction."""
        self._cut[peer] = None
        self._cut_added.set()

    def inviter_of(self, peer: str) -> str:
        """The member that answers for a peer it invited; "" for none, and for the founder, whose guests could else have it banned."""
        inviter = self.membership.inviter_of(peer)
        return inviter if inviter is not None and inviter != self.context.manifest.founder else ""

    def known(self) -> Collection[str]:
        """Peer ids of all members known, present or gone."""
        return self.membership.table

    async def _cut_contributions(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._cut_added.wait()
                self._cut_added = trio.Event()
                for peer in self._cut:
                    nursery.start_soon(self.exchange.revoke, peer)
                self._cut.clear()
