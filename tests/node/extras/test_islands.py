"""Several processes that compute as one node."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from msgspec import structs

from starling.node.config.schema import NumericsSection, PrivacySection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, failing_rank, island, manifest, open_request, opened, refused_as, run, x_of
from tests.harness.processes import ROOT, until_ended

pytestmark = [pytest.mark.slow, pytest.mark.real]
STEPS = 20


def test_an_island_of_two_processes_follows_a_single_one_s_trajectory_until_one_dies():
    """One of four nodes, with unequal parts, on a complete overlay: equal within float32 rounding. Then a process is killed."""
    agreed = manifest(params={"batch_size": 17})
    alone, ours = ({name: opened(agreed, node=name) for name in names} for names in ("abcd", "bcd"))
    with island(agreed) as together:
        ours["a"] = together
        done(alone["a"], calls.Train(0, 1))
        done(together, calls.Train(0, 1))
        one, two = x_of(alone["a"]), x_of(together)
        assert float((one - two).abs().max() / one.abs().max()) < 3e-8, "the reference has 4e-9"
        for turn, pairs in enumerate((("ab", "cd"), ("ac", "bd"), ("ad", "bc"))):
            for swarm in (alone, ours):
                every(swarm, calls.Train(turn, STEPS))
                for i, j in pairs:
                    exchange(swarm, i, j, seq=0, round=turn)
                every(swarm, calls.Mix(turn))
        losses = [done(swarm["a"], calls.Train(3, 1)).figures.loss for swarm in (alone, ours)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
        for name in "abcd":
            moved = float((x_of(alone[name]) - x_of(opened(agreed))).norm())
            assert float((x_of(ours[name]) - x_of(alone[name])).norm()) < 1e-3 * moved
        assert not torch.equal(x_of(together), x_of(alone["a"])), "sums in another order round otherwise"
        (process,) = together.trainer.local_step.source.island.processes
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"[Cc]onnection"):
            run(together, calls.Train(4, 5))


TEXTS = """
import torch
from torch import nn
from torch.nn import functional
import starling

chance = torch.Generator().manual_seed(0)
x, labels = torch.randn(200, 12, 5, generator=chance), torch.randint(0, 3, (200, 12), generator=chance)
for row in range(200):
    labels[row, 1 + 5 * row % 12 :] = -100

def tagging(weight=None):
    def loss(output, target):
        return functional.cross_entropy(output.flatten(0, 1), target.flatten(), weight=weight)
    return starling.task(model=lambda: nn.Linear(5, 3), train=(x, labels), loss=loss, metrics="accuracy")

def tokens() -> starling.Task:
    return tagging()

def classes() -> starling.Task:
    return tagging(torch.tensor([1.0, 5.0, 30.0]))
"""


def test_ranks_weight_their_parts_by_the_numbers_that_the_loss_averages(tmp_path):
    """Half of the batch's labels are padding, more of them in one rank's part than in the other's."""
    (tmp_path / "island_texts.py").write_text(TEXTS)
    agreed = manifest("island_texts:tokens", nodes=1)
    alone = Worker(clock=lambda: 0.0)
    done(alone, structs.replace(open_request(agreed), code=str(tmp_path)))
    with island(agreed, code=str(tmp_path)) as together:
        for engine in (alone, together):
            done(engine, calls.Train(0, 10))
        assert float((x_of(alone) - x_of(together)).norm() / x_of(alone).norm()) < 1e-5
    other = structs.replace(open_request(manifest("island_texts:classes", nodes=1)), code=str(tmp_path), ranks=2)
    refused_as("config", Worker().handle(other), "ranks: the loss of a batch is no mean of the losses of its parts")


@pytest.mark.acceptance
def test_statistics_of_layers_are_about_those_of_the_whole_batch():
    agreed = manifest(params={"batch_size": 64, "model": "cnn"})
    alone = opened(agreed)
    with island(agreed, ranks=3) as together:
        for engine in (alone, together):
            done(engine, calls.Train(0, 10))
        one, other = (engine.trainer.model.side.buffers for engine in (alone, together))
        for name in one:
            assert torch.allclose(one[name].double(), other[name].double(), rtol=0.2, atol=0.05), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": PrivacySection(noise=1.0)}, "ranks: cannot be used with privacy.noise"),
        ({"numerics": NumericsSection(noise_every=2)}, "ranks: cannot be used with numerics.noise_every"),
    ],
)
def test_tasks_that_processes_cannot_share_are_refused(changes, words):
    reply = Worker().handle(structs.replace(open_request(manifest()), ranks=2, **changes))
    refused_as("config", reply, words)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raise ValueError('not in a second process')", "not in a second process"),
        pytest.param("os._exit(3)", "its process ended", marks=pytest.mark.acceptance),
    ],
)
def test_a_rank_that_fails_to_start_reports_the_reason(tmp_path, monkeypatch, does, why):
    """With the task's own reason if it has one."""
    asked = failing_rank(tmp_path, monkeypatch, "model", does)
    refused_as("config", Worker().handle(asked), why)


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_engine(number):
    """However it ends, although ranks ignore a terminal's signals."""
    program = (
        "import time\nfrom tests.harness.engines import island, manifest\n"
        "with island(manifest()) as engine:\n"
        "    print(engine.trainer.local_step.source.island.processes[0].pid, flush=True)\n"
        "    time.sleep(100)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
        rank = int(engine.stdout.readline())
        assert psutil.pid_exists(rank)
        engine.send_signal(number)
        engine.wait(20)
    until_ended(rank, 10.0)
