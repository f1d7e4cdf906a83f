"""Error feedback: the quantity that each scheme conserves, where it converges, and that both ends have equal state.

The floors are of 16 quadratic bowls (d = 50, condition 10) with one of 50 coordinates sent per node and round.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.catalogue import construct
from starling.gossip.compress.catalogue import SELECTORS, quantizer
from starling.gossip.compress.feedback import FEEDBACKS, Dgc, EControl, Ef21, Ef21Sgdm, ErrorFeedback, NoFeedback
from starling.gossip.compress.quantize import Float32, Float64, Int4, Int8
from starling.gossip.compress.select.coordinates import Everything, TopK
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from tests.harness.codecs import Chain, Rows, TopRows, send
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.strategies import examples, seeds

EVERYTHING, CHANCE = Rows(Chain(Everything(), Float64())), generator(0)


def gaussian(*labels, shape=(4, 50)):
    return torch.randn(shape, generator=generator(0, *labels), dtype=torch.float64)


def floor(feedback, lr, rounds, *, steps=False, sigma=0.0):
    """Return the final relative error (with noise: mean over the second half) of x ← x − lr·mean of the receivers' estimates.

    steps: feed lr·gradient rather than the gradient.
    """
    A, b, x_star = quadratics(16, 50)
    chance = np.random.default_rng(1)
    x, state, held, errors = torch.zeros(50, dtype=torch.float64), feedback.start(b), torch.zeros_like(b), []
    for turn in range(rounds):
        g = gradients(A, b, x)
        if sigma:
            g = g + sigma * torch.from_numpy(chance.normal(size=(16, 50)))
        message, state = send(feedback, state, lr * g if steps else g, TopRows(1))
        held = feedback.receive(held, message)
        x = x - (1.0 if steps else lr) * held.mean(0)
        if sigma and turn >= rounds // 2:
            errors.append(relative_error(x, x_star))
    return float(np.mean(errors)) if sigma else relative_error(x, x_star)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feedback", "lr", "rounds", "more", "expected", "factor"),
    [
        pytest.param(NoFeedback(), 0.05, 3000, {}, 0.31, 1.1, id="a biased compressor alone is stuck far away"),
        pytest.param(
            ErrorFeedback(), 0.005, 10_000, {"steps": True}, 7e-5, 1.5, id="ef ends near the optimum", marks=pytest.mark.acceptance
        ),
        pytest.param(ErrorFeedback(), 0.02, 3000, {"steps": True}, 1.0e-3, 1.5, id="of order lr² away"),
        pytest.param(Ef21(), 0.01, 5000, {"sigma": 2.0}, 0.48, 1.5, id="ef21 keeps noise"),
        pytest.param(Ef21Sgdm(0.1), 0.01, 5000, {"sigma": 2.0}, 0.010, 1.5, id="a running mean takes it out"),
        pytest.param(Ef21Sgdm(0.03), 0.01, 5000, {"sigma": 2.0}, 0.0063, 1.5, id="a longer one more", marks=pytest.mark.acceptance),
        pytest.param(Ef21(), 0.02, 3000, {}, 0.0, 1e-16, id="ef21 is exact"),
        pytest.param(EControl(0.02), 0.02, 5000, {}, 0.0, 1e-24, id="econtrol is exact"),
    ],
)
def test_every_scheme_converges_to_its_theoretical_floor(feedback, lr, rounds, more, expected, factor):
    """At a constant rate, with different data per node. A run is one draw, so within a factor; exact schemes below a bound."""
    ends = floor(feedback, lr, rounds, **more)
    assert expected / factor <= ends <= (expected * factor or factor)


@pytest.mark.slow
def test_econtrol_without_control_amplifies_its_own_errors():
    """Both kinds of feedback at full strength, which is why EControl scales one of them."""
    assert not floor(EControl(1.0), 0.005, 1000) < 1.0


@pytest.mark.slow
def test_the_residual_is_exact_after_thousands_of_steps():
    """Σ updates − Σ messages = memory to 1e-13: the model plus the residual moves as without compression."""
    feedback = ErrorFeedback()
    A, b, _ = quadratics(16, 50)
    x, state = torch.zeros(50, dtype=torch.float64), feedback.start(b)
    put_in, came_out = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(3000):
        update = 0.02 * gradients(A, b, x)
        message, state = send(feedback, state, update, TopRows(1))
        put_in, came_out = put_in + update.mean(0), came_out + message.mean(0)
        x = x - message.mean(0)
    assert (put_in - came_out - state[0].mean(0)).norm() < 1e-13


@pytest.mark.parametrize("name", FEEDBACKS)
class TestEveryFeedback:
    def walk(self, name, rounds, compressor=None):
        """Return updates and (message, state before, state after) of a few rounds."""
        feedback, walked = construct("feedback", name, FEEDBACKS[name], {}), []
        state = feedback.start(gaussian())
        for turn in range(rounds):
            update = gaussian(turn)
            message, following = send(feedback, state, update, compressor or TopRows(5), generator(turn))
            walked.append((update, message, state, following))
            state = following
        return feedback, walked

    def test_does_not_modify_its_inputs(self, name):
        feedback, walked = self.walk(name, 3)
        update, message, before, after = walked[-1]
        tensors = [update, message, *before, *after]
        copies = [tensor.clone() for tensor in tensors]
        send(feedback, after, update, TopRows(5))
        feedback.receive(update, message)
        assert all(map(torch.equal, tensors, copies))

    def test_the_same_state_update_and_chance_give_the_same(self, name):
        compressor = Rows(Chain(TopK(0.2), Int8()))
        feedback, walked = self.walk(name, 2, compressor)
        update, message, before, _ = walked[-1]
        assert torch.equal(send(feedback, before, update, compressor, generator(1))[0], message)

    def test_batched_nodes_equal_single_ones(self, name):
        """So a simulator may batch them: row i of a batch is node i, whatever the other rows are."""
        feedback, walked = self.walk(name, 4)
        for node in range(4):
            state = feedback.start(gaussian()[node])
            for turn, (_, message, _, _) in enumerate(walked):
                alone, state = send(feedback, state, gaussian(turn)[node], TopRows(5))
                assert torch.equal(alone, message[node])

    def test_without_compression_the_receiver_has_the_sender_s_update(self, name):
        """With Q the identity each scheme is the uncompressed one: the gradient, or its momentum or mean."""
        feedback, walked = self.walk(name, 3, EVERYTHING)
        held = torch.zeros(4, 50, dtype=torch.float64)
        for _, message, _, _ in walked:
            held = feedback.receive(held, message)
        gs = [gaussian(turn) for turn in range(3)]
        expected = 0.9 * (0.9 * gs[0] + 0.1 * gs[1]) + 0.1 * gs[2] if name == "ef21_sgdm" else gs[2]
        torch.testing.assert_close(held, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("select", sorted(SELECTORS.keys() - {"low_rank", "layered"}))
@pytest.mark.parametrize("quantize", ["identity", "int4", "sign", "fp8_e4m3"])
def test_feedback_conserves_the_sum_of_inputs(select, quantize):
    """Σ inputs = Σ outputs + memory after any number of rounds: nothing is lost, only delayed. (The reference measures 1e-14.)"""
    compressor = Chain(SELECTORS.build("compress", select, {}), quantizer(quantize, torch.float32))
    put_in, came_out = torch.zeros(2, 300, dtype=torch.float64)
    state = ErrorFeedback().start(put_in)
    for turn in range(30):
        x = gaussian(turn, shape=300)
        compressed, state = send(ErrorFeedback(), state, x, compressor, generator(turn))
        put_in, came_out = put_in + x, came_out + compressed
    assert torch.allclose(put_in, came_out + state[0], rtol=0, atol=1e-12)


@given(seed=seeds, ratio=st.floats(0.01, 1.0))
@examples(20)
def test_feedback_of_a_selection_conserves_every_bit(seed, ratio):
    """Sent coordinates have no residual, the others a full one: no rounding at all."""
    x, memory = gaussian(seed).float()[:2]
    compressed, (following,) = send(ErrorFeedback(), (memory,), x, Chain(TopK(ratio), Float32()), generator(0))
    assert torch.equal(compressed + following, x + memory)
    assert not (compressed * following).any()


@pytest.mark.parametrize("name", ["ef21", "ef21_sgdm", "econtrol"])
@given(seed=seeds, rounds=st.integers(1, 12))
@examples(15)
def test_sender_and_receiver_have_bitwise_equal_estimates(name, seed, rounds):
    feedback = FEEDBACKS[name]()
    state, held = feedback.start(gaussian()), torch.zeros(4, 50, dtype=torch.float64)
    for turn in range(rounds):
        update = gaussian(seed, turn)
        message, state = send(feedback, state, update, Rows(Chain(TopK(0.1), Int4())), generator(seed, turn))
        held = feedback.receive(held, message)
    assert torch.equal(held, state[-1])


def test_dgc_keeps_momentum_and_velocity_only_of_unsent_coordinates():
    """Masking leaves momentum only where nothing was sent: with all sent it is plain SGD."""
    message, (u, v) = send(Dgc(), Dgc().start(gaussian()), gaussian(1), TopRows(5))
    dropped = message == 0
    assert dropped.sum(-1).tolist() == [45] * 4
    for kept in (u, v):
        assert torch.equal(kept, torch.where(dropped, gaussian(1), 0.0))
    again, _ = send(Dgc(), (u, v), gaussian(2), EVERYTHING, CHANCE)
    torch.testing.assert_close(again, v + 0.9 * u + gaussian(2), rtol=0, atol=1e-14)


def test_demo_sends_fast_changes_and_keeps_slow_ones():
    """If all is sent, no momentum remains. If nothing is large enough, it grows to update / (1 − decay)."""
    demo = construct("feedback", "demo", FEEDBACKS["demo"], {"decay": 0.9})
    _, (momentum,) = send(demo, demo.start(gaussian()), gaussian(1), EVERYTHING, CHANCE)
    assert not momentum.any()
    update = torch.tensor([5.0, 0.1, 0.1]).double()
    state = demo.start(update)
    for _ in range(200):
        message, state = send(demo, state, update, TopRows(1))
        assert message[0] == 5.0
    torch.testing.assert_close(state[0], torch.tensor([0.0, 1.0, 1.0]).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("ef21_sgdm", {"beta": 0.0}, "beta must be finite and > 0 and <= 1, got 0.0"),
        ("econtrol", {"control": 1.5}, "control must be finite and > 0 and <= 1, got 1.5"),
        ("dgc", {"momentum": 1.0}, "momentum must be finite and >= 0 and < 1, got 1.0"),
        ("demo", {"decay": 1.0}, "decay must be finite and >= 0 and < 1, got 1.0"),
    ],
)
def test_parameters_out_of_bounds_are_refused_in_one_line(name, params, message):
    with pytest.raises(ConfigError, match=message):
        construct("feedback", name, FEEDBACKS[name], params)
