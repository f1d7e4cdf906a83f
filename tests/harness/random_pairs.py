"""PET on random pairs by the simulator's exchanges, with a test's own local steps: table values of small exact problems."""

import numpy as np
import torch

from starling.gossip.api import Phase
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.catalogue import overlay
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from tests.harness.quadratics import relative_error
from tests.harness.two_engines import exchange_codec


def errors_on_pairs(step, x, star, rounds, seed, *, lr, steps, kappa, selector, response="identity", compares=False, until=0.0):
    """Return the relative errors after each round of models that begin as x (n, d), up to the first below `until`.

    `step` as `LocalSteps`: (rows, round, step, models (r, d) of rows, correction of gradients) -> models after a local step.
    """
    n = len(x)
    peers = [f"p{row:02}" for row in range(n)]
    swarm = Swarm(
        peers,
        x,
        Pet(kappa=kappa),
        exchange_codec("identity", response, clip_norm=0.0),
        selector,
        seed,
        torch.ones(n, dtype=torch.bool),
        compares=compares,
    )
    schedule = Schedule(overlay("random_matching", 1, seed), peers, b"salt")
    errors = []
    for turn in range(rounds):
        swarm.round(Phase(turn, float(steps), lr, turn=turn), step, steps, schedule.at(turn, np.ones(n, bool)))
        errors.append(relative_error(swarm.x, star))
        if errors[-1] < until:
            break
    return errors
