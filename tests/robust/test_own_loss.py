"""Who is worse on a node's own data: liars cannot accuse, and neither distance nor loss alone accuses anybody."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.robust.distances import NAMED, REFUSED, Distances
from starling.robust.own_loss import ALIKE, COMPARED, EVERY, LATELY, NEAR, VOTES, WORSE, OwnLoss

RATIOS = st.floats(0.1, 10.0)
USUAL = 2.0
OFF = 1.01 * NEAR * USUAL


def comparing(*ratios, round=0):
    """Return a node that has compared with peers "0", "1", … at these ratios, all near."""
    it = OwnLoss()
    for peer, ratio in enumerate(ratios):
        compare(it, str(peer), ratio, round, USUAL)
    return it


def compare(it, peer, ratio, round=0, distance=OFF):
    """Exchange with a peer and compute both losses, if they are needed; return what is found of it at the next exchange."""
    it.met(peer, distance, USUAL, round)
    if it.due(peer):
        it.record(peer, 0.5, 0.5 * ratio, round)
    return it.met(peer, USUAL, USUAL, round)


@given(st.lists(RATIOS, min_size=VOTES, max_size=6), RATIOS)
def test_a_peer_is_worse_if_far_and_above_the_largest_ratio_by_a_quarter(others, ratio):
    found, largest = compare(comparing(*others), "liar", ratio), max(1.0, *others)
    if found is None:
        assert ratio <= WORSE * largest * (1.0 + 1e-9) or largest > ALIKE * (1.0 - 1e-9)
    else:
        assert ratio > WORSE * largest * (1.0 - 1e-9)
        assert largest <= ALIKE * (1.0 + 1e-9)
        assert found == (pytest.approx(ratio), pytest.approx(largest))


@given(st.lists(RATIOS, min_size=VOTES, max_size=6), RATIOS, RATIOS)
def test_whatever_a_peer_shows_accuses_nobody_else(others, shown, ratio):
    """It can only raise the measure of the others."""
    without, with_it = comparing(*others), comparing(*others)
    compare(with_it, "liar", shown)
    assert compare(with_it, "honest", ratio) is None or compare(without, "honest", ratio) is not None


@given(st.lists(RATIOS, min_size=VOTES, max_size=6), st.floats(0.0, NEAR * USUAL), st.floats(0.0, 1e30))
def test_a_near_model_is_never_worse_nor_one_without_a_usual_distance(others, near, anywhere):
    it = comparing(*others)
    assert compare(it, "liar", 1e6, EVERY, near) is None
    it.met("liar", anywhere, 0.0, 2 * EVERY)
    it.record("liar", 1.0, 1e6, 2 * EVERY)
    assert it.met("liar", USUAL, USUAL, 2 * EVERY) is None


def test_where_honest_models_differ_much_on_our_data_nobody_is_worse():
    assert compare(comparing(1.0, 1.0, 0.99 * ALIKE), "liar", 100.0) is not None
    assert compare(comparing(1.0, 1.0, 1.01 * ALIKE), "liar", 100.0) is None


def test_fewer_than_three_others_are_no_measure_nor_are_old_ones():
    assert compare(comparing(*[1.0] * (VOTES - 1)), "liar", 100.0) is None
    assert compare(comparing(*[1.0] * VOTES), "liar", 100.0, LATELY + 1) is None
    assert compare(comparing(*[1.0] * VOTES), "liar", 100.0, LATELY) is not None


def test_losses_are_needed_of_far_models_and_else_once_in_some_rounds():
    it = comparing(1.0)
    it.met("0", NEAR * USUAL, USUAL, EVERY - 1)
    assert not it.due("0")
    it.met("0", OFF, USUAL, EVERY - 1)
    assert it.due("0")
    it.met("0", USUAL, USUAL, EVERY)
    assert it.due("0")
    assert not it.due("1"), "never met"


def test_a_worse_model_is_no_measure_of_others():
    it = comparing(1.0, 1.0, 1.0)
    assert compare(it, "liar", 1e6) is not None
    assert compare(it, "other", 2.0) is not None


@pytest.mark.parametrize("losses", [(0.0, 1.0), (-1.0, -5.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, -1.0), (1.0, math.nan)])
def test_of_losses_that_are_not_positive_nothing_is_learned(losses):
    it = comparing(1.0, 1.0, 1.0)
    it.met("liar", OFF, USUAL, 0)
    it.record("liar", *losses, 0)
    assert not it.due("liar")
    assert it.met("liar", OFF, USUAL, 0) is None


def test_a_model_without_a_finite_loss_is_worse_and_no_measure():
    it = comparing(1.0, 1.0, 1.0)
    assert compare(it, "liar", math.inf) is not None
    it.met("near", USUAL, USUAL, 0)
    it.record("near", 1.0, math.inf, 0)
    assert compare(it, "other", 1.5) is not None


def test_another_model_of_ours_is_compared_anew():
    it = comparing(1.0, 1.0, 1.0)
    it.met("liar", OFF, USUAL, 0)
    it.record("liar", 1.0, 9.0, 0)
    it.restart()
    assert it.met("liar", OFF, USUAL, 0) is None
    it.record("liar", 1.0, 9.0, 0)
    assert it.met("liar", OFF, USUAL, 0) is None


@pytest.mark.parametrize(("distance", "worse"), [(1.5 * USUAL, True), (100.0 * USUAL, False)])
def test_losses_are_the_reason_only_where_the_distance_is_none(distance, worse):
    """So that who is far has a fault at its first strike, whatever its loss."""
    it = Distances()
    it.stepped(1.0)
    for peer in "0123":
        it.met(peer, USUAL, 0)
        it.losses.record(peer, 1.0, 1.2, 0)
    it.met("liar", 1.5 * USUAL, 0)
    it.losses.record("liar", 1.0, 3.0, 0)
    it.met("0", USUAL, 1)
    far = it.met("liar", distance, 1)
    assert (far.largest > 0.0) is worse
    assert far.is_fault is not worse


def test_memory_of_losses_is_bounded():
    it = comparing(*[1.0] * VOTES)
    for peer in range(3 * COMPARED):
        it.met(f"{peer} due", OFF, USUAL, 0)
        it.met(f"{peer} worse", OFF, USUAL, 0)
        it.record(f"{peer} worse", 1.0, 1e6, 0)
        it.met(f"{peer} near", USUAL, USUAL, 0)
        it.record(f"{peer} near", 1.0, 1.0, 0)
        assert max(map(len, asdict(it).values())) <= COMPARED
    assert it.due(f"{peer} due")
    assert not it.due("0 due")


def refused_for_losses():
    """Return a node that has just refused "liar" at an ordinary distance, and the verdict; the losses of that exchange are computed too."""
    it = Distances()
    it.stepped(1.0)
    for at in range(8):
        for peer in "0123":
            it.met(peer, USUAL, at)
            if it.losses.due(peer):
                it.losses.record(peer, 1.0, 1.2, at)
        far = it.met("liar", 1.5 * USUAL, at)
        it.losses.record("liar", 1.0, 3.0, at)
        if far is not None and far.refused:
            break
    return it, far


def test_who_is_worse_three_times_is_refused_though_its_distance_is_ordinary():
    _, far = refused_for_losses()
    assert (far.refused, far.score) == (REFUSED, NAMED)
    assert (far.ratio, far.largest) == (3.0, 1.2)
    assert far.distance < 2.0 * far.reference


def test_a_loss_found_before_a_refusal_is_no_strike_after_it():
    it, _ = refused_for_losses()
    assert it.met("liar", USUAL, REFUSED) is None, "it is refused"
    back = REFUSED + 8
    assert not it.refuses("liar", back)
    for peer in "0123":
        it.met(peer, USUAL, back)
    assert it.met("liar", USUAL, back) is None
