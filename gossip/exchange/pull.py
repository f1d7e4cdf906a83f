"""Steps pace where nodes ask peers for their vectors and combine what they are told. No clock: time arrives as `now`.

    computing --publish, ask--> asking --close--> computing (the next round)

There are no edges: who is asked does not move, and whom we ask is nobody else's business. A vector is published once a round, signed
once (`starling.gossip.exchange.attestation`), and told in the same bytes to whoever asks; the two newest are kept.

Being asked. A question for
    a round we have published, or an earlier one      that vector, or the newest if that is no longer kept
    one that is more than max_lead before it          late
    one not yet published, up to max_lead ahead       parked till we publish: one per peer, a newer replaces it; MAX_DEFERRED in all, or
                                                      full; told wait if we are not even at that round
    one further ahead                                 early
A peer gets MAX_TOLD vectors from one publishing to the next, and nobody more than we can afford to send; the rest is told busy. Who asks
MAX_ASKED times for one round is at fault.

Asking. Each question has a number of its own and is repeated until it is answered or its deadline is over. An answer is taken if it
is from the round asked for, the one before, or up to max_lead later; by the life of the peer that its membership record names; and
signed. Then the engine verifies the vector (`VerifyUpdate`), and `reply` takes its result.
    an answer to a question that is answered or given up          ignored
    an answer of another life                                     ignored: the peer's record is under way
    an answer to no question of ours, a wrong round or signature  a fault; the question counts as aborted
    wait, early                                                   it stays open
    any other NotNow                                              it is resolved as busy

Who is in step. Those we ask are a sample that nobody else has drawn, so their words count: if most of them are further than SLACK
rounds, they left us `behind`; if most are not yet at our round, we are ahead, and running on alone would only take us further away: those
who are not yet there have the time of so many more rounds, and if that is not enough, more is learned. A word is the round of a vector
or of a NotNow; half of those asked must have spoken. What others say who ask us counts for nothing: liars may ask as often as they like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify, digest, genuine, stated
from starling.gossip.exchange.calls import Call, Done, ExchangeCall, Refused, VerifyUpdate
from starling.gossip.exchange.commands import Command, Fault, Outcome, SendMessage
from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.timeouts import Timeouts
from starling.gossip.wire.schema import NotNow, Pull, Pulled, Pulling

MAX_DEFERRED = 1024
"""Peers with a parked question; more are told "full". Many, as it costs little, and an army that asks early would shut the others out."""
MAX_TOLD = 2
"""Vectors that one peer gets from one publishing to the next: the second in case the first was lost."""
MAX_ASKED = 64
"""Questions of one peer for one round; an honest one repeats a handful of times, and twice for each round that it is ahead."""
MAX_REMEMBERED = 4096
"""Questions of ours whose late answers are known as such."""
KEPT = 2
"""Published vectors kept."""
SLACK = 2
"""Rounds that peers may be ahead without having left us behind: their questions wait for us, and ours are answered."""

MAX_ROUND = 2**60
"""What a claim counts for at most: there is always a next round."""
LONGER = 2.0
"""Who was given up and had said that it was on its way would have taken so many times as long, for all we know."""


@dataclass(frozen=True, slots=True)
class Published:
    """What we tell whoever asks.

    Args:
        round: of the vector.
        life: our incarnation.
        digest, signature: of the payload, and for it.
        payload: the encoded vector.
    """

    round: int
    life: int
    digest: bytes
    signature: bytes
    payload: bytes


@dataclass(slots=True)
class Pulls:
    """One node's questions and answers.

    Args:
        swarm: swarm id.
        timeouts: deadline and retries.
        verify: checks a peer's signature.
        life_of: incarnation in a peer's membership record; None if there is none.
        afford: (bytes, now) -> whether so much may be sent to a peer now.
        max_lead: rounds a peer may run ahead of us and be parked, or we of it and be answered.
        nonce: of our first question; the numbers of an earlier life of ours must not come again.
    """

    swarm: str
    timeouts: Timeouts
    verify: Verify
    life_of: Callable[[str], int | None]
    afford: Callable[[int, float], bool]
    max_lead: int = 16
    nonce: int = 0
    round: int = 0
    phase: Literal["computing", "asking"] = "computing"
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of the questions of this round that are resolved."""
    progress: PeerProgress = field(default_factory=PeerProgress)
    """What peers said of how far they are."""
    _questions: dict[str, int] = field(default_factory=dict)  # of this round: peer -> nonce
    _again: dict[str, float] = field(default_factory=dict)  # when to repeat them
    _words: dict[str, int] = field(default_factory=dict)  # how far those asked are
    _asked_at: float = 0.0
    _round_s: float = 0.0  # that a round is waited for
    _verifying: dict[str, VerifyUpdate] = field(default_factory=dict)  # calls without a reply yet
    _remembered: dict[int, str] = field(default_factory=dict)  # nonce -> whom it was for, oldest first
    _published: dict[int, Published] = field(default_factory=dict)  # by round, oldest first
    _deferred: dict[str, Pull] = field(default_factory=dict)
    _told: dict[str, int] = field(default_factory=dict)  # vectors by peer since the last publishing
    _asked: dict[str, tuple[int, int]] = field(default_factory=dict)  # peer -> the round it asks for, how often

    # --- our rounds ---------------------------------------------------------------------------------------

    @property
    def questions(self) -> Mapping[str, int]:
        """Peer -> nonce of our question of this round, or the last."""
        return self._questions

    @property
    def asked(self) -> tuple[str, ...]:
        """Whom we ask, or asked last, sorted."""
        return tuple(sorted(self._questions))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Peers whose questions are not resolved, sorted."""
        return tuple(sorted(self._questions.keys() - self.outcomes.keys())) if self.phase == "asking" else ()

    @property
    def done(self) -> bool:
        """Every question of the round is resolved."""
        return not self.waiting

    @property
    def deadline(self) -> float:
        """When `tick` has something to do; infinite if never."""
        return min((min(self._until(peer), self._again[peer]) for peer in self._open), default=inf)

    @property
    def behind(self) -> int:
        """A round that most of those asked have reached if they have left us behind, else ours."""
        words = self._spoken
        middle = words[(len(words) - 1) // 2] if words else 0
        return middle if middle > self.round + SLACK else self.round

    @property
    def ahead(self) -> int:
        """Rounds that most of those asked still lack to ours, at most `max_lead`."""
        words = self._spoken
        return min(max(0, self.round - words[len(words) // 2]), self.max_lead) if words else 0

    def compute(self, round: int) -> None:
        """Local steps of `round` begin."""
        self.phase, self.round = "computing", round
        self.timeouts.end()

    def publishable(self, round: int) -> bool:
        """Whether a vector of `round` may be published: none of it or of a later one was."""
        return round > self._newest

    def publish(self, published: Published, now: float) -> list[SendMessage]:
        """Local steps of a round are done and this is its vector. -> answers to what was parked

        Args:
            published: of a round that is `publishable`: two vectors for one would prove us a liar.
            now: seconds.
        """
        assert self.publishable(published.round)
        self._published[published.round] = published  # the rounds rise, so the oldest is the first
        while len(self._published) > KEPT:
            del self._published[next(iter(self._published))]
        self._told = {}
        waiting = self._unparked(published.round)
        # if they cannot all be served, nobody's peer id or haste decides who is
        waiting.sort(key=lambda question: digest(published.signature + question[0].encode()))
        return [message for peer, pull in waiting for message in self._decide(peer, pull, now)]

    def withhold(self, round: int) -> list[SendMessage]:
        """There will be no vector of `round`. -> answers to what was parked"""
        return [SendMessage(peer, NotNow(pull.nonce, self.round, "engine")) for peer, pull in self._unparked(round)]

    def ask(self, round: int, peers: Iterable[str], now: float, lag_s: float = 0.0) -> list[SendMessage]:
        """Ask these peers for their vectors of `round`.

        Args:
            round: its local steps are done.
            peers: whom.
            now: seconds.
            lag_s: as in `Timeouts.begin`.
        """
        self.phase, self.round = "asking", round
        self.outcomes, self._questions, self._again, self._words, self._verifying = {}, {}, {}, {}, {}
        self.timeouts.begin(now, lag_s)
        self._asked_at, self._round_s = now, self.timeouts.expires - now
        for peer in sorted(set(peers)):
            self.nonce += 1
            self._questions[peer] = self.nonce
            self._remembered[self.nonce] = peer
            self._again[peer] = now + self.timeouts.retry_s(peer)
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return [self._question(peer) for peer in self._questions]

    def tick(self, now: float) -> list[SendMessage]:
        """Give up who missed the deadline. -> questions to repeat"""
        repeated = []
        for peer in self._open:
            if now >= self._until(peer):
                self._resolve(peer, "timeout", now)
            elif now >= self._again[peer]:
                slow_s = self._round_s / 2.0 if self._lacks(peer) else 0.0
                self._again[peer] = now + max(self.timeouts.retry_s(peer), slow_s)
                repeated.append(self._question(peer))
        return repeated

    def reply(self, call: ExchangeCall, reply: Call | None, now: float) -> list[Command]:
        """Take the engine's verdict on a vector: Done if it takes part in the round. None: the engine was lost, which is nobody's fault."""
        if self._verifying.get(call.peer) is call:
            del self._verifying[call.peer]
            self._resolve(call.peer, "committed" if isinstance(reply, Done) else "aborted", now)
        if isinstance(reply, Refused) and reply.kind == "peer":
            return [Fault(call.peer, reply.reason)]
        return []

    def unreachable(self, peer: str, now: float) -> list[Command]:
        """A message could not be sent."""
        if peer in self._open:
            self._resolve(peer, "timeout", now)
        return []

    def close(self) -> None:
        """What is told from now on comes too late."""
        self.phase = "computing"
        self.timeouts.end()
        self._verifying = {}

    def forget(self, peer: str) -> None:
        """A peer is gone: what it said counts no more."""
        self._verifying.pop(peer, None)
        if peer in self.waiting:
            self.outcomes[peer] = "aborted"
        self.progress.forget(peer)
        self.timeouts.forget(peer)
        self._deferred.pop(peer, None)
        self._told.pop(peer, None)
        self._asked.pop(peer, None)

    # --- messages -----------------------------------------------------------------------------------------

    def receive(self, peer: str, message: Pulling, now: float) -> list[Command]:
        """Take a message in.

        Raises:
            RemoteProtocolError: asked_too_often, answer_unasked, wrong_round, bad_signature. A question to that peer is over.
        """
        match message:
            case Pull():
                self.progress.record(peer, message.round)
                self._count(peer, message.round)
                return [*self._decide(peer, message, now)]
            case NotNow():
                if self._answers(peer, message.nonce):
                    self._words[peer] = min(message.round, MAX_ROUND)
                    if message.reason not in ("wait", "early"):
                        self._resolve(peer, "busy", now)
                self.progress.record(peer, message.round)
                return []
            case Pulled():
                return self._pulled(peer, message, now)

    def _pulled(self, peer: str, pulled: Pulled, now: float) -> list[Command]:
        if not self._answers(peer, pulled.nonce) or pulled.life != self.life_of(peer):
            return []
        reason = ""
        if not self.round - 1 <= pulled.round <= self.round + self.max_lead:
            reason = "wrong_round"
        elif not genuine(stated(self.swarm, peer, pulled), self.verify):
            reason = "bad_signature"
        if reason:
            self._resolve(peer, "aborted", now)
            raise RemoteProtocolError(peer, reason)
        self.progress.record(peer, pulled.round)
        self._words[peer] = pulled.round
        call = self._verifying[peer] = VerifyUpdate(peer, pulled.digest, pulled.payload)
        return [call]

    def _answers(self, peer: str, nonce: int) -> bool:
        """Whether this is the answer to an open question. A fault if we never asked."""
        if self._questions.get(peer) == nonce and peer in self._open:
            return True
        if self._remembered.get(nonce) != peer:
            raise RemoteProtocolError(peer, "answer_unasked")
        return False

    def _count(self, peer: str, round: int) -> None:
        before, times = self._asked.get(peer, (round, 0))
        times = times + 1 if before == round else 1
        self._asked[peer] = (round, times)
        if times > MAX_ASKED:
            raise RemoteProtocolError(peer, "asked_too_often")

    def _decide(self, peer: str, pull: Pull, now: float) -> list[SendMessage]:
        """What to say to a question; nothing if the answer is about to come."""
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
        if it.round > pull.round + self.max_lead:
            return NotNow(pull.nonce, self.round, "late")
        if self._told.get(peer, 0) >= MAX_TOLD or not self.afford(len(it.payload), now):
            return NotNow(pull.nonce, self.round, "busy")
        self._told[peer] = self._told.get(peer, 0) + 1
        return Pulled(pull.nonce, it.round, it.life, it.digest, it.signature, it.payload)

    def _unparked(self, round: int) -> list[tuple[str, Pull]]:
        """The questions for rounds up to this one, by peer; they are parked no more."""
        due = sorted(peer for peer, pull in self._deferred.items() if pull.round <= round)
        return [(peer, self._deferred.pop(peer)) for peer in due]

    # --- small parts --------------------------------------------------------------------------------------

    @property
    def _newest(self) -> int:
        """The last round published, −1 before the first."""
        return max(self._published, default=-1)

    @property
    def _open(self) -> tuple[str, ...]:
        """Peers that have not answered yet, sorted."""
        return tuple(peer for peer in self.waiting if peer not in self._verifying)

    @property
    def _spoken(self) -> list[int]:
        """The words of those asked, in order, if half of them have spoken."""
        return sorted(self._words.values()) if 2 * len(self._words) >= len(self._questions) else []

    def _until(self, peer: str) -> float:
        """When to give a peer up: who is not yet at our round has longer if most are not."""
        return self.timeouts.until(peer) + (self.ahead * self._round_s if self._lacks(peer) else 0.0)

    def _lacks(self, peer: str) -> bool:
        """The peer has said that it is not yet at our round."""
        return self._words.get(peer, self.round) < self.round

    def _question(self, peer: str) -> SendMessage:
        return SendMessage(peer, Pull(self._questions[peer], self.round))

    def _resolve(self, peer: str, outcome: Outcome, now: float) -> None:
        self.outcomes[peer] = outcome
        if outcome == "committed":
            self.timeouts.answered(peer, now)
        elif outcome == "timeout" and self._lacks(peer):
            self.timeouts.deadline.observe(LONGER * (now - self._asked_at))
        elif outcome == "timeout":
            self.timeouts.missed(peer)
