"""How long a local step of a task will take on this machine, from its operations one by one, before a step is done.

    python -P -m starling.node.engine.forecast MANIFEST.toml [DATA]

prints a `Forecast` as one JSON line. The loss and its gradient are run on fake tensors, which have shapes and no numbers, so that no
memory is taken for activations. Each different operation is then timed by itself on numbers of its shapes, and what follows a gradient
(correction, optimiser) as it is, all in turn, so that none finds its data in a cache where a step would not find them. What is around
kernels (Python, autograd, a trainer's bookkeeping) is measured on almost nothing. The drawing of a batch is timed as it is.

Of the CPU, in float32, without `numerics`, `privacy` and crews. Steps of less than a millisecond are mostly what is around them, and take
up to half as long again. Predictions from single operations: Yu et al. 2021 (arXiv:2102.00527).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import urandom
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from msgspec import structs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import finite, layout
from starling.node.catalogues import task
from starling.node.config import presets, toml
from starling.node.config.schema import CrewSection, Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.engine.local.opening import trainer_of
from starling.node.engine.mixing import mixer_of
from starling.node.engine.optimizers import optimizer_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.tasks.api import Data, Source, Task
from starling.node.tasks.reserved import data_of

Clock = Callable[[], float]
REPEATS = 12
GROUP_BYTES = 1 << 30
LONGEST_S = 20.0  # in which operations are timed, after each of them was at least twice
LINKS = 12  # layers of the chain that is all overhead


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one local step."""

    parameters: int
    operations: int
    """Of the loss and its gradient."""
    batch_s: float
    """Drawing a batch."""
    kernels_s: float
    """The operations by themselves."""
    update_s: float
    """Correction, checks and the optimiser's step."""
    around_s: float = 0.0
    """What is around operations, and around a step."""

    @property
    def step_s(self) -> float:
        """All of a step."""
        return self.batch_s + self.kernels_s + self.update_s + self.around_s


@dataclass(frozen=True, slots=True)
class _Like:
    """What a tensor is but for its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        """A tensor like it. Whole numbers are 0, which every index may be; others are near 1, so that no kernel meets subnormal ones."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        found = torch.empty(0 if 0 in self.shape else last + 1, dtype=self.dtype)
        found = found.uniform_(0.5, 1.5) if self.dtype.is_floating_point else found.zero_()
        return found.as_strided(self.shape, self.stride)

    @property
    def bytes(self) -> int:
        """At the most."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class _Operation:
    call: Callable[..., Any]
    given: Any  # args and kwargs, with `_Like` for tensors
    count: int = 0


class _Recorder(TorchDispatchMode):
    """Notes each operation, and how often it was with arguments of these shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[object, str], _Operation] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch calls it."""
        kwargs = kwargs or {}
        if func.namespace != "prim":  # questions about a tensor, of the fake ones alone
            given = tree_map(_like, (args, kwargs))
            self.found.setdefault((func, repr(given)), _Operation(func, given)).count += 1
        return func(*args, **kwargs)


def _like(x: Any) -> Any:
    return _Like(tuple(x.shape), tuple(x.stride()), x.dtype) if isinstance(x, Tensor) else x


def _made(x: Any) -> Any:
    return x.made() if isinstance(x, _Like) else x


def operations(loss: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> list[_Operation]:
    """Those of a loss and its gradient. `model` is left with fake parameters.

    Raises ConfigError: what the loss does depends on numbers, which there are none of.
    """
    mode, recorder = FakeTensorMode(), _Recorder()

    def fake(x: Any) -> Any:
        return mode.from_tensor(x) if isinstance(x, Tensor) else x

    for module in model.modules():
        for name, each in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            setattr(module, name, fake(each))
    try:
        with mode:
            for each in model.parameters():
                each.grad = torch.zeros_like(each)  # gradients are added to what is there, as in an engine
        with mode, recorder:
            loss(model, tree_map(fake, batch)).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"task.kind: its loss cannot be followed without numbers: {said[:160]}; run it for a few rounds instead, "
            "`starling status` has the time of a step"
        ) from error
    return list(recorder.found.values())


def kernels(found: Sequence[_Operation], clock: Clock, *, repeats: int = REPEATS) -> float:
    """Seconds of all operations by themselves."""
    return sum(apart(found, clock, repeats=repeats))


def apart(
    found: Sequence[_Operation], clock: Clock, *, repeats: int = REPEATS, longest_s: float = LONGEST_S
) -> list[float]:
    """Seconds of each operation, as often as it is done: medians of times taken in turn, in groups of at most `GROUP_BYTES` if they can."""
    groups, room = [list[_Operation]()], GROUP_BYTES
    for each in found:
        taking = sum(it.bytes for it in tree_leaves(each.given) if isinstance(it, _Like))
        if taking > room and groups[-1]:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(each)
        room -= taking
    with torch.no_grad():
        return [each_s for group in groups for each_s in _in_turn(group, clock, repeats, longest_s / len(groups))]


def _in_turn(found: Sequence[_Operation], clock: Clock, repeats: int, longest_s: float) -> list[float]:
    ready = [(each, tree_map(_made, each.given)) for each in found]
    taken_s: list[list[float]] = [[] for _ in ready]
    began, idle_s = time.perf_counter(), median(times(lambda: None, clock, 200))
    for turn in range(repeats + 1):
        for (each, (args, kwargs)), mine in zip(ready, taken_s, strict=True):
            start = clock()
            each.call(*args, **kwargs)
            mine.append(clock() - start - idle_s)
        if turn > 1 and time.perf_counter() - began > longest_s:
            break
    return [each.count * median(mine[1:]) for each, mine in zip(found, taken_s, strict=True)]  # the first one warms up


def overhead(clock: Clock) -> float:
    """Seconds around an operation: a chain of layers of four numbers, less its kernels."""
    chain = nn.Sequential(*(layer for _ in range(LINKS) for layer in (nn.Linear(4, 4), nn.Tanh())))
    batch = torch.ones(1, 4)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), torch.zeros(1, dtype=torch.int64))

    def step() -> None:
        for each in chain.parameters():
            if each.grad is not None:
                each.grad.zero_()
        loss(chain, batch).backward()  # type: ignore[no-untyped-call]

    whole = taken(step, clock, 60)
    found = operations(loss, chain, batch)
    return max(0.0, whole - kernels(found, clock, repeats=60)) / sum(each.count for each in found)


def taken(call: Callable[[], object], clock: Clock, repeats: int) -> float:
    """Median seconds of a call; the first one warms up."""
    return median(list(times(call, clock, repeats + 1))[1:])


def times(call: Callable[[], object], clock: Clock, repeats: int) -> Iterator[float]:
    """Seconds of each of so many calls."""
    for _ in range(repeats):
        start = clock()
        call()
        yield clock() - start


def around_a_step(manifest: Manifest, clock: Clock, each_s: float) -> float:
    """Seconds of a step that depend neither on the model nor on the batch: a trainer's step on the smallest model, less its own forecast.

    `each_s`: around each operation.
    """
    plain = structs.replace(
        manifest, task=TaskSection(), optimizer=OptimizerSection(), crew=CrewSection(), partition=PartitionSection(),
        mix=structs.replace(manifest.mix, personal=(), turns=(), own=0.0),
    )  # fmt: skip
    tiny = toml.apply_set(plain, ("task.kind=digits", "task.hidden=1", "task.batch_size=1"))
    opening = calls.Open(tiny, "", 0, "cpu", torch.get_num_threads(), "", "forecast")
    trainer = trainer_of(opening, Csprng(urandom), GradientWindow())
    whole = taken(lambda: trainer.step(0), clock, 60)
    made = task(tiny.task.kind, tiny.task.params())
    known = _parts(tiny, made, trainer.model.data, clock)
    return max(0.0, whole - known.step_s - each_s * known.operations)


def _update(manifest: Manifest, model: nn.Module) -> Callable[[], None]:
    """What follows a gradient, as `starling.node.engine.local.local_step` does it."""
    about = layout(model)
    mixer, _ = mixer_of(manifest, about)
    x, gradient = torch.zeros(about.dim, dtype=about.dtype), torch.full((about.dim,), 0.1, dtype=about.dtype)
    optimizer, state = optimizer_of(manifest, x, model), mixer.start(x)

    def update() -> None:
        nonlocal state
        gradient.zero_().add_(0.1)

        def correct(own: Tensor) -> Tensor:
            nonlocal state
            direction, state = mixer.correct(state, own)
            return direction

        direction, shift = optimizer.corrected(gradient, correct)
        if finite(direction):
            optimizer.step(x, direction, 1e-3, shift)
        finite(x)

    return update


def forecast(manifest: Manifest, made: Task, data: Data, clock: Clock = time.perf_counter) -> Forecast:
    """Of a step on a batch of `task.batch_size`. `clock`: of seconds; `time.thread_time` does not count what other programs take.

    Raises ConfigError: the loss cannot be followed, or a manifest that does not fit the model.
    """
    with torch.random.fork_rng(devices=[]):
        found, each_s = _parts(manifest, made, data, clock), overhead(clock)
        around_s = each_s * found.operations + around_a_step(manifest, clock, each_s)
    return structs.replace(found, around_s=around_s)


def _parts(manifest: Manifest, made: Task, data: Data, clock: Clock) -> Forecast:
    """Without what is around operations and steps."""

    def batch() -> Any:
        return data.batch(manifest.task.batch_size, generator(manifest.seed, "forecast"))

    model = made.model(generator(manifest.seed, "model"))
    update, dim = _Operation(_update(manifest, model), ((), {}), 1), layout(model).dim
    found = operations(made.loss, model, batch())
    *kernels_s, update_s = apart([*found, update], clock)
    return Forecast(
        parameters=dim, operations=sum(each.count for each in found), batch_s=taken(batch, clock, REPEATS),
        kernels_s=sum(kernels_s), update_s=update_s,
    )  # fmt: skip


def main(argv: Sequence[str]) -> None:
    """Print the line, of one thread, without what other programs take. Raises ConfigError: as `forecast`, or there are no data."""
    file, data = argv[0], Path(argv[1]) if len(argv) > 1 else None
    manifest = presets.load(Manifest, Path(file), ())
    made = task(manifest.task.kind, manifest.task.params())
    source = Source(data, manifest.partition, 0, manifest.seed)
    torch.set_num_threads(1)
    found = forecast(manifest, made, data_of(made, source, "cpu", 0.0), time.thread_time)
    told = {**structs.asdict(found), "step_s": found.step_s}
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(str(error))
