"""Cosine atoms: an orthonormal transform chunk by chunk, equal bits at both ends, and validated bytes."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.feedback import DecoupledMomentum
from starling.gossip.compress.quantize import Float64, Int4
from starling.gossip.compress.select.dct import Atoms, DctTopK, dct
from starling.gossip.compress.support import Full, Indices
from starling.gossip.rng import generator
from tests.harness.codecs import Chain, Rows, send
from tests.strategies import examples, seeds

quick = examples(25)
dims = st.integers(1, 300)
chunks = st.integers(2, 70)


def inverse_dct(coefficients, chunk):
    every = Atoms(chunk, Indices(torch.arange(coefficients.numel())))
    return every.spread(coefficients, coefficients.numel())


def gaussian(dim, *labels, dtype=torch.float64):
    return torch.randn(dim, generator=generator(0, "dct tests", *labels), dtype=dtype)


@given(seed=seeds, dim=dims, chunk=chunks)
@quick
def test_the_transform_is_orthonormal(seed, dim, chunk):
    """Orthonormal to 1e-6, short last chunk included: dropping coefficients contracts like dropping coordinates."""
    x = gaussian(dim, seed)
    coefficients = dct(x, chunk)
    assert (inverse_dct(coefficients, chunk) - x).norm() <= 1e-6 * x.norm()
    assert float(coefficients.norm()) == pytest.approx(float(x.norm()), rel=1e-6)


def test_the_coefficients_equal_the_textbook_formula():
    """DCT-II, orthonormal: sqrt(2/N) Σ x_j cos(π(2j + 1)f / 2N), and sqrt(1/2) of that for f = 0."""
    x, N = gaussian(64, "textbook").numpy(), 64
    f, j = np.arange(N)[:, None], np.arange(N)
    expected = np.sqrt(2 / N) * (np.cos(np.pi * (2 * j + 1) * f / (2 * N)) * x).sum(1)
    expected[0] /= np.sqrt(2)
    torch.testing.assert_close(dct(torch.from_numpy(x), 64), torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_the_table_of_cosines_is_golden():
    """A peer whose cosines round differently would apply other bits, so the table's digest is part of the protocol."""
    columns = [Atoms(64, Indices(torch.tensor([f]))).spread(torch.ones(1, dtype=torch.float64), 64) for f in range(64)]
    grid = torch.stack(columns) * 2**24
    assert torch.equal(grid, grid.round())
    assert torch.equal(grid, (grid / 2**24).float().double() * 2**24)
    digest = hashlib.blake2b(grid.to(torch.int32).numpy().astype("<i4").tobytes(), digest_size=16).hexdigest()
    assert digest == "7b7c28f3a001cee036e5b1c1bd18ce4a"


def test_a_smooth_vector_needs_few_cosines():
    x = torch.cos(torch.pi * (2 * torch.arange(640, dtype=torch.float64) % 128 + 1) * 3 / 128)
    support = DctTopK(1 / 64).select(x, None, 0, 0)
    assert (support.chosen.indices % 64).tolist() == [3] * 10
    assert (x - support.spread(support.take(x), 640)).norm() < 1e-5 * x.norm()


def test_the_largest_32_of_4096_of_white_noise_have_seven_percent_of_its_energy():
    """No basis compresses noise."""
    held = []
    for draw in range(20):
        x = gaussian(4096, draw)
        support = DctTopK(32 / 4096, per_chunk=False).select(x, None, 0, 0)
        held.append(float(support.take(x).square().sum() / x.square().sum()))
        assert support.size(4096) == 32
    assert np.mean(held) == pytest.approx(0.071, abs=0.002)


@given(seed=seeds, dim=dims, chunk=chunks, ratio=st.floats(0.01, 1.0), per_chunk=st.booleans())
@quick
def test_contraction_holds_for_every_vector(seed, dim, chunk, ratio, per_chunk):
    """‖x − Q(x)‖² <= (1 − δ)‖x‖² with δ = k/d, except for the rounding of cosines."""
    x = gaussian(dim, seed)
    selector = DctTopK(ratio, chunk, per_chunk=per_chunk)
    support = selector.select(x, None, 0, 0)
    rest = x - support.add(torch.zeros_like(x), support.take(x))
    assert rest.square().sum() <= (1 - selector.contraction(dim)) * x.square().sum() + 1e-30


def test_each_chunk_selects_its_own_share_and_breaks_ties_by_frequency():
    flat = torch.zeros(3 * 8 + 4, dtype=torch.float64)
    assert DctTopK(0.25, 8).select(flat, None, 0, 0).chosen.indices.tolist() == [0, 1, 8, 9, 16, 17, 24]
    assert DctTopK(0.25, 8, per_chunk=False).select(flat, None, 0, 0).chosen.indices.tolist() == [*range(7)]


def test_changes_since_the_last_exchange_are_selected():
    x, reference = gaussian(200, 1), gaussian(200, 2)
    assert DctTopK(0.1).select(x, reference, 0, 0) == DctTopK(0.1).select(x - reference, None, 0, 0)


@pytest.mark.parametrize("per_chunk", [True, False])
def test_all_coefficients_are_the_vector_itself(per_chunk):
    assert DctTopK(1.0, per_chunk=per_chunk).select(gaussian(100), None, 0, 0) == Full()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=seeds, dim=st.integers(2, 300), chunk=chunks, theta=st.floats(0.1, 0.9))
@quick
def test_both_ends_change_by_opposite_bits(dtype, seed, dim, chunk, theta):
    """Spreading is odd bit for bit, and agrees with the inverse transform."""
    x = gaussian(dim, seed, dtype=dtype)
    support = DctTopK(0.4, chunk, per_chunk=False).select(x, None, 0, 0)
    if support == Full():
        return
    v = theta * Int4().decode(Int4().encode(support.take(x), generator(seed)), support.size(dim)).to(dtype)
    there = support.spread(v, dim)
    assert torch.equal(there, -support.spread(-v, dim))
    assert torch.equal(support.add(x, v), x + there)
    coefficients = torch.zeros_like(x)
    coefficients[support.chosen.indices] = v
    torch.testing.assert_close(dct(there, chunk), coefficients, rtol=0, atol=1e-5)


def test_spreading_adds_the_lowest_frequency_first():
    """Computed with plain numbers: the bits that any machine must give, short last chunk included."""
    support = Atoms(4, Indices(torch.tensor([0, 1, 3, 4, 6, 9, 10])))
    values = torch.tensor([0.1, 1.3, -2.7, 5.5, 1e-4, -3.3, 0.7], dtype=torch.float32)

    def cosine(N, f, j):
        exact = np.sqrt((1 if f == 0 else 2) / N) * np.cos(np.pi * (2 * j + 1) * f / (2 * N))
        return np.float32(np.rint(exact * 2**24) / 2**24)

    expected = []
    for start, N, terms in ((0, 4, {0: 0, 1: 1, 3: 2}), (4, 4, {0: 3, 2: 4}), (8, 3, {1: 5, 2: 6})):
        for j in range(N):
            total = np.float32(0)
            for f, at in terms.items():
                total = np.float32(total + np.float32(values[at].numpy() * cosine(N, f, j)))
            expected.append(total)
        assert len(expected) == start + N
    assert support.spread(values, 11).tolist() == expected


def test_inputs_are_not_modified():
    x = gaussian(100)
    before = x.clone()
    support = DctTopK(0.1).select(x, None, 0, 0)
    values = support.take(x)
    kept = values.clone()
    support.add(x, values)
    assert torch.equal(x, before)
    assert torch.equal(values, kept)
    assert torch.equal(support.take(x), values), "the cached table was written to"


def test_demo_with_whole_chunks_leaves_no_momentum():
    demo, gradients = DecoupledMomentum(0.9), gaussian(2 * 128).view(2, 128)
    message, (momentum,) = send(demo, demo.start(gradients), gradients, Rows(Chain(DctTopK(1.0), Float64())), generator(0))
    assert not momentum.any()
    assert torch.equal(message, gradients)


def test_demo_shares_the_coefficients_that_grew():
    """A small steady wave is sent once its accumulated amplitude is the largest; until then noise at other frequencies is sent."""
    demo, compressor = DecoupledMomentum(0.999), Chain(DctTopK(1 / 64), Float64())
    wave = inverse_dct(0.3 * torch.eye(64, dtype=torch.float64)[5], 64)
    momentum, sent = demo.start(wave), torch.zeros(64, dtype=torch.float64)
    for turn in range(40):
        burst = inverse_dct(torch.eye(64, dtype=torch.float64)[20 + turn % 8], 64) if turn < 8 else torch.zeros(64).double()
        message, momentum = send(demo, momentum, wave + burst, compressor, generator(0))
        sent = sent + dct(message, 64)
    assert (sent.abs() > 0.5).nonzero().view(-1).tolist() == [5, *range(20, 28)]


@pytest.mark.parametrize(
    ("place", "patch", "reason"),
    [
        (0, b"\x01\x00", "bad_support"),  # chunk 1
        (0, b"\x41\x00", "bad_support"),  # another chunk size than agreed
        (2, b"\x00\x00\x00\x00", "bad_support"),  # nothing
        (2, b"\xc8\x00\x00\x00", "bad_support"),  # all 200: that is the whole vector
        (2, b"\x15\x00\x00\x00", "bad_indices"),  # one more than exist
        (6, b"\xff\xff\xff\xff", "bad_length"),
    ],
)
def test_a_false_support_description_is_refused(place, patch, reason):
    described = DctTopK(0.1, per_chunk=False).select(gaussian(200), None, 0, 0).describe(200)
    with pytest.raises(ValueError, match=reason):
        Atoms.parse(described[:place] + patch + described[place + len(patch) :], 200, 64)
    with pytest.raises(ValueError, match="bad_length"):
        Atoms.parse(described[:9], 200, 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DctTopK(0.0), "ratio must be finite and > 0 and <= 1, got 0.0"),
        (lambda: DctTopK(0.1, 1), "chunk must be >= 2 and <= 1024, got 1"),
        (lambda: Atoms(1025, Indices(torch.tensor([0]))), r"chunk must be in \[2, 1024\], got 1025"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
