"""All edges of one node: messages and engine replies to their edges, and what edges report to the pace. No I/O; time arrives as `now`.

Each `Edge` decides what a message or an engine reply does to its own transaction; the pace (`Rounds` or `Slots`) decides which request is
answered now. `starling.gossip.exchange.pairwise` adds when exchanges begin, are repeated and given up.

    engine refuses                             that exchange ends, and no other
    engine lost a flow                         the edge starts anew at both ends
    flows compensated for a revoked one        all edges start anew
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from starling.gossip.exchange.calls import (
    Answer,
    Answered,
    Apply,
    Call,
    Commit,
    Done,
    ExchangeCall,
    Offer,
    Offered,
    Refused,
    Revoke,
    Settle,
)
from starling.gossip.exchange.commands import (
    Command,
    DiscardCalls,
    EdgeCommand,
    EdgeDropped,
    Ended,
    Event,
    Fault,
    Requested,
    SendMessage,
    Solicited,
)
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.slots import Slots
from starling.gossip.exchange.verdicts import Accept, Decision, DeferredDecision, ExchangeRequest, Reject
from starling.gossip.wire.schema import Busy, Exchange, Request

TRY_AGAIN = frozenset({"reset", "superseded", "closing", "early"})
"""Reasons for the end of a transaction after which its link is still open."""


@dataclass(slots=True)
class Edges:
    """The edges of one node. Every method returns commands (`starling.gossip.exchange.commands`).

    Args:
        me: own peer id.
        pace: whom to answer when, and when a round or visit is over.
        fresh_inc: a random number in [0, 2**60] for a new incarnation of an edge.
        greets: whether a peer is told at once that its edge starts anew: an alive member.
        budget: bytes that both payloads of one exchange with a peer may take; 0 is no limit known.
    """

    me: str
    pace: Rounds | Slots
    fresh_inc: Callable[[], int]
    greets: Callable[[str], bool] = lambda _peer: True
    budget: Callable[[str], int] = lambda _peer: 0
    edges: dict[str, Edge] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    """How exchanges ended, those of both roles."""
    committed: Counter[str] = field(default_factory=Counter)
    """Exchanges committed, by peer."""
    payload_bytes: int = 0
    """Sent in committed exchanges."""
    _out: list[Command] = field(default_factory=list)
    _directions: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # (give, take) of this round's links
    _late: set[str] = field(default_factory=set)  # had done the open round before us
    _early: set[str] = field(default_factory=set)  # rejected us as early: tried again at the next retry, not at once
    _clipped: set[str] = field(default_factory=set)  # since `take_clipped`
    _renewing: dict[str, Revoke] = field(default_factory=dict)  # all edges start anew: calls not replied to yet

    def receive(self, peer: str, message: Exchange, now: float) -> list[Command]:
        """Take a message of a peer.

        Raises:
            RemoteProtocolError: an honest peer never sends this; nothing has changed.
        """
        edge = self.edges.get(peer)
        if edge is None:
            edge = Edge(self.me, peer, self.fresh_inc())
            commands = edge.receive(message)
            self._add(edge)
        else:
            commands = edge.receive(message)
        self._do(peer, commands, now)
        if isinstance(message, Busy):
            self.pace.progress.record(peer, message.round)
        return self._flush()

    def reply(self, call: ExchangeCall, reply: Call | None, now: float) -> list[Command]:
        """Take the engine's reply to a call; None: the engine died or is starting, and all edges are reset when it is back."""
        edge = self.edges.get(call.peer)
        if isinstance(call, Revoke):
            self._revoked(call, reply, now)
        elif edge is not None:
            self._replied(edge, call, reply, now)
        return self._flush()

    def close(self, peer: str, now: float) -> list[Command]:
        """Close the edge in order: over when its `closing` is false again; until then `retry_close` from time to time."""
        edge = self.edges.get(peer)
        if edge is not None:
            self._do(peer, edge.close(), now)
        return self._flush()

    def retry_close(self, peer: str) -> list[Command]:
        """Repeat what the peer has not answered."""
        self._retry(peer)
        return self._flush()

    def release(self, peer: str) -> None:
        """Forget the edge of a revoked peer, unless the peer has begun a transaction since."""
        edge = self.edges.get(peer)
        if edge is not None and not edge.unresolved:
            del self.edges[peer]

    def reset_all(self, now: float) -> list[Command]:
        """The engine holds no flow any more, or none that is worth keeping: start every edge anew and tell the peers."""
        self._reset_all(now)
        return self._flush()

    def take_clipped(self, peers: Iterable[str]) -> set[str]:
        """Which of these committed a difference as long as the clip allows; each is returned once."""
        clipped = self._clipped.intersection(peers)
        self._clipped -= clipped
        return clipped

    # --- events of edges ------------------------------------------------------------------------------------

    def _flush(self) -> list[Command]:
        out, self._out = self._out, []
        return out

    def _add(self, edge: Edge) -> None:
        self.edges[edge.peer] = edge
        self._out.append(Revoke(edge.peer))  # what the engine may hold from an earlier incarnation

    def _edge(self, peer: str) -> Edge:
        if peer not in self.edges:
            self._add(Edge(self.me, peer, self.fresh_inc()))
        return self.edges[peer]

    def _do(self, peer: str, commands: Iterable[EdgeCommand], now: float) -> None:
        """Emit what is for the network and the engine first, then handle what is for the pace."""
        for_pace: list[Requested | Solicited | Ended] = []
        for command in commands:
            match command:
                case Requested() | Solicited() | Ended():
                    for_pace.append(command)
                case Settle():
                    self._out += [command, EdgeDropped(peer)]
                case _:
                    self._out.append(command)
        for event in for_pace:
            match event:
                case Requested(request) | Solicited(request):
                    self._decide(peer, request, self.pace.decide(peer, request, now), now)
                case Ended():
                    self._ended(event, now)

    def _begin(self, peer: str, now: float) -> None:
        edge, pace = self._edge(peer), self.pace
        weights = self._weights(peer)
        self._do(peer, edge.begin(pace.round, pace.view, pace.theta(peer), self.budget(peer), *weights), now)

    def _retry(self, peer: str) -> None:
        if (edge := self.edges.get(peer)) is not None:
            for command in edge.retry():
                assert isinstance(command, SendMessage)
                self._out.append(SendMessage(peer, command.message, repeat=True))

    def _weights(self, peer: str) -> tuple[float | None, float | None]:
        return self._directions.get(peer, (None, None))

    def _decide(self, peer: str, request: ExchangeRequest, decision: Decision, now: float) -> None:
        edge = self._edge(peer)
        match decision:
            case Accept() if isinstance(request, Request):
                self._do(peer, edge.accept(request.inc, request.seq, *self._weights(peer)), now)
            case Accept():
                if edge.ready and (isinstance(self.pace, Slots) or peer in self.pace.waiting):
                    self._begin(peer, now)
            case Reject(reason) if isinstance(request, Request):
                self._do(peer, edge.refuse(request.inc, request.seq, reason, self.pace.round), now)
            case Reject(reason):
                self._do(peer, edge.refuse_solicit(reason, self.pace.round), now)
            case _:
                pass  # deferred: comes back when the round opens

    def _decided(self, deferred: Iterable[DeferredDecision], now: float) -> None:
        for it in deferred:
            self._decide(it.peer, it.request, it.decision, now)

    def _ended(self, ended: Ended, now: float) -> None:
        peer = ended.peer
        self._out.append(ended)
        self.totals[ended.outcome] += 1
        if ended.outcome == "committed":
            self.committed[peer] += 1
            self.payload_bytes += ended.payload_bytes
        if ended.reason == "full":
            self._out.append(EdgeDropped(peer))
        if ended.reason == "late" and ended.round == self.pace.round:
            self._late.add(peer)
        if ended.reason == "early" and ended.role == "initiator":
            self._early.add(peer)
        if ended.reason not in TRY_AGAIN:
            self.pace.resolved(peer, ended.round, ended.outcome, now)

    # --- replies of the engine ------------------------------------------------------------------------------

    def _replied(self, edge: Edge, call: ExchangeCall, reply: Call | None, now: float) -> None:
        peer = edge.peer
        if isinstance(reply, Done) and reply.clipped:
            self._clipped.add(peer)
        match call, reply:
            case Offer(inc=inc, seq=seq), Offered(payload, gain):
                self._do(peer, edge.offered(inc, seq, payload, gain), now)
            case Answer(inc=inc, seq=seq), Answered(payload):
                self._do(peer, edge.answered(inc, seq, payload), now)
            case Apply(inc=inc, seq=seq), Done():
                self._do(peer, edge.applied(inc, seq), now)
            case (Offer(inc=inc, seq=seq) | Answer(inc=inc, seq=seq), _) | (Apply(inc=inc, seq=seq), Refused()):
                self._do(peer, edge.failed(inc, seq, self._why(peer, reply)), now)
            case (Apply(inc=inc) | Commit(inc=inc), None) | (Commit(inc=inc), Refused()):
                if edge.inc == inc or edge.settled is not None:
                    self._start_anew(edge, now)
            case Settle(), None | Refused():
                self._start_anew(edge, now)
            case _:
                pass  # Commit or Settle is done; whether a Drop is makes no difference

    def _start_anew(self, edge: Edge, now: float) -> None:
        """The engine may not have done what the edge counts on: only a flow of zero is certain."""
        text = f"the edge to {edge.peer} starts anew: the engine lost its flow"
        self._out.append(Event("edge_reset", text, fields={"peer": edge.peer}))
        self._reset(edge.peer, now)

    def _why(self, peer: str, reply: Call | None) -> str:
        if not isinstance(reply, Refused):
            return "engine"
        if reply.kind == "peer":
            self._out.append(Fault(peer, reply.reason))
            return "bad_payload"
        text = f"the engine refused an exchange with {peer}: {reply.reason}"
        self._out.append(Event("exchange_refused", text, fields={"peer": peer, "kind": reply.kind}))
        return "refused"

    def _revoked(self, call: Revoke, reply: Call | None, now: float) -> None:
        renewing = bool(self._renewing)
        if self._renewing.get(call.peer) is call:
            del self._renewing[call.peer]
        if renewing or not isinstance(reply, Done) or not reply.leaned:
            return
        text = f"the other flows compensated for that of {call.peer}: all edges start anew"
        self._out.append(Event("edges_anew", text, "info", {"peer": call.peer}))
        self._renewing = dict.fromkeys(self.edges, call)  # replaced by the calls of `_reset`
        self._reset_all(now)

    def _reset_all(self, now: float) -> None:
        for peer, edge in self.edges.items():
            self._reset(peer, now)
            if self.greets(peer):
                self._do(peer, edge.greet(), now)

    def _reset(self, peer: str, now: float) -> None:
        """Start an edge anew; what the engine was still to do for the old incarnation need not be done."""
        self._out.append(DiscardCalls(peer))
        commands = self.edges[peer].reset(self.fresh_inc())
        if peer in self._renewing:
            self._renewing[peer] = next(it for it in commands if isinstance(it, Revoke))
        self._do(peer, commands, now)
