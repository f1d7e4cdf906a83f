"""The long tables of algorithms whose ends swap messages: their limits and their ranges of stability.

The problems are those of tests/harness/quadratics.py. Figures in tables are squared errors relative to ‖x*‖².
"""

import numpy as np
import pytest
import torch

from benchmarks.research.scallion import controlled
from starling.gossip.api import Phase
from starling.gossip.mix.all_gather import Psgd
from starling.gossip.mix.base import origin
from starling.gossip.mix.dsgd import Choco
from starling.gossip.mix.gradient_tracking import Beer, RFast, Tracker
from starling.gossip.mix.push_sum import PushSum
from starling.gossip.overlay.measure import matrix
from starling.gossip.overlay.one_peer import RandomMatching
from starling.gossip.overlay.static import Ring, StaticExponential
from tests.harness.dense_weights import metropolis_hastings
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.harness.swap_walk import Ends, Mailboxes, halves, top

pytestmark = pytest.mark.acceptance

DIVERGED = 1e8


def ring(n):
    return torch.from_numpy(matrix(Ring(), n, 0))


def exponential(n):
    """Return the static exponential graph made undirected, with Metropolis–Hastings weights."""
    edges = matrix(StaticExponential(), n, 0) > 0
    return torch.from_numpy(metropolis_hastings(edges | edges.T))


def errors(mixer, W, problem, lr, compress, marks):
    """Return the error after each of the rounds `marks`; inf once it has diverged."""
    A, b, best = problem
    swarm = Ends(mixer, torch.zeros(b.shape, dtype=torch.float64), W > 0)
    seen = []
    for turn in range(1, marks[-1] + 1):
        swarm.step(lambda x: gradients(A, b, x), lr)
        swarm.swap(W, compress=compress)
        if turn in marks:
            seen.append(relative_error(swarm.x, best))
        if turn % 50 == 0 and not bool((swarm.x.abs() < DIVERGED).all()):
            return seen + [np.inf] * (len(marks) - len(seen))
    return seen


@pytest.fixture(scope="module")
def wide():
    return quadratics(16, 400)


@pytest.mark.parametrize(
    ("graph", "gamma", "expected"),
    [
        (exponential, 0.02, [3.3e-2, 3.3e-2, 3.3e-2, 3.3e-2]),
        (exponential, 0.05, [4.0e-2, 1.3, 80, 5.8e3]),
        (exponential, 0.2, [np.inf] * 4),
        (ring, 0.02, [0.14, 0.14, 0.14, 0.14]),
        (ring, 0.05, [0.068, 0.068, 0.068, 0.068]),
    ],
)
def test_choco_reaches_the_floor_of_dsgd_in_a_narrow_window(wide, graph, gamma, expected):
    """γ is about twice the share sent: a little more diverges, so slowly that short runs would miss it."""
    marks = [2000, 4000, 6000, 8000]
    seen = errors(Choco(gamma), graph(16), wide, 0.01, top(4), marks)
    # the error grows a thousandfold and amplifies differences in rounding between processors
    assert seen == pytest.approx(expected, rel=0.6 if gamma > 0.02 else 0.05)


@pytest.mark.parametrize(
    ("graph", "gamma", "lr", "expected"),
    [
        (exponential, 0.01, 0.002, [4.8e-2, 2.8e-3, 1.9e-4, 1.4e-5]),
        (exponential, 0.02, 0.005, [7e-4, 1e-6, 2e-9, 5e-12]),
        (exponential, 0.02, 0.01, [9e-7, 4e-12, 2e-17, 1e-22]),
        (ring, 0.05, 0.02, [9e-3, 1e-3, 2e-4, 3e-5]),
    ],
)
def test_beer_reaches_the_optimum_linearly_in_its_window(wide, graph, gamma, lr, expected):
    """Tracking removes the floor; taking gradients after averaging instead of before does not change the window."""
    seen = errors(Beer(gamma), graph(16), wide, lr, halves(4), [2000, 4000, 6000, 8000])
    assert np.log10(seen) == pytest.approx(np.log10(expected), abs=0.7)


def test_beer_diverges_beyond_it(wide):
    seen = errors(Beer(0.05), exponential(16), wide, 0.02, halves(4), [2000, 4000, 6000, 8000])
    assert not seen[-1] < 10.0


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("overlay", [Ring(), RandomMatching(0)], ids=lambda overlay: type(overlay).__name__)
@pytest.mark.parametrize(("algorithm", "highest"), [(Choco(0.05), 0.25), (Beer(0.05), 0.1)], ids=["choco", "beer"])
def test_copies_per_edge_tolerate_lost_swaps_and_changing_overlays(algorithm, highest, overlay, loss):
    """Top-1 % of 200, each swap arriving at both ends or at neither: slower than without loss, but stable."""
    n, dim, lr = 16, 200, 0.02
    A, b, best = quadratics(n, dim)
    chance = torch.Generator().manual_seed(5)
    links = torch.from_numpy(matrix(overlay, n, 0) > 0) if overlay.period(n) else torch.ones(n, n, dtype=torch.bool)
    swarm = Ends(algorithm, torch.zeros(n, dim, dtype=torch.float64), links)
    compress, seen = (top if origin(algorithm, torch.zeros(1)).numel() == 1 else halves)(2), []
    for turn in range(3000):
        swarm.step(lambda x: gradients(A, b, x), lr)
        lost = torch.rand(len(swarm.src), generator=chance) < loss
        swarm.swap(torch.from_numpy(matrix(overlay, n, turn)), lost=lost, atomic=True, compress=compress)
        if turn % 1000 == 999:
            seen.append(relative_error(swarm.x, best))
    assert seen[-1] < highest
    assert seen[-1] < 1.1 * seen[0]


def test_sgp_has_the_floor_of_dsgd_on_a_digraph_and_it_shrinks_with_the_square_of_the_rate():
    """8.6e-4 at .02 and 5.9e-5 at .005, where weights by row stop at 8e-2 whatever the rate; R-FAST at .02 is at 2e-25 by then."""
    n, dim = 16, 50
    chance = np.random.default_rng(0)
    chance.normal(size=33)
    eye = np.eye(n, dtype=bool)
    digraph = torch.from_numpy((chance.random((n, n)) < 0.2) | eye | np.roll(eye, 1, axis=0))
    rows = digraph / digraph.double().sum(1, keepdim=True)
    columns = digraph / digraph.double().sum(0, keepdim=True)
    A, b, best = quadratics(n, dim)
    for algorithm, lr, take, give, expected in (
        (PushSum(), 0.02, columns, None, 8.6e-4),
        (PushSum(), 0.005, columns, None, 5.9e-5),
        (RFast(), 0.02, rows, columns.T, 2.4e-25),
    ):
        swarm = Ends(algorithm, torch.zeros(n, dim, dtype=torch.float64), digraph | digraph.T)
        for _ in range(6000):
            swarm.step(lambda x: gradients(A, b, x), lr)
            swarm.swap(take, give=give)
        assert relative_error(swarm.x, best) == pytest.approx(expected, rel=0.3)


class Asynchronous:
    """Nodes that wake at random, a fifth of them five times less often, with 30 % of messages lost; six neighbors each.

    A round is n wakes. `gamma` is the published step for what a split leaves of the tracker, 1/(degree + 1) of it here.
    """

    def __init__(self, n, gamma, seed=3, dim=200):
        self.chance = np.random.default_rng(seed)
        self.A, self.b, _ = quadratics(n, dim, seed + 7)
        self.rate = np.where(self.chance.random(n) < 0.2, 0.2, 1.0)
        self.alive, self.lr = list(range(n)), gamma / (min(6, n - 1) + 1)
        near = _sticky(n, min(6, n - 1), self.chance)
        self.swarm = Mailboxes(RFast(), torch.zeros(dim, dtype=torch.float64), near)

    def run(self, rounds):
        for _ in range(rounds):
            rate = self.rate[self.alive] / self.rate[self.alive].sum()
            for i in self.chance.choice(self.alive, size=len(self.alive), p=rate):
                self.swarm.wake(int(i), lambda i, x: self.A[i] @ (x - self.b[i]), self.lr, self._arrives)
        return self

    def _arrives(self):
        return self.chance.random() >= 0.3

    def go(self, i, *, hands_over):
        swarm = self.swarm
        if hands_over:
            for j in swarm.neighbors[i]:
                swarm.tell(i, j, 0.0)
                swarm.tell(j, i, 0.0)
            swarm.state[i] = Tracker(swarm.state[i].y - swarm.state[i].previous, torch.zeros(1))
            swarm.tell(i, swarm.neighbors[i][0], 1.0)
        swarm.remove(i)
        self.alive.remove(i)

    @property
    def error(self):
        A, b = self.A[self.alive], self.b[self.alive]
        best = torch.linalg.solve(A.sum(0), torch.einsum("nij,nj->i", A, b))
        return relative_error(torch.stack([self.swarm.x[i] for i in self.alive]), best)

    @property
    def off(self):
        """Return the invariant's error, relative to the size of the summed terms."""
        return float(self.swarm.off().norm() / torch.einsum("nij,nj->i", self.A[self.alive], self.b[self.alive]).norm())


def _sticky(n, degree, chance):
    near = [set() for _ in range(n)]
    while low := [i for i in range(n) if len(near[i]) < degree]:
        i = low[chance.integers(len(low))]
        free = [j for j in range(n) if j != i and j not in near[i] and len(near[j]) < degree + 2]
        if not free:
            break
        j = free[chance.integers(len(free))]
        near[i].add(j)
        near[j].add(i)
    return [sorted(each) for each in near]


@pytest.mark.parametrize(("gamma", "published"), [(0.1, 2.5e-3), (0.2, 1.3e-5), (0.4, 6.9e-10)])
def test_r_fast_is_exact_with_30_percent_loss_and_stragglers(gamma, published):
    """n = 16, T = 3000: at least as fast as the published order, linearly, and the invariant holds to rounding."""
    swarm = Asynchronous(16, gamma).run(1500)
    half = swarm.error
    assert swarm.run(1500).error < min(published, half**1.5)
    assert swarm.off < 5e-13


@pytest.mark.parametrize(("n", "rounds", "published"), [(8, 2000, 2.7e-6), (16, 2000, 4.9e-7), (33, 1200, 6.8e-5)])
def test_r_fast_for_swarms_of_several_sizes(n, rounds, published):
    assert Asynchronous(n, 0.4).run(rounds).error < published


@pytest.mark.parametrize("seed", [1, 2])
def test_a_crash_biases_r_fast_for_ever_and_a_hand_over_does_not(seed):
    """A tracker's content is owed to others: three of sixteen leave, silently or in order, and only the second swarm recovers."""
    ends = {}
    for hands_over in (False, True):
        swarm = Asynchronous(16, 0.4, seed)
        for gone in (2, 7, 11):
            swarm.run(200).go(gone, hands_over=hands_over)
        middle = swarm.run(700).error
        ends[hands_over] = (middle, swarm.run(700).error, swarm.off)
    crashed, left = ends[False], ends[True]
    assert crashed[1] > 1e-3
    assert crashed[1] > 0.5 * crashed[0]
    assert crashed[2] > 0.05
    assert left[1] < 1e-5 * crashed[1]
    assert left[2] < 3e-13


@pytest.mark.parametrize(
    ("feedback", "lr", "low", "high"),
    [
        ("none", 0.05, 0.29, 0.33),
        ("ef", 0.02, 7e-4, 1.5e-3),
        ("ef", 0.005, 3e-5, 2e-4),
        ("ef21", 0.02, 1e-19, 1e-17),
        ("ef21_sgdm", 0.01, 1e-10, 1e-8),
        ("econtrol", 0.005, 1e-5, 1e-4),
    ],
)
def test_feedback_schemes_with_top_1_of_50_reach_their_floors(feedback, lr, low, high):
    """Without feedback a wrong limit. EF: a floor that shrinks with the rate. EF21 and related: the optimum. 3000 rounds."""
    W = torch.full((16, 16), 1.0 / 16.0, dtype=torch.float64)
    (error,) = errors(Psgd(feedback), W, quadratics(16, 50), lr, top(1), [3000])
    assert low < error < high


def rounds_of_scafcom(problem, n):
    """Return the rounds until the baseline's server is within 1e-4: the largest 2 of 100 of each node, K = 5, β = .2."""
    A, b, best = (each.numpy() for each in problem)
    rounds = controlled("scafcom", lambda i, x: A[i] @ (x - b[i]), np.zeros(100), n, lr=0.1, steps=5, kept=2, seed=0)
    there = (number for number, it in enumerate(rounds, 1) if ((it.model - best) ** 2).sum() < 1e-4 * (best**2).sum())
    return next(there)


@pytest.mark.parametrize(("n", "figure"), [(16, 5255), (8, 2756)])
def test_psgd_with_control_variates_sends_each_member_what_scafcom_sends_a_server(n, figure):
    """Numbers per node to 1e-4, means of three seeds: 5,750 and 2,982 measured; PET sends 2,670 and 2,870.

    `figure`: what a node sends its server in the reference's script, 350 and 394 (six seeds), times n − 1. The reference says 2,400 for 8,
    with the rounds of 16 members.
    """
    counts, theirs = [], []
    for seed in range(3):
        A, b, best = problem = quadratics(n, 100, seed)
        mixer = Psgd("ef21_sgdm", feedback_beta=0.2, control_variate=True)
        swarm = Ends(mixer, torch.zeros(n, 100, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool))
        W, rounds = torch.full((n, n), 1.0 / n, dtype=torch.float64), 0
        while relative_error(swarm.x, best) >= 1e-4:
            for _ in range(5):
                swarm.step(lambda x, A=A, b=b: gradients(A, b, x), 0.1)
            swarm.swap(W, compress=top(2), phase=Phase(rounds, 5, 0.1))
            rounds += 1
            assert rounds < 1000
        counts.append(rounds * 2 * (n - 1))
        theirs.append(rounds_of_scafcom(problem, n) * 2 * (n - 1))
    assert np.mean(counts) == pytest.approx(np.mean(theirs), rel=0.1), (counts, theirs)
    assert np.mean(counts) == pytest.approx(figure, rel=0.15)


def test_without_control_variates_local_steps_have_a_floor():
    """The same 8 members after 600 rounds reach only the floor of client drift."""
    A, b, best = quadratics(8, 100, 0)
    ends = []
    for control in (False, True):
        swarm = Ends(
            Psgd("ef21_sgdm", feedback_beta=0.2, control_variate=control),
            torch.zeros(8, 100, dtype=torch.float64),
            torch.ones(8, 8, dtype=torch.bool),
        )
        for turn in range(600):
            for _ in range(5):
                swarm.step(lambda x: gradients(A, b, x), 0.1)
            swarm.swap(torch.full((8, 8), 0.125, dtype=torch.float64), compress=top(2), phase=Phase(turn, 5, 0.1))
        ends.append(relative_error(swarm.x, best))
    assert ends[0] > 1e-4
    assert ends[1] < 1e-2 * ends[0]
