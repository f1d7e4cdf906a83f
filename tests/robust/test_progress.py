"""Progress of a peer along a node's own way, measured on coordinates that the node has drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support
from starling.gossip.vector import SAMPLED
from starling.robust.progress import Unwatched, Watched
from tests.strategies import examples, seeds

DIM = 90
SUPPORTS = (Full(), Fragment(1, 3), Blocks(5, 2, 4, 8), Indices(torch.arange(0, DIM, 2)))
MANY = SAMPLED + 10_000


def vectors(seed, count, dim=DIM):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def drawn(count):
    return np.random.default_rng(1).random(count)


def nothing_drawn(_count):
    raise AssertionError("all coordinates are watched")


def progress(support, start, own, peer, uniform=nothing_drawn):
    """Return the progress of `peer` on a support, along the way from `start` to `own`."""
    return Watched(start, uniform).along(support, own)(support.take(own - peer), 1.0)


@given(seeds, st.floats(-1.0, 2.0), st.sampled_from(SUPPORTS))
@examples(100)
def test_who_went_a_share_of_our_way_has_that_progress_and_noise_adds_none(seed, share, support):
    start, own, noise = vectors(seed, 3)
    way = support.take(own - start)
    across = support.put(noise, support.take(noise) - (support.take(noise) @ way) / (way @ way) * way)
    peer = start + share * (own - start) + across
    assert progress(support, start, own, peer) == pytest.approx(share, abs=1e-4)


@given(seeds, st.integers(-20, 20), st.sampled_from(SUPPORTS))
@examples(50)
def test_progress_depends_on_no_scale_and_not_on_where_0_is(seed, exponent, support):
    start, own, peer = vectors(seed, 3).double()
    first = progress(support, start, own, peer)
    assert progress(support, 2.0**exponent * start, 2.0**exponent * own, 2.0**exponent * peer) == pytest.approx(first)
    assert progress(support, start + 1.0, own + 1.0, peer + 1.0) == pytest.approx(first)


def test_honest_models_with_steps_of_their_own_have_nearly_equal_progress():
    common, start, *own = vectors(0, 8, 4000)
    models = [start + 2.0 * common + each for each in own]
    made = [progress(Full(), start, models[0], peer) for peer in models[1:]]
    assert made == pytest.approx([4.0 / 5.0] * 5, abs=0.06)


@pytest.mark.parametrize("numbers", [torch.zeros(DIM), torch.full((DIM,), 1e200, dtype=torch.float64)])
def test_without_a_way_or_beyond_all_numbers_there_is_no_progress(numbers):
    start = torch.zeros_like(numbers)
    assert Watched(start, nothing_drawn).along(Full(), numbers)(numbers, -1e300) is None


def test_a_difference_may_be_scaled():
    start, own, peer = vectors(2, 3)
    made = Watched(start, nothing_drawn).along(Full(), own)
    assert made(4.0 * (peer - own), -0.25) == pytest.approx(made(own - peer, 1.0))


def test_coefficients_say_nothing_of_progress():
    one = torch.ones(DIM)
    assert Watched(torch.zeros(DIM), nothing_drawn).along(Support(), one)(one, 1.0) is None
    assert Unwatched().along(Full(), one)(one, 1.0) is None


def test_the_beginning_is_a_copy():
    start, own = vectors(3, 2)
    began = Watched(start, nothing_drawn)
    before = began.along(Full(), own)(own, 1.0)
    start.zero_()
    assert began.along(Full(), own)(own, 1.0) == before


@pytest.mark.parametrize("support", [Full(), Fragment(1, 3), Blocks(5, 2, 40, 256)])
def test_of_many_coordinates_some_are_drawn_which_estimate_all(support):
    start, own, noise = vectors(4, 3, MANY)
    began = Watched(start, drawn)
    assert began.places.numel() <= SAMPLED
    assert torch.equal(began.places, torch.unique((torch.from_numpy(drawn(SAMPLED)) * MANY).long()))
    assert torch.equal(began.values, start[began.places])
    assert progress(support, start, own, start + 0.3 * (own - start) + 0.3 * noise, drawn) == pytest.approx(0.3, abs=0.03)


def test_a_lie_on_the_coordinates_that_are_not_drawn_changes_nothing_and_one_on_drawn_ones_does():
    start, own = vectors(5, 2, MANY)
    began = Watched(start, drawn)
    for watched, expected in ((False, 0.0), (True, 1.0)):
        peer = own.clone() if watched else start.clone()
        others = torch.ones(MANY, dtype=torch.bool)
        others[began.places] = False
        peer[others] = -9.0
        assert began.along(Full(), own)(own - peer, 1.0) == pytest.approx(expected, abs=1e-5)


def test_the_largest_number_drawn_is_a_coordinate():
    assert int(Watched(torch.zeros(MANY), np.ones).places[-1]) == MANY - 1
