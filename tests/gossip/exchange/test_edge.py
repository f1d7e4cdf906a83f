"""One edge as a table of (state, event) -> commands. Its invariants are in test_edge_properties."""

import dataclasses

import pytest

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.calls import Answer, Answered, Apply, Commit, Drop, Offer, Offered, Revoke, Settle
from starling.gossip.exchange.commands import Ended, SendMessage
from starling.gossip.exchange.edge import MAX_COPIES, Edge
from starling.gossip.exchange.edge_rules import MAX_INC
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pace import Rounds
from starling.gossip.exchange.pairwise import Pairwise
from starling.gossip.wire.schema import Ack, Busy, Check, Close, Closed, Request, Reset, Response, Solicit

INC = 100
VIEW = b"view-digest"


def req(seq: int, committed: int = 0, inc: int = INC, theta: float = 0.5) -> Request:
    return Request(inc, seq, committed, 7, VIEW, theta, 1.0, b"mine")


def initiator(phase: str = "idle") -> Edge:
    """Return an initiator after 2 committed transactions, with the third in `phase`."""
    edge = Edge("a", "b", INC, known=True, agreed=True, committed=2, next_seq=3)
    if phase != "idle":
        edge.begin(7, VIEW, 0.5)
    if phase in {"asking", "applying"}:
        edge.offered(INC, 3, Offered(b"mine", 1.0))
    if phase == "applying":
        edge.receive(Response(INC, 3, b"diff"))
    return edge


def responder(phase: str = "idle") -> Edge:
    """Return a responder after 2 committed transactions, with the third in `phase`."""
    edge = Edge("b", "a", INC, known=True, agreed=True, committed=2, last_seen=2)
    if phase != "idle":
        edge.receive(req(3, 2))
    if phase in {"answering", "answered"}:
        edge.accept(INC, 3)
    if phase == "answered":
        edge.answered(INC, 3, Answered(b"diff"))
    return edge


def ended(outcome: str, reason: str, role: str, seq: int = 3, size: int = 0) -> Ended:
    return Ended("b" if role == "initiator" else "a", 7, seq, outcome, reason, role, size)


INITIATOR = [
    ("idle", lambda e: e.begin(7, VIEW, 0.5), [Offer("b", INC, 3, 7, 0.5)]),
    ("offering", lambda e: e.offered(INC, 3, Offered(b"mine", 1.0)), [SendMessage("b", req(3, 2))]),
    ("offering", lambda e: e.offered(INC, 2, Offered(b"mine", 1.0)), []),
    ("offering", lambda e: e.offered(INC - 2, 3, Offered(b"mine", 1.0)), []),
    ("offering", lambda e: e.failed(INC, 3, "engine"), [ended("aborted", "engine", "initiator")]),
    ("offering", lambda e: e.abort("timeout", "deadline"), [Drop("b", INC, 3), ended("timeout", "deadline", "initiator")]),
    ("offering", lambda e: e.receive(Response(INC, 3, b"diff")), []),
    ("offering", lambda e: e.retry(), []),
    ("asking", lambda e: e.retry(), [SendMessage("b", Check(INC, 3, 1))]),
    ("asking", lambda e: e.receive(Check(INC, 3, 1)), [SendMessage("b", Check(INC, 3, 1, lost=True))]),
    ("asking", lambda e: e.receive(Check(INC, 3, 1, lost=True)), [SendMessage("b", req(3, 2))]),
    ("asking", lambda e: e.receive(Check(INC, 3, 2, lost=True)), []),
    ("asking", lambda e: e.receive(Check(INC, 2, 1)), [SendMessage("b", Ack(INC, 2))]),
    ("asking", lambda e: e.receive(Check(INC, 1, 1)), []),
    ("offering", lambda e: e.receive(Check(INC, 3, 1, lost=True)), []),
    ("applying", lambda e: e.receive(Check(INC, 3, 1)), []),
    ("idle", lambda e: e.receive(Check(INC, 2, 1)), [SendMessage("b", Ack(INC, 2))]),
    ("idle", lambda e: e.receive(Check(INC, 2, 1, lost=True)), []),
    ("asking", lambda e: e.receive(Response(INC, 3, b"diff")), [Apply("b", INC, 3, b"diff")]),
    ("asking", lambda e: e.receive(Response(INC, 2, b"diff")), [SendMessage("b", Ack(INC, 2))]),
    ("asking", lambda e: e.receive(Response(INC, 1, b"diff")), []),
    ("asking", lambda e: e.receive(Busy(INC, 3, "late", 9)), [Drop("b", INC, 3), ended("busy", "late", "initiator")]),
    ("asking", lambda e: e.receive(Busy(INC, 2, "late", 9)), []),
    ("asking", lambda e: e.abort("timeout", "deadline"), [Drop("b", INC, 3), ended("timeout", "deadline", "initiator")]),
    ("asking", lambda e: e.receive(Solicit(INC, 8, VIEW)), [Solicit(INC, 8, VIEW)]),
    ("asking", lambda e: e.receive(Reset(INC)), []),
    ("asking", lambda e: e.receive(Reset(INC - 5)), [SendMessage("b", Reset(INC))]),
    ("asking", lambda e: e.receive(Reset(INC + 5)), [Revoke("b"), ended("aborted", "reset", "initiator")]),
    ("asking", lambda e: e.reset(5), [Revoke("b"), ended("aborted", "reset", "initiator")]),
    ("asking", lambda e: e.close(), [Drop("b", INC, 3), ended("aborted", "closing", "initiator"), SendMessage("b", Close(INC, 2))]),
    (
        "asking",
        lambda e: e.receive(Close(INC, 1)),
        [Drop("b", INC, 3), ended("aborted", "closing", "initiator"), Settle("b"), SendMessage("b", Closed(INC, 2))],
    ),
    ("applying", lambda e: e.receive(Response(INC, 3, b"diff")), []),
    ("applying", lambda e: e.applied(INC, 3), [SendMessage("b", Ack(INC, 3)), ended("committed", "", "initiator", size=4)]),
    ("applying", lambda e: e.applied(INC - 2, 3), []),
    ("applying", lambda e: e.failed(INC, 3, "refused"), [Drop("b", INC, 3), ended("aborted", "refused", "initiator")]),
    ("applying", lambda e: e.abort("timeout", "deadline"), []),
    ("applying", lambda e: e.receive(Busy(INC, 3, "busy", 9)), []),
    ("applying", lambda e: e.retry(), []),
    ("applying", lambda e: e.close(), []),
    ("applying", lambda e: e.receive(Close(INC, 2)), []),
    ("idle", lambda e: e.close(), [SendMessage("b", Close(INC, 2))]),
    ("idle", lambda e: e.receive(Response(INC, 2, b"diff")), [SendMessage("b", Ack(INC, 2))]),
    ("idle", lambda e: e.refuse_solicit("late", 9), [SendMessage("b", Busy(INC, 0, "late", 9))]),
    ("idle", lambda e: e.retry(), []),
]

RESPONDER = [
    ("idle", lambda e: e.receive(req(3, 2)), [req(3, 2)]),
    ("idle", lambda e: e.receive(req(2, 1)), []),
    ("idle", lambda e: e.receive(Ack(INC, 2)), []),
    ("idle", lambda e: e.receive(Reset(INC)), [SendMessage("a", Reset(INC))]),
    ("idle", lambda e: e.receive(req(9, 0, INC - 1)), [SendMessage("a", Reset(INC))]),
    ("idle", lambda e: e.receive(req(1, 0, INC + 9)), [Revoke("a"), req(1, 0, INC + 9)]),
    ("idle", lambda e: e.receive(Close(INC, 2)), [Settle("a"), SendMessage("a", Closed(INC, 2))]),
    ("idle", lambda e: e.solicit(7, VIEW), [SendMessage("a", Solicit(INC, 7, VIEW))]),
    ("asked", lambda e: e.accept(INC, 3), [Answer("a", INC, 3, 7, 0.5, 1.0, b"mine")]),
    ("asked", lambda e: e.accept(INC, 2), []),
    ("asked", lambda e: e.refuse(INC, 3, "view", 9), [SendMessage("a", Busy(INC, 3, "view", 9)), ended("busy", "view", "responder")]),
    ("asked", lambda e: e.refuse(INC, 4, "view", 9), []),
    ("asked", lambda e: e.receive(req(3, 2)), []),
    ("asked", lambda e: e.receive(req(4, 2)), [ended("aborted", "superseded", "responder"), req(4, 2)]),
    ("asked", lambda e: e.close(), [ended("aborted", "closing", "responder"), SendMessage("a", Close(INC, 2))]),
    ("answering", lambda e: e.answered(INC, 3, Answered(b"diff")), [SendMessage("a", Response(INC, 3, b"diff"))]),
    ("answering", lambda e: e.answered(INC - 2, 3, Answered(b"diff")), []),
    ("answering", lambda e: e.accept(INC, 3), []),
    ("answering", lambda e: e.receive(req(3, 2)), []),
    ("answering", lambda e: e.receive(req(5, 2)), [Drop("a", INC, 3), ended("aborted", "superseded", "responder"), req(5, 2)]),
    (
        "answering",
        lambda e: e.failed(INC, 3, "bad_payload"),
        [SendMessage("a", Busy(INC, 3, "engine", 7)), ended("aborted", "bad_payload", "responder")],
    ),
    ("answering", lambda e: e.failed(INC - 2, 3, "bad_payload"), []),
    ("answering", lambda e: e.close(), [Drop("a", INC, 3), ended("aborted", "closing", "responder"), SendMessage("a", Close(INC, 2))]),
    ("idle", lambda e: e.receive(Check(INC, 3, 1)), [SendMessage("a", Check(INC, 3, 1, lost=True))]),
    ("idle", lambda e: e.receive(Check(INC, 2, 1)), []),
    ("asked", lambda e: e.receive(Check(INC, 3, 1)), []),
    ("asked", lambda e: e.receive(Check(INC, 4, 1)), [SendMessage("a", Check(INC, 4, 1, lost=True))]),
    ("answering", lambda e: e.receive(Check(INC, 3, 1)), []),
    ("answered", lambda e: e.receive(Check(INC, 3, 1)), [SendMessage("a", Check(INC, 3, 1))]),
    ("answered", lambda e: e.receive(Check(INC, 3, 1, lost=True)), [SendMessage("a", Response(INC, 3, b"diff"))]),
    ("answered", lambda e: e.receive(Check(INC, 3, 2, lost=True)), []),
    ("answered", lambda e: e.receive(req(3, 2)), [SendMessage("a", Check(INC, 3, 1))]),
    ("answered", lambda e: e.retry(), [SendMessage("a", Check(INC, 3, 1))]),
    ("answered", lambda e: e.receive(Ack(INC, 3)), [Commit("a", INC, 3), ended("committed", "", "responder", size=4)]),
    ("answered", lambda e: e.receive(Ack(INC, 2)), []),
    ("answered", lambda e: e.receive(req(2, 1)), []),
    ("answered", lambda e: e.receive(req(4, 3)), [Commit("a", INC, 3), ended("committed", "", "responder", size=4), req(4, 3)]),
    ("answered", lambda e: e.receive(req(4, 2)), [Drop("a", INC, 3), ended("aborted", "superseded", "responder"), req(4, 2)]),
    (
        "answered",
        lambda e: e.receive(Close(INC, 3)),
        [Commit("a", INC, 3), ended("committed", "", "responder", size=4), Settle("a"), SendMessage("a", Closed(INC, 3))],
    ),
    (
        "answered",
        lambda e: e.receive(Close(INC, 2)),
        [Drop("a", INC, 3), ended("aborted", "superseded", "responder"), Settle("a"), SendMessage("a", Closed(INC, 2))],
    ),
    ("answered", lambda e: e.close(), [SendMessage("a", Close(INC, 2))]),
    (
        "answered",
        lambda e: e.receive(Reset(INC + 2)),
        [Revoke("a"), ended("aborted", "reset", "responder"), SendMessage("a", Reset(INC + 2))],
    ),
    ("answered", lambda e: e.reset(5), [Revoke("a"), ended("aborted", "reset", "responder")]),
    ("answered", lambda e: e.abort("timeout", "deadline"), []),
]


@pytest.mark.parametrize(("phase", "event", "commands"), INITIATOR)
def test_initiator(phase, event, commands):
    assert event(initiator(phase)) == commands


@pytest.mark.parametrize(("phase", "event", "commands"), RESPONDER)
def test_responder(phase, event, commands):
    assert event(responder(phase)) == commands


FOREIGN = [
    (initiator, req(3, 2), "wrong_role"),
    (initiator, Ack(INC, 2), "wrong_role"),
    (initiator, Busy(INC, 0, "late", 1), "wrong_role"),
    (responder, Response(INC, 2, b""), "wrong_role"),
    (responder, Busy(INC, 2, "late", 1), "wrong_role"),
    (responder, Solicit(INC, 1, VIEW), "wrong_role"),
    (initiator, Response(INC, 3, b""), "answer_unasked"),
    (initiator, Response(INC, 0, b""), "answer_unasked"),
    (initiator, Busy(INC, 3, "late", 1), "answer_unasked"),
    (responder, Ack(INC, 3), "proof_of_nothing"),
    (responder, req(4, 3), "proof_of_nothing"),
    (responder, Close(INC, 3), "proof_of_nothing"),
    (initiator, Close(INC, 3), "proof_of_nothing"),
    (responder, req(2, 2), "request_malformed"),
    (responder, req(3, 2, theta=0.0), "request_malformed"),
    (initiator, Check(INC, 3, 1), "check_of_nothing"),
    (initiator, Check(INC, 0, 1), "check_of_nothing"),
    (responder, Check(INC, 3, 1, lost=True), "check_of_nothing"),
    (initiator, Closed(INC, 2), "closed_unasked"),
    (responder, Closed(INC, 2), "closed_unasked"),
    (responder, req(1, 0, MAX_INC + 1), "incarnation_too_large"),
    (initiator, Reset(2**62), "incarnation_too_large"),
]


@pytest.mark.parametrize(("end", "message", "reason"), FOREIGN)
def test_messages_no_honest_peer_sends_are_faults_and_change_nothing(end, message, reason):
    edge = end()
    before = dataclasses.asdict(edge)
    core = Pairwise(edge.me, Rounds(LinkDeadlines(Deadline(1.0, 60.0))), lambda: INC, edges={edge.peer: edge})
    with pytest.raises(RemoteProtocolError) as raised:
        core.receive(edge.peer, message, 0.0)
    assert (raised.value.peer, raised.value.reason) == (edge.peer, reason)
    assert dataclasses.asdict(edge) == before


@pytest.mark.parametrize("end", [lambda: initiator("asking"), lambda: responder("answered")], ids=["request", "response"])
def test_a_vector_is_sent_again_once_for_each_copy_that_is_lost_and_only_a_few_times(end):
    edge = end()
    sent = []
    for copy in (1, 1, *range(2, 3 * MAX_COPIES)):
        sent += [it.message for it in edge.receive(Check(INC, 3, copy, lost=True))]
        (check,) = edge.retry()
        assert check.message == Check(INC, 3, min(copy + 1, MAX_COPIES))
    assert len(sent) == MAX_COPIES - 1
    assert len(set(sent)) == 1
    assert isinstance(sent[0], Request | Response)


def test_an_initiator_greets_before_its_first_request():
    edge = Edge("a", "b", INC)
    assert edge.begin(7, VIEW, 0.5) == [SendMessage("b", Reset(INC))] == edge.retry()
    assert edge.receive(Reset(INC)) == [Offer("b", INC, 1, 7, 0.5)]


def test_a_new_edge_never_adopts_the_first_incarnation_it_receives():
    edge = Edge("b", "a", 5)
    assert edge.receive(req(9, 8, INC)) == [Revoke("a"), SendMessage("a", Reset(INC + 2))]
    assert edge.inc == INC + 2
    assert edge.receive(Reset(INC + 9)) == [Revoke("a"), SendMessage("a", Reset(INC + 9))], "from then on it may follow"


def test_a_greeting_survives_a_change_of_incarnation():
    edge = Edge("a", "b", 5)
    edge.begin(7, VIEW, 0.5)
    assert edge.receive(Reset(INC)) == [Revoke("b"), SendMessage("b", Reset(INC + 2))]
    assert edge.receive(Reset(INC + 2)) == [Offer("b", INC + 2, 1, 7, 0.5)]


def test_results_of_an_earlier_incarnation_are_ignored():
    edge = initiator("offering")
    edge.reset(0)
    edge.receive(Reset(edge.inc))
    edge.begin(8, VIEW, 0.5)
    assert edge.outstanding.seq == 1
    assert edge.offered(INC, 1, Offered(b"old", 1.0)) == []
    assert edge.failed(INC, 1, "engine") == []
    assert edge.applied(INC, 1) == []


def test_a_reset_skips_a_number():
    edge = initiator()
    edge.reset(0)
    assert edge.inc == INC + 2
    edge.reset(5000)
    assert edge.inc == 5000


def test_a_closing_end_begins_and_answers_nothing():
    edge = responder()
    edge.close()
    assert edge.receive(req(3, 2)) == edge.solicit(7, VIEW) == edge.retry() == [SendMessage("a", Close(INC, 2))]
    first = initiator()
    first.close()
    assert not first.ready
    assert first.receive(Solicit(INC, 7, VIEW)) == [SendMessage("b", Close(INC, 2))]
    with pytest.raises(LocalProtocolError):
        first.begin(7, VIEW, 0.5)


def test_closed_is_answered_again_from_stored_state():
    edge = responder()
    edge.receive(Close(INC, 2))
    assert (edge.inc, edge.settled) == (INC + 1, (INC, 2))
    assert edge.receive(Close(INC, 2)) == edge.receive(Ack(INC, 2)) == [SendMessage("a", Closed(INC, 2))]
    assert edge.receive(Closed(INC, 2)) == [], "two ends that both settled do not tell each other for ever"
    assert edge.receive(Close(INC - 1, 0)) == [SendMessage("a", Reset(INC + 1))]


def test_a_closing_end_that_receives_the_next_incarnation_asks_for_closed():
    edge = responder("answered")
    edge.close()
    assert edge.receive(req(1, 0, INC + 1)) == [SendMessage("a", Close(INC, 2))]
    assert edge.receive(Closed(INC, 3)) == [Commit("a", INC, 3), ended("committed", "", "responder", size=4), Settle("a")]
    assert edge.inc == INC + 1


def test_an_initiator_that_is_applying_closes_when_it_knows():
    edge = initiator("applying")
    edge.receive(Close(INC, 2))
    assert edge.applied(INC, 3)[-1] == SendMessage("b", Close(INC, 3))
    edge = initiator("applying")
    edge.close()
    assert edge.failed(INC, 3, "refused")[-1] == SendMessage("b", Close(INC, 2))


def test_closing_before_anything_was_exchanged_needs_no_message():
    edge = Edge("a", "b", INC)
    edge.begin(7, VIEW, 0.5)
    assert edge.close() == [ended("aborted", "closing", "initiator", seq=0)]
    assert not edge.closing


def test_an_end_solicits_if_its_peer_begins_and_nothing_is_under_way_or_closing():
    assert responder().solicits
    for edge in (initiator(), responder("asked"), responder("answered")):
        assert not edge.solicits
    closing = responder()
    closing.close()
    assert closing.closing
    assert not closing.solicits


def test_a_refused_solicit_ends_once():
    edge = responder()
    edge.solicit(7, VIEW)
    assert edge.receive(Busy(INC, 0, "late", 9)) == [ended("busy", "late", "responder", seq=0)]
    assert edge.receive(Busy(INC, 0, "late", 9)) == []
    edge.solicit(7, VIEW)
    edge.receive(req(3, 2))
    assert edge.receive(Busy(INC, 0, "busy", 9)) == [], "it came to an exchange all the same"


def test_roles_and_bounds_of_our_own_side():
    with pytest.raises(LocalProtocolError):
        initiator().solicit(7, VIEW)
    with pytest.raises(LocalProtocolError):
        responder().begin(7, VIEW, 0.5)
    with pytest.raises(LocalProtocolError):
        initiator("asking").begin(7, VIEW, 0.5)
    with pytest.raises(ValueError, match="two ends"):
        Edge("a", "a", INC)
    with pytest.raises(ValueError, match="inc"):
        Edge("a", "b", MAX_INC)
