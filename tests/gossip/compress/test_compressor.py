"""Selectors and their contraction: for every vector or on average over the seed, alone and before any quantizer."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS, quantizer
from starling.gossip.compress.quantize import Float64
from starling.gossip.compress.select.approximate import ChunkTopK
from starling.gossip.compress.select.coordinates import Cocktail, Mask, TopK
from starling.gossip.compress.support import blocks_in
from starling.gossip.rng import generator
from tests.harness.codecs import Chain
from tests.strategies import examples

RATED = [name for name, make in SELECTORS.items() if "ratio" in inspect.signature(make).parameters]
BY_THE_VECTOR = ["top_k", "top_k_sampled", "chunk_top_k", "drift_top_k"]
DIM = 1000


def chained(select, quantize, ratio=0.1):
    params = {} if select == "full" else {"ratio": ratio}
    return Chain(SELECTORS.build("compress", select, params), quantizer(quantize, torch.float32))


CONTRACTIONS = [
    (select, quantize)
    for select in ("full", *RATED)
    for quantize in QUANTIZERS
    if quantizer(quantize, torch.float32).omega < 1 and (select in ("full", "mask") or quantize in ("identity", "int4", "sign"))
]  # all quantizers on whole and partial vectors, all selectors before three quantizers


def flat():
    """Return equal magnitudes: the vector of which top-k keeps least."""
    return torch.where(torch.arange(DIM) % 3 == 0, -1.0, 1.0)


def spike():
    """Return a vector with one non-zero coordinate, of which a random choice keeps all or nothing."""
    x = torch.zeros(DIM)
    x[777] = 3.0
    return x


def one_block():
    """Return a vector whose weight is in the mask's last, shorter block."""
    x = torch.zeros(DIM)
    x[960:] = torch.randn(40, generator=generator(0, "one block"))
    return x


def heavy():
    """Return Student-like tails: one value in a bucket dwarfs the others, the worst case for a shared step."""
    numerator, below = torch.randn(2, DIM, generator=generator(0, "heavy"))
    return numerator / below.abs().clamp_min(1e-3)


@pytest.mark.parametrize(("select", "quantize"), CONTRACTIONS)
def test_contraction_holds_on_worst_case_vectors(select, quantize):
    """E‖x − Q(x)‖² <= (1 − δ)‖x‖² for every selector before every quantizer that does not diverge in a difference loop."""
    compressor = chained(select, quantize)
    for x in (flat(), spike(), one_block(), heavy()):
        before = x.clone()
        errors = [(x - compressor.compress(x, generator(seed, "worst"))).square().sum().item() for seed in range(6)]
        share, energy = compressor.contraction(DIM), x.square().sum().item()
        drawn = 0.0 if select in (*BY_THE_VECTOR, "full") else math.sqrt(share * (1 - share)) * energy
        deviation = max(torch.tensor(errors).std().item(), drawn)  # six draws may miss a spike that one in ten contains
        assert sum(errors) / len(errors) <= (1 - share) * energy * (1 + 1e-5) + 5 * deviation / math.sqrt(len(errors))
        assert torch.equal(x, before)
        assert torch.equal(compressor.compress(x, generator(1)), compressor.compress(x, generator(1)))


@pytest.mark.parametrize("select", BY_THE_VECTOR)
@given(values=st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=400), ratio=st.floats(0.005, 1.0), seed=st.integers(0, 99))
@examples(50)
def test_comparing_selectors_contract_every_vector(select, values, ratio, seed):
    """‖x − x_S‖² <= (1 − δ)‖x‖² each time, not just on average: also EF21 and CHOCO may then use them."""
    x = torch.tensor(values, dtype=torch.float64)
    compressor = Chain(SELECTORS.build("compress", select, {"ratio": ratio}), Float64())
    error = (x - compressor.compress(x, generator(seed))).square().sum()
    assert error <= (1 - compressor.contraction(x.numel())) * x.square().sum() * (1 + 1e-9)


@given(seed=st.integers(0, 2**62), dim=st.integers(1, 3000), ratio=st.floats(0.02, 0.5), heavy=st.booleans())
@examples(25)
def test_a_rolling_mask_selects_exactly_its_share_over_a_cycle(seed, dim, ratio, heavy):
    """The exact expectation over the mask's position: each block is selected equally often."""
    x = torch.randn(dim, generator=generator(seed), dtype=torch.float64)
    x = x**5 if heavy else x
    turns = blocks_in(dim)
    for selector in (Mask(ratio), Cocktail(ratio * 0.2)):
        kept = sum(selector.select(x, None, seed, turn).take(x).square().sum() for turn in range(turns)) / turns
        least = selector.contraction(dim) * x.square().sum()
        assert kept >= least * (1 - 1e-9)
        if isinstance(selector, Mask):
            assert kept <= least * (1 + 1e-9)


@pytest.mark.parametrize("select", RATED)
def test_the_promised_share_is_near_the_ratio_and_grows_with_it(select):
    """A bound that is too low would make every step size computed from it too small."""
    shares = [SELECTORS.build("compress", select, {"ratio": ratio}).contraction(100_000) for ratio in (0.01, 0.1, 0.2)]
    assert shares == sorted(set(shares))
    least = 1 / 64  # one coefficient of each of dct_top_k's chunks
    ratios = (0.01, 0.1, 0.2)
    assert all(0.79 * r <= share <= max(1.1 * r, least) for share, r in zip(shares, ratios, strict=True))


@pytest.mark.parametrize(
    ("draw", "published", "tolerance"),
    [
        ("standard_normal", (0.0127, 0.0845, 0.279, 0.439, 0.783), (0.01, 0.01, 0.01, 0.01, 0.01)),
        ("laplace", (0.032, 0.164, 0.425, 0.596, 0.879), (0.1, 0.03, 0.01, 0.01, 0.01)),
        ("standard_t", (0.417, 0.588, 0.751, 0.830, 0.946), (0.5, 0.25, 0.12, 0.08, 0.02)),
    ],
)
@pytest.mark.parametrize("selector", [TopK, ChunkTopK])
def test_top_k_keeps_the_published_share_of_random_vectors(selector, draw, published, tolerance):
    """d = 2e5. The share is far above the bound k/d, which justifies top-k's indices. Student's t with 2.5 degrees of freedom has squares
    without a variance: its share varies between draws by a quarter at 1 %.
    """
    chance = np.random.Generator(np.random.Philox(key=3))
    x = torch.from_numpy(chance.standard_t(2.5, 200_000) if draw == "standard_t" else getattr(chance, draw)(size=200_000))
    for ratio, share, relative in zip((0.001, 0.01, 0.05, 0.1, 0.3), published, tolerance, strict=True):
        kept = selector(ratio).select(x, None, 0, 0).take(x).square().sum() / x.square().sum()
        if selector is TopK:
            assert kept.item() == pytest.approx(share, rel=relative)
        else:
            assert kept.item() >= (0.97 - relative) * share
        assert kept.item() >= selector(ratio).contraction(200_000)
