"""CO2: outer steps whose average is computed during the next local steps, so nobody waits for it, and the accuracy that this costs."""

import numpy as np
import pytest

from starling.node.config import toml
from starling.node.simulate.engines import simulate
from starling.node.simulate.schema import Scenario
from tests.harness.texts import words

SWARM = words(
    "simulate.nodes=8 mix=outer overlay=alone overlay.average_every=2 partition.alpha=0.3 task.hidden=32 compress.select=full",
    "compress.response=identity compress.request=identity pace.local_steps=8 pace.rounds=220 pace.evaluate_every=220",
    "optimizer.schedule=cosine optimizer.warmup=0.1 optimizer.lr=0.05 optimizer.momentum=0 mix.clip_norm=0",
    "network.bytes_per_s=40000.0 network.latency_s=0.05 network.step_s=0.02",
)


def ends(*keys):
    """Return the mean accuracy of own models and the virtual seconds at the end, of three seeds."""
    rows = [
        simulate(toml.apply_set(Scenario(), (*SWARM, *keys, f"simulate.seed={seed}")), lambda _round, _line: None).rows[-1]
        for seed in (1, 2, 3)
    ]
    return np.mean([(row.mean, row.seconds) for row in rows], axis=0)


@pytest.mark.acceptance
def test_a_delayed_average_costs_one_or_two_points_in_equal_time_and_the_penalty_more():
    """Eight nodes on digits, links of 40 kB/s. The paper gives no constants for its penalty; ours, 1, halves most steps here."""
    as_long = ("overlay.overlap=true", "pace.rounds=154", "pace.evaluate_every=154")
    waiting, late, penalised = (ends(*keys) for keys in ((), as_long, (*as_long, "mix.penalty=1.0")))
    assert late[1] == pytest.approx(waiting[1], rel=0.01)
    assert waiting[0] == pytest.approx(0.957, abs=0.01)
    assert waiting[0] - 0.03 <= late[0] < waiting[0]
    assert penalised[0] < late[0] - 0.03
