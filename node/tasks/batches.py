"""Batches of any form in parts: tensors with one leading number of samples, in any nest of `starling.node.tasks.trees`."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from starling.node.tasks.trees import children, leaves, rebuilt, tensors


def samples(batch: Any) -> int | None:
    """Return the number of samples of a batch, the length of all its tensors; None if lengths differ or it has objects or no tensors."""
    lengths = set(_lengths(batch))
    return lengths.pop() or None if len(lengths) == 1 else None


def _lengths(tree: Any) -> Iterator[int]:
    """Yield the lengths of all tensors; 0 for what cannot be cut: a number or an object, whose tensors need not be of samples."""
    if isinstance(tree, Tensor):
        yield tree.shape[0] if tree.ndim else 0
    elif isinstance(tree, Mapping | tuple | list) and (members := children(tree)) is not None:
        for each in members:
            yield from _lengths(each)
    elif hasattr(tree, "to") or next(tensors(tree), None) is not None:
        yield 0


def part(batch: Any, begin: int, end: int) -> Any:
    """Samples [begin, end) of a batch, views in the same form; lists of a text or number for each sample are cut, all else stays."""
    return _part(batch, begin, end, samples(batch))


def cut(batch: Any, size: int) -> tuple[list[Any], list[int]]:
    """Parts of `size` samples, the last may have fewer, and how many each has."""
    count = samples(batch) or 1
    sizes = [min(size, count - begin) for begin in range(0, count, size)]
    return [part(batch, number * size, number * size + each) for number, each in enumerate(sizes)], sizes


def _part(tree: Any, begin: int, end: int, count: int | None) -> Any:
    if isinstance(tree, Tensor):
        return tree[begin:end]
    members = children(tree)
    if members is None:
        return tree
    if isinstance(tree, list) and len(tree) == count and not any(isinstance(each, Tensor) for each in leaves(tree)):
        return tree[begin:end]
    return rebuilt(tree, [_part(each, begin, end, count) for each in members])
