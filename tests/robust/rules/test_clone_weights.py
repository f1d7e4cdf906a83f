"""FoolsGold's weights: clones lose theirs and honest peers do not; and which attackers pass."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.robust.rules.foolsgold import similarity, weights
from tests.strategies import examples, seeds


def histories(count, size, *labels):
    return torch.randn(count, size, generator=generator(0, "foolsgold", *labels))


CLONE, HONEST = histories(1, 200, "clone"), histories(5, 200, "honest")


def alphas(*rows):
    return weights(similarity(torch.cat(rows)))


def as_written(alike):
    """Compute Algorithm 1 number by number, for non-negative cosines."""
    count = len(alike)
    cs = [[float(alike[i][j]) for j in range(count)] for i in range(count)]
    v = [max(row) + 1e-5 for row in cs]
    for i in range(count):
        for j in range(count):
            if i != j and v[i] < v[j]:
                cs[i][j] *= v[i] / v[j]
    alpha = [min(max(1.0 - max(row), 0.0), 1.0) for row in cs]
    alpha = [each / max(alpha) for each in alpha]
    alpha = [0.99 if each == 1.0 else each for each in alpha]
    logits = [-math.inf if each == 0.0 else math.log(each / (1.0 - each)) + 0.5 for each in alpha]
    return [min(max(each, 0.0), 1.0) for each in logits]


@given(count=st.integers(2, 9), seed=seeds, spread=st.sampled_from([0.05, 0.5, 3.0]))
@examples(60)
def test_weights_equal_algorithm_1_for_non_negative_similarities(count, seed, spread):
    alike = similarity(1.0 + spread * torch.randn(count, 12, generator=generator(seed, "exact")).abs())
    assert weights(alike).tolist() == pytest.approx(as_written(alike), abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((HONEST, CLONE, CLONE, CLONE), [1.0] * 5 + [0.0] * 3),
        ((HONEST[:2], CLONE.expand(20, -1)), [1.0] * 2 + [0.0] * 20),  # also if clones are a majority
        ((HONEST[:1],), [1.0]),
        ((HONEST[:0],), []),
        ((torch.zeros(2, 200), HONEST[:2]), [1.0] * 4),  # without a history
        ((HONEST, HONEST[:1]), [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]),  # a copy of an honest peer removes the weight of both
    ],
)
def test_clones_lose_all_weight_and_others_none(rows, expected):
    assert alphas(*rows).tolist() == expected


def test_a_peer_slightly_similar_to_clones_keeps_its_weight():
    clone = histories(1, 400, "clone")
    honest = histories(1, 400, "honest") + 0.8 * clone
    alike = similarity(torch.cat((honest, clone, clone, histories(2, 400, "others"))))
    assert alike[0, 1] > 0.6
    alpha = weights(alike)
    assert alpha[1:3].tolist() == [0.0, 0.0]
    assert alpha[0] > 0.8
    strict = 1.0 - float(alike[0].max())
    assert math.log(strict / (1.0 - strict)) + 0.5 < 0.1  # without the pardon


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_if_all_are_clones_every_weight_is_zero(dtype):
    for draw in range(100):
        count = 2 + draw % 7
        clone = torch.randn(1, 3 + 7 * draw, generator=generator(draw, "clones"), dtype=dtype)
        assert alphas(clone.expand(count, -1)).tolist() == [0.0] * count
        assert alphas(clone * torch.linspace(0.5, 2.0, count, dtype=dtype)[:, None]).tolist() == [0.0] * count


def test_negative_cosines_count_as_0():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    assert similarity(rows)[0].tolist() == [0.0, 0.0, 0.0]
    assert alphas(rows)[0] == 1.0


@given(seed=seeds, order=st.permutations(range(6)))
@examples(40)
def test_order_and_length_do_not_matter_and_weights_are_shares(seed, order):
    rows = torch.randn(6, 20, generator=generator(seed, "any")) + 0.3
    alpha = alphas(rows)
    assert bool(((alpha >= 0) & (alpha <= 1)).all())
    assert alpha.max() == 1.0
    assert alphas(rows[list(order)]).tolist() == pytest.approx(alpha[list(order)].tolist(), abs=1e-9)
    lengths = torch.logspace(-20, 20, 6)[:, None]
    assert alphas(rows * lengths).tolist() == pytest.approx(alpha.tolist(), abs=1e-4)
    assert torch.allclose(similarity(rows / rows.abs().max() * 1e38), similarity(rows), atol=1e-6)


def test_batches_are_independent_and_inputs_are_not_modified():
    rows = histories(10, 30).reshape(2, 5, 30)
    before = rows.clone()
    together = weights(similarity(rows))
    assert torch.equal(rows, before)
    for row in range(2):
        assert torch.equal(together[row], alphas(rows[row]))


def test_sybils_with_different_updates_pass():
    """Each trains on its own poisoned data, so their directions differ."""
    purpose = histories(1, 400, "poison")
    assert alphas(histories(4, 400, "honest"), histories(4, 400, "sybils") + 0.4 * purpose)[4:].min() > 0.9
