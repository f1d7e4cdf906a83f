"""Batches of any form in parts: tensors with one leading number of samples, or tuples, lists and dicts of such."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def samples(batch: Any) -> int | None:
    """How many samples a batch has, the length of all its tensors; None: it has no tensors, or of different lengths."""
    lengths = {tensor.shape[0] if tensor.ndim else 0 for tensor in _leaves(batch)}
    return lengths.pop() or None if len(lengths) == 1 else None


def part(batch: Any, begin: int, end: int) -> Any:
    """Samples [begin, end) of a batch, views in the same form; what is no tensor stays."""
    return _mapped(lambda tensor: tensor[begin:end], batch)


def moved(batch: Any, device: str) -> Any:
    """The batch on a device."""
    return _mapped(lambda tensor: tensor.to(device), batch)


def _mapped(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _mapped(change, each) for key, each in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_mapped(change, each) for each in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _leaves(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _leaves(each)
