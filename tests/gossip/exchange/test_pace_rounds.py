"""Steps pace: which requests are answered when, and when a round is over."""

import pytest

from starling.gossip.exchange.commands import MAX_SERVED, Accept, Defer, Reject
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import RETRIES, LinkDeadlines
from starling.gossip.exchange.pace import MAX_DEFERRED, Rounds
from starling.gossip.exchange.wait_rules import MAX_FACTOR
from starling.gossip.wire.schema import Request, Solicit
from tests.harness.fixed_timeout import OTHER, VIEW, Fixed


def req(round: int, view: bytes = VIEW, theta: float = 0.5, seq: int = 1) -> Request:
    return Request(9, seq, 0, round, view, theta, 1.0, b"")


def solicit(round: int) -> Solicit:
    return Solicit(9, round, VIEW)


def rounds_at(round: int, phase: str, links: dict[str, float] | None = None, *, same_roster: bool = False) -> Rounds:
    rounds = Rounds(LinkDeadlines(Fixed()), same_roster=same_roster)
    links = {"b": 0.5, "c": 0.25} if links is None else links
    assert (rounds.compute(round, links, VIEW) if phase == "computing" else rounds.open(round, links, VIEW, 0.0)) == []
    return rounds


@pytest.mark.parametrize(
    ("peer", "request_"), [("stranger", req(5)), ("stranger", req(5, OTHER)), ("stranger", solicit(5)), ("b", req(5, theta=0.25))]
)
def test_a_request_of_another_link_is_rejected(peer, request_):
    assert rounds_at(5, "exchanging").decide(peer, request_, 1.0) == Reject("view")


def test_another_member_list_is_refused_only_where_more_than_the_weight_depends_on_it():
    assert rounds_at(5, "exchanging").decide("b", req(5, OTHER), 1.0) == Accept()
    assert rounds_at(5, "exchanging", same_roster=True).decide("b", req(5, OTHER), 1.0) == Reject("view")
    assert rounds_at(5, "exchanging", same_roster=True).decide("b", req(5), 1.0) == Accept()


def test_while_computing_only_hopeless_requests_are_refused():
    rounds = rounds_at(5, "computing")
    assert rounds.decide("b", req(5, OTHER), 1.0) == Defer()
    assert rounds.decide("stranger", req(5), 1.0) == Reject("view")


def decided(rounds, deferred):
    return [(peer, request, rounds.decide(peer, request, 2.0)) for peer, request in deferred]


def test_deferred_requests_are_decided_when_the_round_opens():
    rounds = rounds_at(5, "computing")
    rounds.decide("b", req(5, seq=1), 1.0)
    rounds.decide("b", req(5, seq=2), 1.0)
    rounds.decide("c", req(6), 1.0)
    rounds.decide("d", req(5, OTHER, 0.25), 1.0)
    assert decided(rounds, rounds.open(5, {"b": 0.5, "d": 0.5}, VIEW, 2.0)) == [
        ("b", req(5, seq=2), Accept()),
        ("c", req(6), Defer()),
        ("d", req(5, OTHER, 0.25), Reject("view")),
    ]
    assert decided(rounds, rounds.compute(6, {"c": 0.5}, VIEW)) == [("c", req(6), Defer())]
    assert decided(rounds, rounds.open(6, {"c": 0.5}, VIEW, 3.0)) == [("c", req(6), Accept())]


def test_a_jump_rejects_requests_deferred_for_the_rounds_between():
    rounds = rounds_at(5, "computing")
    rounds.decide("b", req(5), 1.0)
    rounds.decide("c", req(6), 1.0)
    assert decided(rounds, rounds.compute(6, {"c": 0.25}, VIEW)) == [("b", req(5), Reject("late")), ("c", req(6), Defer())]


def test_deferral_is_bounded():
    rounds = rounds_at(5, "computing", {})
    for i in range(MAX_DEFERRED):
        assert rounds.decide(f"p{i}", req(6), 1.0) == Defer()
    assert rounds.decide("one more", req(6), 1.0) == Reject("full")
    assert rounds.decide("p0", req(6, seq=2), 1.0) == Defer(), "a deferred request may be replaced"


def test_early_strangers_do_not_take_a_neighbor_s_place():
    rounds = rounds_at(5, "computing")
    for i in range(MAX_DEFERRED):
        assert rounds.decide(f"p{i}", req(6), 1.0) == Defer()
    assert rounds.decide("b", req(5), 1.0) == Defer()
    assert rounds.decide("p0", req(6), 1.0) == Reject("full"), "its place was taken"
    assert ("b", req(5), Accept()) in decided(rounds, rounds.open(5, {"b": 0.5}, VIEW, 2.0))


def test_a_link_commits_at_most_once_in_a_round():
    rounds = rounds_at(5, "exchanging")
    for seq in range(MAX_SERVED):
        assert rounds.decide("b", req(5, seq=seq), 1.0) == Accept()
    assert rounds.decide("b", req(5, seq=99), 1.0) == Reject("busy")
    assert rounds.decide("c", req(5, theta=0.25), 1.0) == Accept()
    rounds.resolved("c", 5, "committed", 1.0)
    assert rounds.decide("c", req(5, theta=0.25, seq=2), 1.0) == Reject("busy")


def test_a_round_is_done_when_every_link_is_resolved():
    rounds = rounds_at(5, "exchanging")
    assert rounds.waiting == ("b", "c")
    rounds.resolved("b", 4, "committed", 1.0)
    assert rounds.waiting == ("b", "c"), "a late commit of the round before"
    rounds.resolved("b", 5, "committed", 1.5)
    rounds.resolved("b", 5, "aborted", 1.6)
    rounds.resolved("c", 5, "busy", 2.0)
    assert rounds.done
    assert rounds.outcomes == {"b": "committed", "c": "busy"}
    assert rounds.link_deadlines.deadline.observed == [1.5], "only answers teach the deadline"


def test_a_round_without_links_is_done_at_once():
    assert rounds_at(5, "exchanging", {}).done


def test_a_node_without_exchanges_for_some_rounds_waits_longer_at_the_next():
    rounds = Rounds(LinkDeadlines(Deadline(1.0, 1.0)))
    waits = []
    for number, links in enumerate([{"b": 0.5}, {}, {}, {"b": 0.5}, {"b": 0.5}]):
        rounds.open(number, links, VIEW, 10.0, steps_s=1.0)
        waits.append(rounds.link_deadlines.expires - 10.0)
        rounds.close()
    assert waits[0] == waits[4] == 3.0
    assert waits[3] == 3.0 + 2 * MAX_FACTOR


def test_links_open_at_the_deadline_time_out():
    rounds = rounds_at(5, "exchanging")
    rounds.resolved("c", 5, "committed", 1.0)
    assert rounds.tick(2.9) == ()
    assert rounds.tick(3.0) == ("b",)
    assert rounds.done
    assert rounds.outcomes["b"] == "timeout"
    assert rounds.link_deadlines.deadline.observed == [1.0, None]


@pytest.mark.parametrize("late", [req(5), solicit(5)])
def test_a_peer_late_for_a_closed_round_gets_more_time_in_the_next(late):
    rounds = rounds_at(5, "exchanging")
    rounds.link_deadlines.heard("c", 2.0)
    assert rounds.tick(3.0) == ("b", "c")
    rounds.close()
    assert rounds.decide("b", late, 4.5) == Reject("late")
    rounds.open(6, {"b": 0.5, "c": 0.25}, VIEW, 10.0)
    assert rounds.until() == {"b": 14.5, "c": 13.0}


def test_a_closed_round_accepts_nothing():
    rounds = rounds_at(5, "exchanging")
    rounds.close()
    assert rounds.decide("b", req(5), 4.0) == Reject("late")
    assert rounds.decide("b", req(6), 4.0) == Defer()
    assert rounds.waiting == ()


def test_rounds_reported_by_peers_are_kept_until_the_peers_are_gone():
    rounds = rounds_at(5, "computing")
    rounds.decide("b", req(50), 1.0)
    rounds.progress.record("b", 40)
    assert rounds.progress.rounds == {"b": 50}
    rounds.forget("b")
    assert rounds.progress.rounds == {}


def test_a_slow_link_is_not_retried_while_its_payload_is_in_flight():
    link_deadlines = LinkDeadlines(Fixed(wait=6.0))
    link_deadlines.begin(100.0)
    assert link_deadlines.expires == 106.0
    assert link_deadlines.retry_s("b") == 6.0 / RETRIES
    link_deadlines.resolve("b", "committed", 104.0)
    link_deadlines.begin(200.0)
    assert link_deadlines.retry_s("b") == 8.0, "twice its quickest answer: later than the deadline"
    assert link_deadlines.retry_s("c") == 6.0 / RETRIES
    link_deadlines.resolve("b", "committed", 200.1)
    assert link_deadlines.retry_s("b") == 6.0 / RETRIES, "it was quick once, so it can be quick"
    link_deadlines.forget("b")
    link_deadlines.end()
    assert link_deadlines.expires == float("inf")


def test_two_peers_in_later_rounds_shorten_a_wait_and_a_single_one_does_not():
    """The awaited peer may be silent; peers in later rounds would otherwise give this node up."""
    rounds = rounds_at(5, "computing")
    rounds.link_deadlines.resolve("c", "committed", 0.2)
    rounds.open(5, {"b": 0.5}, VIEW, 10.0, steps_s=1.0)
    patient = rounds.until()["b"]
    rounds.decide("c", req(6), 11.0)
    assert rounds.until() == {"b": patient}
    rounds.decide("c", req(2**40), 11.0)
    assert rounds.until() == {"b": patient}
    rounds.decide("d", req(7), 11.0)
    assert rounds.tick(11.0) == ()
    assert rounds.until()["b"] < patient
    assert rounds.tick(patient - 0.5) == ("b",)
