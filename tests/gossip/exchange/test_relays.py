"""Forwarded messages: a table of requests, answers and refusals, and whole swarms in which one member sends only to some."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import body, digest
from starling.gossip.exchange.calls import Done, Refused, VerifyEarlier, VerifyUpdate
from starling.gossip.exchange.commands import Fault, SendMessage
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pull import Pulls
from starling.gossip.exchange.relays import AT_ONCE, DEPTH, MAX_QUESTIONS, MAX_RELAYS, Relays
from starling.gossip.wire.schema import Claim, NotNow, Pull, Pulled, Relay, Relayed
from tests.harness.signatures import sign, verify
from tests.strategies import examples

LIAR = "z"


def published(peer: str, round: int) -> Pulled:
    payload = f"{peer} {round}".encode()
    hashed = digest(payload)
    return Pulled(0, round, 5, hashed, sign(peer, body("swarm", peer, 5, round, hashed)), payload)


def relayed(nonce: int, author: str, round: int, signer: str = "") -> Relayed:
    it = published(author, round)
    signature = sign(signer or author, body("swarm", author, 5, round, it.digest))
    return Relayed(nonce, Claim(author, 5, round, it.digest, signature), it.payload)


def machine(me: str = "me", depth: int = DEPTH) -> Pulls:
    return Pulls(
        "swarm",
        LinkDeadlines(Deadline(0.5, 10.0)),
        verify,
        lambda _peer: 5,
        lambda _count, _now: True,
        Relays("swarm", me, verify, depth),
        exact=True,
        kept=8,
    )


def answer(m: Pulls, peer: str, heard: bytes = b"") -> list:
    """Deliver a peer's valid message of the present round; return the further commands."""
    it = msgspec.structs.replace(published(peer, m.round), nonce=m.questions[peer], heard=heard)
    call, *rest = m.receive(peer, it, 0.0)
    assert m.reply(call, Done(), 0.0) == []
    return rest


def began(m: Pulls, round: int, peers: str = "abcz", now: float = 0.0) -> list[SendMessage]:
    """Begin a round; return what is asked for besides its messages."""
    m.compute(round)
    m.publish(published("me", round), now)
    commands = m.ask(round, peers, now)
    assert [(it.peer, it.message.lacks) for it in commands[: len(peers)]] == [(peer, bool(m.relays.missing())) for peer in peers]
    return commands[len(peers) :]


def lacking(depth: int = DEPTH, round: int = 7) -> Pulls:
    """Return a machine that the liar sent nothing in round 6, also not when it was asked for it in round 7."""
    m = machine(depth=depth)
    assert began(m, 6) == []
    for peer in "abc":
        assert answer(m, peer, b"whatever") == []
    m.receive(LIAR, NotNow(m.questions[LIAR], 6, "busy"), 0.0)
    m.close()
    for it in began(m, round):
        assert m.receive(it.peer, NotNow(it.message.nonce, round, "busy"), 0.0) == []
    return m


def asked(commands: list) -> list[tuple[str, int, str]]:
    assert all(isinstance(it, SendMessage) and isinstance(it.message, Relay) for it in commands)
    return [(it.peer, it.message.round, it.message.author) for it in commands]


def test_a_peer_with_another_set_is_asked_for_missing_messages():
    m = lacking()
    assert asked(answer(m, "a", b"12345678")) == [("a", 6, LIAR)]
    assert asked(answer(m, "b", m.relays.digest(7))) == [], "it has what we have"
    assert asked(answer(m, "c", b"")) == [], "it does not say what it has"


def asking_the_author():
    """Return a machine in round 7 that lacks the liar's message of round 6, and the question to it."""
    m = machine()
    began(m, 6)
    for peer in "abc":
        answer(m, peer)
    m.close()
    (question,) = began(m, 7)
    return m, question


def test_an_author_that_was_late_is_asked_for_its_message_in_the_next_round():
    m, it = asking_the_author()
    assert asked([it]) == [(LIAR, 6, LIAR)]
    (call,) = m.receive(LIAR, relayed(it.message.nonce, LIAR, 6), 0.0)
    assert (call.peer, call.round) == (LIAR, 6)
    assert m.reply(call, Done(), 0.0) == []
    assert m.relays.missing() == []


def test_an_author_that_answers_a_round_later_is_not_believed():
    """It could give a message to one member in the last moment, and the others could not get it any more."""
    m, it = asking_the_author()
    for peer in "abcz":
        answer(m, peer)
    m.close()
    assert began(m, 8) == []
    assert m.receive(LIAR, relayed(it.message.nonce, LIAR, 6), 0.0) == []
    assert m.relays.missing() == [(6, LIAR)]


def test_an_author_that_is_no_member_any_more_is_not_asked():
    m = machine()
    began(m, 6)
    m.close()
    assert asked(began(m, 7, "ab")) == [("a", 6, "a"), ("b", 6, "b")]


def test_authors_are_not_asked_a_second_time_and_two_sources_at_most_at_once():
    m = lacking()
    assert asked(answer(m, LIAR, b"12345678")) == []
    assert [asked(answer(m, peer, b"12345678")) for peer in "abc"] == [[("a", 6, LIAR)], [("b", 6, LIAR)], []]
    assert len(m.relays.open) == AT_ONCE
    nonce = next(iter(m.relays.open))
    assert asked(m.receive("a", NotNow(nonce, 7, "late"), 0.0)) == [("c", 6, LIAR)], "the next one"
    assert m.receive("a", NotNow(nonce, 7, "late"), 0.0) == []


def test_nothing_is_requested_if_nothing_is_missing():
    m = machine()
    for round_ in (6, 7):
        began(m, round_)
        assert [answer(m, peer, b"12345678") for peer in "abcz"] == [[]] * 4
        assert m.done
        m.close()


def test_a_forwarded_message_is_verified_stored_and_forwarded():
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    (call,) = m.receive("a", relayed(nonce, LIAR, 6), 0.0)
    assert (call.peer, call.payload, call.round) == (LIAR, b"z 6", 6)
    assert m.relays.wanted("b", Relay(1, 6, LIAR)) is None
    assert m.reply(call, Done(), 0.0) == []
    (given_,) = m.receive("b", Relay(3, 6, LIAR), 0.0)
    assert given_.message == relayed(3, LIAR, 6)
    assert m.relays.missing() == []


@pytest.mark.parametrize("depth", [DEPTH, 1])
def test_rounds_close_after_a_fixed_number_of_later_ones(depth):
    m = lacking(depth)
    for peer in "abcz":
        answer(m, peer)
    m.close()
    for round_ in range(8, 8 + DEPTH):
        assert began(m, round_) == []
        assert m.relays.missing() == [(6, LIAR)] * (round_ <= 6 + depth)
        for peer in "abcz":
            answer(m, peer)
        m.close()
    assert m.relays.rounds.keys() == set(range(7 + DEPTH - depth, 8 + DEPTH))


def test_the_round_waits_the_usual_time_for_forwarded_messages_and_accepts_later_ones():
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    for peer in "bcz":
        answer(m, peer)
    assert not m.done
    assert m.deadline == 0.5
    assert m.tick(m.deadline) == []
    assert m.done
    m.close()
    (call,) = m.receive("a", relayed(nonce, LIAR, 6), 20.0)
    m.reply(call, Done(), 20.0)
    assert m.relays.missing() == []


def test_the_round_waits_until_the_engine_has_verified():
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    for peer in "bcz":
        answer(m, peer)
    (call,) = m.receive("a", relayed(nonce, LIAR, 6), 0.0)
    assert not m.done
    m.reply(call, None, 0.0)
    assert m.done
    assert m.relays.missing() == [(6, LIAR)], "the engine was lost, and the message with it"


@pytest.mark.parametrize("gone", [lambda m: m.unreachable("a", 0.0), lambda m: m.forget("a")])
def test_departed_sources_are_not_waited_for(gone):
    m = lacking()
    answer(m, "a", b"12345678")
    for peer in "bcz":
        answer(m, peer)
    assert not m.done
    gone(m)
    assert m.done


@pytest.mark.parametrize(
    ("it", "reason"),
    [(relayed(0, "b", 6), "wrong_relay"), (relayed(0, LIAR, 5), "wrong_relay"), (relayed(0, LIAR, 6, signer="a"), "bad_signature")],
)
def test_forwarding_an_impossible_message_is_a_fault(it, reason):
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    with pytest.raises(RemoteProtocolError, match=reason):
        m.receive("a", msgspec.structs.replace(it, nonce=nonce), 0.0)
    assert asked(answer(m, "b", b"12345678")) == [("b", 6, LIAR)]


def test_an_invalid_forwarded_message_is_the_forwarder_s_fault():
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    (call,) = m.receive("a", relayed(nonce, LIAR, 6), 0.0)
    assert m.reply(call, Refused("peer", "bad_length"), 0.0) == [Fault("a", "bad_length")]
    assert m.relays.missing() == [(6, LIAR)]


def test_the_second_answer_of_two_sources_is_ignored():
    m = lacking()
    one, other = (answer(m, peer, b"12345678")[0].message.nonce for peer in "ab")
    (call,) = m.receive("a", relayed(one, LIAR, 6), 0.0)
    assert m.receive("b", relayed(other, LIAR, 6), 0.0) == []
    m.reply(call, Done(), 0.0)
    assert m.receive("b", relayed(other, LIAR, 6), 0.0) == []


def test_an_unrequested_message_is_a_fault():
    m = lacking()
    nonce = answer(m, "a", b"12345678")[0].message.nonce
    for peer, number in (("b", nonce), ("a", 10**6)):
        with pytest.raises(RemoteProtocolError, match="answer_unasked"):
            m.receive(peer, relayed(number, LIAR, 6), 0.0)


def test_forwarded_messages_and_requests_per_peer_are_limited():
    m = lacking()
    replies = [m.receive("b", Relay(number, 6, "a"), 0.0)[0].message for number in range(MAX_QUESTIONS)]
    assert sum(isinstance(it, Relayed) for it in replies) == MAX_RELAYS
    assert {it.reason for it in replies[MAX_RELAYS:]} == {"late"}
    assert isinstance(m.receive("c", Relay(0, 6, "a"), 0.0)[0].message, Relayed), "each peer by itself"
    with pytest.raises(RemoteProtocolError, match="asked_too_often"):
        m.receive("b", Relay(99, 6, "a"), 0.0)
    m.close()
    began(m, 8)
    assert isinstance(m.receive("b", Relay(99, 6, "a"), 0.0)[0].message, Relayed)


def test_messages_beyond_the_upload_cap_are_not_forwarded():
    m = lacking()
    m.afford = lambda _count, _now: False
    assert m.receive("b", Relay(1, 6, "a"), 0.0)[0].message == NotNow(1, 7, "busy")


def test_a_withdrawn_message_is_missing():
    """Its author was banned, or restarted, before the round was mixed."""
    m = machine()
    began(m, 6)
    for peer in "abcz":
        answer(m, peer)
    m.forget(LIAR)
    m.close()
    m.forget("a")
    began(m, 7)
    assert m.relays.missing() == [(6, LIAR)]


def test_messages_that_are_not_summed_are_neither_stored_nor_forwarded():
    m = lacking(depth=0)
    assert answer(m, "a", b"12345678") == []
    assert m.receive("b", Relay(1, 6, "a"), 0.0)[0].message == NotNow(1, 7, "late")
    assert m.relays.rounds == {}


def test_a_request_without_missing_messages_is_answered_without_a_digest():
    m = lacking()
    plain, full = (m.receive("a", Pull(number, 7, lacks), 0.0)[0].message for number, lacks in enumerate([False, True]))
    assert (plain.heard, full.heard) == (b"", m.relays.digest(7))


@dataclass
class Swarm:
    """Honest machines and a liar, all in one round; every honest frame arrives.

    Attributes:
        sums: by member, what its engine added up: round -> authors.
        faults: members charged by honest ones.
    """

    names: str
    machines: dict[str, Pulls] = field(init=False)
    sums: dict[str, dict[int, set[str]]] = field(init=False)
    faults: set[str] = field(default_factory=set)
    relays: int = 0

    def __post_init__(self) -> None:
        self.machines = {name: machine(name) for name in (*self.names, LIAR)}
        self.sums = {name: {} for name in self.names}

    def round(self, number: int, told: set[str], heard: bytes, passes_on: str) -> None:
        queue: deque[tuple[str, SendMessage]] = deque()
        for name, m in self.machines.items():
            m.compute(number)
            queue += [(name, it) for it in m.publish(published(name, number), float(number))]
            if name in self.sums:
                self.sums[name][number] = set()
            queue += [(name, it) for it in m.ask(number, {*self.machines} - {name}, float(number))]
        while queue:
            src, it = queue.popleft()
            queue += [
                (it.peer, command)
                for message in (self._bent(it, told, heard, passes_on) if src == LIAR else [it.message])
                for command in self._arrives(src, it.peer, message, number)
            ]
        for name in self.names:
            m = self.machines[name]
            while not m.done:
                m.tick(m.deadline)
            m.close()
        self.machines[LIAR].close()

    def _bent(self, it: SendMessage, told: set[str], heard: bytes, passes_on: str) -> list:
        match it.message:
            case Pulled():
                return [msgspec.structs.replace(it.message, heard=heard)] if it.peer in told else []
            case Relayed() if it.message.claim.peer == LIAR and it.peer not in told:
                return []
            case Relayed():
                return {"it": [it.message], "nothing": [], "another": [relayed(it.message.nonce, "a", 10**3)]}[passes_on]
        return [it.message]

    def _arrives(self, src: str, dst: str, message, number: int) -> list[SendMessage]:
        m, self.relays = self.machines[dst], self.relays + isinstance(message, Relayed)
        try:
            commands = m.receive(src, message, float(number))
        except RemoteProtocolError as error:
            self.faults.add(error.peer)
            return []
        sent = []
        for command in commands:
            if isinstance(command, VerifyUpdate | VerifyEarlier):
                if dst in self.sums:
                    self.sums[dst][command.round if isinstance(command, VerifyEarlier) else number].add(command.peer)
                assert m.reply(command, Done(), float(number)) == []
            else:
                sent.append(command)
        return sent


ROUNDS = st.lists(
    st.tuples(st.sets(st.sampled_from("abcd")), st.sampled_from([b"", b"12345678"]), st.sampled_from(["it", "nothing", "another"])),
    min_size=1,
    max_size=6,
)


@examples(60)
@given(rounds=ROUNDS)
def test_all_members_have_equal_messages_a_round_after_an_omission(rounds):
    """No honest member is blamed, and the liar's messages count if it gave them to anybody, at once or asked for them a round later."""
    swarm = Swarm("abcd")
    for number, (told, heard, passes_on) in enumerate(rounds):
        swarm.round(number, told, heard, passes_on)
        for before in range(number):
            sums = [swarm.sums[name][before] | {name} for name in swarm.names]
            later, _, passed_on = rounds[before + 1]
            afterwards = bool(later) and passed_on == "it"
            if rounds[before][0] or not afterwards or before + 1 < number:
                assert all(each == sums[0] for each in sums)
                assert (LIAR in sums[0]) == (bool(rounds[before][0]) or afterwards)
    assert swarm.faults <= {LIAR}


def test_without_an_omission_nothing_is_forwarded():
    swarm = Swarm("abcd")
    for number in range(4):
        swarm.round(number, set("abcd"), b"", "it")
    assert swarm.relays == 0
