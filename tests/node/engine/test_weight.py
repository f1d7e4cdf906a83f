"""Nodes are weighted by their samples: the swarm finds the minimum over all samples, and a false number has a bounded effect."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import presets, toml
from starling.node.config.schema import CompressSection, Manifest, MixSection, OptimizerSection
from starling.node.config.weight import LEAST, MOST, capped, weight
from starling.node.engine.corrections import Corrections
from starling.node.engine.optimizers import optimizer, weighs_updates
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened, play, x_of
from tests.harness.weighted import SAMPLES, minimum

MATCHING = (((0, 1), (2, 3)), ((1, 2), (3, 0)), ((0, 2), (1, 3)))
EXACT = CompressSection(select="full", request="identity", response="identity")


def agreed(typical, *, optimizer=None, samples=0, **mix):
    return manifest(
        "tests.harness.weighted:Weighted",
        params={"samples": samples},
        optimizer=optimizer or OptimizerSection(lr=0.2, momentum=0.0),
        mix=MixSection(clip_norm=0.0, **({} if typical is None else {"typical_samples": typical}), **mix),
        compress=EXACT,
        rounds=0,
        local_steps=2,
    )


def learned(section, rounds=90):
    engines = {peer: opened(section, shard, peer) for shard, peer in enumerate("abcd")}
    bounded = toml.apply_set(section, [f"pace.rounds={rounds}"])
    play(engines, bounded, lambda turn: [("abcd"[i], "abcd"[j], 0.5) for i, j in MATCHING[turn % 3]])
    return torch.stack([x_of(engine) for engine in engines.values()])


@given(samples=st.integers(1, 10**12), typical=st.integers(1, 10**9))
def test_a_weight_is_proportional_to_the_samples_within_bounds(samples, typical):
    section = Manifest(mix=MixSection(typical_samples=typical))
    counts = weight(section, samples)
    assert LEAST <= counts <= MOST
    assert counts == samples / typical or bool(capped(section, samples))
    assert weight(Manifest(), samples) == 1.0
    assert not capped(Manifest(), samples)


@pytest.mark.slow
@pytest.mark.parametrize("mix", [{}, {"kind": "gradient_tracking"}], ids=["pet", "tracking"])
def test_a_swarm_finds_the_minimum_over_all_samples(mix):
    """Without a typical number it finds the minimum with equal node weights."""
    together, alike = minimum(5, SAMPLES), minimum(5, (1, 1, 1, 1))
    assert float((together - alike).norm()) > 0.1
    for typical, wanted in ((250, together), (None, alike)):
        models = learned(agreed(typical, **mix))
        assert float((models - wanted).norm(dim=1).max()) < 0.01, (typical, mix)


@pytest.mark.parametrize(
    ("kind", "mix", "updates"),
    [
        ("sgd", {}, False),
        ("adamw", {}, True),
        ("adamw", {"kind": "moments"}, True),
        ("adamw", {"kind": "dsgd"}, True),
        ("muon", {}, True),
        ("adamw", {"kind": "gradient_tracking"}, False),
        ("adamw", {"kind": "defended_tracking"}, False),
    ],
)
def test_updates_are_weighted_where_scaling_the_gradient_has_no_effect(kind, mix, updates):
    assert weighs_updates(Manifest(mix=MixSection(**mix), optimizer=OptimizerSection(kind=kind))) == updates


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_false_number_of_samples_gives_at_most_four_times_the_weight(kind):
    """Its first step equals that of a node with weight 4, however many samples it claims."""

    def step(samples):
        section = agreed(10, samples=samples, kind="dsgd", optimizer=OptimizerSection(kind=kind, lr=0.01, weight_decay=0.0))
        engine = opened(section)
        done(engine, calls.Train(0, 1))
        return x_of(engine)

    honest, liar = step(10), step(10**12)
    assert honest.any()
    torch.testing.assert_close(liar, MOST * honest, rtol=1e-9, atol=0.0)


def test_the_correction_of_an_update_is_not_weighted():
    """Its sum over the swarm is zero."""
    x, gradient = torch.zeros(3), torch.tensor([1.0, -2.0, 0.5])
    moved = []
    for corrects in (0.0, 0.1):
        ours, at = optimizer(OptimizerSection(kind="adamw", weight_decay=0.0), x, weighs_updates=True), x.clone()
        direction, shift = Corrections(None, True, True).corrected(gradient, lambda given, c=corrects: given - c, 3.0)
        assert torch.equal(direction, gradient)
        ours.step(at, direction, 0.01, shift, 3.0)
        moved.append(at)
    torch.testing.assert_close(moved[0], -0.03 * gradient.sign(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(moved[1] - moved[0], torch.full((3,), 0.01 * 0.1))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["mix=gather", "overlay=complete"], "mix.typical_samples: cannot be used with mix=gather, whose rule leaves out"),
        (["preset=open"], "cannot be used with mix=gather"),
        (["mix.typical_samples=0"], "mix.typical_samples: must be"),
    ],
)
def test_sample_weights_are_refused_with_rules_that_ignore_them(keys, words):
    with pytest.raises(ConfigError) as caught:
        manifests.check(presets.load(Manifest, assignments=["mix.typical_samples=100", *keys]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sample_weights_are_accepted_with_the_vouched_preset():
    chosen = presets.load(Manifest, assignments=["preset=vouched", "mix.typical_samples=100"])
    manifests.check(chosen)
