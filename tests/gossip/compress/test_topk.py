"""Finding the largest magnitudes without sorting: the result equals a stable sort's for any sample."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import topk as module
from starling.gossip.compress.topk import largest
from starling.gossip.rng import generator
from tests.strategies import examples, seeds

LONG = 40_000  # more than are gathered at once


def by_sorting(x, count, reference=None):
    drift = x if reference is None else x - reference
    return drift.abs().sort(stable=True, descending=True).indices[:count].sort().values


def spread(kind, dim, seed):
    chance = generator(seed)
    x = torch.randn(dim, generator=chance)
    match kind:
        case "zeros":
            return torch.zeros(dim)
        case "mostly zeros":
            return x * (torch.rand(dim, generator=chance) < 0.002)
        case "few values":
            return (x * 2).round()
        case "rising":
            return torch.arange(dim).float()
        case "one column large":  # every 97th: a sample that hits or misses these is far off
            return x * torch.where(torch.arange(dim) % 97 == seed % 97, 1000.0, 1.0)
        case "heavy":
            return x / torch.rand(dim, generator=chance)
    return x


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "zeros", "mostly zeros", "few values", "rising", "one column large"])
@given(seed=seeds, dim=st.sampled_from([1, 2, 100, LONG]), share=st.floats(0.0, 1.0), drift=st.booleans())
@examples(12)
def test_the_selection_equals_a_stable_sort_s(kind, seed, dim, share, drift):
    x = spread(kind, dim, seed)
    reference = spread("few values", dim, seed + 1) if drift else None
    count = max(1, int(share**3 * dim))
    assert torch.equal(largest(x, count, reference), by_sorting(x, count, reference))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("guess", [-1.0, 0.0, 0.5, 1e-3, 1e9])
def test_a_wrong_threshold_costs_passes_and_not_the_result(dtype, guess, monkeypatch):
    monkeypatch.setattr(module, "_guess", lambda *_: guess)
    x = torch.randn(LONG, generator=generator(1), dtype=dtype)
    for count in (1, 400, 39_000):
        assert torch.equal(largest(x, count), by_sorting(x, count))


def test_chunking_does_not_change_the_selection(monkeypatch):
    x = spread("few values", LONG, 5)
    whole = largest(x, 3000)
    monkeypatch.setattr(module, "_CHUNK", 1000)
    assert torch.equal(largest(x, 3000), whole)
