"""One edge at work: its machine, its calls to the engine in order, its frames to the peer in order.

Theory of operation. `gossip.exchange.edge.Edge` decides; this shell carries out. Everything that touches the machine is synchronous, so
a message, a result and a deadline never interleave inside it. Engine calls of one edge run one after the other in a task of their own,
frames in another; each task lives while there is work. Nothing is awaited on behalf of another edge.

What fails ends this exchange and nothing else: a refusal or an EngineError is `failed`; where the flow may then be in doubt (commit,
settle, an apply without a reply) the edge is reset. A frame that cannot be sent is lost, and with it the transaction under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from starling.gossip.errors import EngineError, TransportError
from starling.gossip.exchange.commands import (
    AskAnswer,
    AskApply,
    Asked,
    AskOffer,
    Command,
    DoCommit,
    DoDrop,
    DoRevoke,
    DoSettle,
    Ended,
    EngineCommand,
    Poked,
    Send,
)
from starling.gossip.exchange.edge import Edge
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Exchange
from starling.node.daemon.exchange.history import Transactions
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.net.api import Network
from starling.node.rpc import calls

MAX_FRAMES = 16  # waiting to be sent on one edge; more are lost, which the machine repairs
SEND_S = 60.0  # a peer that takes no frame for so long is unreachable


class Budget(Protocol):
    """What an exchange may cost, and what frames took. `starling.node.daemon.exchange.budget.Budget` is one."""

    def __call__(self, peer: str) -> int:
        """Bytes that both payloads of one exchange with `peer` may take; 0 is no limit known."""
        ...

    def observe(self, peer: str, sent_bytes: int, seconds: float) -> None:
        """A frame took so long to be handed to the network."""
        ...

    def forget(self, peer: str) -> None:
        """The peer is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A frame could not be handed to the network."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The flow was settled: the edge was closed in order."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """The difference that was committed is as long as the clip allows."""


@dataclass(frozen=True, slots=True)
class Leaned:
    """The peer's flow was deleted, and those of other edges lean against what it was."""


Notice = Asked | Poked | Ended | Unreachable | Settled | Clipped | Leaned


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every edge of a node works with.

    Args:
        network, engine, report: the node's.
        budget: bytes of an exchange.
        weights: (give, take) of the link to a peer where messages are swapped, (None, None) for the link's one weight.
        fresh_inc: a random number in [0, 2**60].
        spawn: starts a task that lives no longer than the exchange service.
        notice: told what the pace must know.
        transactions: told what goes out and what the clip left, for a person to look at.
    """

    network: Network
    engine: EngineHandle
    report: Reporter
    budget: Budget
    weights: Callable[[str], tuple[float | None, float | None]]
    fresh_inc: Callable[[], int]
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    notice: Callable[[str, Notice], None]
    transactions: Transactions


class EdgeRunner:
    """One edge at work. The engine first deletes what it may hold for the peer from an earlier life.

    Args:
        me: own peer id.
        peer: the other end's.
        around: what it works with.
    """

    def __init__(self, me: str, peer: str, around: Surroundings) -> None:
        self.edge = Edge(me, peer, around.fresh_inc())
        self._peer = peer
        self._around = around
        self._calls: deque[EngineCommand] = deque()
        self._frames: deque[Exchange] = deque()
        self._calling = self._sending = False
        self._rested = trio.Event()
        self.feed([DoRevoke()])

    def feed(self, commands: Sequence[Command]) -> None:
        """Carry out what the machine asked for."""
        notices: list[Notice] = []
        for command in commands:
            match command:
                case Send(message):
                    self._around.transactions.sent(self._peer, message)
                    if len(self._frames) < MAX_FRAMES:
                        self._frames.append(message)
                case Asked() | Poked() | Ended():
                    notices.append(command)
                case _:
                    self._calls.append(command)
                    if isinstance(command, DoSettle):
                        notices.append(Settled())
        if self._frames and not self._sending:
            self._sending = True
            self._around.spawn(self._send_frames)
        if self._calls and not self._calling:
            self._calling = True
            self._rested = trio.Event()
            self._around.spawn(self._call_engine)
        for notice in notices:
            self._around.notice(self._peer, notice)

    def retry(self) -> None:
        """Send again what has not been answered, unless frames still wait to go out."""
        if not self._sending:
            self.feed(self.edge.retry())

    def reset(self, *, settled: bool = True) -> None:
        """Delete the flow and begin a new life. If all goes, what the engine was still to do for the old one need not be done."""
        if settled:
            self._calls.clear()
        self.feed(self.edge.reset(self._around.fresh_inc(), settled=settled))

    async def rest(self) -> None:
        """Wait until the engine has done all that was asked for this edge."""
        while self._calling:
            await self._rested.wait()

    # --- frames -------------------------------------------------------------------------------------------

    async def _send_frames(self) -> None:
        around = self._around
        while self._frames:
            frame = encode(self._frames.popleft())
            began = trio.current_time()
            try:
                with trio.fail_after(SEND_S):
                    await around.network.send(self._peer, "exchange", frame)
            except (TransportError, trio.TooSlowError):
                self._frames.clear()
                self.feed(self.edge.abort("timeout", "unreachable"))
                around.notice(self._peer, Unreachable())
            else:
                around.budget.observe(self._peer, len(frame), trio.current_time() - began)
        self._sending = False

    # --- engine -------------------------------------------------------------------------------------------

    async def _call_engine(self) -> None:
        while self._calls:
            await self._carry_out(self._calls.popleft())
        self._calling = False
        self._rested.set()

    async def _carry_out(self, command: EngineCommand) -> None:
        peer, edge = self._peer, self.edge
        match command:
            case AskOffer(inc, seq, round, theta):
                offer = calls.Offer(
                    peer, inc, seq, round, theta, self._around.budget(peer), *self._around.weights(peer)
                )  # fmt: skip
                reply = await self._call(offer)
                if isinstance(reply, calls.Offered):
                    self.feed(edge.offered(inc, seq, reply.payload, reply.gain))
                else:
                    self.feed(edge.failed(inc, seq, self._why(reply)))
            case AskAnswer(request):
                inc, seq = request.inc, request.seq
                answer = calls.Answer(
                    peer, inc, seq, request.round, request.theta, request.gain, request.payload,
                    *self._around.weights(peer),
                )  # fmt: skip
                reply = await self._call(answer)
                if isinstance(reply, calls.Answered):
                    self._around.transactions.clipped(peer, seq, reply.clip)
                    self.feed(edge.answered(inc, seq, reply.payload))
                else:
                    self.feed(edge.failed(inc, seq, self._why(reply)))
            case AskApply(inc, seq, payload):
                reply = await self._call(calls.Apply(peer, inc, seq, payload))
                if isinstance(reply, calls.Done):
                    self._tell_clipped(reply)
                    self._around.transactions.clipped(peer, seq, reply.clip)
                    self.feed(edge.applied(inc, seq))
                elif reply is None:
                    self._doubt(inc)
                else:
                    self.feed(edge.failed(inc, seq, self._why(reply)))
            case DoCommit(inc, seq):
                reply = await self._call(calls.Commit(peer, inc, seq))
                if isinstance(reply, calls.Done):
                    self._tell_clipped(reply)
                else:
                    self._doubt(inc)
            case DoSettle():
                if not isinstance(await self._call(calls.Settle(peer)), calls.Done):
                    self._doubt(edge.inc)
            case DoDrop(inc, seq):
                await self._call(calls.Drop(peer, inc, seq))
            case DoRevoke(settled):
                reply = await self._call(calls.Revoke(peer, settled))
                if isinstance(reply, calls.Done) and reply.leaned:
                    self._around.notice(peer, Leaned())

    async def _call(self, request: calls.Request) -> calls.Reply | None:
        """The engine's reply, or None: it died or is starting, and whoever restarts it resets every edge."""
        try:
            return await self._around.engine.call(request)
        except EngineError:
            return None

    def _why(self, reply: calls.Reply | None) -> str:
        if not isinstance(reply, calls.Refused):
            return "engine"
        if reply.kind == "peer":
            self._around.report.fault(self._peer, reply.reason)
            return "bad_payload"
        self._around.report.event(
            "exchange_refused", f"the engine refused an exchange with {self._peer}: {reply.reason}",
            level="warning", peer=self._peer, kind=reply.kind,
        )  # fmt: skip
        return "refused"

    def _tell_clipped(self, done: calls.Done) -> None:
        if done.clipped:
            self._around.notice(self._peer, Clipped())

    def _doubt(self, inc: int) -> None:
        """The engine may not have done what the machine counts on: only zero is certain."""
        if self.edge.inc == inc or self.edge.settled is not None:
            self._around.report.event(
                "edge_reset", f"the edge to {self._peer} starts anew: the engine lost its place", level="warning", peer=self._peer
            )  # fmt: skip
            self.reset()
