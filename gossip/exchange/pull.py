"""Pace "steps" where nodes pull vectors from peers and combine them. No clock: time is the argument `now`.

    computing --publish, ask--> asking --close--> computing (the next round)

There are no edges: answering a pull does not change the answering node, and the choice of peers is local. A vector is published once per
round, signed once (`starling.gossip.exchange.attestation`), and sent in the same bytes to all who pull it; the two newest are kept.

Answering. A pull of
    a published round, or an earlier one              that vector, or the newest if that is no longer kept; late where only the
                                                      vector of that round will do (`exact`)
    one that is more than max_lead before it          late
    one not yet published, up to max_lead ahead       deferred until it is published: one per peer, a newer replaces it; MAX_DEFERRED in
                                                      all, else full; answered wait if this node has not begun that round
    one further ahead                                 early
A peer gets MAX_ANSWERS vectors from one publishing to the next, all peers together no more than the upload cap affords; further pulls are
answered busy. More than MAX_QUESTIONS pulls of a peer for one round are a fault.

Pulling. Each question has its own number and is repeated until it is answered or its deadline is over. An answer is accepted if it is of
the round asked for, the one before, or up to max_lead later; of the incarnation in the peer's membership record; and signed. Then the
engine verifies the vector (`VerifyUpdate`), and `reply` takes its result. Where messages add up (`exact`) no other round's is accepted.
    answer to a question that is answered or given up           ignored
    answer of another incarnation                               ignored: the peer's record is under way
    answer to no question of ours, wrong round or signature     a fault; the question counts as aborted
    wait, early                                                 it stays open
    any other NotNow                                            it is resolved as busy

Staying in step. The peers pulled from are a private sample, so their reports count: if most of them are more than SLACK rounds further,
they left us `behind`; if most have not reached our round, we are `ahead`: those are waited for as long as that many rounds take; if that
is not enough the deadline is learned anew. A report is the round of a vector or of a NotNow; half of the sample must have reported, and
two: one voice neither leaves a node behind nor makes it wait. Rounds in pulls of others are ignored, as Byzantine peers may pull as often
as they like. Where messages add up (`exact`) all ask all, and answers do not say how far a peer is. A message that is a round late is
still passed on; nobody takes one that is later. So if most had asked for a round two later or more before we ask for ours, the one after
theirs is next: a node that skipped none would be late in every round.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import msgspec

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify, attestation_of, digest, genuine
from starling.gossip.exchange.calls import Call, Done, ExchangeCall, Refused, VerifyEarlier, VerifyUpdate
from starling.gossip.exchange.commands import Command, Fault, Outcome, SendMessage
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.relays import Relays
from starling.gossip.wire.schema import NotNow, Pull, Pulled, Relay, Relayed

MAX_DEFERRED = 1024
"""Peers with a deferred question; further ones are answered "full". Many, as each costs little and Sybils would fill a small queue."""
MAX_ANSWERS = 2  # answers that one peer gets per publishing: a second one in case the first is lost
MAX_QUESTIONS = 64
"""Questions of one peer for one round; an honest one repeats a handful of times, and twice for each round that it is ahead."""
MAX_REMEMBERED = 4096  # requests of ours whose late answers are recognised
KEPT = 2  # published vectors kept
SLACK = 2
"""Rounds that peers may be ahead without having left us behind: their questions wait for us, and ours are answered."""

MAX_ROUND = 2**60  # largest round accepted in a report, so that there is always a next one
LONGER = 2.0
"""A peer given up although it reported to be on its way counts as an answer that took so many times as long."""


@dataclass(slots=True)
class Pulls:
    """State machine of one node's pulls, and of its answers to those of others."""

    swarm: str  # swarm id
    link_deadlines: LinkDeadlines  # deadline and retries
    verify: Verify  # verifies a peer's signature
    incarnation_of: Callable[[str], int | None]  # incarnation in a peer's membership record; None if there is none
    afford: Callable[[int, float], bool]  # (bytes, now) -> whether so many may be sent to a peer now
    relays: Relays  # messages of earlier rounds that are passed on
    max_lead: int = 16  # rounds that a peer may be ahead of us to be deferred, or behind us to be answered
    nonce: int = 0  # number of our first request; numbers of an earlier run must not be reused
    kept: int = KEPT  # published vectors kept
    exact: bool = False
    """Whether only the vector of the requested round is given and accepted: those of all rounds are summed, or each is a turn's."""
    round: int = 0
    phase: Literal["computing", "asking"] = "computing"
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # results of this round's resolved requests, by peer
    progress: PeerProgress = field(default_factory=PeerProgress)  # rounds that peers reported
    questions: dict[str, int] = field(default_factory=dict)  # requests of this or the last round: peer -> nonce
    _again: dict[str, float] = field(default_factory=dict)  # peer -> time at which its request is repeated
    _reports: dict[str, int] = field(default_factory=dict)  # rounds reported by the requested peers
    _asked_by_most: int = 0  # the round for which most of them had asked before we asked for ours
    _asked_at: float = 0.0
    _round_s: float = 0.0  # seconds for which a round is waited for
    _verifying: dict[str, VerifyUpdate] = field(default_factory=dict)  # vectors that the engine is verifying, by peer
    _remembered: dict[int, str] = field(default_factory=dict)  # nonce -> requested peer, oldest first
    _published: dict[int, Pulled] = field(default_factory=dict)  # our published vectors by round, oldest first
    _deferred: dict[str, Pull] = field(default_factory=dict)
    _answered: dict[str, int] = field(default_factory=dict)  # vectors sent to each peer since the last publishing
    _counted: dict[str, tuple[int, int]] = field(default_factory=dict)  # peer -> (the round it requests, how often)

    @property
    def requested(self) -> tuple[str, ...]:
        """Return the peers pulled from in this round, or the last, sorted."""
        return tuple(sorted(self.questions))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the peers whose requests are not resolved, sorted."""
        return tuple(sorted(self.questions.keys() - self.outcomes.keys())) if self.phase == "asking" else ()

    @property
    def done(self) -> bool:
        """Return whether every request of the round is resolved."""
        return not self.waiting and not (self.phase == "asking" and self.relays.waiting)

    @property
    def deadline(self) -> float:
        """Return the time of the next `tick`; infinite if there is none."""
        open_until = min((min(self._until(peer), self._again[peer]) for peer in self._open), default=inf)
        return min(open_until, self.relays.waits_until) if self.phase == "asking" else inf

    @property
    def behind(self) -> int:
        """Return a later round that most of the requested peers, two at least, have reached; our own if there is none."""
        if self._asked_by_most > self.round + 1:
            return self._asked_by_most + 1
        middle = _most_reached(self._sorted_reports)
        return middle if middle > self.round + SLACK else self.round

    @property
    def ahead(self) -> int:
        """Return by how many rounds most of the requested peers are behind ours, at most `max_lead`."""
        reports = self._sorted_reports
        return min(max(0, self.round - reports[len(reports) // 2]), self.max_lead) if reports else 0

    def compute(self, round: int) -> None:
        """Begin the local steps of `round`."""
        self.phase, self.round = "computing", round
        self.link_deadlines.end()

    def publishable(self, round: int) -> bool:
        """Tell if a vector of `round` may be published: none of this or a later round was."""
        return round > self._newest

    def publish(self, published: Pulled, now: float) -> list[SendMessage]:
        """Publish the vector of a round, complete but for the nonce -> answers to deferred requests.

        The round is `publishable`: two vectors for one are equivocation.
        """
        assert self.publishable(published.round)
        self.relays.published(published)
        self._published[published.round] = published  # the rounds rise, so the oldest is the first
        while len(self._published) > self.kept:
            del self._published[next(iter(self._published))]
        self._answered = {}
        waiting = self._due(published.round)
        # shuffled: if not all can be served, neither peer ids nor speed decide which are
        waiting.sort(key=lambda question: digest(published.signature + question[0].encode()))
        return [message for peer, pull in waiting for message in self._decide(peer, pull, now)]

    def withhold(self, round: int) -> list[SendMessage]:
        """Announce that there is no vector of `round` -> answers to deferred requests."""
        return [SendMessage(peer, NotNow(pull.nonce, self.round, "engine")) for peer, pull in self._due(round)]

    def ask(self, round: int, peers: Iterable[str], now: float, steps_s: float = 0.0) -> list[SendMessage]:
        """Request these peers' vectors of `round`, whose local steps took `steps_s`."""
        self.phase, self.round = "asking", round
        self.outcomes, self.questions, self._again, self._reports, self._verifying = {}, {}, {}, {}, {}
        self.link_deadlines.begin(now, steps_s)
        self._asked_at, self._round_s = now, self.link_deadlines.expires - now
        for peer in sorted(set(peers)):
            self.questions[peer] = self._number(peer)
            self._again[peer] = now + self.link_deadlines.retry_s(peer)
        self._asked_by_most = _most_reached(self.progress.of(peer) for peer in self.questions) if self.exact else 0
        self.relays.begin(round, self.questions)
        return [*(self._question(peer) for peer in self.questions), *self._seek()]

    def tick(self, now: float) -> list[SendMessage]:
        """Resolve requests past their deadline as timeouts -> requests to repeat."""
        repeated = []
        self.relays.tick(now)
        for peer in self._open:
            if now >= self._until(peer):
                self._resolve(peer, "timeout", now)
            elif now >= self._again[peer]:
                slow_s = self._round_s / 2.0 if self._is_behind(peer) else 0.0
                self._again[peer] = now + max(self.link_deadlines.retry_s(peer), slow_s)
                repeated.append(self._question(peer))
        return repeated

    def reply(self, call: ExchangeCall, reply: Call | None, now: float) -> list[Command]:
        """Process the engine's result for a vector: Done if it takes part in the round; None: the engine was lost, which is no fault of the
        peer.
        """
        if isinstance(call, VerifyEarlier):
            return [*self.relays.reply(call, reply)]
        if self._verifying.get(call.peer) is call:
            del self._verifying[call.peer]
            if isinstance(reply, Done):
                self.relays.committed(call.peer)
            self._resolve(call.peer, "committed" if isinstance(reply, Done) else "aborted", now)
        if isinstance(reply, Refused) and reply.kind == "peer":
            return [Fault(call.peer, reply.reason)]
        return []

    def unreachable(self, peer: str, now: float) -> list[Command]:
        """Note that a message could not be sent."""
        self.relays.unreachable(peer)
        if peer in self._open:
            self._resolve(peer, "timeout", now)
        return []

    def close(self) -> None:
        """Accept no answers of this round any more."""
        if self.behind > self.round:
            self.link_deadlines.overtaken()
        self.phase = "computing"
        self.link_deadlines.end()
        self.relays.stop()
        self._verifying = {}

    def forget(self, peer: str) -> None:
        """Delete all that a peer that is gone has sent."""
        self._verifying.pop(peer, None)
        self.relays.unreachable(peer)
        if self.phase == "asking":
            self.relays.revoked(peer)
        if peer in self.waiting:
            self.outcomes[peer] = "aborted"
        self.progress.forget(peer)
        self.link_deadlines.forget(peer)
        self._deferred.pop(peer, None)
        self._answered.pop(peer, None)
        self._counted.pop(peer, None)

    def receive(self, peer: str, message: Pull | Pulled | NotNow | Relay | Relayed, now: float) -> list[Command]:
        """Process a message of a peer.

        Raises:
            RemoteProtocolError: asked_too_often, answer_unasked, wrong_round, wrong_relay, bad_signature. A question to that peer is over.
        """
        match message:
            case Pull():
                self.progress.record(peer, message.round)
                self._count(peer, message.round)
                return [*self._decide(peer, message, now)]
            case Relay():
                return [SendMessage(peer, self._passed_on(peer, message, now))]
            case Relayed():
                return [*self._relayed(peer, message)]
            case NotNow() if self.relays.is_open(peer, message.nonce):
                self.relays.close(message.nonce)
                return [*self._seek()]
            case NotNow():
                if self._answers(peer, message.nonce):
                    self._reports[peer] = min(message.round, MAX_ROUND)
                    if message.reason not in ("wait", "early"):
                        self._resolve(peer, "busy", now)
                self.progress.record(peer, message.round)
                return []
            case Pulled():
                return self._pulled(peer, message, now)

    def _pulled(self, peer: str, pulled: Pulled, now: float) -> list[Command]:
        if not self._answers(peer, pulled.nonce) or pulled.incarnation != self.incarnation_of(peer):
            return []
        reason = ""
        first, last = (self.round, self.round) if self.exact else (self.round - 1, self.round + self.max_lead)
        if not first <= pulled.round <= last:
            reason = "wrong_round"
        elif not genuine(attestation_of(self.swarm, peer, pulled), self.verify):
            reason = "bad_signature"
        if reason:
            self._resolve(peer, "aborted", now)
            raise RemoteProtocolError(peer, reason)
        self.progress.record(peer, pulled.round)
        self._reports[peer] = pulled.round
        call = self._verifying[peer] = VerifyUpdate(peer, pulled.digest, pulled.payload)
        self.relays.arrived(peer, pulled)
        self.relays.compare(peer, pulled.heard, now + max(self.link_deadlines.usual_s(), self.link_deadlines.deadline.min_wait_s))
        return [call, *self._seek()]

    def _seek(self) -> list[SendMessage]:
        """Request messages of earlier rounds that others have."""
        questions = self.relays.questions(self.nonce + 1)
        for question in questions:
            self._number(question.peer)
        return questions

    def _relayed(self, peer: str, relayed: Relayed) -> list[Command]:
        """Process another member's message, which we had requested from this peer."""
        if self.relays.is_open(peer, relayed.nonce):
            return [*self.relays.receive(peer, relayed)]
        if self._remembered.get(relayed.nonce) != peer:
            raise RemoteProtocolError(peer, "answer_unasked")
        return []

    def _passed_on(self, peer: str, relay: Relay, now: float) -> Relayed | NotNow:
        """Return the answer to a request for another member's message."""
        self.relays.count(peer)
        message = self.relays.wanted(peer, relay)
        if message is not None and self.afford(len(message.payload), now):
            return message
        return NotNow(relay.nonce, self.round, "late" if message is None else "busy")

    def _number(self, peer: str) -> int:
        """Return the number of a new request to a peer."""
        self.nonce += 1
        self._remembered[self.nonce] = peer
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return self.nonce

    def _answers(self, peer: str, nonce: int) -> bool:
        """Tell if this is the answer to an open request. Raises RemoteProtocolError: we requested nothing."""
        if self.questions.get(peer) == nonce and peer in self._open:
            return True
        if self._remembered.get(nonce) != peer:
            raise RemoteProtocolError(peer, "answer_unasked")
        return False

    def _count(self, peer: str, round: int) -> None:
        before, times = self._counted.get(peer, (round, 0))
        times = times + 1 if before == round else 1
        self._counted[peer] = (round, times)
        if times > MAX_QUESTIONS:
            raise RemoteProtocolError(peer, "asked_too_often")

    def _decide(self, peer: str, pull: Pull, now: float) -> list[SendMessage]:
        """Return the answer to a request; none yet if it follows when the round is published."""
        if pull.round <= self._newest:
            return [SendMessage(peer, self._vector(peer, pull, now))]
        if pull.round > self.round + self.max_lead:
            return [SendMessage(peer, NotNow(pull.nonce, self.round, "early"))]
        if len(self._deferred) >= MAX_DEFERRED and peer not in self._deferred:
            return [SendMessage(peer, NotNow(pull.nonce, self.round, "full"))]
        self._deferred[peer] = pull
        return [SendMessage(peer, NotNow(pull.nonce, self.round, "wait"))] if pull.round > self.round else []

    def _vector(self, peer: str, pull: Pull, now: float) -> Pulled | NotNow:
        it = self._published.get(pull.round, self._published[self._newest])
        if it.round > pull.round + self.max_lead or (self.exact and it.round != pull.round):
            return NotNow(pull.nonce, self.round, "late")
        if self._answered.get(peer, 0) >= MAX_ANSWERS * (self.kept if self.exact else 1) or not self.afford(len(it.payload), now):
            return NotNow(pull.nonce, self.round, "busy")
        self._answered[peer] = self._answered.get(peer, 0) + 1
        heard = self.relays.digest(pull.round) if pull.lacks else b""
        return msgspec.structs.replace(it, nonce=pull.nonce, heard=heard)

    def _due(self, round: int) -> list[tuple[str, Pull]]:
        """Return the requests for rounds up to this one, by peer, and remove them from the deferred ones."""
        due = sorted(peer for peer, pull in self._deferred.items() if pull.round <= round)
        return [(peer, self._deferred.pop(peer)) for peer in due]

    @property
    def published(self) -> tuple[int, ...]:
        """Return the rounds whose vector is stored, in order."""
        return tuple(self._published)

    @property
    def deferred(self) -> int:
        """Return the number of peers whose request is deferred, at most MAX_DEFERRED."""
        return len(self._deferred)

    @property
    def newest(self) -> Pulled:
        """Return the last published vector; there must be one."""
        return self._published[self._newest]

    @property
    def _newest(self) -> int:
        """Return the last published round, −1 before the first."""
        return max(self._published, default=-1)

    @property
    def _open(self) -> tuple[str, ...]:
        """Return the peers that have not answered yet, sorted."""
        return tuple(peer for peer in self.waiting if peer not in self._verifying)

    @property
    def _sorted_reports(self) -> list[int]:
        """Return the rounds reported by the requested peers, sorted; empty until half of them have reported, and two."""
        return sorted(self._reports.values()) if len(self._reports) >= max(2, len(self.questions) / 2) else []

    def _until(self, peer: str) -> float:
        """Return a peer's deadline, which is later for a peer that has not reached our round if most have not."""
        return self.link_deadlines.until(peer) + (self.ahead * self._round_s if self._is_behind(peer) else 0.0)

    def _is_behind(self, peer: str) -> bool:
        """Note a peer's report that it has not reached our round."""
        return self._reports.get(peer, self.round) < self.round

    def _question(self, peer: str) -> SendMessage:
        return SendMessage(peer, Pull(self.questions[peer], self.round, bool(self.relays.missing())))

    def _resolve(self, peer: str, outcome: Outcome, now: float) -> None:
        self.outcomes[peer] = outcome
        if outcome == "timeout" and self._is_behind(peer) and self.ahead:
            self.link_deadlines.deadline.observe(LONGER * (now - self._asked_at))
        else:
            self.link_deadlines.resolve(peer, outcome, now)


def _most_reached(rounds: Iterable[int]) -> int:
    """Return the round that most of these have reached; 0 of fewer than two."""
    reached = sorted(rounds)
    return reached[(len(reached) - 1) // 2] if len(reached) > 1 else 0
