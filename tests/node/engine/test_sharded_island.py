"""Several processes that compute as one node, each with a part of the model."""

import math
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from msgspec import structs

from starling.node.config.schema import MixSection, NumericsSection, PartitionSection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import (
    done,
    every,
    exchange,
    failing_rank,
    island,
    manifest,
    opened,
    opening,
    refused_as,
    run,
    x_of,
)
from tests.harness.processes import ROOT
from tests.harness.sections import taken

pytestmark = [pytest.mark.slow, pytest.mark.real]
ODD = """
import torch
from torch import nn
from torch.nn.functional import linear
from starling.node.tasks.api import Columns, Rows
from starling.node.tasks.digits import Digits

class Model(nn.Module):
    \"\"\"Hard to cut: a tied table, a number, BatchNorm, lengths that no rank divides, what is not trained or not used.\"\"\"

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 13, bias=False)
        self.layers = nn.Sequential(nn.Linear(13, 12), nn.ReLU(), nn.Linear(12, 13), nn.BatchNorm1d(13))
        self.back = nn.Linear(13, 64, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.9))
        self.last = nn.Linear(64, 10)
        self.fixed = nn.Linear(10, 10)
        self.unused = nn.Linear(3, 2)

    def forward(self, x):
        x = self.back(self.scale * self.layers(self.first(x)))
        return self.fixed(self.last(x) + self.again(x))

class Odd(Digits):
    def model(self, generator):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**30, (), generator=generator)))
            model = Model()
            model.again = nn.Linear(64, 10)
        model.again.weight, model.fixed.weight.requires_grad = model.last.weight, False
        return model

    def tensor_plan(self):
        return {"layers.0": Columns(), "layers.2": Rows()}
"""


@pytest.fixture
def words(tmp_path):
    """A swarm that trains the byte transformer, whose tables are tied. What was seen of corrections is not in a checkpoint: all count."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog, and back again. " * 400)
    params = {"path": str(tmp_path / "text.txt"), "batch_size": 7, "context": 16, "width": 48, "layers": 2, "heads": 6}
    mix = taken(MixSection, kind="pet")
    return structs.replace(manifest("text", params=params, mix=mix), partition=PartitionSection(kind="iid", shards=4))


@pytest.fixture
def odd(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    return manifest("odd:Odd", params={"batch_size": 17}), str(tmp_path)


def near(one, other, most=3e-8):
    """Whether models are equal but for what float32 rounds."""
    apart = float((one - other).abs().max() / one.abs().max())
    assert apart < most, apart
    return True


def walk(alone, ours, begin):
    """One of four nodes; each meets each, with 7 local steps before: the models differ by little of how far they moved."""
    agreed = {name: x_of(engine) for name, engine in alone.items()}
    for turn, pairs in enumerate((("ab", "cd"), ("ac", "bd"), ("ad", "bc")), start=begin):
        for swarm in (alone, ours):
            every(swarm, calls.Train(turn, 7))
            for i, j in pairs:
                exchange(swarm, i, j, seq=0, round=turn)
            every(swarm, calls.Mix(turn))
    for name in alone:
        moved = float((x_of(alone[name]) - agreed[name]).norm())
        assert float((x_of(ours[name]) - x_of(alone[name])).norm()) < 1e-3 * moved
    assert not torch.equal(x_of(ours["a"]), x_of(alone["a"])), "sums in another order round otherwise"


def test_two_that_store_half_a_model_each_walk_the_trajectory_of_one_that_has_it_also_after_one_died(words, tmp_path):
    file = tmp_path / "a.ckpt"
    alone, ours = ({name: opened(words, node=name) for name in names} for names in ("abcd", "bcd"))
    with island(words, parallel="fsdp", checkpoint=str(file)) as together:
        done(alone["a"], calls.Train(0, 1))
        done(together, calls.Train(0, 1))
        assert near(x_of(alone["a"]), x_of(together)), "the reference has 4e-9"
        assert together.trainer.means.island.shards.held == x_of(together).numel() / 2
        done(together, calls.Save())
        done(together, calls.Train(1, 4))
        gone_on = x_of(together)
        (process,) = together.trainer.means.island._processes
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"[Cc]onnection"):
            run(together, calls.Train(2, 5))
    with island(words, parallel="fsdp", checkpoint=str(file)) as together:
        done(together, calls.Train(1, 4))
        assert torch.equal(x_of(together), gone_on)
        done(alone["a"], calls.Train(1, 4))
        ours["a"] = together
        walk(alone, ours, 2)


def test_three_that_compute_two_heads_each_walk_the_trajectory_of_one_that_computes_all(words):
    alone, ours = ({name: opened(words, node=name) for name in names} for names in ("abcd", "bcd"))
    with island(words, ranks=3, parallel="tensor") as together:
        ours["a"] = together
        done(alone["a"], calls.Train(0, 1))
        done(together, calls.Train(0, 1))
        assert near(x_of(alone["a"]), x_of(together))
        w, cut = 48, 2 * (12 * 48 * 48 + 7 * 48)  # weights, and biases of what is cut by columns
        assert together.trainer.means.island.shards.held == x_of(together).numel() - cut * 2 // 3
        assert w * 256 < x_of(together).numel() - cut, "tables are whole"
        walk(alone, ours, 1)


def test_what_is_hard_to_cut_is_computed_as_by_processes_with_the_whole_model(odd):
    """Uneven parts in micro-batches; BatchNorm looks at the samples of a pass, and its statistics are the batch's, about."""
    agreed, code = odd
    numerics = NumericsSection(micro_batch=9)
    with island(agreed, code=code, numerics=numerics) as whole:
        done(whole, calls.Train(0, 1))
        first, buffers = x_of(whole), [each.clone() for each in whole.trainer.model.side.buffers.values()]
        done(whole, calls.Train(1, 20))
        last = x_of(whole)
    with island(agreed, parallel="fsdp", code=code, numerics=numerics) as parts:
        done(parts, calls.Train(0, 1))
        assert near(first, x_of(parts))
        for one, other in zip(buffers, parts.trainer.model.side.buffers.values(), strict=True):
            assert torch.allclose(one.double(), other.double(), rtol=1e-6)
        done(parts, calls.Train(1, 20))
        assert float((x_of(parts) - last).norm()) < 1e-3 * float((last - first).norm())
        shapes = parts.trainer.model.layout.shapes
        held = sum(math.prod(shape[1:]) * -(-shape[0] // 2) if shape else 1 for shape in shapes)
        assert parts.trainer.means.island.shards.held == held


@pytest.mark.acceptance
@pytest.mark.parametrize("parallel", ["fsdp", "tensor"])
def test_a_rank_without_a_sample_in_a_pass_changes_nothing(words, parallel):
    """Seven samples among three, one at a time: two of them, two, and three. Blocks are computed again in the backward pass."""
    alone = opened(words)
    numerics = NumericsSection(micro_batch=1, activation_checkpointing=True)
    with island(words, ranks=3, parallel=parallel, numerics=numerics) as together:
        losses = [done(engine, calls.Train(0, 1)).figures.loss for engine in (alone, together)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        begun = x_of(opened(words))
        assert float((x_of(alone) - x_of(together)).norm()) < 1e-5 * float((x_of(alone) - begun).norm())


@pytest.mark.acceptance
def test_by_columns_and_rows_batchnorm_looks_at_the_whole_batch(odd):
    agreed, code = odd
    alone = Worker(clock=lambda: 0.0)
    assert isinstance(alone.handle(structs.replace(opening(agreed), code=code)), calls.Opened)
    with island(agreed, parallel="tensor", code=code) as together:
        for engine in (alone, together):
            done(engine, calls.Train(0, 1))
        assert near(x_of(alone), x_of(together), 1e-7), "the last place of a number of 0.9"
        for engine in (alone, together):
            done(engine, calls.Train(1, 20))
        one, other = (engine.trainer.model.side.buffers for engine in (alone, together))
        assert all(torch.allclose(one[name].double(), other[name].double(), rtol=1e-4) for name in one)


@pytest.mark.acceptance
@pytest.mark.parametrize("parallel", ["fsdp", "tensor"])
def test_a_loss_scaled_too_much_is_scaled_less_by_all_ranks(words, parallel):
    numerics = NumericsSection(precision="float16", activation_checkpointing=True)
    with island(words, parallel=parallel, numerics=numerics) as together:
        before, scale = x_of(together), together.trainer.means.gradients.scale
        scale.scale = 2.0**24
        assert math.isfinite(done(together, calls.Train(0, 5)).figures.loss)
        assert 1.0 <= scale.scale < 2.0**24
        assert together.trainer.local_step.undone == 0
        assert not torch.equal(before, x_of(together))


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        ("torch.OutOfMemoryError('CUDA out of memory')", "numerics.micro_batch: a batch's part does not fit"),
        pytest.param("ValueError('not cut')", "parallel: fsdp does not work with this model", marks=pytest.mark.acceptance),
    ],
)  # fmt: skip
def test_what_a_part_of_the_model_cannot_compute_is_said_before_the_first_step(tmp_path, monkeypatch, raised, why):
    """By the rank that fails to rank 0, which waits for it in a collective operation."""
    asked = structs.replace(failing_rank(tmp_path, monkeypatch, "loss", f"raise {raised}"), parallel="fsdp")
    refused_as("config", Worker().handle(asked), why)


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_engine(number):
    """However it ends, and though they ignore what a terminal sends to all."""
    program = (
        "import time\nfrom tests.harness.engines import island, manifest\n"
        "with island(manifest(), parallel='fsdp') as engine:\n"
        "    print(engine.trainer.means.island._processes[0].pid, flush=True)\n"
        "    time.sleep(100)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
        rank = int(engine.stdout.readline())
        assert psutil.pid_exists(rank)
        engine.send_signal(number)
        engine.wait(20)
    ends = time.monotonic() + 10
    while psutil.pid_exists(rank):
        assert time.monotonic() < ends, "the rank is still there"
        time.sleep(0.05)
