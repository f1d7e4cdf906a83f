"""A crew's local steps, as one of its stages: the shell of `starling.gossip.pipeline`.

Theory of operation. All stages meet at the begin of every round and after every trouble: each tells what it has (`Ready`), and all conclude
the same (`meeting.agree`). Then steps are done (`pipeline.stage`), one task of this stage's engine at a time; frames of a neighbour that is
ahead wait for us. A crew is named by its peers and their incarnations, and a meeting by its number, so a frame of another crew or of a step
that was given up is no fault: it is late, and ignored.

    a mate dies or restarts        the crew has another name: what is under way is given up, and those who are there meet
    a frame is lost, or silence    one stage calls a meeting, at which all others come along
    a state is due to be kept      it goes to the stage before in the ring, beside the steps that follow
    a seat stays free              who keeps a copy of the state takes it with a node of its own, and gives that node the copy

Nothing here knows of exchanges: after a round's steps each stage exchanges with its like in other crews, as any node does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio
from msgspec import structs

from starling.gossip.errors import EngineError, GossipError, RemoteProtocolError, TransportError
from starling.gossip.pipeline.meeting import Fetch, Has, Start, agree
from starling.gossip.pipeline.schedule import ahead
from starling.gossip.pipeline.stage import Apply, Command, Compute, Gap, Part, Pass, Step, fine, shortened
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Backward, Crew, Forward, Kept, Piece, Ready, Told
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.daemon.crew.copies import Copies, pieces
from starling.node.daemon.crew.seats import Crewmates
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls

REPEAT_S = 1.0  # a Ready that is not answered by all is sent again
SEND_S = 30.0  # a mate that takes no frame for so long is unreachable
MAX_FRAMES = 512  # waiting to be sent to one mate
PATIENCE_S, LEAST_PATIENCE_S, TIMES = (
    30.0,
    5.0,
    8.0,
)  # for silence in a step: at first, and then so many times what a step takes
MOST_LONGER = 1.5  # times that a step may be longer than the one before, and be no exception
EVALUATION_S = 30.0  # for an evaluation that a mate may no longer want
ADOPT_S = 0.5  # that a seat is free before its state's keeper takes it
ADOPT_AGAIN_S = 30.0
MAX_STRANGE = 64
MOST_BATCHES = 1 << 20  # of an evaluation


class _Again(Exception):
    """What is under way is given up; the crew meets."""


@dataclass(slots=True)
class _Early:
    """Frames of a step that this stage has not begun."""

    frames: dict[tuple[int, int], deque[tuple[int, Forward | Backward | Told]]] = field(default_factory=dict)

    def put(self, stage: int, message: Forward | Backward | Told, most: int) -> None:
        """Raises ValueError: more than an honest neighbour can be ahead."""
        waiting = self.frames.setdefault((message.turn, message.step), deque())
        if sum(other == stage for other, _ in waiting) >= most or len(self.frames) > 4:
            raise ValueError("too_far_ahead")
        waiting.append((stage, message))

    def take(self, turn: int, step: int) -> deque[tuple[int, Forward | Backward | Told]]:
        """Those of this step; older ones are dropped."""
        found = self.frames.pop((turn, step), deque())
        self.frames = {key: waiting for key, waiting in self.frames.items() if key > (turn, step)}
        return found


class CrewService:
    """The local steps and evaluations of one stage."""

    def __init__(
        self, context: NodeContext, mates: Crewmates, opened: calls.Opened, seconds: SecondNodes | None = None
    ) -> None:  # fmt: skip
        self._context, self.mates, self._seconds = context, mates, seconds
        self._engine, self._network, self._report = context.engine, context.network, context.report
        section = context.manifest.crew
        self._section, self._stage, self._stages = section, mates.stage, mates.stages
        self._keep_after = section.keep_rounds * context.manifest.pace.local_steps
        self._clip = context.manifest.optimizer.clip_norm
        self._step, self._points = opened.figures.local_steps, tuple[int, ...]()
        self._batches = opened.batches
        self._peers: tuple[str, ...] = ()
        self._name, self._crew = b"", -1
        self._turn = self._called = 0  # meetings: ours, and the last that a mate called
        self._told: dict[tuple[int, int], Ready] = {}  # by turn and stage
        self._safe = 0
        self._copies = Copies(opened.most_state_bytes)
        self._core: Step | None = None
        self._evaluating = False
        self._last_told: Told | None = None
        self._commands: deque[Command] = deque()
        self._early = _Early()
        self._trouble = self._waiting = False
        self._mine: Ready | None = None  # what we told last
        self._asking = False  # until we know what all tell
        self._strange: dict[str, Ready] = {}  # by peer, of crews that we do not know yet
        self._moved = trio.Event()
        self._lines: dict[str, trio.MemorySendChannel[Crew]] = {}
        self._nursery: trio.Nursery | None = None
        self._pushing = False
        self._usual_s, self._stretch = 0.0, 1.0
        self._adopted_at: dict[int, float] = {}
        self.idle_s, self.busy_s = 0.0, 0.0

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Take a seat and part in the crew until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.mates.sit)
            nursery.start_soon(self._watch)
            try:
                task_status.started()
                async for inbound in self._network.inbound("crew"):
                    try:
                        if self.mates.admits(inbound.peer):
                            self._receive(inbound.peer, decode("crew", inbound.peer, inbound.frame))
                    except RemoteProtocolError as error:
                        self._report.fault(error.peer, error.reason)
            finally:
                self._nursery = None

    async def steps(self, at: int, left: int) -> int:
        """The local steps of round `at` -> the round that was done, a later one if mates were further. Raises EngineError."""
        while True:
            start = await self._meet(at, left, evaluate=False)
            if start is None:
                continue  # a mate still evaluates, and comes when it hears of us
            at = start.round
            try:
                await self._set_out(start)
                while self._step < start.until:
                    await self._one_step(at)
            except _Again:
                await self._engine.call(calls.Abandon())
                left = max(0, start.until - self._step)
            else:
                if self._seconds is not None:
                    self._seconds.prepare()
                return at

    async def evaluate(self, round: int, left: int) -> calls.Evaluated | None:
        """Held-out data through all stages; None: the crew is about something else. Raises EngineError."""
        start: Start | None = None
        with trio.move_on_after(EVALUATION_S):
            start = await self._meet(round, left, evaluate=True)
        if start is None or start.back or start.torn or not start.batches:
            return None
        try:
            core = Step(self._stage, self._stages, start.batches, self._section.warm_up)
            last = (parts := await self._through(core, evaluate=True))[-1]
        except _Again:
            return None
        if not last.samples or not fine(parts):
            return None
        return calls.Evaluated(last.value / last.samples, last.loss / last.samples, last.samples)

    async def _meet(self, round: int, left: int, *, evaluate: bool) -> Start | None:
        """Meet until all know from where to go on; None: mates mean to evaluate, and we do not, or the reverse."""
        while True:
            await self._whole()
            self._point(await self._engine.call(calls.Point("look", self._crew, 0)))
            self._turn = max(self._turn + 1, self._called)
            self._trouble = False
            mine = Ready(
                self._name, self._turn, round, self._step, left, evaluate, self._points, self._copies.steps, self._safe, self._batches,
            )  # fmt: skip
            told = await self._all_told(mine)
            if told is None:
                continue
            if len({ready.evaluate for ready in told}) > 1:
                return None
            agreed = agree([_has(ready) for ready in told], self._keep_after)
            if isinstance(agreed, Start):
                return agreed
            await self._fetch(agreed)

    async def _all_told(self, mine: Ready) -> list[Ready] | None:
        """What all stages tell at this meeting, in their order; None: there is another meeting, or another crew."""
        self._told = {key: ready for key, ready in self._told.items() if key[0] >= self._turn} | {
            (self._turn, self._stage): mine
        }
        while True:
            self._tell(mine)
            with trio.move_on_after(REPEAT_S):
                while True:
                    if self._name != mine.crew or self._called > self._turn:
                        return None
                    told = [self._told.get((self._turn, stage)) for stage in range(self._stages)]
                    if None not in told:
                        return [ready for ready in told if ready is not None]
                    await self._moved.wait()

    async def _whole(self) -> None:
        """Wait until our crew lacks nobody, and take its name."""
        self._waiting = True
        try:
            while (peers := self.mates.mates) is None:
                await self._moved.wait()
        finally:
            self._waiting = False
        self._look(peers)

    def _look(self, peers: tuple[str, ...]) -> None:
        if (name := self.mates.named(peers)) == self._name:
            return
        if self._peers[self._stage - 1 :][:1] != peers[self._stage - 1 :][:1]:
            self._safe = 0  # our states were kept by another
        if self._crew != self.mates.crew:
            self._crew = self.mates.crew
            self._copies.clear()
        self._peers, self._name = peers, name
        self._turn = self._called = 0
        self._told.clear()
        self._early = _Early()
        self._mine = None
        strange, self._strange = self._strange, {}
        for peer, ready in strange.items():
            if peer in peers and ready.crew == name:
                with suppress(ValueError):
                    self._called_by(peers.index(peer), ready)
        self._report.event("crew_whole", f"this node is in {self.mates.words}", crew=self.mates.crew, stage=self._stage)

    async def _set_out(self, start: Start) -> None:
        if start.back:
            self._point(await self._engine.call(calls.Point("back", self._crew, start.step)))
            text = f"the crew goes back to its state after {start.step} local steps, and does those since then again"
            self._report.event("crew_back", text, step=start.step)
        if start.torn:
            text = "the crew has no state that all its stages have; each goes on from its own"
            self._report.event("crew_torn", text, level="warning", step=start.step)
        await self._engine.call(calls.Abandon())
        if start.keep and start.step not in self._points:
            self._point(await self._engine.call(calls.Point("keep", self._crew, start.step)))
        if self._points and self._safe <= self._points[-1] and not self._pushing and self._nursery is not None:
            self._pushing = True
            self._nursery.start_soon(self._push, self._points[-1])
        self._step = start.step

    def _point(self, reply: calls.Reply) -> None:
        if not isinstance(reply, calls.Pointed):
            raise EngineError(f"the stage's state cannot be used: {reply}")
        self._step, self._points = reply.step, reply.points

    async def _fetch(self, fetch: Fetch) -> None:
        """Give copies to those who need them, or wait for ours, or for theirs."""
        behind = (self._stage + 1) % self._stages
        for stage in fetch.stages:
            if stage == behind and (state := self._copies.kept.get(fetch.step)) is not None:
                await self._give(self._peers[stage], stage, fetch.step, state)
        with trio.move_on_after(LEAST_PATIENCE_S):
            while (
                self._called <= self._turn
                and self._name
                and not (self._stage in fetch.stages and fetch.step in self._points)
            ):
                await self._moved.wait()

    async def _give(self, peer: str, stage: int, step: int, state: bytes) -> None:
        async def read(offset: int, length: int) -> bytes:
            return state[offset : offset + length]

        await self._send_pieces(peer, stage, step, len(state), read)

    async def _send_pieces(
        self, peer: str, stage: int, step: int, size: int, read: Callable[[int, int], Awaitable[bytes]]
    ) -> None:
        async def send(piece: Piece) -> None:
            with trio.fail_after(SEND_S):
                await self._network.send(peer, "crew", encode(piece))

        try:
            await pieces(self._name, stage, step, size, read, send)
        except (TransportError, trio.TooSlowError, EngineError):
            return  # the next meeting says what is missing

    async def _push(self, step: int) -> None:
        """Send one of our states to the stage before."""

        async def read(offset: int, length: int) -> bytes:
            found = await self._engine.call(calls.ReadPoint(step, offset, length))
            return found.data if isinstance(found, calls.ChunkRead) else b""

        try:
            found = await self._engine.call(calls.ReadPoint(step, 0, 0))
            if isinstance(found, calls.ChunkRead):
                await self._send_pieces(self._peers[self._stage - 1], self._stage, step, found.size, read)
        except EngineError:
            return
        finally:
            self._pushing = False

    async def _one_step(self, round: int) -> None:
        began = trio.current_time()
        core = Step(self._stage, self._stages, self._section.micro_batches, self._section.warm_up)
        parts = await self._through(core)
        scale = shortened(parts, self._clip)
        await self._engine.call(
            calls.Finish(round, scale, sum(part.loss for part in parts), fine(parts), self._step + 1)
        )
        self._step += 1
        took_s = trio.current_time() - began
        self._usual_s, self._stretch = min(took_s, MOST_LONGER * self._usual_s) if self._usual_s else took_s, 1.0

    async def _through(self, core: Step, *, evaluate: bool = False) -> tuple[Part, ...]:
        """All tasks of a step, or an evaluation. Raises _Again: it is given up."""
        self._core, self._evaluating, self._commands = core, evaluate, deque(core.begin())
        patience_s = self._stretch * (max(LEAST_PATIENCE_S, TIMES * self._usual_s) if self._usual_s else PATIENCE_S)
        try:
            for stage, message in self._early.take(self._turn, self._step):
                self._feed(stage, message)
            silent_at, ask_at = trio.current_time() + patience_s, trio.current_time() + REPEAT_S
            while True:
                while self._commands:
                    command = self._commands.popleft()
                    if isinstance(command, Apply):
                        return command.parts
                    await self._do(core, command)
                    silent_at, ask_at = trio.current_time() + patience_s, trio.current_time() + REPEAT_S
                if self._trouble:
                    raise _Again
                began = trio.current_time()
                with trio.move_on_at(min(silent_at, ask_at)):
                    await self._moved.wait()
                self.idle_s += trio.current_time() - began
                if trio.current_time() >= ask_at:
                    ask_at += REPEAT_S
                    if core.waits and self._last_told is not None:
                        self._tell(structs.replace(self._last_told, again=True))
                if trio.current_time() >= silent_at:
                    self._report.event(
                        "crew_silent", f"a mate was silent for {patience_s:.0f} s; the crew meets", level="warning"
                    )
                    self._stretch *= 2.0  # or it was our impatience
                    raise _Again
        finally:
            self._core = None
            if evaluate:
                await self._abandoned()

    async def _abandoned(self) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(1.0):
            await self._engine.call(calls.Abandon())

    async def _do(self, core: Step, command: Command) -> None:
        if isinstance(command, Compute) and self._evaluating and command.way == "B":
            self._commands.extend(core.computed(b""))
        elif isinstance(command, Compute):
            began = trio.current_time()
            reply = await self._engine.call(self._call(command))
            self.busy_s += trio.current_time() - began
            if isinstance(reply, calls.Refused) and reply.kind == "peer":
                sender = self._stage + (-1 if command.way == "F" else 1)
                self._report.fault(self._peers[sender], reply.reason)
                raise _Again
            if not isinstance(reply, calls.Advanced):
                raise EngineError(f"the stage did not compute: {reply}")
            self._commands.extend(core.computed(reply.payload, reply.labels))
        elif isinstance(command, Pass):
            peer, where = self._peers[command.to], (self._name, self._turn, self._step, command.micro)
            forward = command.way == "F"
            self._send(
                peer, Forward(*where, command.payload, command.labels) if forward else Backward(*where, command.payload)
            )
        else:
            summed = await self._engine.call(calls.Summary())
            assert isinstance(summed, calls.Summed), summed
            part = Part(summed.squares, summed.loss, summed.value, summed.samples, summed.fine)
            told = Told(
                self._name, self._turn, self._step, part.squares, part.loss, part.value, part.samples, part.fine
            )
            self._last_told = told
            self._tell(told)
            self._commands.extend(core.part(self._stage, part))

    def _call(self, task: Compute) -> calls.Request:
        crew = self.mates.crew
        if task.way == "F":
            return calls.Advance(crew, self._step, task.micro, task.payload, task.labels, self._evaluating)
        return calls.Retreat(crew, self._step, task.micro, task.payload)

    def _receive(self, peer: str, message: Crew) -> None:
        """A frame of a member. Raises RemoteProtocolError: it breaks a rule."""
        if peer not in self._peers or message.crew != self._name:  # of another crew, or of ours as it was or will be
            if isinstance(message, Ready) and (peer in self._strange or len(self._strange) < MAX_STRANGE):
                self._strange[peer] = message
            return
        stage = self._peers.index(peer)
        try:
            if isinstance(message, Ready):
                self._called_by(stage, message)
            elif isinstance(message, Piece):
                self._piece(peer, stage, message)
            elif isinstance(message, Kept):
                if (
                    stage == (self._stage - 1) % self._stages
                    and message.stage == self._stage
                    and message.step in self._points
                ):
                    self._safe = max(self._safe, message.step + 1)
            elif isinstance(message, Told) and message.again:
                self._told_again(peer, stage, message)
            elif self._core is not None and (message.turn, message.step) == (self._turn, self._step):
                self._feed(stage, message)
            elif (message.turn, message.step) > (self._turn, self._step) or (
                message.turn == self._turn and self._core is None
            ):
                self._early.put(stage, message, ahead(stage, self._stages, MOST_BATCHES, self._section.warm_up) + 1)
        except ValueError as error:
            raise RemoteProtocolError(peer, f"crew_{error}") from error
        self.move()

    def _told_again(self, peer: str, stage: int, message: Told) -> None:
        """A mate lacks our part of a step, perhaps one that we have applied: it is small, and the step would else be done again."""
        last, core = self._last_told, self._core
        if last is not None and (last.turn, last.step) == (message.turn, message.step):
            self._send(peer, last)
        if core is not None and (message.turn, message.step) == (self._turn, self._step) and not core.heard(stage):
            self._feed(stage, message)

    def _feed(self, stage: int, message: Forward | Backward | Told) -> None:
        core = self._core
        assert core is not None
        try:
            if isinstance(message, Told):
                part = Part(message.squares, message.loss, message.value, message.samples, message.fine)
                self._commands.extend(core.part(stage, part))
                return
            way, sender = ("F", self._stage - 1) if isinstance(message, Forward) else ("B", self._stage + 1)
            if stage != sender:
                raise ValueError("no_such_neighbour")
            labels = message.labels if isinstance(message, Forward) else b""
            self._commands.extend(core.arrived(way, message.micro, message.payload, labels))  # type: ignore[arg-type]
        except Gap:
            self._trouble = True

    def _called_by(self, stage: int, ready: Ready) -> None:
        """A mate is at a meeting; if that is a later one than ours we come, unless it has applied a step that we have not yet."""
        if ready.turn > self._turn + (1 << 20):
            raise ValueError("turn_too_far")
        if ready.turn < self._turn:
            return
        again = self._told.get((ready.turn, stage)) == ready
        self._told[ready.turn, stage] = ready
        if again and not self._asking and self._mine is not None and self._mine.turn == ready.turn:
            self._send(self._peers[stage], self._mine)  # it has not heard us
        if ready.turn > self._turn:
            self._called = max(self._called, ready.turn)
            if self._core is not None and (ready.step <= self._step or self._evaluating):
                self._trouble = True

    def _piece(self, peer: str, stage: int, piece: Piece) -> None:
        behind = (self._stage + 1) % self._stages
        given_back = piece.stage == self._stage and stage == (self._stage - 1) % self._stages
        if not given_back and not (piece.stage == behind == stage):
            raise ValueError("piece_of_another_stage")
        state = self._copies.take(peer, piece)
        if state is None:
            return
        if piece.stage == behind and stage == behind:
            self._copies.keep(piece.step, state)
            self._send(peer, Kept(self._name, piece.stage, piece.step))
        elif self._nursery is not None:
            self._nursery.start_soon(self._restore, piece.step, state)

    async def _restore(self, step: int, state: bytes) -> None:
        """Take over a state of our stage that the stage before has kept."""
        if step in self._points:
            return
        try:
            reply = await self._engine.call(calls.Point("take", self._crew, step, state))
        except EngineError:
            return
        if isinstance(reply, calls.Pointed):
            self._points, self._step, self._safe = reply.points, reply.step, step + 1
            self._report.event(
                "crew_restored", f"this stage's state after {step} local steps came from a mate", step=step
            )
        else:
            self._report.fault(self._peers[self._stage - 1], "crew_state_unusable")
        self.move()

    async def _watch(self) -> None:
        """Notice that the crew is another one, and seats that stay free."""
        free_since = trio.current_time()
        while True:
            await trio.sleep(0.1)
            peers = self.mates.mates
            if self._name and (peers is None or self.mates.named(peers) != self._name):
                self._trouble = True
                if peers is None:
                    self._name = b""
                else:
                    self._look(peers)
                self.move()
            elif peers is not None and not self._name:
                self.move()
            if peers is not None:
                free_since = trio.current_time()
            elif trio.current_time() - free_since >= ADOPT_S:
                self._take_over()

    def _take_over(self) -> None:
        """Start a node for the stage behind ours, if its seat is free and its state is here."""
        behind, now = (self._stage + 1) % self._stages, trio.current_time()
        if self._seconds is None or not self._waiting or behind not in self.mates.lacking or not self._copies.kept:
            return
        if now - self._adopted_at.get(behind, -ADOPT_AGAIN_S) < ADOPT_AGAIN_S:
            return
        self._adopted_at[behind] = now
        report, what = self._report, f"stage {behind} of crew {self.mates.crew} is lost"
        try:
            if self._seconds.start(behind, self._network.addresses):
                text = f"{what}; a node on this machine takes it, with the copy of its state that is here"
                report.event("crew_adopts", text, level="warning", stage=behind)
                return
            why = "it cannot be a member (admission.kind)"
        except (GossipError, OSError) as error:
            why = str(error)
        report.event("crew_waits", f"{what}; no node on this machine can take it: {why}", level="error", stage=behind)

    def move(self) -> None:
        """Something happened that a meeting or a step may wait for."""
        self._moved.set()
        self._moved = trio.Event()

    def _tell(self, message: Crew) -> None:
        for peer in self._peers:
            if peer != self._context.me:
                self._send(peer, message)

    def _send(self, peer: str, message: Crew) -> None:
        """Queue a frame for a mate; frames arrive in order, or are lost with those behind them."""
        if self._nursery is None:
            return
        if peer not in self._lines:
            self._lines[peer], receive = trio.open_memory_channel[Crew](MAX_FRAMES)
            self._nursery.start_soon(partial(self._carry, peer, receive))
        try:
            self._lines[peer].send_nowait(message)
        except trio.WouldBlock:
            self._trouble = True

    async def _carry(self, peer: str, frames: trio.MemoryReceiveChannel[Crew]) -> None:
        async for message in frames:
            if message.crew != self._name:
                continue
            try:
                with trio.fail_after(SEND_S):
                    await self._network.send(peer, "crew", encode(message))
            except (TransportError, trio.TooSlowError):
                self._trouble = self._trouble or not isinstance(message, Ready)
                self.move()
                await trio.sleep(0.1)


def _has(ready: Ready) -> Has:
    return Has(ready.round, ready.step, ready.left, ready.points, ready.copies, ready.safe, ready.batches)
