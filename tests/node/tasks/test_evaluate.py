"""Evaluation does not disturb training between two slices; normalisation statistics follow their definition."""

import pytest
import torch
from torch import nn

from starling.node.tasks.digits import Digits
from starling.node.tasks.evaluate import Result, comparing, estimate, evaluate, tracking
from tests.harness.networks import Pictures
from tests.harness.tasks import built_in, seeded


@pytest.fixture
def digits():
    task = Digits(hidden=8)
    return task, task.model(seeded(0)), task.data(built_in(shards=8), "cpu")


def test_an_evaluation_goes_slice_by_slice_with_the_result_at_the_end(digits):
    task, model, data = digits
    steps = list(evaluate(task, model, data, 100))
    assert steps[:-1] == [None] * 4
    assert isinstance(steps[-1], Result)
    assert steps[-1].samples == 360
    assert 0.0 <= steps[-1].value <= 1.0


def test_gradients_and_train_mode_are_back_between_slices(digits):
    """A generator suspends inside a `with`: no_grad must not be active while it waits, or after it is abandoned."""
    task, model, data = digits
    model.train()
    slices = evaluate(task, model, data, 100)
    for _ in range(3):
        next(slices)
        assert torch.is_grad_enabled()
        assert model.training
        task.loss(model, data.batch(4, seeded(1))).backward()
    del slices
    assert torch.is_grad_enabled()


def test_the_result_is_the_mean_over_samples_not_over_slices(digits):
    task, model, data = digits
    result = list(evaluate(task, model, data, 7))[-1]
    logits = model(data.test_x).detach()
    assert result.value == pytest.approx(float((logits.argmax(1) == data.test_y).float().mean()))
    assert result.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, data.test_y)), rel=1e-5)


class Spread:
    """Measures the largest difference of any two held-out inputs, which is no mean over samples, and counts its samples."""

    def __init__(self):
        self.seen, self.counts = [], []

    def update(self, model, batch, samples):
        assert not model.training
        assert not torch.is_grad_enabled()
        self.seen.append(batch["x"])
        self.counts.append(samples)

    def compute(self):
        x = torch.cat(self.seen)
        return Result(float(x.max() - x.min()), 0.5, sum(self.counts), {"least": float(x.min())})


class Measured:
    """A task with a meter, whose batches begin with a tensor that does not have one row per sample."""

    meter = staticmethod(Spread)

    def counted(self, size):
        for part in torch.arange(10.0).split(size):
            yield {"constant": torch.ones(2, 2), "x": part}, len(part)


@pytest.mark.parametrize("size", [3, 10])
def test_a_tasks_meter_gets_every_batch_and_computes_once(size):
    """The division into batches changes nothing, and samples are counted by the data, not by a tensor's length."""
    *_, result = evaluate(Measured(), nn.Identity(), Measured(), size)
    assert result == Result(9.0, 0.5, 10, {"least": 0.0})


def layers(kind, shape):
    torch.manual_seed(0)
    dropped = nn.Dropout(0.5)
    return nn.Sequential(kind(3, track_running_stats=True), dropped), [torch.randn(shape) * 2 + 1 for _ in range(7)]


class Run:
    def loss(self, model, batch):
        return model(batch).sum()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (6, 3)), (nn.BatchNorm2d, (6, 3, 4, 5)), (nn.BatchNorm3d, (6, 3, 2, 2, 2)), (nn.InstanceNorm2d, (6, 3, 4, 5))],
)
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


@pytest.mark.parametrize("bad", [(0,), (3,), (2, 6)])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_batches_with_non_finite_statistics_are_excluded_from_the_mean(bad, number):
    """One NaN sample would silently spoil all evaluations and the export."""
    model, batches = layers(nn.BatchNorm1d, (6, 3))
    good = [batch for turn, batch in enumerate(batches) if turn not in bad]
    for turn in bad:
        batches[turn] = batches[turn].clone()
        batches[turn][1, 2] = number
    model[0].num_batches_tracked.fill_(12)
    assert sum(1 for _ in estimate(Run(), model, batches)) == len(batches)
    torch.testing.assert_close(model[0].running_mean, torch.stack([batch.mean(0) for batch in good]).mean(0))
    torch.testing.assert_close(model[0].running_var, torch.stack([batch.var(0) for batch in good]).mean(0))
    assert int(model[0].num_batches_tracked) == 12
    assert model[0].momentum == 0.1


def test_statistics_without_any_finite_batch_are_unchanged():
    model, batches = layers(nn.BatchNorm1d, (6, 3))
    model[0].running_mean.fill_(2.0)
    model[0].running_var.fill_(5.0)
    list(estimate(Run(), model, [batch * torch.nan for batch in batches]))
    assert model[0].running_mean.tolist() == [2.0] * 3
    assert model[0].running_var.tolist() == [5.0] * 3


class Frozen(nn.Sequential):
    """Keeps some layers in evaluation mode while training, as for a pretrained body."""

    def __init__(self, *layers, frozen):
        super().__init__(*layers)
        self.frozen = frozen

    def train(self, mode=True):
        super().train(mode)
        for each in self.frozen:
            self[each].eval()
        return self


@pytest.mark.parametrize("frozen", [(0,), (0, 1)])
def test_statistics_of_frozen_layers_are_not_estimated(frozen):
    """A frozen layer uses its stored statistics in training, so in an evaluation too; those of later layers are estimated after it."""
    model = Frozen(nn.BatchNorm1d(3), nn.BatchNorm1d(3), frozen=frozen).train()
    for layer in model:
        layer.running_mean.fill_(3.0)
        layer.running_var.fill_(4.0)
    batches = [torch.randn(6, 3, generator=seeded(turn)) + 5 for turn in range(3)]
    list(estimate(Run(), model, batches))
    for number, layer in enumerate(model):
        assert torch.equal(layer.running_mean, torch.full((3,), 3.0)) == (number in frozen)
        assert layer.training == (number not in frozen)
    if frozen == (0,):
        expected = torch.stack([(batch.mean(0) - 3) / (4 + 1e-5) ** 0.5 for batch in batches]).mean(0)
        torch.testing.assert_close(model[1].running_mean, expected, rtol=1e-4, atol=1e-5)
    with comparing(model):
        assert [layer.training for layer in model] == [number not in frozen for number in range(2)]


def test_modules_that_merge_weights_are_switched_between_modes():
    """As in LoRA libraries: evaluation mode adds the adapter to the base, and training mode removes it again."""

    class Merging(nn.Linear):
        merged = False

        def train(self, mode=True):
            if self.merged == mode:
                self.weight.data += -1.0 if mode else 1.0
                self.merged = not mode
            return super().train(mode)

    task, model = Digits(hidden=8), nn.Sequential(Merging(64, 10))
    before = model[0].weight.clone()
    list(evaluate(task, model, task.data(built_in(shards=8), "cpu"), 100))
    torch.testing.assert_close(model[0].weight, before)


def test_a_model_without_statistics_costs_no_batch():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert tracking(model) == []

    def batches():
        raise AssertionError("asked for")
        yield

    assert list(estimate(Run(), model, batches())) == []


def test_comparing_models_uses_batch_statistics_without_dropout_or_side_effects():
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
