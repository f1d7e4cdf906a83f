"""State machines under any sequence of well-formed messages, with what the own node does in between."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.calls import Answer, Apply, Commit, Drop, EdgeCall, Offer, Revoke, Settle
from starling.gossip.exchange.commands import EdgeCommand, Ended, Requested, SendMessage, Solicited
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.edge_rules import MAX_INC
from starling.gossip.membership import events
from starling.gossip.membership.detector import Detector
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList
from starling.gossip.wire import frames
from starling.gossip.wire.schema import (
    Ack,
    Acknowledge,
    Busy,
    Close,
    Closed,
    Control,
    Exchange,
    Farewell,
    Hello,
    Probe,
    ProbeFor,
    Record,
    Request,
    Reset,
    Response,
    Rumor,
    Solicit,
    Spread,
    Sync,
)
from tests.fuzz.target import Choices, Target, reason_of
from tests.harness import detectors as membership_swarm

VIEW = b"view-digest"
FAULTS = {
    "incarnation_too_large", "wrong_role", "request_malformed", "proof_of_nothing", "answer_unasked", "closed_unasked",
}  # fmt: skip


# --- edges ----------------------------------------------------------------------------------------------------


class _End:
    """One end of an edge, its engine as the numbers of what it keeps, and a peer who sends what it likes.

    Args:
        choices: decide.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        me, peer = ("a", "b") if choices.flag() else ("b", "a")
        self.edge = Edge(me, peer, choices.of((5, 2**40, 0, MAX_INC - 1)))
        self.engine: deque[EdgeCall] = deque([Revoke(peer)])
        self.offers: set[tuple[int, int]] = set()
        self.answers: set[tuple[int, int]] = set()
        self.moved: set[tuple[int, int]] = set()  # in the flow of this life
        self.faults = 0

    def act(self) -> None:
        """One thing happens."""
        edge, choices = self.edge, self.choices
        match choices.below(12):
            case 0 | 1 | 2 | 3 | 4:
                self._hear(self._message())
            case 5 | 6 | 7:
                if self.engine:
                    self._work(self.engine.popleft(), willing=choices.below(4) > 0)
            case 8:
                if edge.ready:
                    self._do(edge.begin(choices.below(4), VIEW, 0.5))
                elif not edge.initiator:
                    self._do(edge.solicit(choices.below(4), VIEW))
            case 9:
                seq = edge.pending.seq if edge.pending is not None else choices.below(3)
                accept = choices.flag()
                self._do(edge.accept(edge.inc, seq) if accept else edge.refuse(edge.inc, seq, "busy", 3))
            case 10:
                match choices.below(3):
                    case 0:
                        self._do(edge.abort("timeout", "deadline"))
                    case 1:
                        self._do(edge.retry())
                    case _:
                        self._do(edge.refuse_solicit("late", 3))
            case _:
                self._do(edge.close() if choices.flag() else edge.reset(choices.number(MAX_INC - 1)))

    def _hear(self, message: Exchange) -> None:
        message = frames.decode("exchange", "peer", frames.encode(message))
        before = copy.copy(self.edge)
        try:
            commands = self.edge.receive(message)
        except RemoteProtocolError as error:
            reason_of(error, FAULTS, self.edge.peer)
            assert self.edge == before, "a fault changes nothing"
            self.faults += 1
            return
        assert sum(isinstance(command, Offer | Apply | Requested) for command in commands) <= 1, (
            "a message costs one vector"
        )
        assert sum(isinstance(command, SendMessage) for command in commands) <= 2
        self._do(commands)

    def _message(self) -> Exchange:
        choices = self.choices
        inc, seq, proof = self._inc(), self._seq(), self._seq()
        match choices.below(8):
            case 0:
                return Request(
                    inc, seq, proof, choices.number(), VIEW, choices.of((0.5, 0.0, 1.0)), 0.25, choices.piece()
                )
            case 1:
                return Response(inc, seq, choices.piece())
            case 2:
                return Ack(inc, seq)
            case 3:
                return Busy(inc, choices.of((seq, 0)), choices.of(("late", "busy", "engine")), choices.number())
            case 4:
                return Solicit(inc, choices.number(), VIEW)
            case 5:
                return Reset(inc)
            case 6:
                return Close(inc, proof)
            case _:
                return Closed(inc, proof)

    def _inc(self) -> int:
        settled = self.edge.settled[0] if self.edge.settled is not None else self.edge.inc
        near = (self.edge.inc, self.edge.inc + 1, self.edge.inc + 2, self.edge.inc - 1, settled)
        return min(max(0, self.choices.of((*near, self.choices.number()))), 2**62)

    def _seq(self) -> int:
        edge = self.edge
        pending = edge.pending.seq if edge.pending is not None else 1
        near = (edge.next_seq - 1, edge.next_seq, edge.committed, edge.last_seen, edge.last_seen + 1, pending)
        return min(max(0, self.choices.of((*near, self.choices.number()))), 2**62)

    def _do(self, commands: list[EdgeCommand]) -> None:
        for command in commands:
            match command:
                case SendMessage(_, message):
                    sent = frames.decode("exchange", "peer", frames.encode(message))
                    assert sent == message
                    assert not isinstance(message, Response | Solicit) or not self.edge.initiator
                    assert not isinstance(message, Request | Ack) or self.edge.initiator
                case Requested() | Solicited() | Ended():
                    pass
                case _:
                    self.engine.append(command)
        edge = self.edge
        assert edge.committed < edge.next_seq or not edge.initiator
        assert edge.committed <= edge.last_seen or edge.initiator
        assert edge.outstanding is None or edge.initiator
        assert edge.pending is None or not edge.initiator

    def _work(self, command: EdgeCall, *, willing: bool) -> None:
        edge = self.edge
        match command:
            case Offer(_, inc, seq):
                if willing:
                    self.offers.add((inc, seq))
                self._do(edge.offered(inc, seq, b"values", 1.0) if willing else edge.failed(inc, seq, "refused"))
            case Answer(_, inc, seq):
                key = inc, seq
                if willing:
                    self.answers.add(key)
                self._do(edge.answered(*key, b"difference") if willing else edge.failed(*key, "refused"))
            case Apply(_, inc, seq):
                assert (inc, seq) in self.offers, "what is applied was offered, and once"
                if willing:
                    self.offers.remove((inc, seq))
                    self._move((inc, seq))
                self._do(edge.applied(inc, seq) if willing else edge.failed(inc, seq, "bad_code"))
            case Commit(_, inc, seq):
                assert (inc, seq) in self.answers, "what is committed was answered, and once"
                self.answers.remove((inc, seq))
                self._move((inc, seq))
            case Drop(_, inc, seq):
                self.offers.discard((inc, seq))
                self.answers.discard((inc, seq))
            case Revoke() | Settle():
                self.offers.clear()
                self.answers.clear()
                self.moved.clear()

    def _move(self, key: tuple[int, int]) -> None:
        assert key not in self.moved, "no transaction counts twice"
        self.moved.add(key)


def _edge(data: bytes) -> bool:
    """Acts one after the other. Accepted if something was exchanged with a peer that committed no fault."""
    choices = Choices(data)
    end, moved = _End(choices), False
    while choices:
        end.act()
        moved = moved or bool(end.moved)
    return moved and not end.faults


def _edges() -> Iterator[bytes]:
    begin, work, accept, reset = bytes([8, 0]), bytes([5, 1]), bytes([9, 1]), _heard(0, 0, 5)
    yield bytes([1, 0]) + work + begin + reset + work + _heard(0, 0, 1, 1, 7) + work
    yield bytes([0, 0]) + work + reset + _heard(4, 2, 0, 0, 0, 0, 1, 7) + accept + work + _heard(5, 0, 2) + work


def _heard(seq: int, proof: int, *message: int) -> bytes:
    """A message of our incarnation; `seq` and `proof` are numbers in `_End._seq`, then its kind and its other fields."""
    return bytes([0, 0, 0, 0, 0, 0, seq, 0, 0, proof, *message])


EDGE = Target(_edge, _edges, most_bytes=1024, reach=140)


# --- membership -----------------------------------------------------------------------------------------------

PEERS = tuple(f"p{number}" for number in range(12))
ME = "p5"
OTHERS = tuple(peer for peer in PEERS if peer != ME)  # connections are authenticated: nobody comes as us
MOST_MEMBERS = 8


class _Member:
    """One member among many, all of whom may lie; `p5` itself lived before.

    Args:
        choices: decide.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 100.0
        view = MemberList(membership_swarm.verify, max_members=MOST_MEMBERS, tombstone_s=30.0)
        own = membership_swarm.record(ME, incarnation=1000)
        self.core = Detector(
            LocalRecord(own, membership_swarm.sign), view, membership_swarm.TIMING, 7, lambda t: t, self.now
        )
        self.faults = 0

    def act(self) -> None:
        """One thing happens."""
        core, choices = self.core, self.choices
        match choices.below(16):
            case 0 | 1:
                self.now += choices.of((0.0, 0.01, 0.3, 1.0, 10.0, 100.0))
            case 2:
                self.now = max(self.now, min(core.deadline, self.now + 10.0))
                self._do(core.tick(self.now))
                assert core.deadline > self.now or core.stopped, "the clockwork moves on"
            case 3:
                self._do(core.connection_lost(choices.of(OTHERS), self.now))
            case 4:
                self._do(core.update_addresses((f"/a{choices.below(9)}",), self.now))
            case 5:
                self._do(core.greet(choices.of(OTHERS), self.now))
            case _:
                self._hear(choices.of(OTHERS), self._message())

    def _hear(self, peer: str, message: Control) -> None:
        message = frames.decode("control", peer, frames.encode(message))
        before = repr(self.core)
        try:
            outputs = self.core.receive(peer, message, self.now)
        except RemoteProtocolError as error:
            reason_of(error, {"record_of_another", "foreign_swarm", "record_forged", "rumor_of_another"}, peer)
            assert repr(self.core) == before, "a fault changes nothing"
            self.faults += 1
            return
        sent = [output for output in outputs if isinstance(output, events.Send)]
        assert len(sent) <= 6 * MOST_MEMBERS, "a message is no amplifier"
        assert not any(isinstance(output, events.Died) and output.peer == ME for output in outputs)
        self._do(outputs)

    def _do(self, outputs: list[events.Output]) -> None:
        for output in outputs:
            if isinstance(output, events.Send):
                assert output.peer != ME, "nobody talks to himself"
                frame = frames.encode(output.message)
                assert frames.decode("control", ME, frame) == output.message, "what we say can be understood"
        view = self.core.member_list
        assert len(view.members) <= MOST_MEMBERS
        assert ME in view.alive or self.core.stopped
        assert membership_swarm.verify(self.core.own)
        assert view.members[ME].record == self.core.own
        assert self.core._probes.relays <= 64
        assert view.alive == tuple(sorted(view.alive))

    def _message(self) -> Control:
        choices = self.choices
        view = choices.of((self.core.member_list.digest, b"other-digest"))
        match choices.below(7):
            case 0:
                return Hello(self._record(), view, 3.0)
            case 1:
                return Probe(choices.below(4), view, 3.0, self._rumors())
            case 2:
                return Acknowledge(choices.below(4), view, -1e12, choices.of(("", *PEERS)), self._rumors())
            case 3:
                return ProbeFor(choices.number(), choices.of(PEERS))
            case 4:
                return Spread(self._records(), self._rumors())
            case 5:
                return Sync(self._records(), choices.flag())
            case _:
                return Farewell(self._record())

    def _records(self) -> tuple[Record, ...]:
        return tuple(self._record() for _ in range(self.choices.below(5)))

    def _record(self) -> Record:
        choices = self.choices
        peer, status = choices.of(PEERS), choices.of(("alive", "left"))
        most = 2000 if peer == ME else 2**62  # of ourselves there are only records that we signed once
        record = membership_swarm.record(
            peer, choices.number(most), choices.number(most), status, [f"/{choices.below(3)}"]
        )
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
    """Acts one after the other. Accepted if somebody was met and nobody committed a fault."""
    choices = Choices(data)
    member = _Member(choices)
    while choices:
        member.act()
    return len(member.core.member_list.alive) > 1 and not member.faults


def _members() -> Iterator[bytes]:
    hello = bytes([8, 1, 0, 0, 1, 0, 1, 1, 1, 2, 0, 0])
    yield hello
    yield hello + bytes([2]) * 5 + bytes([8, 1, 0, 1, 0, 0])
    yield (
        b"".join(bytes([8, peer, 0, 0, peer, 0, 1, 1, 1, 2, 0, 0]) for peer in range(4)) + bytes([1, 3, 2, 1, 4, 2]) * 4
    )


MEMBER = Target(_member, _members, most_bytes=1024, reach=155)
