"""Logarithmic codes: their accuracy for numbers that span decades, and validation of bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.quantize.logarithm import BASE, BUCKET, Logarithm
from tests.strategies import examples, seeds

CODEC = Logarithm()


def numbers(count, seed, decades=8):
    chance = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=chance).square() * 10 ** (-decades * torch.rand(count, generator=chance))
    values[torch.rand(count, generator=chance) < 0.1] = 0.0
    return values


@given(count=st.integers(0, 1500), seed=seeds)
@examples(60)
def test_every_number_decodes_within_a_factor_or_is_negligible(count, seed):
    """Within one level; a number that becomes 0 was 0 or is eight decades below the largest of its bucket."""
    values = numbers(count, seed)
    data = CODEC.encode(values, torch.Generator().manual_seed(seed))
    assert len(data) == CODEC.size(count) == 2 * -(-count // BUCKET) + -(-count // 2)
    found = CODEC.decode(data, count)
    here = found > 0
    ratio = found[here] / values[here]
    assert bool((ratio < BASE * 1.01).all())
    assert bool((ratio > 1 / BASE / 1.01).all())
    tops = torch.nn.functional.pad(values, (0, -count % BUCKET)).view(-1, BUCKET).amax(1).repeat_interleave(BUCKET)
    assert bool((values[~here] <= tops[:count][~here] * BASE**-14 * 1.01).all())


def test_the_logarithm_is_unbiased():
    values = torch.full((BUCKET * 200,), 0.3)
    values[::BUCKET] = 1.0
    found = CODEC.decode(CODEC.encode(values, torch.Generator().manual_seed(1)), len(values)).view(-1, BUCKET)[:, 1:]
    assert abs(float((found.log2() - torch.tensor(0.3).log2()).mean())) < 0.02


def test_many_buckets_are_coded_like_few(monkeypatch):
    """They are coded in chunks, each with its part of the random numbers."""
    values = numbers(BUCKET * 9 + 5, 3)
    monkeypatch.setattr("starling.gossip.compress.quantize.logarithm._CHUNK", 2)
    found = CODEC.decode(CODEC.encode(values, torch.Generator().manual_seed(1)), len(values))
    here = values > 1e-6
    assert bool((found[here] / values[here] < 4.1).all())
    assert bool((found[here] / values[here] > 0.24).all())


def test_hostile_bytes_are_refused():
    values = numbers(301, 4)
    data = CODEC.encode(values, torch.Generator())
    for hostile, why in (
        (data[:-1], "bad_length"),
        (data + b"\0", "bad_length"),
        (b"\xff" * len(data), "bad_scale"),
        (data[:-1] + bytes([data[-1] | 0xF0]), "bad_padding"),
    ):
        with pytest.raises(ValueError, match=why):
            CODEC.decode(hostile, 301)
    with pytest.raises(ValueError, match="not_finite"):
        CODEC.encode(torch.tensor([1.0, float("inf")]), torch.Generator())


def test_the_bytes_of_a_vector_are_golden():
    """A golden vector, which nodes of other versions read."""
    values = torch.tensor([1.0, 0.25, 0.0625, 0.0, 1e-12])
    assert CODEC.encode(values, torch.Generator().manual_seed(0)).hex() == "803f10f20f"
