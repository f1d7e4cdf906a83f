"""Outputs of a stage: activations for the next stage, or the loss at the last one.

Shapes: m samples of a micro-batch.
"""

from typing import Protocol

from torch import Tensor

from starling.gossip.compress import activations
from starling.gossip.compress.activations import Cache, Codec
from starling.gossip.errors import ConfigError, RemoteProtocolError
from starling.gossip.rng import generator
from starling.node.extras.crew.engine import labels as packed
from starling.node.extras.crew.engine.bound import LaneBound
from starling.node.extras.crew.engine.inputs import Given
from starling.node.extras.crew.engine.place import MicroBatch, Place, Totals
from starling.node.tasks.api import Staged

Sent = tuple[bytes, bytes]
"""Payload and labels for the next stage; empty at the last one."""


class Outputs(Protocol):
    """Processes a stage's output (m, …)."""

    def training(self, at: MicroBatch, output: Tensor, given: Given) -> tuple[Tensor, Sent]:
        """Return the tensor from which the backward pass starts, and the message for the next stage."""

    def held_out(self, output: Tensor, given: Given) -> Sent:
        """Return the message for the next stage, in an evaluation."""

    def backward(self, output: Tensor, payload: bytes) -> None:
        """Compute gradients from what `training` returned."""

    def finish(self, *, applied: bool) -> None:
        """End the step; not `applied`: all stages undid it."""

    def abandon(self) -> None:
        """The step was given up, or the crew is another one."""


class Forwarded:
    """Sent to the next stage, by the codecs of forward and backward. Satisfies `Outputs`."""

    def __init__(self, place: Place, forward: Codec, served: Codec, backward: Codec, totals: Totals) -> None:
        """`served`: the codec of evaluations."""
        self._forward, self._served, self._backward, self._totals = forward, served, backward, totals
        self._cache, self._bound = Cache(place.manifest.crew.cache_bytes), LaneBound()

    def training(self, at: MicroBatch, output: Tensor, given: Given) -> tuple[Tensor, Sent]:
        """Encode the output. Raises ConfigError: it does not fit a frame."""
        if output.numel() > activations.MAX_NUMBERS:
            raise ConfigError(
                f"crew.micro_batches: an activation of {output.numel():,} numbers does not fit a frame, {activations.MAX_NUMBERS:,} do; "
                "create it with more of them"
            )
        values = self._totals.finite(output)
        payload, _ = activations.encode(values, self._forward, generator(0, "nearest"), self._cache, given.samples)
        return output, (payload, given.packed)

    def held_out(self, output: Tensor, given: Given) -> Sent:
        """Encode the output."""
        return activations.encode(output.cpu(), self._served, generator(0, "nearest"))[0], given.packed

    def backward(self, output: Tensor, payload: bytes) -> None:
        """Decode the output's gradient, and shorten it if it is too long. Raises RemoteProtocolError: it does not fit."""
        try:
            gradient, _ = activations.decode(payload, self._backward, len(output))
        except ValueError as error:
            raise RemoteProtocolError("", f"gradient_{error}") from error
        if gradient.shape != output.shape:
            raise RemoteProtocolError("", "gradient_bad_shape")
        gradient = self._bound(gradient)
        self._totals.over = self._bound.shortened
        output.backward(gradient.to(output.device))  # type: ignore[no-untyped-call]

    def finish(self, *, applied: bool) -> None:
        """Store what was sent in the cache if the step was applied."""
        self._cache.commit() if applied else self._cache.clear()

    def abandon(self) -> None:
        """Clear the cache, since the other end discards it too."""
        self._cache.clear()


class Scored:
    """Compared with the labels, at the last stage. Satisfies `Outputs`. Raises RemoteProtocolError: the labels do not fit."""

    def __init__(self, task: Staged, place: Place, totals: Totals) -> None:
        self._task, self._place, self._totals = task, place, totals

    def training(self, at: MicroBatch, output: Tensor, given: Given) -> tuple[Tensor, Sent]:
        """Return the micro-batch's share of the loss."""
        labels = _fitting(output, given)
        try:
            loss = self._task.loss_of(output, labels)
        except (RuntimeError, ValueError, IndexError) as error:
            raise RemoteProtocolError("", "activation_bad_labels") from error
        share = self._place.samples(at.number) / self._place.manifest.task.batch_size
        if share != 1.0:
            loss = loss * share
        self._totals.loss += float(loss.detach())
        return loss, (b"", b"")

    def held_out(self, output: Tensor, given: Given) -> Sent:
        """Add up the score."""
        self._totals.add(*self._task.score_of(output, _fitting(output, given)))
        return b"", b""

    def backward(self, output: Tensor, payload: bytes) -> None:
        """Start the backward pass at the loss."""
        output.backward()  # type: ignore[no-untyped-call]

    def finish(self, *, applied: bool) -> None:
        """Do nothing: no state is stored."""

    def abandon(self) -> None:
        """Do nothing: no state is stored."""


def _fitting(output: Tensor, given: Given) -> Tensor:
    labels = given.labels.to(output.device)
    packed.check(output, labels)
    return labels
