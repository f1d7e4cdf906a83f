"""Mixing algorithms as functions of one node: invariants, formulas, and that rows of a batch are nodes."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.errors import ConfigError
from starling.gossip.mix.a2cid2 import A2Cid2
from starling.gossip.mix.base import origin
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.exact_diffusion import D2, ExactDiffusion
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gradient_tracking import GradientTracking
from starling.gossip.mix.k_gt import KGt
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.quasi_global import QuasiGlobal
from starling.gossip.overlay.measure import check_static, chi, matrix
from starling.gossip.overlay.one_peer import Hypercube, RandomMatching
from starling.gossip.overlay.static import Ring, StaticExponential
from starling.gossip.rng import generator
from starling.robust.clip import clip
from tests.harness.matrix_walk import cycle, iterate, walk
from tests.harness.quadratics import gradients, quadratics
from tests.harness.reference import Reference, descent
from tests.harness.swap_walk import tensors
from tests.strategies import examples, seeds

N, D, K, LR = 4, 13, 3, 0.05  # 13: rows that do not fill a processor's vector registers
RULES = {
    "dsgd": Dsgd(),
    "pet": Pet(0.3, 3.0),
    "dsgd awc": Dsgd("awc"),
    "gradient_tracking": GradientTracking(),
    "k_gt": KGt(),
    "k_gt eta_s": KGt(eta_s=0.7),
    "quasi_global": QuasiGlobal(0.9),
    "exact_diffusion": ExactDiffusion(),
    "d2": D2(),
    "a2cid2": A2Cid2(chi1=9.0, chi2=0.8),
}
PHASE = Phase(0, K, LR)

quick = examples(20)
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def gaussian(*shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=generator(seed, "x", *shape), dtype=dtype)


def doubly_stochastic(seed, n=N):
    chance = np.random.default_rng(seed)
    W = np.eye(n)
    for _ in range(2 * n):
        i, j = chance.choice(n, 2, replace=False)
        link, theta = np.eye(n), chance.uniform(0, 0.5)
        link[[i, j], [i, j]], link[[i, j], [j, i]] = 1 - theta, theta
        W = link @ W
    return torch.from_numpy(W)


def pushed(rule, x, pushes, mix, lr=LR):
    """Return the models after rounds of local steps along given gradients; `mix`: (round, shared) -> shared after the exchanges."""
    state = rule.start(x)
    for turn, steps in enumerate(pushes):
        phase = Phase(turn, len(steps), lr)
        for gradient in steps:
            direction, state = rule.correct(state, gradient)
            x = x - lr * direction
        x, state = rule.publish(state, x, phase)
        x, state = rule.absorb(state, x, mix(turn, rule.shared(state, x)), phase)
    return x, state


@every_rule
def test_the_mean_model_equals_one_node_with_the_mean_gradient(rule):
    pushes = gaussian(12, K, N, D, seed=1, dtype=torch.float64)
    x = gaussian(N, D, seed=2, dtype=torch.float64)
    swarm, _ = pushed(rule, x, pushes, lambda turn, shared: doubly_stochastic(turn) @ shared)
    alone, _ = pushed(rule, x.mean(0), pushes.mean(2), lambda _turn, shared: shared)
    assert not torch.allclose(swarm[0], swarm[1])
    torch.testing.assert_close(swarm.mean(0), alone, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["dsgd", "dsgd awc", "k_gt", "exact_diffusion", "d2", "a2cid2"])
def test_the_mean_model_takes_plain_gradient_steps(name):
    """x̄ moves by exactly −lr times the mean gradient, since corrections have mean zero."""
    pushes = gaussian(12, K, N, D, seed=1, dtype=torch.float64)
    x = gaussian(N, D, seed=2, dtype=torch.float64)
    swarm, _ = pushed(RULES[name], x, pushes, lambda turn, shared: doubly_stochastic(turn) @ shared)
    torch.testing.assert_close(swarm.mean(0), x.mean(0) - LR * pushes.mean(2).sum((0, 1)), rtol=1e-11, atol=1e-11)


@every_rule
def test_nodes_with_equal_models_stay_bitwise_equal(rule):
    """With equal models and gradients all differences are zero, so exchanges change nothing."""
    pushes = gaussian(6, K, D, seed=3)
    x = gaussian(D, seed=4)
    together, _ = pushed(
        rule, x.expand(N, D), pushes.unsqueeze(2).expand(6, K, N, D), lambda _turn, shared: shared + 0.5 * (shared.roll(1, 0) - shared)
    )
    alone, _ = pushed(rule, x, pushes, lambda _turn, shared: shared)
    assert torch.equal(together, alone.expand(N, D))


@every_rule
def test_rows_of_a_batch_equal_nodes_bit_for_bit(rule):
    """The simulator computes all nodes at once and must equal each node alone."""
    pushes = gaussian(6, K, N, D, seed=5)
    x = gaussian(N, D, seed=6)
    mixed = []

    def mix(turn, shared):
        mixed.append(doubly_stochastic(turn).float() @ shared)
        return mixed[-1]

    batch, states = pushed(rule, x, pushes, mix)
    for node in range(N):
        row, state = pushed(rule, x[node], pushes[:, :, node], lambda turn, _shared, node=node: mixed[turn][node])
        assert torch.equal(batch[node], row)
        for of_all, own in zip(tensors(states), tensors(state), strict=True):
            assert torch.equal(of_all[node], own)


@every_rule
def test_a_round_without_exchanges_leaves_the_published_model_bit_for_bit(rule):
    x, state = pushed(rule, gaussian(N, D, seed=1), gaussian(3, K, N, D, seed=2), lambda _turn, shared: shared.roll(1, 0))
    x, state = rule.publish(state, x + gaussian(N, D, seed=3), PHASE)
    after, _ = rule.absorb(state, x, rule.shared(state, x), PHASE)
    assert torch.equal(after, x)


@every_rule
def test_exchanges_on_edges_do_what_the_matrix_does(rule):
    """The same functions, called node by node with encoded differences, and on all rows with W, agree within rounding."""
    A, b, _ = quadratics(N, D)
    start = torch.zeros(N, D, dtype=torch.float64)
    exact = quantizer("identity", torch.float64)
    swarm = Reference("abcd", start.clone(), rule, ExchangeCodec(exact, exact, 0.0, clip), Everything(), seed=0)
    local = descent(lambda node, x, _round, _step: A[node] @ (x - b[node]), steps=K, lr=LR)
    for turn in range(10):
        swarm.round(Phase(turn, K, LR), local, [(i, (i + 1) % N, 1 / 3, 1 / 3) for i in range(N)])
    W = torch.from_numpy(matrix(Ring(), N, 0))
    product = iterate(rule, lambda _: W, lambda x: gradients(A, b, x), start, 10, lr=LR, steps=K)
    torch.testing.assert_close(swarm.x, product, rtol=1e-11, atol=1e-12)


@every_rule
def test_inputs_are_not_modified(rule):
    x, gradient = gaussian(N, D, seed=7), gaussian(N, D, seed=8)
    shared = gaussian(N, origin(rule, torch.zeros(D)).numel(), seed=9)
    _, state = pushed(rule, gaussian(N, D, seed=10), gaussian(2, K, N, D, seed=11), lambda _turn, mine: mine * 0.9)
    before = [tensor.clone() for tensor in (x, gradient, shared, *tensors(state))]
    rule.start(x)
    rule.correct(state, gradient)
    rule.publish(state, x, PHASE)
    rule.shared(state, x)
    rule.absorb(state, x, shared, PHASE)
    rule.corrected(state, x)
    assert all(map(torch.equal, before, (x, gradient, shared, *tensors(state))))


@every_rule
def test_stored_vectors_are_copies(rule):
    """An engine's parameters and gradients are live buffers, so a state must not alias them."""
    for call in (
        lambda live, state: rule.start(live),
        lambda live, state: rule.correct(state, live)[1],
        lambda live, state: rule.publish(state, live, PHASE)[1],
        lambda live, state: rule.absorb(state, live, live.repeat(1, origin(rule, torch.zeros(D)).numel() // D), PHASE)[1],
    ):
        live = gaussian(N, D, seed=12)
        kept = tensors(call(live, rule.start(gaussian(N, D, seed=13))))
        before = [tensor.clone() for tensor in kept]
        live.fill_(7.0)
        assert all(map(torch.equal, before, kept))


@every_rule
def test_state_tensors_have_the_model_s_leading_dimensions(rule):
    x = gaussian(2, N, D, seed=14)
    _, state = pushed(rule, x, gaussian(1, K, 2, N, D, seed=15), lambda _turn, shared: shared)
    assert rule.shared(state, x).shape == (2, N, origin(rule, torch.zeros(D)).numel())
    assert all(tensor.shape[:2] == (2, N) for tensor in tensors(state))
    assert all(tensor.dtype == x.dtype for tensor in tensors(state) if tensor.shape[-1] >= D), "numbers per node may be others"
    if state is not None:
        assert not hasattr(state, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(state, dataclasses.fields(state)[0].name, x)


@every_rule
def test_a_round_that_only_mixes_does_not_divide_by_its_local_steps(rule):
    """Periodic global averages have such rounds; they preserve the mean of the shared vectors."""
    x, state = pushed(
        rule,
        gaussian(N, D, seed=16, dtype=torch.float64),
        gaussian(3, K, N, D, seed=17, dtype=torch.float64),
        lambda turn, shared: doubly_stochastic(turn) @ shared,
    )
    pause = Phase(3, 0.0, LR)
    published, state = rule.publish(state, x, pause)
    shared = rule.shared(state, published)
    after, _ = rule.absorb(state, published, doubly_stochastic(9) @ shared, pause)
    torch.testing.assert_close(after.mean(0), x.mean(0), rtol=1e-12, atol=1e-12)


def test_momentum_and_tracking_skip_a_round_without_local_steps():
    pause = Phase(3, 0.0, LR)
    for name in ("k_gt", "quasi_global", "a2cid2"):
        rule = RULES[name]
        x, state = pushed(rule, gaussian(N, D, seed=16), gaussian(3, K, N, D, seed=17), lambda _turn, shared: shared * 0.9)
        before = tensors(state)[0]
        after = rule.publish(state, x, pause)[1]
        if name != "a2cid2":
            after = rule.absorb(after, x, rule.shared(after, x), pause)[1]
        assert before.abs().max() > 0.0
        assert torch.equal(tensors(after)[0], before)


def textbook(step, *, rounds=8, lr=LR, steps=1, **rule):
    """Compute a paper's recursion on matrices (n, d), and the same rounds with `rule`."""
    A, b, _ = quadratics(8, 5)
    Ws = [torch.from_numpy(matrix(StaticExponential(), 8, 0)), doubly_stochastic(1, 8), doubly_stochastic(2, 8)]
    x = torch.zeros(8, 5, dtype=torch.float64)
    ours = iterate(rule["of"], cycle(Ws), lambda at: gradients(A, b, at), x, rounds, lr=lr, steps=steps)
    memory = {}
    for turn in range(rounds):
        x = step(x, Ws[turn % 3], lambda at: gradients(A, b, at), memory)
    torch.testing.assert_close(ours, x, rtol=1e-11, atol=1e-12)


def test_awc_takes_gradients_at_the_vector_before_mixing():
    """x <- W·x − lr·g(x)."""
    textbook(lambda x, W, g, _: W @ x - LR * g(x), of=Dsgd("awc"))


def test_d2_equals_the_paper_s_recursion():
    """x_{t+1} = W(2x_t − x_{t−1} − η·g_t + η·g_{t−1}), with a plus before the last term; W(x_0 − η·g_0) in the first round."""

    def step(x, W, g, memory):
        now = g(x)
        phi = x - LR * now if not memory else 2 * x - memory["x"] - LR * now + LR * memory["g"]
        memory.update(x=x, g=now)
        return W @ phi

    textbook(step, of=D2())


def test_exact_diffusion_mixes_with_the_lazy_matrix():
    """ψ = x − η·g; φ = ψ + x − ψ before; x <- (I + W)/2·φ."""

    def step(x, W, g, memory):
        psi = x - LR * g(x)
        phi = psi + x - memory.get("psi", x)
        memory["psi"] = psi
        return (phi + W @ phi) / 2

    textbook(step, of=ExactDiffusion())


@pytest.mark.parametrize("steps", [1, K])
def test_quasi_global_momentum_averages_the_mixed_displacement(steps):
    """z <- z − η(g + β·m), K times; x' = Wz; m <- β·m + (1 − β)(x − x')/(K·η)."""

    def step(x, W, g, memory):
        m, z = memory.get("m", 0.0), x
        for _ in range(steps):
            z = z - LR * (g(z) + 0.9 * m)
        mixed = W @ z
        memory["m"] = 0.9 * m + 0.1 * (x - mixed) / (steps * LR)
        return mixed

    textbook(step, of=QuasiGlobal(0.9), steps=steps)


@pytest.mark.parametrize("eta_s", [1.0, 0.7])
def test_k_gt_equals_the_paper_s_round(eta_s):
    """z <- z − η(g + c), K times; v = (x − z)/(K·η); c += Wv − v; x <- W(x − η_s·K·η·v)."""

    def step(x, W, g, memory):
        c, z = memory.get("c", 0.0), x
        for _ in range(K):
            z = z - LR * (g(z) + c)
        v = (x - z) / (K * LR)
        memory["c"] = c - v + W @ v
        return W @ (x - eta_s * K * LR * v)

    textbook(step, of=KGt(eta_s), steps=K)


@given(seed=seeds)
@quick
def test_k_gts_corrections_sum_to_zero(seed):
    """Σ c = 0 for any gradients, so the mean model follows the mean gradient."""
    pushes = 100.0 * gaussian(20, K, N, D, seed=seed, dtype=torch.float64)
    _, state = pushed(KGt(), gaussian(N, D, seed=seed, dtype=torch.float64), pushes, lambda turn, s: doubly_stochastic(seed + turn) @ s)
    assert state.c.abs().max() > 1.0
    assert state.c.sum(0).abs().max() < 1e-9


@pytest.mark.parametrize(("least", "kept"), [(-0.30, True), (-0.36, False)])
def test_d2_is_unstable_from_a_least_eigenvalue_of_minus_a_third(least, kept):
    """Mode λ obeys z² − 2λz + λ = 0, which leaves the unit circle at λ = −1/3. The lazy matrix has no such mode."""
    W = torch.tensor([[1 + least, 1 - least], [1 - least, 1 + least]], dtype=torch.float64) / 2
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    for lazy in (True, False):
        after = iterate((ExactDiffusion if lazy else D2)(), lambda _: W, torch.zeros_like, x, 400, lr=1.0)
        assert (after is not None and bool(after.abs().max() < 1e-3)) == (kept or lazy)


def test_matrices_that_exact_diffusion_and_d2_cannot_use_are_refused_with_a_reason():
    check_static(matrix(Ring(), 16, 0), lazy=False)
    pair = np.array([[0.3, 0.7], [0.7, 0.3]])
    check_static(pair, lazy=True)
    with pytest.raises(ValueError, match=r"lambda_min > -1/3 .*1803\.07068.* -0\.400"):
        check_static(pair, lazy=False)
    for lazy in (True, False):
        with pytest.raises(ValueError, match="directed"):
            check_static(matrix(StaticExponential(), 16, 0), lazy=lazy)


@given(seed=seeds, dt=st.floats(0.0, 20.0), chi1=st.floats(1.0, 300.0))
@quick
def test_the_two_copies_follow_their_differential_equation(seed, dt, chi1):
    """(x, x̃) <- exp(dt·[[−η, η], [η, −η]])·(x, x̃), whose sum never changes."""
    rule = A2Cid2(chi1, 0.9)
    x, ahead = gaussian(D, seed=seed, dtype=torch.float64), gaussian(D, seed=seed + 1, dtype=torch.float64)
    _, state = rule.absorb(rule.start(x), x, x + ahead, PHASE)
    copy = x + state.lead  # as if x had not moved
    after, moved = rule.publish(state, x, Phase(0, dt, LR))
    pull = torch.tensor([[-rule.eta, rule.eta], [rule.eta, -rule.eta]], dtype=torch.float64)
    want = torch.linalg.matrix_exp(dt * pull) @ torch.stack((x, copy))
    torch.testing.assert_close(torch.stack((after, after + moved.lead)), want, rtol=1e-7, atol=1e-7)  # of `want`
    torch.testing.assert_close(2 * after + moved.lead, x + copy, rtol=1e-9, atol=1e-9)


def test_an_exchange_moves_the_copy_further_by_the_root_of_chi1_over_chi2():
    """x += θv and x̃ += √(χ1/χ2)·θv: with θ = 1/2 the paper's α and α̃."""
    rule = A2Cid2(chi1=8.0, chi2=0.5)
    x, change = gaussian(D, seed=20, dtype=torch.float64), gaussian(D, seed=21, dtype=torch.float64)
    after, state = rule.absorb(rule.start(x), x, x + change, PHASE)
    torch.testing.assert_close(after, x + change)
    torch.testing.assert_close(after + state.lead, x + 4.0 * change)


def test_the_two_copies_do_not_depend_on_the_number_of_publications():
    """In clock pace `publish` follows every local step, in steps pace K of them; the result is equal."""
    rule = RULES["a2cid2"]
    x = gaussian(N, D, seed=22, dtype=torch.float64)
    _, begun = rule.absorb(rule.start(x), x, x.roll(1, 0), PHASE)
    pushes = gaussian(K, N, D, seed=23, dtype=torch.float64)
    often, state = x, begun
    for gradient in pushes:
        often, state = rule.publish(state, often - LR * gradient, Phase(0, 1, LR))
    once, at_once = rule.publish(begun, x - LR * pushes.sum(0), Phase(0, K, LR))
    torch.testing.assert_close(often, once, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.lead, at_once.lead, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [8, 16, 33])
def test_chi_of_a_ring_has_a_closed_form(n):
    """One exchange per node and unit of time: χ1 = 1/(1 − cos(2π/n)), χ2 = (n − 1)/n, since an edge has resistance 2(n − 1)/n."""
    chi1, chi2 = chi(1.5 * matrix(Ring(), n, 0))
    assert chi1 == pytest.approx(1.0 / (1.0 - math.cos(2 * math.pi / n)))
    assert chi2 == pytest.approx((n - 1) / n)


def test_a2cid2_gains_nothing_on_random_matchings():
    chi1, chi2 = chi(np.full((9, 9), 0.25))
    assert chi2 <= chi1 == pytest.approx(chi2)
    assert A2Cid2(chi1, chi2).ahead == pytest.approx(1.0)


def test_pairs_that_never_connect_have_no_chi():
    halves = np.kron(np.eye(2), np.ones((3, 3)))
    with pytest.raises(ValueError, match="do not connect"):
        chi(halves)


def test_on_a_slow_overlay_a_second_copy_mixes_several_times_faster():
    """All links of a ring in each round: 3.8 and 5.6 times the decay in 300 rounds, measured."""
    for n, factor in ((16, 3.0), (32, 4.5)):
        W = torch.from_numpy(matrix(Ring(), n, 0))
        x = gaussian(n, 8, seed=24, dtype=torch.float64)
        x = x - x.mean(0)
        decay = []
        for rule in (Dsgd(), A2Cid2(*chi(2.0 * W.numpy()))):
            after = iterate(rule, lambda _, W=W: W, torch.zeros_like, x, 300, lr=1.0)
            decay.append(math.log(float(x.norm() / (after - after.mean(0)).norm())))
        assert decay[1] > factor * decay[0]


def test_a_second_copy_survives_one_peer_overlays():
    for overlay in (Hypercube(), RandomMatching(3)):
        W = [torch.from_numpy(matrix(overlay, 16, turn)) for turn in range(64)]
        rule = A2Cid2(*chi(2.0 * sum(W).numpy() / len(W)))
        x = gaussian(16, 8, seed=25, dtype=torch.float64)
        for turn, after in enumerate(walk(rule, cycle(W), torch.zeros_like, x - x.mean(0), lr=1.0)):
            if turn == 150:
                assert after.norm() < 1e-9
                break


@pytest.mark.parametrize(
    ("name", "bad", "says"),
    [
        ("dsgd", {"order": "cta"}, "order must be one of atc, awc, got 'cta'"),
        ("k_gt", {"eta_s": 0.0}, "eta_s must be finite and > 0 and <= 1000000, got 0"),
        ("k_gt", {"eta_s": math.inf}, "eta_s must be finite and > 0 and <= 1000000, got inf"),
        ("quasi_global", {"beta": 1.0}, "beta must be finite and >= 0 and < 1, got 1"),
        ("exact_diffusion", {"lazy": False}, "exact_diffusion has no such key"),
        ("d2", {"lazy": True}, "d2 has no such key"),
        ("a2cid2", {"chi1": 0.0, "chi2": 0.5}, "chi1 must be finite and > 0"),
        ("a2cid2", {"chi1": 1.0, "chi2": 2.0}, r"chi2 must be in \(0, chi1 = 1.0\], got 2"),
    ],
)
def test_bad_parameters_are_refused_with_name_value_and_bound(name, bad, says):
    with pytest.raises(ConfigError, match=says):
        MIXERS.build("mix", name, bad)
