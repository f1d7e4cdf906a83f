"""Problems with a known optimum have that optimum."""

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import DataError
from starling.node.tasks.convex import Diagonal, Logistic, Quadratic
from tests.harness.tasks import built_in, own, seeded

MADE = (
    Quadratic(dim=12, nodes=5, dtype="float64"),
    Diagonal(dim=40, nodes=5, condition=50.0, dtype="float64"),
    Logistic(dim=6, nodes=5, samples=40, dtype="float64"),
)
each = pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)


def shards(made, seed=0):
    return [made.data(built_in(shards=made.nodes, shard=i, seed=seed), "cpu") for i in range(made.nodes)]


def at(made, x):
    model = made.model(seeded(0))
    with torch.no_grad():
        model.x.copy_(x)
    return model


def gradient(made, data, x, generator=None):
    model = at(made, x)
    return torch.autograd.grad(made.loss(model, data.batch(data.samples, generator or seeded(0))), model.x)[0]


@each
@pytest.mark.parametrize("alive", [range(5), (0, 2, 4)], ids=["all", "some"])
def test_gradients_of_the_nodes_cancel_at_their_optimum_only(made, alive):
    x = made.optimum(alive, 0)
    gradients = [gradient(made, data, x) for data in shards(made)]
    assert float(sum(gradients[i] for i in alive).norm()) < 1e-10
    assert min(float(gradient.norm()) for gradient in gradients) > 0.01
    assert len(alive) == 5 or float(sum(gradients).norm()) > 0.01


@each
def test_the_error_is_one_at_the_start_and_zero_at_the_optimum_for_all_nodes(made):
    for data in shards(made):
        (test,) = data.held_out(8)
        with torch.no_grad():
            assert made.score(made.model(seeded(0)), test)[0] == pytest.approx(1.0)
            assert made.score(at(made, made.optimum(range(5), 0)), test)[0] == pytest.approx(0.0, abs=1e-20)


@each
def test_the_wrong_shards_and_files_are_refused(made):
    with pytest.raises(ConfigError, match=r"partition\.shards: must be task\.nodes = 5, got 4"):
        made.data(built_in(shards=4), "cpu")
    with pytest.raises(ConfigError, match=r"shard: must be in \[0, 5\)"):
        made.data(built_in(shards=5, shard=5), "cpu")
    with pytest.raises(DataError, match=f"data: {type(made).__name__.lower()} draws its own problem and reads no"):
        made.data(own("/nowhere"), "cpu")


@each
def test_another_seed_gives_another_problem(made):
    assert not torch.equal(made.optimum(range(5), 0), made.optimum(range(5), 1))


@pytest.mark.parametrize("kind", [Quadratic, Diagonal])
def test_curvatures_span_the_condition_number_up_to_one_and_differ_by_node(kind):
    first, second = (data.bowl.A for data in shards(kind(dim=8, nodes=2, condition=100.0, dtype="float64")))
    assert not torch.equal(first, second)
    for A in (first, second):
        values = torch.linalg.eigvalsh(A if A.dim() == 2 else A.diag())
        assert (float(values[0]), float(values[-1])) == (pytest.approx(0.01), pytest.approx(1.0))


@pytest.mark.parametrize("kind", [Quadratic, Diagonal])
def test_without_spread_the_minimum_is_shared(kind):
    for data in shards(kind(dim=12, nodes=3, spread=0.0, dtype="float64")):
        assert torch.allclose(data.bowl.b, data.whole.b)


@pytest.mark.parametrize("kind", [Quadratic, Diagonal])
def test_gradient_noise_has_the_configured_size_and_comes_from_the_generator(kind):
    noisy, clean = (kind(dim=12, nodes=2, noise=noise, dtype="float64") for noise in (0.5, 0.0))
    data, x, chance = shards(noisy)[0], torch.ones(12, dtype=torch.float64), seeded(1)
    errors = torch.stack([gradient(noisy, data, x, chance) - gradient(clean, shards(clean)[0], x) for _ in range(500)])
    assert float(errors.std()) == pytest.approx(0.5, rel=0.05)
    assert float(errors.mean()) == pytest.approx(0.0, abs=0.02)
    assert torch.equal(gradient(noisy, data, x, seeded(9)), gradient(noisy, data, x, seeded(9)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_has_the_configured_precision(dtype):
    task = Quadratic(dim=4, nodes=2, dtype=dtype)
    assert task.model(seeded(0)).x.dtype == shards(task)[0].bowl.A.dtype == getattr(torch, dtype)


def test_labels_are_as_uneven_as_configured():
    for node, data in enumerate(shards(Logistic(dim=6, nodes=4, samples=40, skew=0.9))):
        assert int((data.y == (1.0 if node % 2 else -1.0)).sum()) == 36


def test_a_batch_as_large_as_the_shard_is_the_whole_shard():
    """So batch_size decides whether gradients are full."""
    data, chance = shards(MADE[2])[0], seeded(0)
    before = chance.get_state()
    assert data.batch(40, chance)[0] is data.z
    assert torch.equal(chance.get_state(), before)
    assert data.batch(39, chance)[0].shape == (39, 6)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (Diagonal, {"dim": 0}, "dim must be >= 1 and <= 16777216, got 0"),
        (Diagonal, {"condition": 0.5}, r"condition must be finite and >= 1 and <= 1e\+12, got 0\.5"),
        (Quadratic, {"nodes": 4097}, "nodes must be >= 1 and <= 4096, got 4097"),
        (Logistic, {"skew": 0.4}, r"skew must be finite and >= 0\.5 and <= 1, got 0\.4"),
        (Logistic, {"mu": 0}, "mu must be finite and >= 1e-06 and <= 10, got 0"),
    ],
)
def test_values_out_of_bounds_are_refused(kind, params, message):
    with pytest.raises(ValueError, match=message):
        kind(**params)
