"""The cost of fewer bytes per parameter: a small byte-level GPT on two nodes, with flows and moments in less than float32."""

from statistics import fmean

import pytest
from msgspec import structs

from starling.node.config.schema import NumericsSection
from starling.node.engine.worker import Worker
from starling.node.simulate.api import simulate
from tests.harness.tasks import REAL_DATA, needs_real_data
from tests.harness.texts import keys

SEEDS = (0, 1, 2)
STEPS, APART = (1200, 20)  # at 500 steps some seeds are still on the plateau of byte frequencies, and leave it at random times


def losses(monkeypatch, flows, moments):
    """Return each seed's loss in nats per byte of a GPT with two layers of width 64, equal shares of one text, whole vectors and AdamW."""
    plain = Worker._open

    def lowered(self, request):
        return plain(self, structs.replace(request, numerics=NumericsSection(moments=moments)))

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "_open", lowered)
        runs = simulate(
            task="text",
            engine="virtual",
            nodes=2,
            rounds=STEPS // APART,
            seeds=SEEDS,
            set={
                "task.path": str(REAL_DATA / "text" / "tinyshakespeare.txt"),
                **keys(
                    "task.context=32 task.width=64 task.layers=2 task.heads=4 task.batch_size=16 partition.kind=iid",
                    "optimizer.kind=adamw optimizer.lr=6e-3 optimizer.warmup=0.067 optimizer.floor=0.1 optimizer.clip_norm=1.0",
                    "compress.select=full compress.response=identity",
                ),
                "mix.flows": flows,
                "pace.local_steps": APART,
                "pace.evaluate_every": STEPS // APART,
            },
        )
    return [run.outcome.rows[-1].loss for run in runs.finished]


@needs_real_data
@pytest.mark.acceptance
@pytest.mark.timeout(1200)
def test_flows_and_moments_in_fewer_bits_cost_less_than_a_hundredth_of_the_loss(monkeypatch):
    exact = losses(monkeypatch, "float32", "float32")
    assert len(exact) == len(SEEDS)
    for moments in ("bfloat16", "int8"):
        fewer = losses(monkeypatch, "bfloat16", moments)
        assert fewer != exact
        assert fmean(fewer) <= 1.01 * fmean(exact)
