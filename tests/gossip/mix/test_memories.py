"""Exchanges of memories: averages compared with an independent recursion; ages; and the bound on one peer's influence."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.quantize.kinds import integer
from starling.gossip.compress.support import Blocks, Full, Indices
from starling.gossip.mix import memories
from starling.gossip.mix.memories import Decay, MemoryCodec, MemoryExchange, MemoryMessage
from tests.harness.memory_ends import BETAS, CODEC, VectorMemory, drawn, learned, meet
from tests.strategies import examples, seeds

D = 100
BETA, SQUARE = BETAS
GOLDEN = "78133ed70205803f10f20f0000000000001c400a000000"
"""A payload x, m, v, age and length, of the memory in the last test."""


def weights(age):
    return 1 - BETA**age, 1 - SQUARE**age


def recursion(one, other, theta, square):
    """Return (m, v, age) of the end `one`, computed in numpy float64 from the decoded values.

    `one` and `other` are (m, v, age), `square` the other's decoded v; the difference of m is given as `other`'s m.
    """
    (m, v, age), (m_other, _, age_other) = one, other
    after = max(age, age_other)
    (w1, w2), (u1, u2), (a1, a2) = weights(age), weights(age_other), weights(after)
    mean = (m + theta * (m_other - m)) * a1 / ((1 - theta) * w1 + theta * u1)
    kept = v * a2 / w2 if square is None else ((1 - theta) * v + theta * square) * a2 / ((1 - theta) * w2 + theta * u2)
    return mean, np.maximum(kept, (mean / a1) ** 2 * a2), after


@given(seed=seeds, ages=st.tuples(st.integers(1, 60), st.integers(1, 60)), theta=st.floats(0.1, 0.5), met=st.integers(0, 9))
@examples(60)
def test_both_ends_follow_the_formulas(seed, ages, theta, met):
    """To 1e-12 in float64, on the decoded values."""
    chance = torch.Generator().manual_seed(seed)
    one, other = (drawn(D, age, chance, dtype=torch.float64) for age in ages)
    one.met = met
    ends, effects, (asked, said) = meet(one, other, theta=theta, seed=seed)
    before = [(each.mean.double().numpy(), each.square.double().numpy(), each.age) for each in (one, other)]
    difference = CODEC.mean.decode(said.mean, D).double().numpy()
    squares = [CODEC.square.decode(each.square, D).double().numpy() if each.square else None for each in (said, asked)]
    for end, effect, sign in zip(ends, effects, (1.0, -1.0), strict=True):
        place = int(sign < 0)
        m, v, age = before[place]
        shown = (m + sign * difference, None, before[1 - place][2])
        square = squares[place]
        if square is not None:
            bound = 4 * (v / weights(age)[1]).sum() / (square / weights(shown[2])[1]).sum()
            square = square * min(1.0, bound)
        length = theta * np.linalg.norm(difference)
        most = max(np.linalg.norm(m), 0.25 * math.sqrt((v / weights(age)[1]).sum()) * weights(age)[0])
        shown = (m + sign * difference * min(1.0, most / length), None, shown[2])
        expected = recursion((m, v, age), shown, theta, square)
        end.learn(effect)
        memory = end.memory
        np.testing.assert_allclose(memory.mean.double(), expected[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(memory.square.double(), expected[1], rtol=1e-12, atol=1e-12)
        assert memory.age == expected[2]
    assert bool(asked.square) == bool(said.square) == (met < 4 or met % 4 == 0)


@given(seed=seeds, age=st.integers(1, 50))
@examples(30)
def test_with_equal_ages_the_sum_of_both_means_is_preserved(seed, age):
    """Both ends apply bitwise the same difference, so rounding preserves the sum."""
    chance = torch.Generator().manual_seed(seed)
    one, other = drawn(D, age, chance), drawn(D, age, chance)
    before = one.mean.double() + other.mean.double()
    learned(one, other)
    torch.testing.assert_close(one.mean.double() + other.mean.double(), before, atol=1e-6, rtol=1e-5)
    assert float((one.mean - other.mean).norm()) < 0.05 * float(before.norm()) + 1e-6


def test_a_young_memory_takes_over_an_older_one_which_hardly_changes():
    """A joiner has few gradients, which get little weight, so the older v dominates."""
    for end in range(2):
        chance = torch.Generator().manual_seed(end)
        old, new = drawn(D, 700, chance), drawn(D, 5, chance)
        before = old.square.clone()
        learned(*((new, old) if end else (old, new)))
        assert new.age == old.age == 700
        assert 0.5 < float(new.square.sum() / old.square.sum()) < 2.0
        assert 0.5 < float(old.square.sum() / before.sum()) < 2.0


@pytest.mark.parametrize("ages", [(0, 50), (50, 0), (0, 0)], ids=str)
def test_an_empty_memory_neither_sends_nor_receives(ages):
    """Otherwise it would rest on the first peer's values alone."""
    one, other = (drawn(D, age, torch.Generator().manual_seed(age)) for age in ages)
    before = [(each.mean.clone(), each.square.clone(), each.age) for each in (one, other)]
    learned(one, other)
    for each, (mean, square, age) in zip((one, other), before, strict=True):
        assert torch.equal(each.mean, mean)
        assert torch.equal(each.square, square)
        assert (each.age, each.met) == (age, 0)


@given(seed=seeds, age=st.integers(1, 40), since=st.integers(0, 30))
@examples(30)
def test_a_late_commit_gives_the_same_memory_as_a_timely_one(seed, age, since):
    """m decays meanwhile, and so does the pending change: equal gradients give an equal memory. v stays convex in both cases."""
    chance = torch.Generator().manual_seed(seed)
    prompt, partner = drawn(D, age, chance), drawn(D, age, chance)
    for each in (prompt, partner):
        each.met = 5  # without v
    late = VectorMemory(prompt.mean, prompt.square + 1e3, age)  # so that the lower bound does not apply
    prompt.square += 1e3
    late.met = 5
    for memory in (prompt, late):
        end, (effect, _), _ = meet(memory, partner, seed=seed)
        steps = [torch.randn(D, generator=torch.Generator().manual_seed(step)) for step in range(since)]
        if memory is prompt:
            end[0].learn(effect)
        for gradient in steps:
            memory.step(gradient)
        if memory is late:
            end[0].learn(effect)
    torch.testing.assert_close(late.mean, prompt.mean, atol=1e-5, rtol=1e-4)
    assert late.age == prompt.age == age + since


def test_effects_agreed_before_a_memory_was_deleted_are_dropped():
    one, other = (drawn(D, 20, torch.Generator().manual_seed(seed)) for seed in range(2))
    (end, _), (effect, _), _ = meet(one, other)
    one.forget()
    one.step(torch.ones(D))
    before = one.mean.clone()
    end.learn(effect)
    end.learn(None)
    assert torch.equal(one.mean, before)
    assert one.age == 1


@given(seed=seeds, scale=st.floats(1.0, 1e6), square=st.sampled_from([0.0, 1.0, 1e6]))
@examples(30)
def test_one_liar_s_effect_on_a_memory_is_bounded(seed, scale, square):
    """For any claimed m and v: θ·‖change of m‖ <= max(‖m‖, ¼·√(Σ v̂)·w1), Σ v at most 1 + 3θ times as large, and bounded steps."""
    chance = torch.Generator().manual_seed(seed)
    honest, liar = drawn(D, 30, chance), drawn(D, 30, chance)
    liar.mean, liar.square = -scale * honest.mean, square * honest.square
    before = VectorMemory(honest.mean, honest.square, 30)
    learned(honest, liar, seed=seed)
    w1, w2 = weights(30)
    most = max(float(before.mean.norm()), 0.25 * math.sqrt(float(before.square.sum()) / w2) * w1)
    moved = (honest.mean - before.mean).norm()
    assert float(moved) <= 1.001 * most
    lift = float(((honest.mean / w1) ** 2 * w2).sum())
    assert float(honest.square.sum()) <= 2.51 * float(before.square.sum()) + lift
    step = honest.mean / w1 / (honest.square / w2).sqrt().clamp_min(1e-12)
    assert float(step.abs().max()) <= 1.001


@pytest.mark.parametrize("support", [Blocks(3, 1, 4, 16), Indices(torch.arange(5, 60, 3))], ids=["blocks", "indices"])
@pytest.mark.parametrize("ages", [(30, 30), (5, 400)], ids=str)
def test_exchanging_a_fragment_averages_that_fragment_only(support, ages):
    one, other = (drawn(D, age, torch.Generator().manual_seed(age + k)) for k, age in enumerate(ages))
    outside = torch.ones(D, dtype=torch.bool)
    outside[support.index(D)] = False
    before = one.mean.clone(), one.square.clone()
    learned(one, other, support=support)
    assert one.age == ages[0]
    assert torch.equal(one.mean[outside], before[0][outside])
    assert torch.equal(one.square[outside], before[1][outside])
    assert not torch.equal(one.mean[~outside], before[0][~outside])
    gap = (one.mean / weights(one.age)[0] - other.mean / weights(other.age)[0])[~outside]
    assert float(gap.abs().max()) < 0.1


def test_pieces_without_second_moments_exchange_none():
    """Muon's matrices have no v."""
    decays = (Decay(slice(0, 64), 0.95, None), Decay(slice(64, D), *BETAS))
    one, other = (drawn(D, 20, torch.Generator().manual_seed(seed), decays=decays) for seed in range(2))
    asked, said = learned(one, other)
    assert len(asked.square) == len(said.square) == CODEC.square.size(D - 64)
    assert not one.square[:64].any()
    assert not other.square[:64].any()
    assert one.square[64:].all()
    torch.testing.assert_close(one.mean, other.mean, atol=0.02, rtol=0.2)


def test_a_node_that_shares_no_memory_receives_none():
    one, other = (drawn(D, 20, torch.Generator().manual_seed(seed)) for seed in range(2))
    before = one.mean.clone(), other.mean.clone()
    asked, said = learned(one, other, home=True)
    assert asked == said == MemoryMessage(0)
    assert torch.equal(one.mean, before[0])
    shown = MemoryExchange(one, CODEC, home=True)
    assert shown.answer(Full(), 0.5, MemoryMessage(5, b"x"), torch.Generator()) == (MemoryMessage(0), None)
    assert torch.equal(other.mean, before[1])


@pytest.mark.parametrize("age", [-1.0, 0.5, 3.0, math.nan, math.inf, 2.0**24 + 1, 1e300])
def test_an_invalid_age_is_refused(age):
    end = MemoryExchange(drawn(D, 3, torch.Generator()), CODEC)
    with pytest.raises(ValueError, match="bad_memory"):
        end.parsed(b"", age, Full(), D)


def test_codes_of_another_length_or_with_bad_scales_are_refused():
    end = MemoryExchange(drawn(D, 3, torch.Generator()), CODEC)
    good = end.told(Full(), torch.Generator()).values
    assert end.parsed(good, 3.0, Full(), D).values == good
    for hostile in (good[:-1], good + b"\0", b"\0", b"\xff" * len(good)):
        with pytest.raises(ValueError, match="bad_"):
            end.parsed(hostile, 3.0, Full(), D)


def test_a_joined_payload_is_split_into_its_parts():
    said = MemoryMessage(7, b"mean", b"square")
    assert memories.split_memory(memories.joined(b"model", said)) == (b"model", b"meansquare", 7.0)
    for hostile in (b"", b"short", b"\xff" * 12, memories.joined(b"", said)[1:]):
        with pytest.raises(ValueError, match="bad_length"):
            memories.split_memory(hostile)


def test_m_is_rounded_to_nearest_in_small_blocks():
    """With random rounding, or blocks of 256, orthogonalisation amplifies the noise and half of the gain is lost."""
    coded = MemoryCodec(integer(4, nearest=True, bucket=32))
    values = torch.randn(32 * 20, generator=torch.Generator().manual_seed(2))
    error = coded.mean.decode(coded.mean.encode(values, torch.Generator()), len(values)) - values
    assert float(error.abs().max()) <= float(values.abs().max()) / 14 * 1.01


def test_the_bytes_of_a_memory_are_golden():
    """A golden vector, which nodes of other versions read."""
    mean, square = torch.tensor([1.0, -0.5, 0.25, 0.0, 0.7]), torch.tensor([1.0, 0.25, 0.0625, 0.0, 1e-12])
    coded = MemoryCodec(integer(4, nearest=True, bucket=32))
    said = MemoryExchange(VectorMemory(mean, square, 7), coded).told(Full(), torch.Generator().manual_seed(0))
    assert memories.joined(b"x", said).hex() == GOLDEN
    assert memories.split_memory(bytes.fromhex(GOLDEN)) == (b"x", said.values, 7.0)
