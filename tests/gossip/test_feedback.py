"""Error feedback: what each scheme conserves, where it ends, and that both ends hold the same.

The floors are of 16 quadratic bowls (d = 50, condition 10) with one of 50 coordinates sent per node and round.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.catalogue import build
from starling.gossip.compress.compressor import Chain
from starling.gossip.compress.dgc import Dgc, warm_up_ratio
from starling.gossip.compress.feedback import FEEDBACKS, EControl, Ef21, Ef21Sgdm, ErrorFeedback, NoFeedback, sign_step
from starling.gossip.compress.multi_step import MultiStep
from starling.gossip.compress.quantize import Float64, Int4, Int8
from starling.gossip.compress.rows import Rows
from starling.gossip.compress.select.coordinates import Everything, Mask, TopK
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.strategies import examples, seeds

REPLICAS = ("ef21", "ef21_sgdm", "econtrol")


@dataclass(frozen=True)
class TopRows:
    """Exact top-k of every row at once, for long runs; `test_rows…` ties it to the compressor of a node."""

    k: int

    def compress(self, x, generator):
        index = x.abs().topk(self.k, -1).indices
        return torch.zeros_like(x).scatter(-1, index, x.gather(-1, index))

    def contraction(self, dim):
        return self.k / dim


def gaussian(*labels, shape=(4, 50)):
    return torch.randn(shape, generator=generator(0, *labels), dtype=torch.float64)


def floor(feedback, lr, rounds, *, steps=False, sigma=0.0):
    """Relative error in the end (with noise: mean over the second half) of x ← x − lr·mean of what receivers make of messages.

    steps: feed lr·gradient rather than the gradient.
    """
    A, b, x_star = quadratics(16, 50)
    chance = np.random.default_rng(1)
    x, state, held, errors = torch.zeros(50, dtype=torch.float64), feedback.start(b), torch.zeros_like(b), []
    for turn in range(rounds):
        g = gradients(A, b, x)
        if sigma:
            g = g + sigma * torch.from_numpy(chance.normal(size=(16, 50)))
        message, state = feedback.compress(state, lr * g if steps else g, TopRows(1), generator(0))
        held = feedback.receive(held, message)
        x = x - (1.0 if steps else lr) * held.mean(0)
        if sigma and turn >= rounds // 2:
            errors.append(relative_error(x, x_star))
    return float(np.mean(errors)) if sigma else relative_error(x, x_star)


def about(value, factor):
    """Between value/factor and value·factor: a run is one draw."""
    return _Within(value / factor, value * factor)


@dataclass(frozen=True)
class _Within:
    low: float
    high: float

    def __eq__(self, other):
        return self.low <= other <= self.high

    __hash__ = None


@pytest.mark.slow
def test_without_feedback_a_biased_compressor_is_stuck_far_away():
    assert floor(NoFeedback(), 0.05, 3000) == about(0.31, 1.1)


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "rounds", "expected"), [(0.005, 10_000, 7e-5), (0.02, 3000, 1.0e-3)])
def test_error_feedback_ends_near_the_optimum_and_nearer_with_a_smaller_rate(lr, rounds, expected):
    """Data differ, so a constant rate leaves a floor, of order lr²."""
    assert floor(ErrorFeedback(), lr, rounds, steps=True) == about(expected, 1.5)


@pytest.mark.slow
def test_ef21_is_exact_at_a_constant_rate():
    assert floor(Ef21(), 0.02, 3000) < 1e-16


@pytest.mark.slow
@pytest.mark.parametrize(("feedback", "expected"), [(Ef21(), 0.48), (Ef21Sgdm(0.1), 0.010), (Ef21Sgdm(0.03), 0.0063)])
def test_a_running_mean_takes_out_the_noise_that_ef21_keeps(feedback, expected):
    """Noise of 2 a coordinate; EF21's estimates follow it a coordinate at a time and never average it."""
    assert floor(feedback, 0.01, 5000, sigma=2.0) == about(expected, 1.5)


@pytest.mark.slow
def test_econtrol_is_exact_at_a_constant_rate():
    assert floor(EControl(0.02), 0.02, 5000) < 1e-24


@pytest.mark.slow
def test_econtrol_without_control_amplifies_its_own_errors():
    """Both kinds of feedback at full strength: why there is a control."""
    assert not floor(EControl(1.0), 0.005, 1000) < 1.0


@pytest.mark.slow
def test_feedback_owes_the_same_after_thousands_of_steps():
    """Σ updates − Σ messages = memory to 1e-13: the model plus what is owed moves as if nothing were compressed."""
    feedback, compressor = ErrorFeedback(), TopRows(1)
    A, b, _ = quadratics(16, 50)
    x, state = torch.zeros(50, dtype=torch.float64), feedback.start(b)
    put_in, came_out = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(3000):
        update = 0.02 * gradients(A, b, x)
        message, state = feedback.compress(state, update, compressor, generator(0))
        put_in, came_out = put_in + update.mean(0), came_out + message.mean(0)
        x = x - message.mean(0)
    assert (put_in - came_out - state.mean(0)).norm() < 1e-13


@pytest.mark.parametrize("name", FEEDBACKS)
class TestEveryFeedback:
    def walk(self, name, rounds, compressor=None):
        """Updates and (message, state before, state after) of a few rounds."""
        feedback, state, walked = build("feedback", FEEDBACKS, name, {}), None, []
        state = feedback.start(gaussian())
        for turn in range(rounds):
            update = gaussian(turn)
            message, following = feedback.compress(state, update, compressor or TopRows(5), generator(turn))
            walked.append((update, message, state, following))
            state = following
        return feedback, walked

    def test_does_not_modify_what_goes_in(self, name):
        feedback, walked = self.walk(name, 3)
        update, message, before, after = walked[-1]
        tensors = [update, message, *_tensors(before), *_tensors(after)]
        copies = [tensor.clone() for tensor in tensors]
        feedback.compress(after, update, TopRows(5), generator(9))
        feedback.receive(update, message)
        feedback.restore(after, message)
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))

    def test_the_same_state_update_and_chance_give_the_same(self, name):
        feedback, walked = self.walk(name, 2, Rows(Chain(TopK(0.2), Int8())))
        update, message, before, _ = walked[-1]
        again, _ = feedback.compress(before, update, Rows(Chain(TopK(0.2), Int8())), generator(1))
        assert torch.equal(again, message)

    def test_nodes_side_by_side_do_as_each_alone(self, name):
        """So that a simulator may batch them: row i of a batch is node i, whatever the others are."""
        feedback, walked = self.walk(name, 4)
        for node in range(4):
            state = feedback.start(gaussian()[node])
            for turn, (_, message, _, _) in enumerate(walked):
                alone, state = feedback.compress(state, gaussian(turn)[node], TopRows(5), generator(turn))
                assert torch.equal(alone, message[node])

    def test_nothing_dropped_means_the_receiver_has_the_senders_update(self, name):
        """With Q the identity each scheme is what it is without compression: the gradient, or its momentum or mean."""
        feedback, walked = self.walk(name, 3, Rows(Chain(Everything(), Float64())))
        held = torch.zeros(4, 50, dtype=torch.float64)
        for _, message, _, _ in walked:
            held = feedback.receive(held, message)
        gs = [gaussian(turn) for turn in range(3)]
        expected = 0.9 * (0.9 * gs[0] + 0.1 * gs[1]) + 0.1 * gs[2] if name == "ef21_sgdm" else gs[2]
        torch.testing.assert_close(held, expected, rtol=0, atol=1e-12)


def _tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    return [getattr(state, name) for name in getattr(state, "__slots__", ()) if getattr(state, name) is not None]


@pytest.mark.parametrize("name", REPLICAS)
@given(seed=seeds, rounds=st.integers(1, 12))
@examples(15)
def test_sender_and_receiver_hold_the_same_estimate_to_the_bit(name, seed, rounds):
    """Both add the same messages in the same order; a bit of difference would stay for ever."""
    feedback = FEEDBACKS[name]()
    state, held = feedback.start(gaussian()), torch.zeros(4, 50, dtype=torch.float64)
    compressor = Rows(Chain(TopK(0.1), Int4()))
    for turn in range(rounds):
        message, state = feedback.compress(state, gaussian(seed, turn), compressor, generator(seed, turn))
        held = feedback.receive(held, message)
    assert torch.equal(held, state if name == "ef21" else state.estimate)


@pytest.mark.parametrize("name", ["ef", "dgc", "demo", *REPLICAS])
def test_a_lost_message_is_made_up_for(name):
    """Restored, the sender goes on from what the receivers hold; what was lost arrives later."""
    feedback, compressor = build("feedback", FEEDBACKS, name, {}), TopRows(10)
    state, held = feedback.start(gaussian()), torch.zeros(4, 50, dtype=torch.float64)
    message, before = feedback.compress(state, gaussian(0), compressor, generator(0))
    held = feedback.receive(held, message)
    lost, after = feedback.compress(before, gaussian(1), compressor, generator(0))
    restored = feedback.restore(after, lost)
    match name:
        case "ef":
            expected = before + gaussian(1)
            torch.testing.assert_close(restored, expected, rtol=0, atol=1e-14)
        case "demo":
            torch.testing.assert_close(restored, 0.999 * before + gaussian(1), rtol=0, atol=1e-14)
        case "dgc":
            u = 0.9 * before.momentum + gaussian(1)
            torch.testing.assert_close(restored.velocity, before.velocity + u, rtol=0, atol=1e-14)
        case "econtrol":
            torch.testing.assert_close(restored.estimate, held, rtol=0, atol=1e-14)
            torch.testing.assert_close(restored.memory, before.memory + gaussian(1) - held, rtol=0, atol=1e-14)
        case "ef21":
            torch.testing.assert_close(restored, held, rtol=0, atol=1e-14)
        case _:
            torch.testing.assert_close(restored.estimate, held, rtol=0, atol=1e-14)


def test_dgc_that_sends_all_is_momentum_sgd_without_masking_and_plain_sgd_with_it():
    """Masking as published leaves momentum only where nothing was sent, so sending all leaves none."""
    everything = Rows(Chain(Everything(), Float64()))
    unmasked, masked = Dgc(factor_masking=False), Dgc()
    state, plain, momentum = unmasked.start(gaussian()), masked.start(gaussian()), torch.zeros(4, 50).double()
    for turn in range(20):
        momentum = 0.9 * momentum + gaussian(turn)
        sent, state = unmasked.compress(state, gaussian(turn), everything, generator(0))
        torch.testing.assert_close(sent, momentum, rtol=0, atol=1e-13)
        sent, plain = masked.compress(plain, gaussian(turn), everything, generator(0))
        assert torch.equal(sent, gaussian(turn))


def test_dgc_with_nesterov_looks_ahead():
    everything = Rows(Chain(Everything(), Float64()))
    nesterov = Dgc(nesterov=True, factor_masking=False)
    state, momentum = nesterov.start(gaussian()), torch.zeros(4, 50).double()
    for turn in range(5):
        g = gaussian(turn)
        momentum = 0.9 * (momentum + g)
        sent, state = nesterov.compress(state, g, everything, generator(0))
        torch.testing.assert_close(sent, momentum + g, rtol=0, atol=1e-13)


def test_dgc_keeps_momentum_and_velocity_just_where_nothing_was_sent():
    dgc = Dgc()
    message, state = dgc.compress(dgc.start(gaussian()), gaussian(1), TopRows(5), generator(0))
    sent = message != 0
    assert sent.sum(-1).tolist() == [5] * 4
    assert not state.velocity[sent].any()
    assert not state.momentum[sent].any()
    assert torch.equal(state.velocity[~sent], gaussian(1)[~sent])
    assert torch.equal(state.momentum[~sent], gaussian(1)[~sent])


def test_dgc_clips_before_it_accumulates_and_nodes_share_the_threshold():
    """Four nodes with independent gradients of norm 1 sum to norm 2: each gets half of what one would."""
    g = gaussian(1)
    long, short = g / g.norm(dim=-1, keepdim=True) * 10, g / g.norm(dim=-1, keepdim=True) * 0.9
    dgc = Dgc(clip_norm=2.0, nodes=4)
    everything = Rows(Chain(Everything(), Float64()))
    sent, _ = dgc.compress(dgc.start(g), long, everything, generator(0))
    torch.testing.assert_close(sent.norm(dim=-1), torch.ones(4).double())
    sent, _ = dgc.compress(dgc.start(g), short, everything, generator(0))
    assert torch.equal(sent, short)


def test_dgc_warms_up_as_published():
    ratios = [warm_up_ratio(epoch, 0.001) for epoch in range(6)]
    assert ratios == pytest.approx([0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001])
    with pytest.raises(ValueError, match="final must be in"):
        warm_up_ratio(0, 0.0)


def test_demo_sends_fast_changes_and_keeps_slow_ones():
    """All sent: nothing stays. Nothing large enough: the momentum grows to update / (1 − decay) in what is not sent."""
    demo = build("feedback", FEEDBACKS, "demo", {"decay": 0.9})
    _, momentum = demo.compress(demo.start(gaussian()), gaussian(1), Rows(Chain(Everything(), Float64())), generator(0))
    assert not momentum.any()
    update = torch.tensor([5.0, 0.1, 0.1]).double()
    momentum = demo.start(update)
    for _ in range(200):
        message, momentum = demo.compress(momentum, update, TopRows(1), generator(0))
        assert message[0] == 5.0
    torch.testing.assert_close(momentum, torch.tensor([0.0, 1.0, 1.0]).double(), rtol=0, atol=1e-7)


def test_a_sign_step_moves_every_coordinate_by_the_rate_or_not_at_all():
    x = torch.tensor([1.0, 1.0, 1.0])
    moved = sign_step(x, torch.tensor([1e9, -1e-9, 0.0]), 0.1, weight_decay=0.5)
    torch.testing.assert_close(moved, torch.tensor([0.85, 1.05, 0.95]))


def test_rows_compress_each_vector_as_if_alone():
    x = gaussian(7)
    single = Chain(TopK(0.1), Float64())
    together = Rows(single).compress(x, generator(0))
    assert torch.equal(together, torch.stack([single.compress(row, generator(0)) for row in x]))
    assert torch.equal(together, TopRows(5).compress(x, generator(0)))
    assert torch.equal(Rows(single).compress(x.view(2, 2, 50), generator(0)), together.view(2, 2, 50))
    assert Rows(single).compress(x[:0], generator(0)).shape == (0, 50)
    assert Rows(single).contraction(50) == single.contraction(50)


def test_steps_of_top_k_are_one_larger_top_k():
    """Each step takes the next k: five of 1 % leave of Gaussian numbers just what one of 5 % leaves, so several gain nothing."""
    x = gaussian("steps", shape=(20, 1000))
    top = Rows(Chain(TopK(0.01), Float64()))
    left = [x - MultiStep(top, steps).compress(x, generator(0)) for steps in range(1, 6)]
    ratios = [float((rest.square().sum(-1) / x.square().sum(-1)).mean()) for rest in left]
    assert ratios == pytest.approx([0.919, 0.861, 0.808, 0.760, 0.717], abs=0.01)
    assert all(ratio <= 0.99**steps for steps, ratio in enumerate(ratios, 1))
    five = MultiStep(top, 5).compress(x, generator(0))
    assert torch.equal(five, Rows(Chain(TopK(0.05), Float64())).compress(x, generator(0)))


@given(seed=seeds, steps=st.integers(1, 4))
@examples(20)
def test_steps_of_a_random_mask_multiply_what_each_leaves(seed, steps):
    """E‖x − v_R‖² = (1 − δ)^R ‖x‖² for independent masks; checked as what a mask of the union must leave: never more than one leaves."""
    x = gaussian(seed, shape=(640,))
    compressor = MultiStep(Chain(Mask(0.25, block=1), Float64()), steps)
    errors = [float((x - compressor.compress(x, generator(seed, draw))).square().sum()) for draw in range(8)]
    expected = (1.0 - compressor.contraction(640)) * float(x.square().sum())
    assert compressor.contraction(640) == pytest.approx(1 - 0.75**steps)
    assert np.mean(errors) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("ef21_sgdm", {"beta": 0.0}, r"beta must be in \(0, 1\], got 0.0"),
        ("econtrol", {"control": 1.5}, r"control must be in \(0, 1\], got 1.5"),
        ("dgc", {"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ("dgc", {"clip_norm": math.nan}, "clip_norm must be >= 0, got nan"),
        ("dgc", {"nodes": 0}, "nodes must be >= 1, got 0"),
        ("demo", {"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ("ef22", {}, "'ef22' is unknown, choose one of demo, dgc, econtrol, ef, ef21, ef21_sgdm, none"),
    ],
)
def test_parameters_out_of_bounds_are_refused_in_one_line(name, params, message):
    with pytest.raises(ConfigError, match=message):
        build("feedback", FEEDBACKS, name, params)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        MultiStep(TopRows(1), 0)
