"""Inputs of a stage: data at the first stage, activations of the previous stage at all others.

Input from a peer is checked before use: codec, shape, finite numbers, labels.

Shapes: m samples of a micro-batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from starling.gossip.compress import activations
from starling.gossip.compress.activations import Cache, Codec
from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.rng import generator
from starling.node.extras.crew.engine import labels as packed
from starling.node.extras.crew.engine.bound import LaneBound
from starling.node.extras.crew.engine.place import MicroBatch, Place, Totals
from starling.node.tasks.api import Data, Sampled, Staged
from starling.node.tasks.batches import part


class Elsewhere:
    """The data of a stage that is not the first: none."""

    samples = 0

    def batch(self, size: int, generator: Generator) -> Any:
        """Raise LocalProtocolError."""
        raise LocalProtocolError("the data of a crew are at its first stage")

    def held_out(self, size: int) -> Iterator[Any]:
        """Yield nothing."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Given:
    """A micro-batch's input.

    Attributes:
        x: (m, …) input of the stage's first block.
        labels: (m, …) of its samples.
        packed: labels as bytes.
        samples: (m) indices of the samples, where the codec needs them.
    """

    x: Tensor
    labels: Tensor
    packed: bytes
    samples: tuple[int, ...] = ()


class Inputs(Protocol):
    """The inputs of a stage.

    Attributes:
        remote: whether they come from a peer, who is at fault if they do not fit.
        batches: number of held-out batches, at the first stage.
    """

    remote: bool

    @property
    def batches(self) -> int:
        """Return how many there are."""

    def training(self, at: MicroBatch, payload: bytes, labels: bytes) -> Given:
        """Return a micro-batch of a step."""

    def held_out(self, number: int, payload: bytes, labels: bytes) -> Given:
        """Return a micro-batch of an evaluation."""

    def gradient(self, x: Tensor, at: MicroBatch) -> bytes:
        """Return the gradient of an input, after the backward pass, as a payload for the previous stage."""

    def finish(self, *, applied: bool) -> None:
        """End the step; not `applied`: all stages undid it."""

    def abandon(self) -> None:
        """The step was given up, or the crew is another one."""


class Drawn:
    """Drawn from the data of the first stage. Satisfies `Inputs`."""

    remote = False

    def __init__(self, task: Staged, data: Data, place: Place, how: Codec) -> None:
        """Raise ConfigError: activations sent as differences need sample indices, which the data lack."""
        if how.delta and not isinstance(data, Sampled):
            raise ConfigError(
                f"crew.activation: {place.manifest.crew.activation} needs data whose samples have numbers, which those of this task "
                "have not; try `--set crew.activation=int8`"
            )
        self._task, self._data, self._place, self._numbered = task, data, place, how.delta
        self._batch: Any = None
        self._samples: list[int] = []
        self._held_out: list[Any] = []

    @property
    def batches(self) -> int:
        """Count the held-out batches."""
        return sum(1 for _ in self._data.held_out(self._place.most))

    def training(self, at: MicroBatch, payload: bytes, labels: bytes) -> Given:
        """Draw the step's batch, once, and return a part of it."""
        if self._batch is None:
            self._draw(at)
        begin, end = self._place.bounds(at.number)
        return self._given(part(self._batch, begin, end), tuple(self._samples[begin:end]))

    def held_out(self, number: int, payload: bytes, labels: bytes) -> Given:
        """Return a part of the held-out data, which are read once."""
        if not self._held_out:
            self._held_out = list(self._data.held_out(self._place.most))
        return self._given(self._held_out[number])

    def gradient(self, x: Tensor, at: MicroBatch) -> bytes:
        """Return nothing: no stage is before."""
        return b""

    def finish(self, *, applied: bool) -> None:
        """Forget the batch."""
        self._batch, self._samples = None, []

    def abandon(self) -> None:
        """Discard the batch and the held-out data."""
        self.finish(applied=False)
        self._held_out = []

    def _draw(self, at: MicroBatch) -> None:
        agreed = self._place.manifest
        chance = generator(agreed.seed, "batch", f"crew {at.crew}", at.step)
        if self._numbered:
            assert isinstance(self._data, Sampled)
            index = torch.randint(self._data.units, (agreed.task.batch_size,), generator=chance)
            self._batch, self._samples = self._data.take(index), index.tolist()
        else:
            self._batch = self._data.batch(agreed.task.batch_size, chance)

    def _given(self, batch: Any, samples: tuple[int, ...] = ()) -> Given:
        x, labels = self._task.parted(batch)
        return Given(x, labels, packed.pack(labels), samples)


class Received:
    """Inputs from the previous stage, by the codecs of forward and backward. Satisfies `Inputs`.

    Raises RemoteProtocolError: an input does not fit.
    """

    remote, batches = True, 0

    def __init__(self, place: Place, forward: Codec, served: Codec, backward: Codec, totals: Totals) -> None:
        """`served`: the codec of evaluations."""
        self._place, self._totals = place, totals
        self._forward, self._served, self._backward = forward, served, backward
        self._cache, self._bound = Cache(place.manifest.crew.cache_bytes), LaneBound()

    def training(self, at: MicroBatch, payload: bytes, labels: bytes) -> Given:
        """Decode a micro-batch of a known size, and shorten it if it is too long."""
        given = self._decoded(payload, labels, self._forward, self._place.samples(at.number))
        x = self._bound(given.x)
        self._totals.over = self._bound.shortened
        return replace(given, x=x.requires_grad_())

    def held_out(self, number: int, payload: bytes, labels: bytes) -> Given:
        """Decode as many samples as there are labels."""
        given = self._decoded(payload, labels, self._served, None)
        if len(given.labels) > self._place.most:
            raise RemoteProtocolError("", "activation_bad_labels")
        return given

    def gradient(self, x: Tensor, at: MicroBatch) -> bytes:
        """Encode it, rounded by chance."""
        assert x.grad is not None
        chance = generator(self._place.manifest.seed, "gradient", *self._place.chance(at))
        return activations.encode(self._totals.finite(x.grad), self._backward, chance)[0]

    def finish(self, *, applied: bool) -> None:
        """Keep what was received, if the other end does."""
        self._cache.commit() if applied else self._cache.clear()

    def abandon(self) -> None:
        """Clear the cache, since the other end discards it too."""
        self._cache.clear()

    def _decoded(self, payload: bytes, labels: bytes, how: Codec, count: int | None) -> Given:
        try:
            unpacked = packed.unpack(labels)
            x, samples = activations.decode(payload, how, len(unpacked) if count is None else count, self._cache)
        except ValueError as error:
            raise RemoteProtocolError("", f"activation_{error}") from error
        if len(unpacked) != len(x):
            raise RemoteProtocolError("", "activation_bad_labels")
        return Given(x, unpacked, bytes(labels), samples)
