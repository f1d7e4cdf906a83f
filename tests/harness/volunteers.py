"""The swarm on which mixing algorithms are compared under faults: slow volunteers, lost messages, crashes and joins.

A node wakes, does K local steps with its exact gradient, then one exchange with a random neighbor; a fifth of the nodes wake five times
less often; a round is as many wakes as there are nodes. Neighbors are those of six sticky edges each. Messages are lost independently.
During churn a member occasionally crashes, and a new one, with its own quadratic, starts from a member's model. The error is that of live
nodes from the optimum of live nodes.

Shapes: N quadratics of d parameters.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from starling.gossip.api import Mixer, Phase, Selector
from starling.gossip.compress.quantize import Float64
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.node.simulate.matrix.batch import disjoint
from starling.node.simulate.matrix.faults import Change, ExchangeFaults, churn, exchange_faults
from starling.node.simulate.matrix.rings import Rings
from starling.node.simulate.matrix.schedule import Exchanges
from starling.node.simulate.matrix.swarm import Swarm
from starling.node.simulate.schema import FaultsSection
from starling.robust.clip import clip
from tests.harness.quadratics import quadratics

LOCAL_STEPS, DEGREE, THETA = 5, 6, 0.5
FEWEST = 4
STRAGGLERS, SLOWER = 0.2, 5.0
EXACT = ExchangeCodec(Float64(), Float64(), 0.0, clip)


def owed(swarm):
    """Return (d,) the pending changes of responders' total flows: they do not know yet that their initiators have committed."""
    flows = torch.zeros_like(swarm.x[0])
    for update in swarm.exchanges.pending.values():
        flows[slice(None) if update.group.coordinates is None else update.group.coordinates[0]] += update.flow[0]
    return flows


@dataclass
class Volunteers:
    """n initial nodes, with as many again in reserve."""

    n: int
    mixer: Mixer
    selector: Selector
    lr: float
    faults: FaultsSection
    seed: int = 3
    dim: int = 200
    codec: ExchangeCodec = EXACT
    more: dict[str, object] = field(default_factory=dict)

    def __post_init__(self):
        rows, self.chance = 2 * self.n, np.random.default_rng(self.seed)
        self.A, self.b, _ = quadratics(rows, self.dim, self.seed + 7)
        self.peers = [f"peer {number:03d}" for number in range(rows)]
        self.rate = np.where(self.chance.random(rows) < STRAGGLERS, 1.0 / SLOWER, 1.0)
        alive, x = torch.arange(rows) < self.n, torch.zeros(rows, self.dim, dtype=torch.float64)
        self.swarm = Swarm(self.peers, x, self.mixer, self.codec, self.selector, self.seed, alive, **self.more)
        self.rings = Rings(self.peers, min(DEGREE, self.n - 1), b"volunteers")
        self.rings.change((), range(self.n))

    def run(self, rounds):
        for number in range(rounds):
            self.come_and_go(number)
            self.wake(number) if self.mixer.asynchronous else self.match(number)
        return self.error

    @property
    def living(self):
        return np.flatnonzero(self.swarm.alive.numpy())

    @property
    def error(self):
        """Return mean_i ‖x_i − x*‖² / ‖x*‖² with x* of live nodes."""
        A, b = self.A[self.living], self.b[self.living]
        best = torch.linalg.solve(A.sum(0), torch.einsum("nij,nj->i", A, b))
        return float((self.swarm.x[self.living] - best).square().sum(1).mean() / best.square().sum())

    def come_and_go(self, number):
        change = churn(self.faults, self.seed, number, self.swarm.alive, self.swarm.used, FEWEST)
        if change != Change():
            moved = self.rings.change(change.crashed, [row for row, _ in change.joined])
            self.swarm.change(Change(change.crashed, change.joined, (), moved.closed))

    def step(self, rows, round, number, x, correct):
        gradient = torch.einsum("nij,nj->ni", self.A[rows], x - self.b[rows])
        return x - self.lr * correct(gradient)

    def wake(self, number):
        """Process wakes in order; those without a common node are done together."""
        living = self.living
        waking = self.chance.choice(living, len(living), p=self.rate[living] / self.rate[living].sum())
        met = np.array([self.chance.choice(sorted(self.rings.edges[row])) for row in waking])
        faults, phase = (exchange_faults(self.faults, self.seed, number, len(waking)), Phase(number, float(LOCAL_STEPS), self.lr))
        for places in disjoint(np.stack((waking, met))):
            steps = np.zeros(len(self.peers), np.int64)
            steps[waking[places]] = LOCAL_STEPS
            visits = Exchanges(np.stack((waking[places], met[places])), np.full((2, len(places)), THETA))
            part = ExchangeFaults(faults.lost[places], faults.unproven[places])
            self.swarm.slot(phase, self.step, steps, visits, part)

    def match(self, number):
        """Let all nodes step, then exchange in a random matching along sticky edges, for algorithms that need rounds."""
        free, pairs = set(self.living.tolist()), []
        for row in self.chance.permutation(self.living).tolist():
            partners = sorted(self.rings.edges[row] & free) if row in free else []
            if partners:
                other = int(self.chance.choice(partners))
                free -= {row, other}
                pairs.append((row, other))
        exchanges = Exchanges(np.array(pairs, np.int64).reshape(-1, 2).T, np.full((2, len(pairs)), THETA))
        faults = exchange_faults(self.faults, self.seed, number, len(pairs))
        phase = Phase(number, float(LOCAL_STEPS), self.lr)
        self.swarm.round(phase, self.step, LOCAL_STEPS, exchanges, faults)
