"""The defended tracker: properties kept from gradient tracking, and bounds on a liar's influence."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.errors import ConfigError
from starling.gossip.mix.defended_tracking import Bounded, Defended, DefendedTracking, shortened
from starling.gossip.mix.gradient_tracking import GradientTracking
from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.measure import matrix
from starling.node.config import manifest as manifests
from starling.node.config import toml as keys
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer
from starling.node.simulate.matrix.schedule import Exchanges
from starling.node.simulate.matrix.swarm import Swarm
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.harness.swap_walk import PHASE, Ends
from tests.harness.two_engines import Both, exchange_codec
from tests.strategies import examples, seeds

N, DIM = 8, 6
OFF = DefendedTracking(0.0, 0.0, 0.0, 0.0)
LARGEST = 2.0**100  # slightly more than is accepted
quick = examples(10)


def gaussian(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def state(seed, **changes):
    made = Defended(*gaussian(seed, 3, DIM), *gaussian(seed + 1, 2, 1).abs())
    return replace(made, **changes)


def change(edge, mine, message, take=0.5):
    """Return (model, tracker, norms) changes that a message makes to a shared vector."""
    return edge.received(edge.begin(mine), message, mine, take)[1].tensor_split((DIM, 2 * DIM), dim=-1)


def walk(algorithm, rounds, lr=0.02):
    A, b, best = quadratics(N, DIM)
    swarm = Ends(algorithm, torch.zeros(N, DIM, dtype=torch.float64), torch.ones(N, N, dtype=torch.bool))
    for number in range(rounds):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(torch.from_numpy(matrix(BaseK(2), N, number)))
        yield swarm, best


def test_without_its_four_defenses_it_equals_gradient_tracking_bit_for_bit():
    """In the loop and in the matrix, for any peers: the four defenses are the only addition."""
    agreed = exchange_codec("identity", "identity", clip_norm=0.0)
    plain, defended = (Both(algorithm, agreed, Everything()) for algorithm in (GradientTracking(), OFF))
    for number in range(6):
        for both in (plain, defended):
            both.round(number, BaseK(2))
            both.check()
        assert torch.equal(plain.matrix.x, defended.matrix.x)
        assert torch.equal(plain.matrix.state.y, defended.matrix.state.y)


@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_trackers_sum_to_gradients_through_a_hundred_rounds_of_clipping(leak):
    """Σ y = Σ g: honest nodes bias nobody, however much is clipped or leaks away."""
    for swarm, _ in walk(DefendedTracking(0.25, leak, 0.0, 0.0), 100):
        moved = swarm.state.y - swarm.state.previous
        assert float(moved.norm(dim=1).max()) > 1e-6
        assert float(moved.sum(0).abs().max()) < 1e-11 * float(swarm.state.y.abs().max() + 1.0)


def test_separate_thresholds_at_both_ends_break_the_sum_of_honest_trackers():
    """This is why the smaller of both counts: even without liars, trackers no longer follow the mean gradient."""

    class Own(Bounded):
        """Uses its own gradients' threshold only."""

        def received(self, kept, message, mine, take):
            message = message.clone()
            message[..., -2] = torch.inf
            return Bounded.received(self, kept, message, mine, take)

    class Lopsided(DefendedTracking):
        """The tracker with such an edge."""

        edge = Own(0.25, 0.0)

    *_, (swarm, _) = walk(Lopsided(0.25, 0.0, 0.0, 0.0), 100)
    assert float((swarm.state.y - swarm.state.previous).sum(0).abs().max()) > 0.1


def test_clipping_alone_keeps_the_optimum_and_a_leak_adds_a_floor():
    """A symmetric clip only delays; a leak adds a floor, and in the limit gives DSGD."""
    error = {}
    for leak in (0.0, 0.2, 0.6):
        *_, (swarm, best) = walk(DefendedTracking(0.25, leak, 0.0, 0.0), 300, lr=0.1)
        error[leak] = relative_error(swarm.x, best)
    assert error[0.0] < 1e-7
    assert 1e-4 < error[0.2] < error[0.6] < 1e-3


@given(seed=seeds, take=st.floats(0.01, 0.99), size=st.floats(1e-3, 1e3))
@quick
def test_two_trackers_change_by_opposite_bits(seed, take, size):
    edge = Bounded(0.25, 3.0)
    one, other = (torch.cat((gaussian(seed + i, 2 * DIM), size * gaussian(seed + i, 2).abs())) for i in (0, 10))
    (_, moved, norms), (_, moved_other, _) = change(edge, one, other, take), change(edge, other, one, take)
    assert torch.equal(moved, -moved_other)
    assert not norms.any()


@given(seed=seeds, size=st.floats(0.0, LARGEST, width=32), claim=st.floats(-LARGEST, LARGEST, width=32))
@quick
def test_no_message_moves_a_node_further_than_its_own_norms_allow(seed, size, claim):
    edge, ours = Bounded(0.25, 3.0), torch.cat((gaussian(seed, 2 * DIM), torch.tensor([2.0, 0.5])))
    message = torch.cat((size * torch.sign(gaussian(seed + 1, 2 * DIM)), torch.tensor([claim, claim])))
    x, y, norms = change(edge, ours, message)
    assert float(y.norm()) <= 0.5 * 0.25 * max(0.0, min(2.0, claim)) * (1 + 1e-6)
    assert float(x.norm()) <= 0.5 * 3.0 * 0.5 * (1 + 1e-6)
    assert torch.isfinite(torch.cat((x, y))).all()
    assert not norms.any()


@given(leak=st.floats(0.01, 0.9), rounds=st.integers(1, 30))
@quick
def test_one_lie_decays_by_one_minus_leak_per_round(leak, rounds):
    algorithm, x = DefendedTracking(0.25, leak, 0.0, 3.0), gaussian(1, DIM)
    kept = state(2)
    lie = kept.y - kept.previous
    for _ in range(rounds):
        x, kept = algorithm.absorb(kept, x, algorithm.shared(kept, x), PHASE)
        direction, kept = algorithm.correct(kept, kept.previous + 1.0)  # for any gradients in the meantime
    torch.testing.assert_close(direction - kept.previous, lie * (1.0 - leak) ** rounds, rtol=1e-3, atol=3e-5)


@given(clip=st.floats(0.05, 2.0), leak=st.floats(0.05, 0.9))
@quick
def test_a_lie_in_every_round_is_bounded(clip, leak):
    """By (1 − leak)/leak · w·clip·‖g‖, for a node that begins without a correction."""
    algorithm = DefendedTracking(clip, leak, 0.0, 0.0)
    gradient, x = gaussian(1, DIM), gaussian(2, DIM)
    kept, lie = algorithm.start(x), torch.full((2 * DIM + 2,), 1e9)
    for _ in range(40):
        _, kept = algorithm.correct(kept, gradient)
        mine = algorithm.shared(kept, x)
        _, moved = algorithm.edge.received(mine[:0], lie, mine, 0.5)
        x, kept = algorithm.absorb(kept, x, mine + moved, PHASE)
    bound = (1.0 - leak) / leak * 0.5 * clip * float(gradient.norm())
    assert 0.5 * bound < float((kept.y - kept.previous).norm()) <= bound * (1 + 1e-4)


def test_a_correction_is_never_longer_than_its_cap():
    algorithm = DefendedTracking(0.0, 0.0, 0.5, 0.0)
    kept = state(3, gradient=torch.tensor([0.2]))
    x = gaussian(1, DIM)
    _, after = algorithm.absorb(kept, x, algorithm.shared(kept, x), PHASE)
    was, now = kept.y - kept.previous, after.y - after.previous
    assert float(now.norm()) == pytest.approx(0.1, rel=1e-5)
    torch.testing.assert_close(now / now.norm(), was / was.norm())


def test_a_liar_in_swaps_is_not_moved_by_its_own_lies():
    class Lie:
        """Row 1 adds five to everything it sends."""

        attack = SimpleNamespace(targets="tracker")
        rows = np.array([False, True])

        def messages(self, view, attacker, receivers):
            return view.now[[attacker]] + 5.0

    moved = []
    for liars in (None, Lie()):
        swarm = Swarm(
            ("a", "b"),
            gaussian(1, 2, DIM),
            OFF,
            exchange_codec("identity", "identity", 0.0),
            Everything(),
            0,
            torch.tensor([True, True]),
            byzantine=liars,
        )
        swarm.round(Phase(0, 0.0, 0.1), None, 0, Exchanges(np.array([[0], [1]]), np.full((2, 1), 0.5)))
        moved.append(swarm.x)
    assert torch.equal(moved[0][1], moved[1][1])
    torch.testing.assert_close(moved[1][0] - moved[0][0], torch.full((DIM,), 2.5))


def test_norms_are_running_means_that_begin_with_the_first():
    """Of own gradients and steps, which no peer influences; a round without local steps does not count."""
    algorithm, x = DefendedTracking(), torch.zeros(2)
    kept = algorithm.start(x)
    for length, mean in ((5.0, 5.0), (15.0, 6.0)):
        _, kept = algorithm.correct(kept, torch.tensor([0.6, 0.8]) * length)
        assert float(kept.gradient) == pytest.approx(mean)
        _, kept = algorithm.publish(kept, kept.origin + torch.tensor([0.0, length]), PHASE)
        assert float(kept.step) == pytest.approx(mean)
    assert algorithm.publish(kept, x, Phase(0, 0.0, 0.1))[1] is kept


@given(seed=seeds, tau=st.just(0.0) | st.floats(1e-15, 1e3))  # squares of shorter ones are denormal
@quick
def test_clipping_is_odd_and_keeps_direction_and_input(seed, tau):
    v, limit = gaussian(seed, 3, DIM), torch.full((3, 1), tau)
    held = v.clone()
    short = shortened(v, limit)
    assert torch.equal(shortened(-v, limit), -short)
    assert torch.equal(v, held)
    assert bool((short.norm(dim=1) <= min(tau, float(v.norm(dim=1).max())) * (1 + 1e-6)).all())
    torch.testing.assert_close((short * v).sum(1), short.norm(dim=1) * v.norm(dim=1))


def test_the_four_bounds_are_keys_of_the_manifest():
    section = MixSection(kind="defended_tracking", tracker_clip=0.5, tracker_leak=0.4, tracker_cap=2.0, step_clip=4.0)
    assert mixer(Manifest(mix=section)) == DefendedTracking(0.5, 0.4, 2.0, 4.0)
    wrong = {"tracker_leak": 1.0, "tracker_clip": -1.0, "tracker_cap": float("nan"), "step_clip": float("inf")}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=f"{name}: must be"):
            mixer(Manifest(mix=MixSection(kind="defended_tracking", **{name: value})))


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("compress.response=fp16", r"compress\.response: defended_tracking sends"),
        ("overlay=one_peer_exponential", r"overlay\.kind: defended_tracking preserves the sum .*`--set overlay\.kind=base_k`"),
        ("pace.kind=clock", r"mix\.kind: defended_tracking counts on rounds"),
    ],
)
def test_settings_that_break_the_sum_of_trackers_are_refused(key, line):
    agreed = ("mix=defended_tracking", "overlay=grid", "compress.response=identity", "compress.select=full")
    manifests.check(keys.apply_set(Manifest(), agreed))
    with pytest.raises(ConfigError, match=line):
        manifests.check(keys.apply_set(Manifest(), (*agreed, key)))


def test_keys_of_the_tracker_are_part_of_the_swarm_id():
    defended = ("mix=defended_tracking",)
    ids = [manifests.swarm_id(keys.apply_set(Manifest(), (*defended, f"mix.tracker_leak={leak}"))) for leak in (0.2, 0.3, 0.4)]
    assert ids[0] == manifests.swarm_id(keys.apply_set(Manifest(), defended))
    assert all(one != other for one, other in pairwise(ids))
