"""Seeds and scalars: equal messages give equal models on every machine, and losses fall along random directions."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.errors import ConfigError
from starling.gossip.mix.seeds import Seeds, slope
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.schema import Manifest

PEERS = ["a", "b", "c"]
MIX = Seeds(seed=7, steps=4)


def test_directions_are_golden_signs_that_differ_by_node_round_and_step():
    like = torch.zeros(200)
    drawn = [MIX.direction(*at, like) for at in (("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1))]
    for one in drawn:
        assert set(one.tolist()) == {-1.0, 1.0}
        assert abs(float(one.sum())) < 60
    assert len({tuple(one.tolist()) for one in drawn}) == 4
    assert "".join("+" if sign > 0 else "-" for sign in drawn[0][:16].tolist()) == GOLDEN


GOLDEN = "-++-+++-++++-+++"  # seed 7, node a, round 0, step 0: another machine must draw the same


@settings(max_examples=15)
@given(st.permutations(range(3)), st.lists(st.booleans(), min_size=3, max_size=3))
def test_the_step_is_the_mean_of_the_sent_scalars_on_every_node(order, present):
    """Rows in any order and number give the same bits; an absent member adds nothing but counts in the mean."""
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))[:1].expand(3, 50).clone()
    told = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    here = torch.tensor(present)
    mix = replace(MIX, norm_bound=0.0)
    states = mix.start(x)
    given = told[None].expand(3, -1, -1), here[None].expand(3, -1)
    together, _ = mix.advance(states, told, told, *given, PEERS, 5)
    expected = x[0].double()
    for place in range(3):
        for step in range(4):
            if present[place]:
                expected = expected - told[place, step].double() / 3 * mix.direction(PEERS[place], 5, step, x).double()
    assert torch.allclose(together.anchor[0].double(), expected, atol=1e-5)
    alone, _ = mix.advance(mix.start(x[order[0]]), told[0], told[0], told, here, PEERS, 5)
    assert torch.equal(alone.anchor, together.anchor[order[1]])


def test_one_liar_moves_the_outer_parameters_by_three_medians_at_most():
    x, told = torch.zeros(50), torch.ones(3, 4)
    told[2] = 1e6
    state, shortened = MIX.advance(MIX.start(x), told[0], told[0], told, torch.ones(3, dtype=torch.bool), PEERS, 0)
    assert shortened.tolist() == [False, False, True]
    assert float(state.anchor.abs().max()) <= (1 + 1 + 3) * 4 / 3 + 1e-3


def test_a_quadratic_is_minimised_without_gradients():
    target = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    state = MIX.start(torch.zeros(3, 20, dtype=torch.float64))
    phase = Phase(0, 4.0, 0.02)
    for turn in range(50):
        x = state.anchor
        for step in range(4):
            u = torch.stack([MIX.direction(peer, turn, step, x) for peer in PEERS])
            losses = torch.stack([0.5 * (x + sign * MIX.epsilon * u - target).square().sum(1) for sign in (1, -1)], 1)
            scalar, state = MIX.correct(state, 0.05 * slope(losses, MIX.epsilon))
            x = x - scalar * u
        told = MIX.shared(state, x)
        every = told[None].expand(3, -1, -1)
        state, _ = MIX.advance(state, told, told, every, torch.ones(3, 3, dtype=torch.bool), PEERS, turn)
        x, state = MIX.absorb(state, x, told, phase)
        assert torch.equal(x, x[:1].expand_as(x))
    assert float((x[0] - target).square().sum() / target.square().sum()) < 1e-3


GOOD = ["mix.kind=seeds", "overlay.kind=complete", "compress.select=full", "compress.response=int8_nearest", "optimizer.momentum=0"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("overlay.kind=ring", "overlay.kind: seeds sends every scalar to all members"),
        ("compress.response=int4", "compress.response: all members must add the same scalars"),
        ("optimizer.momentum=0.9", "optimizer.kind: a step of seeds is a scalar along a drawn direction"),
        ("pace.kind=clock", "mix.kind: seeds counts on rounds"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(changed, message):
    manifests.check(presets.load(Manifest, assignments=GOOD))
    with pytest.raises(ConfigError, match=message):
        manifests.check(presets.load(Manifest, assignments=[*GOOD, changed]))
