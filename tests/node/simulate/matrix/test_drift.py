"""Coordinates chosen by how far they drifted since a peer was met, and by what that peer wished for: as engines remember it."""

import numpy as np
import pytest
import torch

from starling.gossip.api import Effect, Phase
from starling.gossip.compress.quantize import Fp16, Int4
from starling.gossip.compress.select.coordinates import DriftTopK, kept, with_wish
from starling.gossip.mix import edge_ledger
from starling.gossip.mix.exchange_codec import Terms, edge
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.static import Ring
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.simulate.matrix.faults import Change, kind
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip

PEERS, DIM, RATIO, SEED = ("d", "a", "c", "b", "e"), 90, 0.2, 11
TERMS, SELECTOR, LIMIT = Terms(Fp16(), Int4(), 1.0, clip), DriftTopK(RATIO / 2.0), kept(RATIO, DIM)


class Loop:
    """One node after the other, each with its own memory of each peer."""

    def __init__(self, x, mixer):
        self.x, self.mixer = x, mixer
        self.ledgers = [edge_ledger.opened(row) for row in x]
        self.met, self.wishes, self.turns, self.late, self.bytes = {}, {}, {}, {}, []

    def round(self, phase, meetings, fate):
        gathered = [[] for _ in PEERS]
        for place in range(len(meetings)):
            i, j = sorted((int(meetings.one[place]), int(meetings.other[place])), key=lambda row: PEERS[row])
            seq = self.turns[i, j] = self.turns.get((i, j), 0) + 1
            self.meet(i, j, seq, phase, gathered, lost=bool(fate.lost[place]), unproven=bool(fate.unproven[place]))
        for row, effects in enumerate(gathered):
            ordered = sorted(effects, key=lambda effect: effect.peer)
            self.x[row], self.ledgers[row] = edge_ledger.average(
                self.mixer.edge, self.ledgers[row], self.x[row], ordered
            )

    def meet(self, i, j, seq, phase, gathered, *, lost, unproven):
        if not lost and (i, j) in self.late:
            self.commit(j, i, *self.late.pop((i, j)), gathered)
        name = edge(PEERS[i], PEERS[j])
        support = SELECTOR.select(self.x[i], self.met.get((i, j)), derive(SEED, "mask", name, 0), seq)
        wish = self.wishes.pop((i, j), None)
        if wish is not None:
            support = with_wish(support, wish, LIMIT)
        request = TERMS.ask(self.x[i], support, generator(SEED, "quantize", name, 0, seq))
        if lost:
            self.bytes.append((len(request), 0))
            return
        heard, theirs = TERMS.heard(request, DIM, self.x.dtype)
        mine = heard.take(self.x[j])
        wish = SELECTOR.select(self.x[j], self.met.get((j, i)), 0, seq)
        response, _ = TERMS.answer(mine, theirs, heard, DIM, generator(SEED, "quantize", name, 0, seq), wish)
        v, self.wishes[i, j] = TERMS.read(response, support, DIM, self.x.dtype, LIMIT)
        gain = self.mixer.edge.gain(1 / 3, support.ratio(DIM), phase)
        self.commit(i, j, Effect(PEERS[j], support, v, 1 / 3, gain), support.take(self.x[i]), gathered)
        back = (Effect(PEERS[i], support, -v, 1 / 3, gain), mine)
        if unproven:
            self.late[i, j] = back
        else:
            self.commit(j, i, *back, gathered)
        self.bytes.append((len(request), len(response)))

    def commit(self, me, peer, effect, mine, gathered):
        gathered[me].append(effect)
        met = self.met.setdefault((me, peer), torch.zeros(DIM))
        met[effect.support.index(DIM)] = mine + effect.theta * effect.value


@pytest.mark.slow
def test_drift_and_wishes_give_the_bits_of_a_loop_over_nodes():
    """With lost exchanges and late proofs among them: what was met counts where it was committed."""
    mixer, chance = Pet(0.3, 1.0), np.random.default_rng(2)
    start = torch.randn(len(PEERS), DIM, generator=torch.Generator().manual_seed(1))
    loop = Loop(start.clone(), mixer)
    swarm = Swarm(PEERS, start.clone(), mixer, TERMS, SELECTOR, SEED, torch.ones(5, dtype=torch.bool), wish_limit=LIMIT)
    met = Schedule(Ring(), PEERS, b"").at(0, np.ones(5, bool))
    late = 0
    for number in range(8):
        fate, phase = kind(len(met)), Phase(number, 1.0, 0.1)
        fate.lost[:], fate.unproven[:] = torch.from_numpy(chance.random((2, len(met))) < 0.3)
        nudge = torch.randn(len(PEERS), DIM, generator=torch.Generator().manual_seed(number))
        loop.x += nudge
        swarm.x += nudge
        loop.bytes.clear()
        loop.round(phase, met, fate)
        done = swarm.round(phase, None, 0, met, fate)
        torch.testing.assert_close(loop.x, swarm.x, rtol=1e-5, atol=1e-6)
        late += len(loop.late)
        assert list(zip(done.request_bytes, done.response_bytes, strict=True)) == loop.bytes
    assert late
    swarm.change(Change(crashed=(0,)))
    assert all(0 not in end for end in swarm._exchanges.met._slots)
    assert all(0 not in pair for pair in (*swarm._exchanges._wishes, *swarm._exchanges.late))
