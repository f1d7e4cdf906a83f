"""Coordinates chosen by how far they are from what was last known of a peer, and by what that peer wished for: as engines remember it."""

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Fp16, Int4
from starling.gossip.compress.select.coordinates import TopK, kept
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.static import Ring
from starling.node.simulate.matrix.faults import Change, no_faults
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip
from tests.harness.faulty_loop import FaultyLoop

PEERS, DIM, RATIO, SEED = ("d", "a", "c", "b", "e"), 90, 0.2, 11
CODEC, SELECTOR, LIMIT = ExchangeCodec(Fp16(), Int4(), 1.0, clip), TopK(RATIO / 2.0), kept(RATIO, DIM)


@pytest.mark.slow
def test_drift_and_wishes_give_the_models_of_a_loop_over_nodes():
    """With lost exchanges and late proofs among them: values count as exchanged where they were committed."""
    mixer, chance = Pet(0.3, 1.0), np.random.default_rng(2)
    start = torch.randn(len(PEERS), DIM, generator=torch.Generator().manual_seed(1))
    loop = FaultyLoop(PEERS, start.clone(), mixer, CODEC, SELECTOR, SEED, range(5), 8, LIMIT)
    swarm = Swarm(
        PEERS,
        start.clone(),
        mixer,
        CODEC,
        SELECTOR,
        SEED,
        torch.ones(5, dtype=torch.bool),
        compares=True,
        wish_limit=LIMIT,
    )
    met = Schedule(Ring(), PEERS, b"").at(0, np.ones(5, bool))
    late = 0
    for number in range(8):
        faults, phase = no_faults(len(met)), Phase(number, 1.0, 0.1)
        faults.lost[:], faults.unproven[:] = chance.random((2, len(met))) < 0.3
        nudge = torch.randn(len(PEERS), DIM, generator=torch.Generator().manual_seed(number))
        loop.loop.x += nudge
        swarm.x += nudge
        loop.sizes.clear()
        loop.round(phase, None, met, faults)
        done = swarm.round(phase, None, 0, met, faults)
        torch.testing.assert_close(loop.loop.x, swarm.x, rtol=1e-5, atol=1e-6)
        late += len(loop.pending)
        assert list(map(tuple, done.sizes.T.tolist())) == loop.sizes
    assert late
    swarm.change(Change(crashed=(0,)))
    assert all(0 not in end for end in swarm.exchanges.known)
    assert all(0 not in pair for pair in (*swarm.exchanges._wishes, *swarm.exchanges.pending))
