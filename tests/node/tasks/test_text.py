"""Windows of text: none spans two separate parts, and none is both trained and tested."""

import math

import numpy as np
import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import DataError
from starling.node.tasks.evaluate import evaluate
from starling.node.tasks.text import BLOCK_WINDOWS, MAX_WINDOWS, Text
from tests.harness.tasks import REAL_DATA, built_in, needs_real_data, own, seeded, write_texts

CONTEXT = 15
TINY = {"context": CONTEXT, "width": 8, "layers": 1, "heads": 2}
BLOCK = BLOCK_WINDOWS * (CONTEXT + 1)


def numbered(path, size: int = 4000):
    """Return a text in which byte i is i mod 251, so that a window shows its position."""
    path.write_bytes((np.arange(size) % 251).astype(np.uint8).tobytes())
    return path


@pytest.mark.parametrize(("kind", "count"), [("by_file", 3), ("iid", 5)])
def test_shards_are_whole_files_or_random_blocks_without_loss(tmp_path, kind, count):
    folder = write_texts(tmp_path, files=3)
    shards = [Text(path=str(folder), **TINY).data(built_in(kind, count, shard), "cpu") for shard in range(count)]
    assert torch.bincount(torch.cat([data.text for data in shards]), minlength=256)[97:100].tolist() == [3600] * 3
    assert max(data.samples for data in shards) < 2 * min(data.samples for data in shards)
    assert kind == "iid" or [data.text.unique().tolist() for data in shards] == [[97], [98], [99]]


def test_one_file_is_cut_into_contiguous_ranges(tmp_path):
    path = numbered(tmp_path / "a.txt")
    shards = [Text(path=str(path), **TINY).data(built_in("by_file", 4, shard), "cpu") for shard in range(4)]
    assert [data.begins.tolist() for data in shards] == [[0]] * 4
    assert torch.cat([data.text for data in shards]).numpy().tobytes() == path.read_bytes()[:3600]


def test_no_window_spans_two_parts_of_a_shard(tmp_path):
    folder = write_texts(tmp_path, files=4, size=1000)
    data = Text(path=str(folder), **TINY).data(built_in("iid", 2, 0), "cpu")
    assert data.begins.numel() > 2
    batch = data.batch(4000, seeded(0))
    assert (batch == batch[:, :1]).all()


def test_windows_begin_at_any_position_within_a_part(tmp_path):
    path = numbered(tmp_path / "a.txt", 200)
    data = Text(path=str(path), **TINY).data(own(path), "cpu")
    batch = data.batch(5000, seeded(0))
    assert batch.shape == (5000, CONTEXT + 1)
    assert set(batch[:, 0].tolist()) == set(range(180 - CONTEXT))
    assert ((batch[:, 1:] - batch[:, :-1]) == 1).all()


def test_the_last_tenth_of_each_file_is_tested_and_not_trained(tmp_path):
    path = numbered(tmp_path / "a.txt", 240)
    data = Text(**TINY).data(own(path), "cpu")
    assert data.text.tolist() == list(range(216))
    windows = torch.cat(list(data.held_out(2)))
    assert windows[:, 0].tolist() == [216]
    assert int(windows.min()) >= 216


def test_held_out_windows_are_adjacent_and_bounded(tmp_path):
    numbered(tmp_path / "a.txt", 100_000)
    numbered(tmp_path / "b.txt", 300_000)
    data = Text(path=str(tmp_path), **TINY).data(built_in("by_file", 2, 0), "cpu")
    assert data.test.shape == (MAX_WINDOWS, CONTEXT + 1)
    few = Text(path=str(tmp_path / "a.txt"), context=255, width=8, layers=1, heads=2).data(built_in(), "cpu")
    assert few.test[:, 0].tolist() == [(90_000 + 255 * i) % 251 for i in range(9999 // 255)]


def test_files_too_short_for_training_are_skipped(tmp_path):
    write_texts(tmp_path, files=2)
    (tmp_path / "short.txt").write_bytes(b"z" * CONTEXT)
    (tmp_path / "line.txt").write_bytes(b"z" * 5)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "not_text.bin").write_bytes(b"y" * 4000)
    data = Text(**TINY).data(own(tmp_path), "cpu")
    assert data.text.unique().tolist() == [97, 98]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no text here"),
        ({"a.txt": b""}, "no text here"),
        ({"a.txt": b"x" * 5}, "held-out tenth of no file is longer than context = 15 bytes"),
        ({"a.txt": b"x" * 100}, "held-out tenth of no file is longer than context = 15 bytes"),
    ],
)
def test_text_that_is_missing_or_too_short_is_refused(tmp_path, content, message):
    for name, raw in content.items():
        (tmp_path / name).write_bytes(raw)
    gone = (own(tmp_path / "gone"), "not readable"), (built_in(), "task.path: .* start with --data PATH")
    for source, words in ((own(tmp_path), message), *gone):
        with pytest.raises(DataError, match=words) as caught:
            Text(**TINY).data(source, "cpu")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"partition\.kind: these data cannot be cut dirichlet, choose by_file, iid"):
        Text(path=str(write_texts(tmp_path)), **TINY).data(built_in("dirichlet", 2, 0), "cpu")


def test_a_fresh_model_predicts_almost_uniformly():
    """Its prediction is near uniform: 8 bits per byte, which checks the unit and the count of bytes."""
    task = Text(**TINY)
    batch = torch.randint(256, (32, CONTEXT + 1), generator=seeded(0))
    with torch.no_grad():
        bits, nats, count = task.score(task.model(seeded(0)), batch)
        loss = float(task.loss(task.model(seeded(0)), batch))
    assert count == 32 * CONTEXT
    assert bits / count == pytest.approx(8.0, abs=0.05)
    assert bits == pytest.approx(nats / math.log(2))
    assert loss == pytest.approx(nats / count, rel=1e-5)


def test_the_model_does_not_see_the_future():
    model = Text(**TINY).model(seeded(0))
    one = torch.randint(256, (1, CONTEXT), generator=seeded(0))
    two = one.clone()
    two[0, -1] ^= 1
    assert torch.equal(model(one)[:, :-1], model(two)[:, :-1])
    assert not torch.equal(model(one)[:, -1], model(two)[:, -1])


def test_the_default_model_has_842_496_parameters_with_tied_embeddings():
    assert sum(p.numel() for p in Text().model(seeded(0)).parameters()) == 842_496


@needs_real_data
@pytest.mark.slow
def test_a_tiny_model_learns_shakespeare_in_150_steps():
    """Far below the 4.8 bits that letter frequencies alone give."""
    task = Text(path=str(REAL_DATA / "text" / "tinyshakespeare.txt"), context=32, width=32, layers=1, heads=2)
    data, model, chance = task.data(built_in("by_file", 4, 1), "cpu"), task.model(seeded(0)), seeded(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        task.loss(model, data.batch(32, chance)).backward()
        optimizer.step()
    assert list(evaluate(task, model, data, 128))[-1].value < 4.5


@needs_real_data
@pytest.mark.slow
def test_a_folder_of_authors_gives_one_shard_per_author():
    folder = REAL_DATA / "text" / "authors"
    files = sorted(folder.glob("*.txt"))
    data = Text(path=str(folder)).data(built_in("by_file", len(files), 2), "cpu")
    raw = files[2].read_bytes()
    assert data.text.numpy().tobytes() == raw[: len(raw) - len(raw) // 10]
