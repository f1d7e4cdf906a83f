"""Sketches of long vectors preserve cosines; and the effect of an attacker that knows the seed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.robust import sketches
from starling.robust.rules.foolsgold import similarity
from starling.robust.sketches import BUCKETS, sketch
from tests.strategies import examples, seeds


def vector(size, *labels):
    return torch.randn(size, generator=generator(0, "history", *labels))


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1))


@pytest.mark.parametrize("mixed", [0.0, 0.3, 0.8, 1.0])
def test_a_sketch_preserves_cosines(mixed):
    """Within four standard deviations of 1/√4096."""
    x, other = vector(50_000, "x"), vector(50_000, "y")
    y = mixed * x + math.sqrt(1 - mixed**2) * other
    assert cosine(sketch(x, 7), sketch(y, 7)) == pytest.approx(cosine(x, y), abs=4 / math.sqrt(BUCKETS))


@pytest.mark.parametrize("buckets", [64, 1024])
def test_the_error_shrinks_with_the_root_of_the_number_of_buckets(buckets):
    """Root mean square over 40 seeds of a cosine of 0: 1/√s."""
    x, y = vector(5000, "x"), vector(5000, "y")
    errors = [cosine(sketch(x, seed, buckets), sketch(y, seed, buckets)) - cosine(x, y) for seed in range(40)]
    assert 0.7 < math.sqrt(sum(error**2 for error in errors) / 40 * buckets) < 1.4


@given(a=st.floats(-3, 3), seed=seeds)
@examples(15)
def test_a_sketch_is_linear(a, seed):
    x, y = vector(700, "x"), vector(700, "y")
    together = sketch(a * x + y, seed, 64)
    assert torch.allclose(together, a * sketch(x, seed, 64) + sketch(y, seed, 64), atol=1e-4)


def test_a_sketch_depends_on_the_seed_and_not_on_other_rows():
    x = vector(3 * 1000, "x").reshape(3, 1000)
    assert not torch.equal(sketch(x, 5), sketch(x, 6))
    for row in range(3):
        assert torch.equal(sketch(x, 5)[row], sketch(x[row].clone(), 5))


def test_every_coordinate_counts_once_in_every_chunk():
    size = 2 * sketches.CHUNK + 3
    for place in (0, sketches.CHUNK - 1, sketches.CHUNK, size - 1):
        x = torch.zeros(size)
        x[place] = -2.0
        found = sketch(x, 1)
        assert (found.count_nonzero(), float(found.abs().sum())) == (1, 2.0)


def test_an_attacker_with_the_seed_can_make_clones_look_different():
    """A component along the signs of one bucket is √(d/s) = 7 times as long in the sketch."""
    x = vector(200_000, "x").requires_grad_()
    sketched = sketch(x, 3)
    moved = []
    for bucket in (1, 2):
        (signs,) = torch.autograd.grad(sketched[bucket], x, retain_graph=True)
        moved.append(x.detach() + signs / signs.norm() * x.detach().norm() * 0.3)
    assert cosine(*moved) > 0.9
    assert cosine(sketch(moved[0], 3), sketch(moved[1], 3)) < 0.3


def test_sketched_clones_are_as_similar_as_unsketched_ones():
    update = vector(20_000, "clone")
    sketched = similarity(sketch(torch.stack((update, update, vector(20_000, "honest"))), 4))
    assert float(sketched[0, 1]) == pytest.approx(1.0, abs=1e-6)
    assert float(sketched[0, 2]) < 0.1
