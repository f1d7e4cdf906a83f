"""Samples of any form behind one interface: nested arrays or tensors, or a map-style Dataset with its collate_fn.

A batch is a tensor, or tuples, lists and dicts of such, nested at will. Shapes: n samples, m samples of a batch.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from starling.gossip.errors import ConfigError
from starling.node.tasks.lengths import like_length

LABELS = ("labels", "label")  # keys of a batch that is a dict


class Samples(Protocol):
    """n samples, any of which can be had at once."""

    def __len__(self) -> int:
        """n, the samples."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """(n,) of classes, to cut samples by; None if there are none."""

    def take(self, index: Tensor) -> Any:
        """A batch of those, (m,) int64."""


def mapped(change: Callable[[Any], Any], tree: Any, *, lists: bool = True) -> Any:
    """The same nest with `change` applied to all that is no tuple, dict or list in it; not to what is in lists unless `lists`."""
    if isinstance(tree, Mapping):
        return {key: mapped(change, each, lists=lists) for key, each in tree.items()}
    if isinstance(tree, tuple) or (lists and isinstance(tree, list)):
        return tuple(mapped(change, each, lists=lists) for each in tree)
    return change(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Every tensor of a nest, in order."""
    if isinstance(tree, Mapping | tuple | list):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(each)
    else:
        yield tree


def rows(batch: Any) -> int:
    """m: samples of a batch, by its first tensor."""
    return next((len(leaf) for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), 1)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Tensors that all have n rows. Bytes are taken as shares of 255, float64 as float32."""

    tree: Any

    def __len__(self) -> int:
        return rows(self.tree)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The last of a tuple, or what a dict has under one of `LABELS`, if it is (n,) of whole numbers."""
        match self.tree:
            case (_, *_, Tensor() as last):
                return _labels(last, len(self))
            case {**named}:
                return _labels(next((named[name] for name in LABELS if name in named), None), len(self))
        return None

    def take(self, index: Tensor) -> Any:
        """Rows of every tensor."""
        return mapped(lambda tensor: _number(tensor[index]), self.tree)


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A map-style Dataset. Its samples are fetched and collated in the node's own process, one batch at a time."""

    name: str  # in messages
    dataset: Any
    collate: Callable[[list[Any]], Any] = default_collate

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """`targets` or `labels` of the Dataset, or of what it is a Subset of, if they are n whole numbers."""
        if isinstance(self.dataset, TensorDataset):
            return Tensors(self.dataset.tensors).labels
        if isinstance(self.dataset, Subset):
            of = Mapped(self.name, self.dataset.dataset).labels
            return None if of is None else of[np.asarray(self.dataset.indices)]
        return _labels(getattr(self.dataset, "targets", getattr(self.dataset, "labels", None)), len(self))

    def take(self, index: Tensor) -> Any:
        """Those samples, collated. Raises ConfigError, with its number, for one that cannot be had, and where they do not fit together."""
        numbers = index.tolist()
        at = numbers[0] if numbers else 0
        try:
            if callable(several := getattr(self.dataset, "__getitems__", None)):
                found = several(numbers)
            else:
                found = []
                for at in numbers:
                    found.append(self.dataset[at])
        except Exception as error:  # anybody's code
            raise ConfigError(f"{self.name}: sample {at} cannot be read: {_line(error)}") from error
        try:
            return self.collate(found)
        except Exception as error:
            shown = ", ".join(map(str, numbers[:4]))
            raise ConfigError(
                f"{self.name}: samples {shown}{' …' if len(numbers) > 4 else ''} cannot be put into a batch: {_line(error)}; "
                "samples of unlike shape need a DataLoader with a collate_fn"
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One node's samples; satisfies `starling.node.tasks.api.Data` and `Sampled`."""

    train: Samples
    index: Tensor  # (u,) int64, samples of `train` that are this node's
    test: Samples
    test_index: Tensor
    device: str
    lengths: Tensor | None = None  # (u,) of those in `index`; batches are of like length then

    @property
    def samples(self) -> int:
        """Training samples held here."""
        return len(self.index)

    def batch(self, size: int, generator: Generator) -> Any:
        """`size` samples drawn with replacement. Chance that a Dataset draws itself (augmentation) is of `generator` as well."""
        if self.lengths is None:
            drawn = torch.randint(self.samples, (size,), generator=generator)
        else:
            drawn = like_length(self.lengths, size, generator)
        return self._took(self.train, self.index[drawn], int(torch.randint(2**62, (), generator=generator)))

    @property
    def units(self) -> int:
        """All training samples."""
        return self.samples

    def take(self, index: Tensor) -> Any:
        """Those samples."""
        return self._took(self.train, self.index[index.cpu()], 0)

    def held_out(self, size: int) -> Iterator[Any]:
        """The test split in order."""
        for number, part in enumerate(torch.split(self.test_index, size)):
            yield self._took(self.test, part, number)

    def _took(self, samples: Samples, index: Tensor, seed: int) -> Any:
        with seeded(seed):
            batch = samples.take(index)
        return mapped(lambda leaf: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf, batch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of torch, numpy and Python begin at `seed`, and are afterwards as they were: for code of other people."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


def samples_of(name: str, given: Any) -> Samples:
    """Arrays or tensors (nested), a map-style Dataset, or a DataLoader, of which dataset and collate_fn are used.

    Raises ConfigError: it is none of these, is empty, ragged, or holds numbers that are not finite.
    """
    if isinstance(given, Tensors | Mapped):
        return given
    if isinstance(given, DataLoader):
        known = type(given.sampler) in {RandomSampler, SequentialSampler} and type(given.batch_sampler) is BatchSampler
        if not known and not isinstance(given.dataset, IterableDataset):
            raise ConfigError(
                f"{name}: the DataLoader has a sampler of its own, {type(given.sampler).__name__}; the node draws samples itself, "
                "so that a resumed run sees the same: give it without a sampler"
            )
        collate = given.collate_fn
        given = given.dataset
    else:
        collate = default_collate
    if isinstance(given, IterableDataset):
        raise ConfigError(f"{name}: an IterableDataset cannot be cut into shards; give a map-style Dataset")
    if isinstance(given, TensorDataset) and collate is default_collate:
        given = given.tensors
    made: Samples
    if isinstance(given, Dataset) or (hasattr(given, "__getitem__") and not _nest(given)):
        made = Mapped(name, given, collate)
        if not hasattr(given, "__len__"):
            raise ConfigError(f"{name}: {type(given).__name__} has no length; give a map-style Dataset")
    else:
        made = Tensors(mapped(lambda each: _tensor(name, each), given, lists=False))
        counts = [len(leaf) if leaf.ndim else 0 for leaf in leaves(made.tree)]
        if len(set(counts)) > 1:
            raise ConfigError(f"{name}: all arrays must have as many rows, got {', '.join(map(str, counts))}")
    if not len(made):
        raise ConfigError(f"{name}: holds no samples")
    return made


def _nest(given: Any) -> bool:
    """Whether this is arrays, or a nest of them."""
    return isinstance(given, Tensor | np.ndarray | Mapping) or (
        isinstance(given, Sequence) and not isinstance(given, str)
    )


def _tensor(name: str, given: Any) -> Tensor:
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:
        raise ConfigError(f"{name}: rows differ in length: {_line(error)}") from error
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{name}: needs arrays of numbers, got {array.dtype} of shape {array.shape}")
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
        if not (fine := np.isfinite(array)).all():
            row = int(np.argwhere(~fine)[0][0]) if array.ndim else 0
            raise ConfigError(f"{name}: row {row} holds a number that is not finite")
    elif array.dtype != np.uint8:
        array = array.astype(np.int64, copy=False)
    return torch.tensor(array)


def _labels(found: Any, samples: int) -> NDArray[np.int64] | None:
    try:
        labels = np.asarray(found)
    except ValueError:
        return None
    return labels.astype(np.int64) if labels.shape == (samples,) and labels.dtype.kind in "iu" else None


def _number(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).mul_(1 / 255) if tensor.dtype == torch.uint8 else tensor


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
