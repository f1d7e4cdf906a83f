"""Periodic averaging: an exact all-reduce made of pairwise exchanges, with any overlay in between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.catalogue import OVERLAYS, overlay
from starling.gossip.overlay.measure import matrix, rows
from starling.gossip.overlay.one_peer import OnePeerExponential, RandomMatching
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.stages import ORDINARY, Stage, stage
from starling.gossip.overlay.static import Alone, Ring

inners = st.sampled_from([Alone(), Ring(), OnePeerExponential(), RandomMatching(4)])


@given(inner=inners, n=st.integers(2, 40), k=st.integers(1, 3), every=st.integers(1, 9), overlap=st.booleans(), cycles=st.integers(0, 50))
def test_after_each_sweep_all_nodes_have_the_mean_of_their_initial_vectors(inner, n, k, every, overlap, cycles):
    part = Periodic(inner, every, k, overlap)
    cycle = part.cycle(n)
    x = np.random.default_rng(n).normal(size=(n, 2))
    mean = x.mean(axis=0)
    for t in range(cycles * cycle, (cycles + 1) * cycle):
        x = rows(part, n, t).apply(x)
    assert part.stage(n, t).last
    assert np.abs(x - mean).max() < 1e-12


@given(n=st.integers(1, 40), k=st.integers(1, 3), every=st.integers(1, 9), start=st.integers(0, 500))
def test_a_cycle_has_the_configured_training_rounds_and_none_within_a_sweep(n, k, every, start):
    part = Periodic(Alone(), every, k)
    sweep = BaseK(k).period(n)
    first = start * part.cycle(n)
    stages = [part.stage(n, t) for t in range(first, first + part.cycle(n))]
    assert part.cycle(n) == every + sweep - 1
    assert [each.local for each in stages] == [True] * every + [False] * (sweep - 1)
    assert [each.first for each in stages].index(True) == every - 1
    assert sum(each.first for each in stages) == sum(each.last for each in stages) == 1
    assert stages[-1].last


@given(n=st.integers(1, 40), k=st.integers(1, 3), every=st.integers(1, 30))
def test_with_overlap_local_steps_never_pause_and_the_sweep_takes_the_last_rounds_of_the_cycle(n, k, every):
    part = Periodic(Ring(), every, k, overlap=True)
    sweep = BaseK(k).period(n)
    cycle = part.cycle(n)
    assert cycle == max(every, sweep)
    stages = [part.stage(n, t) for t in range(cycle)]
    assert all(each.local for each in stages)
    assert [each.first for each in stages].index(True) == cycle - sweep
    assert [each.last for each in stages].index(True) == cycle - 1
    for t in range(cycle):
        expected = Ring().row(0, n, t) if t < cycle - sweep else BaseK(k).row(0, n, t - (cycle - sweep))
        assert part.row(0, n, t) == expected


def test_the_inner_overlay_never_skips_a_round():
    n = 33
    part = Periodic(OnePeerExponential(), 3)
    inner = [t for t in range(6 * part.cycle(n)) if t % part.cycle(n) < 2]
    for count, t in enumerate(inner):
        assert part.row(0, n, t) == OnePeerExponential().row(0, n, count)
    assert part.period(n) == 3 * part.cycle(n)


def test_a_lone_member_has_a_sweep_of_one_empty_round():
    part = Periodic(Ring(), 4)
    assert [part.stage(1, t) for t in range(4)] == [Stage(local=True, first=False, last=False)] * 3 + [ORDINARY]
    assert [part.row(0, 1, t) for t in range(8)] == [{}] * 8
    assert part.cycle(1) == part.period(1) == 4


@pytest.mark.parametrize("kind", OVERLAYS)
def test_without_periodic_averaging_every_round_is_a_single_round(kind):
    part = overlay(kind, 2, 3)
    assert stage(part, 8, 5) == ORDINARY == Stage(local=True, first=True, last=True)
    averaged = overlay(kind, 2, 3, average_every=5)
    assert stage(averaged, 8, 5) == averaged.stage(8, 5) != ORDINARY
    assert averaged.symmetric == part.symmetric


def test_a_lazy_inner_overlay_leaves_the_sweep_exact():
    part = overlay("ring", 1, 0, average_every=2, weights="lazy")
    assert matrix(part, 6, 0)[0, 1] == pytest.approx(1 / 6)
    x = np.arange(6.0)
    for t in range(part.cycle(6)):
        x = matrix(part, 6, t) @ x
    assert np.abs(x - 2.5).max() < 1e-12
