"""A node's samples, some of which are held out to decide what improves its own model (`mix.own`)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator as derived
from starling.node.tasks.api import Data, DataError, Noted, Owned, Sampled, Source, Task
from starling.node.tasks.evaluate import held_out

FORMS = "docs/operating.md#your-own-data has the forms of data, `starling task check` tries a file"


@dataclass(frozen=True, slots=True)
class Reserved:
    """Satisfies `starling.node.tasks.api.Data` and `Owned`; local steps never see what is `aside`."""

    data: Data
    training: torch.Tensor  # (u,) int64 of the units that are trained on
    aside: Any  # a batch of the remaining units

    @property
    def samples(self) -> int:
        """Number of this node's training samples, without those set aside."""
        return round(self.data.samples * len(self.training) / (len(self.training) + self._away))

    @property
    def _away(self) -> int:
        assert isinstance(self.data, Sampled)
        return self.data.units - len(self.training)

    def batch(self, size: int, generator: Generator) -> Any:
        """Return `size` training samples, drawn with replacement."""
        assert isinstance(self.data, Sampled)
        return self.data.take(self.training[torch.randint(len(self.training), (size,), generator=generator)])

    def held_out(self, size: int) -> Iterator[Any]:
        return self.data.held_out(size)

    def counted(self, size: int) -> Iterator[tuple[Any, int]]:
        """Yield the held-out batches with their numbers of samples."""
        return held_out(self.data, size)

    @property
    def notes(self) -> list[str]:
        return self.data.notes if isinstance(self.data, Noted) else []

    def like_own(self, size: int) -> Iterator[Any]:
        """Yield held-out samples that resemble this node's own, if the task knows them."""
        return self.data.like_own(size) if isinstance(self.data, Owned) else self.data.held_out(size)


def data_of(task: Task, source: Source, device: str, share: float = 0.0) -> Data:
    """Return a node's data, with this share of its units, one at least, set aside; 0: none.

    Raises ConfigError: as `Task.data`; or single samples cannot be drawn, or there are fewer than two.
    """
    try:
        data = task.data(source, device)
    except DataError as error:
        raise ConfigError(f"{error}; {FORMS}") from error
    if not share:
        return data
    if not isinstance(data, Sampled) or data.units < 2:
        raise ConfigError(
            "mix.own: reserves some of a node's samples, but this task's data cannot be divided, or have only one sample; "
            "try `--set mix.own=0`"
        )
    order = torch.randperm(data.units, generator=derived(source.seed, "aside", source.shard))
    away = min(data.units - 1, max(1, math.floor(share * data.units)))
    return Reserved(data, order[away:], data.take(order[:away]))
