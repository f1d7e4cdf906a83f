"""The built-in digits, and a volunteer's own digits."""

import numpy as np
import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.config.schema import OptimizerSection
from starling.node.engine.optimizers import optimizer
from starling.node.engine.schedules import schedule
from starling.node.tasks.api import DataError
from starling.node.tasks.digits import DATA, TRAINING, Digits, built_in
from starling.node.tasks.evaluate import evaluate
from tests.harness.tasks import built_in as source
from tests.harness.tasks import own, seeded


def test_the_split_is_1437_to_360_of_all_1797_and_the_same_at_every_start():
    """Otherwise a restarted node would be tested on its training data."""
    train, test = built_in()
    assert (train.x.shape, test.x.shape) == ((TRAINING, 64), (360, 64))
    assert train.x.dtype == np.float32
    assert (float(train.x.min()), float(train.x.max())) == (0.0, 1.0)
    assert np.bincount(np.concatenate([train.y, test.y])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    for one, two in zip((train, test), built_in(), strict=True):
        assert (one.x == two.x).all()
        assert (one.y == two.y).all()


def test_the_file_is_that_of_scikit_learn():
    """scikit-learn is not needed to run, so the test is skipped without it."""
    sklearn = pytest.importorskip("sklearn.datasets")
    reference = sklearn.load_digits()
    rows = np.loadtxt(DATA, delimiter=",")
    assert np.array_equal(rows[:, :64], reference.data)
    assert np.array_equal(rows[:, 64], reference.target)


def test_the_default_model_has_4810_parameters_and_he_initialisation_keeps_the_scale_of_activations():
    assert sum(p.numel() for p in Digits().model(seeded(0)).parameters()) == 4810
    model, x = Digits(hidden=4096).model(seeded(0)), torch.randn(256, 64, generator=seeded(1))
    with torch.no_grad():
        assert float(model[0](x).var()) == pytest.approx(2.0, rel=0.1)
        assert float(model(x).var()) == pytest.approx(1.0, rel=0.2)


def test_shards_together_are_the_training_split():
    shards = [Digits().data(source("dirichlet", 8, shard), "cpu") for shard in range(8)]
    assert sum(data.samples for data in shards) == TRAINING
    rows = {tuple(row) for data in shards for row in data.x.tolist()}
    assert rows == {tuple(row) for row in built_in()[0].x.tolist()}


def test_a_shard_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"shard: must be in \[0, 4\)"):
        Digits().data(source(shards=4, shard=4), "cpu")


@pytest.mark.parametrize("shape", [(50, 64), (50, 8, 8)])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_tenth_of_own_digits_is_held_out(tmp_path, shape, model):
    x = np.random.default_rng(0).integers(0, 17, shape)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(50) % 10)
    task = Digits(model)
    data = task.data(own(tmp_path / "mine.npz"), "cpu")
    again = task.data(own(tmp_path / "mine.npz"), "cpu")
    assert (data.samples, data.test_y.numel()) == (45, 5)
    assert torch.equal(data.test_x, again.test_x)
    assert torch.isfinite(task.loss(task.model(seeded(0)), data.batch(8, seeded(0))))


GOOD_X, GOOD_Y = np.ones((20, 64), np.float32), np.arange(20) % 10


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GOOD_X}, "has no array 'y', needed are x, y"),
        ({"x": GOOD_X[:, :60], "y": GOOD_Y}, r"x must be numbers of shape \(n, 64\) or \(n, 8, 8\), got float32"),
        ({"x": GOOD_X * 17, "y": GOOD_Y}, r"x must be in \[0, 16\]"),
        ({"x": GOOD_X * np.nan, "y": GOOD_Y}, r"x must be in \[0, 16\]"),
        ({"x": GOOD_X, "y": GOOD_Y + 1}, r"labels must be in \[0, 10\), got 1 to 10"),
        ({"x": GOOD_X, "y": GOOD_Y[:-1]}, "labels must be 20 whole numbers"),
        ({"x": GOOD_X, "y": GOOD_Y.astype(float)}, "labels must be 20 whole numbers, got float64"),
        ({"x": GOOD_X[:1], "y": GOOD_Y[:1]}, "1 sample is too few"),
        ({"x": np.empty((0, 64)), "y": np.empty(0, np.int64)}, "x.npy holds nothing"),
    ],
)
def test_own_digits_that_do_not_fit_are_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        Digits().data(own(tmp_path / "mine.npz"), "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_one_node_with_all_data_reaches_96_percent():
    """The reference for swarms: SGD with momentum .9, lr .02, cosine, 4,000 steps of 32 samples."""
    task = Digits()
    model, data = task.model(seeded(0)), task.data(source(), "cpu")
    parameters = list(model.parameters())
    x = torch.nn.utils.parameters_to_vector(parameters).detach()
    section = OptimizerSection()
    sgd, rate, chance = optimizer(section, x), schedule(section, 200), seeded(1)
    for step in range(4000):
        gradients = torch.autograd.grad(task.loss(model, data.batch(32, chance)), parameters)
        sgd.step(x, torch.cat([gradient.flatten() for gradient in gradients]), rate.at(step // 20))
        torch.nn.utils.vector_to_parameters(x, parameters)
    assert list(evaluate(task, model, data, 360))[-1].value >= 0.96
