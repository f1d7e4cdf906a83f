"""Guarantees of every task of the catalogue to the engine."""

import subprocess
import sys

import pytest
import torch

from starling.node.catalogues import TASKS, task
from starling.node.tasks.evaluate import evaluate
from tests.harness.tasks import built_in, seeded, write_mnist, write_texts

IMAGES = {"height": 4, "width": 4, "hidden": 8}
CONVEX = {"dim": 5, "nodes": 4}
KINDS = {
    "digits": ({"hidden": 8}, built_in("dirichlet", 4, 1)),
    "digits cnn": ({"model": "cnn", "hidden": 8}, built_in("by_label", 4, 1)),
    "images": (IMAGES, built_in("iid", 4, 1)),
    "images cnn": (IMAGES | {"model": "cnn"}, built_in("iid", 4, 1)),
    "quadratic": (CONVEX, built_in(shards=4, shard=1)),
    "quadratic noisy": (CONVEX | {"noise": 0.5}, built_in(shards=4, shard=1)),
    "diagonal": (CONVEX | {"spread": 0.1}, built_in(shards=4, shard=1)),
    "logistic": (CONVEX | {"skew": 0.5}, built_in(shards=4, shard=1)),
    "text": ({"context": 16, "width": 8, "layers": 2, "heads": 2}, built_in("iid", 3, 1)),
    "synthetic": ({"hidden": 8, "model": "mlp"}, built_in("iid", 4, 1)),
}
WRITE = {"images": write_mnist, "text": write_texts}


@pytest.fixture(params=KINDS)
def made(request, tmp_path):
    kind, (params, source) = request.param.partition(" ")[0], KINDS[request.param]
    path = {"path": str(WRITE[kind](tmp_path))} if kind in WRITE else {}
    return task(kind, params | path), source


def shard(source, number):
    return type(source)(None, source.partition, number, source.seed)


def equal(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, tuple):
        return all(equal(a, b) for a, b in zip(one, two, strict=True))
    return one is two or all(equal(getattr(one, k), getattr(two, k)) for k in one.__slots__ if getattr(one, k) is not None)


def test_every_kind_of_the_catalogue_is_tested_here():
    assert set(TASKS) == {name.partition(" ")[0] for name in KINDS} | {"script"}  # tests/node/tasks/test_script.py


def test_every_node_starts_with_the_same_model_without_buffers(made):
    """All random numbers come from the given generator, none from torch's global one. Buffers are not exchanged."""
    kind, _ = made
    models = []
    for noise in range(2):
        torch.rand(noise + 1)
        models.append(kind.model(seeded(7)).state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not list(kind.model(seeded(0)).buffers())


def test_batches_follow_the_generator_and_held_out_samples_are_equal_on_every_node(made):
    kind, source = made
    data, other = kind.data(source, "cpu"), kind.data(shard(source, 2), "cpu")
    assert data.samples >= 1
    one, two = seeded(3), seeded(3)
    for _ in range(3):
        assert equal(data.batch(4, one), data.batch(4, two))
    for batches in zip(data.held_out(7), data.held_out(7), other.held_out(7), strict=True):
        assert equal(batches[0], batches[1])
        assert equal(batches[0], batches[2])


def test_the_loss_reaches_every_parameter(made):
    kind, source = made
    model = kind.model(seeded(0))
    loss = kind.loss(model, kind.data(source, "cpu").batch(64, seeded(0)))
    assert loss.shape == ()
    assert torch.isfinite(loss)
    for gradient in torch.autograd.grad(loss, list(model.parameters())):
        assert torch.isfinite(gradient).all()
        assert gradient.any()


def test_slices_of_any_size_give_the_same_result(made):
    kind, source = made
    model, data = kind.model(seeded(0)), kind.data(source, "cpu")
    (*_, few), (*_, many) = (evaluate(kind, model, data, size) for size in (3, 100))
    assert few.samples == many.samples
    assert (few.value, few.loss) == (pytest.approx(many.value, rel=1e-5), pytest.approx(many.loss, rel=1e-5))


@pytest.mark.slow
def test_a_few_hundred_steps_improve_the_metric(made):
    kind, source = made
    model, data = kind.model(seeded(0)), kind.data(shard(source, 0), "cpu")
    *_, before = evaluate(kind, model, data, 100)
    optimizer, chance = torch.optim.SGD(model.parameters(), lr=0.1), seeded(0)
    for _ in range(100):
        optimizer.zero_grad()
        kind.loss(model, data.batch(16, chance)).backward()
        optimizer.step()
    *_, after = evaluate(kind, model, data, 100)
    assert (after.value > before.value) == kind.higher_is_better


@pytest.mark.slow
def test_tasks_import_neither_the_network_nor_slow_modules():
    """The engine starts with this import: trio and libp2p belong to the daemon, and other modules take seconds."""
    code = (
        "import sys; from starling.node.catalogues import task; from starling.node.tasks.digits import built_in; built_in();"
        "print([m for m in ('trio', 'libp2p', 'sklearn', 'scipy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
