"""Images from files: the IDX format of MNIST, or arrays in an .npz file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, nn

from starling.node.tasks import keys
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.files import names_in_npz, read_idx, read_npz
from starling.node.tasks.labelled import Classification, Examples, LabelledData, check_labels, labelled
from starling.node.tasks.networks import classifier


@dataclass(frozen=True, slots=True, init=False)
class Images(Classification):
    """Classify images.

    Data are a folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and, for the test split, the same with
    `t10k` (each plain or with .gz), or an .npz file with x_train, y_train, x_test, y_test, or with x and y. Bytes are taken as
    shares of 255, floats as they are. An .npz may have the owner of each sample, for a cut by_key: key_train, or key next to x.
    Without a test split one sample in ten is held out.

    Its keys are those of `starling.node.tasks.keys.Images`; `model` is stored as `network`, as it names a method of the protocol.
    """

    network: str
    path: str
    hidden: int
    height: int
    width: int
    channels: int
    classes: int

    def __init__(
        self,
        model: keys.Network = "mlp",
        path: str = "",
        hidden: int = 128,
        height: int = 28,
        width: int = 28,
        channels: int = 1,
        classes: int = 10,
    ) -> None:
        made = keys.Images(model, str(path), hidden, height, width, channels, classes)
        object.__setattr__(self, "network", model)
        for name in ("path", "hidden", "height", "width", "channels", "classes"):
            object.__setattr__(self, name, getattr(made, name))

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh classifier with He initialisation."""
        shape = (self.channels, self.height, self.width)
        return classifier(self.network, shape, self.hidden, self.classes, generator)

    def data(self, source: Source, device: str) -> LabelledData:
        """Return our shard of the built-in images, or all of the volunteer's own. Raises DataError if there are no images of
        this size.
        """
        path = source.path or (Path(self.path).expanduser() if self.path else None)
        if path is None:
            raise DataError("task.path: images needs a folder or an .npz file; set it, or start with --data PATH")
        train, test = self._folder(path) if path.is_dir() else self._npz(path)
        return labelled(source, train, test, device)

    def _folder(self, folder: Path) -> tuple[Examples, Examples | None]:
        train = self._pair(folder, "train")
        return train, self._pair(folder, "t10k") if _find(folder, "t10k-images-idx3-ubyte") else None

    def _pair(self, folder: Path, split: str) -> Examples:
        names = (f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte")
        images, labels = (_find(folder, name) for name in names)
        if images is None or labels is None:
            raise DataError(f"{folder}: needs {names[0]} and {names[1]}, each plain or with .gz")
        return self._examples(str(images), read_idx(images, 3), read_idx(labels, 1), None)

    def _npz(self, path: Path) -> tuple[Examples, Examples | None]:
        if "x_train" not in names_in_npz(path):
            arrays = read_npz(path, ("x", "y"), ("key",))
            return self._examples(str(path), arrays["x"], arrays["y"], arrays.get("key")), None
        arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"), ("key_train",))
        train = self._examples(f"{path}: train", arrays["x_train"], arrays["y_train"], arrays.get("key_train"))
        return train, self._examples(f"{path}: test", arrays["x_test"], arrays["y_test"], None)

    def _examples(self, where: str, x: NDArray[Any], y: NDArray[Any], keys: NDArray[Any] | None) -> Examples:
        shape = (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)
        if x.shape[1:] != shape:
            raise DataError(f"{where}: images must be of shape {shape}, as [task] says, got {x.shape[1:]}")
        if x.dtype.kind == "f":
            with np.errstate(over="ignore"):
                x = x.astype(np.float32)
            if not np.isfinite(x).all():
                raise DataError(f"{where}: every pixel must be finite")
        elif x.dtype != np.uint8:
            raise DataError(f"{where}: pixels must be uint8 or floats, got {x.dtype}")
        if keys is not None and keys.shape != (len(x),):
            raise DataError(f"{where}: keys must be {len(x)}, one an image, got shape {keys.shape}")
        labels = check_labels(f"{where}: labels", y, len(x), self.classes)
        if self.network == "mlp":
            return Examples(x.reshape(len(x), -1), labels, keys)
        images = x.reshape(len(x), self.height, self.width, self.channels).transpose(0, 3, 1, 2)
        return Examples(np.ascontiguousarray(images), labels, keys)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
