"""DiLoCo's recipe on a byte GPT: what its outer step gains with it, and costs without."""

import pytest

from starling.node.simulate.api import simulate
from tests.harness.tasks import REAL_DATA, needs_real_data

H, STEPS = 30, 1500
SWARM = {
    "task.path": str(REAL_DATA / "text" / "tinyshakespeare.txt"), "task.context": 32, "task.width": 64, "task.layers": 2,
    "task.heads": 4, "task.batch_size": 8, "partition.kind": "iid", "partition.shards": 1, "optimizer.kind": "adamw",
    "optimizer.lr": 6e-3, "optimizer.beta_2": 0.99, "optimizer.weight_decay": 0.1, "optimizer.clip_norm": 1.0,
    "optimizer.floor": 0.1, "compress.select": "full", "compress.request": "identity", "compress.response": "identity",
    "mix.clip_norm": 0.0, "overlay.average_every": 1, "pace.local_steps": H, "simulate.sample": 1,
}  # fmt: skip
RECIPE = {"optimizer.warmup": 0.067}
NEITHER = {"optimizer.schedule": "constant", "optimizer.beta_2": 0.999, "optimizer.weight_decay": 0.0}


def loss(mix, seeds, keys):
    """Nats a byte at the end of four workers that average exactly after every 30 of 1,500 steps: two rounds of pairs. Mean of seeds."""
    rounds = 2 * STEPS // H
    runs = simulate(
        task="text", mix=mix, overlay="alone", nodes=4, rounds=rounds, seeds=seeds, set=SWARM | {"pace.evaluate_every": rounds} | keys
    )  # fmt: skip
    return sum(run.outcome.rows[-1].loss for run in runs.finished) / len(seeds)


@needs_real_data
@pytest.mark.acceptance
@pytest.mark.timeout(1200)
def test_with_warm_up_and_a_falling_rate_outer_steps_gain_a_hundredth_of_a_nat():
    """The reference, one seed: 1.976 for 1.998."""
    plain, outer = (loss(mix, (0, 1, 2), RECIPE) for mix in ("dsgd", "outer"))
    assert plain == pytest.approx(1.998, abs=0.05)
    assert outer == pytest.approx(1.976, abs=0.05)
    assert outer <= plain - 0.01


@needs_real_data
@pytest.mark.acceptance
def test_with_neither_schedule_nor_decay_nor_a_short_memory_of_squares_they_lose_a_tenth():
    """One seed: 2.653 for 2.185.

    The reference, one seed, loses with a memory of .99 as well, 2.380 for 2.252. That is missed: 2.206 for 2.222, means of three seeds.
    """
    plain, outer = (loss(mix, (0,), NEITHER) for mix in ("dsgd", "outer"))
    assert outer > plain + 0.1
