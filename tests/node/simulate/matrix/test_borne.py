"""One of eight rows lies about its confirmed share: no honest row is moved farther than its own gradients allow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.mix import borne
from starling.gossip.mix.flows import Flows
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.rows import MANY
from starling.gossip.overlay.sticky import Sticky
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from tests.harness.two_engines import exchange_codec

NODES, DIM, STEPS, LR, ROUNDS = 8, 40, 5, 0.05, 60
PEERS = tuple("abcdefgh")


@dataclass(frozen=True, slots=True)
class Claimed(Flows):
    """An algorithm whose first row claims a false confirmed share."""

    claim: float = 1.0

    def borne(self, state: Any) -> torch.Tensor:
        sent = borne.sent(state).clone()
        sent[0] = self.claim
        return sent


def swarm(claim):
    """Return eight nodes with different quadratics, whose gradients vanish far from their minima."""
    pet = Pet(0.3, 1e6)
    if claim is not None:
        object.__setattr__(pet, "edge", Claimed(pet.edge.kappa, pet.edge.bound, claim))
    codec = exchange_codec("identity", "identity", 0.0)
    x = torch.zeros(NODES, DIM, dtype=torch.float64)
    return Swarm(PEERS, x, pet, codec, Everything(), 5, torch.ones(NODES, dtype=torch.bool))


def walked(claim, monkeypatch):
    """Return (ROUNDS,) distances of the honest mean from its optimum; asserts each step's bound."""
    chance = torch.Generator().manual_seed(3)
    slopes = torch.rand(NODES, DIM, generator=chance, dtype=torch.float64) + 0.1
    targets = torch.randn(NODES, DIM, generator=chance, dtype=torch.float64)
    seen = []

    def correct(state, gradient, rows=MANY):
        known = borne.Borne(*MANY.read(state.known))
        direction, after = correct_in_place(state, gradient.clone(), rows)
        added = torch.linalg.vector_norm(gradient - direction, dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(state.c, dim=-1, keepdim=True).clamp_min(1e-12)
        along = 4.0 * known.dot.clamp_min(0.0) / known.norm.clamp_min(1e-300) * length
        little = known.norm <= 1e-4 * known.power
        seen.append(torch.where(little, 0.0, added - along).max())
        return direction, after

    correct_in_place = borne.correct_in_place
    monkeypatch.setattr(borne, "correct_in_place", correct)
    made, errors = swarm(claim), []
    meetings = Schedule(Sticky(3), PEERS, b"salt")
    optimum = (slopes * targets).sum(0) / slopes.sum(0)
    for number in range(ROUNDS):
        made.round(
            Phase(number, float(STEPS), LR, members=NODES),
            lambda rows, _round, _number, x, corrected: x - LR * corrected(slopes[rows] * (x - targets[rows])),
            STEPS,
            meetings.at(number, np.ones(NODES, bool)),
        )
        errors.append(float((made.x - optimum).norm() / optimum.norm()))
    assert max(seen) <= 1e-9, "τ‖c‖ is at most four times ⟨g, c⟩/‖c‖, of the mean of the last steps"
    totals = made.flows.totals
    torch.testing.assert_close(totals.sum(0), torch.zeros(DIM, dtype=torch.float64), rtol=0.0, atol=1e-9)
    return errors


@pytest.mark.parametrize("claim", [0.0, 1.0])
def test_false_confirmed_shares_move_honest_nodes_no_farther_than_their_gradients(claim, monkeypatch):
    """A claim of 0 leaves plain averages on its edges, a claim of 1 the rule without s; the honest learn in both cases."""
    with monkeypatch.context() as patch:
        honest = walked(None, patch)
    lied = walked(claim, monkeypatch)
    assert honest[-1] < 0.02 * honest[0]
    assert lied[-1] < 0.2 * lied[0]
