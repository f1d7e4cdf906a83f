"""Index lists: close to the entropy bound, canonical, and of bounded cost to decode."""

import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import rice
from starling.gossip.compress.indices import decode, encode, size
from starling.gossip.compress.rice import BITMAP, PER_BLOCK, rice_parameter
from tests.strategies import examples

CLUSTERED = 253
MILLION = 1_000_000


def stream(key=1):
    return np.random.Generator(np.random.Philox(key=key))


def random_indices(dim, count):
    return np.sort(stream().choice(dim, count, replace=False))


def in_blocks(dim, width, share, density):
    chance = stream()
    occupied = chance.choice(dim // width, round(dim // width * share), replace=False)
    pool = (np.sort(occupied)[:, None] * width + np.arange(width)).reshape(-1)
    return np.sort(chance.choice(pool, round(pool.size * density), replace=False))


def in_layers(dim, ratio):
    """Return the largest coordinates of thirty Gaussian layers whose scales are log-normal with deviation 1, as a model's drifts are."""
    chance = stream()
    layer = np.searchsorted(np.sort(chance.choice(dim, 29, replace=False)), np.arange(dim))
    drift = np.abs(chance.standard_normal(dim) * np.exp(chance.standard_normal(30))[layer])
    return np.flatnonzero(drift > np.partition(drift, -round(ratio * dim))[-round(ratio * dim)])


def entropy_bound(dim, count):
    """Return log2 C(d, k) in bits: no code needs fewer on average over all lists."""
    return (math.lgamma(dim + 1) - math.lgamma(count + 1) - math.lgamma(dim - count + 1)) / math.log(2)


def bits_per_index(indices, dim):
    return 8 * len(encode(indices, dim)) / indices.size


def one_parameter(indices, dim):
    """Return the bits per index of a plain Rice code."""
    b = rice_parameter(indices.size, dim)
    gaps = np.diff(indices, prepend=-1) - 1
    return (indices.size * (b + 1) + (gaps >> b).sum()) / indices.size


def elias_gamma(indices):
    """Return the bits per index of a code without a parameter: 2⌊log2 g⌋ + 1 for g = 1, 2, …"""
    return (2 * np.floor(np.log2(np.diff(indices, prepend=-1))) + 1).mean()


@st.composite
def index_sets(draw):
    """Draw lists for every layout: scattered, concentrated in a few blocks, or concentrated in one part and scattered elsewhere."""
    dim = draw(st.integers(1, 20_000))
    indices = draw(st.sets(st.integers(0, dim - 1), min_size=1, max_size=min(dim, 100)))
    for start in draw(st.lists(st.integers(0, dim - 1), max_size=3)):
        indices |= set(range(start, min(dim, start + draw(st.integers(1, 200))), draw(st.integers(1, 3))))
    return np.array(sorted(indices), np.int64), dim


@given(case=index_sets())
@examples(60)
def test_round_trip(case):
    indices, dim = case
    data = encode(indices, dim)
    assert decode(data, indices.size, dim).tolist() == indices.tolist()
    assert decode(memoryview(data), indices.size, dim).tolist() == indices.tolist()
    assert len(data) == size(indices, dim) <= 2 + dim // 8 + 1


@pytest.mark.parametrize(
    ("ratio", "bound", "rice_code"),
    [(0.1, 4.690, 4.755), (0.05, 5.728, 5.786), (0.01, 8.079, 8.106), (0.001, 11.40, 11.50), (0.0001, 14.68, 14.74)],
)
def test_random_indices_cost_within_two_percent_of_the_entropy_bound(ratio, bound, rice_code):
    """The table of Rice codes at d = 1e6; the last is a hundred indices, which vary from draw to draw."""
    count = round(ratio * MILLION)
    assert entropy_bound(MILLION, count) / count == pytest.approx(bound, abs=0.01)
    measured = bits_per_index(random_indices(MILLION, count), MILLION)
    assert measured == pytest.approx(rice_code, rel=0.02 if count == 100 else 0.01)
    assert bound <= measured <= 1.02 * bound


def test_indices_in_a_tenth_of_the_blocks_cost_less_than_any_code_of_single_gaps():
    """Published for this case (1 % of d, in 10 % of blocks of 256): Rice 8.41 bits an index, Elias-gamma 6.18."""
    indices = in_blocks(MILLION, 256, 0.1, 0.1)
    assert elias_gamma(indices) == pytest.approx(6.18, rel=0.01)
    assert one_parameter(indices, MILLION) == pytest.approx(8.41, rel=0.01)
    free = entropy_bound(MILLION // 256, 390) + entropy_bound(390 * 256, indices.size)
    assert 8 * len(encode(indices, MILLION)) <= 1.03 * free
    assert bits_per_index(indices, MILLION) < 5.0


@pytest.mark.parametrize(("share", "density"), [(0.1, 0.2), (0.1, 0.08), (0.01, 0.2), (0.5, 0.2)])
def test_indices_inside_a_seeded_mask_cost_little_more_than_if_the_mask_were_known(share, density):
    """What CocktailSGD sends. Naming the mask's blocks costs their entropy, and at most 4 % is lost above it."""
    indices = in_blocks(MILLION, 64, share, density)
    blocks = round(MILLION // 64 * share)
    free = entropy_bound(MILLION // 64, blocks) + entropy_bound(blocks * 64, indices.size)
    assert 8 * len(encode(indices, MILLION)) <= 1.04 * free


@pytest.mark.parametrize("ratio", [0.1, 0.01])
def test_layers_of_different_density_get_separate_parameters(ratio):
    """One parameter for all layers suits none of them: at least a fifth of the bytes is saved. Elias-gamma, which needs no parameter,
    is never better and so is not offered.
    """
    indices = in_layers(MILLION, ratio)
    code = encode(indices, MILLION)
    assert code[0] in (PER_BLOCK, CLUSTERED)
    assert bits_per_index(indices, MILLION) <= 0.8 * one_parameter(indices, MILLION)
    assert bits_per_index(indices, MILLION) < elias_gamma(indices)


@pytest.mark.parametrize(("count", "dim", "b"), [(10, 100, 3), (5, 100, 4), (1, 100, 6), (1, 1000, 9), (1, 10_000, 13), (9, 10, 0)])
def test_the_rice_parameter_is_the_log_of_the_median_gap(count, dim, b):
    """Both ends compute it from d and k alone; values of the reference's table."""
    assert rice_parameter(count, dim) == b


@given(case=index_sets(), junk=st.binary(max_size=60), count=st.integers(-1, 400), flip=st.integers(0, 10_000))
@examples(100)
def test_any_bytes_are_refused_or_encode_exactly_one_list(case, junk, count, flip):
    """Valid bytes are in bounds and encode to themselves: no list has two encodings."""
    indices, dim = case
    good = encode(indices, dim)
    flipped = bytearray(good)
    flipped[flip // 8 % len(good)] ^= 1 << flip % 8
    for data, claimed in [
        (junk, count),
        (bytes(flipped), indices.size),
        (good[:-1], indices.size),
        (good, count),
        (good + b"\0", indices.size),
    ]:
        try:
            decoded = decode(data, claimed, dim)
        except ValueError as error:
            assert str(error) == "bad_indices"  # noqa: PT017
        else:
            assert decoded[0] >= 0
            assert decoded[-1] < dim
            assert (np.diff(decoded) > 0).all()
            assert decoded.size == claimed
            assert encode(decoded, dim) == data


def dressed(indices, dim, layout):
    """Encode `indices` in a layout that the encoder does not choose for them, otherwise correctly."""
    planned = rice.plan(indices, dim)
    parameters = None
    if layout == PER_BLOCK:
        b = rice_parameter(indices.size, dim)
        parameters = np.full(-(-indices.size // rice.BLOCK), b, np.uint8)
    return rice.encode(rice.Plan(dim, planned.gaps, layout, 0, parameters))


def with_other_parameters(indices, dim):
    """Encode like the encoder, except for the parameter of the first block."""
    planned = rice.plan(indices, dim)
    parameters = planned.parameters.copy()
    parameters[0] += 1
    return rice.encode(rice.Plan(dim, planned.gaps, PER_BLOCK, 0, parameters))


def clustered(indices, dim, shift):
    """Encode `indices` as a clustered list, whether or not that is shorter."""
    outer, inner = np.unique(indices >> shift, return_inverse=True)
    listed = rice.encode(rice.plan(outer, -(-dim >> shift)))
    within = rice.encode(rice.plan(inner << shift | indices & ((1 << shift) - 1), outer.size << shift))
    return struct.pack("<BBII", CLUSTERED, shift, outer.size, len(listed)) + listed + within


SCATTERED = random_indices(50_000, 500)
HALVES = np.concatenate([random_indices(25_000, 7_000), 25_000 + random_indices(25_000, 300)])
CROWDED = in_blocks(64_000, 64, 0.1, 0.3)


def test_every_layout_is_the_shortest_for_some_lists():
    assert encode(SCATTERED, 50_000)[0] == rice_parameter(500, 50_000)
    assert encode(HALVES, 50_000)[0] == PER_BLOCK
    assert encode(CROWDED, 64_000)[0] == CLUSTERED
    assert encode(random_indices(1000, 400), 1000)[0] == BITMAP


@pytest.mark.parametrize(
    ("indices", "dim", "code"),
    [
        (SCATTERED, 50_000, dressed(SCATTERED, 50_000, BITMAP)),
        (SCATTERED, 50_000, dressed(SCATTERED, 50_000, PER_BLOCK)),
        (HALVES, 50_000, dressed(HALVES, 50_000, rice_parameter(HALVES.size, 50_000))),
        (CROWDED, 64_000, dressed(CROWDED, 64_000, rice_parameter(CROWDED.size, 64_000))),
        (HALVES, 50_000, with_other_parameters(HALVES, 50_000)),
        (CROWDED, 64_000, clustered(CROWDED, 64_000, 8)),
        (SCATTERED, 50_000, clustered(SCATTERED, 50_000, 6)),
    ],
    ids=[
        "bitmap",
        "per block",
        "one parameter",
        "one parameter for clusters",
        "a block's parameter one too large",
        "wrong width",
        "clusters of none",
    ],
)
def test_a_layout_that_is_not_the_shortest_is_refused(indices, dim, code):
    assert encode(indices, dim) != code
    with pytest.raises(ValueError, match=r"^bad_indices$"):
        decode(code, indices.size, dim)


@pytest.mark.parametrize(("indices", "dim"), [(HALVES, 50_000), (CROWDED, 64_000)], ids=["per block", "clustered"])
def test_every_flipped_bit_of_the_framing_is_refused_or_means_another_list(indices, dim):
    code = encode(indices, dim)
    for bit in [*range(12 * 8), *range(8 * len(code) - 64, 8 * len(code)), *range(0, 8 * len(code), 97)]:
        flipped = bytearray(code)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode(bytes(flipped), indices.size, dim)
        except ValueError as error:
            assert str(error) == "bad_indices"  # noqa: PT017
        else:
            assert not np.array_equal(decoded, indices)
            assert encode(decoded, dim) == bytes(flipped)


def test_an_occupied_block_without_indices_is_refused():
    spare = np.setdiff1d(np.arange(1000), CROWDED >> 6)[0]
    outer = np.sort(np.append(np.unique(CROWDED >> 6), spare))
    inner = np.searchsorted(outer, CROWDED >> 6) << 6 | CROWDED & 63
    listed = rice.encode(rice.plan(outer, 1000))
    code = struct.pack("<BBII", CLUSTERED, 6, outer.size, len(listed)) + listed
    with pytest.raises(ValueError, match=r"^bad_indices$"):
        decode(code + rice.encode(rice.plan(inner, outer.size << 6)), CROWDED.size, 64_000)


def test_indices_past_the_end_of_the_vector_are_refused():
    indices = np.concatenate([np.arange(0, 64, 2), np.arange(6400, 6420)])
    assert decode(clustered(indices, 100_000, 6), indices.size, 100_000).tolist() == indices.tolist()
    with pytest.raises(ValueError, match=r"^bad_indices$"):
        decode(clustered(indices, 6432, 6), indices.size, 6415)


@pytest.mark.parametrize(
    "head",
    [
        bytes([rice_parameter(200, 1000)]),
        bytes([PER_BLOCK]),
        struct.pack("<BBII", CLUSTERED, 6, 16, 10),
        struct.pack("<BBII", CLUSTERED, 6, 16, 1 << 19),
        struct.pack("<BBII", CLUSTERED, 12, 2**32 - 1, 2**32 - 1),
        struct.pack("<BBII", CLUSTERED, 63, 200, 10),
    ],
)
def test_an_overlong_list_is_refused_before_it_is_unpacked(head):
    """A megabyte of zeros would be one gap of eight million, more than d allows, so its length alone is invalid."""
    data = head + bytes(1 << 20)
    tracemalloc.start()
    with pytest.raises(ValueError, match="bad_indices"):
        decode(data, 200, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 17


LISTS = {
    "bitmap": random_indices(400_000, 160_000),
    "half": np.arange(0, 400_000, 2),
    "tenth": np.arange(0, 400_000, 10),
    "thousandth": np.arange(0, 400_000, 1000),
    "layers": in_layers(400_000, 0.1),
    "clusters": in_blocks(400_000, 64, 0.2, 0.5),
}


@pytest.mark.parametrize("indices", LISTS.values(), ids=LISTS)
def test_coding_memory_is_at_most_proportional_to_the_vector(indices):
    """The vector takes 4d bytes; the worst list, an almost-bitmap, must not need a multiple of that."""
    dim = 400_000
    peaks = []
    data = encode(indices, dim)
    for run in (lambda: encode(indices, dim), lambda: decode(data, indices.size, dim)):
        tracemalloc.start()
        run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) <= 3 * dim + 48 * indices.size
