"""Measuring must not disturb the training that goes on between two slices."""

from __future__ import annotations

import pytest
import torch

from starling.node.tasks.digits import Digits
from starling.node.tasks.evaluate import Progress, Result, evaluate
from tests.harness.tasks import built_in, seeded


@pytest.fixture
def digits():
    task = Digits(hidden=8)
    return task, task.model(seeded(0)), task.data(built_in(shards=8), "cpu")


def test_progress_is_told_after_each_slice_and_the_result_at_the_end(digits):
    task, model, data = digits
    steps = list(evaluate(task, model, data, 100))
    assert steps[:-1] == [Progress(100), Progress(200), Progress(300), Progress(360)]
    assert isinstance(steps[-1], Result)
    assert 0.0 <= steps[-1].value <= 1.0


def test_gradients_and_train_mode_are_back_between_slices(digits):
    """A generator holds its place inside a `with`: no_grad must not be open while it waits."""
    task, model, data = digits
    model.train()
    for _ in evaluate(task, model, data, 100):
        assert torch.is_grad_enabled()
        assert model.training
        task.loss(model, data.batch(4, seeded(1))).backward()


def test_an_evaluation_may_be_given_up_half_way(digits):
    task, model, data = digits
    slices = evaluate(task, model, data, 100)
    next(slices)
    del slices
    assert torch.is_grad_enabled()


def test_the_result_is_the_mean_over_samples_not_over_slices(digits):
    """Slices of 7 leave a short last one, which must not weigh more."""
    task, model, data = digits
    result = list(evaluate(task, model, data, 7))[-1]
    logits = model(data.test_x).detach()
    assert result.value == pytest.approx(float((logits.argmax(1) == data.test_y).float().mean()))
    assert result.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, data.test_y)), rel=1e-5)
