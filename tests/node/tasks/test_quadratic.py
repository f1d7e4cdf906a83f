"""The problem with a known answer must have that answer."""

from __future__ import annotations

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.tasks.quadratic import Quadratic
from tests.harness.tasks import built_in, own, seeded

TASK = Quadratic(dim=12, nodes=5, dtype="float64")


def shards(task: Quadratic = TASK, seed: int = 0):
    return [task.data(built_in(shards=task.nodes, shard=i, seed=seed), "cpu") for i in range(task.nodes)]


def gradient(data, x: torch.Tensor, generator=None) -> torch.Tensor:
    model = TASK.model(seeded(0))
    with torch.no_grad():
        model.x.copy_(x)
    return torch.autograd.grad(TASK.loss(model, data.batch(1, generator or seeded(0))), model.x)[0]


def test_gradients_of_all_nodes_cancel_at_the_optimum_only():
    x = TASK.optimum(range(5), 0)
    assert float(sum(gradient(data, x) for data in shards()).norm()) < 1e-12
    assert min(float(gradient(data, x).norm()) for data in shards()) > 0.1


def test_the_optimum_of_the_living_is_that_of_their_bowls():
    alive = (0, 2, 4)
    x = TASK.optimum(alive, 0)
    data = shards()
    assert float(sum(gradient(data[i], x) for i in alive).norm()) < 1e-12
    assert float((x - TASK.optimum(range(5), 0)).norm()) > 0.1


def test_curvatures_span_the_condition_number_up_to_one():
    for data in shards(Quadratic(dim=8, nodes=3, condition=100.0, dtype="float64")):
        values = torch.linalg.eigvalsh(data.bowl.A)
        assert float(values[-1]) == pytest.approx(1.0)
        assert float(values[0]) == pytest.approx(0.01)


def test_the_error_is_one_at_the_start_and_zero_at_the_optimum():
    (test,) = shards()[0].held_out(8)
    model = TASK.model(seeded(0))
    with torch.no_grad():
        assert TASK.score(model, test)[0] == pytest.approx(1.0)
        model.x.copy_(TASK.optimum(range(5), 0))
        assert TASK.score(model, test) == (0.0, 0.0, 1)


def test_all_nodes_measure_against_the_same_optimum():
    for data in shards():
        (test,) = data.held_out(1)
        assert torch.equal(test.b, TASK.optimum(range(5), 0))


def test_without_spread_the_minimum_is_shared():
    for data in shards(Quadratic(dim=12, nodes=5, spread=0.0, dtype="float64")):
        assert torch.allclose(data.bowl.b, data.whole.b)


def test_another_seed_is_another_problem():
    assert not torch.equal(TASK.optimum(range(5), 0), TASK.optimum(range(5), 1))


def test_gradient_noise_has_the_size_that_was_asked_for_and_comes_from_the_generator():
    (data, *_) = shards(Quadratic(dim=12, nodes=5, noise=0.5, dtype="float64"))
    (clean, *_) = shards()
    x, chance = torch.ones(12, dtype=torch.float64), seeded(1)
    errors = torch.stack([gradient(data, x, chance) - gradient(clean, x) for _ in range(500)])
    assert float(errors.std()) == pytest.approx(0.5, rel=0.05)
    assert float(errors.mean()) == pytest.approx(0.0, abs=0.02)
    assert torch.equal(gradient(data, x, seeded(9)), gradient(data, x, seeded(9)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_has_the_precision_that_was_asked_for(dtype):
    task = Quadratic(dim=4, nodes=2, dtype=dtype)
    assert task.model(seeded(0)).x.dtype == getattr(torch, dtype)
    assert shards(task)[0].bowl.A.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (built_in(shards=8), r"partition\.shards: must be task\.params\.nodes = 5, got 8"),
        (built_in(shards=5, shard=5), r"shard: must be in \[0, 5\)"),
    ],
)
def test_a_problem_for_another_number_of_nodes_is_refused(source, message):
    """Otherwise the error would be measured against an optimum that nobody looks for."""
    with pytest.raises(ConfigError, match=message):
        TASK.data(source, "cpu")


def test_own_data_make_no_sense_here(tmp_path):
    with pytest.raises(ConfigError, match="reads no files"):
        TASK.data(own(tmp_path), "cpu")
