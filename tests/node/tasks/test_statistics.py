"""Normalisation statistics against their definition, for every kind of layer that has them."""

import pytest
import torch
from torch import nn

from starling.node.tasks.statistics import comparing, estimate, tracking
from tests.harness.networks import Pictures


def layers(kind, shape):
    torch.manual_seed(0)
    dropped = nn.Dropout(0.5)
    return nn.Sequential(kind(3, track_running_stats=True), dropped), [torch.randn(shape) * 2 + 1 for _ in range(7)]


class Run:
    """A task whose loss runs the model."""

    def loss(self, model, batch):
        return model(batch).sum()


@pytest.mark.parametrize(("kind", "shape"), [
    (nn.BatchNorm1d, (6, 3)), (nn.BatchNorm2d, (6, 3, 4, 5)), (nn.BatchNorm3d, (6, 3, 2, 2, 2)), (nn.InstanceNorm2d, (6, 3, 4, 5)),
])  # fmt: skip
def test_statistics_are_the_mean_over_the_batches(kind, shape):
    model, batches = layers(kind, shape)
    layer = model[0]
    layer.running_mean.fill_(100.0)
    layer.num_batches_tracked.fill_(12)
    model.train()
    assert sum(1 for _ in estimate(Run(), model, batches)) == len(batches)
    if kind is nn.InstanceNorm2d:
        means = [batch.mean((0, 2, 3)) for batch in batches]
    else:
        means = [batch.transpose(0, 1).reshape(3, -1).mean(1) for batch in batches]
        variances = [batch.transpose(0, 1).reshape(3, -1).var(1) for batch in batches]
        torch.testing.assert_close(layer.running_var, torch.stack(variances).mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_mean, torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)
    assert int(layer.num_batches_tracked) == 12
    assert layer.momentum == 0.1
    assert model.training
    assert model[1].training


def test_a_model_without_statistics_costs_no_batch():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert tracking(model) == []

    def batches():
        raise AssertionError("asked for")
        yield

    assert list(estimate(Run(), model, batches())) == []


def test_comparing_normalises_by_the_batch_without_dropout_and_leaves_no_trace():
    model, (batch, *_) = layers(nn.BatchNorm1d, (6, 3))
    model.train()
    before = [buffer.clone() for buffer in model.buffers()]
    with comparing(model):
        once, twice = model(batch), model(batch)
    torch.testing.assert_close(once.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    assert torch.equal(once, twice)
    assert all(torch.equal(one, other) for one, other in zip(before, model.buffers(), strict=True))
    assert model[1].training


def test_the_harness_has_networks_with_and_without_statistics():
    generator = torch.Generator().manual_seed(0)
    assert len(tracking(Pictures("resnet").model(generator))) == 4
    assert tracking(Pictures("tied").model(generator)) == []
