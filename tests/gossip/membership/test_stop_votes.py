"""A swarm stops when two thirds of its members no longer improve, and never on the word of fewer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.stop_votes import MAX_VOTERS, StopVotes


def votes(**changed):
    return StopVotes(**{"patience": 4, "quorum": 1, "higher_is_better": True} | changed)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_member_votes_while_its_best_value_is_old_and_takes_it_back(sign):
    mine, seen = votes(higher_is_better=sign > 0), []
    for round, value in ((2, 0.5), (4, 0.5), (6, 0.4), (8, 0.6), (10, 0.6), (12, 0.6)):  # noqa: A001
        mine.evaluated(round, sign * value)
        seen.append(mine.stalled)
    assert seen == [False, False, True, False, False, True]
    assert (mine.best, mine.best_round) == (sign * 0.6, 8)


def test_a_value_that_is_no_number_is_not_better_and_none_at_all_is_no_vote():
    mine = votes()
    mine.evaluated(100, math.nan)
    assert not mine.stalled
    mine.evaluated(101, 0.5)
    mine.evaluated(105, math.inf)
    assert mine.best == 0.5
    assert mine.stalled


def test_a_resumed_member_knows_how_old_its_best_value_is():
    mine = votes(best=0.9, best_round=10)
    mine.evaluated(14, 0.8)
    assert mine.stalled


@given(n=st.integers(1, 30), stalled=st.sets(st.integers(0, 29)), outsiders=st.integers(0, 40))
def test_two_thirds_of_the_members_present_decide(n, stalled, outsiders):
    """Votes of those that are gone, or never were members, do not count."""
    mine, members = votes(), [f"m{number}" for number in range(n)]
    mine.stalled = 0 in stalled
    for number in range(1, n):
        mine.voted(f"m{number}", number not in stalled)  # the last one counts
        mine.voted(f"m{number}", number in stalled)
    for number in range(outsiders):
        mine.voted(f"gone{number}", True)
    count = sum(number in stalled for number in range(n))
    assert mine.agreed("m0", members) == (count >= 1 and count >= 2 * n / 3)


def test_fewer_than_a_third_neither_stop_the_others_nor_keep_them_from_it():
    mine, members = votes(), [f"m{number}" for number in range(10)]
    for liar in ("m7", "m8", "m9"):
        mine.voted(liar, True)
    assert not mine.agreed("m0", members)
    mine.stalled = True
    for number in range(1, 10):
        mine.voted(f"m{number}", number < 7)
    assert mine.agreed("m0", members)


def test_a_member_that_is_cut_off_does_not_stop_by_itself():
    mine = votes(quorum=2)
    mine.stalled = True
    assert not mine.agreed("me", ["me"])
    mine.voted("other", True)
    assert mine.agreed("me", ["me", "other"])


def test_votes_are_bounded():
    mine = votes()
    for number in range(MAX_VOTERS + 10):
        mine.voted(str(number), True)
    assert len(mine._votes) == MAX_VOTERS
