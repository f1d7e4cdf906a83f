"""Facts about a user's loss function: whether it has weights, and which metric suits it."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks.meters import Function, accuracy, binary_accuracy
from starling.node.tasks.samples import Samples, Unreadable, seeded
from starling.node.tasks.trees import children

_TRIED = 16  # number of samples with which a loss is tried
_CLASSES = (-0.5, 0.25, 0.75)  # margins of right answers: a loss of classes falls from each to the next, also where labels are smoothed
_LOGIT = (-0.5, 0.5, 2.0, 6.0)  # a regression loss on labels 0 and 1 would rise again


def refuse_weights(key: str, criterion: Any) -> None:
    """Raises ConfigError: a criterion has parameters, which would be neither trained nor exchanged."""
    for module in _modules(criterion):
        if names := [name for name, each in module.named_parameters() if each.requires_grad]:
            raise ConfigError(
                f"{key}: {type(module).__name__} has trainable weights of its own ({', '.join(names[:3])}), which would not be trained; "
                "make them part of the model, whose output may have a `loss`, or freeze them (requires_grad_(False))"
            )


def _modules(criterion: Any) -> Iterator[nn.Module]:
    """Modules that a criterion is, is a method or a partial of, or encloses."""
    if isinstance(criterion, nn.Module):
        yield criterion
    elif isinstance(criterion, functools.partial):
        for each in (criterion.func, *criterion.args, *criterion.keywords.values()):
            yield from _modules(each)
    elif isinstance(owner := getattr(criterion, "__self__", None), nn.Module):
        yield owner
    else:
        for cell in getattr(criterion, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if isinstance(content, nn.Module):
                yield content


def default_metric(model: Callable[[], nn.Module], train: Samples, criterion: Function | None, standard: Function) -> dict[str, Function]:
    """Accuracy where the loss is certainly one of classes or of a logit, by name; {}: the loss itself is the metric.

    A loss of the owner's is tried: one of classes falls as the output of the right one rises, one of a logit as that takes the sign of the
    target, 0 or 1. Whole numbers that are ages, counts or ratings are none. A Dataset that does not tell all its labels is tried with the
    `standard` loss too, and by the labels of the samples that are tried.
    """
    labels = train.labels
    if labels is not None and criterion is None:
        return {"accuracy": accuracy}
    try:
        with seeded(0), torch.no_grad():
            index, batch = _first(train)
            answers = _classes(batch) if labels is None else torch.from_numpy(labels)[index]
            if answers is None:
                return {}
            known = answers if labels is None else torch.from_numpy(labels)
            return _tried(criterion or standard, *_forward(model, batch), answers, known)
    except Exception:  # noqa: BLE001 — of the owner's code, which is tried in earnest when a node opens
        return {}


def _first(train: Samples) -> tuple[Tensor, Any]:
    """Numbers of a few samples that can be read, from all over the data, which may be in the order of their classes; and these samples."""
    index = torch.linspace(0, len(train) - 1, min(_TRIED, len(train)), dtype=torch.float64).round().long()
    try:
        return index, train.take(index)
    except Unreadable as error:
        index = torch.tensor([number for number in index.tolist() if number not in error.why])
        return index, train.take(index)


def _classes(batch: Any) -> Tensor | None:
    """Return the targets of (x, …, y) where they are a whole number a sample."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        return None
    target = batch[-1]
    whole = isinstance(target, Tensor) and target.ndim == 1 and not target.is_floating_point() and not target.is_complex()
    return target.long() if whole else None


def _forward(model: Callable[[], nn.Module], batch: Any) -> tuple[Any, Any]:
    """Return a fresh model's output and the target."""
    made = model().eval()
    if isinstance(batch, Mapping):
        return made(**batch), batch
    *inputs, target = children(batch) or [batch]
    return made(*inputs), target


def _tried(criterion: Function, output: Any, target: Any, answers: Tensor, known: Tensor) -> dict[str, Function]:
    """Return the metrics that suit a loss for these targets. `known`: the targets of all samples, or as many as can be read."""
    if hasattr(output, "logits"):
        return {"accuracy": accuracy}
    if output.ndim == 2 and output.shape[1] > 1 and known.min() >= 0 and known.max() < output.shape[1]:
        right = 2 * nn.functional.one_hot(answers, output.shape[1]).to(output) - 1
        return {"accuracy": accuracy} if _falls(criterion, right, target, _CLASSES) else {}
    if output.numel() == len(output) and set(known.tolist()) == {0, 1}:
        right = (2 * answers.to(output) - 1).reshape(output.shape)
        return {"accuracy": binary_accuracy} if _falls(criterion, right, target, _LOGIT) else {}
    return {}


def _falls(criterion: Function, right: Tensor, target: Any, margins: Sequence[float]) -> bool:
    losses = [float(criterion(margin * right, target)) for margin in margins]
    return all(after < before for before, after in itertools.pairwise(losses))
