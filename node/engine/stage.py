"""One stage of a crew: its blocks, and what a step computes with them, a micro-batch at a time.

The daemon says which task is next (`starling.gossip.pipeline.stage`), so that gradients add up in the order of micro-batches, as on one
machine that accumulates the same ones, bit for bit where activations travel in float32. Nothing changes the model before `finish`.

What a neighbour sent is checked before it is computed with: codec, shape, finite numbers, labels that exist. What does not fit is a fault.

Shapes: d parameters of this stage, m samples of a micro-batch.
"""

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.gossip.compress import activations
from starling.gossip.compress.activations import Cache, codec
from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.pipeline.meeting import KEPT
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import finite, squares
from starling.node.config import crew as crews
from starling.node.config.schema import Manifest
from starling.node.engine import tensor_file
from starling.node.engine.numerics import seeded
from starling.node.engine.rehearsal import calling
from starling.node.status.format import size as shown
from starling.node.storage import private
from starling.node.tasks.api import Sampled, Staged, Task
from starling.node.tasks.batches import part

KIND = "stage"
STATE_BYTES = 32  # a parameter at the most, of model and moments in float64
_LABELS = struct.Struct("<BB")  # dtype, dimensions
_DTYPES = (torch.uint8, torch.int32, torch.float32)


class Elsewhere:
    """The data of a stage that is not the first: none."""

    samples = 0

    def batch(self, size: int, generator: Generator) -> Any:
        """Raises LocalProtocolError."""
        raise LocalProtocolError("the data of a crew are at its first stage")

    def held_out(self, size: int) -> Iterator[Any]:
        """None."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Cut:
    """Which blocks a stage has, and how many parameters the largest stage."""

    first: int
    end: int
    most_parameters: int


def cut(task: Task, manifest: Manifest, stage: int, there: int) -> Cut:
    """By the number of parameters of each block, which are made one by one and not kept.

    Raises ConfigError: the task has no blocks, none fits, or this machine has not the memory for this stage.
    """
    kind = manifest.task.kind
    if not isinstance(task, Staged):
        raise ConfigError(
            f"crew.stages: task.kind = {kind!r} does not say its blocks (blocks, parted, loss_of, score_of: docs/crews.md); "
            "try `--set crew.stages=1`"
        )
    blocks = calling(kind, "blocks()", lambda: list(map(_counted, task.blocks(generator(manifest.seed, "model")))))
    joined: list[list[int]] = []  # runs of blocks of which only the first has parameters
    for count in blocks:
        if count or not joined:
            joined.append([count])
        else:
            joined[-1].append(0)
    ends = crews.ends(manifest.crew, [max(1, sum(run)) for run in joined])
    edges = [0]
    for first, end in zip((0, *ends[:-1]), ends, strict=True):
        edges.append(edges[-1] + sum(map(len, joined[first:end])))
    sizes = [sum(blocks[a:b]) for a, b in pairwise(edges)]
    if (needed := crews.HELD * sizes[stage]) > there:
        able = [str(number) for number, size in enumerate(sizes) if crews.HELD * size <= there]
        raise ConfigError(
            f"stage: {stage} needs at least {shown(needed)} of memory here, {shown(there)} are there; "
            + (
                f"try `--stage {able[0]}`"
                if able
                else "no stage fits this machine; take one with more, or found it with more crew.stages"
            )
        )
    return Cut(edges[stage], edges[stage + 1], max(sizes))


def _counted(block: nn.Module) -> int:
    return sum(each.numel() for each in block.parameters() if each.requires_grad)


def blocks_of(task: Task, manifest: Manifest, cut: Cut) -> nn.Module:
    """The stage's blocks, on the CPU, named and drawn as in the whole model. Raises ConfigError: one keeps statistics of batches."""
    assert isinstance(task, Staged)
    made = islice(enumerate(task.blocks(generator(manifest.seed, "model"))), cut.end)
    model = nn.Sequential(OrderedDict((str(number), block) for number, block in made if number >= cut.first))
    if any(each.is_floating_point() for each in model.buffers()):
        raise ConfigError(
            "crew.stages: a block keeps numbers that are no parameters, as BatchNorm does; take another, or `--set crew.stages=1`"
        )
    return model


@dataclass(slots=True)
class _Held:
    """Of a micro-batch between its forward and its backward."""

    given: Tensor | None  # (m, …) what came in, with its gradient; None at the first stage
    output: Tensor  # what goes on, or the loss


class Stage:
    """What a crew's calls do. `gradient` gives (d,), bound to the parameters of `model`; states are kept beside `file`, or in memory."""

    def __init__(
        self, task: Task, manifest: Manifest, stage: int, model: nn.Module, data: Any, device: str, gradient: Callable[[], Tensor],
        file: Path | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(task, Staged)
        section = manifest.crew
        self._task, self._model, self._data, self._device, self._gradient = task, model, data, device, gradient
        self._manifest, self._stage, self._last = manifest, stage, stage == section.stages - 1
        self._forward, self._backward = codec(section.activation), codec(section.gradient, by_chance=True)
        self._served = codec("bfloat16" if self._forward.delta else section.activation)
        self._in, self._out = Cache(section.cache_bytes), Cache(section.cache_bytes)
        self._held: dict[int, _Held] = {}
        self._batch: Any = None
        self._samples: list[int] = []
        self._held_out: list[Any] = []
        self._file, self._points = file, dict[int, Path | bytes]()
        self._crew: int | None = None
        if self._forward.delta and stage == 0 and not isinstance(data, Sampled):
            raise ConfigError(
                f"crew.activation: {section.activation} needs data whose samples have numbers, which those of this task have not; "
                "try `--set crew.activation=int8`"
            )
        self._clear()

    def _clear(self) -> None:
        self._held, self._batch, self._samples, self._fresh = {}, None, [], True
        self._loss, self._value, self._count = 0.0, 0.0, 0

    @property
    def batches(self) -> int:
        """Of held-out data at the first stage."""
        return sum(1 for _ in self._data.held_out(self._most)) if self._stage == 0 else 0

    @property
    def _most(self) -> int:
        """Samples of the largest micro-batch."""
        return -(-self._manifest.task.batch_size // self._manifest.crew.micro_batches)

    def _bounds(self, micro: int) -> tuple[int, int]:
        size, m = self._manifest.task.batch_size, self._manifest.crew.micro_batches
        return size * micro // m, size * (micro + 1) // m

    def _begin(self) -> None:
        if self._fresh:
            self._fresh = False
            self._model.train()
            self._gradient().zero_()

    def advance(
        self, crew: int, step: int, micro: int, payload: bytes, labels: bytes, *, evaluate: bool
    ) -> tuple[bytes, bytes]:
        """A forward -> payload and labels for the next stage. Raises RemoteProtocolError: what came does not fit."""
        if evaluate:
            return self._evaluate(micro, payload, labels)
        self._begin()
        begin, end = self._bounds(micro)
        given, numbers = None, tuple[int, ...]()
        if self._stage == 0:
            x, y, numbers = self._drawn(crew, step, begin, end)
        else:
            given, y, numbers = self._received(payload, labels, self._forward, end - begin)
            x = given = given.to(self._device).requires_grad_()
        output = self._through(x, derive(self._manifest.seed, "layers", crew, self._stage, step, micro))
        if not self._last:
            self._held[micro] = _Held(given, output)
            return self._sent(output, numbers), _pack(y) if self._stage == 0 else bytes(labels)
        share = (end - begin) / self._manifest.task.batch_size
        loss = self._labelled(output, y)
        if share != 1.0:
            loss = loss * share
        self._loss += float(loss.detach())
        self._held[micro] = _Held(given, loss)
        return b"", b""

    def retreat(self, crew: int, step: int, micro: int, payload: bytes) -> bytes:
        """A backward of a micro-batch that was advanced -> payload for the stage before."""
        held = self._held.pop(micro, None)
        if held is None:
            raise LocalProtocolError(f"micro-batch {micro} is not held")
        if self._last:
            held.output.backward()  # type: ignore[no-untyped-call]
        else:
            try:
                gradient, _ = activations.decode(payload, self._backward, len(held.output))
            except ValueError as error:
                raise RemoteProtocolError("", f"gradient_{error}") from error
            if gradient.shape != held.output.shape:
                raise RemoteProtocolError("", "gradient_bad_shape")
            held.output.backward(gradient.to(self._device))  # type: ignore[no-untyped-call]
        if held.given is None:
            return b""
        assert held.given.grad is not None
        chance = generator(self._manifest.seed, "gradient", crew, self._stage, step, micro)
        return activations.encode(self._finite(held.given.grad), self._backward, chance)[0]

    def summary(self) -> tuple[float, float, float, int, bool]:
        """(squares, loss, value, samples, fine) of the step so far; of an evaluation no squares."""
        total = 0.0 if self._fresh else squares(self._gradient())
        fine = math.isfinite(total) and math.isfinite(self._loss) and math.isfinite(self._value)
        return (total, self._loss, self._value, self._count, True) if fine else (0.0, 0.0, 0.0, 0, False)

    def finish(self, *, applied: bool) -> None:
        """The step is over at all stages; not `applied`: it had numbers that are not finite."""
        for cache in (self._in, self._out):
            cache.commit() if applied else cache.clear()
        self._clear()

    def abandon(self) -> None:
        """The step was given up, or the crew is another one: what was sent is unknown to the other end."""
        self._in.clear()
        self._out.clear()
        self._held_out = []
        self._clear()

    def _drawn(self, crew: int, step: int, begin: int, end: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        if self._batch is None:
            chance = generator(self._manifest.seed, "batch", f"crew {crew}", step)
            size = self._manifest.task.batch_size
            if self._forward.delta:
                index = torch.randint(self._data.units, (size,), generator=chance)
                self._batch, self._samples = self._data.take(index), index.tolist()
            else:
                self._batch = self._data.batch(size, chance)
        x, y = self._task.parted(part(self._batch, begin, end))
        return x, y, tuple(self._samples[begin:end])

    def _received(
        self, payload: bytes, labels: bytes, how: activations.Codec, count: int | None
    ) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        try:
            y = _unpack(labels)
            given, numbers = activations.decode(payload, how, len(y) if count is None else count, self._in)
        except ValueError as error:
            raise RemoteProtocolError("", f"activation_{error}") from error
        if len(y) != len(given) or (count is None and len(y) > self._most):
            raise RemoteProtocolError("", "activation_bad_labels")
        return given, y.to(self._device), numbers

    def _through(self, x: Tensor, seed: int) -> Tensor:
        try:
            with seeded(seed, self._device):
                output: Tensor = self._model(x)
        except (RuntimeError, ValueError, IndexError) as error:
            if self._stage == 0:
                raise
            raise RemoteProtocolError("", "activation_bad_shape") from error
        return output

    def _labelled(self, output: Tensor, labels: Tensor) -> Tensor:
        _check_labels(output, labels)
        try:
            return self._task.loss_of(output, labels)
        except (RuntimeError, ValueError, IndexError) as error:
            raise RemoteProtocolError("", "activation_bad_labels") from error

    def _sent(self, output: Tensor, numbers: Sequence[int]) -> bytes:
        if output.numel() > activations.MAX_NUMBERS:
            raise ConfigError(
                f"crew.micro_batches: an activation of {output.numel():,} numbers does not fit a frame, {activations.MAX_NUMBERS:,} do; "
                "found it with more of them"
            )
        return activations.encode(self._finite(output), self._forward, generator(0, "nearest"), self._out, numbers)[0]

    def _finite(self, values: Tensor) -> Tensor:
        """On the CPU; zeros if they are not finite, so that all stages come to the step's end and undo it."""
        values = values.detach().cpu()
        if finite(values):
            return values
        self._loss = math.nan
        return torch.zeros_like(values)

    @torch.no_grad()
    def _evaluate(self, micro: int, payload: bytes, labels: bytes) -> tuple[bytes, bytes]:
        self._model.eval()
        if self._stage == 0:
            if not self._held_out:
                self._held_out = list(self._data.held_out(self._most))
            x, y = self._task.parted(self._held_out[micro])
        else:
            x, y, _ = self._received(payload, labels, self._served, None)
        output = self._through(x.to(self._device), 0)
        if not self._last:
            sent, _ = activations.encode(output.cpu(), self._served, generator(0, "nearest"))
            return sent, _pack(y) if self._stage == 0 else bytes(labels)
        _check_labels(output, y)
        value, loss, count = self._task.score_of(output, y)
        self._value += value
        self._loss += loss
        self._count += count
        return b"", b""

    @property
    def points(self) -> tuple[int, ...]:
        """States that are kept, by local steps, the oldest first."""
        return tuple(sorted(self._points))

    def moved(self, crew: int) -> bool:
        """States are those of this crew from now on -> whether there were others, which are dropped."""
        if crew == self._crew:
            return False
        others = self._crew is not None
        for step in self.points:
            self.drop(step)
        if self._file is not None:
            for path in self._file.parent.glob(f"{self._file.name}.*-*"):
                of, _, number = path.suffix[1:].partition("-")
                if of == str(crew) and number.isdecimal():
                    self._points[int(number)] = path
                else:
                    others = True
                    path.unlink(missing_ok=True)
        self._crew = crew
        return others

    def keep(self, step: int, tensors: dict[str, Tensor]) -> int:
        """Keep a state -> its bytes."""
        return self.put(step, tensor_file.pack(tensors, {"kind": KIND, "stage": self._stage, "local_steps": step}))

    def put(self, step: int, state: bytes) -> int:
        """The same, of bytes; only the newest `KEPT` stay."""
        if self._file is None:
            self._points[step] = state
        else:
            path = self._file.with_name(f"{self._file.name}.{self._crew}-{step}")
            private.replace(path, state)
            self._points[step] = path
        for old in self.points[:-KEPT]:
            self.drop(old)
        return len(state)

    def drop(self, step: int) -> None:
        """Keep a state no longer."""
        if isinstance(old := self._points.pop(step), Path):
            old.unlink(missing_ok=True)

    def read(self, step: int) -> bytes:
        """A kept state; b"" if it is not."""
        found = self._points.get(step, b"")
        return found.read_bytes() if isinstance(found, Path) else found

    def unpacked(self, step: int) -> dict[str, Tensor]:
        """A kept state's tensors. Raises ValueError: it is none of this stage."""
        tensors, facts = tensor_file.unpack(self.read(step))
        if facts.get("kind") != KIND or facts.get("stage") != self._stage or facts.get("local_steps") != step:
            raise ValueError("is the state of another stage")
        return tensors


def _pack(labels: Tensor) -> bytes:
    """Labels (m, …), int64 or float32, in few bytes."""
    labels = labels.detach().cpu()
    if labels.is_floating_point():
        dtype = torch.float32
    else:
        dtype = torch.uint8 if int(labels.min()) >= 0 and int(labels.max()) < 256 else torch.int32
    shape = tuple(labels.shape)
    raw = labels.to(dtype).contiguous().numpy().tobytes()
    return _LABELS.pack(_DTYPES.index(dtype), len(shape)) + struct.pack(f"<{len(shape)}I", *shape) + raw


def _unpack(data: bytes) -> Tensor:
    """Raises ValueError: these are no labels."""
    if len(data) < _LABELS.size:
        raise ValueError("bad_labels")
    number, dims = _LABELS.unpack_from(data)
    begin = _LABELS.size + 4 * dims
    if number >= len(_DTYPES) or not 1 <= dims <= activations.MAX_DIMS or len(data) < begin:
        raise ValueError("bad_labels")
    shape, dtype = struct.unpack_from(f"<{dims}I", data, _LABELS.size), _DTYPES[number]
    if not 1 <= math.prod(shape) == (len(data) - begin) / dtype.itemsize:
        raise ValueError("bad_labels")
    labels = torch.frombuffer(bytearray(data[begin:]), dtype=dtype).view(shape)
    if dtype == torch.float32:
        if not finite(labels):
            raise ValueError("bad_labels")
        return labels
    return labels.long()


def _check_labels(output: Tensor, labels: Tensor) -> None:
    """Raises RemoteProtocolError: a class that the model does not have, which a GPU would end the process for."""
    if not labels.is_floating_point() and not (int(labels.min()) >= 0 and int(labels.max()) < output.shape[-1]):
        raise RemoteProtocolError("", "activation_bad_labels")


def most_state_bytes(cut: Cut) -> int:
    """Of any stage of this crew."""
    return STATE_BYTES * cut.most_parameters + (64 << 10)
