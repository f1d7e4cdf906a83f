"""`starling bench loop`: the plain loop and the engine do the same work, and the printed figures are the measured ones."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.rng import generator
from starling.kernels import engine_steps, loop, plain, slices
from starling.kernels.schema import DRIVERS, LOOP_CASES, LOOP_MIXES, LOOP_MODELS, LOOP_OPTIMIZERS, LoopCase
from starling.node.catalogues import task
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.rpc import calls
from starling.node.tasks.api import Source
from tests.harness.schemas import valid

FAST = ["--repeat", "1", "--seconds", "0.001"]


def agreed(model, optimizer, mix, folder):
    return plain.agreed(loop.keys(model, optimizer, mix, folder))


@pytest.mark.parametrize("model", LOOP_MODELS)
def test_every_case_is_a_manifest_that_nodes_accept(model, tmp_path):
    for optimizer in LOOP_OPTIMIZERS:
        for mix in LOOP_MIXES:
            assert manifests.check(agreed(model, optimizer, mix, tmp_path)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", LOOP_OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_plain_loop_and_the_engine_do_the_same_steps(model, optimizer, tmp_path):
    """From the same model and the same batches they arrive at the same parameters, so neither does less work."""
    manifest = agreed(model, optimizer, "dsgd", tmp_path)
    hub, ours = engine_steps.Called(manifest, 0, "hub"), plain.Loop(manifest)
    started = hub.engine.vector
    assert torch.equal(parameters_to_vector(ours.model.parameters()), started)
    made = task(manifest.task.kind, manifest.task.params())
    data = made.data(Source(None, manifest.partition, 0, manifest.seed), "cpu")
    for number in range(3):
        hub.done(calls.Train(number, 1))
        hub.done(calls.Mix(number))
        ours.learn(*data.batch(manifest.task.batch_size, generator(manifest.seed, "batch", "hub", number)))
    assert not torch.equal(hub.engine.vector, started)
    torch.testing.assert_close(parameters_to_vector(ours.model.parameters()), hub.engine.vector, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_plain_text_loop_predicts_the_byte_that_follows_each(tmp_path):
    """The loss falls, and a batch has windows of the node's own shard only."""
    ours = plain.Loop(agreed("gpt_800k", "adamw", "dsgd", tmp_path))
    losses = [ours.step() for _ in range(10)]
    assert losses[0] > 5.0
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "corrects"), [("dsgd", False), ("default", True)])
def test_exchanges_before_the_first_slice_leave_a_correction_that_is_applied(mix, corrects, tmp_path):
    """Revoking a peer deletes its flow: steps with and without the correction differ by exactly the correction."""
    manifest, models = agreed("mlp", "sgd", mix, tmp_path), []
    for revoked in (False, True):
        hub = engine_steps.exchanged(manifest)
        if revoked:
            hub.done(calls.Revoke("peer"))
        hub.done(calls.Train(engine_steps.ROUNDS, 1))
        models.append(hub.engine.vector)
    assert torch.equal(*models) is not corrects


@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_case_is_measured_in_two_alternating_processes(driver, capsys, tmp_path, monkeypatch):
    """End to end, once: the figures are consistent, progress does not go to standard output, and processes, which are killed, leave no
    folder.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert main(["bench", "loop", "--cases", f"mlp/sgd/default/{driver}", *FAST, "--json"]) == 0
    out, err = capsys.readouterr()
    (case,) = valid("bench-loop", out)["cases"]
    assert list(case) == ["model", "d", "optimizer", "mix", "driver", "plain_ms", "ours_ms", "kept"]
    assert [*case.values()][:5] == ["mlp", 4810, "sgd", "default", driver]
    assert case["kept"] == pytest.approx(case["plain_ms"] / case["ours_ms"], rel=1e-2)
    assert err == f"  0%  1/1  mlp/sgd/default/{driver}\n"
    assert not [*tmp_path.glob("starling-*")]


@pytest.fixture
def measured(monkeypatch):
    """Stand in for the measurement; return what was requested of it."""
    asked = []

    def measure(model, optimizer, mix, driver, repeat, seconds):
        asked.append((model, optimizer, mix, driver, repeat, seconds))
        return LoopCase(model=model, d=4810, optimizer=optimizer, mix=mix, driver=driver, plain_ms=0.3, ours_ms=0.4, kept=0.75)

    monkeypatch.setattr(loop, "measure", measure)
    return asked


def test_every_model_optimiser_and_mix_is_a_case(measured, capsys):
    assert main(["bench", "loop", "--json"]) == 0
    cases = valid("bench-loop", capsys.readouterr().out)["cases"]
    each = [(case["model"], case["optimizer"], case["mix"], case["driver"]) for case in cases]
    assert each == list(LOOP_CASES)
    assert {case[4:] for case in measured} == {(9, 0.3)}


def test_a_table_has_a_row_for_each_case_of_a_pattern(measured, capsys):
    assert main(["bench", "loop", "--cases", "mlp/*/dsgd/task", "--cases", "cnn/sgd/default/task", "--repeat", "3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["mlp", "4,810", "sgd", "dsgd", "task", "0.300", "0.400", "0.75"]
    assert [row[:4:2] for row in rows[1:]] == [["mlp", "sgd"], ["mlp", "adamw"], ["mlp", "muon"], ["cnn", "sgd"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "--cases mlp",
            "--cases: 'mlp' is no MODEL/OPTIMIZER/MIX/DRIVER of mlp, cnn, gpt_800k, gpt_10m; sgd, adamw, muon; dsgd, default; task, script",
        ),
        ("--repeat 0", "--repeat: must be in [1, 1000], got 0"),
        ("--seconds nan", "--seconds: must be in [0.001, 3600], got nan"),
    ],
)
def test_unmeasurable_cases_are_refused_in_one_line(arguments, words, measured, capsys):
    assert main(["bench", "loop", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert measured == []


@pytest.mark.acceptance
def test_a_failing_process_gives_its_reason_and_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"task.kind: 'nothing' is unknown"), slices.children("plain", keys={"task": "nothing"}):
        pytest.fail("it is not ready")
    with slices.children("plain", keys=loop.keys("mlp", "sgd", "dsgd", tmp_path)) as (child,):
        assert child.run("seconds 0.001").steps > 0
        child.process.kill()
        with pytest.raises(GossipError, match="a process ended with -9; it may need more memory"):
            child.run("steps 1")
    assert not psutil.pid_exists(child.process.pid)


@pytest.mark.real
@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_both_processes():
    words = [sys.executable, "-m", "starling.node.cli.main", "bench", "loop", "--cases", "mlp/sgd/dsgd", "--seconds", "600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            run.stderr.readline()
            children = []
            while len(children) < 2:
                children = psutil.Process(run.pid).children()
            os.killpg(run.pid, signal.SIGINT)
            _, said = run.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130
    assert "Traceback" not in said
    for child in children:  # a process that has just started may have received only the signal
        with contextlib.suppress(psutil.NoSuchProcess):
            while child.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
