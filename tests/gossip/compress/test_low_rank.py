"""Low-rank subspaces: projections at both ends of an exchange, warm-started power iterations, and validated bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from starling.gossip.compress.quantize import Int4, Int8
from starling.gossip.compress.select.low_rank import Factors, LowRank, Matrix, matrices_of
from starling.gossip.compress.support import Full
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import layout
from tests.harness.codecs import Chain
from tests.strategies import examples, seeds

MATRICES = (Matrix(3, 20, 10), Matrix(210, 12, 30))  # a bias before, one between, one after
DIM = 3 + 200 + 7 + 360 + 5
WIDE = LowRank(2, MATRICES, saving=1.0)
quick = examples(25)


def gaussian(*labels, dtype=torch.float64, dim=DIM):
    return torch.randn(dim, generator=generator(0, "low rank tests", *labels), dtype=dtype)


def left_over(support, x):
    return x - support.spread(support.take(x), x.numel())


def best_error(x, rank):
    """Return the error of the best matrices of that rank, by Eckart and Young: all singular values but the largest."""
    return sum(float(torch.linalg.svdvals(m.of(x))[rank:].square().sum()) for m in MATRICES)


@given(seed=seeds, rank=st.integers(1, 5), steps=st.integers(0, 3))
@quick
def test_a_subspace_s_part_is_a_projection(seed, rank, steps):
    """‖x‖² = ‖Q(x)‖² + ‖x − Q(x)‖² although bases are rounded to fp16, so removing the projection lengthens nothing."""
    x = gaussian(seed)
    support = LowRank(rank, MATRICES, saving=1.0).start(seed)
    for _ in range(steps):
        support = support.step(x)
    rest = left_over(support, x)
    kept = x - rest
    torch.testing.assert_close(kept.square().sum() + rest.square().sum(), x.square().sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(left_over(support, kept), torch.zeros_like(x), rtol=0, atol=1e-12)


@given(seed=seeds)
@quick
def test_a_power_step_never_captures_less(seed):
    """Each half iteration finds the best other side for the current one: the share of ‖x‖² does not fall, except for fp16 rounding."""
    x = gaussian(seed)
    support, before = WIDE.start(seed), torch.inf
    for _ in range(6):
        after = float(left_over(support, x).square().sum())
        assert after <= before * (1 + 1e-5)
        support, before = support.step(x), after


def test_a_random_start_captures_its_share_in_expectation():
    """The contraction is r/n before any iteration, which only increases it."""
    x = gaussian(1)
    errors = [float(left_over(WIDE.start(seed), x).square().sum()) for seed in range(300)]
    expected = sum((1 - 2 / m.cols) * float(m.of(x).square().sum()) for m in MATRICES)
    assert np.mean(errors) == pytest.approx(expected, rel=0.02)
    assert WIDE.contraction(DIM) == pytest.approx(2 / 30)
    compressor = Chain(WIDE, Int8())
    left = [float((x - compressor.compress(x, generator(seed))).square().sum()) for seed in range(30)]
    assert np.mean(left) <= (1 - compressor.contraction(DIM)) * float(x.square().sum())


def test_iterating_on_a_fixed_matrix_converges_to_the_best_of_that_rank():
    """Warm starts amount to one long power iteration; fp16 bases add 1e-6 to the error."""
    x = gaussian(2)
    support = WIDE.start(0)
    for _ in range(100):
        support = support.step(x)
        support = support.turned(support.take(x))
    assert float(left_over(support.step(x), x).square().sum()) == pytest.approx(best_error(x, 2), rel=1e-5)


def test_a_matrix_of_that_rank_is_recovered_at_once():
    """One step from any start spans its columns; the remaining error is the basis's fp16 rounding."""
    x = torch.zeros(DIM, dtype=torch.float64)
    for m in MATRICES:
        m.of(x)[:] = gaussian(3)[: 2 * m.rows].view(m.rows, 2) @ gaussian(4)[: 2 * m.cols].view(2, m.cols)
    support = WIDE.select(x, None, 7, 0)
    assert left_over(support, x).norm() < 1e-3 * x.norm()


@given(seed=seeds)
@quick
def test_successive_exchanges_of_a_fixed_vector_recover_all_of_it(seed):
    """Each transaction of an edge uses other directions, so 2·rows/rank transactions span every column.

    With one start for all exchanges of an edge the same r directions would be sent again and again.
    """
    x = gaussian(seed)
    for place, m in enumerate(MATRICES):
        turns = range(2 * m.rows // WIDE.rank)
        spans = torch.cat([WIDE.select(x, None, seed, turn).bases[place].double() for turn in turns], dim=1)
        rest = m.of(x) - spans @ (torch.linalg.pinv(spans, rtol=1e-9) @ m.of(x))
        assert float(rest.norm()) <= 1e-6 * float(m.of(x).norm())


@pytest.mark.parametrize("rank", [10, 12, 100])
def test_a_rank_as_large_as_a_side_loses_nothing(rank):
    matrices = (Matrix(0, 10, 12), Matrix(120, 9, 40))
    x = gaussian(5, dim=480)
    assert LowRank(rank, matrices, saving=1.0).select(x, None, 0, 0) == Full()


def test_only_matrices_that_shrink_enough_are_factored():
    """(m + n)·r·saving < m·n: 60 numbers instead of 200 qualify at a saving of 2, 84 instead of 360 too; at rank 4 neither does."""
    assert LowRank(2, MATRICES).factored == MATRICES
    assert LowRank(4, MATRICES).factored == (MATRICES[1],)
    assert LowRank(5, MATRICES).factored == ()
    assert LowRank(4, MATRICES).select(gaussian(1), None, 0, 0).size(DIM) == 4 * 30 + DIM - 360


def test_parameters_other_than_matrices_are_sent_whole():
    x = gaussian(6)
    rest = left_over(WIDE.select(x, None, 0, 0), x)
    inside = torch.zeros(DIM, dtype=torch.bool)
    for m in MATRICES:
        inside[m.offset : m.end] = True
    assert not rest[~inside].any()
    assert rest[inside].all()


def test_bases_are_computed_from_changes_since_the_last_exchange():
    x, reference = gaussian(7), gaussian(8)
    assert WIDE.select(x, reference, 3, 0) == WIDE.select(x - reference, None, 3, 0)


def test_a_zero_matrix_has_a_valid_basis():
    """A zero matrix has no directions, so any orthonormal ones serve; peers must accept the payload."""
    zero = torch.zeros(DIM)
    support = WIDE.select(zero, None, 0, 0)
    assert not support.take(zero).any()
    assert WIDE.parse(support.describe(DIM), DIM)[0] == support
    support = support.turned(support.take(zero))
    assert WIDE.parse(support.describe(DIM), DIM)[0] == support


@given(seed=seeds, exponent=st.sampled_from([-150, -40, 0, 40, 150]))
@quick
def test_directions_do_not_depend_on_the_scale(seed, exponent):
    x = gaussian(seed)
    assert WIDE.select(x, None, seed, 0) == WIDE.select(x * 2.0**exponent, None, seed, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=seeds, theta=st.floats(0.1, 0.9))
@quick
def test_both_ends_change_by_opposite_bits(dtype, seed, theta):
    """Spreading is odd bit for bit: one end adds what the other subtracts, and flows stay exactly antisymmetric."""
    x = gaussian(seed, dtype=dtype)
    for support in (WIDE.select(x, None, seed, 0), WIDE.select(x, None, seed, 0).step(x)):
        v = Int4().decode(Int4().encode(support.take(x), generator(seed)), support.size(DIM)).to(dtype)
        there, back = support.spread(theta * v, DIM), support.spread(-(theta * v), DIM)
        assert torch.equal(there, -back)
        assert torch.equal(support.add(x, theta * v), x + there)


def test_spreading_adds_products_in_the_order_of_directions():
    """Computed with plain numbers: the bits that any machine must give."""
    support = Factors((Matrix(1, 2, 3),), (torch.tensor([[0.6, -0.8], [0.8, 0.6]]).half().float(),), left=True)
    values = torch.tensor([1.1, -2.3, 3.7, 0.3, 1e-3, -7.7, 42.0, 43.0], dtype=torch.float32)
    q, p, n = support.bases[0].numpy(), values[:6].view(2, 3).numpy(), np.float32
    expected = [n(n(q[i, 0] * p[0, j]) + n(q[i, 1] * p[1, j])) for i in range(2) for j in range(3)]
    assert support.spread(values, 8).tolist() == [42.0, *expected, 43.0]


@pytest.mark.slow
@pytest.mark.parametrize(("apply_both", "expected"), [(False, 2.8e-9), (True, 2e-10)], ids=["the_second_product", "both_products"])
def test_power_gossip_reaches_consensus_and_preserves_the_mean(apply_both, expected):
    """Eight nodes, 20 x 10 matrices, rank 1, 200 rounds of random matchings: each product with the difference is the next basis.

    As published, only the second product of an exchange changes the models; applying both, which are sent anyway, gains another tenth.
    """
    order = np.random.default_rng(0)
    selector = LowRank(1, (Matrix(0, 20, 10),), saving=1.0)
    X = gaussian("gossip", dim=8 * 200).view(8, 200)
    mean, before = X.mean(0), (X - X.mean(0)).square().sum()
    X, bases = list(X), {}
    for _ in range(200):
        for i, j in order.permutation(8).reshape(4, 2).tolist():
            edge = (min(i, j), max(i, j))
            support = bases.get(edge) or selector.start(derive(0, *edge))
            for applied in (apply_both, True):
                v = support.take(X[j]) - support.take(X[i])
                if applied:
                    X[i], X[j] = support.add(X[i], 0.5 * v), support.add(X[j], -0.5 * v)
                support = support.turned(v)
            bases[edge] = support
    X = torch.stack(X)
    assert expected / 3 <= float((X - X.mean(0)).square().sum() / before) <= 3 * expected
    assert (X.mean(0) - mean).abs().max() < 1e-15


def test_the_matrices_of_a_model_are_its_weights():
    """A convolution is a matrix of output channels by all else; biases are none."""
    model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.Flatten(), nn.Linear(32, 10, bias=False))
    assert matrices_of(layout(model)) == (Matrix(0, 8, 75), Matrix(608, 10, 32))


def payload(*numbers, left=0):
    return bytes([left]) + np.array(numbers, "<f2").tobytes()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "bad_length"),
        (payload(0.6, 0.8, 0)[:-1], "bad_length"),
        (payload(0.6, 0.8, 0, left=2), "bad_support"),
        (payload(0.6, 0.9, 0.3), "bad_basis"),  # longer than 1 by an eighth
        (payload(6.0, 8.0, 0), "bad_basis"),
        (payload(0, 0, 0), "bad_basis"),
        (payload(np.nan, 1, 0), "bad_basis"),
        (payload(np.inf, 1, 0), "bad_basis"),
        (payload(*[1, 0, 0] * 2), "bad_basis"),  # parallel, so the projection could not be solved
    ],
)
def test_an_invalid_basis_is_refused(data, reason):
    """Directions longer than 1 would let a short difference move a model far."""
    one, selector = (LowRank(rank, (Matrix(0, 8, 3),), saving=1.0) for rank in (1, max(1, len(data) // 6)))
    assert one.parse(payload(0.6, 0.8, 0), 24)[1] == b""
    with pytest.raises(ValueError, match=reason):
        selector.parse(data, 24)


def test_an_unexpected_support_is_refused():
    """Where no matrix is factored the whole vector is sent as such; and matrices must lie within the vector."""
    with pytest.raises(ValueError, match="bad_support"):
        LowRank(9, MATRICES).parse(payload(1), DIM)
    with pytest.raises(ValueError, match="wrong_dim"):
        WIDE.parse(WIDE.start(0).describe(DIM), DIM - 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LowRank(0, MATRICES), "rank must be >= 1 and <= 1024, got 0"),
        (lambda: LowRank(1, MATRICES, saving=0.5), "saving must be finite and >= 1 and <= 1000000, got 0.5"),
        (lambda: LowRank(1, (MATRICES[1], MATRICES[0])), "must be ascending and must not overlap"),
        (lambda: LowRank(1, (Matrix(0, 3, 3), Matrix(8, 3, 3))), "must be ascending and must not overlap"),
        (lambda: Matrix(-1, 1, 1), "need offset >= 0"),
        (lambda: Factors((Matrix(0, 4, 3),), (torch.ones(4, 1),), left=False), r"must be \(3, rank\), got \(4, 1\)"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
