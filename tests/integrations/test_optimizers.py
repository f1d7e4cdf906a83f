"""Optimizers of other libraries with a Swarm's hooks: each step is corrected and counted, and their state does not undo a mix."""

import importlib

import pytest
import torch

from starling.node.script.optimizers import unwrapped
from starling.node.script.parameters import Parameters
from tests.node.script.loops import batches, fitted, flat, hooked, net

pytestmark = [pytest.mark.slow]
KINDS = {
    "schedule-free": ("schedulefree", "AdamWScheduleFree", {"lr": 0.05}),
    "schedule-free sgd": ("schedulefree", "SGDScheduleFree", {"lr": 0.1}),
    "lion": ("lion_pytorch", "Lion", {"lr": 0.01}),
    "adamw of 8 bits": ("bitsandbytes.optim", "AdamW8bit", {"lr": 0.05, "weight_decay": 0.0, "min_8bit_size": 1}),
}


@pytest.fixture(params=KINDS)
def make(request):
    """Return equal models and their optimizers, in training mode."""
    package, kind, keys = KINDS[request.param]
    name = package.partition(".")[0]
    pytest.importorskip(name, reason=f"needs {name}: pip install {name.replace('_', '-')}")

    def made():
        model = net(width=64)
        optimizer = getattr(importlib.import_module(package), kind)(model.parameters(), **keys)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return model, optimizer

    return made


def test_each_step_is_corrected_and_counted(make):
    """The correction equals the whole gradient, so a corrected step changes nothing."""
    model, optimizer = make()
    hooks, correction = hooked(model, optimizer)
    before = flat(model)
    for number, batch in enumerate(batches(3)):
        fitted(model, batch)
        correction.c = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        assert hooks.took_step()
        assert len(correction.taken) == number + 1
    assert torch.equal(flat(model), before)


def test_a_mix_is_fully_applied_after_a_hundred_steps(make):
    """Compared with the same steps without a mix; gradients are zero, since others would differ."""
    ends = []
    for mixed in (0.0, 1.0):
        model, optimizer = make()
        parameters = Parameters(model, unwrapped(optimizer))
        for batch in batches(3):
            fitted(model, batch)
            optimizer.step()
            optimizer.zero_grad()
        parameters.write(flat(model) + mixed)
        for _ in range(100):
            for each in model.parameters():
                each.grad = torch.zeros_like(each)
            optimizer.step()
        ends.append(flat(model))
    assert torch.allclose(ends[1] - ends[0], torch.ones_like(ends[0]), atol=1e-4)
