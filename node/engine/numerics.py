"""Compute a batch's gradient within this machine's memory and precision. None of it changes what the swarm agrees on.

A batch that does not fit is computed in micro-batches, whose gradients, weighted by what the loss is a mean of, add up to its own within
rounding (`starling.node.engine.parts`), if no layer uses the batch as a whole (BatchNorm does). The parameters, their gradient and the
optimiser keep float32.

What layers draw (dropout) follows from a seed per step, so that a resumed run draws the same; on MPS it does not. Built-in tasks draw
nothing, and the generators are left alone.

In float16 the loss is scaled (`starling.node.engine.loss_scale`). Where torch.compile fails, also at a later batch of another shape, steps
go on without it: an error that the uncompiled loss has too is the task's, any other was the compiler's.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.binding import Moving, Unmoved
from starling.gossip.errors import ConfigError
from starling.node.config.schema import NumericsSection
from starling.node.engine.activations import Checkpointed
from starling.node.engine.forward import Compile, Compiled, Context, Loss, Within, no_mending
from starling.node.engine.loss_scale import LossScale, Scale, Unscaled
from starling.node.engine.parts import Parts, out_of_memory
from starling.node.tasks.api import Task
from starling.node.tasks.batches import cut, samples

UNMOVED = Unmoved()
DRAW_NOTHING = frozenset(f"starling.node.tasks.{name}" for name in ("convex", "digits", "images", "synthetic", "text"))
"""Modules of tasks whose models and losses draw no random numbers in a step."""
SLOW = 2.0  # times the time of float32 from which the owner is warned
LESSER: Mapping[str, torch.dtype] = MappingProxyType({"bfloat16": torch.bfloat16, "float16": torch.float16})
"""Precisions of a forward pass other than float32."""
SCALES: Mapping[str, Callable[[], Scale]] = MappingProxyType({"float16": LossScale})
"""Loss scales of some of them."""
PRODUCT = 512  # rows of the square matrices that are multiplied to measure it


def inductor(loss: Loss) -> Loss:
    """Return the loss, compiled at its first call. Imports torch's compiler, which takes seconds; it starts no processes of its own."""
    compiled: Loss = torch.compile(loss, options={"compile_threads": 1})
    return compiled


class Gradients:
    """Gradients of a task's loss, added up in those of `model`'s parameters.

    Attributes:
        micro_batch: samples computed at a time; None: the whole batch. It is halved where memory runs out, and stays so.
        scale: of the loss.
        parts: weights of parts of a batch.
        notes: settings that were changed and why, each a line for the owner, until they are taken.
    """

    def __init__(
        self, section: NumericsSection, task: Task, model: nn.Module, device: str, compiler: Compile = inductor, binding: Moving = UNMOVED
    ) -> None:
        """`binding`: of the model to its vector; left out: gradients are views of a vector.

        Raises ConfigError: the device, or the model, does not support the settings.
        """
        if section.compile and section.activation_checkpointing:
            raise ConfigError(
                "numerics.activation_checkpointing: not with numerics.compile, which itself chooses what is computed again; leave one out"
            )
        self._model, self._section, self.micro_batch = model, section, section.micro_batch
        self.notes: list[str] = []
        self.scale = SCALES.get(section.precision, Unscaled)()
        contexts = _autocast(section.precision, model, device, self.notes)
        if section.activation_checkpointing:
            contexts.append(Checkpointed(model).forward)
        self.parts = Parts(task, model, device, self.notes)
        loss: Loss = task.loss
        self._mends: Callable[[Exception], bool] = no_mending
        if section.compile:
            loss = compiled = Compiled(task.loss, compiler, self.notes)
            self._mends = compiled.mends
        for context in reversed(contexts):
            loss = Within(loss, context)
        self._loss = loss
        self._chance: Callable[[int], AbstractContextManager[Any]]
        self._chance = nullcontext if type(task).__module__ in DRAW_NOTHING else partial(seeded, device=device)
        self._loads, self._gathers = binding.before, binding.after_backward

    def check(self, batch: Callable[[], Any]) -> None:
        """Raise ConfigError if batches must be split and those of `batch`'s form cannot be."""
        keys = [key for key in ("micro_batch", "noise_every") if getattr(self._section, key)]
        if keys:
            self.parts.check(batch(), f"numerics.{keys[0]}")

    def compute(self, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]) -> float:
        """Return the loss of a batch and write its gradient to `gradient` (d,), to which those of the parameters are bound.

        `seed` is of what layers draw; `reset` undoes what a forward pass that is done again has changed. Raises ConfigError: a single
        sample does not fit into memory.
        """
        while True:
            for load in self._loads:
                load()
            try:
                with self._chance(seed):
                    gradient.zero_()
                    whole = self.micro_batch is None or (samples(batch) or 0) <= self.micro_batch
                    value = self._backward(batch, 1.0) if whole else self._in_parts(batch, self.micro_batch)
            except Exception as error:
                if out_of_memory(error):
                    self._halve(batch)
                elif not self._mends(error):
                    raise
            else:
                if not math.isfinite(value) or self.scale.unscaled(gradient):
                    return value
            reset()

    def _in_parts(self, batch: Any, size: int | None) -> float:
        assert size is not None
        parts, sizes = cut(batch, size)
        shares = self.parts.shares(batch, parts, sizes)
        return sum(self._backward(each, share) for each, share in zip(parts, shares, strict=True) if share)

    def _backward(self, batch: Any, share: float) -> float:
        loss = self._loss(self._model, batch)
        if loss is None:  # a training step returns None to skip a batch
            return math.nan
        factor = share * self.scale.scale
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        for gather in self._gathers:
            gather()
        return loss.item() * share

    def _halve(self, batch: Any) -> None:
        count = samples(batch) or 1
        size = min(self.micro_batch or count, count)
        if size == 1:
            raise ConfigError(
                "numerics.micro_batch: a single sample, or a batch that cannot be split, does not fit into memory; take a smaller model or "
                "shorter samples, `--set device=cpu`, or a machine with more"
            )
        self.micro_batch = (size + 1) // 2
        torch.cuda.empty_cache()  # does nothing if nothing was computed on the GPU
        self.notes.append(
            f"out of memory: batches are computed {self.micro_batch} samples at a time from here on; "
            f"`--set numerics.micro_batch={self.micro_batch}` begins with that"
        )


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch's generators within this block and restore them afterwards: layers such as dropout take no other."""
    others = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(others, device_type="cuda"):
        for each in (torch.default_generator, *(torch.cuda.default_generators[number] for number in others)):
            each.manual_seed(seed)
        yield


def _autocast(name: str, model: nn.Module, device: str, notes: list[str]) -> list[Context]:
    """Return the contexts of a precision: none for float32; a note says where it is slow. Raises ConfigError: not available."""
    precision = LESSER.get(name)
    if precision is None:
        return []
    other = {str(each.dtype).removeprefix("torch.") for each in model.parameters()} - {"float32"}
    if other:
        raise ConfigError(f"numerics.precision: {name} is for models in float32, this one has parameters in {min(other)}; leave it out")
    if not has_precision(device, precision):
        raise ConfigError(f"numerics.precision: {device} of this machine has no {name}; leave it out for float32")
    if (times := slowdown(device, precision)) >= SLOW:
        notes.append(
            f"numerics.precision: {name} is {times:.0f} times slower than float32 on this machine's {device}, "
            "which only imitates it; leave the key out"
        )
    return [partial(torch.autocast, device, dtype=precision)]


def has_precision(device: str, precision: torch.dtype) -> bool:
    """Tell if a device multiplies matrices in a precision, by a trial; on CUDA false if it is only emulated."""
    if device == "cuda" and precision == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return False
    try:
        with torch.autocast(device, dtype=precision):
            one = torch.ones(2, 2, device=device)
            return (one @ one).dtype == precision
    except RuntimeError:
        return False


def slowdown(device: str, precision: torch.dtype, clock: Callable[[], float] = time.process_time) -> float:
    """Return how many times longer a product of matrices takes in a precision than in float32; 1.0 for accelerators, without measuring."""
    if device != "cpu":
        return 1.0

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(PRODUCT, PRODUCT, dtype=dtype)
        matrix @ matrix  # the first product includes one-time setup
        began = clock()
        matrix @ matrix
        return clock() - began

    usual = seconds(torch.float32)
    return seconds(precision) / max(usual, 1e-9)
