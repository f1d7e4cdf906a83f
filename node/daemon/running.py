"""A node with all of its services: members, exchanges, training. Constructed when the engine has opened the task."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from starling.gossip.errors import EngineError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Died, Joined, Left, MemberEvent, Reborn
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Beacon, BeaconQuery, Dialed, DialMe, StopVote
from starling.node.config import weight
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.daemon.crew.seats import Crewmates, CrewNeighbors
from starling.node.daemon.crew.service import CrewService
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.bootstrap import Bootstrap, to_share
from starling.node.daemon.membership.contacts import Contacts
from starling.node.daemon.membership.neighbors import Members, OverlayNeighbors
from starling.node.daemon.membership.reachability import ReachabilityService
from starling.node.daemon.membership.service import Membership, OtherControl
from starling.node.daemon.membership.stop import StopService
from starling.node.daemon.progress import Progress
from starling.node.daemon.state.model_sync import ModelSync
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.training.evaluation import Evaluation
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.daemon.training.late_join import PeerModels
from starling.node.daemon.training.local_work import CrewWork, EngineWork, LocalWork
from starling.node.daemon.training.loop import Training
from starling.node.daemon.training.paces import Services, pace_of
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.rpc import calls

FAREWELL_S = 0.7  # for the farewell to all members
LAST_SAVE_S = 1.2  # for the last checkpoint
PAYLOAD_BYTES_PER_PARAMETER = 32  # upper bound: two vectors of doubles, and an index for each coordinate …
PAYLOAD_BYTES = 64 << 10  # … with their headers
NO_CREW_BYTES = 1 << 10  # of a frame of a lane that nobody reads here
RECONCILED_S = 5.0  # pause between comparisons of the edges with the members: what an event did not say is done then
SETTLE_S = 3.0  # a joiner looks for members for so long before it starts alone


def _as_named(named: OverlayNeighbors) -> OverlayNeighbors:
    """Return the neighbors that the overlay names: they are peers, and no crews."""
    return named


class RunningNode:
    """One node's services, beside those given, which exist from its start; `opened` is the engine's reply when it opened the task."""

    def __init__(
        self, context: NodeContext, engine: EngineSupervisor, opened: calls.Opened, admission: Admission, bootstrap: Bootstrap,
        transfer: Transfer, policy: PeerPolicy, progress: Progress, transactions: Transactions, stage: int = -1,
        seconds: SecondNodes | None = None,
    ) -> None:  # fmt: skip
        clock = SwarmClock(patience_s=math.inf)
        self.context = context
        self.engine = engine
        self.opened = opened
        self.policy = policy
        self._bootstrap = bootstrap
        self.transfer = transfer
        self._progress = progress
        self._export: Path | None = None
        self._saved_committed = 0  # exchanges, at the last save
        self._cut: dict[str, None] = {}  # peers whose contribution is to be deleted, in order
        self._cut_added = trio.Event()
        self.membership = Membership(context, clock, admission, self._member_changed)
        self.contacts = Contacts(context, self.membership)
        self.crew: CrewService | None = None
        self.members: Members = self.membership
        """The swarm as exchanges and rounds see it; in a swarm of crews those who hold this node's stage."""
        around: Callable[[OverlayNeighbors], OverlayNeighbors | CrewNeighbors] = _as_named
        work: LocalWork = EngineWork(engine)
        if stage >= 0:
            self.members = mates = Crewmates(self.membership, context.manifest.crew.stages, stage)
            self.crew = CrewService(context, mates, opened, seconds)
            around = partial(CrewNeighbors, mates)
            work = CrewWork(self.crew, EngineWork(engine), context.manifest.pace.local_steps)
            transfer.seats = mates.wanted
        else:
            context.network.expect("crew", NO_CREW_BYTES)
        self.beacons = BeaconService(context, self.members)
        self.reachability = ReachabilityService(context, self.membership)
        self.stop = StopService(context, self.membership, opened)
        evaluation = Evaluation(context.manifest.pace, work, self.stop, progress, context.report, opened.metric)
        house = Housekeeping(context, engine, progress, evaluation)
        sync = ModelSync(transfer=transfer, engine=engine, report=context.report)
        models = PeerModels(context, self.membership, self.members, sync, policy.allows, self.inviter_of)
        pace = pace_of(
            Services(
                context, self.membership, self.members, around, self.beacons, policy, (transactions.observe,), clock, work, house, models,
                self.may_meet,
            )
        )  # fmt: skip
        self.exchange, self.neighbors, self.equivocation = pace.exchange, pace.neighbors, pace.equivocation
        self.training = Training(context.manifest.pace, self.members, pace.joining, pace.loop, house)
        engine.reset = self.exchange.reset_all
        context.network.expect("exchange", PAYLOAD_BYTES_PER_PARAMETER * opened.parameters + PAYLOAD_BYTES)
        progress.figures, progress.round = opened.figures, opened.round
        progress.best, progress.best_round = opened.best, opened.best_round
        transfer.expect(opened)

    async def serve(self, nursery: trio.Nursery) -> None:
        """Start all services in `nursery`; returns when they serve."""
        await nursery.start(self.membership.serve, self._route)
        await nursery.start(self.exchange.serve)
        votes = self.stop if self.stop.votes is not None else None
        for service in (self.equivocation, self.beacons, self.reachability, votes, self.crew):
            if service is not None:
                await nursery.start(service.serve)
        nursery.start_soon(self._cut_contributions)
        nursery.start_soon(self._bootstrap.watch, self.membership)
        nursery.start_soon(self._join, self._bootstrap.addresses)

    async def _join(self, addresses: Sequence[str]) -> None:
        """Keep in touch through these addresses, and through those that are found later."""
        async with trio.open_nursery() as nursery:
            opens = partial(self.transfer.answers, swarm=self.context.swarm)
            nursery.start_soon(partial(self.contacts.keep, addresses, self._bootstrap.given, opens=opens))
            async for address in self._bootstrap.additions(addresses):
                nursery.start_soon(partial(self.contacts.keep, (address,), (), hints=True))

    async def train(self, export: Path | None) -> None:
        """Catch up with the swarm, train until the manifest's rounds are done, save (the model to `export`, if given), and linger."""
        context, training, samples = self.context, self.training, self.opened.samples
        if text := weight.capped(context.manifest, samples):
            context.report.event("weight_capped", text, level="warning", samples=samples)
        start_round = await self._start_round()
        self.transfer.give(self.engine, self.membership.may_read)
        await training.quorum(begun=start_round > 0)
        self.membership.settle()
        await training.run(start_round)
        self._export, self._saved_committed = export, self.exchange.stats.committed
        await training.house.save(export)
        self._progress.enter("finished")
        done = self._progress.round
        text = f"stopped after {done} rounds: two thirds of the members or more no longer improve"
        if not training.house.evaluation.stopped_early:
            text = f"all {context.manifest.pace.rounds} rounds done"
        context.report.event("finished", text, round=done)
        await trio.sleep(context.config.linger_s)
        await self._save_again()

    async def leave(self, *, finished: bool) -> None:
        """Say farewell to the members and write the last checkpoint; within FAREWELL_S + LAST_SAVE_S."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(FAREWELL_S):
                await self.membership.leave()
            with trio.move_on_after(LAST_SAVE_S):
                await (self._save_again() if finished else self.training.house.save())

    async def _save_again(self) -> None:
        """Save if that failed before, as disk space may have been freed, or if a late acknowledgement has committed an exchange since."""
        committed = self.exchange.stats.committed
        if committed > self._saved_committed and self.context.manifest.pace.kind == "steps":
            with suppress(EngineError):
                await self.engine.call(calls.Mix(self._progress.round - 1))
        if committed > self._saved_committed or self.training.house.cannot_save:
            self._saved_committed = committed
            await self.training.house.save(self._export)

    async def _start_round(self) -> int:
        """Look for members for a while -> the round to start at."""
        with trio.move_on_after(SETTLE_S if self._bootstrap.addresses else 0.0):
            while len(self.membership.members) < 2:  # noqa: ASYNC110 — for a short time at the start
                await trio.sleep(0.05)
        return await self.training.joining.start(self.opened)

    def to_share(self) -> tuple[str, ...]:
        """Addresses for an invite made now; stays the same while members do."""
        me, network = self.context.me, self.context.network
        others = sorted(
            (peer for peer in self.membership.members if peer != me and self.policy.allows(peer)),
            key=lambda peer: derive(0, "invite", me, peer),  # other members give others' addresses
        )
        return to_share((*network.relayed, *network.addresses), others, network.answered, self.membership.origins.met)

    def may_meet(self, peer: str) -> bool:
        """Whether this node and a peer have a connection, or one of them can be dialled."""
        return self.reachability.may_meet(peer, self.membership.origins.announced)

    @property
    def is_cut_off(self) -> bool:
        """No member can be dialled, as far as this node knows, and it is not connected to all of them."""
        others = [peer for peer in self.membership.members if peer != self.context.me]
        hidden = self.reachability.state == "hidden" and not any(map(self.membership.origins.announced, others))
        return hidden and not all(map(self.may_meet, others))

    def _route(self, peer: str, message: OtherControl) -> None:
        if isinstance(message, Beacon | BeaconQuery):
            self.beacons.receive(peer, message)
        elif isinstance(message, DialMe | Dialed):
            self.reachability.receive(peer, message)
        elif isinstance(message, StopVote):
            self.stop.receive(peer, message)
        elif self.equivocation is not None:
            self.equivocation.receive(peer, message)

    def _member_changed(self, event: MemberEvent) -> None:
        report = self.context.report
        match event:
            case Joined(peer=peer):
                report.event("peer_joined", f"{peer} joined", peer=peer)
                self.policy.joined(peer)
                self.stop.welcome(peer)
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
                self.stop.welcome(peer)
            case _:
                return
        if self.equivocation is not None:
            self.equivocation.forget(peer)
        self.cut(peer)

    def cut(self, peer: str) -> None:
        """Delete soon what a peer contributed to the correction."""
        self._cut[peer] = None
        self._cut_added.set()

    def inviter_of(self, peer: str) -> str:
        """The inviter that answers for a peer; "" for none, and for the founder, who could else be banned through its invitees."""
        inviter = self.membership.origins.inviter_of(peer)
        return inviter if inviter is not None and inviter != self.context.manifest.founder else ""

    async def _cut_contributions(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(RECONCILED_S):
                    await self._cut_added.wait()
                self._cut_added = trio.Event()
                members = self.membership.table
                gone = (peer for peer in self.exchange.edges if peer not in members or not members[peer].present)
                self._cut.update(dict.fromkeys(gone))
                for peer in self._cut:
                    nursery.start_soon(self.exchange.revoke, peer)
                self._cut.clear()
