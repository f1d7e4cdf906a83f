"""Samples from files for `starling.task(train="birds.csv")`: .npz, .csv, LIBSVM and Parquet, each row checked.

Shapes: n samples, d features.
"""

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starling.gossip.errors import ConfigError
from starling.node.tasks.files import BAD_FILE, MAX_BYTES, names_in_npz, read_npz

Pair = tuple[NDArray[Any], NDArray[Any]]
_TARGETS = ("label", "target", "y")  # names of the target's column; else it is the last


def read(path: Path) -> tuple[Pair, Pair | None]:
    """(x, y) to train on, and to test on if the file has both: x (n, d) or (n, …), y (n,).

    .npz: x_train, y_train, x_test, y_test, or x and y. .csv: numbers, with a header or without; .parquet: numeric columns; of both the
    target is the column label, target or y, else the last. .libsvm, .svm, .txt: `target index:value …` from index 1; targets −1 and 1
    become 0 and 1. These and .csv may end in .gz. Targets written as whole numbers are labels, all others are floats.

    Raises ConfigError, with file and line: it is missing, empty, ragged, too large, or holds something else.
    """
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if not path.is_file():
        raise ConfigError(f"{path}: is not there, or no file; needed is one of {', '.join(_READERS)}")
    if kind not in _READERS:
        raise ConfigError(f"{path}: unknown kind of file {kind!r}, choose one of {', '.join(_READERS)}")
    if kind == ".npz":
        return _npz(path)
    try:
        return _READERS[kind](path), None
    except BAD_FILE as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _npz(path: Path) -> tuple[Pair, Pair | None]:
    if "x_train" not in names_in_npz(path):
        found = read_npz(path, ("x", "y"))
        return (found["x"], found["y"]), None
    found = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])


def _lines(path: Path) -> Iterator[str]:
    """At most MAX_BYTES of them: a small .gz may hold any number."""
    left = MAX_BYTES
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            left -= len(line)
            if left < 0:
                raise ConfigError(f"{path}: must be at most {MAX_BYTES} bytes")
            yield line


def _csv(path: Path) -> Pair:
    rows: list[list[float]] = []
    targets: list[str] = []
    width, at = 0, -1
    for number, row in enumerate(csv.reader(_lines(path)), 1):
        if not row:
            continue
        if not width:
            width = len(row)
            if width < 2:
                raise ConfigError(f"{path}: line {number} has one column, needed are features and a target")
            if not any(map(_is_number, row)):  # a header
                names = [name.strip().lower() for name in row]
                at = next((names.index(name) for name in _TARGETS if name in names), -1)
                continue
        if len(row) != width:
            raise ConfigError(f"{path}: line {number} has {len(row)} columns, the first has {width}")
        if (bad := next((column for column, cell in enumerate(row, 1) if not _is_number(cell)), None)) is not None:
            raise ConfigError(f"{path}: line {number}, column {bad}: {row[bad - 1]!r:.40} is no finite number")
        targets.append(row.pop(at).strip())
        rows.append([float(cell) for cell in row])
    return _dense(path, np.array(rows, np.float32)), _targets(path, targets)


def _libsvm(path: Path) -> Pair:
    entries: list[tuple[int, int, float]] = []
    targets: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        target, *cells = line.partition("#")[0].split() or [""]
        if not target:
            continue
        for cell in cells:
            index, _, value = cell.partition(":")
            if not (index.isascii() and index.isdigit() and int(index) >= 1 and _is_number(value)):
                raise ConfigError(f"{path}: line {number}: {cell!r:.40} is not index:value, from index 1")
            entries.append((len(targets), int(index) - 1, float(value)))
        if not _is_number(target):
            raise ConfigError(f"{path}: line {number}: the target {target!r:.40} is no finite number")
        targets.append(target)
    width = max((column for _, column, _ in entries), default=-1) + 1
    if 4 * width * len(targets) > MAX_BYTES:
        raise ConfigError(f"{path}: {len(targets)} rows of {width} features are more than {MAX_BYTES} bytes")
    x = np.zeros((len(targets), width), np.float32)
    for row, column, entry in entries:
        x[row, column] = entry
    y = _targets(path, targets)
    return _dense(path, x), (y + 1) // 2 if set(np.unique(y).tolist()) == {-1, 1} else y


def _parquet(path: Path) -> Pair:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise ConfigError(f"{path}: needs the package pyarrow; `pip install 'starling-swarm[parquet]'`") from error
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise ValueError(str(error)) from error
    columns = {name: np.asarray(table.column(name)) for name in table.column_names}
    for name, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise ConfigError(f"{path}: column {name!r:.40} holds {column.dtype}, needed are numbers")
        if not (fine := np.isfinite(column)).all():
            raise ConfigError(f"{path}: row {int(np.argmin(fine))}, column {name!r:.40}: is empty or not finite")
    if len(columns) < 2:
        raise ConfigError(f"{path}: has {len(columns)} column, needed are features and a target")
    y = columns.pop(next((name for name in columns if name.lower() in _TARGETS), [*columns][-1]))
    x = np.stack([column.astype(np.float32) for column in columns.values()], axis=1)
    return _dense(path, x), y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)


_READERS: Mapping[str, Callable[[Path], Pair]] = {
    ".npz": lambda path: _npz(path)[0], ".csv": _csv, ".libsvm": _libsvm, ".svm": _libsvm, ".txt": _libsvm, ".parquet": _parquet,
}  # fmt: skip


def _dense(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    if not x.size:
        raise ConfigError(f"{path}: holds no samples")
    return x


def _targets(path: Path, written: list[str]) -> NDArray[Any]:
    """Labels if all are written as whole numbers."""
    if not written:
        raise ConfigError(f"{path}: holds no samples")
    try:
        return np.array([int(each) for each in written], np.int64)
    except ValueError:
        return np.array([float(each) for each in written], np.float32)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
