"""Samples from files for `starling.task(train="birds.csv")`: .npz, .csv, LIBSVM, Parquet and folders of images, each row checked.

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
from starling.node.tasks.api import DataError
from starling.node.tasks.files import BAD_FILE, MAX_BYTES, names_in_npz, read_npz

Pair = tuple[NDArray[Any], NDArray[Any]]
_TARGETS = ("label", "target", "y")  # names of the target's column; else it is the last


def read(path: Path) -> tuple[Pair, Pair | None]:
    """Return (x, y), to train on, and to test on if the file has both: x (n, d) or (n, …), y (n,).

    .npz: x_train, y_train, x_test, y_test, or x and y. .csv: numbers, with a header or without; .parquet: numeric columns; of both the
    target is the column label, target or y, else the last. .libsvm, .svm, .txt: `target index:value …` from index 1; targets −1 and 1
    become 0 and 1. These and .csv may end in .gz. Targets written as whole numbers are labels, all others are floats.

    A folder has a folder of .png or .jpg files for each class, all of one size: x is (n, channels, height, width) uint8, one channel if all
    are grey, and y the place of the class in alphabetical order, so that all nodes need folders for the same classes.

    Raises DataError, with file and line: it is missing, empty, ragged, too large or something else; ConfigError: a package is missing.
    """
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if path.is_dir():
        return _images(path), None
    if not path.is_file():
        raise DataError(f"{path}: is not there, or no file; needed is one of {', '.join(_READERS)}, or a folder")
    if kind not in _READERS:
        raise DataError(f"{path}: unknown kind of file {kind!r}, choose one of {', '.join(_READERS)}")
    if kind == ".npz":
        return _npz(path)
    try:
        return _READERS[kind](path), None
    except BAD_FILE as error:
        raise DataError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _npz(path: Path) -> tuple[Pair, Pair | None]:
    if "x_train" not in names_in_npz(path):
        arrays = read_npz(path, ("x", "y"))
        return (arrays["x"], arrays["y"]), None
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])


def _lines(path: Path) -> Iterator[str]:
    """Yield at most MAX_BYTES of lines, since a small .gz may have any number."""
    left = MAX_BYTES
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            left -= len(line)
            if left < 0:
                raise DataError(f"{path}: must be at most {MAX_BYTES} bytes")
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
                raise DataError(f"{path}: line {number} has one column, needed are features and a target")
            if not any(map(_is_number, row)):  # a header
                names = [name.strip().lower() for name in row]
                at = next((names.index(name) for name in _TARGETS if name in names), -1)
                continue
        if len(row) != width:
            raise DataError(f"{path}: line {number} has {len(row)} columns, the first has {width}")
        if (bad := next((column for column, cell in enumerate(row, 1) if not _is_number(cell)), None)) is not None:
            raise DataError(f"{path}: line {number}, column {bad}: {row[bad - 1]!r:.40} is no finite number")
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
                raise DataError(f"{path}: line {number}: {cell!r:.40} is not index:value, from index 1")
            entries.append((len(targets), int(index) - 1, float(value)))
        if not _is_number(target):
            raise DataError(f"{path}: line {number}: the target {target!r:.40} is no finite number")
        targets.append(target)
    width = max((column for _, column, _ in entries), default=-1) + 1
    if 4 * width * len(targets) > MAX_BYTES:
        raise DataError(f"{path}: {len(targets)} rows of {width} features are more than {MAX_BYTES} bytes")
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
            raise DataError(f"{path}: column {name!r:.40} holds {column.dtype}, needed are numbers")
        if not (fine := np.isfinite(column)).all():
            raise DataError(f"{path}: row {int(np.argmin(fine))}, column {name!r:.40}: is empty or not finite")
    if len(columns) < 2:
        raise DataError(f"{path}: has {len(columns)} column, needed are features and a target")
    y = columns.pop(next((name for name in columns if name.lower() in _TARGETS), [*columns][-1]))
    x = np.stack([column.astype(np.float32) for column in columns.values()], axis=1)
    return _dense(path, x), y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)


def _images(folder: Path) -> Pair:
    try:
        from PIL import Image  # noqa: PLC0415 — an extra
    except ImportError as error:
        raise ConfigError(f"{folder}: needs the package pillow; `pip install 'starling-swarm[images]'`") from error
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    files = [(file, label) for label, each in enumerate(classes) for file in sorted(each.iterdir()) if file.suffix.lower() in _IMAGES]
    if len(classes) < 2 or not files:
        raise DataError(f"{folder}: needs a folder of {', '.join(_IMAGES)} files for each of two or more classes")
    pixels: list[NDArray[np.uint8]] = []
    size = (0, 0)
    for file, _ in files:
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as image:
                size = size if pixels else image.size
                if image.size != size:
                    raise DataError(f"{file}: is {image.size[0]} × {image.size[1]} pixels, {files[0][0]} is {size[0]} × {size[1]}")
                if 3 * size[0] * size[1] * len(files) > MAX_BYTES:
                    raise DataError(f"{folder}: {len(files)} images of {size[0]} × {size[1]} are more than {MAX_BYTES} bytes")
                if image.mode not in {"1", "L", "LA", "P", "RGB", "RGBA"}:
                    raise DataError(f"{file}: pixels must be bytes, got mode {image.mode}")
                grey = image.mode in {"L", "1"}
                pixels.append(np.atleast_3d(np.asarray(image.convert("L" if grey else "RGB"))))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError: a damaged PNG
            raise DataError(f"{file}: not a readable image: {' '.join(str(error).split())[:200]}") from error
    channels = max(each.shape[2] for each in pixels)
    x = np.stack([np.broadcast_to(each, (*each.shape[:2], channels)).transpose(2, 0, 1) for each in pixels])
    return np.ascontiguousarray(x), np.array([label for _, label in files], np.int64)


_IMAGES = (".png", ".jpg", ".jpeg")
_READERS: Mapping[str, Callable[[Path], Pair]] = {
    ".npz": lambda path: _npz(path)[0],
    ".csv": _csv,
    ".libsvm": _libsvm,
    ".svm": _libsvm,
    ".txt": _libsvm,
    ".parquet": _parquet,
}


def _dense(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    if not x.size:
        raise DataError(f"{path}: holds no samples")
    return x


def _targets(path: Path, written: list[str]) -> NDArray[Any]:
    """Return labels if all targets are written as integers, else floats."""
    if not written:
        raise DataError(f"{path}: holds no samples")
    try:
        return np.array([int(each) for each in written], np.int64)
    except ValueError:
        return np.array([float(each) for each in written], np.float32)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
