"""The loop over nodes and the matrix engine, run together."""

from dataclasses import fields

import numpy as np
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip
from tests.harness.reference import Reference, descent

NODES, DIM, LR, STEPS = 7, 150, 0.1, 3


PEERS = ("g", "c", "a", "f", "b", "e", "d")  # rows are not in the order of peer ids


def exchange_codec(request, response, clip_norm=1.0, dtype=torch.float64, low_rank=None, chunk=0):
    return ExchangeCodec(quantizer(request, dtype), quantizer(response, dtype), clip_norm, clip, low_rank, chunk)


class Both:
    """The loop and the matrix, on axis-aligned quadratics: their gradients have equal bits one by one and batched."""

    def __init__(self, mixing, agreed, selector, dtype=torch.float64, *, compares=False, **more):
        chance = torch.Generator().manual_seed(7)
        self.a = torch.rand(NODES, DIM, generator=chance).add(0.1).to(dtype)
        self.b = torch.randn(NODES, DIM, generator=chance).to(dtype)
        x = torch.full((NODES, DIM), 0.25, dtype=dtype)
        self.loop = Reference(PEERS, x.clone(), mixing, agreed, selector, 5, compares=compares)
        alive = torch.ones(NODES, dtype=torch.bool)
        self.matrix = Swarm(PEERS, x.clone(), mixing, agreed, selector, 5, alive, compares=compares, **more)
        self.local = descent(lambda node, x, _round, _step: self.a[node] * (x - self.b[node]), steps=STEPS, lr=LR)

    def step(self, rows, round, number, x, correct):
        return x - LR * correct(self.a[rows] * (x - self.b[rows]))

    def round(self, number, overlay):
        phase = Phase(number, float(STEPS), LR, turn=number)
        meetings = Schedule(overlay, PEERS, b"salt").at(number, np.ones(NODES, bool))
        columns = (*meetings.ends.tolist(), *meetings.weights.tolist())
        self.loop.round(phase, self.local, zip(*columns, strict=True))
        return self.matrix.round(phase, self.step, STEPS, meetings)

    def check(self):
        torch.testing.assert_close(self.loop.x, self.matrix.x, rtol=1e-9, atol=1e-12)
        for node, state in enumerate(self.loop.states):
            for kept in () if state is None else fields(state):
                ours, theirs = getattr(state, kept.name), getattr(self.matrix.state, kept.name)[node]
                if kept.name == "known":  # whether there are flows, which an array has for all its rows or none
                    ours, theirs = ours[1:], theirs[1:]
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
