"""Who crashes, leaves and joins before a round: one draw for both engines.

Shapes: N rows, of which some are alive.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from starling.gossip.rng import generator
from starling.node.simulate.matrix.faults import Change, Faults, churn
from starling.node.simulate.schema import Scenario

FEWEST = 2
"""Nodes that are always left."""


def faults_of(scenario: Scenario) -> Faults:
    """Losses, crashes and joins of a scenario."""
    faults = scenario.faults
    return Faults(
        loss=faults.loss, tries=faults.tries, crashes=faults.crash, joins=faults.join, churn_from=faults.churn_from,
        churn_until=faults.churn_until or scenario.pace.rounds, fewest=FEWEST,
    )  # fmt: skip


def turnover(scenario: Scenario, faults: Faults, round: int, alive: Tensor, used: Tensor) -> Change:
    """As `starling.node.simulate.matrix.faults.churn`, and who says farewell: nobody who crashes, or whose model a newcomer takes.

    Args:
        scenario: its seed and the rate of leaving.
        faults: the other rates.
        round: >= 0.
        alive: (N,) bool.
        used: (N,) bool, rows that were alive at any time.
    """
    change = churn(faults, scenario.simulate.seed, round, alive, used)
    rate = scenario.faults.leave
    if not rate or not faults.churn_from <= round < faults.churn_until:
        return change
    chance = generator(scenario.simulate.seed, "leave", round)
    wanted = math.floor(rate + float(torch.rand((), dtype=torch.float64, generator=chance)))
    staying = {*change.crashed, *(source for _, source in change.joined)}
    free = [row for row in alive.nonzero().view(-1).tolist() if row not in staying]
    most = int(alive.sum()) - len(change.crashed) - FEWEST
    chosen = torch.randperm(len(free), generator=chance)[: max(0, min(wanted, most))]
    return replace(change, left=tuple(sorted(free[place] for place in chosen.tolist())))
