"""A member stops when neither it nor two thirds of its electors improve, and never on fewer votes."""

import math

import pytest

from starling.gossip.membership.stop_votes import MAX_VOTERS, StopVotes


def votes(**changed):
    return StopVotes(**{"patience": 4, "alone": False, "higher_is_better": True} | changed)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_member_votes_to_stop_while_its_best_value_is_old(sign):
    mine, seen = votes(higher_is_better=sign > 0), []
    for round, value in ((2, 0.5), (4, 0.5), (6, 0.4), (8, 0.6), (10, 0.6), (12, 0.6)):  # noqa: A001
        mine.evaluated(round, sign * value)
        seen.append(mine.stalled)
    assert seen == [False, False, True, False, False, True]
    assert (mine.best, mine.best_round) == (sign * 0.6, 8)


def test_a_nan_value_is_never_better_and_no_value_gives_no_vote():
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


ELECTORS = [f"m{number}" for number in range(9)]


@pytest.mark.parametrize("strangers", [0, 1000])
def test_two_thirds_of_electors_decide_and_strangers_do_not_count(strangers):
    mine = votes(stalled=True)
    for number in range(strangers):
        mine.voted(f"stranger {number}", True)
    for number in range(5):
        mine.voted(f"m{number}", True)
    assert not mine.agreed(ELECTORS), "six of ten"
    mine.voted("m8", True)
    assert mine.agreed(ELECTORS)
    mine.voted("m8", False)
    assert not mine.agreed(ELECTORS), "the last one counts"
    mine.voted("m8", True)
    mine.forget("m8")
    assert not mine.agreed(ELECTORS)


def test_an_improving_member_continues():
    mine = votes()
    for peer in ELECTORS:
        mine.voted(peer, True)
    assert not mine.agreed(ELECTORS)


def test_a_member_without_exchanges_stops_only_if_one_is_a_quorum():
    assert not votes(stalled=True).agreed([])
    assert votes(stalled=True, alone=True).agreed([])


def test_votes_are_bounded():
    mine = votes()
    for number in range(MAX_VOTERS + 10):
        mine.voted(str(number), True)
    assert len(mine.received) == MAX_VOTERS
