"""Outer steps on a byte GPT: what DiLoCo's recipe gains, and what becomes of it without a schedule, or with few local steps or averages.

Figures are nats a byte at the end; the reference has one seed where not said otherwise.
"""

import pytest

from starling.node.simulate.api import simulate
from tests.harness.tasks import REAL_DATA, needs_real_data

pytestmark = [needs_real_data, pytest.mark.acceptance, pytest.mark.timeout(2400)]

STEPS = 1500
SWARM = {
    "task.path": str(REAL_DATA / "text" / "tinyshakespeare.txt"), "task.context": 32, "task.width": 64, "task.layers": 2,
    "task.heads": 4, "task.batch_size": 8, "partition.kind": "iid", "partition.shards": 1, "optimizer.kind": "adamw",
    "optimizer.lr": 6e-3, "optimizer.beta_2": 0.99, "optimizer.weight_decay": 0.1, "optimizer.decay": "matrices",
    "optimizer.clip_norm": 1.0, "optimizer.floor": 0.1, "optimizer.warmup": 0.067, "compress.select": "full",
    "compress.request": "identity", "compress.response": "identity", "mix.clip_norm": 0.0, "simulate.sample": 0,
}  # fmt: skip
EXACT = {"overlay.average_every": 1}
PAIRS = {"mix.nesterov": False, "mix.outer_momentum": 0.5, "mix.pull": 0.7}
CONSTANT = {"optimizer.schedule": "constant", "optimizer.warmup": 0.0}


def losses(mix, keys, every=30, overlay="alone", seeds=(0, 1, 2)):
    """Of each seed: four workers after 1,500 local steps, of which so many are between averages. An exact one takes two rounds of pairs."""
    rounds = STEPS // every * (2 if overlay == "alone" else 1)
    runs = simulate(
        task="text", mix=mix, overlay=overlay, nodes=4, rounds=rounds, seeds=seeds,
        set=SWARM | {"pace.local_steps": every, "pace.evaluate_every": rounds} | keys,
    )  # fmt: skip
    return [run.outcome.rows[-1].loss for run in runs.finished]


def mean(found):
    return sum(found) / len(found)
