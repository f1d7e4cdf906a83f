"""Reachability by others' reports: one source never decides where there are several, and old reports do not count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.reachability import AGAIN_S, AT_ONCE, NEED, PATIENCE_S, REFRESH_S, VALID_S, Reachability

HOST = "192.0.2.7"


def heard(*votes, sources=5, now=0.0):
    core = Reachability()
    for source, reached in votes:
        core.vote(source, reached, now, HOST)
    core.poll(sources, now)
    return core


@pytest.mark.parametrize(
    ("votes", "sources", "state"),
    [
        ([], 5, "unknown"),
        ([("a", True)], 5, "unknown"),
        ([("a", False)], 5, "unknown"),
        ([("a", True)], 1, "reachable"),
        ([("a", False)], 1, "hidden"),
        ([("a", True), ("b", True)], 5, "reachable"),
        ([("a", False), ("b", False)], 5, "hidden"),
        ([("a", True), ("b", False), ("c", False)], 5, "hidden"),
        ([("a", True), ("b", False)], 5, "unknown"),
        ([("a", True), ("b", True), ("c", False), ("d", False), ("e", False)], 5, "reachable"),
        ([("a", True), ("a", True)], 5, "unknown"),
        ([("a", False), ("a", True), ("b", True)], 5, "reachable"),
    ],
)
def test_votes_of_different_sources_decide(votes, sources, state):
    assert heard(*votes, sources=sources).state == state


@given(st.sampled_from([True, False]), st.lists(st.booleans(), max_size=20), st.integers(NEED, 9))
def test_one_source_decides_nothing_however_often_it_votes(truth, lies, sources):
    core = heard(("a", truth), ("b", truth), sources=sources)
    decided = core.state
    for lie in lies:
        core.vote("liar", lie, 1.0, "203.0.113.9")
        assert core.poll(sources, 1.0) == decided
    assert core.seen == (HOST if truth else "")


def test_old_votes_do_not_count_and_a_move_forgets_all():
    core = heard(("a", False), ("b", False))
    assert core.poll(5, VALID_S - 1.0) == "hidden"
    assert core.poll(5, VALID_S) == "unknown"
    core = heard(("a", True), ("b", True))
    core.moved()
    assert (core.poll(5, 0.0), core.seen) == ("unknown", "")


def test_few_sources_are_requested_at_a_time_each_once_until_its_vote_is_old():
    core, everybody = Reachability(), {f"p{n}": f"s{n // 2}" for n in range(20)}
    first = core.ask(everybody, 0.0)
    assert first == ("p0", "p2", "p4")
    assert len(first) == AT_ONCE
    assert core.ask(everybody, 1.0) == ()
    core.vote("s0", True, 2.0)
    assert core.ask(everybody, 2.0) == ("p6",)
    asked = core.ask(everybody, PATIENCE_S + 1.0)
    assert not {everybody[peer] for peer in asked} & {"s0", "s1", "s2", "s3"}, "who is silent is not asked again so soon"
    assert "p2" in core.ask(everybody, AGAIN_S + 1.0)
    one = {"p0": "s0"}
    assert core.ask(one, REFRESH_S + 1.0) == ()
    assert core.ask(one, REFRESH_S + 2.0) == ("p0",)
