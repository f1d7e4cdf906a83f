"""A crew's local steps at one stage: the shell of `starling.gossip.pipeline.crew`, which decides what to do and when.

Exchanges are separate: after a round's steps each stage exchanges with the same stage of other crews, as any node does.
"""

from collections.abc import Iterable

import trio

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.pipeline.copies import Copies
from starling.gossip.pipeline.crew import Crew
from starling.gossip.pipeline.crew_commands import (
    Blame,
    Command,
    Evaluated,
    FreeStage,
    GiveState,
    Note,
    Outcome,
    PushState,
    Result,
    Send,
    Trained,
    Unfollow,
    Work,
)
from starling.gossip.pipeline.crew_step import Plan
from starling.gossip.pipeline.waiting import Keys
from starling.gossip.wire.frames import decode
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.extras.crew.daemon.adoption import Adoption
from starling.node.extras.crew.daemon.engine_work import request_of, result_of
from starling.node.extras.crew.daemon.lines import Lines
from starling.node.extras.crew.daemon.stage_peers import StagePeers
from starling.node.extras.crew.daemon.state_sender import StateSender
from starling.node.identity import verify
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls

POLL_S = 0.1  # seconds between two checks of the clock and of the crew's members


class CrewService:
    """The local steps and evaluations of one stage."""

    def __init__(self, context: NodeContext, stage_peers: StagePeers, opened: calls.Opened, seconds: SecondNodes | None = None) -> None:
        manifest = context.manifest
        section, local_steps = manifest.crew, manifest.pace.local_steps
        plan = Plan(section.micro_batches, section.warm_up, local_steps, section.keep_rounds * local_steps, manifest.optimizer.clip_norm)
        self.context, self.stage_peers, self._seconds = context, stage_peers, seconds
        copies, keys = Copies(opened.most_state_bytes), Keys(context.identity.sign, verify)
        self.machine = Crew(stage_peers.stage, stage_peers.stages, plan, copies, opened.figures.local_steps, opened.batches, keys)
        self._adoption = Adoption(context, stage_peers, seconds)
        self._lines = Lines(context.network, lambda: self.machine.company.name)
        self._states = StateSender(self._lines, context.engine, self.machine.pushed)
        self._next: Work | Outcome | None = None  # the machine's next request, or its outcome
        self._moved = trio.Event()

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Take a stage and take part in the crew until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stage_peers.sit)
            nursery.start_soon(self._lines.serve)
            nursery.start_soon(self._states.serve)
            nursery.start_soon(self._watch)
            task_status.started()
            async for inbound in self.context.network.inbound("crew"):
                try:
                    if self.stage_peers.admits(inbound.peer):
                        frame = decode("crew", inbound.peer, inbound.frame)
                        self._do(self.machine.receive(inbound.peer, frame, trio.current_time()))
                except RemoteProtocolError as error:
                    self.context.report.fault(error.peer, error.reason)

    async def steps(self, at: int, left: int) -> int:
        """Do the local steps of round `at`; return the round that was done, a later one if the crew was further. Raises EngineError."""
        done = await self._outcome_of(self.machine.train(at, left, trio.current_time()))
        assert isinstance(done, Trained), done
        if self._seconds is not None:
            self._seconds.prepare()
        return done.round

    async def evaluate(self, round: int, left: int) -> calls.Evaluated | None:
        """Evaluate held-out data through all stages; None: the crew is busy. Raises EngineError."""
        done = await self._outcome_of(self.machine.evaluate(round, left, trio.current_time()))
        assert isinstance(done, Evaluated), done
        if (last := done.last) is None:
            return None
        return calls.Evaluated(last.value / last.samples, last.loss / last.samples, last.samples)

    async def _outcome_of(self, commands: Iterable[Command]) -> Outcome:
        """Let the engine do all requested work; return the outcome."""
        try:
            self._do(commands)
            while not isinstance(wanted := await self._wanted(), Trained | Evaluated):
                self._do(self.machine.done(await self._worked(wanted), trio.current_time()))
        finally:
            self.machine.give_up()
            self._next = None
        return wanted

    async def _wanted(self) -> Work | Outcome:
        while self._next is None:
            await self._moved.wait()
        wanted, self._next = self._next, None
        return wanted

    async def _worked(self, work: Work) -> Result:
        if isinstance(work, GiveState):
            await self._states.give(work)
            return None
        return result_of(await self.context.engine.call(request_of(work)))

    async def _watch(self) -> None:
        """Advance the machine's time, and notice changes of the crew's members."""
        while True:
            await trio.sleep(POLL_S)
            now, at, peers = trio.current_time(), self.stage_peers, self.stage_peers.peers
            if peers is None:
                company = self.machine.company
                self._do(self.machine.parted(at.elsewhere(company.peers), now, away=at.away(company.crew, company.peers)))
            else:
                at.last = peers
                if (name := at.named(peers)) != self.machine.company.name:
                    self.context.report.event("crew_whole", f"this node is in {at.words}", crew=at.crew, stage=at.stage)
                self._do(self.machine.joined(at.crew, name, peers, now, alone=len(at.roster) <= 1, carried=at.carried))
            lacking = self.machine.phase == "lacking"
            self._adoption.poll(self.machine.states.copies.steps if lacking else (), self.machine.company.peers, now)

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Send(peer, frame):
                    self._lines.send(peer, frame)
                case Note(name, text, level, fields):
                    self.context.report.event(name, text, level=level, **fields)
                case Blame(peer, reason):
                    self.context.report.fault(peer, reason)
                case FreeStage(peer):
                    self.stage_peers.avoid(peer)
                case Unfollow(peer):
                    self.stage_peers.unfollow(peer)
                case PushState():
                    self._states.push(command)
                case _:
                    self._next = command
        self._moved.set()
        self._moved = trio.Event()
