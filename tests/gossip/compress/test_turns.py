"""Every selector over successive exchanges of one edge with one seed: all of a vector is sent eventually."""

import pytest
import torch

from starling.gossip.compress.catalogue import SELECTORS
from starling.gossip.compress.quantize import Float32
from starling.gossip.compress.select.low_rank import Matrix
from starling.gossip.compress.support import Full
from starling.gossip.rng import generator

DIM, SEED, TURNS = 640, 7, 160
GIVEN = {
    "full": {},
    "fragment": {"parts": 10},
    "low_rank": {"rank": 1, "matrices": (Matrix(20, 20, 30),)},
    "layered": {"layers": ((0, 140), (140, 500)), "budget_bytes": 300, "quantizer": Float32()},
}


def gaussian(*labels):
    return torch.randn(DIM, generator=generator(0, "turns", *labels), dtype=torch.float64)


@pytest.fixture(params=SELECTORS.built_in)
def name(request):
    return request.param


@pytest.fixture
def selector(name):
    return SELECTORS.build("compress", name, GIVEN.get(name, {"ratio": 0.1}))


def test_successive_exchanges_of_a_fixed_vector_recover_it(selector):
    """One end's estimate converges to the other's vector: masks cover all coordinates, and known ones are no longer large."""
    x, known = gaussian("fixed"), gaussian("known at first")
    start = float((x - known).norm())
    for turn in range(TURNS):
        before = known.clone()
        support = selector.select(x, known, SEED, turn)
        known = support.put(before, support.take(x))
        assert float((x - known).norm()) <= float((x - before).norm()) + 1e-12 * start
    assert float((x - known).norm()) < 1e-6 * start


def test_comparing_selectors_read_the_difference_and_others_read_nothing(name, selector):
    """As the table says, which decides whether nodes store estimates for them. A selection of everything is the same in any exchange."""
    x, known = gaussian("own"), gaussian("known")
    chosen = selector.select(x, known, SEED, 3)
    assert chosen == selector.select(x - known, None, SEED, 3)
    assert SELECTORS.facts(name).compares == (chosen != selector.select(x, None, SEED, 3))


def test_a_seed_and_a_step_determine_the_selection(name, selector):
    x = gaussian("own")
    chosen = selector.select(x, None, SEED, 3)
    assert chosen == selector.select(x, None, SEED, 3)
    others = [selector.select(x, None, seed, turn) for seed, turn in ((SEED, 4), (SEED + 1, 3))]
    if name != "top_k_sampled":  # so short a vector is its own sample
        assert [chosen != other for other in others] == [SELECTORS.facts(name).random] * 2


def test_taking_returns_what_was_put_and_leaves_the_rest(selector):
    """For subspaces the rest is the vector minus its projection."""
    x, other = gaussian("own"), gaussian("other")
    support = selector.select(x, None, SEED, 0)
    before = x.clone()
    mixed = support.put(x, support.take(other))
    torch.testing.assert_close(support.take(mixed), support.take(other), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(support.put(mixed, support.take(x)), x, rtol=1e-6, atol=1e-6)
    assert torch.equal(x, before)
    assert (support == Full()) == torch.allclose(mixed, other)
