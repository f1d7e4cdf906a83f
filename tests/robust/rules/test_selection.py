"""Krum and multi-Krum compared with the paper's definition by enumeration of all subsets."""

from itertools import combinations

import pytest
import torch
from hypothesis import given

from starling.gossip.rng import generator
from starling.robust.catalogue import rule
from tests.strategies import examples, seeds

SIZES = [(n, f) for n in range(5, 10) for f in (1, 2) if n >= 2 * f + 3]


def by_definition(vectors, f):
    """Return the score of each of n vectors: the smallest sum of squared distances over all sets of n − f − 2 others.

    Source: Blanchard et al. 2017 (arXiv:1703.02757), section 4.
    """
    n = len(vectors)
    return [
        min(
            sum(float((vectors[i] - vectors[j]).square().sum()) for j in some)
            for some in combinations([j for j in range(n) if j != i], n - f - 2)
        )
        for i in range(n)
    ]


def drawn(seed, n, f):
    """Draw n vectors of 3 numbers: tight clusters of f and f + 1, and the others far apart.

    Whether one neighbor more or less counts decides which cluster wins.
    """
    chance = generator(seed, "krum")
    vectors = 6.0 * torch.randn(n, 3, generator=chance, dtype=torch.float64)
    close = int(torch.randint(2, n + 1, (1,), generator=chance))
    vectors[:close] = vectors[0] + 0.3 * torch.randn(close, 3, generator=chance, dtype=torch.float64)
    return vectors[torch.randperm(n, generator=chance)]


@pytest.mark.parametrize(("n", "f"), SIZES)
@given(seed=seeds)
@examples(20)
def test_selected_vectors_have_the_definition_s_lowest_scores(n, f, seed):
    vectors = drawn(seed, n, f)
    score = by_definition(vectors, f)
    order = sorted(range(n), key=score.__getitem__)
    own, received = vectors[0], vectors[1:]
    present = torch.ones(n - 1, dtype=torch.bool)
    for name, chosen in (("krum", order[:1]), ("multi_krum", order[: n - f])):
        of = rule(name, {"f": f})
        combined = of.combine(of.start(own), own, received, present, own, None)[0]
        torch.testing.assert_close(combined, vectors[chosen].mean(dim=0), rtol=1e-9, atol=1e-9)
