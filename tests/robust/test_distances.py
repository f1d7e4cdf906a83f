"""A node's measure of its peers' distances: the effect of a liar, and that honest peers are not refused."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.calls import Far
from starling.robust.distances import (
    BEHIND,
    COMMON,
    COMPARED,
    DOUBLED,
    FAR,
    FARTHER,
    LATELY,
    LIMIT,
    OWN,
    REFUSED,
    REMEMBERED,
    UNTRUSTED,
    Distances,
    agreed,
    share,
)

ANY = st.floats(0.0, math.inf, allow_nan=False)
LENGTHS = st.floats(1e-3, 1e3)


def knowing(distances, step=0.0, round=0):
    """Return a node that has exchanged with peers "0", "1", … at these distances, as far as they have votes."""
    it = Distances()
    it.stepped(step)
    for peer, distance in enumerate(distances):
        it.met(str(peer), distance, round)
    return it


def trusting(it, *peers):
    """The same node, after exchanges within the limit."""
    for peer in peers:
        meet(it, peer, 1.2)
    return it


def meet(it, peer, distance, at=0):
    """Return the verdict on a peer, after an ordinary exchange with another."""
    it.met("0", 1.4, at)
    return it.met(peer, distance, at)


@pytest.fixture
def usual():
    """Others at 1, 1.2 and 1.4, and own steps of length 0.8."""
    return knowing([1.4, 1.2, 1.0], step=0.8)


def measured(it, round=0):
    """What a node compares the distance of a peer with that it does not know, but for trust."""
    return it.reference("new", round) / UNTRUSTED


def test_the_reference_is_the_lower_median_of_other_peers_and_own_steps(usual):
    assert measured(usual) == pytest.approx(1.2)  # of 1, 1.2, 1.2 = 1.5 · 0.8 and 1.4
    meet(usual, "1", 1.2)
    assert usual.reference("1", 0) == pytest.approx(OWN * 0.8)  # of 1, 1.2 and 1.4
    assert measured(knowing([1.0, 1.1, 9.0])) == pytest.approx(1.1)


def test_votes_grow_with_own_steps_and_do_not_shrink_with_them(usual):
    """As steps grow with momentum, and models part from their common start, a distance of a round ago is too short."""
    usual.stepped(0.8)
    assert measured(usual) == pytest.approx(1.5 * 1.2)  # 1½ times the drift: of 1.5, 1.8, 1.8 and 2.1
    usual.stepped(0.0)
    assert measured(usual) == pytest.approx(1.5 * 1.2), "of a way of no length nothing is learned"
    for _ in range(30):
        usual.stepped(0.01)
    assert measured(usual) == 1.0  # of 0.03, 1, 1.2 and 1.4


def test_who_was_never_near_counts_for_less_and_whatever_of_it_is_shortened_is_a_strike(usual):
    """Else a liar whose vector is three times as far as others shrinks all models until it is as near as they are."""
    near = UNTRUSTED * LIMIT * 1.2
    assert meet(usual, "far", 1.01 * near).score == 1.0
    assert usual.reference("far", 0) == pytest.approx(UNTRUSTED * 1.2)
    assert meet(usual, "far", near) is None
    assert usual.reference("far", 0) == pytest.approx(UNTRUSTED * 1.2), "there is half a strike left"
    assert meet(usual, "far", near) is None
    assert usual.reference("far", 0) == pytest.approx(1.2)
    assert meet(usual, "far", FAR * 1.2) is None


def test_fewer_than_three_votes_judge_nobody_and_own_steps_bound_only_the_first_exchanges():
    it = knowing([1.0, 1.0], step=0.0)
    it.stepped(1.0)
    assert Distances().reference("new", 0) == 0.0
    assert it.reference("1", 0) == UNTRUSTED * OWN
    assert it.met("1", 1e9, 0) is None
    assert it.reference("1", 0) == 0.0, "the first three are over"
    assert share(1e9, 0.0) == 1.0


def test_who_is_near_in_the_first_exchanges_is_trusted_though_nobody_is_judged_yet():
    """Halves of a swarm that drift apart later met then: they are no strangers."""
    it = knowing([UNTRUSTED * LIMIT * OWN, 1.01 * UNTRUSTED * LIMIT * OWN], step=1.0)
    assert it.reference("0", 0) == OWN
    assert it.reference("1", 0) == UNTRUSTED * OWN


def test_strikes_add_up_to_a_refusal_and_very_far_models_count_one_and_a_half_times(usual):
    trusting(usual, "far", "farther")
    assert meet(usual, "far", FAR * 1.2, 0) is None
    first = meet(usual, "far", 5.0, 1)
    assert first == Far(5.0, pytest.approx(1.2), 1.0, 0)
    assert meet(usual, "far", 5.0, 2).refused == 0
    assert meet(usual, "far", 5.0, 3).refused == REFUSED
    assert meet(usual, "farther", 1.01 * FARTHER * 1.2, 3).score == 1.5
    assert meet(usual, "farther", 1.01 * FARTHER * 1.2, 4).refused == REFUSED


def test_a_second_strike_requires_an_exchange_with_another_peer(usual):
    """This node itself may have moved, which exchanges with others show. Clipping applies each time."""
    assert meet(usual, "far", 5.0).score == 1.0
    assert [usual.met("far", 5.0, 0) for _ in range(9)] == [None] * 9
    assert usual.reference("far", 0) == pytest.approx(UNTRUSTED * 1.2)
    assert meet(usual, "far", 5.0).score == 2.0


def test_ordinary_exchanges_clear_a_strike(usual):
    meet(usual, "far", 5.0, 0)
    meet(usual, "far", 1.0, 1)
    meet(usual, "far", 1.0, 2)
    assert meet(usual, "far", 5.0, 3).score == 1.0


@pytest.fixture
def back(usual):
    """The same, after a refusal of the peer "far", which ends in round REFUSED + 1."""
    while not meet(usual, "far", 5.0, 0).refused:
        pass
    return usual


def again(it, peer, distance, at):
    """Return the verdict on a peer, after ordinary exchanges with others."""
    for other, usual in enumerate([1.4, 1.2, 1.0]):
        it.met(str(other), usual, at)
    return it.met(peer, distance, at)


def test_nothing_is_taken_of_a_refused_peer_and_it_is_not_judged(back):
    for at in (1, REFUSED):
        assert share(1e-6, back.reference("far", at)) < 1e-20
        assert back.credit("far", at, None) == 0.0
        assert agreed(1.0, 1e-6, back.reference("far", at)) < 1e-20, "nor a flow agreed on"
        assert again(back, "far", 1e9, at) is None
    assert back.reference("far", REFUSED + 1) == pytest.approx(UNTRUSTED * 1.2)
    assert back.credit("far", REFUSED + 1, None) == 1.0


def test_a_returned_peer_is_refused_for_twice_as_long_after_one_strike(back):
    at, refusals = REFUSED + 1, []
    for _ in range(DOUBLED + 2):
        refusals.append(again(back, "far", 5.0, at).refused)
        at += refusals[-1] + 1
    assert refusals[:3] == [2 * REFUSED, 4 * REFUSED, 8 * REFUSED]
    assert refusals[DOUBLED - 1 :] == [REFUSED << DOUBLED] * 3


def test_a_returned_peer_must_be_as_near_as_others_until_cleared(back):
    for _ in range(4):
        assert again(back, "far", UNTRUSTED * LIMIT * 1.2, REFUSED + 1) is None
    assert again(back, "far", FAR * 1.2, REFUSED + 1) is None
    assert again(back, "far", 5.0, REFUSED + 1).score == 1.0


def test_who_comes_back_is_struck_by_whatever_is_shortened(back):
    assert again(back, "far", 1.01 * UNTRUSTED * LIMIT * 1.2, REFUSED + 1).refused == 2 * REFUSED


def test_refused_peers_are_not_part_of_the_reference(usual):
    meet(usual, "low", 0.1, 0)
    meet(usual, "far", 5.0, 0)
    meet(usual, "lower", 0.1, 0)
    assert measured(usual) == pytest.approx(1.2)  # of 0.1, 0.1, 1, 1.2, 1.2, 1.4 and 4.8
    while not meet(usual, "far", 5.0, 0).refused:
        pass
    assert measured(usual) == pytest.approx(1.0)  # of 0.1, 0.1, 1, 1.2, 1.2 and 1.4


def test_if_half_of_the_peers_are_far_nobody_is_judged_or_clipped(usual):
    """For example slow and fast nodes, or a healed partition: refusing each other would keep them apart."""
    for count, peer in enumerate("abc"):
        assert meet(usual, peer, 5.0, 0).refused == 0, f"{count} of 3 others are far"
    assert usual.reference("a", 0) > 0.0
    assert meet(usual, "d", 5.0, 0) is None, "3 of 6 are"
    assert usual.reference("d", 0) == 0.0
    assert usual.reference("0", LATELY + 1) == 0.0


def test_one_liar_cannot_make_a_swarm_look_divided(usual):
    """However far away it is, and although it was refused."""
    meet(usual, "far", 1e9, 0)
    assert all(usual.reference(peer, 0) > 0.0 for peer in ("far", "new", "0"))
    meet(usual, "far", 1e9, 0)
    assert all(usual.reference(peer, 0) > 0.0 for peer in ("far", "new", "0"))


def test_distances_of_long_ago_are_not_compared_with(usual):
    assert measured(usual, LATELY) == pytest.approx(1.2)
    assert usual.reference("new", LATELY + 1) == 0.0


def test_late_in_a_run_a_reference_that_has_become_small_accuses_nobody():
    """A node with more data moves on while the others stand still."""
    it = trusting(knowing([1.0, 1.0, 1.0], step=1.0), "more")
    for at in range(5):
        for peer in range(4):
            it.met(str(peer), 1.0, at)
    for at in range(100, 102):
        for peer in range(3):
            it.met(str(peer), 0.05, at)
    assert it.reference("more", 102) == pytest.approx(0.05)
    assert it.met("more", 1.5, 102) is None


def going(*progress, rounds=1):
    """Return a node whose peers "0", "1", … are near and have this progress."""
    it = Distances()
    it.stepped(0.8)
    for at in range(rounds):
        for peer, made in enumerate(progress):
            it.met(str(peer), 1.2, at, made)
    return it


def lagging(it, made, at=0, peer="liar"):
    """Return the verdict on a near peer with this progress, after an exchange with another."""
    it.met("0", 1.2, at, 0.8)
    return it.met(peer, 1.2, at, made)


def test_who_is_near_but_where_all_began_is_struck_and_refused_as_one_that_is_far():
    it = going(0.8, 0.7, 0.9)
    assert lagging(it, 0.0) == Far(1.2, pytest.approx(1.2), 1.0, 0, 0.0, 0.7)
    assert lagging(it, 0.0).score == 2.0
    assert lagging(it, 0.0).refused == REFUSED


def test_less_than_half_of_the_least_progress_of_others_is_a_strike():
    it = going(0.8, 0.7, 0.9)
    assert lagging(it, BEHIND * 0.7) is None
    assert lagging(it, 0.99 * BEHIND * 0.7) is not None
    assert lagging(going(0.8, 0.7, 0.9), -3.0) is not None


def test_our_own_progress_is_one_of_those_compared_with():
    assert going(8.0, 7.0, 9.0).met("new", 1.2, 0, BEHIND) is None
    assert going(8.0, 7.0, 9.0).met("new", 1.2, 0, 0.99 * BEHIND) is not None


def test_honest_peers_that_a_liar_drives_apart_are_not_struck():
    """By label `dissensus` drives some back to a fifth of the way of others, whose median is .7: if these refuse them, they are lost."""
    it = going(0.7, 0.2, 0.9, 0.7)
    assert lagging(it, 0.05) is None
    assert it.credit("another", 0, 0.05) < 1.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(-1.0, 2.0), st.floats(0.0, 1.0))
def test_whatever_progress_a_peer_shows_makes_nobody_else_struck(made, shown, other):
    it, without = going(*made), going(*made, None)
    it.met("liar", 1.2, 0, shown)
    if len(made) >= 3 and without.met("new", 1.2, 0, other) is None:
        assert it.met("new", 1.2, 0, other) is None


def test_the_step_towards_a_peer_that_is_behind_is_as_short_as_its_progress():
    """It is whole where being behind begins, so no honest peer at the bound loses half a step by a hair. The usual is the lower median of
    the others and of our own, 1: of .7, .8, .9 and 1.
    """
    it = going(0.8, 0.7, 0.9)
    for part in (0.0, 0.25, 0.99, 1.0, 2.0):
        assert it.credit("another", 0, part * BEHIND * 0.8) == pytest.approx(min(1.0, part))
    assert it.credit("another", 0, -3.0) == 0.0
    assert it.credit("another", 0, None) == 1.0, "unknown"
    held_back = going(0.5 * COMMON, 0.8, 0.5 * COMMON)
    assert held_back.credit("another", 0, 0.0) == 1.0, "where ways have little in common nothing is shortened"
    assert going(0.8, 0.8, None).credit("another", 0, 0.0) == 1.0, "two others say nothing"
    assert going(0.0, 0.0, 0.0).credit("another", 0, 0.0) == 1.0, "nobody has moved"


def test_where_ways_have_little_in_common_nobody_is_behind():
    for usual, struck in ((0.99 * COMMON, False), (COMMON, True)):
        it = going(0.8, usual, usual)
        assert (lagging(it, -1.0) is not None) == struck


def test_the_progress_of_three_other_peers_is_needed_to_judge_one():
    assert lagging(going(0.8, 0.8, 0.8), 0.0) is not None
    assert lagging(going(0.8, 0.8, None), 0.0) is None, "distances are known of three"


def test_unknown_progress_is_not_judged_and_has_no_vote():
    it = going(0.8, 0.8, 0.8)
    assert lagging(it, None) is None
    assert lagging(it, 0.0, peer="another") is not None
    assert lagging(going(0.8, None, 0.5, None, None, 0.6), 0.24, peer="new") is not None, "of .5, .6, .8 and 1"


def test_refused_peers_and_those_of_long_ago_have_no_vote_on_progress():
    it = going(0.8, 0.8, 0.8)
    for liar in ("a", "b"):
        while not lagging(it, 0.0, peer=liar).refused:
            pass
    assert lagging(it, 0.39, peer="new") is not None
    late = LATELY + 1
    for peer in "345":
        it.met(peer, 1.2, late, None)
    assert it.met("new", 1.2, late, 0.0) is None


def test_who_is_as_far_behind_as_another_is_not_struck_but_its_steps_are_short():
    """Two that lie alike spare each other, and neither moves us."""
    it = going(0.8, 0.8, 0.8, 0.8)
    assert lagging(it, 0.1, peer="a") is not None
    for peer in "bcd":
        assert lagging(it, 0.0, peer=peer) is None
        assert it.credit(peer, 0, 0.0) == 0.0


def test_with_another_model_of_our_own_progress_is_measured_anew():
    it = going(0.8, 0.8, 0.8)
    it.restart()
    assert it.reference("new", 0) > 0.0, "distances are as they were"
    assert lagging(it, 0.0) is None
    for peer in "12":
        it.met(peer, 1.2, 0, 0.8)
    assert lagging(it, 0.0) is not None


@given(st.lists(st.floats(0.5, 1.0), min_size=4, max_size=12), st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.data())
def test_one_liar_moves_the_usual_progress_by_one_rank_at_most(made, lies, data):
    """Whatever it says of its own, it shortens the step towards nobody who was not behind a neighbouring rank."""
    liar, votes = str(data.draw(st.integers(0, len(made) - 1))), sorted([*made, 1.0])
    middle = (len(votes) - 1) // 2
    for lie in lies:
        it = going(*made)
        it.met(liar, 1.2, 0, lie)
        least, most = BEHIND * votes[max(0, middle - 1)], BEHIND * votes[middle + 1]
        assert it.credit("new", 0, most) == 1.0
        assert it.credit("new", 0, 0.99 * least) < 1.0 or lie < 0.5, "with its lie the usual may be too little to judge by"


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.5, 1.0)), max_size=60))
def test_peers_within_half_of_each_other_s_progress_are_never_struck(meetings):
    it = Distances()
    for at, (peer, made) in enumerate(meetings):
        it.stepped(0.8)
        assert it.met(str(peer), 1.2, at, made) is None


@pytest.mark.parametrize("length", [0.0, math.inf, math.nan])
def test_distances_of_zero_are_ignored(length):
    it = knowing([1.0, 1.0], step=length)
    assert it.reference("new", 0) == 0.0


@given(st.lists(st.floats(1.0, UNTRUSTED * LIMIT), min_size=4, max_size=12), st.lists(ANY, min_size=1, max_size=5), st.data())
def test_one_liar_moves_the_reference_by_one_rank_at_most(distances, lies, data):
    """Whatever it sends, it adds, removes or moves a single vote, where none of the others is far."""
    it, votes = knowing(distances), sorted(distances)
    liar = str(data.draw(st.integers(0, len(distances) - 1)))
    middle = (len(votes) - 1) // 2
    assert it.reference("new", 0) == UNTRUSTED * votes[middle]
    for distance in lies:
        it.met(liar, distance, 0)
        assert UNTRUSTED * votes[middle - 1] <= it.reference("new", 0) <= UNTRUSTED * votes[middle + 1]


@given(st.lists(LENGTHS, min_size=3, max_size=8), LENGTHS, st.lists(ANY, max_size=6))
def test_a_peer_s_reference_excludes_its_own_distances(distances, step, own):
    it = knowing(distances, step)
    before = it.reference("liar", 0)
    for distance in own:
        it.met("liar", distance, 0)
        assert it.reference("liar", 0) in (before, pytest.approx(before / UNTRUSTED)), "that it is trusted is all that it changes"


@given(st.lists(st.tuples(st.integers(0, 5), LENGTHS), max_size=40), LENGTHS, st.integers(-20, 20))
def test_the_rule_is_the_same_at_every_scale(meetings, step, exponent):
    scale = 2.0**exponent
    one, other = Distances(), Distances()
    one.stepped(step)
    other.stepped(scale * step)
    for at, (peer, distance) in enumerate(meetings):
        a, b = one.met(str(peer), distance, at), other.met(str(peer), scale * distance, at)
        assert (a and (a.score, a.refused)) == (b and (b.score, b.refused))
        assert other.reference("new", at) == scale * one.reference("new", at)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(1.0, UNTRUSTED * LIMIT)), max_size=60), st.floats(1.0 / OWN, LIMIT / OWN))
def test_peers_that_differ_by_less_than_the_bound_are_never_struck(meetings, step):
    it = Distances()
    for at, (peer, distance) in enumerate(meetings):
        it.stepped(step)
        assert it.met(str(peer), distance, at) is None


def test_memory_of_distances_is_bounded(usual):
    for peer in range(REMEMBERED + COMPARED):
        for near in range(2):
            usual.met(f"near {near} of {peer}", 1.0, 0)
        assert usual.met(f"far {peer}", 5.0, 0) is not None
    sizes = {name: len(kept) for name, kept in asdict(usual).items() if name in ("_seen", "_records")}
    assert sorted(sizes.values()) == [COMPARED, REMEMBERED]


@given(st.floats(0.0, 1e38), st.just(0.0) | st.floats(1e-38, 1e38))
def test_a_share_is_1_within_the_limit_and_clips_longer_distances_to_the_reference(distance, reference):
    part = share(distance, reference)
    if reference == 0.0 or distance <= LIMIT * reference:
        assert part == 1.0
    else:
        assert part < 1.0
        assert part * distance == pytest.approx(reference)


@given(LENGTHS, LENGTHS, LENGTHS, st.floats(-1e-7, 1e-7))
def test_both_ends_use_equal_shares_despite_rounding_of_norms(distance, ours, theirs, rounding):
    said = min(share(distance, ours), share(distance, theirs))
    assert agreed(said, distance * (1.0 + rounding), theirs) == said


@given(st.floats(0.0, 1.0), LENGTHS, LENGTHS)
def test_the_other_end_s_report_can_only_reduce_a_share(said, distance, reference):
    assert agreed(said, distance, reference) <= min(said, share(distance * (1.0 - 1e-5), reference))
