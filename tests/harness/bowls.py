"""Swarms of exact or noisy quadratics with different optima and curvatures, in rounds whose exchanges succeed or fail as a whole."""

from dataclasses import replace

import numpy as np
import torch

from starling.gossip.api import Mixer, Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.overlay.api import Overlay
from starling.node.simulate.matrix.faults import Change, no_faults
from starling.node.simulate.matrix.schedule import Exchanges, by_rank
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip


def bowls(
    mixer: Mixer,
    *,
    rounds: int,
    lr: float,
    noise: float = 0.0,
    loss: float = 0.0,
    churn: bool = False,
    overlay: Overlay | None = None,
    n: int = 16,
    d: int = 20,
    steps: int = 10,
    seed: int = 0,
) -> tuple[list[float], Swarm]:
    """Return the relative distance to the optimum of live nodes after each round, and the swarm.

    Args:
        mixer: the algorithm.
        rounds: T.
        lr: constant.
        noise: standard deviation of the noise in each coordinate of a gradient.
        loss: share of lost exchanges, which are not repeated.
        churn: a quarter of the nodes crashes after T/4 rounds, and as many join after T/2.
        overlay: the pairs of a round; None: random pairs.
        n, d, steps, seed: nodes, parameters, K, and the seed of all random numbers.
    """
    chance, total = torch.Generator().manual_seed(seed), n + n // 4
    q = torch.linalg.qr(torch.randn(total, d, d, generator=chance, dtype=torch.float64))[0]
    a = q @ torch.diag(torch.logspace(-1, 0, d, dtype=torch.float64)) @ q.mT
    b = torch.randn(total, d, generator=chance, dtype=torch.float64)
    alive, peers = torch.arange(total) < n, [f"{row:02}" for row in range(total)]
    exact = quantizer("identity", torch.float64)
    codec = ExchangeCodec(exact, exact, 0.0, clip)
    swarm = Swarm(peers, torch.zeros(total, d, dtype=torch.float64), mixer, codec, Everything(), 0, alive)

    def step(rows, _round, _number, x, correct):
        gradient = (a[rows] @ (x - b[rows])[..., None])[..., 0]
        return x - lr * correct(gradient + noise * torch.randn(x.shape, generator=chance, dtype=torch.float64))

    errors = []
    for turn in range(rounds):
        if churn and turn == rounds // 4:
            swarm.change(Change(crashed=tuple(range(n // 4))))
        if churn and turn == rounds // 2:
            swarm.change(Change(joined=tuple((row, row - n // 2) for row in range(n, total))))
        met = _pairs(swarm.alive, chance) if overlay is None else _links(swarm.alive, overlay, turn)
        happens = torch.rand(len(met), generator=chance).numpy() >= loss
        phase = Phase(turn, float(steps), lr, members=1 if overlay is None else int(swarm.alive.sum()))
        swarm.round(phase, step, steps, met, replace(no_faults(len(met)), lost=~happens))
        here = swarm.alive
        best = torch.linalg.solve(a[here].sum(0), (a[here] @ b[here][..., None]).sum(0)[:, 0])
        errors.append(float((swarm.x[here] - best).norm(dim=1).mean() / best.norm()))
    return errors, swarm


def _pairs(alive, chance):
    order = alive.nonzero()[:, 0][torch.randperm(int(alive.sum()), generator=chance)].numpy()
    ends = np.stack((order[0 : len(order) // 2 * 2 : 2], order[1::2]))
    return Exchanges(ends, np.full(ends.shape, 0.5))


def _links(alive, overlay, turn):
    rows = alive.nonzero()[:, 0].numpy()
    ranked = by_rank(overlay, len(rows), turn)
    return Exchanges(rows[ranked.ends], ranked.weights)
