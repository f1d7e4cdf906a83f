"""Algorithms that swap messages: invariants under any loss, and textbook trajectories."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research.scallion import controlled
from starling.gossip.api import Phase
from starling.gossip.compress.feedback import FEEDBACKS
from starling.gossip.compress.quantize import Float64
from starling.gossip.compress.select.coordinates import Everything, TopK
from starling.gossip.errors import ConfigError
from starling.gossip.mix.all_gather import Psgd
from starling.gossip.mix.base import origin
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.dsgd import Choco
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gradient_tracking import Beer, RFast
from starling.gossip.mix.public_copies import PublicCopies
from starling.gossip.mix.push_sum import FLOOR, PushSum, Weighted
from starling.gossip.mix.running_sums import PullPush, RunningSums
from starling.gossip.overlay.measure import matrix
from starling.gossip.overlay.one_peer import OnePeerExponential
from starling.gossip.overlay.static import Ring, StaticExponential
from starling.node.config.manifest import check
from starling.node.config.schema import Manifest, MixSection
from starling.node.config.toml import apply_set
from starling.node.engine.mixing import mixer as from_manifest
from starling.robust.clip import clip
from tests.harness.codecs import TopRows, send
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.harness.reference import Reference, descent
from tests.harness.swap_walk import PHASE, Ends, halves, tensors, top
from tests.strategies import examples, seeds

SWAPPING = {
    "choco": {"gamma": 0.2},
    "beer": {"gamma": 0.2},
    "push_sum": {},
    "r_fast": {},
    "psgd": {"feedback": "econtrol"},
    "defended_tracking": {},
}
SUMS = (RunningSums(), PullPush())

quick = examples(30)


def mixer(name):
    return MIXERS.build("mix", name, SWAPPING[name])


def gaussian(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def eighths(seed, *shape):
    """Draw numbers whose sums and halves float64 represents exactly."""
    return gaussian(seed, *shape).mul(8).round()


def weights(overlay, n, round=0):
    return torch.from_numpy(matrix(overlay, n, round))


def mean_weights(n):
    return torch.full((n, n), 1.0 / n, dtype=torch.float64)


def random_digraph(n, seed):
    """Draw a strongly connected irregular digraph with self-loops: sender (column) to receiver (row)."""
    chance = np.random.default_rng(seed)
    edges = chance.random((n, n)) < 0.2
    edges |= np.eye(n, dtype=bool) | np.roll(np.eye(n, dtype=bool), 1, axis=0)
    return torch.from_numpy(edges)


@pytest.mark.parametrize("name", SWAPPING)
def test_functions_work_row_by_row_and_modify_nothing(name):
    """A simulator passes a thousand nodes or edges at once, an engine one: the bits are equal."""
    algorithm, n, dim = mixer(name), 3, 5
    edge = algorithm.edge
    x, gradient, came = (gaussian(1, n, dim), gaussian(2, n, dim), gaussian(3, n, origin(algorithm, torch.zeros(dim)).numel()))
    weight = torch.tensor([[0.5], [0.25], [0.125]], dtype=torch.float64)

    def play(x, gradient, came, weight):
        """Make an engine's calls in order, twice, so that states and edges are not fresh."""
        state = algorithm.start(x)
        kept = edge.begin(algorithm.shared(state, x))
        seen = []
        for _ in range(2):
            direction, state = algorithm.correct(state, gradient)
            x, state = algorithm.publish(state, x - 0.1 * direction, PHASE)
            shared = algorithm.shared(state, x)
            held = [(t, t.clone()) for t in tensors((state, x, gradient, came, kept, shared))]
            message = edge.message(kept, shared, weight)
            after, given = edge.sent(kept, message, shared, weight)
            kept, taken = edge.received(after, came, shared, weight)
            assert given.shape == taken.shape == shared.shape
            before, (x, state) = (x, state), algorithm.absorb(state, x, shared + given + taken, PHASE)
            algorithm.correct(before[1], gradient)
            assert all(torch.equal(tensor, copy) for tensor, copy in held)
            seen += [message, given, taken, kept, x, *tensors(state)]
        return seen

    together = play(x, gradient, came, weight)
    for i in range(n):
        alone = play(x[i], gradient[i], came[i], float(weight[i]))
        for row, all_rows in zip(alone, together, strict=True):
            assert torch.equal(row, all_rows[i])


@pytest.mark.parametrize("name", SWAPPING)
def test_nodes_with_equal_models_and_no_gradient_stay_unchanged(name):
    n, dim = 6, 4
    swarm = Ends(mixer(name), gaussian(0, dim).expand(n, dim).clone(), torch.ones(n, n, dtype=torch.bool))
    for _ in range(5):
        swarm.swap(mean_weights(n))
    torch.testing.assert_close(swarm.x, gaussian(0, dim).expand(n, dim), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["choco", "beer", "push_sum", "r_fast"])
def test_without_local_steps_models_converge_to_the_mean(name):
    """With uncompressed messages averaging is exact in the limit, from any start."""
    n, dim = 6, 4
    algorithm = MIXERS.build("mix", name, {"gamma": 1.0} if name in ("choco", "beer") else {})
    swarm = Ends(algorithm, torch.zeros(n, dim, dtype=torch.float64), weights(Ring(), n) > 0)
    swarm.x = gaussian(4, n, dim)
    if name == "push_sum":
        swarm.state = algorithm.start(swarm.x)
    mean = swarm.x.mean(0)
    for _ in range(200):
        swarm.swap(weights(Ring(), n))
    torch.testing.assert_close(swarm.x, mean.expand(n, dim), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["choco", "beer", "push_sum", "r_fast", "psgd"])
def test_encoded_messages_follow_the_algorithm_s_rules(name):
    n, dim, lr = 5, 6, 0.05
    A, b, _ = quadratics(n, dim, seed=1)
    algorithm = mixer(name)
    overlay = StaticExponential() if name in ("push_sum", "r_fast") else Ring()
    W = mean_weights(n) if name == "psgd" else weights(overlay, n)
    exact = MIXERS.facts(name).exact
    reference = Reference(
        peers=["c", "a", "e", "b", "d"],
        x=torch.zeros(n, dim, dtype=torch.float64),
        mixer=algorithm,
        codec=ExchangeCodec(Float64(), Float64(), 0.0, clip),
        selector=Everything() if exact else TopK(1 / dim),
        seed=0,
    )
    swarm = Ends(algorithm, torch.zeros(n, dim, dtype=torch.float64), (W > 0) | (W.T > 0))
    local = descent(lambda node, x, _round, _step: A[node] @ (x - b[node]), steps=1, lr=lr)
    meetings = [(i, j, float(W[i, j]), float(W[j, i])) for i in range(n) for j in range(i) if W[i, j] > 0 or W[j, i] > 0]
    width = origin(algorithm, torch.zeros(dim)).numel() // dim
    for turn in range(12):
        reference.round(Phase(turn, 1, lr), local, meetings)
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(W, compress=(lambda message: message) if exact else top(width))
        torch.testing.assert_close(reference.x, swarm.x, rtol=0, atol=1e-12)


def test_impossible_settings_give_one_clear_line():
    for name in ("choco", "beer"):
        for gamma in (0.0, 1.5, float("nan")):
            with pytest.raises(ConfigError, match="gamma must be finite and > 0 and <= 1"):
                MIXERS.build("mix", name, {"gamma": gamma})
        with pytest.raises(ConfigError, match="no such key, it takes gamma"):
            MIXERS.build("mix", name, {"edge": None})
    with pytest.raises(ConfigError, match="feedback must be one of none, ef, ef21, ef21_sgdm, econtrol, dgc, demo, got 'ef22'"):
        MIXERS.build("mix", "psgd", {"feedback": "ef22"})


@pytest.mark.slow
@given(seed=seeds, meetings=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda p: p[0] < p[1])))
@quick
def test_copies_agree_bit_for_bit_and_the_mean_is_preserved(seed, meetings):
    """For any overlay, order and compressor: both ends add the same decoded bytes, so their changes cancel bit for bit."""
    edge, origin = PublicCopies(0.3), gaussian(seed, 8)
    xs = [gaussian(seed + i, 8) for i in range(4)]
    kept = {(i, j): edge.begin(origin) for i in range(4) for j in range(4)}
    for turn, (i, j) in enumerate(meetings):
        noise = gaussian(seed + turn, 2, 8)
        said = {end: edge.message(kept[end], xs[end[0]], 0.4) * noise[n] for n, end in enumerate(((i, j), (j, i)))}
        moved = []
        for me, you in ((i, j), (j, i)):
            after, still = edge.sent(kept[me, you], said[me, you], xs[me], 0.4)
            assert not still.any()
            kept[me, you], change = edge.received(after, said[you, me], xs[me], 0.4)
            moved.append(change)
        assert torch.equal(moved[0], -moved[1])
        xs[i], xs[j] = xs[i] + moved[0], xs[j] + moved[1]
        ours, theirs = kept[i, j].chunk(2)
        assert torch.equal(kept[j, i], torch.cat((theirs, ours)))


@pytest.mark.parametrize("gamma", [0.05, 0.15])
def test_on_a_static_overlay_without_loss_choco_is_textbook_choco(gamma):
    """One public copy per node and its weighted sum s_i, as published, give the same models as two copies per edge."""
    n, dim, lr, k = 8, 20, 0.05, 2
    A, b, _ = quadratics(n, dim)
    W = weights(Ring(), n)
    swarm = Ends(Choco(gamma), torch.zeros(n, dim, dtype=torch.float64), W > 0)
    x, copy, s = (torch.zeros(n, dim, dtype=torch.float64) for _ in range(3))
    for _ in range(100):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(W, compress=top(k))
        x = x - lr * gradients(A, b, x)
        q = top(k)(x - copy)
        copy, s = copy + q, s + W @ q
        x = x + gamma * (s - copy)
        torch.testing.assert_close(swarm.x, x, rtol=0, atol=1e-12)


def test_on_a_static_overlay_without_loss_beer_is_beer_with_the_gradient_after_averaging():
    """Zhao et al. 2022 with g at x + γ(W − I)x̂ instead of at x, the one deviation."""
    n, dim, lr, k, gamma = 8, 20, 0.03, 2, 0.2
    A, b, _ = quadratics(n, dim)
    W = weights(Ring(), n)
    mixing = W - torch.eye(n, dtype=torch.float64)
    swarm = Ends(Beer(gamma), torch.zeros(n, dim, dtype=torch.float64), W > 0)
    x, x_copy, v_copy = (torch.zeros(n, dim, dtype=torch.float64) for _ in range(3))
    g = gradients(A, b, x)
    v = g
    x = x - lr * v
    for _ in range(100):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(W, compress=halves(k))
        x_copy, v_copy = x_copy + top(k)(x - x_copy), v_copy + top(k)(v - v_copy)
        averaged = x + gamma * mixing @ x_copy
        torch.testing.assert_close(swarm.x, averaged, rtol=0, atol=1e-12)
        new = gradients(A, b, averaged)
        v = v + gamma * mixing @ v_copy + new - g
        x, g = averaged - lr * v, new


def test_a_lost_message_separates_copies_for_ever_unless_both_ends_undo_it():
    """This is why copies need transactions: without them the mean of the models is lost."""
    n, dim = 6, 8
    W = weights(Ring(), n)
    for atomic, kept_mean in ((True, True), (False, False)):
        swarm = Ends(Choco(0.2), torch.zeros(n, dim, dtype=torch.float64), W > 0)
        swarm.x = gaussian(1, n, dim)
        mean, chance = swarm.x.mean(0), torch.Generator().manual_seed(2)
        for _ in range(100):
            swarm.swap(W, lost=torch.rand(len(swarm.src), generator=chance) < 0.3, atomic=atomic, compress=top(2))
        assert bool((swarm.x.mean(0) - mean).abs().max() < 1e-12) == kept_mean
        ours, theirs = swarm.kept.chunk(2, dim=-1)
        assert torch.equal(theirs, ours[swarm.other]) == kept_mean


@pytest.mark.slow
@pytest.mark.parametrize("edge", SUMS, ids=lambda edge: type(edge).__name__)
@given(seed=seeds, events=st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["say", "hear", "stale"])), max_size=60))
@quick
def test_sent_but_unreceived_mass_is_in_flight(edge, seed, events):
    """With messages lost, late, repeated or reordered, the nodes' mass and the mass in flight sum to the initial one exactly."""
    ends = [(i, j) for i in range(4) for j in range(4) if i != j]
    have = [eighths(seed + i, 6) for i in range(4)]
    pushed = slice(3, 6) if isinstance(edge, PullPush) else slice(None)
    kept = {end: edge.begin(have[0]) for end in ends}
    said = {end: [] for end in ends}
    total = sum(have)[pushed]
    for number, kind in events:
        i, j = ends[number]
        if kind == "say":
            message = edge.message(kept[i, j], have[i], 0.25)
            kept[i, j], change = edge.sent(kept[i, j], message, have[i], 0.25)
            have[i] = have[i] + change
            said[i, j].append(message)
        elif said[j, i]:  # shares that are not received are lost
            message = said[j, i][-1] if kind == "hear" else said[j, i][0]
            kept[i, j], change = edge.received(kept[i, j], message, have[i], 0.25)
            have[i] = have[i] + change
        on_the_way = sum(kept[a, b].chunk(2)[0] - kept[b, a].chunk(2)[1] for a, b in ends)
        assert torch.equal(sum(have)[pushed] + on_the_way, total)


class Shares:
    """Textbook push-sum: a message is a share, and a lost share is gone."""

    def begin(self, origin):
        return origin[..., :0]

    def message(self, kept, mine, give):
        return give * mine

    def sent(self, kept, message, mine, give):
        return kept, -message

    def received(self, kept, message, mine, take):
        return kept, message


def average_33(loss, edge=None, seed=1, rounds=400):
    """Average 33 numbers on the directed one-peer exponential overlay; return the swarm and the numbers."""
    n = 33
    x = torch.from_numpy(np.random.default_rng(0).normal(size=n) + 3)[:, None]
    Ws = [weights(OnePeerExponential(), n, turn) for turn in range(6)]
    swarm = Ends(PushSum(), x, sum(Ws) + sum(Ws).T > 0)
    if edge is not None:
        swarm.edge, swarm.kept = edge, edge.begin(swarm.shared[swarm.src])
    chance = torch.Generator().manual_seed(seed)
    for turn in range(rounds):
        swarm.swap(Ws[turn % 6], lost=torch.rand(len(swarm.src), generator=chance) < loss)
    return swarm, x


@pytest.mark.slow
def test_push_sum_finds_the_mean_in_spite_of_lost_messages():
    """Σ m and Σ w include what is in flight, so 30 % of lost messages do not change the limit."""
    for loss in (0.0, 0.3):
        swarm, x = average_33(loss)
        total = swarm.shared.sum(0) + swarm.on_the_way()
        torch.testing.assert_close(total, torch.tensor([93.97738623891574, 33.0], dtype=torch.float64), rtol=1e-14, atol=0)
        assert float((swarm.x - x.mean()).abs().max()) < 1e-12
        assert bool((swarm.state.w == 1.0).all()) == (loss == 0.0)


@pytest.mark.slow
def test_push_sum_of_plain_shares_decays_to_nothing():
    """This is why messages are running sums: otherwise weight and numerator decay by .85 per round, and their quotient is not the mean."""
    swarm, _ = average_33(0.3, Shares())
    assert 1e-30 < float(swarm.state.w.min()) < 1e-28
    off = []
    for seed in range(20):
        swarm, x = average_33(0.3, Shares(), seed, rounds=12)
        m, w = swarm.shared.sum(0)
        off.append(abs(float(m / w - x.mean())))
    assert 0.03 < np.mean(off) < 0.08


def test_one_peer_sgp_is_dsgd_as_its_matrices_are_doubly_stochastic():
    """With all weights 1 nothing needs correcting: the trajectory is that of adapt-then-combine."""
    n, dim, lr = 8, 10, 0.1
    A, b, _ = quadratics(n, dim)
    Ws = [weights(OnePeerExponential(), n, turn) for turn in range(3)]
    swarm = Ends(PushSum(), torch.zeros(n, dim, dtype=torch.float64), sum(Ws) + sum(Ws).T > 0)
    x = torch.zeros(n, dim, dtype=torch.float64)
    for turn in range(60):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(Ws[turn % 3])
        x = Ws[turn % 3] @ (x - lr * gradients(A, b, x))
        torch.testing.assert_close(swarm.x, x, rtol=0, atol=1e-12)
        assert bool((swarm.state.w == 1.0).all())


def test_a_step_moves_the_numerator_by_the_gradient_whatever_the_weight():
    """m −= lr·g, as published: the weight cancels."""
    algorithm, x, gradient = PushSum(), gaussian(1, 3, 4), gaussian(2, 3, 4)
    state = Weighted(torch.tensor([[0.25], [1.0], [2.5]], dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64))
    direction, after = algorithm.correct(state, gradient)
    moved = algorithm.shared(after, x - 0.1 * direction) - algorithm.shared(state, x)
    torch.testing.assert_close(moved[:, :4], -0.1 * gradient)
    assert not moved[:, 4].any()


def test_a_push_sum_node_without_input_stops_at_the_minimum_weight():
    """Node 0 sends but receives nothing for 50 rounds: no overflow, no mass lost, and all converge once it receives again."""
    n, dim = 4, 3
    W, x = weights(Ring(), n), gaussian(5, n, dim)
    swarm = Ends(PushSum(), x, W > 0)
    into_0 = swarm.dst == 0
    for _ in range(50):
        before = swarm.x[0]
        swarm.step(torch.ones_like, 0.0)
        swarm.swap(W, lost=into_0)
        assert float((swarm.x[0] - before).abs().max()) < 1e-12
    assert FLOOR / 3 <= float(swarm.state.w[0]) < FLOOR
    assert not swarm.mixer.correct(swarm.state, torch.ones_like(x))[0][0].any()
    for _ in range(100):
        swarm.swap(W)
    torch.testing.assert_close(swarm.x, x.mean(0).expand(n, dim), rtol=0, atol=1e-12)
    torch.testing.assert_close(swarm.state.w.sum(), torch.tensor(4.0, dtype=torch.float64))


@given(seed=seeds, w=st.sampled_from([-0.5, 0.0, FLOOR / 2, 0.5]))
@quick
def test_a_weight_below_the_floor_hides_the_numerator_and_keeps_it(seed, w):
    """Shares promised in one round may be booked in the next: even a negative weight is only temporary."""
    algorithm, x, debt = PushSum(), gaussian(seed, 4), gaussian(seed + 1, 4)
    shared = torch.cat((debt, torch.tensor([w], dtype=torch.float64)))
    model, state = algorithm.absorb(algorithm.start(x), x, shared, PHASE)
    assert torch.equal(model, x) == (w < FLOOR)
    torch.testing.assert_close(algorithm.shared(state, model), shared)
    come = torch.cat((gaussian(seed + 2, 4), torch.tensor([1.0], dtype=torch.float64)))
    again, state = algorithm.absorb(state, model, algorithm.shared(state, model) + come, PHASE)
    torch.testing.assert_close(again, (debt + come[:4]) / (w + 1.0))
    assert not state.rest.any()


@pytest.mark.slow
def test_on_directed_overlays_sgp_and_push_pull_find_the_mean_and_pulling_does_not():
    """Row-stochastic weights find a weighted mean. Column-stochastic, SGP: no worse than DSGD. Both, R-FAST: exact."""
    n, dim = 16, 20
    digraph = random_digraph(n, 0)
    rows, columns = digraph / digraph.double().sum(1, keepdim=True), digraph / digraph.double().sum(0, keepdim=True)
    A, b, best = quadratics(n, dim)

    def after(algorithm, rounds, lr, take, give=None):
        swarm = Ends(algorithm, torch.zeros(n, dim, dtype=torch.float64), digraph | digraph.T)
        for _ in range(rounds):
            swarm.step(lambda x: gradients(A, b, x), lr)
            swarm.swap(take, give=give)
        return relative_error(swarm.x, best)

    x = torch.zeros(n, dim, dtype=torch.float64)
    for _ in range(500):
        x = rows @ (x - 0.02 * gradients(A, b, x))
    assert relative_error(x, best) > 2e-2
    assert after(PushSum(), 500, 0.02, columns) < 2e-3
    assert after(RFast(), 250, 0.1, rows, columns.T) < 1e-6


def test_on_a_static_digraph_without_loss_r_fast_is_push_pull():
    """Models by row weights, trackers by column weights, both after the local step."""
    n, dim, lr = 8, 10, 0.05
    A, b, _ = quadratics(n, dim)
    digraph = random_digraph(n, 3)
    rows, columns = digraph / digraph.double().sum(1, keepdim=True), digraph / digraph.double().sum(0, keepdim=True)
    swarm = Ends(RFast(), torch.zeros(n, dim, dtype=torch.float64), digraph | digraph.T)
    x, y, g = (torch.zeros(n, dim, dtype=torch.float64) for _ in range(3))
    for _ in range(100):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(rows, give=columns.T)
        new = gradients(A, b, x)
        y, g = y + new - g, new
        x, y = rows @ (x - lr * y), columns @ y
        torch.testing.assert_close(swarm.x, x, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_trackers_and_messages_in_flight_sum_to_the_gradients_under_any_loss():
    n, dim, lr = 6, 10, 0.1
    A, b, best = quadratics(n, dim)
    W = weights(Ring(), n)
    swarm = Ends(RFast(), torch.zeros(n, dim, dtype=torch.float64), W > 0)
    chance = torch.Generator().manual_seed(1)
    for _ in range(300):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(W, lost=torch.rand(len(swarm.src), generator=chance) < 0.3)
        off = swarm.state.y.sum(0) + swarm.on_the_way() - swarm.state.previous.sum(0)
        assert float(off.abs().max()) < 1e-11
    assert relative_error(swarm.x, best) < 1e-5


@pytest.mark.parametrize("name", FEEDBACKS)
def test_replicas_take_the_step_of_a_server(name):
    """x −= mean of the receivers' compressed updates, with the feedback functions called as a server would."""
    n, dim, lr = 6, 10, 0.02
    A, b, _ = quadratics(n, dim)
    swarm = Ends(Psgd(name), torch.zeros(n, dim, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
    feedback = FEEDBACKS[name]()
    x = torch.zeros(dim, dtype=torch.float64)
    state = feedback.start(torch.zeros(n, dim, dtype=torch.float64))
    held = torch.zeros(n, dim, dtype=torch.float64)
    for _ in range(60):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(mean_weights(n), compress=top(2))
        message, state = send(feedback, state, lr * gradients(A, b, x), TopRows(2))
        held = feedback.receive(held, message)
        x = x - (PHASE.lr * held.mean(0).sign() if name == "demo" else held.mean(0))
        torch.testing.assert_close(swarm.x, x.expand(n, dim), rtol=0, atol=1e-12)


@quick
@given(seeds, st.floats(0.01, 1.0))
def test_the_mean_of_ef21_sgdm_starts_at_the_first_update(seed, beta):
    """v = g at first, then (1 − beta)·v + beta·g: sent whole, the replicas step along the mean of all v."""
    n, dim = 3, 4
    swarm = Ends(Psgd("ef21_sgdm", feedback_beta=beta), torch.zeros(n, dim, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
    first, second = gaussian(seed, n, dim), gaussian(seed + 1, n, dim)
    swarm.swap(mean_weights(n))  # no local step yet, so no running mean
    assert not swarm.x.any()
    swarm.step(lambda _x: first, 1.0)
    swarm.swap(mean_weights(n))
    torch.testing.assert_close(swarm.x, -first.mean(0).expand(n, dim), rtol=0, atol=1e-12)
    swarm.step(lambda _x: second, 1.0)
    swarm.swap(mean_weights(n))
    moved = first + (1.0 - beta) * first + beta * second
    torch.testing.assert_close(swarm.x, -moved.mean(0).expand(n, dim), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("feedback", "key", "value", "name"),
    [
        ("ef21_sgdm", "feedback_beta", 0.5, "beta"),
        ("econtrol", "feedback_control", 0.5, "control"),
        ("dgc", "feedback_momentum", 0.5, "momentum"),
    ],
)
def test_the_parameter_of_a_feedback_is_a_key_of_the_manifest(feedback, key, value, name):
    made = from_manifest(Manifest(mix=MixSection(kind="psgd", feedback=feedback, **{key: value})))
    assert getattr(made.scheme, name) == value
    unchanged = from_manifest(Manifest(mix=MixSection(kind="psgd", feedback=feedback)))
    assert unchanged.scheme == FEEDBACKS[feedback]()


def test_psgd_with_control_variates_equals_scafcom_without_a_server():
    """With β = 1, where running means start equal; the baseline uses the paper's formulas with a server."""
    n, dim, lr, steps, kept = 5, 12, 0.1, 4, 3
    A, b, _ = quadratics(n, dim)
    swarm = Ends(Psgd("ef21", control_variate=True), torch.zeros(n, dim, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
    theirs = controlled(
        "scafcom", lambda i, y: A[i].numpy() @ (y - b[i].numpy()), np.zeros(dim), n, lr=lr, steps=steps, kept=kept, seed=0, mean_of=1.0
    )
    for server in itertools.islice(theirs, 40):
        for _ in range(steps):
            swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(mean_weights(n), compress=top(kept), phase=Phase(0, steps, lr))
        torch.testing.assert_close(swarm.x, torch.from_numpy(server.model).expand(n, dim), rtol=0, atol=1e-9)
        torch.testing.assert_close(swarm.state.variate.mean(0), torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mix": {"feedback": "ef"}}, "mix.control_variate: needs an estimate"),
        ({"mix": {"feedback": "ef21"}, "optimizer": {"kind": "adamw"}}, "mix.control_variate: assumes steps"),
    ],
)
def test_control_variates_are_refused_without_estimates_or_gradients(given, said):
    keys = ["mix=psgd", "mix.control_variate=true", "overlay=complete", "compress.select=top_k", "compress.response=fp16"]
    keys += [f"{section}.{key}={value}" for section, values in given.items() for key, value in values.items()]
    with pytest.raises(ConfigError, match=said):
        check(apply_set(Manifest(), keys))


def test_without_compression_psgd_is_one_big_batch():
    n, dim, lr = 5, 10, 0.1
    A, b, _ = quadratics(n, dim)
    swarm = Ends(Psgd("none"), torch.zeros(n, dim, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
    x = torch.zeros(dim, dtype=torch.float64)
    for _ in range(50):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(mean_weights(n))
        x = x - lr * gradients(A, b, x).mean(0)
    torch.testing.assert_close(swarm.x, x.expand(n, dim), rtol=0, atol=1e-12)


def test_missing_links_keep_the_mean_update_but_not_the_replicas():
    """Both ends replace a lost swap by their own update; a lone node just continues."""
    n, dim = 5, 6
    swarm = Ends(Psgd("none"), torch.zeros(n, dim, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
    gradient = gaussian(1, n, dim)
    swarm.step(lambda _x: gradient, 1.0)
    lost = ((swarm.src == 0) & (swarm.dst == 1)) | (swarm.src == 4) | (swarm.dst == 4)
    swarm.swap(mean_weights(n), lost=lost, atomic=True)
    torch.testing.assert_close(swarm.x.mean(0), -gradient.mean(0))
    torch.testing.assert_close(swarm.x[4], -gradient[4])
    assert float((swarm.x[0] - swarm.x[2]).abs().max()) > 0.1


def test_a_push_sum_message_without_a_new_share_gives_no_distance():
    """For push-sum: no new share, or a weight that no honest node sends. Computing a distance must not fail then."""
    sums, mine = RunningSums(FLOOR), torch.tensor([2.0, 4.0, 2.0])
    kept = sums.begin(mine)
    assert torch.equal(sums.difference(kept, torch.tensor([1.0, 4.0, 0.5]), mine), torch.tensor([1.0, 6.0]))
    assert sums.difference(kept, torch.zeros(3), mine) is None
    assert sums.difference(kept, torch.tensor([1.0, 1.0, -1.0]), mine) is None
    assert RunningSums().difference(kept, mine, mine) is None
