"""Who is why no steps follow a meeting of a crew, as one stage can know."""

from starling.gossip.pipeline.holding import Holding
from starling.gossip.pipeline.meeting import Fetch, Has, Start

TOLD = [Has(20, left) for left in (5, 0, 5, 0)]
RESTS = Start(20, False, 20, False)
STEPS = Start(20, False, 25, False)


def concluded(stage, *conclusions, gave=False):
    """Return what stage `stage` of four knows after these conclusions."""
    holding = Holding(stage)
    for conclusion in conclusions:
        holding.concluded(TOLD, conclusion, 0.0)
        if gave:
            holding.gave()
    return holding


def test_who_has_no_steps_to_do_is_waited_for_unless_this_stage_has_none_itself():
    assert set(concluded(0, RESTS).why) == {1, 3}
    assert concluded(0, RESTS).rests
    assert concluded(1, RESTS).why == {}
    followed = Holding(0)
    followed.concluded(TOLD, RESTS, 0.0)
    followed.concluded([Has(20, 5)] * 4, STEPS, 0.0)
    assert followed == Holding(0, due=25)


def test_only_the_stage_that_has_given_a_state_waits_for_who_says_that_it_lacks_it():
    lacks = Fetch(20, (2,))
    assert concluded(1, lacks).why == {}, "it has not given it yet"
    assert set(concluded(1, lacks, lacks, gave=True).why) == {2}
    assert concluded(0, lacks, lacks, gave=True).why == {}
    assert set(concluded(1, lacks, RESTS, lacks, gave=True).why) == {2}, "no step followed"
    assert not concluded(1, RESTS, lacks).rests


def test_the_stage_that_lacks_its_state_waits_for_more_pieces_than_ever_before():
    holding = concluded(2, Fetch(20, (2,)))
    assert set(holding.why) == {1}
    assert [holding.got(pieces, 10.0 * pieces) for pieces in (1, 2, 2, 1)] == [True, True, False, False]
    assert holding.coming_s == 20.0
    holding.concluded(TOLD, Fetch(20, (2,)), 100.0)
    assert [holding.got(pieces, 100.0 + pieces) for pieces in (1, 2)] == [False, False], "it began again"
    assert holding.got(3, 1e4)
    assert holding.coming_s == 50.0, "as much as an honest line takes for a piece, at most"
    assert not Holding(2).got(1, 0.0), "it lacks nothing"


def test_a_stage_costs_steps_that_is_not_where_all_agreed_to_be_or_rests_after_steps():
    """Who is elsewhere itself, or has no steps to do, knows of nobody."""
    there, behind, rests = Has(25, 5), Has(20, 5), Has(25, 0)
    for told, costly in (
        ([there, there, there], set()),
        ([there, behind, there], {1}),
        ([there, there, rests], {2}),
        ([behind, there, there], set()),
        ([rests, there, behind], set()),
    ):
        holding = Holding(0)
        assert holding.concluded([Has(20, 5)] * 3, STEPS, 0.0) == set(), "nothing was agreed before"
        assert holding.concluded(told, Start(25, False, 30, False), 1.0) == costly
        assert holding.concluded(told, RESTS, 2.0) == set(), "they have gone on to 30 together, or nobody knows"
        assert holding.concluded([Has(20, 5), Has(20, 0), Has(20, 5)], RESTS, 3.0) == set(), "no steps followed the last one"
