"""`starling.task(...)`: a task from a model, a loss and samples. Tasks that need more are classes (`starling.node.tasks.api.Task`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn import functional

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Data, Meter, Source
from starling.node.tasks.criteria import default_metric, refuse_weights
from starling.node.tasks.drawn import Drawn
from starling.node.tasks.labelled import Examples, held_out_rows, labelled
from starling.node.tasks.meters import WholeMeter, accuracy, is_object
from starling.node.tasks.partition import cut, take
from starling.node.tasks.read import read
from starling.node.tasks.samples import Samples, Tensors, rows, samples_of, seeded
from starling.node.tasks.trees import children, moved

Metric = Callable[[Any, Any], Any] | Any  # a function, or an object with update and compute


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Satisfies `starling.node.tasks.api.Task`; see `task` for the fields."""

    make: Callable[[], nn.Module]
    train: Any
    test: Any
    criterion: Callable[[Any, Any], Tensor] | None
    metrics: Mapping[str, Any]  # functions and objects, the first of which decides; none: the loss does
    metric: str
    higher_is_better: bool
    keys: Any = None
    lengths: NDArray[np.int64] | None = None
    version: str | int = ""
    weight: Callable[[Any], float] | None = None

    @property
    def loss_name(self) -> str:
        """Return the loss function's name; "" for the standard loss."""
        return "" if self.criterion is None else getattr(self.criterion, "__name__", type(self.criterion).__name__)

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh model; global generators are seeded from `generator` for it, and restored."""
        with seeded(int(torch.randint(2**62, (), generator=generator))):
            return self.make()

    def data(self, source: Source, device: str) -> Data:
        """Return a shard of the training samples, or all of the node's own. Raises ConfigError: they cannot be read or cut."""
        train, test = self._splits(source.path)
        keys = None if self.keys is None or source.path is not None else np.asarray(self.keys)
        if keys is not None and keys.shape != (len(train),):
            raise ConfigError(f"keys: must be {len(train)}, one a sample, got shape {keys.shape}")
        pair = _examples(train, keys) if self.lengths is None else None
        if pair is not None and (test is None or _examples(test) is not None):
            return labelled(source, pair, None if test is None else _examples(test), device)
        index, test_index = held_out_rows(len(train)) if test is None else (np.arange(len(train)), np.arange(len(test)))
        test = train if test is None else test
        if source.path is None:
            index = index[_shard(source, train.labels, keys, index)]
        known = None if source.path is not None else self.lengths  # the lengths of the node's own data are unknown
        if known is not None and len(known) != len(train):
            raise ConfigError(f"lengths: must be {len(train)}, one a sample, got {len(known)}")
        lengths = None if known is None else torch.from_numpy(known[index])
        if isinstance(train, Tensors) and isinstance(test, Tensors):
            train, test = (Tensors(moved(split.tree, device)) for split in (train, test))
        return Drawn(train, torch.from_numpy(index), test, torch.from_numpy(test_index), device, lengths)

    def _splits(self, path: Path | None) -> tuple[Samples, Samples | None]:
        train, test = self.train, self.test
        if isinstance(train, Path):
            train, own_test = read(path or train)
            test = own_test if test is None or path is not None else test
        elif _lazy(train):
            train = train(path)
            test = test(path) if _lazy(test) else test
        elif path is not None:
            raise ConfigError(
                f"data: this task has its own data and reads no files, got {path}; "
                "a task whose `train` is a function of a path reads what a node gives"
            )
        return samples_of("train", train), None if test is None else samples_of("test", test)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self._loss(*forward(model, batch))

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """Return (sum of the metric, sum of the loss, samples) of this batch alone."""
        meter, count = self.meter(), rows(batch)
        meter.update(model, batch, count)
        result = meter.compute()
        return result.value * count, result.loss * count, count

    def meter(self) -> Meter:
        """Return a meter over all held-out samples at once."""
        return WholeMeter(forward, self._loss, self.loss, self.metrics)

    def _loss(self, output: Any, target: Any) -> Tensor:
        if self.criterion is not None:
            return self.criterion(output, target)
        return standard_loss(output, target)


def forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Return the model's output and the target: of (x, …, y) model(x, …) and y, of a dict model(**batch) and the dict, else model(x) and
    x.
    """
    if isinstance(batch, Mapping):
        return model(**batch), batch
    if isinstance(batch, tuple | list) and len(batch) > 1 and children(batch) is not None:
        *inputs, target = batch
        return model(*inputs), target
    return model(batch), batch


def standard_loss(output: Any, target: Any) -> Tensor:
    """Cross-entropy for labels, the mean squared error for floats, or the model's own: a mean over the batch.

    Raises TypeError, ValueError: neither fits.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        raise TypeError(f"a model that returns a {type(output).__name__} without `loss` needs starling.task(loss=…)")
    if not target.is_floating_point():
        return functional.cross_entropy(output, target.long())
    if output.numel() != target.numel():
        raise ValueError(f"the model gives {tuple(output.shape)}, the targets are {tuple(target.shape)}")
    return functional.mse_loss(output, target.reshape(output.shape))


def task(
    *,
    model: Callable[[], nn.Module],
    train: Any,
    test: Any = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    metrics: str | Metric | Mapping[str, Metric] | None = None,
    higher_is_better: bool | None = None,
    keys: Any = None,
    lengths: Any = None,
    version: str | int = "",
    weight: Callable[[Any], float] | None = None,
) -> Made:
    """Return a task from its parts. Return it from a function of a module, and name that: `task.kind = "my_task:digits"`.

    A batch that is a tuple (x, …, y) is used as `loss(model(x, …), y)`, one that is a dict as `loss(model(**batch), batch)`, a tensor as
    `loss(model(x), x)`.

    Args:
        model: makes a fresh model; called with the global generators seeded, so that all nodes begin alike.
        train: a map-style Dataset; a DataLoader, of which dataset and collate_fn are used; or arrays or tensors with n rows each, in tuples
            or dicts, e.g. (x, y): bytes of inputs are divided by 255, those of the last of a tuple, and of what a dict names a label,
            target or mask, are not. Or the path of a file (`starling.node.tasks.read`), before which a node's own
            `--data` comes; or a function of that path, None for the built-in data, that returns one of these. Built-in data are cut into
            shards.
        test: the same for evaluation; None holds out one sample in ten.
        loss: (output, target) -> scalar mean over the batch; None: cross-entropy for whole numbers, the mean squared error for floats, or
            `loss` of the model's output.
        metrics: "accuracy", or one or several by name, the first of which decides: functions of all outputs and targets of the held-out
            samples at once, on the CPU, or objects with update(output, target), compute() and reset(), as those of torchmetrics. None:
            accuracy where the loss is one of classes, or of one logit for 0 and 1, determined on a few samples with labels that are
            whole numbers; else the loss (also where `train` is a function or a path: labels are not known in time).
        higher_is_better: of the first of `metrics`; None: as the object says, else yes.
        keys: (n,) owner of each training sample, for partition = by_key.
        lengths: (n,) tokens of each training sample: batches are of samples of like length, so that little of them is padding. Not for the
            data of `--data`.
        version: of the task; nodes with another one than the creator's are refused, as are other names of loss and metric, and other
            parameters of the model.
        weight: a batch -> how many of what the loss is a mean of it has (tokens, pixels), by which parts of a batch are weighted where it
            does not fit into memory; None: it is measured.

    Raises:
        ConfigError: the loss has trainable weights of its own, samples are empty, ragged or no numbers, or an argument is of another kind.
    """
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError(
            f"model: give a function that makes it, e.g. model=lambda: {type(model).__name__}(…), so that all nodes begin alike"
        )
    refuse_weights("loss", loss)
    named = _metrics(metrics)
    if isinstance(train, str):
        train = Path(train).expanduser()
    lazily = isinstance(train, Path) or _lazy(train)
    if not lazily:
        train = samples_of("train", train)
    if test is not None and not _lazy(test):
        test = samples_of("test", test)
    if metrics is None:
        named = {} if lazily else default_metric(model, train, loss, standard_loss)
    if higher_is_better is None:
        first = next(iter(named.values()), None)
        higher_is_better = first is not None and getattr(first, "higher_is_better", None) is not False
    metric = next(iter(named), "loss")
    made = Made(model, train, test, loss, named, metric, higher_is_better, keys=keys, version=version, weight=weight)
    return made if lengths is None else replace(made, lengths=_lengths(lengths, None if lazily else len(train)))


def _metrics(given: Any) -> dict[str, Any]:
    """Return the metrics by name."""
    if given is None:
        return {}
    if isinstance(given, str):
        if given != "accuracy":
            raise ConfigError(f"metrics: must be 'accuracy', a function or object, or {{name: one}}, got {given!r:.40}")
        return {"accuracy": accuracy}
    if not isinstance(given, Mapping) or is_object(given):
        given = {getattr(given, "__name__", type(given).__name__): given}
    bad = [name for name, each in given.items() if not isinstance(name, str) or not (callable(each) or is_object(each))]
    if bad or not given:
        raise ConfigError(f"metrics: needs functions of (output, target), or objects with update and compute, by name, got {given!r:.80}")
    return dict(given)


def _lengths(given: Any, samples: int | None) -> NDArray[np.int64]:
    lengths = np.asarray(given)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(lengths) != (samples or len(lengths)):
        raise ConfigError(
            f"lengths: must be {samples or 'n'} whole numbers > 0, one a sample, got {lengths.dtype} of shape {lengths.shape}"
        )
    if len(lengths) and int(lengths.min()) < 1:
        raise ConfigError(f"lengths: sample {int(lengths.argmin())} has {lengths.min()}, each must be > 0")
    return lengths.astype(np.int64)


def _lazy(given: Any) -> bool:
    """Return whether samples are made by a function of a path."""
    return callable(given) and not hasattr(given, "__getitem__") and not hasattr(given, "dataset")


def _shard(source: Source, labels: NDArray[Any] | None, keys: NDArray[Any] | None, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places in `index`, of samples to train on, that are this node's."""
    known = {name: each[index] for name, each in (("labels", labels), ("keys", keys)) if each is not None}
    return take(cut(source.partition, len(index), source.seed, **known), source.shard)


def _examples(samples: Samples, keys: Any = None) -> Examples | None:
    """Samples (x, y) with labels, as the built-in classification tasks hold them; None: they have another form."""
    if not isinstance(samples, Tensors) or samples.labels is None:
        return None
    match samples.tree:
        case (Tensor(dtype=torch.float32 | torch.uint8) as x, Tensor() as y):
            return Examples(x.numpy(), y.numpy(), keys)
    return None
