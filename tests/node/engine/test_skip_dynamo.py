"""Optimisers start without torch's compiler, which remains available for tasks that compile."""

import subprocess
import sys

import pytest

PROGRAM = """
import inspect
import sys
import torch
from starling.node.config.schema import OptimizerSection
from starling.node.engine.optimizers import optimizer

def stepped(kind):
    x = torch.ones(4)
    made = optimizer(OptimizerSection(kind=kind), x)
    for _ in range(2):
        made.step(x, torch.full((4,), 0.5), 0.1)
    return x

REAL = "torch._dynamo.eval_frame"
kinds = ("sgd", "adamw", "rmsprop", "adagrad", "adadelta", "adafactor", "asgd", "nadam", "radam", "rprop", "adamax")
before = {kind: stepped(kind) for kind in kinds}
inspect.getmodule(inspect.currentframe())
assert REAL not in sys.modules, "loaded by an optimiser, or by who looks at modules"

linear = torch.nn.Linear(3, 2)
compiled = torch.compile(linear, backend="eager")
assert torch.equal(compiled(torch.ones(1, 3)), linear(torch.ones(1, 3)))
assert REAL in sys.modules and torch._dynamo is sys.modules["torch._dynamo"], "not the real one"
import torch._dynamo.config
assert all(torch.equal(stepped(kind), before[kind]) for kind in kinds)
"""


@pytest.mark.acceptance
def test_an_optimiser_does_not_load_the_compiler_and_compiling_still_works() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
