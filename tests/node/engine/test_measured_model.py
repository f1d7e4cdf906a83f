"""A model is evaluated as it was at one moment while training continues, and no module is copied."""

import threading

import pytest
import torch
from torch import nn

from starling.node.engine.measured_model import MeasuredModel, followers


class Net(nn.Module):
    """Has an activation, a lock, a count, and a closure over itself, so it cannot be copied."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 1)
        self.head.weight = nn.Parameter(torch.ones(1, 3))
        self.seen, self.calls, self.lock = None, 0, threading.Lock()
        self.features = []
        self.base.register_forward_hook(lambda *_: self.features.append(self.calls))

    def forward(self, x):
        self.calls += 1
        self.seen = self.head(self.norm(self.base(x)))
        return self.seen


X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def train(model):
    model.train()
    model(X).sum().backward()
    with torch.no_grad():
        for each in model.parameters():
            if each.grad is not None:
                each.sub_(each.grad)
                each.grad = None


def values(model):
    return {name: each.clone() for name, each in model.state_dict().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_continues_without_changing_the_evaluated_model():
    model = Net()
    train(model)
    begun, output = values(model), model.eval()(X)
    measured = MeasuredModel(model)
    train(model)
    trained = values(model)
    assert not equal(begun, trained)
    with measured.lent() as then:
        assert torch.equal(then.eval()(X), output)
    assert equal(measured.entries(), begun)
    assert equal(values(model), trained)


def test_evaluation_leaves_training_state_unchanged():
    """A count, a mode, an activation, a buffer replaced by another tensor: all belong to the evaluated model."""
    model = Net()
    train(model)
    measured = MeasuredModel(model)
    seen, calls = model.seen, model.calls
    with measured.lent() as then:
        then.eval()(X)
        then.new = 1
        then.norm.running_mean = torch.full((3,), 7.0)
        then.norm.running_var.fill_(9.0)
    assert model.seen is seen
    assert model.calls == calls
    assert model.training
    assert not hasattr(model, "new")
    assert float(model.norm.running_var.max()) < 9.0
    with measured.lent() as then:
        assert then.calls == calls + 1
        assert float(then.norm.running_mean.min()) == 7.0


def test_training_continues_with_the_same_tensor_objects():
    """The flat vector and an optimiser refer to them."""
    model = Net()
    storage = [each.data_ptr() for each in (*model.parameters(), *model.buffers())]
    objects = list(map(id, (*model.parameters(), *model.buffers())))
    with MeasuredModel(model).lent():
        pass
    assert [each.data_ptr() for each in (*model.parameters(), *model.buffers())] == storage
    assert list(map(id, (*model.parameters(), *model.buffers()))) == objects


def test_frozen_parameters_are_shared_unless_declared_to_change():
    model = Net()
    shared, owned = MeasuredModel(model), MeasuredModel(model, also=model.base.parameters())
    assert shared.entries()["base.weight"].data_ptr() == model.base.weight.data_ptr()
    before = model.base.weight.clone()
    with torch.no_grad():
        model.base.weight.add_(1.0)
    assert torch.equal(owned.entries()["base.weight"], before)


def test_a_teacher_is_recognised_if_it_is_no_larger_than_its_student():
    small, large = Net(), Net()
    large.base = nn.Linear(30, 30).requires_grad_(False)
    trained = sum(each.numel() for each in small.parameters() if each.requires_grad)
    small.base = nn.Linear(trained - 1, 1).requires_grad_(False)
    assert followers(small) == list(small.base.parameters())
    assert followers(large) == []


def test_evaluation_slices_use_the_model_at_their_start_with_training_in_between():
    model = Net()
    measured = MeasuredModel(model)

    def work():
        for _ in range(3):
            model.eval()
            with torch.no_grad():
                output = model(X)
            model.train()
            yield output

    outputs = []
    for output in measured.slices(work()):
        outputs.append(output)
        train(model)
    assert len(outputs) == 3
    assert all(torch.equal(outputs[0], each) for each in outputs)


def test_an_error_during_evaluation_leaves_the_model_unchanged():
    model = Net()
    measured = MeasuredModel(model)
    train(model)
    trained = values(model)
    with pytest.raises(RuntimeError, match="mat1"), measured.lent() as then:
        then(torch.ones(2, 5))
    assert equal(values(model), trained)


def test_tied_parameters_and_shared_buffers_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    for layer in model:
        layer.register_buffer("mask", torch.ones(3) if layer is model[0] else model[0].mask)
    with MeasuredModel(model).lent() as then:
        assert then[0].weight.data_ptr() == then[1].weight.data_ptr()
        assert then[0].mask is then[1].mask
