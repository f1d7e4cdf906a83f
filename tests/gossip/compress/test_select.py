"""Supports denote equal coordinates on every machine; selectors choose them exactly."""

import inspect
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import SELECTORS
from starling.gossip.compress.quantize import Fp16, Int4
from starling.gossip.compress.select.approximate import ChunkTopK, SampledTopK
from starling.gossip.compress.select.coordinates import Cocktail, Mask, RandomK, TopK, finest_block, kept, with_wish
from starling.gossip.compress.support import Blocks, Full, Indices, blocks_in
from starling.gossip.rng import generator
from tests.strategies import examples

RATED = [name for name, make in SELECTORS.items() if "ratio" in inspect.signature(make).parameters]


def indices(*values):
    return Indices(torch.tensor(values, dtype=torch.int64))


def gaussian(count, *labels):
    return torch.randn(count, generator=generator(0, *labels))


@st.composite
def vectors_and_supports(draw):
    dim = draw(st.integers(1, 600))
    block = draw(st.sampled_from([1, 7, 64]))
    blocks = blocks_in(dim, block)
    some = draw(st.sets(st.integers(0, dim - 1), min_size=1, max_size=20))
    seed, start, count = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, blocks - 1)), draw(st.integers(1, blocks))
    return dim, draw(st.sampled_from([Full(), Blocks(seed, start, count, block), indices(*sorted(some))]))


@given(case=vectors_and_supports())
@examples(60)
def test_a_support_takes_its_coordinates_in_ascending_order(case):
    """Size, ratio, index and values agree, so one end adds where the other took."""
    dim, support = case
    x = torch.arange(dim, dtype=torch.float64)
    taken = support.take(x)
    assert taken.numel() == support.size(dim) == round(support.ratio(dim) * dim)
    assert (taken[1:] > taken[:-1]).all()
    assert torch.equal(x[support.index(dim)], taken)
    x[support.index(dim)] += 1.0
    assert not torch.equal(x[support.index(dim)], taken), "a copy: the model moves on while an exchange lasts"


@given(seed=st.integers(0, 2**64 - 1), dim=st.integers(1, 3000), ratio=st.floats(0.02, 1.0))
@examples(40)
def test_a_rolling_mask_visits_every_coordinate_before_any_twice(seed, dim, ratio):
    """In as many exchanges as there are blocks, each coordinate is exchanged exactly `count` times; so the mask keeps exactly its
    share of ‖x‖² on average, for every vector.
    """
    mask, x = Mask(ratio), torch.zeros(dim)
    blocks = blocks_in(dim)
    visits = torch.zeros(dim)
    for turn in range(blocks):
        visits[mask.select(x, None, seed, turn).index(dim)] += 1
        assert visits.max() - visits.min() <= 1
    assert torch.equal(visits, torch.full((dim,), float(kept(ratio, blocks))))


def test_the_mask_is_the_same_on_every_machine():
    """Golden numbers from numpy's frozen Philox stream: both ends derive the mask, so it is part of the protocol."""
    assert Blocks(2026, 3, 4).index(1000)[::64].tolist() == MASK_OF_2026


MASK_OF_2026 = [64, 384, 448, 576]


def test_a_mask_that_holds_the_short_last_block_is_shorter():
    supports = [Blocks(5, start, 1) for start in range(4)]
    assert sorted(support.size(200) for support in supports) == [8, 64, 64, 64]


@pytest.mark.parametrize(
    "values", [[], [3, 3], [4, 3], [-1, 2], [0.5], [[1, 2]]], ids=["none", "twice", "falling", "negative", "float", "2-d"]
)
def test_indices_must_be_strictly_increasing(values):
    with pytest.raises(ValueError, match="indices must"):
        Indices(torch.tensor(values) if values else torch.empty(0, dtype=torch.int64))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.floats(0.01, 1.0))
@examples(80)
def test_top_k_is_exact_and_breaks_ties_by_the_lowest_index(values, ratio):
    x = torch.tensor(values, dtype=torch.float32)
    k = kept(ratio, x.numel())
    expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k])
    support = TopK(ratio).select(x, None, 0, 0)
    assert torch.arange(x.numel())[support.index(x.numel())].tolist() == expected


def made(name, **params):
    return SELECTORS.build("compress", name, params)


@pytest.mark.parametrize("selector", [made("full"), *(made(name, ratio=0.1) for name in RATED)], ids=["full", *RATED])
class TestEverySelector:
    def test_modifies_nothing_and_is_deterministic(self, selector):
        x, reference = gaussian(5000), gaussian(5000, "reference")
        before = x.clone(), reference.clone()
        assert selector.select(x, reference, 3, 4) == selector.select(x, reference, 3, 4)
        assert torch.equal(x, before[0])
        assert torch.equal(reference, before[1])

    @pytest.mark.parametrize("dim", [1, 2, 63, 64, 65, 1000])
    def test_its_support_survives_encoding(self, selector, dim):
        x = gaussian(dim)
        support = selector.select(x, None, 5, 2)
        payload = codec.encode(support.take(x), support, Fp16(), dim, generator(0))
        agreed = getattr(selector, "chunk", 0)
        assert codec.decode(payload, dim, torch.float32, [Fp16()], chunk=agreed)[0].take(x).equal(support.take(x))

    def test_works_on_vectors_of_either_precision_and_on_zeros(self, selector):
        for x in (gaussian(300).double(), torch.zeros(300)):
            assert 1 <= selector.select(x, None, 0, 0).size(300) <= 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((partial(Cocktail, 0.1, keep), f"keep must be finite and > 0 and <= 1, got {keep}") for keep in (0.0, 1.1)),
        *((partial(ChunkTopK, 0.1, chunk), f"chunk must be >= 64 and <= 4096, got {chunk}") for chunk in (63, 4097)),
        (partial(Cocktail, 0.3, 0.2), r"ratio must be in \(0, keep = 0.2\], got 0.3"),
        *((partial(Blocks, *bad), "seed|start") for bad in ((-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 0, 0), (0, 0, 1, 0))),
        (lambda: Blocks(0, 9, 1).index(100), "do not fit"),
        (lambda: with_wish(indices(1, 2), indices(3), 1), "limit"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    """Such as requests that would shrink the own support, or a cocktail that sends more than its mask."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", RATED)
@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, float("nan")])
def test_a_ratio_outside_zero_to_one_is_refused(name, ratio):
    with pytest.raises(ValueError, match=f"ratio must be finite and > 0 and <= 1, got {ratio}"):
        SELECTORS[name](ratio)


@pytest.mark.parametrize("name", [name for name in RATED if name != "cocktail"])
def test_a_ratio_of_one_is_the_whole_vector(name):
    assert made(name, ratio=1.0).select(torch.zeros(100), None, 0, 0) == Full()


def test_a_ratio_times_a_size_is_rounded_up_except_for_rounding_errors():
    assert kept(0.1, 30) == 3  # 0.1 · 30 is 3.0000000000000004
    assert kept(0.1, 31) == 4
    assert kept(0.001, 5) == 1


sets = st.sets(st.integers(0, 99), min_size=1, max_size=30).map(sorted)


@given(own=sets, wish=sets, extra=st.integers(0, 40))
@examples(60)
def test_requested_coordinates_follow_the_own_ones_up_to_the_limit(own, wish, extra):
    limit = len(own) + extra
    joined = set(with_wish(indices(*own), indices(*wish), limit).indices.tolist())
    assert set(own) <= joined <= set(own) | set(wish)
    assert len(joined) == min(limit, len(set(own) | set(wish)))


def test_random_k_draws_without_replacement_anew_for_every_step_and_seed():
    drawn = [RandomK(0.1).select(torch.zeros(1000), None, seed, turn) for seed in (1, 2) for turn in (0, 1)]
    places = {tuple(support.index(1000).tolist()) for support in drawn}
    assert len(places) == 4
    assert all(len(set(each)) == 100 for each in places)


def test_random_k_scaled_up_is_unbiased_and_its_error_is_the_published_omega():
    """E (d/k)·x_S = x and E‖(d/k)·x_S − x‖² = (d/k − 1)‖x‖², the two numbers of its theory. Within five standard errors."""
    dim, share, draws = 50, 0.1, 4000
    x = gaussian(dim)
    scaled = torch.zeros(draws, dim)
    for turn in range(draws):
        support = RandomK(share).select(x, None, 0, turn)
        scaled[turn, support.index(dim)] = support.take(x) / share
    deviation = x.abs() * math.sqrt(1 / share - 1) / math.sqrt(draws)
    assert ((scaled.mean(0) - x).abs() <= 5 * deviation).all()
    errors = (scaled - x).square().sum(1)
    assert abs(errors.mean() - (1 / share - 1) * x.square().sum()) <= 5 * errors.std() / math.sqrt(draws)


@pytest.mark.parametrize("dim", [1, 65_535, 65_536, 65_537, 131_072, 10**6, 64 * 65_536, 64 * 65_536 + 1, 10**7])
def test_random_k_draws_the_shortest_blocks_that_a_payload_may_name(dim):
    """The receiver sorts a permutation of the blocks, of which there are at most 65,536 or one per 64 coordinates."""
    block = finest_block(dim)
    support = Blocks(1, 0, 1, block)
    if blocks_in(dim, block) > 1:
        payload = codec.encode(torch.zeros(support.size(dim)), support, Fp16(), dim, generator(0))
        assert codec.decode(payload, dim, torch.float32, [Fp16()])[0] == support
    if block > 1:
        finer = Blocks(1, 0, 1, block - 1)
        payload = codec.encode(torch.zeros(finer.size(dim)), finer, Fp16(), dim, generator(0))
        with pytest.raises(ValueError, match="bad_support"):
            codec.decode(payload, dim, torch.float32, [Fp16()])


numbers = st.lists(st.integers(-3, 3), min_size=1, max_size=300)


@given(values=numbers, ratio=st.floats(0.01, 1.0), seed=st.integers(0, 2**62))
@examples(80)
def test_a_sampled_threshold_selects_the_largest_and_about_the_requested_number(values, ratio, seed):
    """For any sample: between .8 k and 1.3 k of them, and none left out is larger than one selected."""
    x = torch.tensor(values, dtype=torch.float32)
    k = kept(ratio, x.numel())
    index = torch.arange(x.numel())[SampledTopK(ratio).select(x, None, seed, 0).index(x.numel())]
    assert 0.8 * k <= index.numel() <= 1.3 * k
    left = torch.ones(x.numel(), dtype=torch.bool)
    left[index] = False
    assert x[index].abs().min() >= x[left].abs().max() if left.any() else index.numel() == x.numel()


@pytest.mark.parametrize("spread", ["light", "heavy"])
def test_a_sampled_threshold_is_near_the_exact_one_on_large_vectors(spread):
    x = gaussian(200_000)
    if spread == "heavy":
        x = x / gaussian(200_000, "below").abs().clamp_min(1e-3)
    counts = [SampledTopK(0.01).select(x, None, 0, turn).size(200_000) for turn in range(20)]
    assert all(0.8 * 2000 <= count <= 1.3 * 2000 for count in counts)
    assert sum(counts) / 20 == pytest.approx(2000, rel=0.05)
    assert len(set(counts)) > 1  # another step draws another sample


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("largest", [1.0, 1e9], ids=["alike", "of all magnitudes"])
def test_a_misleading_sample_costs_time_and_not_coordinates(offset, largest):
    """The thousand large ones are all sampled, or none is, so the threshold is far too high or too low. The selection still has the
    largest, and enough.
    """
    x = gaussian(100_000) * 1e-6
    x[offset : 30 * 1000 : 30] = torch.logspace(0, math.log10(largest), 1000)
    support = SampledTopK(0.01).select(x, None, 0, 0)
    assert 800 <= support.size(100_000) <= 1300
    left = x.abs().scatter(0, support.indices, 0.0)
    assert support.take(x).abs().min() >= left.max()


def test_a_sampled_threshold_of_zero_lists_no_indices():
    """Every coordinate passes it; eight bytes for each would be twice the vector itself."""
    x = torch.zeros(1_000_000)
    assert SampledTopK(0.01).select(x, None, 0, 0) == TopK(0.01).select(x, None, 0, 0)


@given(values=numbers, ratio=st.floats(0.01, 1.0), chunk=st.integers(64, 100))
@examples(60)
def test_chunk_top_k_is_exact_top_k_of_every_chunk(values, ratio, chunk):
    check_chunks(torch.tensor(values, dtype=torch.float32), ratio, chunk)


def test_chunks_of_a_long_vector_are_processed_in_pieces_with_the_same_result():
    check_chunks(gaussian(600_000), 0.01, 4096)


def check_chunks(x, ratio, chunk):
    support = ChunkTopK(ratio, chunk).select(x, None, 0, 0)
    expected = []
    for start in range(0, x.numel(), chunk):
        part = x[start : start + chunk]
        index = TopK(ratio).select(part, None, 0, 0).index(part.numel())
        expected += (start + torch.arange(part.numel())[index]).tolist()
    assert torch.arange(x.numel())[support.index(x.numel())].tolist() == expected


def test_cocktail_selects_the_largest_inside_this_steps_mask():
    x, cocktail = gaussian(10_000), Cocktail(0.02)
    for turn in range(3):
        mask = Mask(0.1).select(x, None, 7, turn)
        inside = mask.take(x).abs()
        threshold = inside.sort(descending=True).values[kept(0.2, inside.numel()) - 1]
        expected = mask.index(10_000)[inside >= threshold]
        assert torch.equal(cocktail.select(x, None, 7, turn).indices, expected)


@pytest.mark.parametrize(("ratio", "keep", "same"), [(0.1, 1.0, Mask(0.1)), (0.2, 0.2, TopK(0.2))])
def test_cocktail_without_top_k_is_the_mask_and_without_a_mask_is_top_k(ratio, keep, same):
    assert Cocktail(ratio, keep).select(gaussian(6400), None, 3, 2) == same.select(gaussian(6400), None, 3, 2)


def test_cocktail_covers_every_block_before_any_twice():
    x = torch.ones(6400)
    x[::64] = 2.0
    visited = torch.zeros(6400)
    for turn in range(10):
        visited[Cocktail(0.1 / 64, 1 / 64).select(x, None, 0, turn).indices] += 1
    assert torch.equal(visited, x - 1)


@pytest.mark.parametrize(("keep", "published"), [(0.2, 0.1825), (0.08, 0.133)])
def test_cocktail_in_four_bits_takes_no_more_bits_a_parameter_than_published(keep, published):
    """p (1 + keep (4 + 16/128)) with p = .1: a bitmap over the mask and a scale per 128 values. Ours has a scale per 64."""
    dim = 500_000
    assert 0.1 * (1 + keep * (4 + 16 / 128)) == pytest.approx(published, abs=5e-4)
    support = Cocktail(0.1 * keep, keep).select(gaussian(dim), None, 1, 0)
    assert 8 * codec.size(support, Int4(), dim) / dim < published
