"""One node's samples, drawn one batch at a time from samples of any form.

A sample that cannot be read is replaced by another draw, which follows from the batch's own chance alone, so that a resumed run sees the
same batches; of the held-out samples it is left out. Its number is reported to the owner once. Shapes: n samples, m samples of a batch.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator as derived
from starling.node.tasks.lengths import like_length
from starling.node.tasks.samples import Samples, Tensors, Unlike, Unreadable, seeded
from starling.node.tasks.trees import moved

LEAST_FAILED = 8  # number of reads after which a majority of failures is an error
UNLIKE = 8  # number of consecutive batches whose samples do not fit together, after which it is an error


@dataclass(slots=True, eq=False)
class Readable:
    """Samples some of which cannot be read; records which ones, after they were tried."""

    samples: Samples
    notes: list[str]  # one line each for the owner
    bad: set[int] = field(default_factory=set)
    tried: int = 0
    failed: int = 0
    chance: Callable[[int], AbstractContextManager[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.chance = nullcontext if isinstance(self.samples, Tensors) else seeded  # tensors draw nothing

    def take(self, index: Tensor, seed: int) -> Any:
        """Return a batch of these samples, (m,) int64, with the Dataset's own random numbers seeded by `seed`.

        Raises Unreadable: some cannot be read, and are `bad` from here on; ConfigError: most cannot be read.
        """
        try:
            with self.chance(seed):
                batch = self.samples.take(index)
        except Unreadable as error:
            self.tried += len(index)
            self.failed += int(sum((index == number).sum() for number in error.why))
            if self.failed >= LEAST_FAILED and 2 * self.failed > self.tried:
                raise ConfigError(f"{error}; nor can most of the others: {self.failed} of {self.tried}") from error
            for number, why in error.why.items():
                self.notes.append(f"sample {number} cannot be read, others are taken in its place: {why}")
            self.bad |= error.why.keys()
            raise
        self.tried += len(index)
        return batch

    def replaced(self, index: Tensor, among: Tensor, seed: int) -> Tensor:
        """Return (m,) with another draw of `among` in each place of a bad sample. Raises ConfigError: all are bad."""
        if not self.bad:
            return index
        if not set(among.tolist()) - self.bad:
            raise ConfigError("data: not one sample can be read")
        numbers = index.tolist()
        for place, number in enumerate(numbers):
            chance = derived(seed, "replaced", place)
            while number in self.bad:
                number = int(among[torch.randint(len(among), (), generator=chance)])  # noqa: PLW2901
            numbers[place] = number
        return torch.tensor(numbers)

    def without(self, index: Tensor) -> Tensor:
        """Return (m,) without the bad ones."""
        return torch.tensor([number for number in index.tolist() if number not in self.bad], dtype=torch.int64) if self.bad else index


class Drawn:
    """One node's samples; satisfies `starling.node.tasks.api.Data`, `Sampled`, `Counted` and `Noted`.

    Args:
        train: samples of all nodes.
        index: (u,) int64, those of `train` that are this node's.
        test: held-out samples, and `test_index` those of them that are measured by.
        device: to which batches are moved.
        lengths: (u,) of those in `index`; batches are of like length then.

    Attributes:
        notes: which samples cannot be read and why, each a line for the owner, until they are taken.
    """

    def __init__(
        self, train: Samples, index: Tensor, test: Samples, test_index: Tensor, device: str, lengths: Tensor | None = None
    ) -> None:
        self.notes: list[str] = []
        self._train, self._test = Readable(train, self.notes), Readable(test, self.notes)
        self._index, self._test_index = index, test_index
        self._device, self._lengths = device, lengths

    @property
    def samples(self) -> int:
        """Return the number of this node's training samples."""
        return len(self._index)

    def batch(self, size: int, generator: Generator) -> Any:
        """`size` samples drawn with replacement. Chance that a Dataset draws itself (augmentation) is of `generator` as well."""
        for again in range(UNLIKE):
            if self._lengths is None:
                drawn = torch.randint(self.samples, (size,), generator=generator)
            else:
                drawn = like_length(self._lengths, size, generator)
            seed = int(torch.randint(2**62, (), generator=generator))
            try:
                return moved(self._read(self._index[drawn], seed), self._device)
            except Unlike as error:
                if again == UNLIKE - 1:
                    raise
                self.notes.append(f"a batch is drawn anew: {error}")
        raise AssertionError

    @property
    def units(self) -> int:
        return self.samples

    def take(self, index: Tensor) -> Any:
        """Return the samples at `index`. Raises ConfigError: one cannot be read."""
        return moved(self._train.take(self._index[index.cpu()], 0), self._device)

    def held_out(self, size: int) -> Iterator[Any]:
        """Return the test split in order."""
        return (batch for batch, _ in self.counted(size))

    def counted(self, size: int) -> Iterator[tuple[Any, int]]:
        """Yield the test split in order, with the number of samples of each batch."""
        for number, part in enumerate(torch.split(self._test_index, size)):
            index = self._test.without(part)
            while len(index):
                try:
                    yield moved(self._test.take(index, number), self._device), len(index)
                    break
                except Unreadable:
                    index = self._test.without(part)

    def _read(self, index: Tensor, seed: int) -> Any:
        while True:
            try:
                return self._train.take(self._train.replaced(index, self._index, seed), seed)
            except Unreadable:
                continue
