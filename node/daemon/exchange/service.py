"""Exchanges of one node: carry out the commands of an exchange state machine, and wait for its deadlines.

Frames go in, frames and engine calls out, in order for each peer. The core (`gossip.exchange.pairwise` or `gossip.exchange.pull`) is
synchronous, so a message, a reply and a deadline never interleave inside it. Each peer has two queues, one of frames and one of engine
calls, each emptied by a task of its own that lives while there is work. A frame that cannot be sent is lost with those behind it; the core
is notified of that, and of lost calls. Subscribers are told of everything in numbers (`facts.py`).

No peer waits for another, but for one thing: long requests go out one after the other, so that the first is answered while the second goes
out. None waits for longer than a payload usually takes: a peer with a slow line costs the others what it would cost them side by side.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError, TransportError
from starling.gossip.exchange.calls import ExchangeCall
from starling.gossip.exchange.commands import Command, DiscardCalls, EdgeDropped, Ended, Event, Fault, SendMessage
from starling.gossip.exchange.pairwise import Pairwise
from starling.gossip.exchange.pull import Pulls
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import PairwiseMessage, PulledMessage, Request
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import About, Accepted, Called, Fact, Queued, Sent, Subscriber
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls

LONG_BYTES = 64 << 10  # payload size from which requests are sent one at a time
MAX_FRAMES = 16  # frames waiting to be sent to one peer; more are dropped, and the cores repeat what is not answered

Core = TypeVar("Core", bound=Pairwise | Pulls)


@dataclass(slots=True)
class _Peer:
    frames: deque[tuple[PairwiseMessage | PulledMessage, About]] = field(default_factory=deque)
    calls: deque[ExchangeCall] = field(default_factory=deque)
    sending: bool = False
    calling: bool = False
    idle: trio.Event = field(default_factory=trio.Event)


class ExchangeService(Generic[Core]):
    """Carries out the commands of one node's exchange core; a subclass hands frames to it.

    A peer that takes no frame for `send_s` is unreachable; `usual_s`: what a long payload usually takes to be sent.
    """

    def __init__(
        self,
        context: NodeContext,
        core: Core,
        subscribers: Sequence[Subscriber],
        *,
        send_s: float,
        usual_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._network, self._engine, self._report = context.network, context.engine, context.report
        self._core = core
        self._subscribers = subscribers
        self._send_s, self._usual_s = send_s, usual_s
        self._one_at_a_time = trio.Lock()  # held while a long request is sent
        self.under_way: dict[str, _Peer] = {}  # peers with frames or calls under way
        self._nursery: trio.Nursery | None = None
        self._happened = trio.Event()
        self.queued_bytes = 0  # payload bytes that are queued or being sent

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer peers until cancelled. A RemoteProtocolError is reported as the peer's fault."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in self._tasks():
                nursery.start_soon(task)
            try:
                task_status.started()
                async for inbound in self._network.inbound("exchange"):
                    try:
                        self._receive(inbound.peer, inbound.frame)
                    except RemoteProtocolError as error:
                        self._report.fault(error.peer, error.reason)
                    self._move()
            finally:
                self._nursery = None

    def _tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return the tasks that run concurrently with the reading of frames."""
        return ()

    def _receive(self, peer: str, frame: bytes | memoryview) -> None:
        """Have the core process a frame of a peer. Raises RemoteProtocolError: no honest peer sends it."""
        raise NotImplementedError

    def _tell(self, fact: Fact) -> None:
        for subscriber in self._subscribers:
            subscriber(fact)

    def carry_out(self, commands: Iterable[Command]) -> None:
        """Carry out the commands that a core returned."""
        for command in commands:
            match command:
                case SendMessage(peer, message, repeat):
                    self._queue_frame(peer, message, repeat=repeat)
                case calls.Answer(peer=peer, seq=seq):
                    self._tell(Accepted(peer, seq))
                    self._queue_call(command)
                case (
                    calls.Offer()
                    | calls.Apply()
                    | calls.Commit()
                    | calls.Drop()
                    | calls.Settle()
                    | calls.Revoke()
                    | calls.VerifyUpdate()
                    | calls.VerifyEarlier()
                ):
                    self._queue_call(command)
                case DiscardCalls(peer):
                    self._peer(peer).calls.clear()
                case Ended():
                    self._tell(command)
                    self._move()
                case EdgeDropped():
                    self._tell(command)
                case Fault(peer, reason):
                    self._report.fault(peer, reason)
                case Event(name, text, level, fields):
                    self._report.event(name, text, level=level, **fields)

    async def _until_done(self, woken: Callable[[], object] = lambda: None) -> tuple[str, ...]:
        """Wait until the core is done -> the peers awaited last, sorted; `woken` is called after each of its ticks."""
        core, last = self._core, tuple[str, ...]()
        self.carry_out(core.tick(trio.current_time()))
        while not core.done:
            last = core.waiting or last
            with trio.move_on_at(core.deadline):
                await self._happened.wait()
            self.carry_out(core.tick(trio.current_time()))
            woken()
        return last

    async def _mix(self, round: int, requested: tuple[str, ...] = (), *, own: bool = True) -> calls.Done:
        """Have the engine mix; arguments as in `calls.Mix`. Raises EngineError: it cannot."""
        reply = await self._engine.call(calls.Mix(round, requested, own))
        if not isinstance(reply, calls.Done):
            raise EngineError(f"round {round} was not mixed: {reply}")
        return reply

    async def _rest(self, peer: str) -> None:
        """Wait until the engine has replied to all calls for a peer."""
        while (it := self.under_way.get(peer)) is not None and it.calling:
            await it.idle.wait()

    def _move(self) -> None:
        """Wake the tasks that wait for a change."""
        self._happened.set()
        self._happened = trio.Event()

    def _peer(self, peer: str) -> _Peer:
        return self.under_way.setdefault(peer, _Peer())

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:  # otherwise the service is stopping
            self._nursery.start_soon(task)

    def _queue_frame(self, peer: str, message: PairwiseMessage | PulledMessage, *, repeat: bool) -> None:
        it = self._peer(peer)
        if repeat and it.sending:
            return
        about = About(peer, type(message), *message.figures)
        self._tell(Queued(about))
        if len(it.frames) < MAX_FRAMES:
            it.frames.append((message, about))
            self.queued_bytes += about.payload_bytes
        if not it.sending:
            it.sending = True
            self._spawn(partial(self._send_frames, peer, it))

    async def _send_frames(self, peer: str, it: _Peer) -> None:
        while it.frames:
            message, about = it.frames.popleft()
            frame = encode(message)
            try:
                async with self._turn(about.kind is Request and about.payload_bytes >= LONG_BYTES):
                    began = trio.current_time()
                    with trio.fail_after(self._send_s):
                        await self._network.send(peer, "exchange", frame)
            except (TransportError, trio.TooSlowError):
                self.queued_bytes -= sum(lost.payload_bytes for _, lost in it.frames)
                it.frames.clear()
                self.carry_out(self._core.unreachable(peer, trio.current_time()))
                self._move()
            else:
                self._tell(Sent(about, len(frame), trio.current_time() - began))
            finally:
                self.queued_bytes -= about.payload_bytes
        it.sending = False
        self._forget_idle(peer, it)

    @asynccontextmanager
    async def _turn(self, long: bool) -> AsyncIterator[None]:
        """Let long requests out one at a time; one that has waited for `usual_s` goes out concurrently."""
        if not long:
            yield
            return
        with trio.move_on_after(self._usual_s()) as wait:
            await self._one_at_a_time.acquire()
        try:
            yield
        finally:
            if not wait.cancelled_caught:
                self._one_at_a_time.release()

    def _queue_call(self, call: ExchangeCall) -> None:
        it = self._peer(call.peer)
        it.calls.append(call)
        if not it.calling:
            it.calling, it.idle = True, trio.Event()
            self._spawn(partial(self._call_engine, call.peer, it))

    async def _call_engine(self, peer: str, it: _Peer) -> None:
        while it.calls:
            call, began = it.calls.popleft(), trio.current_time()
            try:
                reply = await self._engine.call(call)
            except EngineError:
                reply = None
            if isinstance(call, calls.Offer | calls.Answer | calls.Apply):
                clip = reply.clip if isinstance(reply, calls.Answered | calls.Done) else None
                self._tell(Called(peer, call.seq, trio.current_time() - began, clip))
            self.carry_out(self._core.reply(call, reply, trio.current_time()))
            if isinstance(call, calls.VerifyUpdate | calls.VerifyEarlier):
                self._move()
        it.calling = False
        it.idle.set()
        self._forget_idle(peer, it)

    def _forget_idle(self, peer: str, it: _Peer) -> None:
        if not (it.sending or it.calling) and self.under_way.get(peer) is it:
            del self.under_way[peer]
