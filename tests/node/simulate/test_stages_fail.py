"""Crews whose stages fail: each stage is a swarm of its own, and a lost stage's flows are deleted at both ends."""

from statistics import mean

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import SELECTORS
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.catalogue import overlay
from starling.node.simulate.matrix.faults import Change, ExchangeFaults
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from tests.harness.quadratics import gradients, quadratics, relative_error
from tests.harness.two_engines import exchange_codec

CREWS, STAGES, D, STEPS, LR = 12, 4, 80, 5, 0.1


def run(seed, *, kappa=0.1, fails=0.02, whole=False, rounds=1000):
    """Return (mean error while stages fail, error at the end, largest |Σ c|), with 30 % of exchanges lost.

    With probability `fails` per round a crew loses a stage, in the first half, whose last 400 rounds count; with `whole` the whole crew
    restarts from another's model, otherwise the stage alone.
    """
    A, b, star = quadratics(CREWS, D, seed)
    peers, chance = [f"p{row:02}" for row in range(CREWS)], np.random.default_rng(seed)
    width, x = D // STAGES, torch.zeros(CREWS, D, dtype=torch.float64)
    swarms = [
        Swarm(
            peers,
            x[:, at : at + width].clone(),
            Pet(kappa=kappa),
            exchange_codec("identity", "identity", clip_norm=0.0),
            SELECTORS.build("compress", "full", {}),
            seed,
            torch.ones(CREWS, dtype=torch.bool),
        )
        for at in range(0, D, width)
    ]
    schedule, alive = Schedule(overlay("random_matching", 1, seed), peers, b"salt"), np.ones(CREWS, bool)
    failing = []
    for turn in range(rounds):
        x = torch.cat([each.x for each in swarms], 1)
        c = torch.cat([each.state.c for each in swarms], 1)  # zeros without corrections
        for _ in range(STEPS):
            x = x - LR * (gradients(A, b, x) - c)
        exchanges = schedule.at(turn, alive)
        for number, swarm in enumerate(swarms):
            swarm.x[:] = x[:, number * width : (number + 1) * width]
            lost = ExchangeFaults(chance.random(len(exchanges)) < 0.3, np.zeros(len(exchanges), bool))
            swarm.round(Phase(turn, float(STEPS), LR, turn=turn), None, STEPS, exchanges, lost)
        for crew, stage in np.argwhere(chance.random((CREWS, STAGES)) < fails / STAGES) if turn < rounds // 2 else ():
            from_crew = int((crew + 1 + chance.integers(CREWS - 1)) % CREWS)
            for swarm in swarms if whole else (swarms[stage],):
                swarm.change(Change(crashed=(int(crew),), joined=((int(crew), from_crew),)))
        if rounds // 2 - 400 <= turn < rounds // 2:
            failing.append(relative_error(torch.cat([each.x for each in swarms], 1), star))
    sums = max(float(each.state.c.sum(0).abs().max()) for each in swarms)
    return mean(failing), relative_error(torch.cat([each.x for each in swarms], 1), star), sums


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("whole", "failing"), [(False, 4.7e-3), (True, 2.1e-2)])
def test_stages_that_fail_cost_little_while_they_do_and_nothing_afterwards(whole, failing):
    """The reference, at one moment: 4.7e-3 where the stage alone is replaced, 2.1e-2 where its crew restarts.

    3e-31 at the end of both.
    """
    found = np.array([run(seed, whole=whole) for seed in range(3)])
    assert failing / 2 <= found[:, 0].mean() <= 2 * failing, found
    assert found[:, 1].max() < 1e-29, found
    assert found[:, 2].max() < 1e-13, found


@pytest.mark.acceptance
@pytest.mark.timeout(300)
def test_without_corrections_stages_that_never_fail_stay_a_tenth_away():
    """The reference: 9.0e-2."""
    ends = [run(seed, kappa=0.0, fails=0.0, rounds=400)[1] for seed in range(3)]
    assert np.mean(ends) == pytest.approx(0.09, rel=0.5), ends
