"""Mixing algorithms as pure functions: what every one of them conserves, and what the ledger of PET promises."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.api import Effect
from gossip.catalogue import build
from gossip.compress.support import Blocks, Full, Indices
from gossip.errors import ConfigError
from gossip.mix.catalogue import MIXERS
from gossip.mix.gradient_tracking import GradientTracking
from gossip.mix.pet import Pet

DIM = 12
SUPPORTS = (Full(), Blocks(3, 1, 2, 4), Indices(torch.tensor([0, 5, 11])))
PARAMS = {"pet": {"kappa": 0.3, "flow_limit": 3.0, "settled_edges": 2}, "dsgd": {}, "gradient_tracking": {}}

seeds = st.integers(0, 2**32)
quick = settings(max_examples=40, deadline=None)


def mixer(name):
    return build("mix", MIXERS, name, PARAMS[name])


def gaussian(seed, size=DIM):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def effect(peer, sign, seed, support, dim, gain=0.5, theta=0.5):
    return Effect(peer, support, sign * gaussian(seed, support.size(dim)), theta, gain)


def meet(algorithm, states, xs, pairs, seed=0):
    """Exchanges over (i, j, support) in turn: both ends apply one v with opposite signs."""
    for turn, (i, j, support) in enumerate(pairs):
        dim = algorithm.width * DIM
        for me, you, sign in ((i, j, 1.0), (j, i, -1.0)):
            done = effect(f"p{you}", sign, seed + turn, support, dim)
            xs[me], states[me] = algorithm.absorb(states[me], xs[me], [done])


pairs = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(SUPPORTS)).filter(lambda p: p[0] < p[1]),
    max_size=25,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
@given(meetings=pairs, seed=seeds)
@quick
def test_exchanges_preserve_the_average_model(name, meetings, seed):
    """The mean model is what the mean gradient moves; an exchange that moved it would be a gradient nobody computed."""
    algorithm = mixer(name)
    xs = [gaussian(seed + i) for i in range(4)]
    states = [algorithm.start(x) for x in xs]
    before = torch.stack(xs).double().sum(0)
    meet(algorithm, states, xs, meetings, seed)
    torch.testing.assert_close(torch.stack(xs).double().sum(0), before, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("support", SUPPORTS, ids=lambda support: type(support).__name__)
def test_nothing_that_goes_in_is_modified(name, support):
    """State goes in and comes out: that is what makes an undone step or a refused exchange free of traces."""
    algorithm = mixer(name)
    x, gradient = gaussian(1), gaussian(2)
    _, state = algorithm.correct(algorithm.start(x), gradient)
    _, state = algorithm.absorb(state, x, [effect("p", 1.0, 3, Full(), algorithm.width * DIM)])
    held = {id(t): (t, t.clone()) for t in _tensors((state, x, gradient))}
    algorithm.correct(state, gradient)
    algorithm.shared(state, x)
    algorithm.absorb(state, x, [effect(peer, -1.0, 4, support, algorithm.width * DIM) for peer in ("p", "q")])
    algorithm.settle(state, "p")
    algorithm.revoke(state, "p", settled=True)
    assert all(torch.equal(tensor, copy) for tensor, copy in held.values())


@pytest.mark.parametrize("name", MIXERS)
def test_without_local_steps_models_only_come_nearer(name):
    """Pairwise averaging is a projection of every coordinate: its range over nodes never grows."""
    algorithm = mixer(name)
    xs = [gaussian(i) for i in range(4)]
    states = [algorithm.start(x) for x in xs]
    spread = [_spread(xs)]
    for i, j in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)):
        shared = [algorithm.shared(states[k], xs[k]) for k in (i, j)]
        v = shared[1] - shared[0]
        for me, you, sign in ((i, j, 1.0), (j, i, -1.0)):
            xs[me], states[me] = algorithm.absorb(states[me], xs[me], [Effect(f"p{you}", Full(), sign * v, 0.5, 0.0)])
        spread.append(_spread(xs))
    assert all(bool((after <= before + 1e-6).all()) for before, after in pairwise(spread))
    assert float(spread[-1].max()) < 1e-6


def test_a_catalogue_name_or_value_that_cannot_be_is_one_clear_line():
    with pytest.raises(ConfigError, match="choose one of dsgd, gradient_tracking, pet"):
        build("mix", MIXERS, "pett", {})
    for bad in ({"kappa": 0.6}, {"flow_limit": 0.0}, {"settled_edges": -1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            build("mix", MIXERS, "pet", PARAMS["pet"] | bad)


# --- the ledger --------------------------------------------------------------------------------------------


@given(meetings=pairs, seed=seeds)
@quick
def test_flows_of_an_edge_are_antisymmetric_bit_for_bit(meetings, seed):
    """Whatever the order, supports and clamping: this is the one invariant that makes a flow deletable."""
    algorithm, _, states = _ledgers(meetings, seed)
    for i in range(4):
        for j in range(i):
            ours, theirs = states[i].flows.get(f"p{j}"), states[j].flows.get(f"p{i}")
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, -theirs)
            assert ours is None or float(ours.abs().max()) <= algorithm.flow_limit


@given(meetings=pairs, seed=seeds, order=st.permutations(range(4)))
@quick
def test_the_total_is_the_sum_of_its_parts_at_every_moment(meetings, seed, order):
    """Not nearly: the same additions in the same order, however it came about."""
    algorithm, _, states = _ledgers(meetings, seed)
    for before in states:
        state = before
        for peer in order:
            state = algorithm.settle(state, f"p{peer}")
            assert torch.equal(state.total, _resum(state))
            torch.testing.assert_close(
                state.total, state.rest + sum(state.settled.values()) + sum(state.flows.values())
            )


@given(meetings=pairs, seed=seeds, dead=st.sets(st.integers(0, 3), max_size=3))
@quick
def test_after_a_crash_the_survivors_corrections_still_sum_to_zero(meetings, seed, dead):
    """A textbook tracker's share would be gone for ever; here what the dead contributed is deleted."""
    algorithm, _, states = _ledgers(meetings, seed)
    for i in sorted(set(range(4)) - dead):
        for j in sorted(dead):
            states[i] = algorithm.revoke(states[i], f"p{j}", settled=True)
    alive = [states[i].total.double() for i in range(4) if i not in dead]
    scale = sum(float(total.abs().max()) for total in alive) + 1.0
    assert float(sum(alive).abs().max()) <= 1e-6 * scale


def test_settling_keeps_the_correction_and_a_late_revocation_still_finds_it():
    """Closing an edge in order is no reason to forget what was learned over it; a ban later is."""
    algorithm, _, states = _ledgers([(0, 1, Full()), (0, 2, Full()), (0, 3, Full())], 5)
    state = states[0]
    total, flows = state.total, dict(state.flows)
    for peer in ("p1", "p2"):
        state = algorithm.settle(state, peer)
    assert torch.equal(state.total, total)
    assert list(state.settled) == ["p1", "p2"]
    revoked = algorithm.revoke(state, "p1", settled=True)
    torch.testing.assert_close(revoked.total, total - flows["p1"])
    assert torch.equal(algorithm.revoke(state, "p1", settled=False).total, total)
    state = algorithm.settle(state, "p3")  # one more than is kept: the oldest can no longer be revoked
    assert list(state.settled) == ["p2", "p3"]
    torch.testing.assert_close(algorithm.revoke(state, "p1", settled=True).total, total)


def test_an_edge_settled_twice_is_revoked_as_one():
    algorithm, xs, states = _ledgers([(0, 1, Full())], 5)
    state = algorithm.settle(states[0], "p1")
    _, state = algorithm.absorb(state, xs[0], [effect("p1", 1.0, 9, Full(), DIM)])
    state = algorithm.settle(state, "p1")
    assert list(state.settled) == ["p1"]
    assert not algorithm.revoke(state, "p1", settled=True).total.any()


def test_equal_nodes_need_no_correction():
    """Identical functions from one start: differences are zero, and so stays c."""
    algorithm = Pet(0.3, 100.0, 8)
    state, x = algorithm.start(gaussian(0)), gaussian(0)
    for _ in range(5):
        direction, state = algorithm.correct(state, x)
        x = x - 0.1 * direction
        x, state = algorithm.absorb(state, x, [Effect("q", Full(), x - x, 0.5, algorithm.gain(0.5, 1.0, 1, 0.1))])
    assert not state.total.any()


@pytest.mark.parametrize("kappa", [0.1, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("local_steps", [1, 5])
def test_the_error_of_a_flow_shrinks_by_one_minus_two_kappa(kappa, local_steps):
    """n = 2, constant gradients, θ = 1/2, whole vectors: c_12 − (g_1 − g_2)/2 is multiplied by exactly 1 − 2κ."""
    algorithm, lr = Pet(kappa, 1e6, 8), 0.05
    gradients = [gaussian(1).double(), gaussian(2).double()]
    target = (gradients[0] - gradients[1]) / 2
    xs = [torch.zeros(DIM, dtype=torch.float64)] * 2
    states = [algorithm.start(x) for x in xs]
    gain = algorithm.gain(0.5, 1.0, local_steps, lr)
    for turn in range(1, 6):
        for i in range(2):
            for _ in range(local_steps):
                direction, states[i] = algorithm.correct(states[i], gradients[i])
                xs[i] = xs[i] - lr * direction
        v = xs[1] - xs[0]
        for i, sign in ((0, 1.0), (1, -1.0)):
            xs[i], states[i] = algorithm.absorb(states[i], xs[i], [Effect(f"p{1 - i}", Full(), sign * v, 0.5, gain)])
        error = states[0].flows["p1"] - target
        torch.testing.assert_close(error, -target * (1 - 2 * kappa) ** turn, rtol=1e-9, atol=1e-9)


# --- gradient tracking -------------------------------------------------------------------------------------


@given(meetings=pairs, seed=seeds, steps=st.lists(st.integers(0, 3), max_size=12))
@quick
def test_trackers_sum_to_the_gradients_last_seen(meetings, seed, steps):
    """Through local steps at any pace and exchanges in any order: with whole numbers, exactly."""
    algorithm = GradientTracking()
    gradients = [torch.zeros(DIM) for _ in range(4)]
    xs = [torch.zeros(DIM) for _ in range(4)]
    states = [algorithm.start(x) for x in xs]
    for turn in range(max(len(steps), len(meetings))):
        if turn < len(steps):
            i = steps[turn]
            gradients[i] = gaussian(seed + turn).mul(8).round()
            direction, states[i] = algorithm.correct(states[i], gradients[i])
            assert torch.equal(direction, states[i].y)
        if turn < len(meetings):
            i, j, support = meetings[turn]
            v = gaussian(seed - turn, support.size(2 * DIM)).mul(8).round()
            for me, sign in ((i, 1.0), (j, -1.0)):
                xs[me], states[me] = algorithm.absorb(states[me], xs[me], [Effect("p", support, sign * v, 0.5, 0.0)])
        assert torch.equal(sum(state.y for state in states), sum(gradients))


# --- helpers -----------------------------------------------------------------------------------------------


def _ledgers(meetings, seed):
    algorithm = mixer("pet")
    xs = [gaussian(seed + 100 + i) for i in range(4)]
    states = [algorithm.start(x) for x in xs]
    meet(algorithm, states, xs, meetings, seed)
    return algorithm, xs, states


def _resum(state):
    total = state.rest.clone()
    for peer in sorted(state.flows.keys() | state.settled.keys()):
        for part in (state.settled, state.flows):
            if peer in part:
                total = total + part[peer]
    return total


def _spread(xs):
    stacked = torch.stack(xs)
    return stacked.max(0).values - stacked.min(0).values


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__slots__"):
        for name in value.__slots__:
            yield from _tensors(getattr(value, name))
