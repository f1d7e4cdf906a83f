"""Image files of any origin: valid ones are read, and others refused in one line with the reason."""

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import DataError
from starling.node.tasks.files import read_idx, read_npz
from starling.node.tasks.images import Images
from starling.node.tasks.reserved import FORMS, data_of
from tests.harness.processes import ROOT
from tests.harness.tasks import REAL_DATA, built_in, needs_real_data, own, seeded, write_mnist

SMALL = {"height": 4, "width": 4}


def test_data_that_a_task_cannot_read_are_refused_with_the_page_that_has_the_forms(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    images = Images(**SMALL)
    page, heading = FORMS.split()[0].split("#")
    assert f"## {heading.replace('-', ' ').capitalize()}\n" in (ROOT / page).read_text()
    with pytest.raises(ConfigError, match=f"not a readable .npz file.*; {FORMS}$"):
        data_of(images, own(tmp_path / "bad.npz"), "cpu")
    with pytest.raises(ConfigError, match=r"^shard: must be in \[0, 2\), the manifest's partition.shards, got 3$"):
        data_of(Images(path=str(write_mnist(tmp_path)), **SMALL), built_in(shards=2, shard=3), "cpu")


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_a_folder_in_the_format_of_mnist_is_read(tmp_path, gz):
    """Bytes stay bytes in memory: sixty thousand images take 47 MB as bytes and 188 MB as floats, on every node of a machine."""
    data = Images(path=str(write_mnist(tmp_path, gz=gz)), **SMALL).data(built_in(shards=3, shard=2), "cpu")
    assert (data.samples, data.test_y.numel()) == (20, 20)
    assert data.x.dtype == data.test_x.dtype == torch.uint8
    x, y = data.batch(8, seeded(0))
    assert (x.shape, x.dtype, y.dtype) == ((8, 16), torch.float32, torch.int64)
    assert (float(x.min()) >= 0.0, float(x.max())) == (True, 1.0)


@pytest.mark.parametrize(("split", "counts"), [(True, (60, 20)), (False, (54, 6))])
def test_a_volunteers_own_folder_comes_first_and_without_a_test_split_a_tenth_is_held_out(tmp_path, split, counts):
    folder = write_mnist(tmp_path)
    for path in () if split else folder.glob("t10k*"):
        path.unlink()
    data = Images(path="/nowhere", **SMALL).data(own(folder), "cpu")
    assert (data.samples, data.test_y.numel()) == counts


def test_arrays_of_an_npz_are_read_with_and_without_a_test_split(tmp_path):
    x, y = np.random.default_rng(0).random((30, 4, 6, 3)), np.arange(30) % 4
    np.savez_compressed(tmp_path / "split.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5], unknown=np.array([None]))
    np.savez(tmp_path / "one.npz", x=np.asfortranarray(x, ">f8"), y=y)
    task = Images(model="cnn", height=4, width=6, channels=3, classes=4)
    split, one = (task.data(own(tmp_path / name), "cpu") for name in ("split.npz", "one.npz"))
    assert (split.samples, split.test_y.numel()) == (30, 5)
    assert (one.samples, one.test_y.numel()) == (27, 3)
    assert split.x.shape == (30, 3, 4, 6)
    assert np.allclose(split.x.permute(0, 2, 3, 1).numpy(), x)
    assert torch.isfinite(task.loss(task.model(seeded(0)), split.batch(4, seeded(0))))


def test_keys_of_an_npz_partition_the_samples(tmp_path):
    """Each sample's value is its speaker: a shard has whole speakers."""
    keys = np.repeat(["ann", "bob", "cy"], 10)
    x = np.repeat(np.arange(3, dtype=np.float32), 10)[:, None, None] * np.ones((1, 4, 4), np.float32)
    path = tmp_path / "speakers.npz"
    np.savez(path, x_train=x, y_train=np.arange(30) % 2, x_test=x, y_test=np.arange(30) % 2, key_train=keys)
    shards = [Images(path=str(path), **SMALL).data(built_in("by_key", 3, shard), "cpu") for shard in range(3)]
    assert sorted(tuple(data.x.unique().tolist()) for data in shards) == [(0.0,), (1.0,), (2.0,)]


def test_without_any_path_the_next_command_is_named():
    with pytest.raises(DataError, match=r"task\.path: .* start with --data PATH"):
        Images().data(built_in(), "cpu")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((9, 5, 4)), "y": np.arange(9)}, r"images must be of shape \(4, 4\), as \[task\] says, got \(5, 4\)"),
        ({"x": np.ones((9, 4, 4)) * np.inf, "y": np.arange(9)}, "every pixel must be finite"),
        ({"x": np.ones((9, 4, 4)) * 1e300, "y": np.arange(9)}, "every pixel must be finite"),
        ({"x": np.ones((9, 4, 4), np.int64), "y": np.arange(9)}, "pixels must be uint8 or floats, got int64"),
        ({"x": np.ones((9, 4, 4)), "y": np.arange(9) + 2}, r"labels must be in \[0, 10\)"),
        ({"x": np.ones((9, 4, 4)), "y": np.arange(9), "key": np.arange(8)}, "keys must be 9"),
        ({"x_train": np.ones((9, 4, 4)), "y_train": np.arange(9)}, "has no array 'x_test'"),
        ({"x": np.array([None] * 9), "y": np.arange(9)}, "does not hold plain numbers or strings"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        Images(**SMALL).data(own(tmp_path / "a.npz"), "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte", "train-images-idx3-ubyte"])
def test_a_folder_that_lacks_a_file_is_refused(tmp_path, name):
    folder = write_mnist(tmp_path)
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        Images(**SMALL).data(own(folder), "cpu")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\x08",
        struct.pack(">HBB2I", 0, 8, 2, 1, 1) + b"x",
        struct.pack(">HBB3I", 0, 9, 3, 1, 1, 1) + b"x",
        struct.pack(">HBB3I", 1, 8, 3, 1, 1, 1) + b"x",
        struct.pack(">HBB3I", 0, 8, 3, 1, 1, 2) + b"x",
        struct.pack(">HBB3I", 0, 8, 3, 1, 1, 1) + b"xx",
        struct.pack(">HBB3I", 0, 8, 3, 0, 1, 1),
        struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"x",
    ],
)
@pytest.mark.parametrize("gz", ["", ".gz"])
def test_an_idx_file_that_is_not_what_its_header_says_is_refused(tmp_path, raw, gz):
    path = tmp_path / f"images{gz}"
    path.write_bytes(gzip.compress(raw) if gz else raw)
    with pytest.raises(DataError, match="not a readable IDX file"):
        read_idx(path, 3)


def test_a_gzip_bomb_is_read_up_to_its_header_s_size_only(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBB1I", 0, 8, 1, 10) + bytes(1 << 20)))
    with pytest.raises(DataError, match="10 bytes of data, it has more"):
        read_idx(path, 1)


def test_an_npz_with_a_false_size_is_refused_before_allocating(tmp_path):
    """The size in the array's header must be the size in the zip's directory."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(8))
    raw = buffer.getvalue().replace(b"(8,), }" + b" " * 10, b"(80000000000,), }")
    assert b"80000000000" in raw
    with zipfile.ZipFile(tmp_path / "big.npz", "w") as archive:
        archive.writestr("x.npy", raw)
    with pytest.raises(DataError, match="claims shape"):
        read_npz(tmp_path / "big.npz", ("x",))


def test_an_npz_without_samples_says_so(tmp_path):
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 8, 8)))
    with pytest.raises(DataError, match=r"x\.npy holds nothing, its shape is \(0, 8, 8\)"):
        read_npz(tmp_path / "none.npz", ("x",))


@pytest.mark.parametrize("name", ["gone.npz", "."])
def test_a_path_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(DataError):
        read_npz(tmp_path / name, ("x",))
    with pytest.raises(ConfigError):
        Images(**SMALL).data(own(tmp_path / name), "cpu")


@needs_real_data
@pytest.mark.slow
def test_mnist_itself_is_read():
    data = Images(path=str(REAL_DATA / "mnist")).data(built_in("dirichlet", 8, 3), "cpu")
    assert data.test_y.numel() == 10_000
    mean = data.test_x.float().mean() / 255
    assert float(mean) == pytest.approx(0.1325, abs=1e-3)
    assert 32 <= data.samples <= 60_000 - 7 * 32
