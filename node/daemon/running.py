"""A node with all of its services: members, exchanges, training. Constructed when the engine has opened the task."""

from dataclasses import dataclass
from pathlib import Path

import trio

from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Died, Joined, Left, MemberEvent, Reborn
from starling.gossip.wire.schema import Beacon, BeaconQuery, Dialed, DialMe, StopVote
from starling.node.config import weight
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.pairwise import PairwiseExchange
from starling.node.daemon.exchange.pull_service import PulledExchange
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.bootstrap import Bootstrap
from starling.node.daemon.membership.control_lane import OtherControl
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.membership.sources import Sources
from starling.node.daemon.membership.stop import StopService
from starling.node.daemon.progress import Progress
from starling.node.daemon.state.model_sync import ModelSync
from starling.node.daemon.state.outer_sync import OuterSync
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.surroundings import Surroundings
from starling.node.daemon.training.evaluation import Evaluation
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.daemon.training.last_model import LastModel
from starling.node.daemon.training.late_join import PeerModels
from starling.node.daemon.training.local_work import RoleRequest, role_of
from starling.node.daemon.training.loop import Training
from starling.node.daemon.training.paces import Services, pace_of
from starling.node.daemon.trust.contributions import Contributions
from starling.node.daemon.trust.peer_policy import PeerPolicy
from starling.node.rpc import calls

FAREWELL_S = 0.7  # seconds for the farewell to all members
ON_THE_WAY_S = 0.05  # seconds for its last frames: closing while the peer still sends may reset the connection and lose them
LAST_SAVE_S = 1.2  # seconds for the last checkpoint
PAYLOAD_BYTES_PER_PARAMETER = 32  # upper bound on bytes per parameter: two vectors of doubles, and an index for each coordinate …
PAYLOAD_BYTES = 64 << 10  # … and on the bytes of headers


@dataclass(frozen=True, slots=True)
class Begun:
    """The services that exist before the engine has opened the task."""

    admission: Admission
    bootstrap: Bootstrap
    transfer: Transfer
    policy: PeerPolicy
    progress: Progress
    transactions: Transactions


class RunningNode:
    """All services of one node, once the engine has replied `opened`."""

    def __init__(
        self,
        context: NodeContext,
        engine: EngineSupervisor,
        opened: calls.Opened,
        begun: Begun,
        stage: int = -1,
        seconds: SecondNodes | None = None,
    ) -> None:
        clock, progress = SwarmClock(begun.policy.has_vote), begun.progress
        self.context, self.engine, self.opened, self.begun = context, engine, opened, begun
        self.membership = Membership(context, clock, begun.admission, self.member_changed)
        self.role = role = role_of(RoleRequest(context, engine, self.membership, opened, stage, seconds))
        begun.transfer.seats = role.seats
        self.around = Surroundings(context, self.membership, role.members, clock, begun.policy)
        self.stop = StopService(context, self.membership, opened, begun.policy.electors)
        evaluation = Evaluation(context.manifest.pace, role.work, self.stop, progress, context.report, opened.metric)
        house = Housekeeping(context, engine, progress, evaluation)
        sync = ModelSync(transfer=begun.transfer, engine=engine, report=context.report)
        outer = OuterSync(begun.transfer, engine, context.report)
        sources = Sources(context, self.membership, role.members, begun.policy.allows, self.around.may_meet_more)
        models = PeerModels(sources, sync, outer)
        self.pace = pace_of(Services(context, role, self.around, (begun.transactions.observe,), house, models))
        self.training = Training(context.manifest.pace, role.members, self.pace.joining, self.pace.loop, house)
        self.last: LastModel | None = None  # None until the rounds are done
        self.contributions = Contributions(self.exchange.revoke, lambda: self.exchange.edges, self._is_present)
        engine.reset = self.exchange.reset_all
        context.network.expect("exchange", PAYLOAD_BYTES_PER_PARAMETER * opened.parameters + PAYLOAD_BYTES)
        progress.figures, progress.round = opened.figures, opened.round
        progress.evaluated.best, progress.evaluated.best_round = opened.best, opened.best_round
        begun.transfer.expect(opened)

    async def serve(self, nursery: trio.Nursery) -> None:
        """Start all services in `nursery`; returns when they serve."""
        await nursery.start(self.membership.serve, self._route)
        await nursery.start(self.exchange.serve)
        votes = self.stop if self.stop.votes is not None else None
        around = self.around
        for service in (self.pace.equivocation, around.beacons, around.reachability, votes, self.role.service):
            if service is not None:
                await nursery.start(service.serve)
        nursery.start_soon(self.contributions.serve)
        nursery.start_soon(self.begun.bootstrap.watch, self.membership)
        nursery.start_soon(around.keep_in_touch, self.begun.bootstrap, self.begun.transfer)

    async def train(self, export: Path | None) -> None:
        """Catch up with the swarm, train until the manifest's rounds are done, save (the model to `export`, if given), and linger."""
        context, training, samples = self.context, self.training, self.opened.samples
        if text := weight.capped(context.manifest, samples):
            context.report.event("weight_capped", text, level="warning", samples=samples)
        await self.around.look_for_members(self.begun.bootstrap)
        start_round = await training.joining.start(self.opened)
        self.begun.transfer.give(self.engine, self.membership.may_read)
        await training.quorum(start_round)
        self.membership.settle()
        await training.run(start_round)
        last = self.last = LastModel(context.manifest.pace, self.exchange, training.house, export)
        await last.save()
        self.begun.progress.enter("finished")
        done = self.begun.progress.round
        text = f"stopped after {done} rounds: two thirds of the members or more no longer improve"
        if not training.house.evaluation.stopped_early:
            text = f"all {context.manifest.pace.rounds} rounds done"
        context.report.event("finished", text, round=done)
        await trio.sleep(context.config.linger_s)
        await last.save_again()

    async def leave(self) -> None:
        """Say farewell to the members and write the last checkpoint; within FAREWELL_S + LAST_SAVE_S."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(FAREWELL_S):
                await self.membership.leave()
                await trio.sleep(ON_THE_WAY_S)
            with trio.move_on_after(LAST_SAVE_S):
                await (self.training.house.save() if self.last is None else self.last.save_again())

    @property
    def exchange(self) -> PairwiseExchange | PulledExchange:
        """Return the exchanges of this pace."""
        return self.pace.exchange

    def _route(self, peer: str, message: OtherControl) -> None:
        if isinstance(message, Beacon | BeaconQuery | DialMe | Dialed):
            self.around.receive(peer, message)
        elif isinstance(message, StopVote):
            self.stop.receive(peer, message)
        elif self.pace.equivocation is not None:
            self.pace.equivocation.receive(peer, message)

    def member_changed(self, event: MemberEvent) -> None:
        """Report a change of a member, and delete the state of one that is gone."""
        report = self.context.report
        match event:
            case Joined(peer=peer):
                report.event("peer_joined", f"{peer} joined", peer=peer)
                self.begun.policy.joined(peer)
                self.stop.welcome(peer)
                if self.pace.equivocation is not None:
                    self.pace.equivocation.welcome(peer)
                return
            case Died(peer=peer):
                report.event("peer_died", f"{peer} is gone; its flow is deleted", level="warning", peer=peer)
            case Left(peer=peer):
                report.event("peer_left", f"{peer} left", peer=peer)
            case Reborn(peer=peer):
                report.event("peer_reborn", f"{peer} restarted; the flow of its earlier incarnation is deleted", peer=peer)
                self.stop.welcome(peer)
            case _:
                return
        self.stop.forget(peer)
        self.contributions.cut(peer)

    def _is_present(self, peer: str) -> bool:
        members = self.membership.table
        return peer in members and members[peer].present
