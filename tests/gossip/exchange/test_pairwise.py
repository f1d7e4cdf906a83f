"""The pairwise core as a table of (state, event) -> commands.

The node is "b": initiator towards "c", responder towards "a".
"""

from itertools import count

import pytest

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange import calls
from starling.gossip.exchange.commands import DiscardCalls, EdgeDropped, Ended, Event, Fault, SendMessage
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.link_deadlines import RETRIES, LinkDeadlines
from starling.gossip.exchange.pace import Rounds, Slots
from starling.gossip.exchange.pairwise import MAX_ATTEMPTS, MAX_JUMP, MAX_LEAD, Pairwise
from starling.gossip.wire.schema import Ack, Busy, Check, Close, Closed, Request, Reset, Response, Solicit
from tests.harness.fixed_timeout import OTHER, VIEW, Fixed

ROUND, INC, WAIT_S = 5, 100, 3.0
RETRY_S = WAIT_S / RETRIES
LINKS = {"a": 0.5, "c": 0.25}
OFFER = calls.Offer("c", INC, 1, ROUND, 0.25, 77)
REQUEST = Request(INC, 1, 0, ROUND, VIEW, 0.25, 1.0, b"mine")
ANSWER = calls.Answer("a", INC, 1, ROUND, 0.5, 1.0, b"theirs")
COMMIT = calls.Commit("a", INC, 1)
APPLY = calls.Apply("c", INC, 1, b"v")
DONE = calls.Done()


def requested(round: int = ROUND, seq: int = 1, committed: int = 0, theta: float = 0.5) -> Request:
    return Request(INC, seq, committed, round, VIEW, theta, 1.0, b"theirs")


def ended(peer: str, outcome: str, reason: str = "", seq: int = 1, size: int = 0, round: int = ROUND) -> Ended:
    return Ended(peer, round, seq, outcome, reason, "responder" if peer == "a" else "initiator", size)


def core(pace: str = "steps", **changes) -> Pairwise:
    """Return a core with an edge to each peer on which both ends agree, and no transaction."""
    link_deadlines = LinkDeadlines(Fixed(WAIT_S))
    it = Pairwise(
        "b",
        Rounds(link_deadlines, MAX_LEAD) if pace == "steps" else Slots(link_deadlines, 0.5, VIEW),
        count(1000).__next__,
        budget=lambda _peer: 77,
        **changes,
    )
    for peer in "ac":
        it.edges[peer] = Edge("b", peer, INC, known=True, agreed=True)
    return it


def at(state: str) -> Pairwise:
    """Return a core in steps pace in the named state. Each state continues the previous one, except the first two."""
    it = core()
    it.compute(ROUND, LINKS, VIEW, 0.0)
    if state == "computing":
        return it
    it.begin_round(ROUND, LINKS, VIEW, 0.0)
    if state == "exchanging":
        return it
    assert it.tick(0.0) == [OFFER]
    assert it.receive("a", requested(), 0.0) == [ANSWER]
    if state == "encoding":
        return it
    assert it.reply(OFFER, calls.Offered(b"mine", 1.0), 0.0) == [SendMessage("c", REQUEST)]
    assert it.reply(ANSWER, calls.Answered(b"v"), 0.0) == [SendMessage("a", Response(INC, 1, b"v"))]
    if state == "asking":
        return it
    assert it.receive("c", Response(INC, 1, b"v"), 1.0) == [APPLY]
    if state == "applying":
        return it
    assert it.receive("a", Ack(INC, 1), 1.0) == [COMMIT, ended("a", "committed", size=1)]
    assert state == "committing"
    return it


NEW_INC = 1000  # the first incarnation that `fresh_inc` gives
ANEW = "the edge to {} starts anew: the engine lost its flow"

TABLE = [
    # computing: there is no frozen vector yet
    ("computing", lambda m: m.receive("a", requested(), 0.0), []),
    (
        "computing",
        lambda m: m.receive("a", requested(ROUND - 1), 0.0),
        [SendMessage("a", Busy(INC, 1, "late", ROUND)), ended("a", "busy", "late", round=ROUND - 1)],
    ),
    (
        "computing",
        lambda m: m.receive("c", Solicit(INC, ROUND + MAX_LEAD + 1, VIEW), 0.0),
        [SendMessage("c", Busy(INC, 0, "early", ROUND))],
    ),
    ("computing", lambda m: m.tick(9.0), []),
    # exchanging, before our first tick
    ("exchanging", lambda m: m.tick(0.0), [OFFER]),
    ("exchanging", lambda m: m.receive("a", requested(), 0.0), [ANSWER]),
    ("exchanging", lambda m: m.receive("c", Solicit(INC, ROUND, VIEW), 0.0), [OFFER]),
    (
        "exchanging",
        lambda m: m.receive("a", requested(theta=0.25), 0.0),
        [SendMessage("a", Busy(INC, 1, "view", ROUND)), ended("a", "busy", "view")],
    ),
    ("exchanging", lambda m: m.receive("a", requested(ROUND + 1), 0.0), []),
    ("exchanging", lambda m: m.tick(RETRY_S), [SendMessage("a", Solicit(INC, ROUND, VIEW)), OFFER]),
    ("exchanging", lambda m: m.tick(WAIT_S), [ended("a", "timeout", seq=0), ended("c", "timeout", seq=0)]),
    ("exchanging", lambda m: m.end(1.0), [ended("a", "timeout", seq=0), ended("c", "timeout", seq=0)]),
    ("exchanging", lambda m: m.unreachable("a", 0.0), [ended("a", "timeout", seq=0)]),
    ("exchanging", lambda m: m.unreachable("stranger", 0.0), []),
    # encoding: the engine computes our offer to c and our answer to a
    ("encoding", lambda m: m.reply(OFFER, calls.Offered(b"mine", 1.0), 0.0), [SendMessage("c", REQUEST)]),
    ("encoding", lambda m: m.reply(OFFER, None, 0.0), [ended("c", "aborted", "engine")]),
    (
        "encoding",
        lambda m: m.reply(OFFER, calls.Refused("state", "not finite"), 0.0),
        [
            Event("exchange_refused", "the engine refused an exchange with c: not finite", "warning", {"peer": "c", "kind": "state"}),
            ended("c", "aborted", "refused"),
        ],
    ),
    (
        "encoding",
        lambda m: m.reply(ANSWER, calls.Refused("peer", "wrong_length"), 0.0),
        [Fault("a", "wrong_length"), SendMessage("a", Busy(INC, 1, "engine", ROUND)), ended("a", "aborted", "bad_payload")],
    ),
    ("encoding", lambda m: m.reply(ANSWER, None, 0.0), [SendMessage("a", Busy(INC, 1, "engine", ROUND)), ended("a", "aborted", "engine")]),
    ("encoding", lambda m: m.reply(calls.Offer("c", INC - 2, 1, ROUND, 0.25), calls.Offered(b"old", 1.0), 0.0), []),
    ("encoding", lambda m: m.reply(calls.Offer("gone", INC, 1, ROUND, 0.25), calls.Offered(b"old", 1.0), 0.0), []),
    # requesting: our request to c is sent, and our response to a
    ("asking", lambda m: m.tick(RETRY_S), [SendMessage(peer, Check(INC, 1, 1), repeat=True) for peer in "ac"]),
    ("asking", lambda m: m.receive("c", Response(INC, 1, b"v"), 1.0), [APPLY]),
    ("asking", lambda m: m.receive("c", Busy(INC, 1, "late", 9), 1.0), [calls.Drop("c", INC, 1), ended("c", "busy", "late")]),
    ("asking", lambda m: m.receive("a", Ack(INC, 1), 1.0), [COMMIT, ended("a", "committed", size=1)]),
    ("asking", lambda m: m.unreachable("c", 0.0), [calls.Drop("c", INC, 1), ended("c", "timeout", "unreachable")]),
    ("asking", lambda m: m.tick(WAIT_S), [calls.Drop("c", INC, 1), ended("c", "timeout", "deadline")]),
    ("asking", lambda m: m.revoke("c", 1.0), [DiscardCalls("c"), calls.Revoke("c"), ended("c", "aborted", "reset")]),
    ("asking", lambda m: m.revoke("stranger", 1.0), []),
    ("asking", lambda m: m.close("a", 1.0), [SendMessage("a", Close(INC, 0))]),
    ("asking", lambda m: m.close("stranger", 1.0), []),
    (
        "asking",
        lambda m: m.receive("a", Close(INC, 1), 1.0),
        [COMMIT, calls.Settle("a"), EdgeDropped("a"), SendMessage("a", Closed(INC, 1)), ended("a", "committed", size=1)],
    ),
    # applying: the engine applies c's answer
    ("applying", lambda m: m.reply(APPLY, DONE, 2.0), [SendMessage("c", Ack(INC, 1)), ended("c", "committed", size=4)]),
    (
        "applying",
        lambda m: m.reply(APPLY, calls.Refused("peer", "not_finite"), 2.0),
        [Fault("c", "not_finite"), calls.Drop("c", INC, 1), ended("c", "aborted", "bad_payload")],
    ),
    (
        "applying",
        lambda m: m.reply(APPLY, None, 2.0),
        [Event("edge_reset", ANEW.format("c"), fields={"peer": "c"}), DiscardCalls("c"), calls.Revoke("c"), ended("c", "aborted", "reset")],
    ),
    ("applying", lambda m: m.unreachable("c", 2.0), []),
    # committing: the engine commits what a has acknowledged
    ("committing", lambda m: m.reply(COMMIT, DONE, 2.0), []),
    *(
        (
            "committing",
            lambda m, reply=reply: m.reply(COMMIT, reply, 2.0),
            [Event("edge_reset", ANEW.format("a"), fields={"peer": "a"}), DiscardCalls("a"), calls.Revoke("a")],
        )
        for reply in (None, calls.Refused("state", "nothing is pending"))
    ),
    ("committing", lambda m: m.reply(calls.Drop("a", INC, 1), None, 2.0), []),
    (
        "committing",
        lambda m: m.reply(calls.Settle("a"), None, 2.0),
        [Event("edge_reset", ANEW.format("a"), fields={"peer": "a"}), DiscardCalls("a"), calls.Revoke("a")],
    ),
    (
        "committing",
        lambda m: m.reset_all(2.0),
        [
            DiscardCalls("a"),
            calls.Revoke("a"),
            SendMessage("a", Reset(NEW_INC)),
            DiscardCalls("c"),
            calls.Revoke("c"),
            SendMessage("c", Reset(NEW_INC + 1)),
            ended("c", "aborted", "reset"),
        ],
    ),
]


@pytest.mark.parametrize(("state", "event", "commands"), TABLE)
def test_steps_pace(state, event, commands):
    got = event(at(state))
    key = [command for command in got if not isinstance(command, Ended)]
    assert key == [command for command in commands if not isinstance(command, Ended)]
    assert [command for command in got if isinstance(command, Ended)] == [c for c in commands if isinstance(c, Ended)]


def test_a_round_without_faults():
    m = at("applying")
    assert not m.done
    assert m.deadline == min(RETRY_S, WAIT_S)
    m.reply(APPLY, DONE, 2.0)
    m.receive("a", Ack(INC, 1), 2.5)
    assert m.done
    assert m.end(2.5) == []
    assert m.pace.outcomes == {"a": "committed", "c": "committed"}
    assert m.totals == {"committed": 2}
    assert m.committed == {"a": 1, "c": 1}
    assert m.payload_bytes == len(b"mine") + len(b"v")
    assert m.pace.link_deadlines.deadline.observed == [2.0, 2.5]
    assert m.left_behind(ROUND) == ROUND
    late = m.receive("a", requested(seq=2, committed=1), 2.6)
    assert late[0] == SendMessage("a", Busy(INC, 2, "late", ROUND + 1)), "the round is closed"


def test_requests_deferred_while_computing_are_decided_when_the_round_opens():
    m = at("computing")
    m.pace.same_roster = True
    m.receive("a", requested(), 0.0)
    m.receive("c", Solicit(INC, ROUND, OTHER), 0.0)
    assert m.begin_round(ROUND, LINKS, VIEW, 1.0) == [ANSWER, SendMessage("c", Busy(INC, 0, "view", ROUND))]
    m = at("computing")
    m.receive("a", requested(ROUND + 1), 0.0)
    m.begin_round(ROUND, LINKS, VIEW, 1.0)
    m.end(2.0)
    assert m.compute(ROUND + 2, {}, VIEW, 2.0)[:1] == [SendMessage("a", Busy(INC, 1, "late", ROUND + 2))]


def test_weights_of_a_link_with_a_direction_reach_the_engine():
    m = at("computing")
    m.receive("a", requested(), 0.0)
    directions = {"a": (0.1, 0.2), "c": (0.3, 0.4)}
    (answer,) = m.begin_round(ROUND, LINKS, VIEW, 1.0, directions)
    assert (answer.give, answer.take) == (0.1, 0.2)
    (offer,) = m.tick(1.0)
    assert (offer.give, offer.take, offer.budget_bytes) == (0.3, 0.4, 77)


def test_the_engine_receives_the_number_of_members():
    m = at("computing")
    m.members = lambda: 40
    m.begin_round(ROUND, LINKS, VIEW, 1.0)
    assert [it.members for it in m.tick(1.0) if isinstance(it, calls.Offer)] == [40]


def test_retries_of_a_link_in_a_round_are_limited():
    m = at("exchanging")
    begun = 0
    for _ in range(2 * MAX_ATTEMPTS):
        begun += sum(isinstance(command, calls.Offer) for command in m.tick(0.0))
        m.receive("c", Reset(m.edges["c"].inc + 2), 0.0)  # the peer restarts: agreed, and our transaction is gone
    assert begun == MAX_ATTEMPTS
    assert "c" in m.pace.waiting


def test_a_peer_that_replies_early_is_asked_again_at_the_next_retry():
    m = at("asking")
    m.receive("c", Busy(INC, 1, "early", 2), 0.1)
    assert "c" in m.pace.waiting
    assert m.tick(0.2) == []
    assert calls.Offer("c", INC, 2, ROUND, 0.25, 77) in m.tick(RETRY_S)


def test_a_peer_in_a_later_round_is_not_waited_for():
    m = at("asking")
    m.pace.progress.record("a", ROUND + 1)
    m.pace.progress.record("c", ROUND + 1)
    assert m.tick(0.1) == []
    assert m.pace.waiting == ("c",), "it may still answer; who has our answer proves it, or gave it up"
    assert m.receive("a", Ack(INC, 1), 0.2) == [COMMIT, ended("a", "committed", size=1)]
    m = at("exchanging")
    m.pace.progress.record("a", ROUND + 1)
    assert m.tick(0.0) == [ended("a", "busy", seq=0), OFFER]
    assert m.left_behind(ROUND) == ROUND, "one voice"


@pytest.mark.parametrize(
    ("peer", "message", "mute"),
    [
        ("a", requested(ROUND - 1), False),
        ("a", Busy(INC, 0, "early", ROUND - 1), False),
        ("c", Solicit(INC, ROUND + 1, VIEW), False),
        ("c", Response(INC, 1, b"v"), False),
        ("a", Reset(INC + 1), True),
        ("c", Reset(INC + 1), True),
    ],
)
def test_a_peer_is_mute_until_it_sends_something_about_an_exchange(peer, message, mute):
    m = at("exchanging")
    m.tick(0.0)
    m.tick(WAIT_S)
    m.end(WAIT_S)
    m.receive(peer, message, WAIT_S + 1.0)
    m.compute(ROUND + 1, LINKS, VIEW, 10.0)
    m.begin_round(ROUND + 1, LINKS, VIEW, 12.0)
    assert (m.pace.link_deadlines.until(peer) < 12.0 + WAIT_S) is mute


def test_answering_an_abandoned_request_returns_the_initiators_round_without_a_wait_for_proof():
    initiator, responder = at("asking"), at("asking")
    initiator.tick(WAIT_S)
    initiator.end(WAIT_S)
    late = SendMessage("c", Busy(INC, 0, "late", ROUND + 1))
    assert initiator.receive("c", Response(INC, 1, b"v"), WAIT_S + 1.0) == [late]
    assert initiator.edges["c"].committed == 0
    initiator.begin_round(ROUND + 1, LINKS, VIEW, 10.0)
    assert initiator.pace.until() == {"a": 10.0 + WAIT_S, "c": 10.0 + WAIT_S + 1.0}, "which waits as long the next time"
    assert responder.receive("a", Busy(INC, 0, "late", ROUND + 1), 0.1) == []
    responder.tick(0.1)
    assert responder.pace.waiting == ("c",)
    assert responder.edges["a"].pending is not None, "only a proof commits it, and only a newer request drops it"
    assert at("applying").receive("c", Response(INC, 1, b"v"), 1.0) == []


@pytest.mark.parametrize(
    ("reports", "behind"),
    [
        ({"c": ROUND + 3}, ROUND),
        ({"c": ROUND + 3, "a": ROUND + 5}, ROUND + 3),
        ({"c": ROUND + MAX_LEAD, "a": ROUND + MAX_LEAD}, ROUND + MAX_JUMP),
        ({"c": ROUND + MAX_LEAD + 1, "a": ROUND + 2}, ROUND),
        ({"c": 2**40, "d": ROUND, "e": ROUND, "f": ROUND}, ROUND),
        ({"c": 500}, ROUND),
        ({"c": 500, "d": 600}, 500),
        ({"d": ROUND + 3, "e": ROUND + 3, "f": ROUND + 3}, ROUND),
    ],
)
def test_the_lead_of_peers_is_measured(reports, behind):
    """There was no link with `d` and others; `a` and `c` report that this node is late."""
    m = at("asking")
    for peer, reported in reports.items():
        m.pace.progress.record(peer, reported)
    if "c" in reports:
        m.receive("c", Busy(INC, 1, "late", reports["c"]), 0.1)
    if "a" in reports:
        m.pace.progress.met("a", ROUND, passed=True)
    assert m.left_behind(ROUND) == behind


def test_a_contradicted_report_of_lateness_is_blamed_and_ignored():
    m = at("asking")
    said = Busy(INC, 1, "late", ROUND + 6)
    m.receive("c", said, 0.1)
    assert m.receive("c", Solicit(INC, ROUND + 5, VIEW), 0.2) == [], "a round may be repeated"
    (fault,) = [it for it in m.receive("c", Solicit(INC, ROUND + 1, VIEW), 0.3) if isinstance(it, Fault)]
    assert fault == Fault("c", "late_contradicted")
    assert m.pace.progress.of("c") == ROUND + 1
    assert m.receive("c", Solicit(INC, ROUND + 1, VIEW), 0.4) == [], "once"


def test_clipped_peers_are_returned_once_and_only_requested_ones():
    m = at("applying")
    m.reply(APPLY, calls.Done(clipped=True), 2.0)
    m.receive("a", Ack(INC, 1), 2.0)
    m.reply(COMMIT, calls.Done(clipped=True), 2.0)
    assert m.take_clipped(["c", "d"]) == {"c"}
    assert m.take_clipped(["a", "c"]) == {"a"}
    assert m.take_clipped(["a", "c"]) == set()


def test_impossible_messages_change_nothing_and_open_no_edge():
    m = at("exchanging")
    for peer, message, reason in (("a", Ack(INC, 1), "proof_of_nothing"), ("aa", Response(1, 1, b""), "wrong_role")):
        with pytest.raises(RemoteProtocolError, match=reason):
            m.receive(peer, message, 0.0)
    assert m.edges.keys() == {"a", "c"}
    assert m.tick(0.0) == [OFFER]


def test_a_new_edge_first_deletes_what_the_engine_may_hold():
    m = at("exchanging")
    commands = m.receive("aa", Reset(7), 0.0)
    assert commands[0] == calls.Revoke("aa")
    assert all(isinstance(command, SendMessage | calls.Revoke) for command in commands)
    assert "aa" in m.edges


def test_a_released_edge_is_forgotten_unless_a_transaction_has_begun_since():
    m = at("exchanging")
    m.revoke("a", 0.0)
    m.revoke("c", 0.0)
    assert m.done
    assert m.pace.outcomes == {"a": "aborted", "c": "aborted"}
    m.edges["c"].begin(ROUND, VIEW, 0.25)
    m.release("a")
    m.release("c")
    m.release("never there")
    assert m.edges.keys() == {"c"}


def test_flows_that_compensated_for_a_revoked_one_go_too_and_once():
    m = at("exchanging")
    dominated = calls.Done(dominated=True)
    text = "the other flows compensated for that of d: all edges start anew"
    commands = m.reply(calls.Revoke("d"), dominated, 0.0)
    assert commands[0] == Event("edges_anew", text, "info", {"peer": "d"})
    renewals = [command for command in commands if isinstance(command, calls.Revoke)]
    assert [it.peer for it in renewals] == ["a", "c"]
    assert [command for command in commands if isinstance(command, DiscardCalls)] == [DiscardCalls("a"), DiscardCalls("c")]
    assert m.reply(renewals[0], dominated, 0.1) == m.reply(renewals[1], dominated, 0.1) == []
    assert m.reply(calls.Revoke("e"), dominated, 0.2)[0].name == "edges_anew", "the next time all go again"
    assert m.reply(calls.Revoke("e"), calls.Done(), 0.2) == []


def test_a_renewal_whose_call_was_discarded_ends_with_the_call_that_replaced_it():
    m = at("exchanging")
    dominated = calls.Done(dominated=True)
    first = [it for it in m.reply(calls.Revoke("d"), dominated, 0.0) if isinstance(it, calls.Revoke)]
    second = [it for it in m.reset_all(0.1) if isinstance(it, calls.Revoke)]
    for call in (*first, second[0]):
        assert m.reply(call, dominated, 0.2) == []
    assert m.reply(second[1], None, 0.2) == []
    assert m.reply(calls.Revoke("d"), dominated, 0.3) != []


def test_a_lost_proof_is_requested_with_growing_pauses():
    m = at("asking")
    m.tick(WAIT_S)
    m.end(WAIT_S)
    again = [SendMessage("a", Check(INC, 1, 1), repeat=True)]
    chased = [chase for chase in range(20) if m.chase() == again]
    assert chased == [1, 2, 4, 8, 16]
    m.receive("a", Ack(INC, 1), 99.0)
    assert not any(m.chase() for _ in range(20))


def test_no_proof_is_requested_on_an_edge_that_the_round_waits_for():
    m = at("asking")
    assert not any(m.chase() for _ in range(5))


def test_a_slow_peer_is_solicited_early_and_its_request_is_repeated_late():
    """Otherwise a waiting node sends nothing, and the peer cannot learn how far behind it is."""
    m = core()
    for peer in "ac":
        m.pace.link_deadlines.resolve(peer, "committed", 10.0)
    m.compute(ROUND, LINKS, VIEW, 20.0)
    m.begin_round(ROUND, LINKS, VIEW, 20.0)
    m.tick(20.0)
    m.reply(OFFER, calls.Offered(b"mine", 1.0), 20.0)
    assert m.tick(20.0 + RETRY_S) == [SendMessage("a", Solicit(INC, ROUND, VIEW))]
    assert m.tick(20.0 + 2 * RETRY_S) == [SendMessage("a", Solicit(INC, ROUND, VIEW))]


STRUCK = calls.Done(far=calls.Far(9.0, 1.0, 1.0, 0))
REFUSED = calls.Done(far=calls.Far(9.0, 1.0, 2.0, 20))


def refusing(m):
    """Return a core whose engine has reported, as initiator, that c is far again."""
    m.reply(OFFER, calls.Offered(b"mine", 1.0), 0.0)
    m.receive("c", Response(INC, 1, b"v"), 0.0)
    return m.reply(APPLY, REFUSED, 0.0)


def test_a_far_model_is_a_fault_and_changes_nothing_else():
    for call, state in ((COMMIT, "committing"), (APPLY, "applying")):
        m, usual = at(state), at(state)
        assert m.reply(call, STRUCK, 0.0) == [*usual.reply(call, DONE, 0.0), Fault(call.peer, "model_far")]
        assert m.edges[call.peer].inc == INC


@pytest.mark.parametrize(("score", "refused"), [(1.0, 0), (3.0, 20)])
def test_who_does_worse_on_our_data_has_no_fault_before_it_is_refused(score, refused):
    """One batch says little."""
    m, far = at("applying"), calls.Far(1.0, 1.0, score, refused, ratio=3.0, largest=1.2)
    commands = m.reply(APPLY, calls.Done(far=far), 0.0)
    assert [it for it in commands if isinstance(it, Fault)] == [Fault("c", "model_far")] * bool(refused)
    why = "its model had 3 times the loss of ours on our data, those of other peers at most 1.2 times"
    assert [it.text for it in commands if isinstance(it, Event)] == [f"takes nothing from c for 20 rounds: again {why}"] * bool(refused)


def test_a_peer_that_is_refused_since_it_is_behind_is_told_so_in_the_log():
    m, far = at("applying"), calls.Far(1.0, 1.0, 3.0, 20, 0.04, 0.8)
    (event,) = [it for it in m.reply(APPLY, calls.Done(far=far), 0.0) if isinstance(it, Event)]
    assert event.text == (
        "takes nothing from c for 20 rounds: again its model had made 4% of the way that ours has, those of other peers at least 80%"
    )


def test_a_peer_that_is_far_again_is_refused_and_its_flow_deleted_at_both_ends():
    m = at("asking")
    commands = refusing(m)
    inc = m.edges["c"].inc
    assert inc > INC
    assert [it for it in commands if isinstance(it, Fault | Event | DiscardCalls | calls.Revoke)] == [
        Fault("c", "model_far"),
        Event(
            "peer_refused",
            "takes nothing from c for 20 rounds: again its model was 9 from ours, those of other peers about 1",
            fields={"peer": "c", "rounds": "20"},
        ),
        DiscardCalls("c"),
        calls.Revoke("c"),
    ]
    sent = [it.message for it in commands if isinstance(it, SendMessage)]
    assert sent == [Ack(INC, 1), Reset(inc)]


def test_exchanges_with_a_refused_peer_go_on():
    """For it to come nearer: what is taken of it is for the engine to say."""
    m = at("asking")
    refusing(m)
    inc = m.edges["c"].inc
    m.end(1.0)
    m.compute(ROUND + 1, LINKS, VIEW, 2.0)
    m.begin_round(ROUND + 1, LINKS, VIEW, 2.0)
    assert "c" in m.pace.waiting
    m.receive("c", Reset(inc), 2.0)
    assert not any(isinstance(getattr(it, "message", None), Busy) for it in m.receive("c", Solicit(inc, ROUND + 1, VIEW), 2.0))


def test_a_visit_begins_or_solicits_and_ends_with_the_exchange():
    m = core("clock")
    m.enter_slot(3, 0.0)
    assert m.next_visit("ac") == "a"
    assert m.visit("a", 0.0) == [SendMessage("a", Solicit(INC, 3, VIEW))]
    assert m.tick(0.0) == []
    assert m.receive("a", Request(INC, 1, 0, 3, VIEW, 0.5, 1.0, b"theirs"), 0.1) == [calls.Answer("a", INC, 1, 3, 0.5, 1.0, b"theirs")]
    m.reply(calls.Answer("a", INC, 1, 3, 0.5, 1.0, b"theirs"), calls.Answered(b"v"), 0.2)
    assert m.next_visit("ac") == "c", "a transaction is under way with a"
    m.receive("a", Ack(INC, 1), 0.3)
    assert m.done
    assert m.pace.outcomes == {"a": "committed"}
    assert m.visit("c", 0.4) == []
    assert m.tick(0.4) == [calls.Offer("c", INC, 1, 3, 0.5, 77)]
    assert m.end(0.5) == [calls.Drop("c", INC, 1), Ended("c", 3, 1, "timeout", "deadline", "initiator")]
    assert m.pace.outcomes == {"c": "timeout"}


def test_an_exchange_that_a_peer_solicited_has_until_the_end_of_the_next_slot():
    m = core("clock")
    m.enter_slot(3, 0.0)
    assert m.receive("c", Solicit(INC, 9, VIEW), 0.0) == [calls.Offer("c", INC, 1, 3, 0.5, 77)]
    assert m.enter_slot(4, 1.0) == []
    assert m.enter_slot(5, 2.0) == [calls.Drop("c", INC, 1), Ended("c", 3, 1, "timeout", "deadline", "initiator")]


def test_slots_missed_by_this_node_do_not_shorten_a_solicited_exchange():
    """A visit took longer than its slot, and at its end a peer requested an exchange."""
    m = core("clock")
    m.enter_slot(2, 0.0)
    m.enter_slot(3, 1.0)
    m.receive("c", Solicit(INC, 9, VIEW), 2.9)
    assert m.enter_slot(6, 3.0) == []
    assert m.enter_slot(9, 6.0) == [calls.Drop("c", INC, 1), Ended("c", 3, 1, "timeout", "deadline", "initiator")]


def test_a_visit_with_a_running_exchange_at_its_deadline_gets_one_more_slot():
    """Whether this node's request or the peer's is in flight; not without an exchange, or with a silent peer."""
    m = core("clock")
    m.enter_slot(3, 0.0)
    m.visit("c", 0.0)
    m.tick(0.0)
    m.reply(calls.Offer("c", INC, 1, 3, 0.5, 77), calls.Offered(b"mine", 1.0), 0.0)
    assert not [it for it in m.tick(WAIT_S) if isinstance(it, Ended)]
    assert m.deadline <= 2 * WAIT_S
    assert m.tick(2 * WAIT_S) == [calls.Drop("c", INC, 1), Ended("c", 3, 1, "timeout", "deadline", "initiator")]

    for receives, there, takes_s in ((True, True, 2 * WAIT_S), (False, True, WAIT_S), (True, False, WAIT_S)):
        m = core("clock", receives=lambda _peer, receives=receives: receives)
        m.pace.link_deadlines.silent = lambda _peer, there=there: not there
        m.enter_slot(3, 0.0)
        m.visit("a", 0.0)
        m.tick(takes_s - 0.01)
        assert not m.done
        assert Ended("a", 3, 0, "timeout", "", "responder") in m.tick(takes_s)


def test_a_call_without_a_greeting_ends_at_the_deadline():
    m = core("clock")
    m.edges["c"] = Edge("b", "c", INC)
    m.enter_slot(3, 0.0)
    m.visit("c", 0.0)
    m.tick(0.0)
    assert m.edges["c"].outstanding.phase == "greeting"
    m.tick(WAIT_S)
    assert m.done


def test_a_solicited_exchange_gets_as_many_slots_as_payloads_take():
    m = core("clock")
    m.pace.link_deadlines.transfers.observe("c", m.pace.link_deadlines.deadline.max_wait_s)  # at most four bounds in total
    m.enter_slot(3, 0.0)
    m.receive("c", Solicit(INC, 9, VIEW), 0.0)
    assert [m.enter_slot(slot, slot - 3.0) for slot in range(4, 8)] == [[]] * 4
    assert m.enter_slot(8, 5.0) == [calls.Drop("c", INC, 1), Ended("c", 3, 1, "timeout", "deadline", "initiator")]


def test_a_peer_at_full_degree_drops_the_edge():
    m = core("clock")
    m.enter_slot(3, 0.0)
    m.visit("a", 0.0)
    assert m.receive("a", Busy(INC, 0, "full", 3), 0.1) == [Ended("a", 3, 0, "busy", "full", "responder"), EdgeDropped("a")]
    assert m.done
    m.pace.welcome = lambda _peer: False
    assert m.receive("c", Solicit(INC, 3, VIEW), 0.2) == [SendMessage("c", Busy(INC, 0, "full", 3))]


def test_a_close_is_repeated_until_it_is_answered():
    m = core("clock")
    m.close("c", 0.0)
    assert m.retry_close("c") == [SendMessage("c", Close(INC, 0), repeat=True)]
    assert m.retry_close("stranger") == []
    assert m.receive("c", Closed(INC, 0), 0.1) == [calls.Settle("c"), EdgeDropped("c")]
    assert not m.edges["c"].closing


def test_calls_of_the_other_pace_are_local_errors():
    with pytest.raises(LocalProtocolError):
        core("clock").compute(0, {}, VIEW, 0.0)
    with pytest.raises(LocalProtocolError):
        core().enter_slot(0, 0.0)
