"""Flows that leak: what a liar left in one fades, both ends forget alike, and the honest pay a known part of their correction."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Effect, Phase
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.compress.support import Blocks, Full
from starling.gossip.errors import ConfigError
from starling.gossip.mix import edge_ledger
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.pet import Flows, Pet
from starling.gossip.overlay.static import Ring
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer
from tests.harness.two_engines import Both, terms
from tests.strategies import examples, seeds

DIM = 130
leaks = st.floats(0.01, 0.9)
quick = examples(25)


def gaussian(seed, size=DIM):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def effect(peer, value, gain=0.5, support=None):
    return Effect(peer, Full() if support is None else support, value, 0.5, gain)


@given(leak=leaks, seed=seeds, gains=st.lists(st.floats(1e-3, 50.0), min_size=1, max_size=12))
@quick
def test_both_ends_of_an_edge_hold_the_same_flow_with_opposite_signs_to_the_bit(leak, seed, gains):
    """Else corrections would not sum to zero, and the mean model would go where no gradient points."""
    edge = Flows(0.3, 3.0, leak)
    one = other = edge_ledger.opened(torch.zeros(DIM))
    for turn, gain in enumerate(gains):
        v = gaussian(seed + turn)
        _, one = edge_ledger.average(edge, one, torch.zeros(DIM), [effect("b", v, gain)])
        _, other = edge_ledger.average(edge, other, torch.zeros(DIM), [effect("a", -v, gain)])
    assert torch.equal(one.flows["b"], -other.flows["a"])
    assert torch.equal(one.total, -other.total)


@given(leak=leaks, lie=st.floats(0.01, 90.0), turns=st.integers(1, 30))
@quick
def test_a_lie_told_once_decays_as_one_minus_leak_to_the_power_of_the_exchanges(leak, lie, turns):
    edge = Flows(0.3, 100.0, leak)
    flow = edge.flow(torch.zeros(3), torch.tensor([lie, -lie, 0.0]))
    for _ in range(turns):
        flow = edge.flow(flow, torch.zeros(3))
    torch.testing.assert_close(flow, torch.tensor([lie, -lie, 0.0]) * (1.0 - leak) ** turns, rtol=1e-4, atol=1e-30)


@given(leak=leaks, seed=seeds)
@quick
def test_a_lie_told_for_ever_is_bounded_by_one_over_the_leak(leak, seed):
    """The clip bounds what one exchange moves; the leak what all of them together do."""
    edge, moved = Flows(0.3, 1e9, leak), gaussian(seed)
    flow = torch.zeros(DIM)
    for _ in range(200):
        flow = edge.flow(flow, moved)
    assert bool((flow.abs() <= moved.abs() / leak * (1 + 1e-4)).all())


def test_only_what_an_exchange_is_about_leaks():
    """Both ends know the support and nothing else of an exchange: what it does not touch must not change at either."""
    edge, half = Flows(0.3, 100.0, 0.5), Blocks(0, 0, 1, 64)
    books = edge_ledger.opened(torch.zeros(DIM))
    _, books = edge_ledger.average(edge, books, torch.zeros(DIM), [effect("b", torch.ones(DIM), 1.0)])
    _, books = edge_ledger.average(edge, books, torch.zeros(DIM), [effect("b", torch.zeros(half.size(DIM)), 1.0, half)])
    touched = torch.zeros(DIM, dtype=torch.bool)
    touched[half.index(DIM)] = True
    assert 0 < int(touched.sum()) < DIM
    assert torch.equal(books.flows["b"], torch.where(touched, 0.5, 1.0))


def test_without_a_leak_nothing_is_multiplied():
    kept, moved = gaussian(1), gaussian(2)
    assert torch.equal(Flows(0.3, 100.0).flow(kept, moved), (kept + moved).clamp(-100.0, 100.0))


@pytest.mark.parametrize(("kappa", "leak"), [(0.1, 0.05), (0.1, 0.2), (0.25, 0.1)])
def test_a_leaky_flow_settles_at_two_kappa_over_two_kappa_plus_leak_of_its_value(kappa, leak):
    """Two nodes, constant gradients, θ = 1/2: the price of forgetting, which grows to plain averaging."""
    algorithm, lr = Pet(kappa, 1e6, leak), 0.05
    gradients = [gaussian(1).double(), gaussian(2).double()]
    target = (gradients[0] - gradients[1]) / 2
    x = [torch.zeros(DIM, dtype=torch.float64)] * 2
    books = [edge_ledger.opened(each) for each in x]
    gain = algorithm.edge.gain(0.5, 1.0, Phase(0, 1.0, lr))
    for _ in range(400):
        x = [model - lr * (gradient - book.total) for model, gradient, book in zip(x, gradients, books, strict=True)]
        v = x[1] - x[0]
        for i, sign in ((0, 1.0), (1, -1.0)):
            x[i], books[i] = edge_ledger.average(algorithm.edge, books[i], x[i], [effect(f"p{1 - i}", sign * v, gain)])
    torch.testing.assert_close(books[0].total, target * (2 * kappa / (2 * kappa + leak)), rtol=1e-6, atol=1e-9)


def test_the_leak_is_a_key_of_the_manifest_and_bounded():
    assert mixer(Manifest(mix=MixSection(leak=0.2))).edge == Flows(0.1, 100.0, 0.2)
    assert MIXERS["pet"](0.1, 1.0).leak == MixSection().leak == 0.0
    with pytest.raises(ValueError, match=r"leak must be in \[0, 1\), got 1.0"):
        Pet(0.1, 1.0, 1.0)
    with pytest.raises(ConfigError, match=r"leak must be in \[0, 1\), got -0.1"):
        mixer(Manifest(mix=MixSection(leak=-0.1)))


@pytest.mark.slow
def test_leaky_flows_are_the_same_bits_in_the_matrix_and_in_the_loop():
    both = Both(Pet(0.3, 0.5, 0.2), terms("fp16", "int4"), Mask(0.3))
    for number in range(4):
        both.round(number, Ring())
        both.check()
