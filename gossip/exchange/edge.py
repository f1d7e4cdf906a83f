"""One edge: a serial stream of antisymmetric transactions between two peers. No I/O, no clock, no vectors.

Invariant. Under any loss, repetition, reordering, refusal or restart the flows of the two ends add up to the sum of what the initiator has
committed and the responder has not yet, and to zero once the ends have communicated. Source: Pairwise Edge Tracking, flows as in Jesus,
Baquero and Almeida 2015 (doi:10.1016/j.jpdc.2015.02.003), made safe for loss by commits on proof and for crashes by an incarnation.

Roles. The end with the lower peer id initiates; one stream in one direction makes both ends add the same numbers in the same order, so
that flows stay each other's negative bit for bit even where rounding and clamping do not commute. The other end solicits.

    initiator   idle --begin--> greeting --agreed--> offering --offered--> asking --Response--> applying --applied--> idle, Ack
    responder   idle --Request--> asked --accept--> answering --answered--> answered --proof--> idle
                proof: Ack of the same seq, or the same seq in `committed` of a later Request, Close or Closed

Transactions are numbered; a number is never used twice in an incarnation, and who begins seq + 1 never commits seq.
  late      A Response that is not for the outstanding seq changes nothing, and is answered with our round (Busy of no transaction), so that
            the responder need not wait for a proof. A Request above the pending seq says that its initiator gave
            the pending one up: it is dropped, never committed.
  repeated  A Response for the committed seq gets the same Ack again. Anything at or below what was answered before is ignored. So
            everything may be sent again at any time (`retry`).
  lost      A vector may take long, so it is not sent again because no answer is here: `retry` sends a Check behind it. Frames of a
            lane arrive in the order sent; who receives a Check without the vector before it answers `lost`, and gets the next copy of
            it, of at most MAX_COPIES. Who is further answers with what comes next: its own Check behind a Response, or the Ack.
  early     While the engine works, further messages are taken: a newer Request replaces the one in work, outdated results are
            ignored, and what the engine then still keeps is dropped.

Incarnations. `inc` numbers the incarnations of the flow; each begins at zero.
  larger    The peer began a new incarnation: delete the flow, adopt it, go on.
  smaller   The peer does not know yet: answer Reset.
  unknown   A new edge may have been forgotten by this end only, so it does not adopt the first incarnation it receives: it takes a
            larger number, and the peer deletes its flow too. Only then it may follow.
  agreed    Before the first Request of an incarnation the initiator greets with Reset and waits for an answer, to spare vectors; the
            responder answers every Reset.
A reset of our own skips a number, so that "ours plus one" has one meaning: the peer settled.

Closing. Either end sends Close with its `committed`, and begins nothing any more. Who receives it has (initiator) nothing outstanding,
or (responder) the proof for its pending transaction: it settles, answers Closed with its own `committed`, and the edge goes on in the
next incarnation from zero. Closed tells the same to the end that asked. If Closed is lost, Close is asked again and Closed answered
again from memory; an initiator that is applying answers Close with a Close of its own once it knows how that ended.

A foreign message (wrong role, a number never given out, a proof of what was never answered) breaks a rule of `edge_rules`, by which it is
judged before it is received.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from starling.gossip.errors import LocalProtocolError
from starling.gossip.exchange.calls import Answer, Answered, Apply, Commit, Drop, Offer, Offered, Revoke, Settle
from starling.gossip.exchange.commands import EdgeCommand, Ended, Outcome, Outstanding, Pending, Refusal, Role, SendMessage
from starling.gossip.exchange.edge_rules import MAX_INC, End
from starling.gossip.wire.schema import Ack, Busy, Check, Close, Closed, PairwiseMessage, Request, Reset, Response, Solicit

MAX_COPIES = 4  # copies sent of one payload: a small Check must not cause more of what is large


@dataclass(slots=True)
class Edge:
    """State machine of one end, `me`, of one edge. Whoever makes it first sends Revoke to the engine, which may still have state of the
    peer.
    """

    me: str
    peer: str
    inc: int  # incarnation of the edge, at first a random number, 0 <= inc < MAX_INC
    known: bool = False  # whether the peer has sent a message since this edge was made: then our incarnation may follow the peer's
    agreed: bool = False  # whether the peer has the same incarnation
    closing: bool = False
    committed: int = 0  # last seq committed in this incarnation
    next_seq: int = 1
    outstanding: Outstanding | None = None
    last_seen: int = 0  # highest seq answered in this incarnation
    pending: Pending | None = None
    settled: tuple[int, int] | None = None
    """(inc, committed) of the incarnation before this one, if it was closed in order."""
    solicited: int | None = None  # round of our last Solicit, until it is rejected

    def __post_init__(self) -> None:
        if self.me == self.peer:
            raise ValueError("an edge has two ends")
        if not 0 <= self.inc < MAX_INC:
            raise ValueError(f"inc must be in [0, 2**61), got {self.inc}")

    @property
    def initiator(self) -> bool:
        """Tell if this end is the initiator."""
        return self.me < self.peer

    @property
    def state(self) -> str:
        """Return the state of the transaction, as in the table of docs/protocol.md."""
        it = self.outstanding or self.pending
        return "idle" if it is None else it.phase

    @property
    def ready(self) -> bool:
        """Tell if `begin` is allowed."""
        return self.initiator and self.outstanding is None and not self.closing

    @property
    def unresolved(self) -> bool:
        """Return whether a transaction is under way at this end."""
        return self.outstanding is not None or self.pending is not None

    @property
    def begun(self) -> bool:
        """Return whether a transaction is under way that is more than a greeting: the peer knows this incarnation."""
        return self.pending is not None or (self.outstanding is not None and self.outstanding.phase != "greeting")

    @property
    def solicits(self) -> bool:
        """Tell if there is no transaction and the peer is the initiator, so that this end can only ask it to begin."""
        return not (self.unresolved or self.initiator or self.closing)

    @property
    def end(self) -> End:
        """This end, as far as the rules of messages ask for it."""
        provable = self.committed if self.initiator else self.last_seen
        return End(self.initiator, self.inc, self.next_seq, provable, closing=bool(self._close()))

    def begin(
        self,
        round: int,
        view: bytes,
        theta: float,
        budget_bytes: int = 0,
        give: float | None = None,
        take: float | None = None,
        members: int = 1,
    ) -> list[EdgeCommand]:
        """Initiator: start a transaction; arguments as in `calls.Offer` and in `Request`. Raises LocalProtocolError: not `ready`."""
        if not self.ready:
            raise LocalProtocolError(f"edge to {self.peer}: cannot begin now")
        self.outstanding = Outstanding(0, round, view, theta, "greeting", None, budget_bytes, give, take, members)
        return self._offer() if self.agreed else self.greet()

    def solicit(self, round: int, view: bytes) -> list[EdgeCommand]:
        """Responder: ask the peer to begin. Raises LocalProtocolError: this end is the initiator."""
        if self.initiator:
            raise LocalProtocolError(f"edge to {self.peer}: the initiator begins, it does not solicit")
        self.solicited = round
        return self._close() if self.closing else [SendMessage(self.peer, Solicit(self.inc, round, view))]

    def accept(self, inc: int, seq: int, give: float | None = None, take: float | None = None, members: int = 1) -> list[EdgeCommand]:
        """Responder: have the engine answer the request, with the weights of `calls.Answer`."""
        pending = self._pending(inc, seq, "asked")
        if pending is None:
            return []
        it = pending.request
        assert it is not None
        self.pending = replace(pending, phase="answering", request=None)
        return [Answer(self.peer, inc, seq, it.round, it.theta, it.gain, it.payload, give, take, it.borne, members, it.reference)]

    def refuse(self, inc: int, seq: int, reason: Refusal, round: int) -> list[EdgeCommand]:
        """Responder: reject the request. `round` is this end's."""
        pending = self._pending(inc, seq, "asked")
        if pending is None:
            return []
        self.pending = None
        return [SendMessage(self.peer, Busy(inc, seq, reason, round)), self._ended(pending.round, seq, "busy", reason, "responder")]

    def refuse_solicit(self, reason: Refusal, round: int) -> list[EdgeCommand]:
        """Initiator: reject a solicited exchange."""
        return [SendMessage(self.peer, Busy(self.inc, 0, reason, round))]

    def gave_up(self, inc: int, seq: int) -> bool:
        """Initiator: return whether this end gave up a transaction that the other end still waits for."""
        waited_for = self.outstanding is not None and self.outstanding.seq == seq
        return inc == self.inc and self.committed < seq < self.next_seq and not waited_for

    def abort(self, outcome: Outcome, reason: str) -> list[EdgeCommand]:
        """Initiator: give up the outstanding transaction, unless it is being applied, which ends by itself."""
        out = self.outstanding
        if out is None or out.phase == "applying":
            return []
        self.outstanding = None
        drop: list[EdgeCommand] = [] if out.phase == "greeting" else [Drop(self.peer, self.inc, out.seq)]
        return [*drop, self._ended(out.round, out.seq, outcome, reason, "initiator")]

    def retry(self) -> list[EdgeCommand]:
        """Repeat what has not been answered: a Check in place of a vector, anything else as it was."""
        if self.closing:
            return self._close()
        if (out := self.outstanding) is not None:
            if out.phase == "greeting":
                return self.greet()
            if out.phase == "asking":
                return [SendMessage(self.peer, Check(self.inc, out.seq, out.copy))]
        if (pending := self.pending) is not None and pending.phase == "answered":
            return [SendMessage(self.peer, Check(self.inc, pending.seq, pending.copy))]
        return []

    def greet(self) -> list[EdgeCommand]:
        """Send the peer our incarnation."""
        return [SendMessage(self.peer, Reset(self.inc))]

    def reset(self, inc: int) -> list[EdgeCommand]:
        """Delete the flow and begin a new incarnation, `inc` or larger: after a suspicion, a ban, or an engine that lost its state."""
        return self._restart(max(self.inc + 2, inc))

    def close(self) -> list[EdgeCommand]:
        """Close the edge in order. It is closed when `closing` is false again; `settled` says whether in order."""
        commands = self.abort("aborted", "closing")
        if not self.agreed:
            return commands  # nothing was exchanged in this incarnation
        self.closing = True
        if self.pending is not None and self.pending.phase != "answered":
            commands += self._drop("closing")
        return commands + self._close()

    def offered(self, inc: int, seq: int, made: Offered) -> list[EdgeCommand]:
        """Send the Request with the encoded values."""
        out = self._outstanding(inc, seq, "offering")
        if out is None:
            return []
        request = Request(inc, seq, self.committed, out.round, out.view, out.theta, made.gain, made.payload, made.borne, made.reference)
        self.outstanding = replace(out, phase="asking", request=request)
        return [SendMessage(self.peer, request)]

    def answered(self, inc: int, seq: int, made: Answered) -> list[EdgeCommand]:
        """Store the computed difference and send the Response."""
        pending = self._pending(inc, seq, "answering")
        if pending is None:
            return []
        clip = 1.0 if made.clip is None else made.clip
        response = Response(inc, seq, made.payload, made.borne, made.share, clip)
        self.last_seen = seq
        self.pending = replace(pending, phase="answered", response=response)
        return [SendMessage(self.peer, response)]

    def applied(self, inc: int, seq: int) -> list[EdgeCommand]:
        """Commit at the initiator: the engine applied the response."""
        out = self._outstanding(inc, seq, "applying")
        if out is None:
            return []
        assert out.request is not None
        self.outstanding = None
        self.committed = seq
        ended = self._ended(out.round, seq, "committed", "", "initiator", len(out.request.payload))
        return [SendMessage(self.peer, Ack(inc, seq)), ended, *self._close()]

    def failed(self, inc: int, seq: int, reason: str) -> list[EdgeCommand]:
        """Abort: the engine refused to offer, answer or apply, and nothing changed."""
        out, pending = self._outstanding(inc, seq), self._pending(inc, seq)
        if out is not None:
            self.outstanding = None
            drop: list[EdgeCommand] = [Drop(self.peer, inc, seq)] if out.phase == "applying" else []
            return [*drop, self._ended(out.round, seq, "aborted", reason, "initiator"), *self._close()]
        if pending is not None:
            self.pending = None
            busy = SendMessage(self.peer, Busy(inc, seq, "engine", pending.round))
            return [busy, self._ended(pending.round, seq, "aborted", reason, "responder")]
        return []

    def receive(self, message: PairwiseMessage) -> list[EdgeCommand]:
        """Process a message that breaks no rule for this `end` (`starling.gossip.exchange.edge_rules`)."""
        commands: list[EdgeCommand] = []
        if message.inc > self.inc:
            if self.closing and message.inc == self.inc + 1:
                return self._close()  # the peer has settled: ask for Closed
            commands = self._restart(message.inc if self.known else message.inc + 2)
            self.known = True
        if message.inc == self.inc:
            self.known = self.agreed = True
            commands += self._TAKE[type(message)](self, message)
        elif self.settled is None or message.inc != self.settled[0]:
            commands += self.greet()
        elif not isinstance(message, Closed):
            commands += [SendMessage(self.peer, Closed(*self.settled))]
        if self.agreed and self.outstanding is not None and self.outstanding.phase == "greeting":
            commands += self._offer()
        return commands

    def _take_response(self, response: Response) -> list[EdgeCommand]:
        out = self._outstanding(self.inc, response.seq, "asking")
        if out is None:
            return [SendMessage(self.peer, Ack(self.inc, response.seq))] if response.seq == self.committed else []
        self.outstanding = replace(out, phase="applying")
        it = response
        return [Apply(self.peer, self.inc, it.seq, it.payload, it.borne, it.share, it.clip)]

    def _take_ack(self, ack: Ack) -> list[EdgeCommand]:
        return self._commit() if self._pending(self.inc, ack.seq, "answered") else []

    def _take_busy(self, busy: Busy) -> list[EdgeCommand]:
        if busy.seq:
            return self.abort("busy", busy.reason) if self._outstanding(self.inc, busy.seq, "asking") else []
        solicited, self.solicited = self.solicited, None
        if solicited is None or self.pending is not None:
            return []
        return [self._ended(solicited, 0, "busy", busy.reason, "responder")]

    def _take_solicit(self, solicit: Solicit) -> list[EdgeCommand]:
        return self._close() if self.closing else [solicit]

    def _take_reset(self, _reset: Reset) -> list[EdgeCommand]:
        return [] if self.initiator else self.greet()

    def _take_close(self, close: Close) -> list[EdgeCommand]:
        if self.outstanding is not None and self.outstanding.phase == "applying":
            self.closing = True
            return []
        commands = [*self.abort("aborted", "closing"), *self._resolve(close.committed), *self._settle()]
        assert self.settled is not None
        return [*commands, SendMessage(self.peer, Closed(*self.settled))]

    def _take_closed(self, closed: Closed) -> list[EdgeCommand]:
        return [*self._resolve(closed.committed), *self._settle()] if self.closing else []

    def _take_check(self, check: Check) -> list[EdgeCommand]:
        return self._checked_request(check) if self.initiator else self._checked_response(check)

    def _checked_request(self, check: Check) -> list[EdgeCommand]:
        """Initiator: handle that the responder lacks our request, or has answered it and lacks the proof of commit."""
        out = self._outstanding(self.inc, check.seq, "asking")
        if out is None:
            return [SendMessage(self.peer, Ack(self.inc, check.seq))] if check.seq == self.committed and not check.lost else []
        if not check.lost:
            return [SendMessage(self.peer, Check(self.inc, check.seq, check.copy, lost=True))]
        assert out.request is not None
        if check.copy != out.copy or out.copy >= MAX_COPIES:
            return []
        self.outstanding = replace(out, copy=out.copy + 1)
        return [SendMessage(self.peer, out.request)]

    def _checked_response(self, check: Check) -> list[EdgeCommand]:
        """Responder: handle that the initiator waits for our response, or lacks it."""
        pending = self._pending(self.inc, check.seq)
        if pending is None:
            unseen = check.seq > max(self.last_seen, self.pending.seq if self.pending is not None else 0)
            return [SendMessage(self.peer, Check(self.inc, check.seq, check.copy, lost=True))] if unseen and not self.closing else []
        if pending.response is None:
            return []
        if not check.lost:
            return self.retry()
        if check.copy != pending.copy or pending.copy >= MAX_COPIES:
            return []
        self.pending = replace(pending, copy=pending.copy + 1)
        return [SendMessage(self.peer, pending.response)]

    def _take_request(self, request: Request) -> list[EdgeCommand]:
        if self.closing:
            return self._close()
        commands: list[EdgeCommand] = []
        if (pending := self.pending) is not None:
            if request.seq < pending.seq:
                return []
            if request.seq == pending.seq:
                return self.retry()
            commands = self._resolve(request.committed)
        if request.seq <= self.last_seen:
            return commands
        self.pending = Pending(request.seq, request.round, "asked", request=request)
        return [*commands, request]

    def _ended(self, round: int, seq: int, outcome: Outcome, reason: str, role: Role, payload_bytes: int = 0) -> Ended:
        return Ended(self.peer, round, seq, outcome, reason, role, payload_bytes)

    def _outstanding(self, inc: int, seq: int, phase: str | None = None) -> Outstanding | None:
        out = self.outstanding
        same = out is not None and (self.inc, out.seq) == (inc, seq) and phase in (None, out.phase)
        return out if same else None

    def _pending(self, inc: int, seq: int, phase: str | None = None) -> Pending | None:
        pending = self.pending
        same = pending is not None and (self.inc, pending.seq) == (inc, seq) and phase in (None, pending.phase)
        return pending if same else None

    def _offer(self) -> list[EdgeCommand]:
        assert self.outstanding is not None
        out = self.outstanding = replace(self.outstanding, seq=self.next_seq, phase="offering")
        self.next_seq += 1
        return [Offer(self.peer, self.inc, out.seq, out.round, out.theta, out.budget_bytes, out.give, out.take, out.members)]

    def _close(self) -> list[EdgeCommand]:
        """Close the edge if that was requested and all that we committed is known."""
        applying = self.outstanding is not None and self.outstanding.phase == "applying"
        return [SendMessage(self.peer, Close(self.inc, self.committed))] if self.closing and not applying else []

    def _commit(self) -> list[EdgeCommand]:
        pending, self.pending = self.pending, None
        assert pending is not None
        assert pending.response is not None
        self.committed = pending.seq
        size = len(pending.response.payload)
        return [Commit(self.peer, self.inc, pending.seq), self._ended(pending.round, pending.seq, "committed", "", "responder", size)]

    def _drop(self, reason: str) -> list[EdgeCommand]:
        pending, self.pending = self.pending, None
        assert pending is not None
        drop: list[EdgeCommand] = [] if pending.phase == "asked" else [Drop(self.peer, self.inc, pending.seq)]
        return [*drop, self._ended(pending.round, pending.seq, "aborted", reason, "responder")]

    def _resolve(self, proof: int) -> list[EdgeCommand]:
        """End the pending transaction: the initiator reported its last committed seq and abandoned later ones."""
        if self.pending is None:
            return []
        proven = self.pending.phase == "answered" and self.pending.seq == proof
        return self._commit() if proven else self._drop("superseded")

    def _settle(self) -> list[EdgeCommand]:
        last = (self.inc, self.committed)
        self._begin_incarnation(self.inc + 1)
        self.settled = last
        return [Settle(self.peer)]

    def _restart(self, inc: int) -> list[EdgeCommand]:
        """Delete the flow and begin another incarnation. A greeting continues, as it is valid for any incarnation."""
        commands: list[EdgeCommand] = [Revoke(self.peer)]
        if (out := self.outstanding) is not None and out.phase != "greeting":
            self.outstanding = None
            commands.append(self._ended(out.round, out.seq, "aborted", "reset", "initiator"))
        if (pending := self.pending) is not None:
            commands.append(self._ended(pending.round, pending.seq, "aborted", "reset", "responder"))
        self._begin_incarnation(inc)
        return commands

    def _begin_incarnation(self, inc: int) -> None:
        self.inc = inc
        self.agreed = self.closing = False
        self.settled = None
        self.committed = self.last_seen = 0
        self.next_seq = 1
        self.pending = None

    _TAKE: ClassVar[Mapping[type[PairwiseMessage], Callable[["Edge", Any], list[EdgeCommand]]]] = MappingProxyType(
        {
            Request: _take_request,
            Response: _take_response,
            Ack: _take_ack,
            Busy: _take_busy,
            Solicit: _take_solicit,
            Reset: _take_reset,
            Close: _take_close,
            Closed: _take_closed,
            Check: _take_check,
        }
    )
    """Handlers of messages in the edge's current incarnation."""
