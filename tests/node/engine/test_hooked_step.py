"""A task with hooks is called around each local step: before its batch, with its gradient, and at its end."""

import sys

import pytest
import torch
from msgspec import structs

from starling.node.config.schema import NumericsSection, OptimizerSection, PrivacySection
from starling.node.engine.local.hooked_step import NoHooks, stepped_of
from starling.node.rpc import calls
from starling.node.tasks.api import Stepped
from starling.node.tasks.digits import Digits
from tests.harness.engines import done, manifest, open_request, opened, refused_as, run, x_of

TASK = '''
from dataclasses import dataclass

import torch
from torch import nn

import starling

STEPS = []
FACTOR = [1.0]


@dataclass(frozen=True)
class Watched:
    """A linear model with a buffer; its hooks note what they see, and may change it."""

    step_hooks = ("end_step",)
    metric = "loss"
    higher_is_better = False

    def model(self, generator):
        made = nn.Linear(4, 1)
        nn.init.normal_(made.weight, generator=generator)
        nn.init.zeros_(made.bias)
        made.register_buffer("average", torch.zeros(1, 4))
        return made

    def data(self, source, device):
        x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        return starling.task(model=None or (lambda: nn.Linear(4, 1)), train=(x, x[:, :1] * 2)).data(source, device)

    def loss(self, model, batch):
        STEPS.append(("loss", model.weight.detach().clone()))
        return nn.functional.mse_loss(model(batch[0]), batch[1]) * FACTOR[0]

    def score(self, model, batch):
        loss = float(nn.functional.mse_loss(model(batch[0]), batch[1]))
        return loss * len(batch[0]), loss * len(batch[0]), len(batch[0])

    def begin_step(self, model, step, size):
        STEPS.append(("begin", step, size))

    def gradient_ready(self, model):
        STEPS.append(("gradient", model.weight.grad.clone()))
        model.weight.grad[:, 1:] = 0.0

    def end_step(self, model):
        STEPS.append(("end", model.weight.detach().clone()))
        model.average += model.weight.detach()


@dataclass(frozen=True)
class Free(Watched):
    step_hooks = ()

    def gradient_ready(self, model):
        STEPS.append(("gradient",))
'''


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "watched.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "watched", raising=False)
    import watched

    yield watched.STEPS
    sys.modules.pop("watched")


def taken(engine, count=3):
    done(engine, calls.Train(0, count))
    return engine


def plain(kind="watched:Watched", **rounds):
    sgd = OptimizerSection(kind="sgd", schedule="constant", lr=0.1).changed(momentum=0.0)
    return manifest(kind, nodes=1, mix="dsgd", optimizer=sgd, **rounds)


def test_hooks_of_a_step_are_called_in_order(steps):
    """The task sees the parameters after the optimiser's step, and steps are numbered from 0."""
    engine = opened(plain())
    steps.clear()
    taken(engine)
    assert [each[0] for each in steps] == ["begin", "loss", "gradient", "end"] * 3
    assert [each[1:] for each in steps if each[0] == "begin"] == [(0, 32), (1, 32), (2, 32)]
    before, after = steps[1][1], steps[3][1]
    assert not torch.equal(before, after)
    assert torch.equal(steps[5][1], after)
    ends = [each[1] for each in steps if each[0] == "end"]
    assert torch.equal(engine.trainer.model.module.average, sum(ends))


def test_a_gradient_changed_by_the_task_is_used_for_the_step(steps):
    engine = opened(plain())
    steps.clear()
    taken(engine, 1)
    before, gradient, after = (each[1] for each in steps[1:])
    assert torch.allclose(before[:, :1] - after[:, :1], 0.1 * gradient[:, :1])
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert gradient[:, 1:].abs().sum() > 0


def test_a_batch_in_parts_is_one_step(steps):
    engine = opened_with(plain(), numerics=NumericsSection(micro_batch=8))
    steps.clear()
    taken(engine, 1)
    trained = [each[0] for each in steps]
    assert trained[0] == "begin"
    assert trained[-2:] == ["gradient", "end"]
    assert trained.count("loss") >= 4


def test_a_resumed_node_continues_numbering_its_steps(steps, tmp_path):
    file = tmp_path / "c.safetensors"
    engine = taken(opened(plain(), checkpoint=file))
    done(engine, calls.Mix(0))
    done(engine, calls.Save(""))
    again = opened(plain(), checkpoint=file)
    steps.clear()
    taken(again, 1)
    assert steps[0] == ("begin", 3, 32)


def test_an_undone_step_calls_its_end_hook_but_no_gradient_hook(steps):
    import watched

    engine = opened(plain())
    x, steps[:] = x_of(engine), []
    watched.FACTOR[0] = float("nan")
    taken(engine, 2)
    assert [each[0] for each in steps] == ["begin", "loss", "end"] * 2
    assert torch.equal(x_of(engine), x)


def opened_with(agreed, **changes):
    from starling.node.engine.worker import Worker

    engine = Worker(clock=lambda: 0.0)
    reply = run(engine, structs.replace(open_request(agreed), **changes))
    assert isinstance(reply, calls.Opened), reply
    return engine


@pytest.mark.parametrize(
    ("agreed", "changes", "said"),
    [
        pytest.param({}, {"privacy": PrivacySection(noise=1.0)}, "privacy.noise: gradients are of single samples", marks=pytest.mark.slow),
        ({"mix": "seeds"}, {}, "mix.kind: steps of seeds compute losses and no gradient"),
        ({}, {"ranks": 2}, "ranks: other processes compute parts of each batch"),
    ],
)
def test_hooks_are_refused_by_name_where_steps_cannot_call_them(steps, agreed, changes, said):
    """They would be ignored, or see no batch; a task that only counts steps is accepted."""
    from starling.node.engine.worker import Worker

    for kind in ("watched:Watched", "watched:Free"):
        whole = manifest(kind, nodes=1, **agreed) if agreed else plain(kind)
        if kind == "watched:Free" and "ranks" in changes:
            continue  # it would start another process here
        reply = run(Worker(clock=lambda: 0.0), structs.replace(open_request(whole), **changes))
        if kind == "watched:Watched":
            refused_as("config", reply, f"{said}, for which end_step of the task cannot be called")
        else:
            assert isinstance(reply, calls.Opened), reply


def test_tasks_without_hooks_use_plain_steps():
    task = Digits()
    assert not isinstance(task, Stepped)
    none = stepped_of(task)
    assert isinstance(none, Stepped)
    assert isinstance(none, NoHooks)
    engine = opened(manifest())
    assert type(engine.trainer.local_step).__name__ == "GradientStep"
