"""Problems whose answer is known, for many parameters and without a formula: they must have that answer."""

from __future__ import annotations

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.tasks.diagonal import Diagonal
from starling.node.tasks.logistic import Logistic
from tests.harness.tasks import built_in, own, seeded

MADE = [
    Diagonal(dim=40, nodes=5, condition=50.0, dtype="float64"),
    Logistic(dim=6, nodes=5, samples=40, dtype="float64"),
]
each = pytest.mark.parametrize("made", MADE, ids=["diagonal", "logistic"])


def shards(made, seed=0):
    return [made.data(built_in(shards=made.nodes, shard=i, seed=seed), "cpu") for i in range(made.nodes)]


def gradient(made, data, x):
    """Full: a batch as large as the shard is the shard."""
    model = made.model(seeded(0))
    with torch.no_grad():
        model.x.copy_(x)
    return torch.autograd.grad(made.loss(model, data.batch(data.samples, seeded(0))), model.x)[0]


@each
def test_gradients_of_all_nodes_cancel_at_the_optimum_only(made):
    x = made.optimum(range(5), 0)
    gradients = [gradient(made, data, x) for data in shards(made)]
    assert float(sum(gradients).norm()) < 1e-10
    assert min(float(each.norm()) for each in gradients) > 0.01


@each
def test_the_optimum_of_the_living_is_that_of_their_own(made):
    x = made.optimum((0, 2, 4), 0)
    gradients = [gradient(made, data, x) for data in shards(made)]
    assert float((gradients[0] + gradients[2] + gradients[4]).norm()) < 1e-10
    assert float(sum(gradients).norm()) > 0.01


@each
def test_the_error_is_one_at_the_start_and_zero_at_the_optimum(made):
    (test,) = shards(made)[0].held_out(8)
    model = made.model(seeded(0))
    with torch.no_grad():
        assert made.score(model, test)[0] == pytest.approx(1.0)
        model.x.copy_(made.optimum(range(5), 0))
        assert made.score(model, test)[0] == pytest.approx(0.0, abs=1e-20)


@each
def test_the_wrong_shards_and_files_are_refused(made):
    with pytest.raises(ConfigError, match=r"partition\.shards: must be task\.params\.nodes = 5, got 4"):
        made.data(built_in(shards=4), "cpu")
    with pytest.raises(ConfigError, match=r"shard: must be in \[0, 5\)"):
        made.data(built_in(shards=5, shard=5), "cpu")
    with pytest.raises(ConfigError, match="reads no files"):
        made.data(own("/nowhere"), "cpu")


def test_curvatures_are_the_same_everywhere_but_in_another_order():
    made = MADE[0]
    first, second = (data.bowl.a for data in shards(made)[:2])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    assert float(first.max() / first.min()) == pytest.approx(50.0)


def test_noise_is_new_in_each_batch_and_as_large_as_asked():
    data = Diagonal(dim=4000, nodes=2, noise=0.5).data(built_in(shards=2), "cpu")
    chance = seeded(0)
    one, two = data.batch(1, chance).noise, data.batch(1, chance).noise
    assert not torch.equal(one, two)
    assert float(one.std()) == pytest.approx(0.5, rel=0.05)


def test_labels_are_as_uneven_as_asked():
    """Which is what makes plain averaging fall short."""
    for node, data in enumerate(shards(Logistic(dim=6, nodes=4, samples=40, skew=0.9))):
        main = 1.0 if node % 2 else -1.0
        assert int((data.y == main).sum()) == 36


def test_a_batch_as_large_as_the_shard_is_all_of_it_without_chance():
    """So a batch_size says whether gradients are full."""
    data, chance = shards(MADE[1])[0], seeded(0)
    before = chance.get_state()
    assert data.batch(40, chance)[0] is data.z
    assert torch.equal(chance.get_state(), before)
    assert data.batch(39, chance)[0].shape == (39, 6)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (Diagonal, {"dim": 0}, r"dim: must be a whole number in \[1, 16777216\], got 0"),
        (Diagonal, {"condition": 0.5}, r"condition: must be a number in \[1, 1e\+12\]"),
        (Logistic, {"skew": 0.4}, r"skew: must be a number in \[0\.5, 1\], got 0\.4"),
        (Logistic, {"mu": 0}, r"mu: must be a number in \[1e-06, 10\], got 0"),
    ],
)
def test_values_out_of_bounds_are_refused(kind, params, message):
    with pytest.raises(ValueError, match=message):
        kind(**params)
