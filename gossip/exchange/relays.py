"""Relays of signed messages where all members' messages are summed: a member that missed one gets it from others. No clock.

Who lacks a member's message of the round before asks the author, which may only have been late; an answer counts in this round only, so
that whoever it gave none can still get it from others. Who lacks messages of the last `depth` rounds says so in its ordinary questions.
Each answer to these then carries the digest of what the answering peer has of these rounds. Where that differs from ours the peer is asked
for what is missing. The author signed it, so it does not matter who passes it on. A message of a round is taken until the mix `depth`
rounds later, then that round is closed: whoever lacks it lacks it for good.

    digest that is wrong, or of what is not there    costs a question of ours, and only while a message is missing
    a message not asked for, of another author or    a fault of who passed it on, as no honest member keeps it
      round, not signed, or that the engine refuses
    questions                                        AT_ONCE sources of a message are asked at a time, MAX_RELAYS messages of each source
    answers                                          MAX_RELAYS to a peer from one publishing to the next; MAX_QUESTIONS are a fault

A round waits for answers as long as ordinary ones usually take, or the shortest deadline if that is longer, after the last of these; what
comes later counts in the next mix.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

import msgpack

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify, attestation_of, claim_of, genuine, statement_of
from starling.gossip.exchange.calls import Call, Done, Refused, VerifyEarlier
from starling.gossip.exchange.commands import Fault, SendMessage
from starling.gossip.wire.schema import Pulled, Relay, Relayed

DEPTH = 2
"""Rounds for which a message may still be passed on: one in which its lack is noticed and mended, and one if that fails."""
AT_ONCE = 2  # peers asked for one message at a time: a second one in case the first does not answer
MAX_RELAYS = 16
"""Messages that one source is asked for at a time, and that one peer is given from one publishing to the next."""
MAX_QUESTIONS = 64  # requests of one peer per publishing
HEARD_BYTES = 8


@dataclass(slots=True)
class Round:
    """The messages of a round by author, ours included, and the authors whose messages are expected."""

    messages: dict[str, Relayed] = field(default_factory=dict)
    requested: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a peer for another member's message."""

    peer: str
    round: int
    author: str


@dataclass(slots=True)
class Relays:
    """The messages of the last rounds that one node received, those that it lacks, and its requests for them.

    Args:
        swarm: swarm id.
        me: our peer id.
        verify: checks a signature.
        depth: rounds for which messages are kept, 0: none, nobody is asked and nobody gets any.
    """

    swarm: str
    me: str
    verify: Verify
    depth: int = 0
    waits_until: float = inf
    """When the round no longer waits for answers; infinite while it waits for none."""
    rounds: dict[int, Round] = field(default_factory=dict)  # open rounds, for which messages are accepted, and the current one; ascending
    open: dict[int, Question] = field(default_factory=dict)  # questions by nonce
    _current: int = -1
    _pending: dict[str, Relayed] = field(default_factory=dict)  # messages of the current round that the engine is verifying, by author
    _sources: list[str] = field(default_factory=list)  # peers that reported another digest in this round
    _tried: set[Question] = field(default_factory=set)
    # (call, the peer that passed the message on, the message) under verification
    _verifying: list[tuple[VerifyEarlier, str, Relayed]] = field(default_factory=list)
    _given: dict[str, int] = field(default_factory=dict)  # messages passed on to each peer since the last publishing
    _asked_by: dict[str, int] = field(default_factory=dict)  # requests of each peer since the last publishing

    @property
    def waiting(self) -> bool:
        """Return whether the round waits for an answer, or for the engine to verify one."""
        return self.waits_until < inf and bool(self.open or self._verifying)

    def published(self, message: Pulled) -> None:
        """Store our own message of a round."""
        self._given, self._asked_by = {}, {}
        if self.depth:
            self.rounds[message.round] = Round({self.me: self._relayed(self.me, message)})

    def begin(self, round: int, requested: Iterable[str]) -> None:
        """Begin a round with the `requested` members; rounds more than `depth` before it are closed."""
        self.stop()
        self._sources, self._tried, self._pending, self._current = [], set(), {}, round
        if not self.depth:
            return
        own = self.rounds.pop(round, Round()).messages.get(self.me)
        self.rounds = {number: it for number, it in self.rounds.items() if round - self.depth <= number < round}
        self.rounds[round] = Round({} if own is None else {self.me: own}, frozenset(requested))
        self.open = {nonce: it for nonce, it in self.open.items() if it.round in self.rounds and it.peer != it.author}

    def stop(self) -> None:
        """Stop waiting, as the round is mixed. Late answers are still accepted."""
        self.waits_until = inf

    def arrived(self, peer: str, message: Pulled) -> None:
        """Note that the engine is verifying a peer's message of the current round."""
        if self.depth:
            self._pending[peer] = self._relayed(peer, message)

    def committed(self, peer: str) -> None:
        """Store a peer's message of the current round: the engine accepted it."""
        if (message := self._pending.pop(peer, None)) is not None:
            self.rounds[self._current].messages[peer] = message

    def revoked(self, peer: str) -> None:
        """Delete a peer's message of the current round, which is not mixed yet."""
        self._pending.pop(peer, None)
        if self._current in self.rounds:
            self.rounds[self._current].messages.pop(peer, None)

    def digest(self, round: int) -> bytes:
        """Return a BLAKE2b-64 digest of which messages of the `depth` rounds before `round` are stored; b"" where none are."""
        if not self.depth:
            return b""
        known = [
            (number, author, message.claim.digest)
            for number in range(round - self.depth, round)
            for author, message in sorted(self._messages(number).items())
        ]
        return blake2b(msgpack.packb(known, use_bin_type=True), digest_size=HEARD_BYTES).digest()

    def missing(self) -> list[tuple[int, str]]:
        """Return (round, author) of missing messages of earlier rounds, the oldest round first."""
        under_way = {(message.claim.round, message.claim.peer) for _, _, message in self._verifying}
        return [
            (number, author)
            for number, it in self.rounds.items()
            if number < self._current
            for author in sorted(it.requested - it.messages.keys())
            if (number, author) not in under_way
        ]

    def compare(self, peer: str, heard: bytes, until: float) -> None:
        """Compare what a peer reports with its message of the current round; answers are awaited until then."""
        if self.depth and heard and peer not in self._sources and heard != self.digest(self._current):
            self._sources.append(peer)
            self.waits_until = until

    def questions(self, nonce: int) -> list[SendMessage]:
        """Return the requests to send now, numbered from `nonce` on."""
        requested = []
        members = self.rounds[self._current].requested if self._current in self.rounds else frozenset()
        others = self._sources if self.waits_until < inf else ()
        for number, author in self.missing():
            at = sum((it.round, it.author) == (number, author) for it in self.open.values())
            late = {author}.intersection(members) if number == self._current - 1 else ()
            for peer in (*late, *(other for other in others if other != author)):
                question = Question(peer, number, author)
                load = sum(it.peer == peer for it in self.open.values())
                if at < AT_ONCE and load < MAX_RELAYS and question not in self._tried:
                    self._tried.add(question)
                    self.open[nonce] = question
                    requested.append(SendMessage(peer, Relay(nonce, number, author)))
                    at, nonce = at + 1, nonce + 1
        return requested

    def tick(self, now: float) -> None:
        """Stop waiting once the time is over."""
        if now >= self.waits_until:
            self.stop()

    def is_open(self, peer: str, nonce: int) -> bool:
        """Return whether this is the number of an open question to that peer."""
        return (it := self.open.get(nonce)) is not None and it.peer == peer

    def close(self, nonce: int) -> None:
        """Close a request that is answered, or has failed."""
        self.open.pop(nonce, None)

    def unreachable(self, peer: str) -> None:
        """Close all requests to a peer that can no longer be reached."""
        self.open = {nonce: it for nonce, it in self.open.items() if it.peer != peer}

    def receive(self, peer: str, message: Relayed) -> list[VerifyEarlier]:
        """Process the answer to an open request -> calls for the engine. Raises RemoteProtocolError: wrong_relay, bad_signature."""
        question, claim = self.open.pop(message.nonce), message.claim
        if (claim.round, claim.peer) != (question.round, question.author):
            raise RemoteProtocolError(peer, "wrong_relay")
        if not genuine(statement_of(claim, self.swarm), self.verify):
            raise RemoteProtocolError(peer, "bad_signature")
        if (claim.round, claim.peer) not in self.missing():
            return []  # another was quicker
        call = VerifyEarlier(claim.peer, claim.digest, message.payload, claim.round)
        self._verifying.append((call, peer, message))
        return [call]

    def reply(self, call: VerifyEarlier, reply: Call | None) -> list[Fault]:
        """Process the engine's verdict on a relayed message; None: the engine was lost."""
        for at, (under_way, peer, message) in enumerate(self._verifying):
            if under_way is call:
                del self._verifying[at]
                if isinstance(reply, Done) and (it := self.rounds.get(message.claim.round)) is not None:
                    it.messages[message.claim.peer] = message
                if isinstance(reply, Refused) and reply.kind == "peer":
                    return [Fault(peer, reply.reason)]
        return []

    def count(self, peer: str) -> None:
        """Count a request of a peer. Raises RemoteProtocolError: asked_too_often."""
        self._asked_by[peer] = self._asked_by.get(peer, 0) + 1
        if self._asked_by[peer] > MAX_QUESTIONS:
            raise RemoteProtocolError(peer, "asked_too_often")

    def wanted(self, peer: str, relay: Relay) -> Relayed | None:
        """Return the message that a peer requests; None if it is missing, or the peer has had its share."""
        message = self._messages(relay.round).get(relay.author)
        if message is None or self._given.get(peer, 0) >= MAX_RELAYS:
            return None
        self._given[peer] = self._given.get(peer, 0) + 1
        return Relayed(relay.nonce, message.claim, message.payload)

    def _messages(self, round: int) -> dict[str, Relayed]:
        return self.rounds[round].messages if round in self.rounds else {}

    def _relayed(self, peer: str, it: Pulled) -> Relayed:
        return Relayed(0, claim_of(attestation_of(self.swarm, peer, it)), it.payload)
