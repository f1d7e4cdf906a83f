"""Samples of any form behind one interface: nested arrays or tensors, or a map-style Dataset with its collate_fn.

A batch has any form of `starling.node.tasks.trees`. Shapes: n samples, m samples of a batch.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
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
from starling.node.tasks.api import DataError
from starling.node.tasks.trees import leaves, mapped, rebuilt, tensors

LABELS = ("labels", "label")  # keys of a batch that is a dict
TARGETS = ("label", "target", "mask")  # parts of keys that mark targets, so that their bytes are not read as pixels


class Samples(Protocol):
    """n samples with random access."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Return (n,) class labels for partitioning; None if there are none."""

    def take(self, index: Tensor) -> Any:
        """Return a batch of those, (m,) int64. Raises ConfigError: it cannot be had."""


def rows(batch: Any) -> int:
    """m: samples of a batch whose data do not say, by its first tensor."""
    return next((len(leaf) for leaf in tensors(batch) if leaf.ndim), 1)


class Unreadable(ConfigError):
    """Raised for samples of a Dataset that cannot be read; `why` has the reason of each by its index."""

    def __init__(self, name: str, why: Mapping[int, str]) -> None:
        number, reason = next(iter(why.items()))
        super().__init__(f"{name}: sample {number} cannot be read: {reason}")
        self.why = why


class Unlike(ConfigError):
    """Raised for samples that cannot be put into one batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Tensors that all have n rows. Inputs in bytes become shares of 255, targets stay, float64 becomes float32."""

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
        match self.tree:
            case Tensor() as x:
                return _shares(x[index])
            case tuple((*inputs, target)) if inputs:
                taken = [mapped(lambda x: _shares(x[index]), each) for each in inputs]
                return rebuilt(self.tree, [*taken, mapped(lambda y: y[index], target)])
            case {**named}:
                return {name: mapped(partial(_row, str(name), index), each) for name, each in named.items()}
        return mapped(lambda x: _shares(x[index]), self.tree)


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
        """Return the samples, collated. Raises Unreadable: some cannot be read; Unlike: they do not fit together."""
        numbers = index.tolist()
        samples = self._fetched(numbers)
        try:
            return self.collate(samples)
        except Exception as error:
            shown = ", ".join(map(str, numbers[:4]))
            raise Unlike(
                f"{self.name}: samples {shown}{' …' if len(numbers) > 4 else ''} cannot be put into a batch: {_line(error)}; "
                "samples of unlike shape need a DataLoader with a collate_fn"
            ) from error

    def _fetched(self, numbers: list[int]) -> list[Any]:
        if callable(several := getattr(self.dataset, "__getitems__", None)):
            with suppress(Exception):  # then one sample at a time, to identify the bad ones
                samples = list(several(numbers))
                if not any(sample is None for sample in samples):
                    return samples
        samples, failed = [], {}
        for number in numbers:
            if number in failed:
                continue
            try:
                sample = self.dataset[number]
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 — the owner's code
                failed[number] = _line(error)
            else:
                samples.append(sample)
                if sample is None and self.collate is default_collate:
                    failed[number] = "it is None"
        if failed:
            raise Unreadable(self.name, failed)
        return samples


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python for foreign code, and restore them afterwards."""
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002


def samples_of(name: str, given: Any) -> Samples:
    """Return samples from (nested) arrays or tensors, a map-style Dataset, or a DataLoader's dataset and collate_fn.

    Raises DataError: it is none of these, is empty, ragged, or holds numbers that are not finite.
    """
    if isinstance(given, Tensors | Mapped):
        return given
    if isinstance(given, DataLoader):
        known = type(given.sampler) in {RandomSampler, SequentialSampler} and type(given.batch_sampler) is BatchSampler
        if not known and not isinstance(given.dataset, IterableDataset):
            raise DataError(
                f"{name}: the DataLoader has a sampler of its own, {type(given.sampler).__name__}; the node draws samples itself, "
                "so that a resumed run sees the same: give it without a sampler"
            )
        collate = given.collate_fn
        given = given.dataset
    else:
        collate = default_collate
    if isinstance(given, IterableDataset):
        raise DataError(f"{name}: an IterableDataset cannot be cut into shards; give a map-style Dataset")
    if isinstance(given, TensorDataset) and collate is default_collate:
        given = given.tensors
    made: Samples
    if isinstance(given, Dataset) or (hasattr(given, "__getitem__") and not _nest(given)):
        made = Mapped(name, given, collate)
        if not hasattr(given, "__len__"):
            raise DataError(f"{name}: {type(given).__name__} has no length; give a map-style Dataset")
    else:
        made = Tensors(_arrays(name, given))
        counts = [len(leaf) if leaf.ndim else 0 for leaf in leaves(made.tree)]
        if len(set(counts)) > 1:
            raise DataError(f"{name}: all arrays must have as many rows, got {', '.join(map(str, counts))}")
    if not len(made):
        raise DataError(f"{name}: holds no samples")
    return made


def _nest(given: Any) -> bool:
    """Return whether this is an array, or a nest of them."""
    return isinstance(given, Tensor | np.ndarray | Mapping) or (isinstance(given, Sequence) and not isinstance(given, str))


def _arrays(name: str, given: Any) -> Any:
    """Tensors in tuples and dicts; a list is an array."""
    if isinstance(given, Mapping):
        return {key: _arrays(name, each) for key, each in given.items()}
    if isinstance(given, tuple):
        return rebuilt(given, [_arrays(name, each) for each in given])
    return _tensor(name, given)


def _tensor(name: str, given: Any) -> Tensor:
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:
        raise DataError(f"{name}: rows differ in length: {_line(error)}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name}: needs arrays of numbers, got {array.dtype} of shape {array.shape}")
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
        if not (fine := np.isfinite(array)).all():
            row = int(np.argwhere(~fine)[0][0]) if array.ndim else 0
            raise DataError(f"{name}: row {row} holds a number that is not finite")
    elif array.dtype != np.uint8:
        array = array.astype(np.int64, copy=False)
    return torch.tensor(array)


def _labels(values: Any, samples: int) -> NDArray[np.int64] | None:
    try:
        labels = np.asarray(values)
    except ValueError:
        return None
    return labels.astype(np.int64) if labels.shape == (samples,) and labels.dtype.kind in "iu" else None


def _row(name: str, index: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor of a dict: a tensor named as a target or a mask stays unchanged."""
    taken = rows[index]
    return taken if any(word in name.lower() for word in TARGETS) or name == "y" else _shares(taken)


def _shares(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).mul_(1 / 255) if tensor.dtype == torch.uint8 else tensor


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
