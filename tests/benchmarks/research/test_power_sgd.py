"""PowerSGD loses nothing, and learns directions."""

import pytest
import torch

from benchmarks.research.power_sgd import PowerSgd
from starling.gossip.compress.quantize import Float64, Int4
from starling.gossip.compress.select.low_rank import LowRank, Matrix
from starling.gossip.rng import generator

MATRICES = (Matrix(3, 20, 10), Matrix(210, 12, 30))
DIM = 3 + 200 + 7 + 360 + 5
RANK_2 = LowRank(2, MATRICES, saving=1.0)


def gaussian(*labels):
    return torch.randn(DIM, generator=generator(0, "low rank tests", *labels), dtype=torch.float64)


def test_power_sgd_conserves_the_sum_of_inputs():
    scheme, stream = PowerSgd(RANK_2, Int4()), generator(0)
    state, put_in, came_out = scheme.start(gaussian()), torch.zeros(DIM).double(), torch.zeros(DIM).double()
    for turn in range(30):
        update = gaussian(turn)
        message, state = scheme.compress(state, update, stream)
        put_in, came_out = put_in + update, came_out + message
    assert (put_in - came_out - state.memory).norm() < 1e-12


def test_power_sgd_learns_the_directions_of_slow_updates():
    """With a constant rank-2 update, warm directions span it after a few rounds, so no residual remains. With a fresh start each time
    (equal bytes) much more does.
    """
    update = torch.zeros(DIM, dtype=torch.float64)
    for m in MATRICES:
        noise = 0.1 * gaussian(m.offset)[: m.rows * m.cols].view(m.rows, m.cols)
        m.of(update)[:] = noise + gaussian(12)[: 2 * m.rows].view(m.rows, 2) @ gaussian(13)[: 2 * m.cols].view(2, m.cols)
    scheme = PowerSgd(RANK_2, Float64())
    state = scheme.start(update)
    for _ in range(5):
        _, state = scheme.compress(state, update, generator(0))
    support = state.directions.step(update)
    warm = (update - support.spread(support.take(update), DIM)).square().sum()
    best = sum(float(torch.linalg.svdvals(m.of(update))[2:].square().sum()) for m in MATRICES)
    assert float(warm) == pytest.approx(best, rel=1e-2)
