"""Methods that nodes do not use, compared with those that they use: formulas by hand, and numbers sent until an equal error.

Errors are relative and squared, on the quadratics of tests/harness.
"""

import itertools
from statistics import mean
from typing import NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.research.dadao import dadao, resistances
from benchmarks.research.scallion import controlled
from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import SELECTORS
from starling.gossip.mix.pet import Pet
from tests.harness.quadratics import gradients, quadratics
from tests.harness.random_pairs import errors_on_pairs

N = 16
RING = [(i, (i + 1) % N) for i in range(N)]
EXPONENTIAL = sorted({tuple(sorted((i, (i + 2**k) % N))) for i in range(N) for k in range(4)})


def bowls(d, seed, kappa=10.0):
    A, b, star = (each.numpy() for each in quadratics(N, d, seed, kappa))
    return (lambda i, x: A[i] @ (x - b[i])), (A, b, star)


def shared_bowls(d, seed, kappa):
    """Return quadratics with one common basis, so that the mean is as ill-conditioned as its parts."""
    _, (A, b, _) = bowls(d, seed, kappa)
    return (lambda i, x: A[0] @ (x - b[i])), b.mean(0)


def error(models, star):
    return float(np.square(models - star).sum(-1).mean() / np.square(star).sum())


def reached(points, star, goal, every, most):
    """Return the first of the recorded points whose models are that near; None if none is."""
    for point in itertools.islice(points, 0, most, every):
        if error(point.models, star) < goal:
            return point
    return None


def test_dadao_reaches_the_common_minimum_with_enough_exchanges():
    gradient, (_, _, star) = bowls(6, 0)
    start = np.zeros((N, 6))
    point = reached(dadao(gradient, start, RING, smooth=1.0, convex=0.1, seed=0), star, 1e-3, 200, 60_000)
    assert point is not None
    assert not start.any()  # the argument is not changed
    assert resistances(N, RING, 2.0)[0] == pytest.approx(resistances(N, RING)[0] / 2.0)
    with pytest.raises(ValueError, match="chi1 chi2"):
        dadao(gradient, start, RING, smooth=1.0, convex=0.1, seed=0, rate=1.0)
    with pytest.raises(ValueError, match="convex"):
        dadao(gradient, start, RING, smooth=1.0, convex=2.0, seed=0)


def test_a_gradient_of_dadao_is_its_formula():
    """The first event of a swarm at rest has no flow before it: all six vectors are still 0 except the models."""
    start = np.ones((N, 2))
    seed = next(seed for seed in range(99) if next(dadao(lambda _i, x: x, start, RING, smooth=2.0, convex=0.5, seed=seed)).gradients)
    models = next(dadao(lambda _i, x: 3.0 * x, start, RING, smooth=2.0, convex=0.5, seed=seed)).models
    moved = np.flatnonzero((models != start).any(axis=1))
    assert len(moved) == 1
    nu = 0.25
    assert models[moved[0]] == pytest.approx(1.0 - (3.0 - nu) / 8.0, abs=0.01)  # ỹ has moved slightly with x


@pytest.mark.parametrize("kind", ["scaffold", "scallion", "scafcom"])
def test_server_methods_find_the_minimum_and_send_whole_vectors_back(kind):
    gradient, (_, _, star) = bowls(10, 0)
    rounds = controlled(kind, gradient, np.zeros(10), N, lr=0.1, steps=5, kept=3, seed=0)
    end = next(itertools.islice(rounds, 200, None))
    assert error(end.model, star) < 1e-6
    assert end.down == 201 * 10
    assert end.up == 201 * (10 if kind == "scaffold" else 3)


def test_a_round_of_scafcom_by_hand():
    """One node, two steps, all of three numbers kept but one."""
    rounds = controlled("scafcom", lambda _i, x: x - np.array([3.0, -1.0, 2.0]), np.zeros(3), 1, lr=0.5, steps=2, kept=2, seed=0)
    v = -0.75 * np.array([3.0, -1.0, 2.0])  # mean of the gradients −b and −b/2
    q = 0.2 * v * np.array([1.0, 0.0, 1.0])
    assert next(rounds).model == pytest.approx(-q)
    with pytest.raises(ValueError, match="kept"):
        controlled("scafcom", lambda _i, x: x, np.zeros(3), 1, lr=0.5, steps=2, kept=4, seed=0)


def test_what_scallion_sends_is_unbiased():
    """One node sends one of two numbers, doubled: after one round the server has moved by that, above and below the mean."""
    rounds = controlled("scallion", lambda _i, x: x - np.array([3.0, -1.0]), np.zeros(2), 1, lr=0.5, steps=2, kept=1, seed=0)
    moved = next(rounds).model
    (at,) = np.flatnonzero(moved)
    assert moved[at] == pytest.approx(2.0 * 0.75 * (3.0, -1.0)[at])


def pet_poisson(gradient, d, edges, rate, seed, *, lr):
    """Run PET with kappa .1 and its production gain on the same clocks; yield after each event."""
    chance, x, c, since = np.random.default_rng(seed), np.zeros((N, d)), np.zeros((N, d)), np.zeros(N)
    total, grads, sent = N + rate * len(edges), 0, 0
    edge = Pet(kappa=0.1).edge
    while True:
        if chance.random() < N / total:
            i = int(chance.integers(N))
            x[i] -= lr * (gradient(i, x[i]) - c[i])
            since[i] += 1
            grads += 1
        else:
            i, j = edges[int(chance.integers(len(edges)))]
            v, steps = x[j] - x[i], max(1.0, (since[i] + since[j]) / 2.0)
            x[i], x[j] = x[i] + v / 2.0, x[j] - v / 2.0
            gain = edge.gain(0.5, 1.0, Phase(0, steps, lr))
            c[i], c[j] = c[i] + gain * v, c[j] - gain * v
            since[i] = since[j] = 0
            sent += 2
        yield Event(grads / N, sent / N, x)


class Event(NamedTuple):
    """The state of which `reached` takes the distance."""

    gradients: float
    messages: float
    models: np.ndarray


def both(kappa, edges, lr, *, shared=False):
    """Return (gradients, messages) of a node to 1e-6, of DADAO and of PET, means of three seeds."""
    rate = float(np.sqrt(2.0 * np.prod(resistances(N, edges))))
    start, counts = np.zeros((N, 20)), []
    for seed in range(3):
        if shared:
            gradient, star = shared_bowls(20, seed, kappa)
        else:
            gradient, (_, _, star) = bowls(20, seed, kappa)
        point = reached(dadao(gradient, start, edges, smooth=1.0, convex=1.0 / kappa, seed=seed), star, 1e-6, 200, 2 * 10**6)
        ours = reached(pet_poisson(gradient, 20, edges, rate, seed, lr=lr), star, 1e-6, 200, 2 * 10**6)
        counts.append(((point.gradients, point.messages), (ours.gradients, ours.messages)))
    return np.mean(counts, axis=0)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("kappa", "edges", "lr", "looked", "theirs", "ours"),
    [
        (10.0, RING, 0.5, 30, (239, 1207), (60, 302)),
        (10.0, RING, 0.1, 30, (239, 1207), (209, 1056)),
        (10.0, EXPONENTIAL, 0.5, 30, (238, 429), (60, 109)),
        (300.0, RING, 0.5, 100, (1200, 6016), (199, 1004)),
    ],
    ids=["ring", "ring, lr .1", "exponential", "condition 300"],
)
def test_with_different_curvatures_pet_needs_fewer_gradients_and_messages_than_dadao(kappa, edges, lr, looked, theirs, ours):
    """The reference's single seeds evaluated at intervals, so its figures are rounded up."""
    for found, figure in zip(both(kappa, edges, lr), (theirs, ours), strict=True):
        assert figure[0] - looked <= 1.1 * found[0]
        assert found[0] <= 1.1 * figure[0]
        assert found[1] / found[0] == pytest.approx(figure[1] / figure[0], rel=0.03)


@pytest.mark.acceptance
def test_with_one_ill_conditioned_basis_acceleration_is_faster():
    """Condition 300 on the ring; the reference evaluated every 225 gradients, and reports 1,351 and 3,146: a factor of 2.3."""
    (theirs, _), (ours, _) = both(300.0, RING, 0.5, shared=True)
    assert 1351 - 225 <= 1.1 * theirs <= 1.1 * 1.1 * 1351
    assert ours / theirs == pytest.approx(2.3, rel=0.25)


def floors(kappa, edges, shared):
    """Return mean squared distances to the minimum under gradient noise of .1: DADAO, PET with lr .1 and with .5, 270 to 300 gradients.

    Means of three seeds.
    """
    met, found = float(np.sqrt(2.0 * np.prod(resistances(N, edges)))) * len(edges) / N, []
    events = int(300 * N * (1 + met))
    for seed in range(3):
        chance = np.random.default_rng(seed)
        if shared:
            exact, star = shared_bowls(20, seed, kappa)
        else:
            exact, (_, _, star) = bowls(20, seed, kappa)

        def noisy(i, x, exact=exact, chance=chance):
            return exact(i, x) + 0.1 * chance.normal(size=20)

        runs = [dadao(noisy, np.zeros((N, 20)), edges, smooth=1.0, convex=1.0 / kappa, seed=seed)]
        runs += [pet_poisson(noisy, 20, edges, met * N / len(edges), seed, lr=lr) for lr in (0.1, 0.5)]
        ends = (itertools.islice(each, int(0.9 * events), events, N) for each in runs)
        found.append([mean(error(point.models, star) for point in end) * np.square(star).sum() for end in ends])
    return np.mean(found, axis=0)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("kappa", "edges", "shared", "squared", "figures"),
    [
        (10.0, RING, False, 7.30, (3.4e-3, 3.3e-4, 4.1e-3)),
        (10.0, EXPONENTIAL, False, 7.30, (5.1e-3, 9.7e-4, 1.1e-2)),
        (300.0, RING, False, 10.35, (1.3e-2, 7.7e-4, 3.9e-3)),
        (300.0, RING, True, 7.23, (0.23, None, 0.073)),
    ],
    ids=["ring", "exponential", "condition 300", "one basis for all"],
)
def test_gradient_noise_harms_acceleration_more_than_pet(kappa, edges, shared, squared, figures):
    """The reference's figures are of one seed at one time, relative to `squared`, the square of its minimum."""
    found = floors(kappa, edges, shared) / squared
    for ours, figure in zip(found, figures, strict=True):
        if figure is not None:
            assert figure / 2.5 <= ours <= 2.5 * figure, found
    assert found[0] > (found[2] if shared else 2.0 * found[1]), found


def noise_floor(kind, kept, seed, **more):
    """Return the mean error of rounds 550 to 600 with noise .5 in gradients."""
    gradient, (_, _, star) = bowls(100, seed)
    chance = np.random.default_rng(seed)
    given = {"lr": 0.1, "steps": 5, "kept": kept, "seed": seed} | more
    noisy = controlled(kind, lambda i, x: gradient(i, x) + 0.5 * chance.normal(size=100), np.zeros(100), N, **given)
    return mean(error(it.model, star) for it in itertools.islice(noisy, 550, 600))


@pytest.mark.acceptance
def test_a_slower_server_has_a_quarter_of_scallions_noise():
    """At .3 of the server's rate the reference has 1.3e-2 instead of 5.2e-2, one seed."""
    found = [mean(noise_floor("scallion", 10, seed, server_lr=rate) for seed in range(3)) for rate in (0.3, 1.0)]
    assert 0.5 * 1.3e-2 <= found[0] <= 1.2 * 1.3e-2, found
    assert found[0] == pytest.approx(found[1] / 4, rel=0.3), found


def of_servers(kind, kept, **more):
    """Return a node's sent numbers to 1e-4 and 1e-8, the server's to each node to 1e-4, and the floor under noise; three seeds."""
    found = []
    for seed in range(3):
        gradient, (_, _, star) = bowls(100, seed)
        given = {"lr": 0.1, "steps": 5, "kept": kept, "seed": seed} | more
        rounds = itertools.islice(controlled(kind, gradient, np.zeros(100), N, **given), 2000)
        near, exact = (next(it for it in rounds if error(it.model, star) < goal) for goal in (1e-4, 1e-8))
        found.append((near.up, exact.up, near.down, noise_floor(kind, kept, seed, **more)))
    return np.mean(found, axis=0)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("kind", "kept", "more", "near", "exact", "floor"),
    [
        ("scaffold", 100, {}, 2700, 5600, 2.6e-3),
        ("scallion", 10, {}, 810, 1630, 5.2e-2),
        ("scafcom", 10, {}, 690, 1630, 3.5e-3),
        ("scafcom", 2, {}, 342, 738, 9.6e-3),
        ("scafcom", 2, {"share": 0.5}, 496, 1390, 4.4e-2),
    ],
    ids=["scaffold", "scallion", "scafcom", "scafcom of 2", "half take part"],
)
def test_server_methods_send_less_up_and_more_in_total_than_pet(kind, kept, more, near, exact, floor):
    """d = 100; the reference has one seed, whose minimum lies nearer to the start: its relative floors are half as high again."""
    found = of_servers(kind, kept, **more)
    assert found[0] == pytest.approx(near, rel=0.15)
    assert found[1] == pytest.approx(exact, rel=0.35)
    assert found[0] + found[2] > 2800, "PET's, in both directions"
    assert 0.5 * floor <= found[3] <= 1.2 * floor


def of_pairs(selector, kappa, seed, rounds, *, noise=0.0, until=0.0, compares=False):
    """Return the relative errors after each round of PET on random pairs."""
    A, b, star = quadratics(N, 100, seed)
    chance = torch.Generator().manual_seed(seed)

    def step(rows, _round, _step, x, correct):
        g = gradients(A[rows], b[rows], x)
        return x - 0.1 * correct(g + noise * torch.randn(g.shape, generator=chance, dtype=g.dtype))

    return errors_on_pairs(
        step,
        torch.zeros(N, 100, dtype=torch.float64),
        star,
        rounds,
        seed,
        lr=0.1,
        steps=5,
        kappa=kappa,
        selector=selector,
        compares=compares,
        until=until,
    )


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("select", "given", "sent", "kappa", "near", "exact", "floor"),
    [
        ("full", {}, 100, 0.1, 2800, 5700, 1.3e-2),
        ("fragment", {"parts": 10}, 10, 0.3, 4560, 10250, 4.9e-2),
        ("top_k", {"ratio": 0.1}, 10, 0.3, 3945, 8792, 3.7e-2),
    ],
)
def test_pairs_reach_any_accuracy_with_a_tenth_of_the_vector_in_an_exchange(select, given, sent, kappa, near, exact, floor):
    """Numbers that a node sends, in both directions of its exchanges; means of three seeds. `fragment` is the reference's mask."""
    selector, more = SELECTORS.build("compress", select, given), {"compares": select == "top_k"}
    found = []
    for seed in range(3):
        errors = of_pairs(selector, kappa, seed, 1500, until=1e-8, **more)
        noisy = of_pairs(selector, kappa, seed, 300, noise=0.5, **more)
        counts = [sent * (1 + next(turn for turn, each in enumerate(errors) if each < goal)) for goal in (1e-4, 1e-8)]
        found.append((*counts, mean(noisy[-50:])))
    figures = np.mean(found, axis=0)
    assert figures[:2] == pytest.approx((near, exact), rel=0.15)
    assert 0.5 * floor <= figures[2] <= 1.2 * floor


@pytest.mark.acceptance
def test_pairs_with_the_largest_fiftieth_need_more_numbers():
    """The reference stalls at 8.9e-4, with kappa .5; 6,000 numbers, where a tenth of the vector needs 4,000 to 1e-4."""
    errors = of_pairs(SELECTORS.build("compress", "top_k", {"ratio": 0.02}), 0.5, 0, 3000, compares=True)
    assert 1e-4 < errors[-1] < 1e-1


@pytest.mark.acceptance
def test_plain_averages_of_a_tenth_of_the_vector_stop_at_a_third_of_the_way():
    """The reference, one seed: .65 with noise, which is not the cause."""
    selector = SELECTORS.build("compress", "fragment", {"parts": 10})
    for noise in (0.0, 0.5):
        found = mean(mean(of_pairs(selector, 0.0, seed, 300, noise=noise)[-50:]) for seed in range(3))
        assert 0.5 * 0.65 <= found <= 1.2 * 0.65, (noise, found)
