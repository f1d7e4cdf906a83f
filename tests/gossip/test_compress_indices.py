"""Index lists: close to the entropy bound, canonical, and no list from a peer can cost more than it should."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.compress.indices import decode, encode, rice_parameter, size


@st.composite
def index_sets(draw):
    dim = draw(st.integers(1, 2000))
    chosen = draw(st.sets(st.integers(0, dim - 1), min_size=1, max_size=min(dim, 300)))
    return np.array(sorted(chosen), np.int64), dim


@given(case=index_sets())
@settings(max_examples=60, deadline=None)
def test_round_trip(case):
    indices, dim = case
    data = encode(indices, dim)
    assert decode(data, indices.size, dim).tolist() == indices.tolist()
    assert len(data) == size(indices, dim) <= 2 + dim // 8 + 1


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_random_indices_cost_within_five_percent_of_the_entropy_bound(ratio):
    """log2 C(d, k) bits is what any code needs; the reference measures Rice 1.4 %, .3 % and .9 % above it."""
    dim = 1_000_000
    k = round(ratio * dim)
    indices = np.sort(np.random.Generator(np.random.Philox(key=1)).choice(dim, k, replace=False))
    bound = (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)
    assert bound <= 8 * len(encode(indices, dim)) <= 1.05 * bound


def test_a_dense_list_becomes_a_bitmap():
    indices = np.arange(0, 1000, 2)
    assert len(encode(indices, 1000)) == 1 + 125


@pytest.mark.parametrize(
    ("count", "dim", "b"), [(10, 100, 3), (5, 100, 4), (1, 100, 6), (1, 1000, 9), (1, 10_000, 13), (9, 10, 0)]
)
def test_the_rice_parameter_is_the_log_of_the_median_gap(count, dim, b):
    """Both ends compute it, so it is fixed by d and k alone; values of the reference's table."""
    assert rice_parameter(count, dim) == b


@given(case=index_sets(), junk=st.binary(max_size=60), count=st.integers(-1, 400), flip=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_other_bytes_are_refused_or_mean_exactly_one_list(case, junk, count, flip):
    """Whatever decodes is in bounds and encodes to the very same bytes: no list has two encodings."""
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


def test_a_bitmap_where_rice_is_smaller_is_refused():
    bits = np.zeros(1000, np.uint8)
    bits[5] = 1
    with pytest.raises(ValueError, match="bad_indices"):
        decode(bytes([255]) + np.packbits(bits).tobytes(), 1, 1000)


def test_an_overlong_unary_run_is_refused_before_it_is_unpacked():
    """A megabyte of zeros would be one gap of eight million: longer than d allows, so its length alone is wrong."""
    data = bytes([rice_parameter(1, 1000)]) + bytes(1 << 20)
    tracemalloc.start()
    with pytest.raises(ValueError, match="bad_indices"):
        decode(data, 1, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 17


def test_decoding_costs_memory_in_proportion_to_the_vector_at_most():
    """The vector itself takes 4d bytes; the worst list, a bitmap on the brink, must not need a multiple of what it yields."""
    dim = 400_000
    for step in (2, 10, 1000):
        indices = np.arange(0, dim, step)
        data = encode(indices, dim)
        tracemalloc.start()
        decode(data, indices.size, dim)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 3 * dim + 48 * indices.size
