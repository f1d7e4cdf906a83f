"""Properties of all combining rules, and the bounds of theory on the effect of a Byzantine minority."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.kernels.codec import peak_extra
from starling.robust.rules.api import Context
from starling.robust.rules.stack import BLOCK, CHUNK, Stack
from tests.harness.robust_rules import EVERY, RULES, K, combine, example, losses, tolerated
from tests.strategies import examples, seeds

every = pytest.mark.parametrize("name", EVERY)
INSIDE = ("median", "trimmed_mean", "krum", "multi_krum", "mda", "ubar", "nnm+trimmed_mean")
"""Rules whose result has every coordinate between the least and the greatest of honest ones, if bad vectors are far away.

Not bulyan: its last Krum, among 2f + 1, may select any, and the mean around the median then leans towards what was selected.
"""


@every
def test_the_order_of_peers_does_not_matter(name):
    if name.startswith("bucketing") or name == "bulyan":
        return
    own, received, present, before = example(1)
    present[2] = False
    order = torch.randperm(K, generator=generator(9))
    there = combine(EVERY[name], own, received[order], present[order], before)
    assert torch.allclose(combine(EVERY[name], own, received, present, before), there, rtol=1e-9, atol=1e-9)


@every
def test_moving_all_vectors_moves_the_result(name):
    if name.endswith(("balance", "ubar")):
        return
    own, received, present, before = example(2)
    by = torch.randn(own.shape[-1], generator=generator(3), dtype=own.dtype) * 10
    here = combine(EVERY[name], own, received, present, before)
    there = combine(EVERY[name], own + by, received + by, present, before + by)
    assert torch.allclose(here + by, there, rtol=1e-9, atol=1e-8)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_rows_equal_single_ones_bit_for_bit(name, dtype):
    for rows, dim in (((3, 2), 65), ((3,), CHUNK + 7)):
        own, received, present, before = example(4, rows, dim, dtype=dtype)
        present[0, ..., 1] = False
        present[1, ..., 2:] = False
        of = EVERY[name]
        combined, kept, _ = of.combine(of.start(own), own, received, present, before, losses)
        flat = [tensor.flatten(0, len(rows) - 1) for tensor in (own, received, present, before, combined, kept)]
        for alone, peers, there, was, result, memory in zip(*flat, strict=True):
            single, remembered, _ = of.combine(of.start(alone), alone, peers, there, was, losses)
            assert torch.equal(single, result)
            assert torch.equal(remembered, memory)


@every
def test_the_block_size_changes_no_bit(name):
    own, received, present, before = example(5, (1,), 5 * CHUNK + 13, dtype=torch.float32)
    present[0, 3] = False
    of = EVERY[name]

    def at(block):
        stack, kept = Stack(own, received, present, block=block), of.start(own)
        if of.first is not None:
            split = kept.shape[1] - ("bucketing" in name)
            stack, _ = of.first.prepare(stack, kept[:, split:])
            kept = kept[:, :split]
        return of.rule.reduce(stack, Context(kept, own, before, losses))[0]

    assert torch.equal(at(CHUNK), at(BLOCK))
    assert torch.equal(at(3 * CHUNK), at(8 * CHUNK))


@every
def test_values_of_absent_peers_are_ignored_even_if_not_finite(name):
    own, received, present, before = example(6)
    received[1], received[4] = torch.nan, torch.inf
    present[1] = present[4] = False
    assert torch.isfinite(combine(EVERY[name], own, received, present, before)).all()


@every
def test_without_peers_the_own_vector_is_bitwise_unchanged(name):
    own, received, present, before = example(7, (2,), dtype=torch.float32)
    present[0] = False
    combined = combine(EVERY[name], own, received, present, before)
    assert torch.equal(combined[0], own[0])
    assert not torch.equal(combined[1], own[1])
    nobody = combine(EVERY[name], own[0], received[0, :0], present[0, :0], before[0])
    assert torch.equal(nobody, own[0])


@every
def test_inputs_are_not_modified_and_share_no_memory_with_the_result(name):
    own, received, present, before = inputs = example(8, (2,))
    present[0, 0] = False
    for there in (present, torch.zeros_like(present)):
        state = EVERY[name].start(own)
        copies = [tensor.clone() for tensor in (*inputs, state)]
        combined, _, _ = EVERY[name].combine(state, own, received, there, before, losses)
        assert all(torch.equal(old, new) for old, new in zip(copies, (*inputs, state), strict=True))
        assert combined.data_ptr() not in {own.data_ptr(), received.data_ptr(), before.data_ptr()}


@pytest.mark.parametrize("name", RULES)
def test_present_vectors_never_count_for_absent_ones(name):
    """One of seven peers is present: its effect is at most that of its share in a combination of all, 1/(m − 2b)."""
    own, received, present, _ = example(10)
    present[1:] = False
    moved = combine(RULES[name], own, received, present, own) - own
    assert float(moved.norm()) <= float((received[0] - own).norm()) / (K + 1 - 4) + 1e-9


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"mean", "foolsgold"}))
@given(seed=seeds, far=st.sampled_from([30.0, 1e6, 1e30, 3e38]), apart=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float64]))
@examples(15)
def test_a_rule_withstands_its_tolerated_number_of_liars(name, seed, far, apart, dtype):
    own, received, present, before = example(seed, dtype=dtype)
    liars = tolerated(name)
    spread = max(float((vectors - own).norm()) for vectors in (*received, before))
    received[:liars] = (
        far if not apart else far * torch.randn(received[:liars].shape, generator=generator(seed, 1), dtype=dtype).clamp(-1, 1)
    )
    combined = combine(EVERY[name], own, received, present, before)
    assert float((combined - own).norm()) <= 5 * spread
    if name in INSIDE:
        honest = torch.cat([own[None], received[liars:]])
        assert (combined <= honest.amax(dim=0) + 1e-5).all()
        assert (combined >= honest.amin(dim=0) - 1e-5).all()


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "meamed", "geometric_median", "mda", "krum", "multi_krum", "flag"])
def test_a_majority_of_liars_breaks_every_rule(name):
    own, received, present, before = example(11)
    received[: K // 2 + 2] = 1e6
    assert float((combine(RULES[name], own, received, present, before) - own).norm()) > 1e6


def test_one_liar_breaks_the_mean():
    own, received, present, before = example(12)
    received[3] = 1e9
    assert float(combine(RULES["mean"], own, received, present, before).norm()) > 1e8


@given(seed=seeds, exponent=st.integers(-30, 30))
@examples(30)
def test_one_message_moves_sac_by_at_most_two_thresholds(seed, exponent):
    own, received, present, before = example(seed)
    tau = 3.0 * float((own - before).norm())
    first = combine(RULES["sac"], own, received, present, before)
    received[0] *= 10.0**exponent
    assert float((combine(RULES["sac"], own, received, present, before) - first).norm()) <= 2 * tau / (K + 1) * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["median", "multi_krum", "geometric_median", "cs_plus", "bulyan", "nnm+trimmed_mean"])
def test_rules_need_only_a_few_blocks_of_additional_memory(name):
    """16 vectors of half a million: a naive definition copies these 32 MB, for nearest-neighbor mixing thirteen times."""
    own, received, present, before = example(13, dim=500_000, k=15, dtype=torch.float32)
    of = EVERY[name]
    combine(of, own[:50_000], received[:, :50_000], present, before[:50_000])
    extra, _ = peak_extra("cpu", lambda: of.combine(of.start(own), own, received, present, before, None))
    if extra is None:
        pytest.skip("this system does not tell")
    assert extra < own.nbytes + (12 << 20)
