"""Buffers behind the parameters are averaged plainly, and the parameters evolve as without buffers."""

import pytest
import torch

from starling.gossip.api import CorrectsInPlace, Phase
from starling.gossip.mix.carried import Carried, carrying
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.pet import Pet
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer_of

T, B = 6, 3
LAYOUT = Layout(("weight", "bias", "table"), ((2, 2), (2,), (3,)), torch.float64, carried=1)
CARRYING = sorted(name for name in MIXERS.built_in if MIXERS.facts(name).carries and name != "gather")
NEW = Phase(0, 2.0, 0.1, highest_lr=0.1)


def rows(seed, width=T + B):
    return torch.randn(2, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def built(name):
    return Pet(kappa=0.1) if name == "pet" else MIXERS.build("mix", name, {})


@pytest.mark.parametrize("name", CARRYING)
def test_parameters_evolve_as_without_buffers_and_buffers_are_averaged(name):
    """Three rounds of local steps that also change buffers, an exchange with weight one half, and flows."""
    inner = built(name)
    whole = carrying(inner, LAYOUT)
    x = rows(1)
    own, state = x[..., :T].clone(), whole.start(x)
    alone = inner.start(own)
    for turn in range(3):
        phase = Phase(turn, 2.0, 0.1, highest_lr=0.1)
        gradient = rows(10 + turn, T)
        direction, state = whole.correct(state, gradient)
        expected, alone = inner.correct(alone, gradient)
        assert torch.equal(direction, expected)
        x[..., :T] -= 0.1 * direction
        own = own - 0.1 * expected
        x[..., T:] += rows(20 + turn, B)
        x, state = whole.publish(state, x.clone(), phase)
        own, alone = inner.publish(alone, own, phase)
        shared = whole.shared(state, x).clone()
        assert torch.equal(shared[..., :-B], inner.shared(alone, own))
        assert torch.equal(shared[..., -B:], x[..., T:])
        mixed = 0.5 * (shared + shared.flip(0))
        x, state = whole.absorb(state, x.clone(), mixed, phase)
        own, alone = inner.absorb(alone, own, mixed[..., :-B].clone(), phase)
        x = x.clone()
        assert torch.equal(x[..., :T], own)
        assert torch.equal(x[..., T:], mixed[..., -B:])
        flows = rows(30 + turn)
        state, alone = whole.corrected(state, flows), inner.corrected(alone, flows[..., :T])


def test_in_place_mixing_stays_in_place_with_buffers():
    """Large models are never copied for an exchange."""
    whole, x = carrying(Dsgd(), LAYOUT), rows(1)
    assert whole.replaces
    assert whole.publish(None, x, NEW)[0] is x
    assert whole.shared(None, x) is x
    assert whole.absorb(None, x, x, NEW)[0] is x


def test_models_without_buffers_and_rules_are_not_wrapped():
    plain = Layout(("weight",), ((2, 2),), torch.float64)
    for kind, layout, carried in (("gather", LAYOUT, False), ("pet", plain, False), ("pet", LAYOUT, True)):
        mixer, about = mixer_of(Manifest(mix=MixSection(kind=kind)), layout)
        assert isinstance(mixer, Carried) == carried
        assert about == layout


def test_in_place_corrections_stay_in_place_with_buffers():
    inner = Pet()
    whole, x, gradient = carrying(inner, LAYOUT), rows(1)[0], rows(2, T)[0]
    state, alone = whole.start(x), inner.start(x[:T])
    expected, _ = inner.correct_in_place(alone, gradient.clone(), 1)
    assert torch.equal(whole.correct_in_place(state, gradient, 1)[0], expected)
    assert not isinstance(carrying(Dsgd(), LAYOUT), CorrectsInPlace)
