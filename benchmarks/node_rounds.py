"""Cost of one round of one simulated node, by number of nodes: `python -m benchmarks.node_rounds --nodes 100,1000,4000`.

PET with a rolling mask of a tenth, an fp16 request and a four-bit response, one peer a round on the sticky overlay; bowls along the
axes, so that a gradient costs next to nothing. One line of JSON for each number of nodes.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from torch import Tensor

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Fp16, Int4
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.api import doublings
from starling.gossip.overlay.sticky import Sticky
from starling.gossip.rng import generator
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Correct, Swarm
from starling.robust.clip import clip

_LR = 0.1


def node_round_cost(n: int, d: int, rounds: int, *, local_steps: int = 1, clip_norm: float = 10.0) -> float:
    """Microseconds per node and round, on as many threads as torch has, once every edge of the overlay has its flow.

    Args:
        n: nodes.
        d: parameters.
        rounds: measured, after those in which edges come to be.
        local_steps: K.
        clip_norm: of differences; 0 is off.
    """
    peers, alive = [f"peer {row:06d}" for row in range(n)], np.ones(n, dtype=bool)
    steep, low = torch.logspace(-1, 0, d), torch.randn(n, d, generator=generator(0, "bowls"))
    swarm = Swarm(
        peers,
        torch.zeros(n, d),
        Pet(0.3, 100.0),
        ExchangeCodec(Fp16(), Int4(), clip_norm, clip),
        Mask(0.1),
        0,
        torch.ones(n, dtype=torch.bool),
    )
    schedule = Schedule(Sticky(0), peers, b"salt")

    def step(rows: Tensor, _round: int, _number: int, x: Tensor, correct: Correct) -> Tensor:
        gradient = (x - low[int(rows[0]) : int(rows[-1]) + 1]).mul_(steep)
        return x.sub(correct(gradient), alpha=_LR)

    def play(first: int, count: int) -> float:
        began = time.perf_counter()
        for number in range(first, first + count):
            swarm.round(Phase(number, float(local_steps), _LR), step, local_steps, schedule.at(number, alive))
        return time.perf_counter() - began

    opening = 2 * doublings(n)
    play(0, opening)
    return play(opening, rounds) / rounds / n * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="100,1000,4000", help="numbers of nodes, by comma")
    parser.add_argument("--dim", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for n in (int(nodes) for nodes in arguments.nodes.split(",")):
        cost = node_round_cost(n, arguments.dim, arguments.rounds, local_steps=arguments.local_steps)
        print(json.dumps({"nodes": n, "dim": arguments.dim, "threads": arguments.threads, "us_per_node_round": round(cost, 1)}))


if __name__ == "__main__":
    main()
