"""The synthetic task: reproducible samples, a partition by node, and models that learn it."""

import hashlib

import numpy as np
import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import bind, layout
from starling.node.config.schema import PartitionSection
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.synthetic import CLASSES, TRAINING, Synthetic, drawn, split
from tests.harness.sections import taken
from tests.harness.tasks import own

LABELS, FIRST, MEAN = "a5fcfdc357840bea", [-1.3858252, -2.0593328, 1.5184041, 0.6766939], 0.8911378


def source(shard=0, shards=16, seed=0, kind="dirichlet", alpha=0.5):
    return Source(None, taken(PartitionSection, kind=kind, shards=shards, alpha=alpha), shard, seed)


def test_the_synthetic_samples_are_golden():
    """Other programs' tables use the same samples: labels exactly, features except for the last bits of a matrix product."""
    labels = np.concatenate([examples.y for examples in drawn()]).astype(np.uint8)
    assert hashlib.blake2b(labels.tobytes(), digest_size=8).hexdigest() == LABELS
    assert drawn()[0].x[0, :4].tolist() == pytest.approx(FIRST, abs=1e-6)
    assert float(np.abs(drawn()[1].x).mean()) == pytest.approx(MEAN, abs=1e-6)
    chance = np.random.default_rng(1234)
    means, shared = chance.normal(size=(10, 64)) * 0.30, chance.normal(size=(64, 12)) * 0.55
    for examples in drawn():
        y = chance.integers(0, 10, size=4000)
        x = means[y] + chance.normal(size=(4000, 12)) @ shared.T * 0.5 + chance.normal(size=(4000, 64)) * 0.55
        assert (examples.y == y).all()
        assert (examples.x == x.astype(np.float32)).all()


@pytest.mark.parametrize(("seed", "shards", "alpha"), [(0, 16, 0.5), (1, 16, 0.5), (0, 1000, 0.1)])
def test_a_split_covers_all_samples_and_fills_small_shards(seed, shards, alpha):
    train, _ = drawn()
    labels = tuple(train.y.tolist())
    parts, others = (split(labels, shards, alpha, seed + more) for more in (0, 1))
    assert sorted(set(np.concatenate(parts).tolist())) == list(range(TRAINING))
    assert min(map(len, parts)) >= 20
    shares = np.array([np.bincount(train.y[part], minlength=CLASSES) / len(part) for part in parts])
    assert shares.max(axis=1).mean() > 0.23  # it would be a tenth with equal shares
    assert any(a.tolist() != b.tolist() for a, b in zip(parts, others, strict=True))


def test_nodes_have_different_training_samples_and_the_same_test_split():
    one, other = (Synthetic().data(source(shard), "cpu") for shard in (0, 1))
    assert torch.equal(one.test_x, other.test_x)
    assert one.samples != other.samples
    whole = Synthetic().data(source(shards=1, kind="iid"), "cpu")
    assert whole.samples == TRAINING


def test_initial_models_are_equal_and_softmax_starts_at_zero():
    flat, _ = bind(model := Synthetic().model(generator(0, "model")), layout(model))
    assert flat.numel() == 650
    assert not bool(flat.any())
    small, _ = bind(mlp := Synthetic(model="mlp").model(generator(0, "model")), layout(mlp))
    assert small.numel() == 2410


@pytest.mark.slow
def test_training_on_all_samples_beats_training_on_one_node_s():
    """A lone node learns the labels it has; all samples together reach at most .96."""

    def learned(data):
        task = Synthetic()
        model = task.model(generator(0, "model"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
        for step in range(300):
            optimizer.zero_grad()
            task.loss(model, data.batch(32, generator(0, "batch", step))).backward()
            optimizer.step()
        with torch.no_grad():
            right, _, samples = task.score(model, (data.test_x, data.test_y))
        return right / samples

    assert learned(Synthetic().data(source(shards=1, kind="iid"), "cpu")) > 0.94
    assert learned(Synthetic().data(source(), "cpu")) < 0.75


def test_unsupported_data_are_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match="synthetic draws its own samples and reads no files"):
        Synthetic().data(own(tmp_path), "cpu")
    with pytest.raises(ConfigError, match="cannot cut 4000 samples into 4001 shards"):
        Synthetic().data(source(shards=4001), "cpu")
    with pytest.raises(ConfigError, match="these data cannot be cut by_file"):
        Synthetic().data(source(kind="by_file"), "cpu")
    with pytest.raises(ValueError, match="model must be one of softmax, mlp, got 'cnn'"):
        Synthetic(model="cnn")
