"""FoolsGold: clones lose their weight and nobody else does; what it cannot see is written down here as well."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.robust.sketches.foolsgold import similarity, weights
from starling.robust.sketches.sybilwall import combine
from starling.robust.sketches.sybilwall import weights as wall
from tests.strategies import examples, seeds


def histories(count, size, *labels):
    return torch.randn(count, size, generator=generator(0, "foolsgold", *labels))


def alphas(rows):
    return weights(similarity(rows))


def as_written(alike):
    """Algorithm 1, number by number, where no cosine is negative."""
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
def test_it_is_algorithm_1_where_no_similarity_is_negative(count, seed, spread):
    chance = generator(seed, "exact")
    rows = 1.0 + spread * torch.randn(count, 12, generator=chance).abs()
    alike = similarity(rows)
    assert weights(alike).tolist() == pytest.approx(as_written(alike), abs=1e-9)


def test_clones_lose_all_weight_and_the_honest_none():
    clone = histories(1, 200, "clone")
    alpha = alphas(torch.cat((histories(5, 200, "honest"), clone, clone, clone)))
    assert alpha[:5].tolist() == [1.0] * 5
    assert alpha[5:].tolist() == [0.0] * 3


def test_clones_are_found_however_many_they_are():
    """More than half are no shelter, as they are from rules that count."""
    clone = histories(1, 200, "clone")
    alpha = alphas(torch.cat((histories(2, 200, "honest"), clone.expand(20, -1))))
    assert alpha[:2].tolist() == [1.0, 1.0]
    assert alpha[2:].max() == 0.0


def test_who_is_a_little_like_clones_is_pardoned():
    """Between an honest node and clones its similarity is scaled down by how much less alike it is than they are."""
    clone = histories(1, 400, "clone")
    honest = histories(1, 400, "honest") + 0.8 * clone
    rows = torch.cat((honest, clone, clone, histories(2, 400, "others")))
    alike = similarity(rows)
    assert alike[0, 1] > 0.6
    alpha = weights(alike)
    assert alpha[1:3].tolist() == [0.0, 0.0]
    assert alpha[0] > 0.8
    strict = 1.0 - float(alike[0].max())
    assert math.log(strict / (1.0 - strict)) + 0.5 < 0.1  # what it would get without


def test_one_peer_alone_is_like_nobody():
    assert alphas(histories(1, 10)).tolist() == [1.0]


def test_nobody_is_nobody():
    assert alphas(torch.zeros(0, 4)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_all_are_clones_every_weight_is_zero(dtype):
    """Then a node goes on alone; Algorithm 1 divides by zero here. Cosines of equal rows are 1 but for rounding, which is no difference."""
    for draw in range(100):
        count = 2 + draw % 7
        clone = torch.randn(1, 3 + 7 * draw, generator=generator(draw, "clones"), dtype=dtype)
        assert alphas(clone.expand(count, -1)).tolist() == [0.0] * count
        assert alphas(clone * torch.linspace(0.5, 2.0, count, dtype=dtype)[:, None]).tolist() == [0.0] * count


def test_who_has_no_history_yet_is_like_nobody():
    rows = torch.cat((torch.zeros(2, 50), histories(2, 50)))
    assert alphas(rows)[:2].tolist() == [1.0, 1.0]


def test_opposites_are_not_alike():
    """A negative cosine is no likeness, and pardoning must not make one of it."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    assert similarity(rows)[0].tolist() == [0.0, 0.0, 0.0]
    assert alphas(rows)[0] == 1.0


rows_of_numbers = seeds.map(lambda seed: torch.randn(6, 20, generator=generator(seed, "any")) + 0.3)


@given(rows=rows_of_numbers, order=st.permutations(range(6)))
@examples(40)
def test_order_and_length_do_not_matter_and_weights_are_shares(rows, order):
    alpha = alphas(rows)
    assert bool(((alpha >= 0) & (alpha <= 1)).all())
    assert alpha.max() == 1.0
    assert alphas(rows[list(order)]).tolist() == pytest.approx(alpha[list(order)].tolist(), abs=1e-9)
    lengths = torch.logspace(-20, 20, 6)[:, None]
    assert alphas(rows * lengths).tolist() == pytest.approx(alpha.tolist(), abs=1e-4)


def test_rows_have_nothing_to_do_with_each_other_and_nothing_is_changed():
    rows = histories(10, 30).reshape(2, 5, 30)
    before = rows.clone()
    together = alphas(rows)
    assert torch.equal(rows, before)
    for row in range(2):
        assert torch.equal(together[row], alphas(rows[row]))


def test_huge_histories_are_compared_as_well():
    rows = histories(3, 20)
    assert torch.allclose(similarity(rows * 1e38), similarity(rows), atol=1e-6)


# --- what it does not see: why it feeds a score, and combines nothing by itself --------------------------------------


def test_sybils_that_differ_pass():
    """Each trains on poisoned data of its own: alike in purpose, not in direction."""
    purpose = histories(1, 400, "poison")
    alpha = alphas(torch.cat((histories(4, 400, "honest"), histories(4, 400, "sybils") + 0.4 * purpose)))
    assert alpha[4:].min() > 0.9


def test_who_copies_an_honest_peer_takes_its_weight_along():
    honest = histories(5, 200, "honest")
    alpha = alphas(torch.cat((honest, honest[:1])))
    assert alpha[0] == alpha[5] == 0.0
    assert alpha[1:5].tolist() == [1.0] * 4


# --- SybilWall -------------------------------------------------------------------------------------------------------


def test_one_clone_is_found_by_what_was_heard_of_the_others():
    """Less than one attack edge per honest node: alone it sees one clone, like nobody."""
    clone = histories(1, 200, "clone")
    asked = torch.cat((histories(4, 200, "honest"), clone))
    assert alphas(asked)[4] == 1.0
    heard = torch.cat((clone, histories(2, 200, "far")))
    alpha = wall(asked, heard)
    assert alpha.shape == (5,)
    assert alpha.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_nothing_heard_is_foolsgold():
    asked = histories(5, 50)
    assert torch.equal(wall(asked, torch.zeros(0, 50)), alphas(asked))


def test_our_own_model_counts_one_and_peers_their_weight():
    own, told = torch.tensor([1.0, 1.0]), torch.tensor([[4.0, 1.0], [1.0, 7.0], [9.0, 9.0]])
    mixed = combine(own, told, torch.tensor([True] * 3), torch.tensor([1.0, 0.5, 0.0]))
    assert mixed.tolist() == pytest.approx([(1 + 4 + 0.5) / 2.5, (1 + 1 + 3.5) / 2.5])


def test_without_weights_and_without_peers_nothing_moves():
    own, told = torch.tensor([1.0, 2.0]), torch.tensor([[9.0, 9.0]])
    assert torch.equal(combine(own, told, torch.tensor([True]), torch.tensor([0.0])), own)
    assert torch.equal(combine(own, told[:0], torch.ones(0, dtype=torch.bool), torch.zeros(0)), own)


def test_who_is_absent_gives_nobody_more_weight():
    own, told = torch.zeros(2), torch.tensor([[4.0, 4.0], [math.nan, math.inf]])
    mixed = combine(own, told, torch.tensor([True, False]), torch.tensor([1.0, 1.0]))
    assert mixed.tolist() == pytest.approx([4 / 3, 4 / 3])
