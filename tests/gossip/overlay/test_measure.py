"""Measures of overlays agree with dense arithmetic, and reproduce each kind's rate of mixing."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay import measure
from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.catalogue import overlay
from starling.gossip.overlay.measure import matrix, residual
from starling.gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from starling.gossip.overlay.random_graph import ErdosRenyi
from starling.gossip.overlay.static import Alone, Complete, Ring, StaticExponential

REDUCTION = {
    8: (5.33, 5.33, 5.33, None, 0.273, 0.244, 0.317, 0.099),
    16: (4.00, 4.00, 4.00, 0.181, 0.261, 0.177, 0.239, 0.030),
    24: (0.146, 2.67, 4.00, 0.168, 0.214, 0.150, 0.191, 0.020),
    33: (0.268, 1.46, 2.67, 0.157, 0.213, 0.138, 0.233, 0.016),
    64: (2.67, 2.67, 2.67, 0.155, 0.229, 0.133, 0.162, 0.013),
    100: (0.110, 1.46, 2.00, 0.155, 0.213, 0.134, 0.141, 0.012),
}
"""n -> mean log10 reduction of ‖x − x̄‖ a round, in 60 rounds or until 1e-9, floored at 1e-16; means of 10 starts."""
COLUMNS = (
    ("one_peer_exponential", 1),
    ("base_k", 1),
    ("base_k", 2),
    ("random_matching", 1),
    ("od_equi_dyn", 1),
    ("ou_equi_dyn", 1),
    ("static_exponential", 1),
    ("ring", 1),
)


def reduction(each, n, seed):
    """Return log10 of the factor by which `each` (an iterable of Rows) reduces a disagreement per round."""
    x = np.random.default_rng(seed).normal(size=(n, 5))
    x -= x.mean(axis=0)
    begin = np.linalg.norm(x)
    for done, rows in enumerate(itertools.islice(each, 60), 1):  # noqa: B007
        x = rows.apply(x)
        if np.linalg.norm(x) < 1e-9 * begin:
            break
    return -math.log10(max(np.linalg.norm(x) / begin, 1e-16)) / done


@pytest.mark.slow
@pytest.mark.parametrize("n", REDUCTION)
def test_each_kind_reduces_disagreement_at_the_table_s_rate(n):
    """Table and test are means of 10 starts: within four standard errors of the difference, and 1 %."""
    for (kind, k), expected in zip(COLUMNS, REDUCTION[n], strict=True):
        if expected is None:
            continue  # random matchings of 8 are sometimes exact by chance
        measured = [reduction(measure.sequence(overlay(kind, k, s), n, 60), n, s) for s in range(10)]
        tolerance = 4 * math.sqrt(2 / 10) * np.std(measured, ddof=1) + 0.01 * expected + 0.0005
        assert np.mean(measured) == pytest.approx(expected, abs=tolerance), (kind, k)


@given(kind=st.sampled_from(["ring", "base_k", "erdos_renyi", "od_equi_dyn", "alone"]), n=st.integers(2, 30), t=st.integers(0, 99))
def test_rows_act_as_the_matrix(kind, n, t):
    part = overlay(kind, 1, 5)
    each = measure.rows(part, n, t)
    W = matrix(part, n, t)
    assert (each.dense() == W).all()
    for x in (np.random.default_rng(n).normal(size=n), np.random.default_rng(n).normal(size=(n, 3))):
        before = x.copy()
        assert np.allclose(each.apply(x), W @ x, atol=1e-14)
        assert (x == before).all()


def test_a_sequence_repeats_after_its_period_and_may_start_anywhere():
    part, n = BaseK(1), 12
    for start in (0, 3):
        for t, each in enumerate(measure.sequence(part, n, 14, start)):
            assert (each.dense() == matrix(part, n, start + t)).all()


def test_degrees_of_a_round_and_of_the_union():
    assert measure.degree(StaticExponential(), 33, 1) == measure.Degree(6, 6.0)
    assert measure.degree(OnePeerExponential(), 33, 1) == measure.Degree(1, 1.0)
    assert measure.degree(OnePeerExponential(), 33, 6) == measure.Degree(6, 6.0)
    assert measure.degree(Alone(), 5, 3) == measure.Degree(0, 0.0)
    assert measure.degree(RandomMatching(1), 5, 1) == measure.Degree(1, 0.8)
    graph = measure.degree(ErdosRenyi(3), 40, 1)
    assert graph.largest > graph.mean > 2


@pytest.mark.parametrize(
    ("kind", "n", "sent"),
    [("ring", 9, 2), ("torus", 9, 4), ("static_exponential", 64, 6), ("one_peer_exponential", 33, 1), ("hypercube", 8, 1)],
)
def test_the_number_of_messages_is_the_out_degree(kind, n, sent):
    """Bytes per node and round are this times the model, in each direction: 2P on a ring, 4P on a torus, P with one peer."""
    assert measure.messages(overlay(kind, 1, 0), n, 6) == pytest.approx(sent)


def test_the_gap_is_that_of_the_matrix_or_of_the_period():
    assert measure.gap(Ring(), 9, 1) == pytest.approx(1.0 - residual(matrix(Ring(), 9, 0)))
    assert measure.gap(BaseK(1), 33, 11) == 1.0
    part = OnePeerExponential()
    product = reduce(lambda P, t: matrix(part, 12, t) @ P, range(4), np.eye(12))
    assert measure.gap(part, 12, 4) == pytest.approx(1 - residual(product) ** 0.25)
    assert measure.gap(Alone(), 4, 1) == pytest.approx(0.0)


def test_the_gap_of_a_long_sequence_ignores_rounding():
    """After 300 rounds of decay only rounding remains; the rate is that of the rounds before."""
    assert measure.gap(ErdosRenyi(3), 40, 300) == pytest.approx(measure.gap(ErdosRenyi(3), 40, 1), abs=0.01)
    assert 0.1 < measure.gap(RandomMatching(3), 40, 300) < 0.5


def test_finite_time_is_the_first_round_with_the_exact_average_or_never():
    assert measure.finite_time(BaseK(1), 33, 64) == 11
    assert measure.finite_time(BaseK(1), 33, 10) is None
    assert measure.finite_time(Hypercube(), 16, 64) == 4
    assert measure.finite_time(Complete(), 7, 64) == 1
    assert measure.finite_time(OnePeerExponential(), 33, 300) is None  # contracts below any bound without ever being exact
    assert measure.finite_time(Ring(), 1, 64) == 0


def test_one_peer_exponential_is_exact_in_any_order_for_a_power_of_two():
    Ws = [matrix(OnePeerExponential(), 16, t) for t in range(4)]
    for order in itertools.permutations(Ws):
        assert residual(reduce(np.matmul, order)) < 1e-15


@given(seed=st.integers(0, 2**63 - 1), n=st.integers(2, 300))
def test_the_start_has_no_mean_and_unit_variance(seed, n):
    x = measure.start(seed, n)
    assert x.shape == (n,)
    assert abs(x.mean()) < 1e-12
    assert measure.spread(x) == pytest.approx(1.0)


def test_a_simulated_disagreement_starts_at_1_and_never_grows():
    walk = measure.walk(BaseK(1), measure.start(0, 33), 11)
    assert walk.consensus_error[0] == 1.0
    assert (np.diff(walk.consensus_error) < 1e-15).all()
    assert walk.consensus_error[-1] < 1e-28
    assert walk.messages_per_node[0] == 0.0
    assert walk.messages_per_node[-1] == pytest.approx(11 * measure.messages(BaseK(1), 33, 11))


def test_the_expected_contraction_of_a_fixed_matrix_is_its_own():
    assert measure.contraction(Hypercube(), 4, 1) == pytest.approx(1.0)
    assert measure.contraction(Hypercube(), 4, 2) == pytest.approx(0.5)
    assert measure.contraction(Ring(), 9, 3) == pytest.approx((1 - measure.gap(Ring(), 9, 1)) ** 2)
