"""What every task of the catalogue promises to the engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from starling.node.tasks.catalogue import TASKS, task
from starling.node.tasks.evaluate import Result, evaluate
from tests.harness.tasks import built_in, seeded, write_mnist, write_texts


@pytest.fixture(
    params=[
        "digits",
        "digits_cnn",
        "images",
        "images_cnn",
        "quadratic",
        "quadratic_noisy",
        "diagonal",
        "logistic",
        "text",
    ]
)
def made(request, tmp_path):
    """(task, data) of each kind, small."""
    match request.param:
        case "digits":
            return task("digits", {"hidden": 8}), built_in("dirichlet", 4, 1)
        case "digits_cnn":
            return task("digits", {"model": "cnn", "hidden": 8}), built_in("by_label", 4, 1)
        case "images" | "images_cnn":
            model = "cnn" if request.param == "images_cnn" else "mlp"
            params = {"path": str(write_mnist(tmp_path)), "height": 4, "width": 4, "hidden": 8, "model": model}
            return task("images", params), built_in("iid", 4, 1)
        case "text":
            params = {"path": str(write_texts(tmp_path)), "context": 16, "width": 8, "layers": 2, "heads": 2}
            return task("text", params), built_in("iid", 3, 1)
        case "diagonal":
            return task("diagonal", {"dim": 5, "nodes": 4, "spread": 0.1}), built_in(shards=4, shard=1)
        case "logistic":
            return task("logistic", {"dim": 5, "nodes": 4, "skew": 0.5}), built_in(shards=4, shard=1)
        case _:
            noise = 0.5 if request.param == "quadratic_noisy" else 0.0
            return task("quadratic", {"dim": 5, "nodes": 4, "noise": noise}), built_in(shards=4, shard=1)


def equal(one, two) -> bool:
    """Batches are tensors, tuples of them, or dataclasses of them."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, tuple):
        return all(equal(a, b) for a, b in zip(one, two, strict=True))
    return one is two or all(
        equal(getattr(one, k), getattr(two, k)) for k in one.__slots__ if getattr(one, k) is not None
    )


def test_every_kind_of_the_catalogue_is_tested_here():
    """The synthetic task has tests of its own."""
    assert set(TASKS) == {"digits", "images", "quadratic", "diagonal", "logistic", "text", "synthetic"}


def test_every_node_starts_with_the_same_model(made):
    """All chance comes from the generator given, none from torch's global one."""
    kind, _ = made
    models = []
    for noise in range(2):
        torch.rand(noise + 1)
        models.append(kind.model(seeded(7)).state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_no_model_has_buffers_that_training_changes(made):
    """Buffers are not exchanged: what they hold differs between nodes."""
    kind, _ = made
    assert not list(kind.model(seeded(0)).buffers())


def test_batches_follow_the_generator(made):
    kind, source = made
    data = kind.data(source, "cpu")
    assert data.samples >= 1
    one, two = seeded(3), seeded(3)
    for _ in range(3):
        assert equal(data.batch(4, one), data.batch(4, two))


def test_held_out_samples_come_in_the_same_order_on_every_node(made):
    kind, source = made
    mine = kind.data(source, "cpu")
    other = kind.data(type(source)(None, source.partition, 2, source.seed), "cpu")
    for one, two, three in zip(mine.held_out(7), mine.held_out(7), other.held_out(7), strict=True):
        assert equal(one, two)
        assert equal(one, three)


def test_the_loss_reaches_every_parameter(made):
    kind, source = made
    model = kind.model(seeded(0))
    loss = kind.loss(model, kind.data(source, "cpu").batch(64, seeded(0)))
    assert loss.shape == ()
    assert torch.isfinite(loss)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert sum(float(gradient.abs().sum()) > 0 for gradient in gradients) == len(gradients)


def test_slices_of_any_size_give_the_same_result(made):
    kind, source = made
    model, data = kind.model(seeded(0)), kind.data(source, "cpu")
    results = [list(evaluate(kind, model, data, size))[-1] for size in (3, 100)]
    assert all(isinstance(result, Result) for result in results)
    assert results[0].samples == results[1].samples
    assert results[0].value == pytest.approx(results[1].value, rel=1e-5)
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-5)


@pytest.mark.slow
def test_a_few_hundred_steps_improve_the_metric(made):
    kind, source = made
    model, data = kind.model(seeded(0)), kind.data(type(source)(None, source.partition, 0, 0), "cpu")
    before = list(evaluate(kind, model, data, 100))[-1]
    optimizer, chance = torch.optim.SGD(model.parameters(), lr=0.1), seeded(0)
    for _ in range(100):
        optimizer.zero_grad()
        kind.loss(model, data.batch(16, chance)).backward()
        optimizer.step()
    after = list(evaluate(kind, model, data, 100))[-1]
    assert (after.value > before.value) == kind.higher_is_better


@pytest.mark.slow
def test_tasks_bring_no_network_and_nothing_slow():
    """The engine starts with this import: trio and libp2p belong to the daemon, others take seconds."""
    code = (
        "import sys; from starling.node.tasks.catalogue import task; from starling.node.tasks.digits import built_in; built_in();"
        "print([m for m in ('trio', 'libp2p', 'sklearn', 'scipy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
