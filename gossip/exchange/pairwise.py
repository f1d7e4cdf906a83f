"""All pairwise exchanges of one node: edges, the pace that schedules them, retries, catch-up and renewal. No I/O; time arrives as `now`.

Each `Edge` decides what a message or an engine reply does to its own transaction; the pace (`Rounds` or `Slots`) decides which request is
answered now; this core routes messages and replies, and decides when exchanges begin, are repeated and given up. Methods return commands
(`starling.gossip.exchange.commands`). Frames and engine calls of one peer are carried out in the order given; a call's reply comes back
through `reply`, a frame that cannot be sent through `unreachable`.

    begin_round or visit --tick until done--> end

`tick` begins what may begin, repeats what is not answered, and gives up links at their adaptive deadline; call it after every event and at
`deadline`.

    request that is late, early or foreign     Busy, by the pace's table
    message that breaks a rule                 RemoteProtocolError; nothing has changed
    peer that cannot be reached                its link is a timeout at once
    engine refuses                             that exchange ends, and no other
    engine lost a flow                         the edge starts anew at both ends
    flows compensated for a revoked one        all edges start anew
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange import calls
from starling.gossip.exchange.commands import (
    Accept,
    Command,
    DiscardCalls,
    EdgeCommand,
    EdgeDropped,
    Ended,
    Event,
    ExchangeRequest,
    Fault,
    Outcome,
    Pending,
    Reject,
    Role,
    SendMessage,
)
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.edge_rules import BROKEN
from starling.gossip.exchange.pace import Rounds, Slots
from starling.gossip.wire.schema import Busy, PairwiseMessage, Request, Response, Solicit

TRY_AGAIN = frozenset({"reset", "superseded", "closing", "early"})
"""Reasons for the end of a transaction after which its link is still open."""
ABOUT_EXCHANGES = frozenset({Request, Solicit, Busy, Response})
"""Messages without which there is no exchange; the others only keep an edge."""
NEVER = 0.0  # when a request came of which nothing is learned: it waited for a round that was jumped over
MAX_ATTEMPTS = 4  # transactions begun on one link in one round at most
MAX_JUMP = 8  # rounds that a node advances at once on the report of two or more peers
MAX_LEAD = 16
"""Rounds that nodes may be ahead of each other: without a common link for a while they drift apart without a fault."""


@dataclass(slots=True)
class Pairwise:
    """State machine of all pairwise exchanges of one node."""

    me: str  # own peer id
    pace: Rounds | Slots  # decides which requests are answered when, and when a round or visit is over
    fresh_inc: Callable[[], int]  # returns a random number in [0, 2**60) for a new incarnation of an edge
    greets: Callable[[str], bool] = lambda _peer: True
    """Returns whether a peer is notified at once that its edge is reset: if it is an alive member."""
    budget: Callable[[str], int] = lambda _peer: 0
    """Bytes that both payloads of one exchange with a peer may take; 0 is no limit known."""
    members: Callable[[], int] = lambda: 1
    """Number of members that exchange with each other, this node included; 1 where they are not counted."""
    receives: Callable[[str], bool] = lambda _peer: False
    """Returns whether a part of a message of a peer has arrived, and the rest is in flight."""
    edges: dict[str, Edge] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)  # number of exchanges by how they ended, in both roles
    committed: Counter[str] = field(default_factory=Counter)  # exchanges committed, by peer
    payload_bytes: int = 0  # payload bytes sent in committed exchanges
    _out: list[Command] = field(default_factory=list)
    _directions: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # peer -> (give, take) weights of this round's links
    _early: set[str] = field(default_factory=set)  # peers that called us early: tried again at the next retry, not at once
    _clipped: set[str] = field(default_factory=set)  # since `take_clipped`
    _renewing: dict[str, calls.Revoke] = field(default_factory=dict)  # peer -> Revoke without a reply yet, after a reset of all edges
    _computing_since: float = math.inf
    _attempts: Counter[str] = field(default_factory=Counter)  # transactions begun with each peer in this round or visit
    _retry_at: dict[str, float] = field(default_factory=dict)
    # peer -> (pending answer without proof of commit, number of the chase that first saw it)
    _unproven: dict[str, tuple[Pending, int]] = field(default_factory=dict)
    _chases: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.pace, Slots):
            self.pace.under_way = self._exchanges

    @property
    def done(self) -> bool:
        """Return whether every link of the round, or the visit, is resolved."""
        return self.pace.done

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the peers that are awaited, sorted."""
        return self.pace.waiting

    @property
    def deadline(self) -> float:
        """Return the time of the next `tick` without an event; infinite if there is none."""
        until = self.pace.until()
        return min((min(expires, self._retry_at[peer]) for peer, expires in until.items()), default=math.inf)

    def compute(self, round: int, links: Mapping[str, float], view: bytes, now: float) -> list[Command]:
        """Pace "steps": begin the local steps of `round`; requests for it are deferred until they are done.

        `links` are the mixing weights by peer, as far as known yet, `view` is the digest of the member list.
        """
        self._computing_since = now
        for peer, request in self._rounds.compute(round, links, view):
            self._decide(peer, request, NEVER, now)
        return self._flush()

    def begin_round(
        self, round: int, links: Mapping[str, float], view: bytes, now: float, directions: Mapping[str, tuple[float, float]] | None = None
    ) -> list[Command]:
        """Pace "steps": begin the exchanges of `round`. Then call `tick` until `done`, and `end`. Arguments as in `compute`.

        `directions`: peer -> (give, take) where weights are not the same both ways, as in `calls.Offer`.
        """
        self._directions = directions or {}
        deferred = self._rounds.open(round, links, view, now, max(0.0, now - self._computing_since))
        self._computing_since = math.inf
        self._begin_waiting(now)
        for peer, request in deferred:
            self._decide(peer, request, now, now)
        return self._flush()

    def next_visit(self, peers: Iterable[str]) -> str | None:
        """Pace "clock": return the neighbor to visit next; None if all have a transaction under way."""
        return self._slots.next(list(peers), {peer for peer, edge in self.edges.items() if edge.unresolved})

    def enter_slot(self, slot: int, now: float) -> list[Command]:
        """Pace "clock": begin a slot. Exchanges that a peer solicited may last until the end of the next slot.

        Where payloads take longer than a slot, they have as many slots as a visit.
        """
        self._slots.enter(slot)
        oldest = self._slots.entered(math.ceil(self.pace.link_deadlines.stretch))
        for peer, edge in list(self.edges.items()):
            if edge.outstanding is not None and edge.outstanding.round < oldest:
                self._do(peer, edge.abort("timeout", "deadline"), now)
        return self._flush()

    def visit(self, peer: str, now: float) -> list[Command]:
        """Pace "clock": begin an exchange with `peer`, or solicit one. Then call `tick` until `done`."""
        edge = self._edge(peer)
        self._slots.visit(peer, now)
        if not edge.initiator:
            self._nudge(peer, now)
        self._begin_waiting(now)
        return self._flush()

    def end(self, now: float) -> list[Command]:
        """End the round or visit: open links become timeouts; `outcomes` are final, and no exchange of the round is answered any more."""
        for peer in self.pace.waiting:
            self.pace.resolved(peer, self.pace.round, "timeout", now)
            self._give_up(peer, now)
        if isinstance(self.pace, Rounds):
            self.pace.close()
        return self._flush()

    def tick(self, now: float) -> list[Command]:
        """Begin, repeat and give up exchanges that are due."""
        pace = self.pace
        for peer in pace.tick(now):
            self._give_up(peer, now)
        self._give_up_passed(now)
        for peer in pace.waiting:
            due = now >= self._retry_at[peer]
            if due:
                self._retry_at[peer] = now + self._retry_s(peer)
                self._nudge(peer, now)
            may_begin = self._edge(peer).ready and (due or peer not in self._early)
            if may_begin and self._attempts[peer] < MAX_ATTEMPTS:
                self._attempts[peer] += 1
                self._early.discard(peer)
                self._begin(peer, now)
        return self._flush()

    def chase(self) -> list[Command]:
        """Retransmit answers whose proof of commit was lost, at growing intervals; call it once per
        `pace.link_deadlines.deadline.wait_s()`.

        An initiator that gave up is silent, and there may be no link to it any more; half a transaction would bias the swarm's mean.
        """
        self._chases += 1
        pending = {peer: edge.pending for peer, edge in self.edges.items() if edge.pending is not None}
        before, self._unproven = self._unproven, {}
        for peer, it in pending.items():
            first, since = before.get(peer, (it, self._chases))
            since = since if first is it else self._chases
            self._unproven[peer] = it, since
            age = self._chases - since
            if age & -age == age > 0 and peer not in self.pace.waiting:
                self._retry(peer)
        return self._flush()

    def left_behind(self, round: int, missed_rounds: int = 0) -> int:
        """Return the round that peers have reached if they left us behind, else `round`; one report alone is never enough.

        Recently met peers move us by at most MAX_JUMP, all that were ever heard by any number, two of them by `missed_rounds`.
        """
        progress = self._rounds.progress
        claimed = progress.claimed(round, missed_rounds)
        if claimed > round + MAX_LEAD:
            return claimed
        lead = progress.lead
        if lead > round + MAX_LEAD:
            return lead
        return max(round, min(progress.passed_to(round, MAX_LEAD), round + MAX_JUMP))

    def receive(self, peer: str, message: PairwiseMessage, now: float) -> list[Command]:
        """Process a message of a peer. Raises RemoteProtocolError: no honest peer sends it; nothing has changed."""
        edge = self.edges.get(peer) or Edge(self.me, peer, self.fresh_inc())
        if broken := BROKEN[type(message)](message, edge.end):
            raise RemoteProtocolError(peer, broken)
        if type(message) in ABOUT_EXCHANGES:
            self.pace.link_deadlines.heard(peer, now)
        commands = edge.receive(message)
        if peer not in self.edges:
            self._add(edge)
        match message:
            case Response(inc=inc, seq=seq) if isinstance(self.pace, Rounds) and edge.gave_up(inc, seq):
                self.pace.link_deadlines.came(peer, now)
                commands = [*commands, *edge.refuse_solicit("late", self.pace.round)]
            case Request(round=at) | Solicit(round=at) | Busy(round=at) if self.pace.contradicted(peer, at):
                self._out.append(Fault(peer, "late_contradicted"))
        if isinstance(message, Busy) and message.reason == "late":
            self.pace.said_late(peer, message.round)
        self._do(peer, commands, now)
        if isinstance(message, Busy):
            self.pace.progress.record(peer, message.round)
        return self._flush()

    def reply(self, call: calls.ExchangeCall, reply: calls.Call | None, now: float) -> list[Command]:
        """Process the engine's reply to a call; None: the engine died or is starting, and all edges are reset when it is back."""
        peer = call.peer
        if isinstance(call, calls.Revoke):
            self._revoked(call, reply, now)
        elif (edge := self.edges.get(peer)) is not None:
            if isinstance(reply, calls.Done) and reply.clipped:
                self._clipped.add(peer)
            match call, reply:
                case calls.Offer(inc=inc, seq=seq), calls.Offered():
                    self._do(peer, edge.offered(inc, seq, reply), now)
                case calls.Answer(inc=inc, seq=seq), calls.Answered():
                    self._do(peer, edge.answered(inc, seq, reply), now)
                case calls.Apply(inc=inc, seq=seq), calls.Done():
                    self._do(peer, edge.applied(inc, seq), now)
                case _:
                    self._failed(edge, call, reply, now)
            if isinstance(reply, calls.Done) and reply.far is not None:
                self._struck(peer, reply.far, now)
        return self._flush()

    def close(self, peer: str, now: float) -> list[Command]:
        """Close the edge in order: closed when its `closing` is false again; call `retry_close` until then."""
        edge = self.edges.get(peer)
        if edge is not None:
            self._do(peer, edge.close(), now)
        return self._flush()

    def retry_close(self, peer: str) -> list[Command]:
        """Repeat the messages that the peer has not answered."""
        self._retry(peer)
        return self._flush()

    def release(self, peer: str) -> None:
        """Delete the edge of a revoked peer, unless the peer has begun a transaction since."""
        edge = self.edges.get(peer)
        if edge is not None and not edge.unresolved:
            del self.edges[peer]

    def reset_all(self, now: float) -> list[Command]:
        """Reset every edge and notify the peers: the engine has no flows any more, or none that is worth keeping."""
        self._reset_all(now)
        return self._flush()

    def take_clipped(self, peers: Iterable[str]) -> set[str]:
        """Return the peers that committed a difference as long as the clip allows, each once."""
        clipped = self._clipped.intersection(peers)
        self._clipped -= clipped
        return clipped

    def unreachable(self, peer: str, now: float) -> list[Command]:
        """Note that a frame to a peer could not be sent."""
        edge = self.edges.get(peer)
        if edge is not None:
            self._do(peer, edge.abort("timeout", "unreachable"), now)
            if peer in self.pace.waiting:
                self.pace.resolved(peer, self.pace.round, "timeout", now)
                self._give_up(peer, now)
        return self._flush()

    def revoke(self, peer: str, now: float) -> list[Command]:
        """Delete the flow of a peer that left, was banned or restarted, settled flows too. Call `release` once that is done."""
        self.pace.resolved(peer, self.pace.round, "aborted", now)
        self.pace.forget(peer)
        self._clipped.discard(peer)
        # only for peers with an edge: the engine has no state of others, and strangers that come and go cost no call
        if peer in self.edges:
            self._reset(peer, now)
        return self._flush()

    @property
    def _rounds(self) -> Rounds:
        if isinstance(self.pace, Rounds):
            return self.pace
        raise LocalProtocolError("rounds are for steps pace")

    @property
    def _slots(self) -> Slots:
        if isinstance(self.pace, Slots):
            return self.pace
        raise LocalProtocolError("slots are for clock pace")

    def _begin_waiting(self, now: float) -> None:
        self._attempts.clear()
        self._early.clear()
        self._retry_at = {peer: now + self._retry_s(peer) for peer in self.pace.waiting}

    def _retry_s(self, peer: str) -> float:
        """Return the seconds until a peer is tried again; less for a Solicit, which carries no payload."""
        edge, link_deadlines = self.edges.get(peer), self.pace.link_deadlines
        return link_deadlines.solicit_s if edge is not None and edge.solicits else link_deadlines.retry_s(peer)

    def _nudge(self, peer: str, now: float) -> None:
        """Repeat unanswered messages; with nothing under way, solicit an exchange if the peer is the initiator."""
        edge = self._edge(peer)
        if edge.solicits:
            self._do(peer, edge.solicit(self.pace.round, self.pace.view), now)
        else:
            self._retry(peer)

    def _give_up(self, peer: str, now: float) -> None:
        """Give up the transaction of a link that was resolved as a timeout."""
        edge = self._edge(peer)
        if not edge.unresolved:
            self._missed(edge, "timeout")
        self._do(peer, edge.abort("timeout", "deadline"), now)

    def _give_up_passed(self, now: float) -> None:
        """Pace "steps": give up links of peers that have gone on to a later round and do not come back."""
        pace = self.pace
        if not isinstance(pace, Rounds):
            return
        for peer in pace.waiting:
            edge = self._edge(peer)
            if pace.passed(peer) and not self._under_way(edge):
                if not edge.unresolved:
                    self._missed(edge, "busy")
                self._met(peer, passed=True)
                pace.resolved(peer, pace.round, "busy", now)

    def _under_way(self, edge: Edge) -> bool:
        """Tell if a peer that has gone on may still end a transaction of this round. Its answer is committed or dropped later."""
        out, pending, ours = edge.outstanding, edge.pending, self.pace.round
        requested = pending is not None and pending.round == ours and pending.phase != "answered"
        return requested or (out is not None and out.round == ours)

    def _exchanges(self, peer: str) -> bool:
        """Tell if an exchange with a peer is under way, or its request is on its way."""
        edge = self.edges.get(peer)
        return (edge is not None and edge.begun) or self.receives(peer)

    def _met(self, peer: str, *, passed: bool) -> None:
        """Note that a link of this round ended because the peer answered or has gone on; extended deadlines are withdrawn only if two peers
        have gone on.
        """
        progress, ours = self.pace.progress, self.pace.round
        progress.met(peer, ours, passed=passed)
        if passed and progress.lead > ours:
            self.pace.link_deadlines.overtaken()

    def _missed(self, edge: Edge, outcome: Outcome) -> None:
        """Count an exchange that was due and did not begin: no transaction reports its end."""
        self.totals[outcome] += 1
        role: Role = "initiator" if edge.initiator else "responder"
        self._out.append(Ended(edge.peer, self.pace.round, 0, outcome, "", role))

    def _flush(self) -> list[Command]:
        out, self._out = self._out, []
        return out

    def _add(self, edge: Edge) -> None:
        self.edges[edge.peer] = edge
        self._out.append(calls.Revoke(edge.peer))  # the engine may have state of an earlier incarnation

    def _edge(self, peer: str) -> Edge:
        if peer not in self.edges:
            self._add(Edge(self.me, peer, self.fresh_inc()))
        return self.edges[peer]

    def _do(self, peer: str, commands: Iterable[EdgeCommand], now: float) -> None:
        """Emit commands for the network and the engine first, then handle those for the pace."""
        for_pace: list[Request | Solicit | Ended] = []
        for command in commands:
            match command:
                case Request() | Solicit() | Ended():
                    for_pace.append(command)
                case calls.Settle():
                    self._out += [command, EdgeDropped(peer)]
                case _:
                    self._out.append(command)
        for event in for_pace:
            match event:
                case Ended():
                    self._ended(event, now)
                case request:
                    self._decide(peer, request, now, now)

    def _begin(self, peer: str, now: float) -> None:
        edge, pace = self._edge(peer), self.pace
        give, take = self._weights(peer)
        budget, members = self.budget(peer), self.members()
        self._do(peer, edge.begin(pace.round, pace.view, pace.theta(peer), budget, give, take, members), now)

    def _retry(self, peer: str) -> None:
        if (edge := self.edges.get(peer)) is not None:
            for command in edge.retry():
                assert isinstance(command, SendMessage)
                self._out.append(SendMessage(peer, command.message, repeat=True))

    def _weights(self, peer: str) -> tuple[float | None, float | None]:
        return self._directions.get(peer, (None, None))

    def _decide(self, peer: str, request: ExchangeRequest, came: float, now: float) -> None:
        """Have the pace decide on a request that came at a time."""
        edge, decision = self._edge(peer), self.pace.decide(peer, request, came)
        match decision:
            case Accept() if isinstance(request, Request):
                self._do(peer, edge.accept(request.inc, request.seq, *self._weights(peer), self.members()), now)
            case Accept():
                if edge.ready and (isinstance(self.pace, Slots) or peer in self.pace.waiting):
                    self._begin(peer, now)
            case Reject(reason) if isinstance(request, Request):
                self._do(peer, edge.refuse(request.inc, request.seq, reason, self.pace.round), now)
            case Reject(reason):
                self._do(peer, edge.refuse_solicit(reason, self.pace.round), now)
            case _:
                pass  # deferred: decided when the round opens

    def _ended(self, ended: Ended, now: float) -> None:
        peer = ended.peer
        self._out.append(ended)
        self.totals[ended.outcome] += 1
        if ended.outcome == "committed":
            self.committed[peer] += 1
            self.payload_bytes += ended.payload_bytes
        if ended.reason == "full":
            self._out.append(EdgeDropped(peer))
        if ended.round == self.pace.round and (ended.reason == "late" or ended.outcome == "committed"):
            self._met(peer, passed=ended.outcome != "committed")
        if ended.reason == "early" and ended.role == "initiator":
            self._early.add(peer)
        if ended.reason not in TRY_AGAIN:
            self.pace.resolved(peer, ended.round, ended.outcome, now)

    def _failed(self, edge: Edge, call: calls.ExchangeCall, reply: calls.Call | None, now: float) -> None:
        """Handle a call that was refused or lost, except a Commit or Settle that is done, or a Drop, whose loss changes nothing."""
        match call, reply:
            case (calls.Offer(inc=inc, seq=seq) | calls.Answer(inc=inc, seq=seq), _) | (calls.Apply(inc=inc, seq=seq), calls.Refused()):
                self._do(edge.peer, edge.failed(inc, seq, self._why(edge.peer, reply)), now)
            case (calls.Apply(inc=inc) | calls.Commit(inc=inc), None) | (calls.Commit(inc=inc), calls.Refused()):
                if edge.inc == inc or edge.settled is not None:
                    self._start_anew(edge, now)
            case calls.Settle(), None | calls.Refused():
                self._start_anew(edge, now)

    def _struck(self, peer: str, far: calls.Far, now: float) -> None:
        """Report that the engine found a peer's model too far from ours; delete its flow if the engine takes nothing of it any more."""
        if far.is_fault:
            self._out.append(Fault(peer, "model_far"))
        if not far.refused:
            return
        text = f"takes nothing from {peer} for {far.refused} rounds: again its model {far.why}"
        self._out.append(Event("peer_refused", text, fields={"peer": peer, "rounds": str(far.refused)}))
        self._reset(peer, now)
        self._do(peer, self.edges[peer].greet(), now)

    def _start_anew(self, edge: Edge, now: float) -> None:
        """Reset an edge whose state in the engine is unknown: both ends begin again with a flow of zero."""
        text = f"the edge to {edge.peer} starts anew: the engine lost its flow"
        self._out.append(Event("edge_reset", text, fields={"peer": edge.peer}))
        self._reset(edge.peer, now)

    def _why(self, peer: str, reply: calls.Call | None) -> str:
        if not isinstance(reply, calls.Refused):
            return "engine"
        if reply.kind == "peer":
            self._out.append(Fault(peer, reply.reason))
            return "bad_payload"
        text = f"the engine refused an exchange with {peer}: {reply.reason}"
        self._out.append(Event("exchange_refused", text, fields={"peer": peer, "kind": reply.kind}))
        return "refused"

    def _revoked(self, call: calls.Revoke, reply: calls.Call | None, now: float) -> None:
        renewing = bool(self._renewing)
        if self._renewing.get(call.peer) is call:
            del self._renewing[call.peer]
        if renewing or not isinstance(reply, calls.Done) or not reply.dominated:
            return
        text = f"the other flows compensated for that of {call.peer}: all edges start anew"
        self._out.append(Event("edges_anew", text, "info", {"peer": call.peer}))
        self._renewing = dict.fromkeys(self.edges, call)  # the calls of `_reset` replace earlier ones
        self._reset_all(now)

    def _reset_all(self, now: float) -> None:
        for peer, edge in self.edges.items():
            self._reset(peer, now)
            if self.greets(peer):
                self._do(peer, edge.greet(), now)

    def _reset(self, peer: str, now: float) -> None:
        """Reset an edge, and discard the engine's queued calls for the old incarnation."""
        self._out.append(DiscardCalls(peer))
        commands = self.edges[peer].reset(self.fresh_inc())
        if peer in self._renewing:
            self._renewing[peer] = next(it for it in commands if isinstance(it, calls.Revoke))
        self._do(peer, commands, now)
