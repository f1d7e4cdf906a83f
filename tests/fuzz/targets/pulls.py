"""The machine of pulled exchanges under any sequence of well-formed messages of three peers, with what the own node does in between."""

from collections import Counter
from collections.abc import Iterator

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import body, digest
from starling.gossip.exchange.calls import Done, VerifyEarlier, VerifyUpdate
from starling.gossip.exchange.commands import Command, SendMessage
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pull import KEPT, MAX_ANSWERS, MAX_DEFERRED, Pulls
from starling.gossip.exchange.relays import AT_ONCE, DEPTH, Relays
from starling.gossip.wire import frames
from starling.gossip.wire.schema import Claim, NotNow, Pull, Pulled, PulledMessage, Relay, Relayed
from tests.fuzz.target import Choices, Target, reason_of
from tests.harness.signatures import sign, verify

LEAD, INCARNATION, FIRST = 4, 7, 1000
PEERS = ("a", "b", "c")
FAULTS = {"asked_too_often", "answer_unasked", "wrong_round", "wrong_relay", "bad_signature"}


class _Node:
    """One node whose peers send arbitrary messages.

    Args:
        choices: decide.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        link_deadlines = LinkDeadlines(Deadline(0.5, 10.0))
        self.machine = Pulls(
            "swarm",
            link_deadlines,
            verify,
            lambda _peer: INCARNATION,
            lambda _count, _now: choices.below(8) < 7,
            Relays("swarm", "me", verify, DEPTH),
            LEAD,
            FIRST,
        )
        self.now = 0.0
        self.verifying: list[VerifyUpdate | VerifyEarlier] = []
        self.sent: Counter[str] = Counter()  # vectors by peer since the last publishing
        self.forgotten: set[str] = set()  # since then: their answers are counted anew
        self.used = self.faults = 0

    def act(self) -> None:
        machine, choices = self.machine, self.choices
        match choices.below(10):
            case 0 | 1 | 2 | 3 | 4:
                self._receive(choices.of(PEERS))
            case 5:
                if machine.phase == "computing":
                    self._round()
                elif machine.done:
                    machine.close()
                    assert machine.outcomes.keys() == set(machine.requested), "every question has one end"
                    machine.compute(max(machine.round + 1, machine.behind))
            case 6 | 7:
                if self.verifying:
                    call = self.verifying.pop(0)
                    open_before = isinstance(call, VerifyUpdate) and call.peer in machine.waiting
                    machine.reply(call, Done(), self.now)
                    self.used += open_before and machine.outcomes.get(call.peer) == "committed"
            case 8:
                self.now += choices.of((0.1, 1.0, 30.0))
                self._do(machine.tick(self.now))
            case _:
                peer = choices.of(PEERS)
                if choices.flag():
                    machine.forget(peer)
                    self.forgotten.add(peer)
                else:
                    machine.unreachable(peer, self.now)

    def _round(self) -> None:
        machine, number = self.machine, self.machine.round
        if machine.publishable(number):
            self.sent.clear()
            self.forgotten.clear()
            self._do(machine.publish(_published("me", number), self.now))
        self._do(machine.ask(number, PEERS[: 1 + self.choices.below(3)], self.now, 1.0))
        self.verifying = [call for call in self.verifying if isinstance(call, VerifyEarlier)]

    def _receive(self, peer: str) -> None:
        message = frames.decode("exchange", peer, frames.encode(self._message(peer)))
        waiting = self.machine.waiting
        try:
            self._do(self.machine.receive(peer, message, self.now))
        except RemoteProtocolError as error:
            reason_of(error, FAULTS, peer)
            assert {*waiting} - {*self.machine.waiting} <= {peer}, "a fault ends the question to that peer and no other"
            self.faults += 1

    def _message(self, peer: str) -> PulledMessage:
        machine, choices = self.machine, self.choices
        nonce = choices.of((machine.questions.get(peer, FIRST), machine.nonce, choices.number()))
        number = min(max(0, machine.round + choices.of((0, 1, -1, LEAD, -LEAD, LEAD + 1, choices.number()))), 2**62)
        match choices.below(6):
            case 0 | 1:
                it = _published(choices.of((peer, peer, peer, "another")), number)
                return Pulled(
                    nonce,
                    number,
                    choices.of((INCARNATION, INCARNATION, 0)),
                    it.digest,
                    it.signature,
                    it.payload,
                    choices.of((b"", b"other")),
                )
            case 2:
                return Pull(choices.number(), number, choices.flag())
            case 3:
                return Relay(nonce, number, choices.of((*PEERS, "me")))
            case 4:
                asked = [(number, it) for number, it in machine.relays.open.items() if it.peer == peer]
                nonce, wanted = choices.of(asked) if asked and choices.flag() else (nonce, None)
                author, of = (choices.of(PEERS), number) if wanted is None else (wanted.author, wanted.round)
                it = _published(choices.of((author, author, "another")), of)
                return Relayed(nonce, Claim(author, INCARNATION, of, it.digest, it.signature), it.payload)
            case _:
                return NotNow(nonce, number, choices.of(("wait", "early", "late", "busy")))

    def _do(self, commands: list[Command] | list[SendMessage]) -> None:
        machine = self.machine
        for command in commands:
            if isinstance(command, VerifyUpdate | VerifyEarlier):
                self.verifying.append(command)
                if isinstance(command, VerifyUpdate):
                    assert command.peer in machine.waiting
                else:
                    assert machine.round - DEPTH <= command.round < machine.round
                continue
            assert frames.decode("exchange", "me", frames.encode(command.message)) == command.message
            if isinstance(command.message, Pulled):
                self.sent[command.peer] += 1
                assert self.sent[command.peer] <= MAX_ANSWERS or command.peer in self.forgotten
                assert command.message.payload == _published("me", command.message.round).payload
        assert len(commands) <= len(PEERS) * (1 + DEPTH), "a message costs little"
        assert len(machine.relays.rounds) <= DEPTH + 1
        assert len(machine.relays.open) <= AT_ONCE * DEPTH * len(PEERS)
        assert machine.deferred <= MAX_DEFERRED
        assert len(machine.published) <= KEPT
        now = [call for call in self.verifying if isinstance(call, VerifyUpdate)]
        assert len(now) <= len(PEERS), "the engine looks at one vector of a peer"


def _published(peer: str, number: int) -> Pulled:
    payload = f"{peer} {number}".encode()
    hashed = digest(payload)
    return Pulled(0, number, INCARNATION, hashed, sign(peer, body("swarm", peer, INCARNATION, number, hashed)), payload)


def _pulls(data: bytes) -> bool:
    """Events in sequence. Accepted if a vector was used and no peer committed a fault."""
    choices = Choices(data)
    node = _Node(choices)
    while choices:
        node.act()
    return node.used > 0 and not node.faults


def _seeds() -> Iterator[bytes]:
    ask, afford, judge, close, late = bytes([5, 0]), bytes([0]), bytes([6]), bytes([5]), bytes([8, 2])
    question, answer, wait = _said(2, 0, 1, 0), _said(0, 0, 0, 0), _said(5, 0)
    yield question + bytes([5]) + afford + bytes([0]) + answer + judge
    yield ask + wait + answer + judge + close + ask + question + afford + answer + judge + late


def _said(*message: int) -> bytes:
    """Return peer a's answer about our round to our question: kind of the message, and its other fields."""
    return bytes([0, 0, 0, 0, 0, 0, 0, 0, *message])


PULLS = Target(_pulls, _seeds, most_bytes=1024, reach=60)
