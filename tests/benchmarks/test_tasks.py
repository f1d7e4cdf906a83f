"""Data sets used by benchmarks only."""

import gzip
import itertools
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import tasks
from starling.gossip.errors import ConfigError
from starling.node.config.schema import PartitionSection
from starling.node.tasks.api import Source

SHARED = Path(os.environ.get("STARLING_DATA") or Path(__file__).parents[3] / "shared" / "data")


def source(kind: str, shard: int = 0, shards: int = 2) -> Source:
    return Source(None, PartitionSection(kind=kind, shards=shards), shard, 0)


def idx(path: Path, *shape: int) -> None:
    size = int(np.prod(shape))
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    path.write_bytes(gzip.compress(head + bytes(value % 10 for value in range(size))))


def test_images_are_bytes_and_few_held_out_ones_are_evaluated(tmp_path):
    for split, many in (("train", 20), ("t10k", tasks.TESTED + 5)):
        idx(tmp_path / f"{split}-images-idx3-ubyte.gz", many, 28, 28)
        idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", many)
    task = tasks.Mnist(path=str(tmp_path), hidden=3)
    data = task.data(source("by_label"), "cpu")
    assert data.x.shape == (10, 784)
    assert sorted(set(data.y.tolist())) == [0, 2, 4, 6, 8]
    assert len(data.test_y) == tasks.TESTED
    assert task.model(torch.Generator())(data.batch(4, torch.Generator())[0]).shape == (4, 10)


def test_a_speaker_s_samples_stay_together_and_first_takes_are_held_out(tmp_path):
    """Features have mean 0 and variance 1 over the training data."""
    generator = np.random.default_rng(0)
    count = 40
    arrays = {
        "logmel": generator.normal(3.0, 2.0, (count, 48, 32)).astype(np.float16),
        "digit": np.arange(count) % 10,
        "speaker": np.arange(count) % 2,
        "take": np.arange(count) // 4,
    }
    np.savez(tmp_path / "speech.npz", **arrays)
    train, test = tasks.speech(tmp_path / "speech.npz")
    assert (len(train.y), len(test.y)) == (20, 20)
    assert train.x.shape == (20, 384)
    assert np.allclose(train.x.mean(axis=0), 0.0, atol=1e-5)
    assert np.allclose(train.x.std(axis=0), 1.0, atol=1e-3)
    task = tasks.Speech(path=str(tmp_path / "speech.npz"))
    odd = [set((task.data(source("by_key", shard), "cpu").y % 2).tolist()) for shard in range(2)]
    assert sorted(map(sorted, odd)) == [[0], [1]]  # in this test the label has the speaker's parity


def test_no_node_trains_on_the_speaker_left_out(tmp_path):
    """Digits are shifted by whole frames and bands: each batch has the same numbers in another order."""
    generator = np.random.default_rng(0)
    arrays = {
        "logmel": generator.normal(3.0, 2.0, (60, tasks.FRAMES, tasks.BANDS)).astype(np.float16),
        "digit": np.arange(60) % 10,
        "speaker": np.arange(60) % 6,
    }
    np.savez(tmp_path / "speech.npz", **arrays)
    train, test = tasks.speakers(tmp_path / "speech.npz", 2)
    assert set(train.keys) == {0, 1, 3, 4, 5}
    assert set(test.keys) == {2}
    assert abs(float(train.x.mean())) < 1e-4
    assert float(train.x.std()) == pytest.approx(1.0, abs=1e-4)
    only, others = tasks.speakers(tmp_path / "speech.npz", 2, only=True)
    assert set(only.keys) == {2}
    assert set(others.keys) == {0, 1, 3, 4, 5}
    task = tasks.Speakers(path=str(tmp_path / "speech.npz"), left_out=2, hidden=3)
    alone = tasks.Speakers(path=task.path, left_out=2, hidden=3, only=True).data(source("by_key", 1, 2), "cpu")
    assert (alone.samples, sum(len(labels) for _, labels in alone.held_out(4))) == (10, 50)
    data = task.data(source("by_key", 0, 5), "cpu")
    assert data.samples == 10
    x, y = data.batch(32, torch.Generator().manual_seed(1))
    own = {tuple(sorted(row)): (row, label) for row, label in zip(train.x.tolist(), train.y.tolist(), strict=True)}
    before = [own[tuple(sorted(row))] for row in x.tolist()]
    assert [label for _, label in before] == y.tolist()
    assert any(row != old for row, (old, _) in zip(x.tolist(), before, strict=True))
    first = np.array(before[0][0]).reshape(tasks.FRAMES, tasks.BANDS)
    moves = itertools.product(range(-tasks.LATER, tasks.LATER + 1), range(-tasks.HIGHER, tasks.HIGHER + 1))
    assert any(np.array_equal(np.roll(first, move, (0, 1)).ravel(), x[0].numpy()) for move in moves)
    assert sum(len(labels) for _, labels in data.held_out(4)) == 10
    assert task.model(torch.Generator())(x).shape == (32, 10)
    with pytest.raises(ConfigError, match=r"task\.path alone"):
        task.data(Source(tmp_path, PartitionSection(kind="by_key", shards=5), 0, 0), "cpu")


def test_a_libsvm_file_is_read_by_feature_index(tmp_path):
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(b"-1 1:1 3:0.5 \n+1 2:2\n"))
    examples = tasks.libsvm(path, 3)
    assert examples.x.tolist() == [[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]]
    assert examples.y.tolist() == [0, 1]


@pytest.mark.parametrize("text", [b"-1 0:1", b"-1 4:1", b"-1 1", b"x 1:1", b"\n", b"\xff", b"-1"])
def test_an_invalid_libsvm_file_gives_one_line_with_its_name(tmp_path, text):
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(text))
    with pytest.raises(ConfigError, match=r"rows\.gz: not a readable LIBSVM file"):
        tasks.libsvm(path, 3)
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"rows\.gz: not a readable LIBSVM file"):
        tasks.libsvm(path, 3)


def test_a_volunteers_own_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reads task\.path alone"):
        tasks.Adult(path="x").data(Source(tmp_path, PartitionSection(kind="iid", shards=1), 0, 0), "cpu")


@pytest.mark.skipif(not (SHARED / "tabular").is_dir(), reason="no folder tabular/ where STARLING_DATA says, or in ../shared/data")
def test_adult_has_its_features_and_both_classes():
    task = tasks.Adult(path=str(SHARED / "tabular"))
    data = task.data(source("by_label", 1), "cpu")
    assert data.x.shape[1] == 123
    assert data.y.unique().tolist() == [1]
    assert len(data.test_y) == tasks.TESTED
