"""Outputs and targets of all held-out samples, joined on the CPU for metrics that are no mean over samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from starling.gossip.errors import ConfigError
from starling.node.tasks.means import IGNORED
from starling.node.tasks.samples import LABELS
from starling.node.tasks.trees import children, mapped, moved, rebuilt, tensors

MOST_BYTES = 2 << 30  # bytes of gathered outputs and targets


class Gathered:
    """Pairs of a model's output and its target, a batch at a time.

    Args:
        what: they are gathered for, in messages.
        most_bytes: of all of them.
        pads: whether batches of unlike lengths are joined, padded.
    """

    def __init__(self, what: str, most_bytes: int = MOST_BYTES, *, pads: bool = True) -> None:
        self._what, self._most, self._pads, self._bytes = what, most_bytes, pads, 0
        self._pairs: list[tuple[Any, Any]] = []

    def add(self, output: Any, target: Any) -> None:
        """A batch. Raises ConfigError: it is too much for the memory set aside."""
        pair = _bare(moved(mapped(_detached, output), "cpu")), moved(mapped(_detached, target), "cpu")
        self._bytes += sum(tensor.nbytes for tensor in tensors(pair))
        if self._bytes > self._most:
            raise ConfigError(
                f"{self._what}: is given all outputs of the held-out samples at once, which take more than {self._most >> 20:,} MiB; "
                "give an object with update and compute, as of torchmetrics, or fewer samples as `test`"
            )
        self._pairs.append(pair)

    def joined(self) -> tuple[Any, Any]:
        """Return (outputs, targets) of all batches. Raises ConfigError: they do not fit together."""
        try:
            outputs, targets = (joined([pair[side] for pair in self._pairs], pads=self._pads) for side in range(2))
        except Unjoined as error:
            raise ConfigError(f"{self._what}: {error}; give an object with update and compute, as of torchmetrics") from error
        return outputs, targets


class Unjoined(ConfigError):
    """Raised for batches that cannot be joined."""


def joined(batches: Sequence[Any], *, pads: bool = True) -> Any:
    """Batches of one form as one, padded where they are of unlike lengths and this is allowed. Raises Unjoined."""
    try:
        return _joined(batches, "", pads)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Unjoined(f"outputs of batches cannot be joined: {' '.join(str(error).split())[:160]}") from error


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _bare(output: Any) -> Any:
    """Without what is no tensor, such as a cache of keys and values, in outputs with names."""
    if not isinstance(output, Mapping):
        return output
    named = {name: each for name, each in output.items() if any(True for _ in tensors(each))}
    return output if len(named) == len(output) else type(output)(**named) if type(output) is not dict else named


def _joined(batches: Sequence[Any], name: str, pads: bool) -> Any:
    """Nests of one form, joined leaf by leaf along samples; a number is their mean, and of what is no tensor a list of all batches'."""
    first = batches[0]
    if isinstance(first, Tensor):
        return (
            torch.stack(list(batches)).float().mean(0) if not first.ndim else torch.cat(_padded(batches, name) if pads else list(batches))
        )
    members = children(first)
    if members is None:
        return first if len(batches) == 1 else list(batches)
    if isinstance(first, list) and not any(True for _ in tensors(first)):
        return [each for batch in batches for each in batch]
    names = list(first) if isinstance(first, Mapping) else [name] * len(members)
    columns = zip(*(children(batch) or [] for batch in batches), strict=True)
    return rebuilt(first, [_joined(column, str(each), pads) for each, column in zip(names, columns, strict=True)])


def _padded(batches: Sequence[Tensor], name: str) -> list[Tensor]:
    """Pad the batches to one length after the first dimension: labels with `IGNORED`, all else with zeros."""
    longest = [max(sizes) for sizes in zip(*(each.shape[1:] for each in batches), strict=True)]
    if all(list(each.shape[1:]) == longest for each in batches):
        return list(batches)
    labels = name in LABELS or any(bool((each == IGNORED).any()) for each in batches if not each.is_floating_point())
    padded = []
    for each in batches:
        missing = [side for size, most in zip(reversed(each.shape[1:]), reversed(longest), strict=True) for side in (0, most - size)]
        padded.append(functional.pad(each, missing, value=IGNORED if labels else 0))
    return padded
