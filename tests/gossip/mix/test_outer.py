"""Outer steps: each named method is a setting, and what holds swarms of them together has a bound."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.mix.base import origin
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.outer import Outer, disagreement_factor
from starling.gossip.overlay.catalogue import overlay
from starling.gossip.overlay.measure import matrix, symmetrised
from starling.gossip.overlay.stages import stage, turn
from tests.harness.matrix_walk import walk
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.strategies import examples

N, DIM = 6, 7


def rows(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def swarm(mixer, graph, x, gradient, rounds, *, n=N, steps=3, lr=0.05):
    """Models (n, d) after each round on an overlay of a manifest."""

    def phase(round):
        now = stage(graph, n, round)
        return Phase(round, steps if now.local else 0, lr, first=now.first, last=now.last, turn=turn(graph, n, round))

    def mixing(round):
        return torch.from_numpy(symmetrised(matrix(graph, n, round)))

    after = walk(mixer, mixing, gradient, x, lr=lr, steps=steps, phase=phase)
    return [next(after) for _ in range(rounds)]


def pull_to(targets):
    return lambda x: x - targets


@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco_on_exact_averages_is_the_textbook_outer_optimiser(nesterov):
    """One vector and one momentum for the whole swarm, as with an all-reduce; here on sweeps of pairs."""
    graph = overlay("alone", 1, 0, average_every=4)
    cycle = graph.cycle(N)
    mixer = Outer(outer_lr=0.7, outer_momentum=0.9, nesterov=nesterov)
    targets, x = rows(1, N, DIM), rows(2, DIM).repeat(N, 1)
    reached = swarm(mixer, graph, x, pull_to(targets), 3 * cycle)
    theta, u = x[0], torch.zeros(DIM, dtype=torch.float64)
    for outer in range(3):
        local = theta.repeat(N, 1)
        for _ in range(4 * 3):
            local = local - 0.05 * (local - targets)
        delta = theta - local.mean(0)
        u = 0.9 * u + delta
        theta = theta - 0.7 * (delta + 0.9 * u if nesterov else u)
        torch.testing.assert_close(reached[(outer + 1) * cycle - 1], theta.repeat(N, 1))


def test_noloco_with_one_peer_a_round_is_the_published_step():
    """δ <- a·δ + (b/2)·Σ Δ_j − g·(φ_i − mean φ); φ += δ, for each pair separately."""
    a, b, g = 0.5, 0.7, 0.4
    mixer = Outer(outer_lr=b, outer_momentum=a, nesterov=False, pull=g)
    graph = overlay("random_matching", 1, 5)
    targets, x = rows(1, N, DIM), rows(2, N, DIM)
    reached = swarm(mixer, graph, x, pull_to(targets), 4)
    phi, delta = x, torch.zeros(N, DIM, dtype=torch.float64)
    for turns in range(4):
        theta = phi
        for _ in range(3):
            theta = theta - 0.05 * (theta - targets)
        W = torch.from_numpy(matrix(graph, N, turns))
        delta = a * delta + b * (W @ (theta - phi)) - g * (phi - W @ phi)
        phi = phi + delta
        torch.testing.assert_close(reached[turns], phi)


def test_federated_averaging_is_an_outer_step_of_rate_1_without_momentum():
    graph = overlay("alone", 2, 0, average_every=2)
    targets, x = rows(1, N, DIM), rows(2, DIM).repeat(N, 1)
    rounds = 3 * graph.cycle(N)
    outer = swarm(Outer(outer_lr=1.0, outer_momentum=0.0), graph, x, pull_to(targets), rounds)
    plain = swarm(Dsgd(), graph, x, pull_to(targets), rounds)
    for k in range(1, 4):
        torch.testing.assert_close(outer[k * graph.cycle(N) - 1], plain[k * graph.cycle(N) - 1])


@given(dim=st.integers(1, 12), fragments=st.integers(1, 5), turns=st.integers(0, 11))
@examples(40)
def test_each_averaging_has_its_fragment_and_a_cycle_covers_all(dim, fragments, turns):
    """Strided: coordinate c belongs to step c mod F; the others keep model, outer parameters and momentum."""
    mixer = Outer(outer_lr=1.0, outer_momentum=0.0, fragments=fragments)
    x = rows(3, 2, dim)
    state = mixer.start(rows(4, 2, dim))
    phase = Phase(turns, 1, 0.1, turn=turns)
    x, state = mixer.publish(state, x, phase)
    shared = mixer.shared(state, x)
    assert shared.shape == (2, origin(mixer, torch.zeros(dim)).numel())
    after, moved = mixer.absorb(state, x, shared.mean(0).expand_as(shared), phase)
    mine = torch.arange(dim) % fragments == turns % fragments
    assert torch.equal(after[:, ~mine], x[:, ~mine])
    assert torch.equal(moved.anchor[:, ~mine], state.anchor[:, ~mine])
    torch.testing.assert_close(after[:, mine], x[:, mine].mean(0).expand(2, -1))


@pytest.mark.parametrize("options", [{}, {"penalty": 1.0}, {"outer_clip": 0.1}, {"keep": 0.5}], ids=str)
def test_plain_averages_equal_those_of_dsgd_and_outer_steps_start_from_their_result(options):
    """Bit for bit, for any outer step; the first step's momentum is that of a fresh start."""
    graph, plain = overlay("alone", 1, 0, average_every=2), 2
    targets, x = rows(1, N, DIM), rows(2, N, DIM)
    rounds, cycle = 5 * graph.cycle(N), graph.cycle(N)
    mixer = Outer(plain_averages=plain, **options)
    phased = swarm(mixer, graph, x, pull_to(targets), rounds)
    averaged = swarm(Dsgd(), graph, x, pull_to(targets), rounds)
    for end in range(cycle - 1, plain * cycle, cycle):
        assert torch.equal(phased[end], averaged[end])
    begun = swarm(Outer(**options), graph, phased[plain * cycle - 1], pull_to(targets), 3 * cycle)
    assert torch.equal(phased[-1], begun[-1])
    assert not torch.equal(phased[-1], averaged[-1])


def test_the_configured_number_of_fragment_averagings_is_plain():
    mixer = Outer(fragments=2, plain_averages=1)
    graph = overlay("complete", 1, 0)
    x = rows(2, N, DIM)
    first, second = swarm(mixer, graph, x, torch.zeros_like, 2)
    even = torch.arange(DIM) % 2 == 0
    torch.testing.assert_close(first[:, even], x[:, even].mean(0).expand(N, -1))
    assert torch.equal(first[:, ~even], x[:, ~even])
    assert not torch.allclose(second[:, ~even], x[:, ~even].mean(0).expand(N, -1))


def test_the_configured_share_of_local_steps_during_a_sweep_is_kept():
    """Streaming DiLoCo: keep = 0 discards concurrent local steps, keep = ½ keeps half of them."""
    graph = overlay("alone", 1, 0, average_every=4, overlap=True)
    x, slope = rows(2, DIM).repeat(N, 1), rows(1, N, DIM)
    sweep = 4 - next(c for c in range(4) if stage(graph, N, c).first)
    for keep in (0.0, 0.5):
        mixer = Outer(outer_lr=1.0, outer_momentum=0.0, keep=keep)
        reached = swarm(mixer, graph, x, lambda _x: slope, 4, steps=1, lr=0.1)[-1]
        began = 4 - sweep + 1  # the sweep averages the models after its first round's local steps
        mean = x - 0.1 * began * slope.mean(0)
        torch.testing.assert_close(reached, keep * (x - 0.4 * slope) + (1 - keep) * mean)


def test_staleness_shortens_the_outer_step_and_the_clip_bounds_its_momentum():
    """Λ = 1 + penalty·‖drift‖/‖Δ‖: with as much drift as progress and penalty 1, half of the step is taken."""
    start, then = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    for options, expected in (({}, then), ({"penalty": 1.0}, then / 2), ({"outer_clip": 3.5}, then.clamp(max=3.5))):
        mixer = Outer(outer_lr=1.0, outer_momentum=0.0, nesterov=False, **options)
        begin = Phase(0, 1, 0.1, first=True, last=False)
        x, state = mixer.publish(mixer.start(start), then, begin)
        x, state = mixer.absorb(state, x, mixer.shared(state, x), begin)
        now = x + torch.tensor([[0.0, 5.0]])  # five more meanwhile
        end = Phase(1, 1, 0.1, first=False, last=True)
        now, state = mixer.publish(state, now, end)
        _, state = mixer.absorb(state, now, mixer.shared(state, now), end)
        torch.testing.assert_close(state.anchor, expected)


@pytest.mark.parametrize(("momentum", "limit"), [(0.0, 2.0), (0.3, 1.81), (0.5, 1.49), (0.7, 1.01), (0.9, 0.37)], ids=str)
def test_momentum_narrows_the_range_of_pull_strengths(momentum, limit):
    """The range of g in which outer parameters converge, without gradients; heavy ball."""
    assert disagreement_factor(momentum, limit - 0.01) < 1.0
    assert disagreement_factor(momentum, limit + 0.02) > 1.0


@pytest.mark.parametrize(("pull", "factor"), [(0.3, 0.625), (0.5, 0.652), (1.0, 0.792)])
def test_the_best_pull_for_the_published_momentum(pull, factor):
    assert disagreement_factor(0.5, pull) == pytest.approx(factor, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "pull", "nesterov"), [(0.5, 0.3, False), (0.5, 1.0, False), (0.9, 0.7, True), (0.9, 0.2, False)])
def test_disagreement_of_pairs_follows_the_second_moments(momentum, pull, nesterov):
    n, rounds = 512, 40
    mixer = Outer(outer_lr=0.7, outer_momentum=momentum, nesterov=nesterov, pull=pull)
    graph = overlay("random_matching", 1, 7)
    x = rows(2, n, 16)
    reached = swarm(mixer, graph, x, torch.zeros_like, rounds, n=n, steps=1)
    early, late = (float(reached[k].var(0).mean()) for k in (rounds // 2 - 1, rounds - 1))
    assert (late / early) ** (2 / rounds) == pytest.approx(disagreement_factor(momentum, pull, nesterov=nesterov), rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "at_average", "later", "then"), [(6, 9.5e-5, 2, 2.7e-3), pytest.param(12, 2.6e-4, 5, 9.5e-3, marks=pytest.mark.acceptance)]
)
def test_gossip_pga_is_dsgd_on_a_periodic_overlay(every, at_average, later, then):
    """Gossip-PGA on the ring, eta = .1, where DSGD stays at 4.7e-2: the error right after an average, and some rounds later."""
    A, b, x_star = quadratics(16, 50, 0)
    graph = overlay("ring", 1, 0, average_every=every)
    rounds = graph.cycle(16) * (3000 // every)
    x = torch.zeros(16, 50, dtype=torch.float64)
    reached = swarm(Dsgd(), graph, x, partial(gradients, A, b), rounds + later, n=16, steps=1, lr=0.1)
    assert at_average / 3 < relative_error(reached[rounds - 1], x_star) < at_average * 3
    assert then / 3 < relative_error(reached[-1], x_star) < then * 3


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"outer_lr": 0.0}, "outer_lr"),
        ({"outer_momentum": 1.0}, "outer_momentum"),
        ({"fragments": 0}, "fragments"),
        ({"plain_averages": -1}, "plain_averages"),
        ({"keep": 1.0}, "keep"),
        ({"pull": -1.0}, "pull"),
        ({"outer_clip": float("nan")}, "outer_clip"),
    ],
)
def test_invalid_values_are_named(bad, word):
    with pytest.raises(ValueError, match=word):
        Outer(**bad)


def test_outer_steps_require_steps_pace():
    assert not MIXERS.facts("outer").asynchronous
    assert not Outer().asynchronous
