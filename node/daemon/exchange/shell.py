"""The I/O of an exchange core: frames in, frames and engine calls out, in order for each peer.

The core (`gossip.exchange.pairwise` or `gossip.exchange.pull`) is synchronous, so a message, a reply and a deadline never interleave inside
it. Each peer has two queues, one of frames and one of engine calls, each emptied by a task of its own that lives while there is work. A
frame that cannot be sent is lost with those behind it; the core is notified of that, and of lost calls.

No peer waits for another, but for one thing: long requests go out one after the other. Side by side all would be there when the last is,
while the line is idle the other way; in turn the first is answered while the second goes out. None waits for longer than a payload usually
takes, so that a peer with a slow line costs the others what it would cost them side by side.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError, TransportError
from starling.gossip.exchange.calls import (
    Answer,
    Answered,
    Apply,
    Commit,
    Done,
    Drop,
    ExchangeCall,
    Offer,
    Revoke,
    Settle,
    VerifyUpdate,
)
from starling.gossip.exchange.commands import (
    Command,
    DiscardCalls,
    EdgeDropped,
    Ended,
    Event,
    Fault,
    Outcome,
    SendMessage,
)
from starling.gossip.exchange.pairwise import Pairwise
from starling.gossip.exchange.pull import Pulls
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Exchange, Pulling, Request
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.traffic import Traffic
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls

LONG_BYTES = 64 << 10  # of a payload: a shorter one is mostly on its way as soon as it is sent
MAX_FRAMES = 16  # waiting to be sent to one peer; more are lost, and the cores repeat what is not answered


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """How a round's exchanges ended."""

    round: int
    outcomes: Mapping[str, Outcome]  # by peer
    behind: int
    """The round that peers have credibly reached, if they left us behind, else `round`: to exchange less often is to lose nothing."""
    distance: float | None = None  # as in `starling.node.rpc.calls.Done`
    parted: tuple[str, ...] = ()  # likewise
    waited_s: float = 0.0  # for the slowest peers, beyond what is usual


@dataclass(slots=True)
class _Peer:
    frames: deque[tuple[Exchange | Pulling, int]] = field(default_factory=deque)  # messages, payload bytes
    calls: deque[ExchangeCall] = field(default_factory=deque)
    sending: bool = False
    calling: bool = False
    idle: trio.Event = field(default_factory=trio.Event)


class Shell:
    """Carries out the commands of one node's exchange core. A peer that takes no frame for `send_s` is unreachable.

    `traffic` is told of what is sent, `edge_dropped` of a peer that gave up its edge, `called` of the seconds that the engine took for a
    payload. `usual_s`: what a long payload usually takes to be sent.
    """

    def __init__(
        self, context: NodeContext, core: Pairwise | Pulls, *, send_s: float, traffic: Traffic, transactions: Transactions,
        edge_dropped: Callable[[str], None] = lambda _peer: None, called: Callable[[float], object] = lambda _seconds: None,
        usual_s: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        self._network = context.network
        self._engine = context.engine
        self._report = context.report
        self._core = core
        self._send_s = send_s
        self._traffic = traffic
        self._transactions = transactions
        self._edge_dropped, self._called, self._usual_s = edge_dropped, called, usual_s
        self._turns = trio.Lock()  # held while a long request is sent
        self._peers: dict[str, _Peer] = {}
        self._nursery: trio.Nursery | None = None
        self._moved = trio.Event()
        self.queued_bytes = 0  # payload bytes that wait to be sent or are being sent

    async def serve(
        self, receive: Callable[[str, bytes | memoryview], None], *beside: Callable[[], Awaitable[None]], task_status: TaskStatus
    ) -> None:  # fmt: skip
        """Hand (peer, frame) to `receive` until cancelled, and run `beside`. A RemoteProtocolError is reported as the peer's fault."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in beside:
                nursery.start_soon(task)
            try:
                task_status.started()
                async for inbound in self._network.inbound("exchange"):
                    try:
                        receive(inbound.peer, inbound.frame)
                    except RemoteProtocolError as error:
                        self._report.fault(error.peer, error.reason)
                    self.move()
            finally:
                self._nursery = None

    def do(self, commands: Iterable[Command]) -> None:
        """Carry out what a core returned."""
        for command in commands:
            match command:
                case SendMessage(peer, message, repeat):
                    self._queue_frame(peer, message, repeat=repeat)
                case DiscardCalls(peer):
                    self._peer(peer).calls.clear()
                case Ended():
                    self._transactions.end(command)
                    self.move()
                case EdgeDropped(peer):
                    self._edge_dropped(peer)
                case Fault(peer, reason):
                    self._report.fault(peer, reason)
                case Event(name, text, level, fields):
                    self._report.event(name, text, level=level, **fields)
                case Answer(peer=peer, seq=seq):
                    self._transactions.accepted(peer, seq)
                    self._queue_call(command)
                case Offer() | Apply() | Commit() | Drop() | Settle() | Revoke() | VerifyUpdate():
                    self._queue_call(command)

    async def until_done(self, woken: Callable[[], object] = lambda: None) -> None:
        """Wait until the core is done; `woken` is called after each of its ticks."""
        self.do(self._core.tick(trio.current_time()))
        while not self._core.done:
            with trio.move_on_at(self._core.deadline):
                await self._moved.wait()
            self.do(self._core.tick(trio.current_time()))
            woken()

    async def mix(self, round: int, asked: tuple[str, ...] = (), *, own: bool = True) -> Done:
        """Have the engine mix; arguments as in `calls.Mix`. Raises EngineError: it cannot."""
        reply = await self._engine.call(calls.Mix(round, asked, own))
        if not isinstance(reply, Done):
            raise EngineError(f"round {round} was not mixed: {reply}")
        return reply

    async def moved(self) -> None:
        """Wait until something happens that a round may wait for."""
        await self._moved.wait()

    async def rest(self, peer: str) -> None:
        """Wait until the engine has replied to all calls for a peer."""
        while (it := self._peers.get(peer)) is not None and it.calling:
            await it.idle.wait()

    def move(self) -> None:
        """Something happened that a round may wait for."""
        self._moved.set()
        self._moved = trio.Event()

    def _peer(self, peer: str) -> _Peer:
        return self._peers.setdefault(peer, _Peer())

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:  # else the service is stopping: there is no more work
            self._nursery.start_soon(task)

    def _queue_frame(self, peer: str, message: Exchange | Pulling, *, repeat: bool) -> None:
        it = self._peer(peer)
        if repeat and it.sending:
            return
        self._traffic.queued(peer, message)
        if len(it.frames) < MAX_FRAMES:
            count = len(getattr(message, "payload", b""))
            it.frames.append((message, count))
            self.queued_bytes += count
        if not it.sending:
            it.sending = True
            self._spawn(partial(self._send_frames, peer, it))

    async def _send_frames(self, peer: str, it: _Peer) -> None:
        while it.frames:
            message, count = it.frames.popleft()
            frame = encode(message)
            try:
                async with self._turn(isinstance(message, Request) and count >= LONG_BYTES):
                    began = trio.current_time()
                    with trio.fail_after(self._send_s):
                        await self._network.send(peer, "exchange", frame)
            except (TransportError, trio.TooSlowError):
                self.queued_bytes -= sum(lost for _, lost in it.frames)
                it.frames.clear()
                self.do(self._core.unreachable(peer, trio.current_time()))
                self.move()
            else:
                self._traffic.sent(peer, message, len(frame), trio.current_time() - began)
            finally:
                self.queued_bytes -= count
        it.sending = False
        self._forget_idle(peer, it)

    @asynccontextmanager
    async def _turn(self, long: bool) -> AsyncIterator[None]:
        """Long requests one at a time; one whose turn has not come within `usual_s` goes out beside the others."""
        if not long:
            yield
            return
        with trio.move_on_after(self._usual_s()) as patience:
            await self._turns.acquire()
        try:
            yield
        finally:
            if not patience.cancelled_caught:
                self._turns.release()

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
            if isinstance(call, Offer | Answer | Apply):
                self._called(trio.current_time() - began)
            if isinstance(call, Answer | Apply) and isinstance(reply, Answered | Done):
                self._transactions.clipped(peer, call.seq, reply.clip)
            self.do(self._core.reply(call, reply, trio.current_time()))
            if isinstance(call, VerifyUpdate):
                self.move()
        it.calling = False
        it.idle.set()
        self._forget_idle(peer, it)

    def _forget_idle(self, peer: str, it: _Peer) -> None:
        if not (it.sending or it.calling) and self._peers.get(peer) is it:
            del self._peers[peer]
