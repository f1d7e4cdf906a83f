"""Every compressor keeps the promise the convergence proofs rest on."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.catalogue import build
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS, quantizer
from starling.gossip.compress.compressor import Chain
from starling.gossip.compress.feedback import compress_with_feedback
from starling.gossip.compress.quantize import Float32, Float64, integer
from starling.gossip.compress.select.coordinates import Everything, TopK
from starling.gossip.rng import generator
from tests.strategies import examples, seeds

SELECTED = {"full": {}} | {
    name: {"ratio": 0.1} for name, make in SELECTORS.items() if "ratio" in inspect.signature(make).parameters
}
CONTRACTIONS = [name for name, make in QUANTIZERS.items() if make().omega < 1]
PAIRS = [(select, name) for select in SELECTED for name in ("identity", "fp16", "int8", "int4")]
PAIRS += [("top_k", name) for name in CONTRACTIONS if ("top_k", name) not in PAIRS]
COMPRESSORS = [
    pytest.param(
        Chain(build("compress", SELECTORS, select, SELECTED[select]), quantizer(name, torch.float32)),
        id=f"{select}-{name}",
    )
    for select, name in PAIRS
]


def gaussian(count, *labels, dtype=torch.float32):
    return torch.randn(count, generator=generator(0, "values", *labels), dtype=dtype)


def heavy(count, *labels):
    """Student-like tails: one value in a bucket dwarfs the others, the worst case for a shared step."""
    return gaussian(count, *labels) / gaussian(count, *labels, "below").abs().clamp_min(1e-3)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("draw", [gaussian, heavy])
def test_contraction_holds_in_expectation(compressor, draw):
    """E‖x − Q(x)‖² <= (1 − δ)‖x‖²: the one inequality every convergence proof uses. A mask keeps its share over all seeds,
    so its vector must not hide in one block."""
    x = gaussian(1000) if compressor.selector == SELECTORS["mask"](0.1) else draw(1000)
    errors = [(x - compressor.compress(x, generator(seed))).square().sum().item() for seed in range(60)]
    spread = torch.tensor(errors).std().item() / math.sqrt(len(errors))
    assert sum(errors) / len(errors) <= (1 - compressor.contraction(1000)) * x.square().sum().item() + 4 * spread + 1e-6


@given(ratio=st.floats(0.01, 1.0), seed=seeds, dim=st.integers(1, 300))
@examples(40)
def test_contraction_of_top_k_holds_for_every_draw(ratio, seed, dim):
    """‖x − Q(x)‖² <= (1 − k/d)‖x‖² for each vector, not just on average."""
    x = torch.randn(dim, generator=generator(seed), dtype=torch.float64)
    compressor = Chain(TopK(ratio), Float64())
    error = (x - compressor.compress(x, generator(0))).square().sum()
    assert error <= (1 - compressor.contraction(dim)) * x.square().sum() * (1 + 1e-12)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_feedback_conserves_what_went_in(compressor):
    """Σ inputs = Σ outputs + memory after any number of rounds: nothing is lost, only late. (The reference measures 1e-14.)"""
    memory = torch.zeros(300, dtype=torch.float64)
    put_in, came_out = torch.zeros_like(memory), torch.zeros_like(memory)
    for turn in range(30):
        x = gaussian(300, turn, dtype=torch.float64)
        before = x.clone(), memory.clone()
        compressed, following = compress_with_feedback(compressor, x, memory, generator(turn))
        assert torch.equal(x, before[0])
        assert torch.equal(memory, before[1])
        memory = following
        put_in += x
        came_out += compressed
    assert torch.allclose(put_in, came_out + memory, rtol=0, atol=1e-12)


@given(seed=seeds, ratio=st.floats(0.01, 1.0))
@examples(20)
def test_feedback_of_a_selection_conserves_every_bit(seed, ratio):
    """What is sent is owed no more, what is not sent is owed in full: no rounding at all."""
    x, memory = gaussian(200, seed), gaussian(200, seed, "memory")
    compressed, following = compress_with_feedback(Chain(TopK(ratio), Float32()), x, memory, generator(0))
    assert torch.equal(compressed + following, x + memory)
    assert not (compressed * following).any()


def test_only_contractions_can_be_chained():
    """An unbiased quantizer with omega >= 1 makes a difference loop diverge."""

    with pytest.raises(ValueError, match="omega < 1"):
        Chain(Everything(), integer(2))
    assert Chain(Everything(), integer(2, nearest=True)).contraction(1000) > 0
