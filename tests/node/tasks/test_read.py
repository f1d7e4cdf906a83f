"""Samples from files: data survive writing and reading, and errors name file and line."""

import gzip

import numpy as np
import pytest
from torch import nn

import starling
from starling.gossip.errors import ConfigError
from starling.node.tasks.api import DataError
from starling.node.tasks.read import read
from tests.harness.tasks import REAL_DATA, built_in, needs_real_data, own

CSV = "a,label,b\n1,0,2.5\n-3,1,4e1\n\n0.5,1,7\n"


def put(folder, name, text):
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder / name


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_csv_s_target_is_the_column_of_that_name(name, tmp_path):
    (x, y), test = read(put(tmp_path, name, CSV))
    assert x.tolist() == [[1, 2.5], [-3, 40], [0.5, 7]]
    assert y.tolist() == [0, 1, 1]
    assert y.dtype == np.int64
    assert test is None


def test_without_a_header_the_last_column_is_the_target(tmp_path):
    (x, y), _ = read(put(tmp_path, "t.csv", "1,2,3.0\n4,5,6\n"))
    assert (x.tolist(), y.tolist(), y.dtype) == ([[1, 2], [4, 5]], [3, 6], np.float32)


def test_libsvm_is_made_dense_and_its_signs_are_labels(tmp_path):
    (x, y), _ = read(put(tmp_path, "t.libsvm", "+1 1:2 3:0.5 # one\n-1 2:1\n"))
    assert (x.tolist(), y.tolist()) == ([[2, 0, 0.5], [0, 1, 0]], [1, 0])


def test_npz_with_a_test_split(tmp_path):
    arrays = {"x_train": np.ones((4, 2)), "y_train": np.arange(4), "x_test": np.zeros((1, 2)), "y_test": np.zeros(1, int)}
    np.savez(tmp_path / "t.npz", **arrays)
    train, test = read(tmp_path / "t.npz")
    assert train[0].shape == (4, 2)
    assert test[0].shape == (1, 2)


def test_parquet_is_read_by_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'starling-swarm[parquet]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"y": [1, 0], "a": [0.5, 1.5], "b": [2, 3]}), tmp_path / "t.parquet")
    (x, y), _ = read(tmp_path / "t.parquet")
    assert (x.tolist(), y.tolist()) == ([[0.5, 2], [1.5, 3]], [1, 0])
    for bad, said in (({"a": ["x"], "y": [1]}, "column 'a' holds object"), ({"a": [1.0, None], "y": [1, 0]}, "row 1, column 'a'")):
        parquet.write_table(pyarrow.table(bad), tmp_path / "bad.parquet")
        with pytest.raises(DataError, match=rf"bad.parquet: {said}"):
            read(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"none.parquet: cannot be read"):
        read(put(tmp_path, "none.parquet", "PAR1"))


def test_a_folder_of_images_has_a_folder_for_each_class(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs pillow: pip install 'starling-swarm[images]'")
    for name, shade in (("owl", 10), ("jay", 200)):
        (tmp_path / name).mkdir()
        for number in range(3):
            image.fromarray(np.full((4, 5), shade + number, np.uint8)).save(tmp_path / name / f"{number}.png")
    (x, y), _ = read(tmp_path)
    assert (x.shape, x.dtype) == ((6, 1, 4, 5), np.uint8)
    assert x[:, 0, 0, 0].tolist() == [200, 201, 202, 10, 11, 12]
    assert y.tolist() == [0, 0, 0, 1, 1, 1]
    image.fromarray(np.full((4, 5, 3), [1, 2, 3], np.uint8)).save(tmp_path / "owl" / "9.png")
    (x, _), _ = read(tmp_path)
    assert x[:, :, 3, 4].tolist()[::6] == [[200, 200, 200], [1, 2, 3]]
    image.fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "owl" / "wide.png")
    with pytest.raises(DataError, match=r"wide.png: is 6 × 4 pixels, .*jay/0.png is 5 × 4"):
        read(tmp_path)
    (tmp_path / "owl" / "wide.png").write_bytes((tmp_path / "owl" / "9.png").read_bytes()[:50])
    with pytest.raises(DataError, match=r"wide.png: not a readable image"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"needs a folder of .png, .jpg, .jpeg files for each of two"):
        read(tmp_path / "owl")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "1,2,0\n1,0\n", "line 2 has 2 columns, the first has 3"),
        ("t.csv", "a,b\n1,0\n1,nan\n", "line 3, column 2: 'nan' is no finite number"),
        ("t.csv", "a,b\n", "holds no samples"),
        ("t.csv", "", "holds no samples"),
        ("t.csv", "1\n2\n", "line 1 has one column"),
        ("t.svm", "1 0:2\n", "line 1: '0:2' is not index:value, from index 1"),
        ("t.svm", "1 1:2\nx 1:2\n", "line 2: the target 'x' is no finite number"),
        ("t.svm", "1 4294967296:1\n1\n", "2 rows of 4294967296 features are more than"),
        ("t.dat", "1", "unknown kind of file '.dat', choose one of .npz, .csv"),
        ("t.npz", "PK", "not a readable .npz file"),
    ],
)
def test_errors_name_file_and_line(name, text, said, tmp_path):
    with pytest.raises(DataError, match=f"{name}: {said}") as caught:
        read(put(tmp_path, name, text))
    assert "\n" not in str(caught.value)


def test_a_damaged_gzip_and_a_missing_file_give_one_line(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 9999)[:-12])
    with pytest.raises(DataError, match=r"t.csv.gz: cannot be read"):
        read(tmp_path / "t.csv.gz")
    with pytest.raises(DataError, match=r"gone.csv: is not there"):
        read(tmp_path / "gone.csv")


def test_a_node_s_own_file_overrides_the_task_s_path(tmp_path):
    ours = put(tmp_path, "ours.csv", "".join(f"{i},{i % 2}\n" for i in range(40)))
    mine = put(tmp_path, "mine.csv", "".join(f"{i},{i % 2}\n" for i in range(20)))
    task = starling.task(model=lambda: nn.Linear(1, 2), train=str(ours), metrics="accuracy")
    assert task.metric == "accuracy"
    assert sum(task.data(built_in("by_label", shards=2, shard=shard), "cpu").samples for shard in (0, 1)) == 36
    assert task.data(own(mine), "cpu").samples == 18
    with pytest.raises(ConfigError, match="metrics: must be 'accuracy', a function or"):
        starling.task(model=nn.Identity, train=ours, metrics="f1")


@needs_real_data
@pytest.mark.slow
def test_the_real_adult_data_are_read(tmp_path):
    (tmp_path / "a9a.libsvm.gz").write_bytes((REAL_DATA / "tabular" / "a9a.gz").read_bytes())
    (x, y), _ = read(tmp_path / "a9a.libsvm.gz")
    assert x.shape == (32561, 123)
    assert np.bincount(y).tolist() == [24720, 7841]
