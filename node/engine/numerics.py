"""A batch's gradient within the memory and in the precision that this machine has. None of it changes what the swarm agrees on.

A batch that does not fit is computed in micro-batches, whose weighted gradients add up to its own within rounding, if the loss is a mean
over samples and no layer looks at the batch as a whole (BatchNorm does). The parameters, their gradient and the optimiser keep float32.

What layers draw (dropout) follows from a seed per step, so that a resumed run draws the same; on MPS it does not.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NumericsSection
from starling.node.tasks.api import Task


class Gradients:
    """Gradients of a task's loss, added up in those of `model`'s parameters.

    Attributes:
        micro_batch: samples computed at a time; None: the whole batch. It is halved where memory runs out, and stays so.
    """

    def __init__(self, section: NumericsSection, task: Task, model: nn.Module, device: str) -> None:
        """Raises ConfigError: the device, or the model, has not the precision asked for."""
        self._task, self._model, self._device = task, model, device
        self.micro_batch = section.micro_batch
        self._precision = None if section.precision == "float32" else torch.bfloat16
        if self._precision is not None:
            _check_precision(model, device, self._precision)

    def check(self, batch: Any) -> None:
        """Raises ConfigError: micro-batches are asked for, and a batch of this form cannot be split."""
        if self.micro_batch is not None and samples(batch) is None:
            raise ConfigError(
                "numerics.micro_batch: the task's batches cannot be split: they must be tensors with one leading number of samples, or "
                "tuples, lists or dicts of such; leave it out"
            )

    def compute(self, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]) -> float:
        """The loss of a batch; its gradient replaces what is in `gradient` (d,), to which those of the parameters are bound.

        `seed` is of what layers draw; `reset` undoes what a forward pass that ran out of memory has changed. Raises ConfigError: a single
        sample does not fit into memory.
        """
        while True:
            try:
                with _seeded(seed, self._device):
                    return self._sum(batch, gradient)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            self._halve(batch)
            reset()

    def _sum(self, batch: Any, gradient: Tensor) -> float:
        gradient.zero_()
        count = samples(batch)
        size = count if self.micro_batch is None or count is None else min(self.micro_batch, count)
        if size is None or count is None or size == count:
            return self._backward(batch, 1.0)
        return sum(
            self._backward(part(batch, begin, min(begin + size, count)), min(size, count - begin) / count)
            for begin in range(0, count, size)
        )

    def _backward(self, batch: Any, share: float) -> float:
        with self._autocast():
            loss = self._task.loss(self._model, batch)
        if share != 1.0:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _autocast(self) -> AbstractContextManager[None]:
        return nullcontext() if self._precision is None else torch.autocast(self._device, dtype=self._precision)

    def _halve(self, batch: Any) -> None:
        count = samples(batch) or 1
        size = min(self.micro_batch or count, count)
        if size == 1:
            raise ConfigError(
                "numerics.micro_batch: a single sample, or a batch that cannot be split, does not fit into memory; take a smaller model or "
                "shorter samples, `--set device=cpu`, or a machine with more"
            )
        self.micro_batch = (size + 1) // 2
        if self._device == "cuda":
            torch.cuda.empty_cache()
        sys.stderr.write(
            f"out of memory: batches are computed {self.micro_batch} samples at a time from here on; "
            f"`--set numerics.micro_batch={self.micro_batch}` begins with that\n"
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the machine has no memory left; on the CPU torch raises a RuntimeError."""
    text = str(error)
    words = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in text for each in words)


def samples(batch: Any) -> int | None:
    """How many samples a batch has, the length of all its tensors; None: it has no tensors, or of different lengths."""
    lengths = {tensor.shape[0] if tensor.ndim else 0 for tensor in _leaves(batch)}
    return lengths.pop() or None if len(lengths) == 1 else None


def part(batch: Any, begin: int, end: int) -> Any:
    """Samples [begin, end) of a batch, views in the same form; what is no tensor stays."""
    if isinstance(batch, Tensor):
        return batch[begin:end]
    if isinstance(batch, Mapping):
        return {key: part(each, begin, end) for key, each in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [part(each, begin, end) for each in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _leaves(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _leaves(each)


@contextmanager
def _seeded(seed: int, device: str) -> Iterator[None]:
    """Torch's own generators begin at `seed`, and are as before afterwards: layers such as dropout take no other."""
    generators: list[Generator] = [torch.default_generator]
    if device == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    before = [each.get_state() for each in generators]
    for each in generators:
        each.manual_seed(seed)
    try:
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


def _check_precision(model: nn.Module, device: str, precision: torch.dtype) -> None:
    name = str(precision).removeprefix("torch.")
    other = {str(each.dtype).removeprefix("torch.") for each in model.parameters() if each.dtype != torch.float32}
    if other:
        raise ConfigError(
            f"numerics.precision: {name} is for models in float32, this one has parameters in {min(other)}; leave it out"
        )
    if not has_precision(device, precision):
        raise ConfigError(f"numerics.precision: {device} of this machine has no {name}; leave it out for float32")


def has_precision(device: str, precision: torch.dtype) -> bool:
    """Whether a device multiplies matrices in a precision, found by trying; on CUDA not where it is only emulated."""
    if device == "cuda" and precision == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return False
    try:
        with torch.autocast(device, dtype=precision):
            one = torch.ones(2, 2, device=device)
            return (one @ one).dtype == precision
    except RuntimeError:
        return False
