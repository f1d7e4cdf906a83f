"""Errors in a user's own task are reported at once: the step, the file and line, and the reason."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.engine.task_check import check
from starling.node.engine.user_code import describe
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, opened, refused_as

GOOD = """
    import torch
    from torch import nn
    from starling.node.tasks.digits import Digits

    class MyTask(Digits):
        {method}
"""
STEPS = ["open", "model", "batch", "step", "score", "export", "reload"]

UNUSED = """def model(self, generator):
            made = Digits.model(self, generator)
            made.unused = nn.Parameter(torch.zeros(3))
            made.forward = lambda x: made[2](made[1](made[0](x)))
            return made"""
UNSAVED = """def model(self, generator):
            made = Digits.model(self, generator)
            made[1] = Drifting()
            return made"""
MODEL = "def model(self, generator):\n            "
DATA = "def data(self, source, device):\n            "
LOSS = "def loss(self, model, batch):\n            "
SCORE = "def score(self, model, batch):\n            "
BROKEN = {
    "model": (MODEL + "return nn.Linear('wide', 10)", "open", "model() failed: TypeError"),
    "model is a number": (MODEL + "return 3", "open", "model() must return an nn.Module, got int"),
    "model is lazy": (
        MODEL + "return nn.Sequential(nn.LazyLinear(10))",
        "open",
        "0.weight has no shape before the first forward pass, as of nn.LazyLinear: do one in `model`",
    ),
    "data": (DATA + "return undefined", "open", "data() failed: NameError: name 'undefined'"),
    "loss raises": (LOSS + "raise KeyError('labels')", "open", "loss() failed: KeyError: 'labels'"),
    "loss is a vector": (LOSS + "return model(batch[0])", "open", "must return a scalar tensor"),
    "loss is cut off": (LOSS + "return torch.tensor(1.0)", "open", "must return a scalar tensor with a gradient"),
    "score raises": (SCORE + "return 1 / 0", "open", "score() failed: ZeroDivisionError"),
    "score is a share": (SCORE + "return 0.5", "open", "score() must return (sum of the metric"),
    "other models": (MODEL + "return nn.Linear(64, 10)", "model", "draw from its `generator` alone"),
    "a loss of nothing": (LOSS + "return 0.0 * Digits.loss(self, model, batch)", "step", "does not depend on any parameter"),
    "random scores": (SCORE + "return float(torch.rand(())), 1.0, 1", "score", "differs from call to call"),
    "not finite": (LOSS + "return Digits.loss(self, model, batch) * float('nan')", "step", "left the finite numbers"),
    "state that is not saved": (UNSAVED, "reload", "neither a parameter nor a buffer"),
}
DRIFTING = """

class Drifting(nn.Module):
    scale = 1.0

    def forward(self, x):
        if self.training:
            self.scale *= 1.1
        return torch.relu(x) * self.scale
"""
PARTS = {
    "mix": "from starling.gossip.mix.base import MixerBase\n\nclass Mine(MixerBase):\n    pass\n",
    "optimizer": "import torch\n\nclass Mine(torch.optim.SGD):\n    pass\n",
    "compress": (Path(__file__).parents[3] / "examples/parts/fp24.py").read_text().replace("class Fp24", "class Mine"),
}


def written(folder, name, method="pass"):
    """Write a module whose task has one method replaced; return its kind. Each module has a new name, since modules are imported once."""
    (folder / f"{name}.py").write_text(textwrap.dedent(GOOD).format(method=textwrap.dedent(method)) + DRIFTING)
    return f"{name}:MyTask"


REMARKS = {  # the method, and the step in which its error is reported
    "a parameter without use": (UNUSED, "step", "did not change unused, which the loss may not need"),
    "some batches without a loss": (
        LOSS + "return None if int(batch[1][0]) < 5 else Digits.loss(self, model, batch)",
        "step",
        "of them were undone, as their loss was None",
    ),
    "a buffer that is not a number": (
        MODEL + "made = Digits.model(self, generator); made.register_buffer('unset', torch.full((2,), torch.nan)); return made",
        "step",
        "",
    ),
    "some batches whose loss is not a number": (
        LOSS + "return Digits.loss(self, model, batch) * (float('nan') if int(batch[1][0]) < 5 else 1.0)",
        "step",
        "of them were undone, as their loss was None, or loss, gradient or model not finite",
    ),
    "a loss that is not a number where it is measured": (
        SCORE + "return 0.0, float('nan'), 1",
        "score",
        "the loss of held-out samples is not a finite number",
    ),
}


@pytest.mark.parametrize("case", REMARKS)
def test_training_tasks_pass_with_remarks_on_doubtful_settings(case, tmp_path):
    """A pooler that the loss does not use, an expert never chosen, a skipped batch: none is an error."""
    method, step, words = REMARKS[case]
    findings = check(written(tmp_path, f"own_remark_{list(REMARKS).index(case)}", method), code=str(tmp_path))
    assert [finding.step for finding in findings] == STEPS, findings[-1]
    assert all(finding.fine for finding in findings), findings[-1]
    assert words in next(finding.text for finding in findings if finding.step == step)


def number(case):
    return f"own_task_{list(BROKEN).index(case)}"


def test_a_good_task_passes_every_step(tmp_path):
    findings = check(written(tmp_path, "own_task_good"), code=str(tmp_path))
    assert [finding.step for finding in findings] == STEPS
    assert all(finding.fine for finding in findings), findings


@pytest.mark.parametrize("case", BROKEN)
def test_each_error_is_reported_with_its_step(case, tmp_path):
    method, step, words = BROKEN[case]
    *before, last = check(written(tmp_path, number(case), method), code=str(tmp_path))
    assert all(finding.fine for finding in before)
    assert (last.step, last.fine) == (step, False)
    assert words in last.text


@pytest.mark.parametrize("case", ["model", "loss raises", "score raises"])
def test_the_engine_refuses_such_a_task_with_file_and_line(case, tmp_path):
    """At the first start, as a configuration error, since a restart would not help."""
    kind = written(tmp_path, f"{number(case)}_opened", BROKEN[case][0])
    module = kind.partition(":")[0]
    broken = next(line for line in BROKEN[case][0].splitlines() if "return" in line or "raise" in line)
    line = (tmp_path / f"{module}.py").read_text().splitlines().index(broken)
    refused_as("config", opened_in(tmp_path, kind), f"{module}.py, line {line + 1}, in ")


def test_a_module_with_a_syntax_error_is_named_with_its_line(tmp_path):
    (tmp_path / "own_task_syntax.py").write_text("class MyTask:\n    def model(self:\n")
    (finding,) = check("own_task_syntax:MyTask", code=str(tmp_path))
    assert "SyntaxError" in finding.text
    assert "own_task_syntax.py, line 2" in finding.text


def opened_in(folder, kind="digits", **sections):
    return Worker().handle(calls.Open(manifest(kind, **sections), "", 0, "cpu", 1, "", "a", code=str(folder)))


def test_a_missing_module_is_refused_with_a_remedy(tmp_path):
    refused = refused_as("config", opened_in(tmp_path, "own_task_nowhere:MyTask"), "pip install -e")
    assert f"no own_task_nowhere.py in {tmp_path}" in refused.reason


@pytest.mark.parametrize(("section", "key"), [("mix", "mix.kind"), ("optimizer", "optimizer.kind"), ("compress", "compress.response")])
def test_parts_in_the_current_folder_are_imported_only_with_consent(tmp_path, section, key):
    module = f"own_part_of_{section}"
    (tmp_path / f"{module}.py").write_text(PARTS[section])
    kind = f"{module}:Mine"
    sections = {
        "mix": {"mix": kind},
        "optimizer": {"optimizer": OptimizerSection(kind=kind), "mix": "dsgd"},
        "compress": {"compress": CompressSection(response=kind)},
    }[section]
    refused = refused_as("config", Worker().handle(open_request(manifest(**sections))), "--set trust=true")
    assert refused.reason.startswith(f"{key}: '{kind}' is not found")
    assert isinstance(opened_in(tmp_path, **sections), calls.Opened)


def test_without_consent_no_folder_is_searched(tmp_path):
    refused_as("config", Worker().handle(open_request(manifest(written(tmp_path, "own_task_unasked")))))
    assert str(tmp_path) not in sys.path


def test_a_file_of_the_folder_does_not_shadow_installed_modules(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('imported')")
    assert isinstance(opened_in(tmp_path, written(tmp_path, "own_task_beside")), calls.Opened)
    code = "import sys; sys.path.append(sys.argv[1]); import json; json.dumps(1)"
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True)


def test_opening_a_user_s_task_draws_no_random_numbers(tmp_path):
    own, built_in = opened(manifest("tests.harness.networks:Mlp")), opened(manifest("digits"))
    for engine in (own, built_in):
        done(engine, calls.Train(0, 5))
    assert torch.equal(own.vector, built_in.vector)


def test_an_error_is_described_by_the_last_line_of_ones_own_code():
    """Frames of torch and the standard library below it do not help the author."""
    try:
        torch.zeros(3).reshape("x")
    except TypeError as error:
        said = describe(error)
    assert said.startswith("TypeError: ")
    assert "test_task_check.py, line " in said
    assert 'torch.zeros(3).reshape("x")' in said
    assert "\n" not in said


def test_an_unknown_task_is_reported_without_a_traceback():
    (finding,) = check("digit")
    assert not finding.fine
    assert finding.text.startswith("task.kind: 'digit' is unknown")
