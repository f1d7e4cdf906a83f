"""State machines under any sequence of well-formed messages, with events of the own node in between."""

import copy

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.calls import Apply, Offer
from starling.gossip.exchange.commands import EdgeCommand, SendMessage
from starling.gossip.exchange.edge_rules import BROKEN, MAX_INC
from starling.gossip.membership import table
from starling.gossip.membership.detector import Detector
from starling.gossip.membership.events import Died, Output, Send
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.probes import MAX_RELAYS
from starling.gossip.wire import frames, schema
from starling.gossip.wire.schema import Record, Request, Response, Rumor
from tests.fuzz.target import Choices, Target, reason_of
from tests.harness import detectors
from tests.harness.edge_model import VIEW, End

FAULTS = {"incarnation_too_large", "wrong_role", "request_malformed", "proof_of_nothing", "answer_unasked", "closed_unasked"}


class _Draws:
    """Choices as the generator of a model: 0 after their end."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def random(self) -> float:
        return self._choices.below(256) / 256

    def randrange(self, first: int, last: int) -> int:
        return first + self._choices.number(last - first - 1)

    def randint(self, first: int, last: int) -> int:
        return self.randrange(first, last + 1)


class _End(End):
    """One end of an edge, whose peer sends arbitrary messages."""

    def __init__(self, choices: Choices) -> None:
        me, peer = ("a", "b") if choices.flag() else ("b", "a")
        super().__init__(me, peer, _Draws(choices), [])
        self.choices, self.faults, self.moved = choices, 0, False
        self.edge.inc = choices.of((5, 2**40, 0, MAX_INC - 1))

    def act(self) -> None:
        edge, choices = self.edge, self.choices
        match choices.below(12):
            case 0 | 1 | 2 | 3 | 4:
                self._receive(self._message())
            case 5 | 6 | 7:
                if self.engine:
                    self.work()
                    self.moved = self.moved or bool(self.ledger.done)
            case 8:
                self.begin()
            case 9:
                seq = edge.pending.seq if edge.pending is not None else choices.below(3)
                self.do(edge.accept(edge.inc, seq) if choices.flag() else edge.refuse(edge.inc, seq, "busy", 3))
            case 10:
                acts = (lambda: edge.abort("timeout", "deadline"), edge.retry, lambda: edge.refuse_solicit("late", 3))
                self.do(choices.of(acts)())
            case _:
                self.do(edge.close() if choices.flag() else edge.reset(choices.number(MAX_INC - 1)))

    def do(self, commands: list[EdgeCommand]) -> None:
        super().do(commands)
        edge, sent = self.edge, [message for _, message in self.net]
        assert not any(isinstance(message, Response | schema.Solicit) for message in sent) or not edge.initiator
        assert not any(isinstance(message, Request | schema.Ack) for message in sent) or edge.initiator
        self.net.clear()
        assert edge.committed < edge.next_seq or not edge.initiator
        assert edge.committed <= edge.last_seen or edge.initiator
        assert edge.outstanding is None or edge.initiator
        assert edge.pending is None or not edge.initiator

    def _receive(self, message: schema.PairwiseMessage) -> None:
        message = frames.decode("exchange", "peer", frames.encode(message))
        before = copy.copy(self.edge)
        if broken := BROKEN[type(message)](message, self.edge.end):
            reason_of(RemoteProtocolError(self.edge.peer, broken), FAULTS, self.edge.peer)
            assert self.edge == before, "a fault changes nothing"
            self.faults += 1
            return
        commands = self.edge.receive(message)
        assert sum(isinstance(it, Offer | Apply | Request) for it in commands) <= 1, "a message costs one vector"
        assert sum(isinstance(it, SendMessage) for it in commands) <= 2
        self.do(commands)

    def _message(self) -> schema.PairwiseMessage:
        choices, edge = self.choices, self.edge
        settled = edge.settled[0] if edge.settled is not None else edge.inc
        inc = self._near(edge.inc, edge.inc + 1, edge.inc + 2, edge.inc - 1, settled)
        pending = edge.pending.seq if edge.pending is not None else 1
        seqs = edge.next_seq - 1, edge.next_seq, edge.committed, edge.last_seen, edge.last_seen + 1, pending
        seq, proof = self._near(*seqs), self._near(*seqs)
        match choices.below(8):
            case 0:
                theta = choices.of((0.5, 0.0, 1.0))
                return Request(inc, seq, proof, choices.number(), VIEW, theta, 0.25, choices.piece())
            case 1:
                return Response(inc, seq, b"%d" % choices.below(99))
            case 2:
                return schema.Ack(inc, seq)
            case 3:
                reason = choices.of(("late", "busy", "engine"))
                return schema.Busy(inc, choices.of((seq, 0)), reason, choices.number())
            case 4:
                return schema.Solicit(inc, choices.number(), VIEW)
            case 5:
                return schema.Reset(inc)
            case 6:
                return schema.Close(inc, proof)
            case _:
                return schema.Closed(inc, proof)

    def _near(self, *numbers: int) -> int:
        return min(max(0, self.choices.of((*numbers, self.choices.number()))), 2**62)


def _edge(data: bytes) -> bool:
    """Events in sequence. Accepted if a transaction was committed with a peer that committed no fault."""
    choices = Choices(data)
    end = _End(choices)
    while choices:
        end.act()
    return end.moved and not end.faults


def _edges() -> list[bytes]:
    work, reset = bytes([5, 255]), _message(0, 0, 5)
    initiator = bytes([1, 0, 0, 0]) + work + bytes([8]) + reset + work + _message(0, 0, 1, 7) + work
    request = _message(4, 2, 0, 0, 0, 0, 1, 7) + bytes([0])
    responder = bytes([0, 0, 0, 0]) + work + reset + request + work + bytes([0, 0]) + _message(5, 0, 2) + work
    return [initiator, responder]


def _message(seq: int, proof: int, *message: int) -> bytes:
    """A message of our incarnation; `seq` and `proof` are positions in `_End._message`, then its kind and its other fields."""
    return bytes([0, 0, 0, 0, 0, 0, seq, 0, 0, proof, *message])


EDGE = Target(_edge, _edges, most_bytes=1024, reach=140)


PEERS = tuple(f"p{number}" for number in range(12))
ME = "p5"
OTHERS = tuple(peer for peer in PEERS if peer != ME)
MOST_MEMBERS = 8
MEMBER_FAULTS = {"record_of_another", "foreign_swarm", "record_forged", "rumor_of_another", "comparison_malformed"}


class _Member:
    """One member among Byzantine ones; it had an earlier incarnation."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 100.0
        view = MemberList(detectors.verify, detectors.OpenGate(), max_members=MOST_MEMBERS, tombstone_s=30.0)
        local = LocalRecord(detectors.record(ME, incarnation=1000), detectors.sign)
        self.core = Detector(local, view, detectors.TIMING, 7, lambda t: t, self.now)
        self.faults = 0

    def act(self) -> None:
        core, choices = self.core, self.choices
        match choices.below(16):
            case 0 | 1:
                self.now += choices.of((0.0, 0.01, 0.3, 1.0, 10.0, 100.0))
            case 2:
                self.now = max(self.now, min(core.deadline, self.now + 10.0))
                self._do(core.tick(self.now))
                assert core.deadline > self.now or core.stopped, "timers move on"
            case 3:
                self._do(core.connection_lost(choices.of(OTHERS), self.now))
            case 4:
                self._do(core.update(self.now, addresses=(f"/a{choices.below(9)}",)))
            case 5:
                self._do(core.greet(choices.of(OTHERS), self.now))
            case _:
                self._receive(choices.of(OTHERS), self._message())

    def _receive(self, peer: str, message: schema.Control) -> None:
        message = frames.decode("control", peer, frames.encode(message))
        before = repr(self.core)
        try:
            outputs = self.core.receive(peer, message, self.now)
        except RemoteProtocolError as error:
            reason_of(error, MEMBER_FAULTS, peer)
            assert repr(self.core) == before, "a fault changes nothing"
            self.faults += 1
            return
        sent = [output for output in outputs if isinstance(output, Send)]
        assert len(sent) <= 6 * MOST_MEMBERS, "a message is no amplifier"
        assert not any(isinstance(output, Died) and output.peer == ME for output in outputs)
        self._do(outputs)

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                assert output.peer != ME, "no message to ourselves"
                frame = frames.encode(output.message)
                assert frames.decode("control", ME, frame) == output.message, "our messages are valid"
        view = self.core.member_list
        assert len(view.members) <= MOST_MEMBERS
        assert ME in view.alive or self.core.stopped
        assert detectors.verify(self.core.own)
        assert view.members[ME].record == self.core.own
        assert self.core.prober.probes.relayed <= MAX_RELAYS
        assert view.alive == tuple(sorted(view.alive))

    def _message(self) -> schema.Control:
        choices = self.choices
        view = choices.of((self.core.member_list.digest, b"other-digest"))
        match choices.below(9):
            case 0:
                return schema.Hello(self._record(), view, 3.0)
            case 1:
                return schema.Probe(choices.below(4), view, 3.0, self._rumors())
            case 2:
                return schema.Acknowledge(choices.below(4), view, -1e12, choices.of(("", *PEERS)), self._rumors())
            case 3:
                return schema.ProbeFor(choices.number(), choices.of(PEERS))
            case 4:
                return schema.Spread(self._records(), self._rumors())
            case 5:
                return schema.Sync(self._records())
            case 6:
                return self._comparison()
            case 7:
                return schema.Want((table.key_of(choices.of(PEERS)),))
            case _:
                return schema.Farewell(self._record())

    def _comparison(self) -> schema.Compare:
        choices = self.choices
        other = table.Table((table.entry_of(record), record.peer) for record in self._records())
        if choices.flag():
            return other.first_message(differs=choices.flag())
        leaf = schema.Leaf(choices.of(("", "0", "00")), choices.of((b"", b"half an entry", bytes(16))))
        return schema.Compare((schema.Branch(choices.of(("", "f")), bytes(16)),), (leaf,))

    def _records(self) -> tuple[Record, ...]:
        return tuple(self._record() for _ in range(self.choices.below(5)))

    def _record(self) -> Record:
        choices = self.choices
        peer, status = choices.of(PEERS), choices.of(("alive", "left"))
        most = 2000 if peer == ME else 2**62  # of this node there are only records it has signed
        record = detectors.record(peer, choices.number(most), choices.number(most), status, [f"/{choices.below(3)}"])
        match choices.below(12):
            case 10:
                return Record(peer, "another", 1, 1, "alive", (), record.signature)
            case 11:
                return Record(peer, record.swarm, 1, 1, "alive", (), b"forged")
            case _:
                return record

    def _rumors(self) -> tuple[Rumor, ...]:
        choices = self.choices
        rumors = []
        for _ in range(choices.below(4)):
            peer = choices.of(PEERS)
            member = self.core.member_list.members.get(peer)
            incarnation, version = (1, 0) if member is None else (member.record.incarnation, member.record.version)
            if choices.below(4) == 3:
                incarnation, version = choices.number(), choices.number()
            rumors.append(Rumor(peer, incarnation, version, choices.of(("suspect", "dead")), choices.of(PEERS)))
        return tuple(rumors)


def _member(data: bytes) -> bool:
    """Events in sequence. Accepted if a member joined and no peer committed a fault."""
    choices = Choices(data)
    member = _Member(choices)
    while choices:
        member.act()
    return len(member.core.member_list.alive) > 1 and not member.faults


def _members() -> list[bytes]:
    hello = [bytes([8, peer, 0, 0, peer, 0, 1, 1, 1, 2, 0, 0]) for peer in range(4)]
    ticks = bytes([2]) * 5 + bytes([8, 1, 0, 1, 0, 0])
    return [hello[1], hello[1] + ticks, b"".join(hello) + bytes([1, 3, 2, 1, 4, 2]) * 4]


MEMBER = Target(_member, _members, most_bytes=1024, reach=155)
