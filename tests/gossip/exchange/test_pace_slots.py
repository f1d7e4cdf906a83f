"""Clock pace: which peers to visit, and which to answer."""

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.commands import MAX_SERVED, Accept, Reject
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pace import Slots
from starling.gossip.wire.schema import Request, Solicit
from tests.harness.fixed_timeout import OTHER, VIEW, Fixed


def slots() -> Slots:
    return Slots(LinkDeadlines(Fixed()), 0.5, VIEW)


def req(view: bytes = VIEW, theta: float = 0.5) -> Request:
    return Request(9, 1, 0, 123, view, theta, 1.0, b"")


@given(n=st.integers(1, 9), rounds=st.integers(1, 5))
def test_rotation_visits_every_edge_equally_often(n, rounds):
    core, edges = slots(), [f"p{i}" for i in range(n)]
    visits = []
    for slot in range(n * rounds):
        core.enter(slot)
        peer = core.next(edges, ())
        core.visit(peer, float(slot))
        core.resolved(peer, slot, "committed", float(slot))
        visits.append(peer)
    assert all(visits.count(peer) == rounds for peer in edges)


def test_a_new_edge_is_visited_first_and_an_unresolved_one_passed_over():
    core = slots()
    for slot, peer in enumerate("ab"):
        core.enter(slot)
        core.visit(peer, 0.0)
    assert core.next("abc", ()) == "c"
    assert core.next("abc", {"c", "a"}) == "b"
    assert core.next("abc", set("abc")) is None
    assert core.next("", ()) is None


def test_callers_are_capped_within_a_slot_except_the_visited_peer():
    core = slots()
    core.enter(1)
    core.visit("partner", 0.0)
    for i in range(MAX_SERVED):
        assert core.decide(f"p{i}", req(), 0.1) == Accept()
    assert core.decide("one more", Solicit(9, 1, VIEW), 0.1) == Reject("busy")
    assert core.decide("partner", req(), 0.1) == Accept()
    core.enter(1)
    assert core.decide("one more", req(), 0.1) == Reject("busy")
    core.enter(2)
    assert core.decide("one more", req(), 0.1) == Accept()


def test_a_repeated_request_of_a_running_exchange_counts_once():
    core = slots()
    core.under_way = {"slow"}.__contains__
    core.enter(1)
    for _ in range(MAX_SERVED + 1):
        assert core.decide("slow", Solicit(9, 1, VIEW), 0.1) == Accept()
    for _ in range(MAX_SERVED):
        assert core.decide("slow", req(), 0.1) == Accept(), "a request costs its answer"
    assert core.decide("slow", req(), 0.1) == Reject("busy")


def test_slots_are_counted_as_they_are_entered():
    core = slots()
    assert core.entered(0) == core.entered(1) == 0
    for slot in (4, 4, 9, 11):
        core.enter(slot)
    assert [core.entered(before) for before in range(4)] == [11, 9, 4, 0]
    for slot in range(20, 60):
        core.enter(slot)
    assert core.entered(16) == 59 - 16


def test_another_swarm_another_weight_and_unwanted_edges_are_refused():
    core = slots()
    assert core.decide("b", req(OTHER), 0.1) == Reject("view")
    assert core.decide("b", req(theta=0.25), 0.1) == Reject("view")
    core.welcome = lambda peer: peer == "friend"
    assert core.decide("b", req(), 0.1) == Reject("full")
    assert core.decide("friend", req(), 0.1) == Accept()
    assert core.progress.rounds == {"b": 123, "friend": 123}


def test_a_visit_ends_with_its_exchange_or_at_the_deadline():
    core = slots()
    core.visit("b", 10.0)
    assert core.waiting == ("b",)
    core.resolved("c", 0, "committed", 11.0)
    assert not core.done
    core.resolved("b", 77, "committed", 11.0)
    assert core.done
    assert core.outcomes == {"b": "committed"}
    core.visit("b", 20.0)
    assert core.tick(22.9) == ()
    assert core.tick(23.0) == ("b",)
    assert core.outcomes == {"b": "timeout"}
    assert core.link_deadlines.deadline.observed == [1.0, None]


def test_a_running_exchange_gets_one_more_slot_at_an_extended_deadline():
    core = slots()
    core.under_way = {"b"}.__contains__
    core.visit("b", 10.0)
    assert core.until() == {"b": 10.0 + core.longest_s} == {"b": 16.0}
    core.link_deadlines.silent = lambda _peer: True
    assert core.until()["b"] <= 13.0


def test_a_departed_peer_is_forgotten():
    core = slots()
    core.visit("b", 0.0)
    core.progress.record("b", 9)
    assert core.progress.of("b") == 9
    core.forget("b")
    assert core.progress.of("b") == 0
    core.enter(1)
    core.visit("a", 0.0)
    assert core.next("ab", ()) == "b"
