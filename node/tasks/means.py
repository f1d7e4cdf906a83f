"""Find out what a loss is a mean of (samples, tokens without padding, pixels under a mask) to weight the parts of a batch.

The loss of a batch is Σ w_i · loss_i over its parts i, with weights that are the parts' shares of what the loss is a mean of. Which numbers
these are is measured: of all that a batch counts (`counts`), those remain whose shares give the loss of the whole. It is measured
wherever the remaining ones differ, and now and then.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.node.tasks.trees import children

SAMPLES = "samples"
SUM = "the sum"  # a loss that is a sum instead of a mean
DECLARED = "weight"
IGNORED = -100  # label that torch's cross-entropy and transformers ignore
CLEAR = 3.0  # times the tolerance: beyond it no rounding explains an error
MOST_PADDINGS = 4  # values that may be padding

Weight = Callable[[Any], float]
"""A batch -> how many of what the loss is a mean of it has."""
Table = dict[str, list[float]]
"""By name, a number for each part of a batch."""


class NoMean(ConfigError):
    """Raised if a loss is no known mean; `between`: it may be a mean over something else, as it lies between those of its parts."""

    def __init__(self, text: str, *, between: bool) -> None:
        super().__init__(text)
        self.between = between


class Means:
    """Finds the numbers that a task's loss averages over.

    Args:
        weight: declares them; None: they are searched for.
        tolerance: relative error of a loss that is computed in parts.
    """

    def __init__(self, weight: Weight | None = None, tolerance: float = 1e-5) -> None:
        self._weight = weight
        self._tolerance = tolerance
        self._paddings = {0, IGNORED}
        self._errors: dict[str, float] | None = None  # errors so far of the remaining candidates; None: all candidates remain
        self._calls = 0

    def table(self, parts: Sequence[Any], sizes: Sequence[int]) -> Table:
        """Return the numbers of each part of all that the loss may still be a mean of."""
        if self._weight is not None:
            return {DECLARED: [float(self._weight(part)) for part in parts]}
        rows = [counts(part, size, self._paddings, self._errors) for part, size in zip(parts, sizes, strict=True)]
        return {name: [row[name] for row in rows] for name in rows[0] if all(name in row for row in rows)}

    def shares(self, whole: Any, parts: Sequence[Any], sizes: Sequence[int], loss: Callable[[Any], float] | None) -> list[float]:
        """Return the weights of the losses of `parts`, of `sizes` samples, in the loss of the whole. `loss` measures; None: no measuring.

        Raises NoMean: none gives the loss of the whole.
        """
        if self._errors is None:
            self._paddings |= _paddings(whole)
        table = {name: _shares(row) for name, row in self.table(parts, sizes).items() if sum(row) > 0.0}
        if self._weight is None and (self._errors is None or SUM in self._errors):
            table[SUM] = [1.0] * len(parts)
        if not table:  # a batch without any target
            return _shares(sizes)
        self._calls += 1
        rows = list(table.values())
        doubtful = not all(_alike(rows[0], other) for other in rows[1:])
        if loss is not None and len(parts) > 1 and (doubtful or self._calls & (self._calls - 1) == 0):
            self._compare(table, loss(whole), [loss(part) for part in parts])
        return table[self.best(table)]

    def best(self, among: Collection[str]) -> str:
        """Return the name of what the loss most likely is a mean of."""
        errors = self._errors or {}
        remaining = [name for name in among if self._errors is None or name in errors]
        return min(remaining or among, key=lambda name: errors.get(name, 0.0))

    @property
    def adds_up(self) -> bool:
        """Return whether the loss is a sum over samples instead of a mean."""
        return self._errors is not None and self.best(self._errors) == SUM

    def _compare(self, table: Table, whole: float, parts: Sequence[float]) -> None:
        if not math.isfinite(whole):
            return
        scale = max(abs(whole), *(abs(part) for part in parts if math.isfinite(part)), 1e-12)
        errors = {name: abs(weighted(shares, parts) - whole) / scale for name, shares in table.items()}
        nearest = min(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
        if not errors[nearest] <= CLEAR * self._tolerance:
            raise NoMean(
                f"the loss of a batch is no mean of the losses of its parts: it is {whole:.5g}, and weighted by {nearest} they give "
                f"{weighted(table[nearest], parts):.5g}; say what it is a mean of, with starling.task(weight=…)",
                between=min(parts) <= whole <= max(parts),
            )
        bound = max(self._tolerance, errors[nearest])
        before = self._errors or {}
        self._errors = {name: before.get(name, 0.0) + error for name, error in errors.items() if error <= bound}


def weighted(shares: Sequence[float], losses: Sequence[float]) -> float:
    """Σ of both's products; a part that does not count may have no loss."""
    return sum(share * loss for share, loss in zip(shares, losses, strict=True) if share)


def counts(batch: Any, samples: int, paddings: Collection[int] = (0, IGNORED), only: Collection[str] | None = None) -> dict[str, float]:
    """Return every number that a loss of this batch may be a mean over, by name; `only` these names.

    Of each tensor: its numbers; of whole numbers and of masks those that are no padding; of tokens the same without the first of each
    row, as targets are shifted; and the sum of lengths, (m,) whole numbers.
    """
    chosen = [(name, number) for name, number in _numbers(batch, samples, sorted(paddings)) if only is None or name in only]
    made = [number() for _, number in chosen]
    tensors = [each for each in made if isinstance(each, Tensor)]
    on_device = iter(torch.stack(tensors).tolist() if tensors else ())  # all in one transfer
    return {name: float(next(on_device) if isinstance(each, Tensor) else each) for (name, _), each in zip(chosen, made, strict=True)}


def _numbers(batch: Any, samples: int, paddings: Sequence[int]) -> Iterator[tuple[str, Callable[[], Tensor | int]]]:
    yield SAMPLES, lambda: samples
    for path, tensor in _named(batch, ""):
        yield f"numbers of {path}", tensor.numel
        if tensor.is_complex() or (tensor.is_floating_point() and not _is_mask(tensor)):
            continue
        values = [value for value in paddings if _holds(tensor, value)] if _is_whole(tensor) else [0]
        views = {path: tensor} | ({f"{path} after the first": tensor[:, 1:]} if tensor.ndim > 1 else {})
        for name, view in views.items():
            for value in values:
                yield f"{name} that are not {value}", partial(_unequal, view, value)
        if tensor.ndim == 1 and _is_whole(tensor):
            yield f"the sum of {path}", partial(_sum, tensor)


def _holds(tensor: Tensor, value: int) -> bool:
    kind = torch.iinfo(tensor.dtype)
    return kind.min <= value <= kind.max


def _unequal(tensor: Tensor, value: int) -> Tensor:
    return (tensor != value).sum()


def _sum(tensor: Tensor) -> Tensor:
    return tensor.clamp(min=0).sum()


def _is_whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _is_mask(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def _paddings(batch: Any) -> set[int]:
    """Return the tokens that most rows end with."""
    ends = (tensor[..., -1] for _, tensor in _named(batch, "") if tensor.ndim > 1 and tensor.numel() and _is_whole(tensor))
    return {int(end.flatten().mode().values) for end in islice(ends, MOST_PADDINGS)}


def _named(tree: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield path or "the batch", tree
        return
    members = children(tree) or []
    names = list(tree) if isinstance(tree, Mapping) else range(len(members))
    for name, each in zip(names, members, strict=True):
        yield from _named(each, f"{path}.{name}" if path else str(name))


def _shares(row: Sequence[float]) -> list[float]:
    total = sum(row)
    return [each / total for each in row]


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= 1e-9 for a, b in zip(one, other, strict=True))
