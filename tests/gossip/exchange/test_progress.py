"""The swarm's round, estimated although some peers lie about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.quorum import EXCHANGES


def lead(rounds):
    return PeerProgress({f"p{i}": at for i, at in enumerate(rounds)}).lead


@pytest.mark.parametrize(("rounds", "expected"), [([], 0), ([7], 0), ([7, 9], 7), ([7, 9, 3], 7), ([9, 9, 8, 8, 7, 7, 6, 6], 8)])
def test_no_single_report_is_believed(rounds, expected):
    assert lead(rounds) == expected


@pytest.mark.parametrize(
    ("met", "to"),
    [
        ([("a", 9, True, 12)], 0),
        ([("a", 9, True, 12), ("b", 9, True, 14)], 12),
        ([("a", 9, True, 12), ("b", 1, True, 14)], 0),
        ([("a", 9, True, 12), ("b", 9, False, 14)], 9),
        ([("a", 9, True, 12), ("b", 9, True, 90), ("c", 9, False, 9)], 9),
        ([("a", 9, True, 12), ("a", 9, True, 14)], 0),
        ([("a", 9, True, 20), ("b", 9, True, 20), *((f"c{i}", 9, False, 9) for i in range(5))], 9),
        ([("a", 9, True, 20), ("b", 9, True, 20), ("c", 9, True, 19), *((f"d{i}", 9, False, 9) for i in range(4))], 19),
    ],
    ids=["one", "two", "one_long_ago", "one_that_was_there", "one_far_beyond", "one_twice", "two_of_seven", "three_of_seven"],
)
def test_enough_peers_in_later_rounds_move_this_node(met, to):
    progress = PeerProgress()
    for peer, at, passed, claimed in met:
        progress.record(peer, claimed)
        progress.met(peer, at, passed=passed)
    assert progress.passed_to(9, 16) == to


@given(honest=st.lists(st.integers(0, 1000), min_size=1, max_size=30), data=st.data())
def test_less_than_a_third_of_byzantine_peers_cannot_exceed_the_honest_lead(honest, data):
    """For any claims of f of 3f + 1 peers no honest node jumps past the furthest honest one, so a claimed number cannot end training."""
    byzantine = data.draw(st.lists(st.integers(0, 2**62), max_size=(len(honest) - 1) // 2))
    assert lead([*honest, *byzantine]) <= max(honest)


@given(
    voters=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), min_size=2),
    strangers=st.lists(st.integers(0, 2**62), max_size=50),
    ours=st.integers(0, 1000),
    exchanges=st.integers(1, 4),
)
def test_strangers_move_no_node_that_has_exchanged_with_two_others(voters, strangers, ours, exchanges):
    """However many they are, and whichever round they report: a node is moved as if they were not there."""

    def moved(others):
        progress = PeerProgress()
        for peer, at in {**voters, **others}.items():
            progress.record(peer, at)
            progress.met(peer, ours, passed=at > ours)
        for peer in sorted(voters) * exchanges:
            progress.exchanged(peer)
        return progress.lead, progress.passed_to(ours, 16), progress.claimed(ours, 100)

    assert moved({f"stranger{i}": at for i, at in enumerate(strangers)}) == moved({})


def test_a_node_whose_partners_all_left_listens_to_others():
    progress = PeerProgress()
    progress.record("gone", 9)
    for _ in range(EXCHANGES):
        progress.exchanged("gone")
    for peer in "ab":
        progress.record(peer, 500)
    assert progress.lead == 0, "one elector that is there is no two"
    progress.exchanged("also gone")
    progress.forget("gone")
    assert progress.lead == 500


def test_a_node_that_met_a_single_peer_listens_to_others_until_that_has_a_vote():
    """It would go on alone for ever if its only exchange was the first of the run, and the others went on while it waited for the next."""
    progress = PeerProgress()
    for peer in "abc":
        progress.record(peer, 20)
    progress.exchanged("a")
    assert progress.lead == 20
    progress.exchanged("b")
    progress.record("c", 900)
    progress.record("d", 900)
    assert progress.lead == 20, "two partners"
