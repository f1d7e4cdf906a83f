"""Corrections count as far as the latest gradients confirm them: steps, exchanges, and false claims."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Effect, Phase
from starling.gossip.compress.support import Blocks, Full
from starling.gossip.mix import borne, edge_ledger, rows
from starling.gossip.mix.base import PlainAveraging
from starling.gossip.mix.moments import Moments
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.rows import rows_of
from starling.node.config.schema import Manifest, MixSection, OptimizerSection
from starling.node.engine.mixing import mixer
from tests.strategies import examples, seeds

DIM, STEPS, LR = 130, 4, 0.1
PHASE = Phase(0, float(STEPS), LR)
shares = st.floats(0.0, 1.0)
quick = examples(25)


def gaussian(seed, *size):
    return torch.randn(*(size or (DIM,)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(state):
    return borne.Borne(*rows_of(state.c).read(state.known))


class Recursion:
    """The rule for one node in numpy, from its formulas."""

    def __init__(self, dim):
        self.c, self.dot, self.norm, self.power, self.sum, self.steps = np.zeros(dim), 0.0, 0.0, 0.0, 0.0, 0

    def step(self, gradient):
        share = 1.0 if self.norm <= 1e-4 * self.power else min(1.0, max(0.0, 4.0 * self.dot / self.norm))
        self.dot = 0.7 * self.dot + 0.3 * float(gradient @ self.c)
        self.norm = 0.7 * self.norm + 0.3 * float(self.c @ self.c)
        self.power = 0.7 * self.power + (0.3 * float(gradient @ gradient) if self.c.any() else 0.0)
        self.sum, self.steps = self.sum + share, self.steps + 1
        return gradient - share * self.c

    def sent(self):
        mean, self.sum, self.steps = self.sum / self.steps, 0.0, 0
        return mean


@given(seed=seeds, rounds=st.integers(1, 5), toward=st.floats(-1.0, 1.0), block=st.sampled_from([1 << 15, 7]))
@quick
def test_steps_and_exchanges_are_those_of_the_formulas(seed, rounds, toward, block):
    """Compared with an independent recursion of two nodes in numpy, to 1e-12, for a vector in blocks and for rows of an array."""
    pet = Pet(0.3, 1e6)
    theirs = [Recursion(DIM) for _ in range(2)]
    models, flow = [gaussian(seed), gaussian(seed + 1)], np.zeros(DIM)
    targets = [gaussian(seed + 2), gaussian(seed + 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", block)
        x, books = [model.clone() for model in models], [edge_ledger.opened(model) for model in models]
        states = [pet.start(model) for model in models]
        y, array = torch.stack(models), pet.start(torch.stack(models))
        models = [model.numpy().copy() for model in models]
        for number in range(rounds):
            for step in range(STEPS):
                noise = [gaussian(seed + 10 + 100 * number + 2 * step + node) for node in range(2)]
                pull = [toward * (each - target) + one for each, target, one in zip(x, targets, noise, strict=True)]
                for node in range(2):
                    direction, states[node] = pet.correct_in_place(states[node], pull[node].clone(), step)
                    x[node] = x[node] - LR * direction
                    own = toward * (models[node] - targets[node].numpy()) + noise[node].numpy()
                    models[node] = models[node] - LR * theirs[node].step(own)
                direction, array = pet.correct(array, toward * (y - torch.stack(targets)) + torch.stack(noise))
                y = y - LR * direction
            states = [pet.publish(state, None, PHASE)[1] for state in states]
            array = pet.publish(array, None, PHASE)[1]
            sent = [each.sent() for each in theirs]
            for found in ([float(borne.sent(state)) for state in states], borne.sent(array)[:, 0].tolist()):
                assert found == pytest.approx(sent, abs=1e-12)
            s, v = min(sent), models[1] - models[0]
            gain = 2 * 0.3 * 0.5 / (STEPS * LR)
            flow = (1.0 - 0.5 * (1.0 - s)) * flow + s * gain * v
            models = [models[0] + 0.5 * v, models[1] - 0.5 * v]
            ours = min(float(borne.sent(state)) for state in states)
            change, moved = x[1] - x[0], pet.edge.gain(0.5, 1.0, PHASE) * ours
            for node, sign in ((0, 1.0), (1, -1.0)):
                effect = Effect(f"p{1 - node}", Full(), sign * change, 0.5, moved, keeps=borne.kept(ours))
                x[node], books[node] = edge_ledger.average(pet.edge, books[node], x[node], [effect])
                theirs[node].c = sign * flow
                states[node] = pet.absorb(pet.corrected(states[node], books[node].total), None, None, PHASE)[1]
            array = pet.absorb(pet.corrected(array, torch.stack([book.total for book in books])), None, None, PHASE)[1]
            y = torch.stack(x)
            for node in range(2):
                np.testing.assert_allclose(x[node].numpy(), models[node], rtol=0, atol=1e-12 * np.abs(models[node]).max())
                np.testing.assert_allclose(books[node].total.numpy(), theirs[node].c, rtol=0, atol=1e-12 * max(1.0, np.abs(flow).max()))


def test_without_flows_gradients_are_unchanged_and_the_confirmed_share_is_1():
    state, gradient = borne.start(gaussian(1)), gaussian(2)
    for _ in range(3):
        direction, state = borne.correct(state, gradient)
        assert torch.equal(direction, gradient)
    assert float(borne.sent(borne.published(state))) == 1.0


def counted(c, gradients):
    """Return τ of each step along these gradients, and the state after them."""
    state, found = borne.corrected(borne.start(c), c), []
    for gradient in gradients:
        direction, state = borne.correct(state, gradient)
        found.append(float((gradient - direction) @ c / (c @ c)))
    return found, state


def test_a_quarter_of_a_correction_in_gradients_confirms_it_and_none_removes_it():
    c = gaussian(1)
    assert counted(c, [c] * 5)[0] == pytest.approx([1.0] * 5)
    assert counted(c, [0.25 * c] * 5)[0] == pytest.approx([1.0] * 5)
    assert counted(c, [0.1 * c] * 5)[0] == pytest.approx([1.0, *[0.4] * 4])
    assert counted(c, [0.0 * c] * 5)[0] == pytest.approx([1.0, *[0.0] * 4], abs=1e-12)
    assert counted(c, [-100.1 * c] * 5)[0] == pytest.approx([1.0] * 5), "next to nothing beside gradients"
    assert counted(c, [-99.9 * c] * 5)[0] == pytest.approx([1.0, *[0.0] * 4], abs=1e-12)
    assert counted(c, [-c] * 5)[0] == pytest.approx([1.0, *[0.0] * 4], abs=1e-12)
    assert counted(c, [c, c, *[0.0 * c] * 30])[0][-1] < 1e-3, "three steps are remembered, about"


@given(seed=seeds, scales=st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=12), length=st.floats(1e-3, 1e3))
@quick
def test_a_correction_is_at_most_four_times_the_gradients_component_along_it(seed, scales, length):
    """For any c, whatever peers sent: τ‖c‖ <= 4·⟨g, c⟩/‖c‖, averaged over some three steps, or a hundredth of the gradient."""
    c = length * gaussian(seed)
    gradients = [scale * c / c.norm() + gaussian(seed + 1 + k) for k, scale in enumerate(scales)]
    found, _ = counted(c, gradients)
    mean, power, weight = 0.0, 0.0, 0.0
    for share, gradient in zip(found, gradients, strict=True):
        if weight:
            along = 4.0 * max(0.0, mean / weight) / float(c.norm())
            assert share * float(c.norm()) <= max(along, 0.01 * math.sqrt(power / weight)) * (1 + 1e-9) + 1e-12
        mean, power = 0.7 * mean + 0.3 * float(gradient @ c), 0.7 * power + 0.3 * float(gradient @ gradient)
        weight = 0.7 * weight + 0.3


def test_products_that_are_not_finite_are_left_out():
    c = gaussian(1)
    state = counted(c, [c, c])[1]
    after = borne.correct(state, torch.full((DIM,), math.nan, dtype=torch.float64))[1]
    assert numbers(after).dot == pytest.approx(numbers(state).dot)
    direction, _ = borne.correct(after, c)
    torch.testing.assert_close(direction, torch.zeros(DIM, dtype=torch.float64))


def test_the_sent_share_is_the_mean_over_the_steps_before_publication():
    """Also with overlap, in clock pace, where each step is published, and after rounds without steps."""
    c = gaussian(1)
    _, state = counted(c, [0.1 * c] * 3)  # 1, .4, .4
    state = borne.published(state)
    assert float(borne.sent(state)) == pytest.approx(0.6)
    _, state = borne.correct(state, c)  # ahead: .4
    assert float(borne.sent(state)) == pytest.approx(0.6)
    state = borne.published(borne.mixed(state))
    assert float(borne.sent(state)) == pytest.approx(0.4)
    state = borne.published(borne.mixed(state))
    assert float(borne.sent(state)) == pytest.approx(0.4), "no step since"
    for gradient in (c, 0.0 * c):
        state = borne.published(borne.correct(state, gradient)[1])
    assert float(borne.sent(state)) == pytest.approx((1.0 + 1.0) / 2)


def test_a_step_changes_neither_the_correction_nor_the_state_it_came_from():
    c, gradient = gaussian(1), gaussian(2)
    state = borne.corrected(borne.start(c), c)
    before = state.c.clone(), state.known.clone()
    borne.correct(state, gradient)
    assert torch.equal(state.c, before[0])
    assert torch.equal(state.known, before[1])
    assert torch.equal(gradient, gaussian(2))


@given(
    seed=seeds,
    leak=st.sampled_from([0.0, 0.1]),
    flows=st.sampled_from(["float32", "bfloat16"]),
    events=st.lists(st.tuples(st.sampled_from(["both", "late", "settle", "revoke"]), shares, shares), min_size=1, max_size=12),
)
@quick
def test_flows_stay_bitwise_opposite_through_resets_losses_and_crashes(seed, leak, flows, events):
    """Both ends take the smaller of two numbers that were sent, so they scale alike, one of them possibly later."""
    edge, like, other = Pet(0.3, 3.0, leak, flows=flows).edge, torch.zeros(DIM), {"a": "b", "b": "a"}
    books, waiting = {me: edge_ledger.opened(like) for me in other}, []
    for turn, (event, one, two) in enumerate([*events, ("both", 0.5, 0.5)]):
        support = (Full(), Blocks(0, 0, 1, 64))[turn % 2]
        value = torch.randn(support.size(DIM), generator=torch.Generator().manual_seed(seed + turn))
        s = min(one, two)
        effect = Effect("b", support, value, 0.5, edge.gain(0.5, support.ratio(DIM), PHASE) * s, keeps=borne.kept(s))
        if event in ("both", "late"):
            books["a"] = edge_ledger.average(edge, books["a"], like, [effect])[1]
            waiting.append(effect.opposite("a"))
        if event != "late":
            books["b"], waiting = edge_ledger.average(edge, books["b"], like, waiting)[1], []
            for me, book in books.items() if event in ("settle", "revoke") else ():
                books[me] = edge_ledger.revoke(book, other[me]) if event == "revoke" else edge_ledger.settle(book, other[me], 8)
            assert torch.equal(books["a"].total, -books["b"].total)


@pytest.mark.parametrize(("s", "share"), [(1.0, 1.0), (0.0, 0.5), (0.5, 0.75)])
def test_unconfirmed_flows_decay_by_half_per_exchange(s, share):
    edge, half = Pet(0.3, 1e6).edge, Blocks(0, 0, 1, 64)
    book = edge_ledger.average(
        edge, edge_ledger.opened(torch.zeros(DIM)), torch.zeros(DIM), [Effect("b", Full(), torch.ones(DIM), 0.5, 1.0)]
    )[1]
    nothing = Effect("b", half, torch.ones(half.size(DIM)), 0.5, 0.0, keeps=borne.kept(s))
    book = edge_ledger.average(edge, book, torch.zeros(DIM), [nothing])[1]
    expected = torch.ones(DIM)
    expected[half.index(DIM)] = share
    assert torch.equal(book.flows["b"], expected)
    assert torch.equal(book.total, expected)


@pytest.mark.parametrize(
    ("kind", "keys", "made"),
    [("sgd", {}, Pet), ("sgd", {"kappa": 0.2}, Pet), ("adamw", {}, Moments), ("muon", {}, Moments), ("adagrad", {}, Moments)],
)
def test_only_sgd_has_such_corrections_and_other_optimisers_average_memories(kind, keys, made):
    assert isinstance(mixer(Manifest(mix=MixSection(**keys), optimizer=OptimizerSection(kind=kind))), made)


def test_without_damping_there_are_no_flows():
    assert isinstance(Pet(0.0).edge, PlainAveraging)
    assert Pet(0.0).edge.borne(Pet(0.0).start(torch.zeros(3))) is None
