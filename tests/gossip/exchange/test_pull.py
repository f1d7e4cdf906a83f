"""Pulled exchanges as a table of requests and answers, and random schedules with loss, repetition, reordering and a Byzantine peer."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import attestation_of, body, contradicts, digest
from starling.gossip.exchange.calls import Done, Refused, VerifyUpdate
from starling.gossip.exchange.commands import Fault, SendMessage
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pull import KEPT, MAX_ANSWERS, MAX_DEFERRED, MAX_QUESTIONS, Pulls
from starling.gossip.exchange.relays import Relays
from starling.gossip.wire.schema import NotNow, Pull, Pulled, PulledMessage
from tests.harness.signatures import sign, verify
from tests.strategies import examples, seeds

LEAD = 4
INCARNATION = 5


def published(peer: str, round: int, vector: bytes | None = None) -> Pulled:
    payload = f"{peer} {round}".encode() if vector is None else vector
    hashed = digest(payload)
    return Pulled(0, round, INCARNATION, hashed, sign(peer, body("swarm", peer, INCARNATION, round, hashed)), payload)


def answer(peer: str, nonce: int, round: int) -> Pulled:
    return msgspec.structs.replace(published(peer, round), nonce=nonce)


def machine(**changes) -> Pulls:
    kept = {"afford": lambda _count, _now: True, "incarnation_of": lambda _peer: INCARNATION} | changes
    return Pulls(
        "swarm",
        LinkDeadlines(Deadline(0.5, 10.0)),
        verify,
        kept["incarnation_of"],
        kept["afford"],
        Relays("swarm", "me", verify, changes.get("depth", 0)),
        LEAD,
        changes.get("nonce", 100),
        kept=changes.get("kept", KEPT),
        exact=changes.get("exact", False),
    )


def asking(*peers: str, round: int = 7, **changes) -> tuple[Pulls, dict[str, int]]:
    """Return a machine that has published a round and requested it, and the nonces."""
    m = machine(**changes)
    m.compute(round)
    m.publish(published("me", round), 0.0)
    tells = m.ask(round, peers, 0.0)
    assert [(tell.peer, tell.message.round) for tell in tells] == [(peer, round) for peer in sorted(peers)]
    return m, {tell.peer: tell.message.nonce for tell in tells}


def answers_of(tells) -> list[tuple]:
    """Return (peer, content) of answers: the round of a vector, or the reason for having none."""
    return [(t.peer, t.message.reason if isinstance(t.message, NotNow) else t.message.round) for t in tells]


def test_a_request_for_a_published_round_is_answered_at_once_with_equal_bytes():
    m, _ = asking()
    one, other = (m.receive(peer, Pull(n, 7), 0.0)[0].message for n, peer in enumerate("ab"))
    assert (one.payload, one.digest, one.signature) == (other.payload, other.digest, other.signature)
    assert (one.nonce, other.nonce) == (0, 1)
    assert verify("me", one.signature, body("swarm", "me", INCARNATION, 7, digest(one.payload)))


def test_summed_messages_are_exchanged_only_for_the_requested_round():
    """A message of another round would be counted twice, or in the wrong round."""
    m, nonces = asking("a", "b", round=9, kept=3, exact=True)
    for older in (7, 8):
        fresh = machine(kept=3, exact=True)
        for number in range(6, 10):
            fresh.publish(published("me", number), 0.0)
        assert answers_of(fresh.receive("c", Pull(1, older), 0.0)) == [("c", older)]
        assert answers_of(fresh.receive("c", Pull(2, 6), 0.0)) == [("c", "late")]
    assert isinstance(m.receive("a", answer("a", nonces["a"], 9), 0.0)[0], VerifyUpdate)
    with pytest.raises(RemoteProtocolError, match="wrong_round"):
        m.receive("b", answer("b", nonces["b"], 10), 0.0)
    assert m.outcomes["b"] == "aborted"


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        (8, [("a", 8)]),
        (7, [("a", 7)]),
        (6, [("a", 8)]),
        (4, [("a", 8)]),
        (3, [("a", "late")]),
        (9, []),
        (10, [("a", "wait")]),
        (13, [("a", "wait")]),
        (14, [("a", "early")]),
    ],
)
def test_the_answer_depends_on_the_peer_s_round(asked, answers):
    """We have published 7 and 8 and compute 9; peers may be at most four rounds away."""
    m, _ = asking(round=7)
    m.close()
    m.compute(8)
    m.publish(published("me", 8), 0.0)
    m.compute(9)
    assert answers_of(m.receive("a", Pull(1, asked), 0.0)) == answers
    assert m.progress.of("a") == asked


def test_a_peer_s_newest_deferred_request_is_answered_at_publication():
    m = machine()
    m.compute(3)
    for nonce, (peer, asked) in enumerate([("a", 3), ("b", 4), ("c", 3), ("c", 4), ("d", 2)]):
        assert answers_of(m.receive(peer, Pull(nonce, asked), 0.0)) == ([(peer, "wait")] if asked > 3 else [])
    assert sorted(answers_of(m.publish(published("me", 3), 0.0))) == [("a", 3), ("d", 3)]
    assert sorted(answers_of(m.publish(published("me", 4), 0.0))) == [("b", 4), ("c", 4)]


def test_the_order_of_service_changes_every_round():
    first = []
    for number in range(40):
        m = machine()
        m.compute(number)
        for peer in "abcd":
            m.receive(peer, Pull(1, number), 0.0)
        first.append(m.publish(published("me", number), 0.0)[0].peer)
    assert all(4 <= first.count(peer) <= 18 for peer in "abcd")


def test_the_number_of_deferred_requests_is_bounded():
    m = machine()
    for n in range(MAX_DEFERRED):
        assert m.receive(f"p{n}", Pull(n, 0), 0.0) == []
    assert answers_of(m.receive("late", Pull(0, 0), 0.0)) == [("late", "full")]
    assert answers_of(m.receive("p0", Pull(0, 1), 0.0)) == [("p0", "wait")]


def test_withholding_a_round_is_answered_to_waiting_peers():
    m = machine()
    m.compute(3)
    m.receive("a", Pull(1, 3), 0.0)
    m.receive("b", Pull(1, 4), 0.0)
    assert answers_of(m.withhold(3)) == [("a", "engine")]
    assert answers_of(m.publish(published("me", 4), 0.0)) == [("b", 4)]


def test_a_round_is_published_once_and_only_the_last_are_stored():
    m = machine()
    for done in range(KEPT + 1):
        assert m.publishable(done)
        m.publish(published("me", done), 0.0)
    assert not any(m.publishable(done) for done in range(KEPT + 1))
    with pytest.raises(AssertionError):
        m.publish(published("me", KEPT, b"another"), 0.0)
    assert answers_of(m.receive("a", Pull(1, 0), 0.0)) == [("a", KEPT)]
    assert answers_of(m.receive("b", Pull(1, 1), 0.0)) == [("b", 1)]


def test_a_peer_gets_a_second_copy_and_no_third():
    m, _ = asking()
    answers = [answers_of(m.receive("a", Pull(1, 7), 0.0))[0][1] for _ in range(MAX_ANSWERS + 1)]
    assert answers == [7] * MAX_ANSWERS + ["busy"]
    assert answers_of(m.receive("b", Pull(1, 7), 0.0)) == [("b", 7)]
    m.publish(published("me", 8), 0.0)
    assert answers_of(m.receive("a", Pull(1, 8), 0.0)) == [("a", 8)]


def test_vectors_beyond_the_upload_cap_are_not_sent():
    m, _ = asking(afford=lambda count, now: now >= 1.0 and count == len(b"me 7"))
    assert answers_of(m.receive("a", Pull(1, 7), 0.0)) == [("a", "busy")]
    assert answers_of(m.receive("a", Pull(1, 7), 1.0)) == [("a", 7)]


def test_ten_thousand_requests_get_two_vectors_and_count_as_a_fault():
    m, _ = asking()
    outcomes = Counter()
    for nonce in range(10_000):
        try:
            outcomes.update(what for _, what in answers_of(m.receive("a", Pull(nonce, 7), 0.0)))
        except RemoteProtocolError as error:
            outcomes[error.reason] += 1
    assert outcomes == {7: MAX_ANSWERS, "busy": MAX_QUESTIONS - MAX_ANSWERS, "asked_too_often": 10_000 - MAX_QUESTIONS}


def test_an_answer_counts_once_the_engine_has_verified_it():
    m, nonces = asking("a", "b")
    (call,) = m.receive("a", answer("a", nonces["a"], 7), 0.1)
    it = answer("a", nonces["a"], 7)
    assert call == VerifyUpdate("a", it.digest, it.payload)
    assert m.waiting == ("a", "b")
    assert m.reply(call, Done(), 0.2) == []
    assert m.waiting == ("b",)
    m.receive("b", NotNow(nonces["b"], 9, "busy"), 0.3)
    assert m.done
    assert m.outcomes == {"a": "committed", "b": "busy"}
    assert m.requested == ("a", "b")
    assert m.progress.rounds == {"a": 7, "b": 9}


@pytest.mark.parametrize("round", [6, 7, 8, 7 + LEAD])
def test_vectors_of_nearby_rounds_are_accepted(round):
    m, nonces = asking("a")
    assert len(m.receive("a", answer("a", nonces["a"], round), 0.0)) == 1


def spoilt(nonce: int, **changes) -> Pulled:
    """Return an honest answer with some fields changed."""
    it = answer("a", nonce, 7)
    return Pulled(*{name: changes.get(name, getattr(it, name)) for name in it.__struct_fields__}.values())


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda n: answer("a", n, 5), "wrong_round"),
        (lambda n: answer("a", n, 8 + LEAD), "wrong_round"),
        (lambda n: answer("b", n, 7), "bad_signature"),
        (lambda n: spoilt(n, signature=bytes(64)), "bad_signature"),
        (lambda n: spoilt(n, digest=bytes(32)), "bad_signature"),
        (lambda n: spoilt(n, round=8), "bad_signature"),
    ],
)
def test_an_invalid_answer_is_a_fault_and_ends_the_request(lie, reason):
    m, nonces = asking("a")
    with pytest.raises(RemoteProtocolError) as caught:
        m.receive("a", lie(nonces["a"]), 0.0)
    assert (caught.value.peer, caught.value.reason) == ("a", reason)
    assert m.done
    assert m.outcomes == {"a": "aborted"}
    assert m.receive("a", answer("a", nonces["a"], 7), 0.0) == []  # there is no second try


@pytest.mark.parametrize("message", [answer("b", 10_000, 7), NotNow(10_000, 3, "busy")])
def test_unsolicited_answers_are_faults_and_change_nothing(message):
    m, nonces = asking("a", "b")
    for peer, nonce in (("b", 10_000), ("b", nonces["a"]), ("stranger", nonces["a"])):
        with pytest.raises(RemoteProtocolError, match="answer_unasked"):
            m.receive(peer, type(message)(nonce, *[getattr(message, f) for f in message.__struct_fields__[1:]]), 0.0)
    assert m.waiting == ("a", "b")
    assert m.progress.rounds == {}


def test_repeated_or_late_answers_are_no_faults():
    m, nonces = asking("a", "b")
    (call,) = m.receive("a", answer("a", nonces["a"], 7), 0.1)
    assert m.receive("a", answer("a", nonces["a"], 7), 0.1) == []
    m.reply(call, Done(), 0.1)
    assert m.receive("a", NotNow(nonces["a"], 7, "busy"), 0.1) == []
    m.tick(inf)
    assert m.outcomes == {"a": "committed", "b": "timeout"}
    m.close()
    assert m.receive("b", answer("b", nonces["b"], 7), 99.0) == []
    m.ask(8, ["b"], 100.0)
    assert m.receive("b", answer("b", nonces["b"], 7), 100.0) == []
    assert m.waiting == ("b",)


def test_an_answer_of_an_unknown_incarnation_is_ignored():
    incarnation = [INCARNATION - 1]
    m, nonces = asking("a", incarnation_of=lambda _peer: incarnation[0])
    assert m.receive("a", answer("a", nonces["a"], 7), 0.1) == []
    assert m.waiting == ("a",)
    incarnation[0] = INCARNATION
    assert len(m.receive("a", answer("a", nonces["a"], 7), 0.2)) == 1


def test_requests_are_repeated_until_the_deadline():
    m, nonces = asking("a", "b")
    m.receive("b", answer("b", nonces["b"], 7), 0.1)  # the engine verifies it: no request and no deadline
    asked, now = 1, m.deadline
    while not m.outcomes:
        for tell in m.tick(now):
            assert tell == SendMessage("a", Pull(nonces["a"], 7))
            asked += 1
        now = m.deadline
    assert 3 <= asked <= MAX_QUESTIONS
    assert m.outcomes == {"a": "timeout"}
    assert m.deadline == inf
    assert m.waiting == ("b",)


def test_an_unreachable_or_departed_peer_is_not_waited_for():
    m, _ = asking("a", "b")
    m.unreachable("a", 0.0)
    m.forget("b")
    assert m.done
    assert m.outcomes == {"a": "timeout", "b": "aborted"}


def test_a_vector_being_verified_when_the_round_closes_is_discarded():
    m, nonces = asking("a")
    (call,) = m.receive("a", answer("a", nonces["a"], 7), 0.0)
    m.close()
    m.ask(8, ["a"], 1.0)
    m.reply(call, Done(), 1.0)
    assert m.outcomes == {}


@pytest.mark.parametrize(
    ("reply", "outcome", "commands"),
    [
        (Done(), "committed", []),
        (Refused("peer", "wrong_digest"), "aborted", [Fault("a", "wrong_digest")]),
        (Refused("state", "not now"), "aborted", []),
        (None, "aborted", []),
    ],
)
def test_only_invalid_bytes_are_a_fault_of_their_peer(reply, outcome, commands):
    m, nonces = asking("a")
    (call,) = m.receive("a", answer("a", nonces["a"], 7), 0.0)
    assert m.reply(call, reply, 0.5) == commands
    assert m.outcomes == {"a": outcome}


def late(*asked: int, exact: bool = True) -> Pulls:
    """Return a machine in round 7 whose peers had asked for these rounds before it asked for its own."""
    m, peers = machine(exact=exact), "abcdefgh"[: len(asked)]
    m.compute(7)
    for peer, at in zip(peers, asked, strict=True):
        m.receive(peer, Pull(1, at), 0.0)
    m.publish(published("me", 7), 0.0)
    m.ask(7, peers, 0.0)
    return m


@pytest.mark.parametrize(
    ("asked", "following"),
    [
        ((9, 9, 9), 10),
        ((12, 11, 7), 12),
        ((9, 8, 7), 7),
        ((8, 8, 8), 7),
        ((7, 7, 7), 7),
        ((9, 9), 10),
        ((9, 7), 7),
        ((11,), 7),
        ((11, 6, 6, 6), 7),
    ],
)
def test_where_messages_add_up_a_node_is_behind_if_most_asked_for_a_round_two_later(asked, following):
    """Their answers are of the round asked for, so they do not say it; a single peer decides nothing."""
    assert late(*asked).behind == following
    assert late(*asked, exact=False).behind == 7, "what others ask for says nothing where they choose whom to ask"


def test_who_is_overtaken_while_it_asks_is_not_behind():
    """Others may be done with a round before us, with our message."""
    m = late(7, 7, 7)
    for peer in "abc":
        m.receive(peer, Pull(2, 9), 0.1)
    assert m.behind == 7
    m.compute(8)
    m.publish(published("me", 8), 0.2)
    m.ask(8, "abc", 0.2)
    assert m.behind == 8


@pytest.mark.parametrize(
    ("words", "behind", "ahead"),
    [
        ([], 7, 0),
        ([9, 9, 9], 7, 0),
        ([10, 10, 10], 10, 0),
        ([11, 12, 2**62], 12, 0),
        ([2**62, 7, 7], 7, 0),
        ([2**62, 2**62, 2**62, 7, 7, 7], 7, 0),
        ([2**62, 2**62, 13, 12, 11, 0], 12, 0),
        ([5, 5, 5], 7, 2),
        ([0, 0, 7], 7, 4),
        ([0, 7, 7], 7, 0),
        ([0, 0, 0, 7, 7, 7], 7, 0),
        ([30], 7, 0),
        ([30, 30], 30, 0),
        ([30, None], 7, 0),
        ([3], 7, 0),
        ([3, None], 7, 0),
        ([3, None, None], 7, 0),
        ([3, 3, None], 7, 4),
    ],
)
def test_the_majority_of_the_sample_decides_whether_this_node_is_behind(words, behind, ahead):
    """And two at least: one newcomer that says "wait" was waited for eight rounds, where the other of two peers had just died."""
    peers = [f"p{n}" for n in range(len(words))]
    m, nonces = asking(*peers)
    for peer, word in zip(peers, words, strict=True):
        if word is not None:
            m.receive(peer, NotNow(nonces[peer], word, "wait"), 0.0)
    for n in range(50):  # a requester does not count
        m.receive(f"q{n}", Pull(1, 2**62), 0.0)
    assert (m.behind, m.ahead) == (behind, ahead)


@pytest.mark.parametrize(("waiting", "longer"), [("ab", 3.0), ("a", 1.0)])
def test_a_node_ahead_of_most_waits_for_them(waiting, longer):
    m, nonces = asking("a", "b", "c")
    for peer in waiting:
        assert m.receive(peer, NotNow(nonces[peer], 5, "wait"), 0.0) == []
    assert m.waiting == ("a", "b", "c")
    expires, asked, now = m.link_deadlines.expires, Counter(), 0.0
    while not m.done:
        now = m.deadline
        asked.update(tell.peer for tell in m.tick(now))
    assert now == pytest.approx(longer * expires)
    assert 1 <= min(asked.values()) <= max(asked.values()) < MAX_QUESTIONS / 4


PEERS = ("a", "b", "c", "d")
BYZANTINE = "byzantine"


@dataclass
class World:
    """Four machines, possibly with a Byzantine one among the sources, and messages that arrive in any order, twice, or never."""

    rng: Random
    loss: float
    repeat: float
    byzantine: bool
    now: float = 0.0
    net: list[tuple[str, str, PulledMessage]] = field(default_factory=list)
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    used: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    sent: Counter = field(default_factory=Counter)
    statements: dict[tuple[str, int], set] = field(default_factory=dict)

    def __post_init__(self):
        self.machines = {peer: machine(nonce=self.rng.randrange(2**60)) for peer in PEERS}
        self.verifying: list[tuple[str, VerifyUpdate, int]] = []
        for peer in PEERS:
            self.begin(peer, 0)

    def begin(self, peer: str, round: int) -> None:
        self.machines[peer].compute(round)

    def send(self, src: str, commands, cause: PulledMessage | None = None) -> None:
        for command in commands:
            match command:
                case SendMessage(dst, message):
                    if isinstance(message, Pulled):
                        self.sent[src, dst, max(self.machines[src].published)] += 1
                        self.statements.setdefault((src, message.round), set()).add(attestation_of("swarm", src, message))
                    if self.rng.random() >= self.loss:
                        self.net.append((src, dst, message))
                case VerifyUpdate():
                    self.verifying.append((src, command, cause.round))

    def step(self) -> None:
        """Take one random event."""
        draw, peer = self.rng.random(), self.rng.choice(PEERS)
        m = self.machines[peer]
        if draw < 0.1 and m.phase == "computing":
            if m.publishable(m.round):
                self.send(peer, m.publish(published(peer, m.round), self.now))
            others = [other for other in (*PEERS, *([BYZANTINE] if self.byzantine else [])) if other != peer]
            self.send(peer, m.ask(m.round, self.rng.sample(others, 2), self.now, 1.0))
        elif draw < 0.2 and m.phase == "asking" and m.done:
            m.close()
            assert m.outcomes.keys() == set(m.requested), "every question has one end"
            self.begin(peer, max(m.round + 1, m.behind))
        elif draw < 0.3 and self.verifying:
            asker, call, of = self.verifying.pop(self.rng.randrange(len(self.verifying)))
            before = self.machines[asker].outcomes.get(call.peer)
            self.machines[asker].reply(call, Done(), self.now)
            if before is None and self.machines[asker].outcomes.get(call.peer) == "committed":
                self.used.append((asker, call.peer, of, call.payload))
        elif draw < 0.36:
            self.now += self.rng.random()
            self.send(peer, m.tick(self.now))
        elif draw < 0.4 and self.byzantine:
            self.net.append((BYZANTINE, peer, self.false_message()))
        elif self.net:
            at = self.rng.randrange(len(self.net))
            src, dst, message = self.net[at] if self.rng.random() < self.repeat else self.net.pop(at)
            self.deliver(src, dst, message)

    def false_message(self) -> PulledMessage:
        nonce, claim = self.rng.choice((0, 1, 2**62)), self.rng.choice((0, 3, 2**62))
        return self.rng.choice((Pull(nonce, claim), answer(BYZANTINE, nonce, claim), NotNow(nonce, claim, "early")))

    def deliver(self, src: str, dst: str, message: PulledMessage) -> None:
        if dst == BYZANTINE:
            if isinstance(message, Pull):  # with another vector than it sent to others
                it = published(BYZANTINE, message.round, self.rng.randbytes(4))
                claim = self.rng.choice((message.round, message.round + 1, 2**40))
                self.net.append((BYZANTINE, src, Pulled(message.nonce, claim, INCARNATION, it.digest, it.signature, it.payload)))
            return
        try:
            self.send(dst, self.machines[dst].receive(src, message, self.now), message)
        except RemoteProtocolError as error:
            self.faults.append((dst, error.peer, error.reason))


@pytest.mark.slow
@examples(40)
@given(seed=seeds, loss=st.floats(0, 0.5), repeat=st.floats(0, 0.3), byzantine=st.booleans())
def test_under_any_schedule_no_honest_peer_is_blamed_and_only_true_vectors_are_used(seed, loss, repeat, byzantine):
    world = World(Random(seed), loss, repeat, byzantine)
    for _ in range(1500):
        world.step()
        assert len(world.net) < 1000
    assert {peer for _, peer, _ in world.faults} <= {BYZANTINE}
    assert world.used
    for _asker, teller, of, vector in world.used:
        assert teller == BYZANTINE or vector == published(teller, of).payload
    assert max(world.sent.values(), default=0) <= MAX_ANSWERS
    for kept in world.statements.values():
        assert not any(contradicts(one, other, verify) for one in kept for other in kept)
    world.net.clear()
    for m in world.machines.values():  # rounds end even if the swarm falls silent
        m.tick(world.now + 1000.0)
        assert m.deadline == inf, "no question is open"
    assert min(m.round for m in world.machines.values()) > 2
