"""Interface of tasks: a model, its data, a loss and a metric. Typed, installed locally, never received from a peer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.config.schema import PartitionSection


class DataError(ConfigError):
    """Data that a task cannot use: says which file, line or row, and what is needed."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a node's samples.

    Args:
        path: the volunteer's own data, or None for the task's built-in data.
        partition: how built-in data are partitioned.
        shard: our part, 0 <= shard < partition.shards.
        seed: of the partition: equal on all nodes.
    """

    path: Path | None
    partition: PartitionSection
    shard: int
    seed: int


class Data(Protocol):
    """One node's training samples and the held-out ones, on the device."""

    @property
    def samples(self) -> int:
        """Return the number of this node's training samples."""

    def batch(self, size: int, generator: Generator) -> Any:
        """Return a random training batch in the form `Task.loss` takes. The generator lives on the CPU."""

    def held_out(self, size: int) -> Iterator[Any]:
        """Return the test split in batches, always in the same order, equal on all nodes with built-in data."""


@runtime_checkable
class Sampled(Protocol):
    """Data whose single samples can be drawn, as differential privacy requires."""

    @property
    def units(self) -> int:
        """Return the number of samples that can be drawn without overlap."""

    def take(self, index: Tensor) -> Any:
        """Return the samples `index`, (m,) int64 on the CPU in [0, units), as `Task.loss` takes them: tensors with a leading m, or tuples
        of such.
        """


@runtime_checkable
class Noted(Protocol):
    """Data with notes for the node's owner, such as samples that cannot be read."""

    notes: list[str]  # one line each; reporting them empties the list


def taken_notes(*given: object) -> tuple[str, ...]:
    """Return the notes of those that have some, which are emptied."""
    taken: list[str] = []
    for each in given:
        notes: list[str] = getattr(each, "notes", [])  # after every local step: isinstance of a Protocol takes eight times as long
        taken += notes
        notes.clear()
    return tuple(taken)


@runtime_checkable
class Owned(Protocol):
    """Data that know which held-out samples resemble this node's own, for evaluating a personal model."""

    def like_own(self, size: int) -> Iterator[Any]:
        """Yield a part of the test split in batches, in a fixed order, with the distribution of this node's samples."""


@runtime_checkable
class Generative(Protocol):
    """A task whose models predict the next token, so that `starling ask` can let them write."""

    @property
    def context(self) -> int:
        """Return the number of tokens that the model sees."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text. Raises ConfigError: the tokenizer cannot be read."""

    def decode(self, tokens: list[int]) -> str:
        """Return their text; invalid parts, such as half a character, are replaced."""

    def logits(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """Map (m, t) int64 to (m, t, v): logits of the following token, over the tokens that `decode` knows."""


@runtime_checkable
class Staged(Protocol):
    """A task whose model is a row of blocks, so that a crew can hold it in parts; `model` is an `nn.Sequential` of them."""

    def blocks(self, generator: Generator) -> Iterator[nn.Module]:
        """Return the blocks in order, each made when requested, so that no machine needs memory for all; all chance from `generator`."""

    def parted(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the first block's input and the labels (m, …), int64 or float32: the labels are sent along to the last stage."""

    def loss_of(self, output: Tensor, labels: Tensor) -> Tensor:
        """Scalar training loss of what the last block gives, (m, …); `loss` is this."""

    def score_of(self, output: Tensor, labels: Tensor) -> tuple[float, float, int]:
        """Return the same as `score`, for an output of the last block."""


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a model on held-out samples.

    Args:
        value: of the task's metric, which decides which model is better.
        loss: mean over what the task's loss is a mean of.
        samples: that were measured.
        others: further metrics by name.
    """

    value: float
    loss: float
    samples: int
    others: Mapping[str, float] = field(default_factory=dict)


class Meter(Protocol):
    """Measures one model on the held-out samples: `update` takes every batch, then `compute` is called once."""

    def update(self, model: nn.Module, batch: Any, samples: int) -> None:
        """Add a batch of this many samples. `model` is in evaluation mode, and no gradients are computed."""

    def compute(self) -> Result:
        """Return the figures of all samples together. Raises ConfigError: they cannot be computed."""


@runtime_checkable
class Metered(Protocol):
    """A task whose metric is no mean over samples, or that has several: it is measured by a meter instead of by `score`."""

    def meter(self) -> Meter:
        """Return a meter for one evaluation."""


@runtime_checkable
class Weighed(Protocol):
    """A task that declares what its loss averages over, by which parts of a batch are weighted; for others this is measured."""

    @property
    def weight(self) -> Callable[[Any], float] | None:
        """Return batch -> number of tokens, pixels, … that the loss averages over; None: it is not declared."""


@runtime_checkable
class Counted(Protocol):
    """Data that know the number of samples of a held-out batch, which its tensors may not show."""

    def counted(self, size: int) -> Iterator[tuple[Any, int]]:
        """Return the batches of `held_out`, each with its number of samples."""


@runtime_checkable
class Stepped(Protocol):
    """A task that does something around each local step, as training loops with hooks do."""

    @property
    def step_hooks(self) -> tuple[str, ...]:
        """Names of what it does with a step's batch or gradient, for messages that refuse it where a step has none."""

    def begin_step(self, model: nn.Module, step: int, size: int) -> None:
        """Called when a local step begins, after `step` others, with a batch of `size` samples."""

    def gradient_ready(self, model: nn.Module) -> None:
        """Called with the gradient of the step's batch in the parameters, before clipping and correction; it may be changed in place."""

    def end_step(self, model: nn.Module) -> None:
        """Called when the step is over: taken, skipped or undone."""


class Task(Protocol):
    """A named, frozen dataclass whose fields are the keys in the manifest's section `task`.

    It may have a `version`, text or a whole number, and a `loss_name`: with the metric and the parameters of the model they are what nodes
    compare before they train (`starling.node.engine.fingerprint`).
    """

    @property
    def metric(self) -> str:
        """Return the metric's name: accuracy, bits_per_byte, error …"""

    @property
    def higher_is_better(self) -> bool:
        """Return whether larger values of the metric are better."""

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh model, all of its chance from `generator`: every node starts with the same one.

        Trainable parameters are exchanged; buffers stay on the node (`starling.node.tasks.evaluate`).
        """

    def data(self, source: Source, device: str) -> Data:
        """Load and cut. Raises DataError if the path is missing or not what this task reads; ConfigError: it cannot be cut so."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the scalar training loss."""

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """Return (sum of the metric, sum of the loss, samples) over a held-out batch."""
