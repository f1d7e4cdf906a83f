"""What quantizers of many exchanges round by, and values through them: each exchange has its own seed.

Shapes: g exchanges, k values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.api import Quantizer

_WORDS = 2**62


@runtime_checkable
class Through(Protocol):
    """A quantizer that rounds many rows at once."""

    def draws(self, count: int) -> int:
        """Words that `encode` takes from its generator for `count` values."""
        ...

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """(…, k) and words (…, draws(k)) -> decode(encode(row)) of each row. Raises ValueError("not_finite")."""
        ...


@dataclass(slots=True)
class Chances:
    """One stream for each of g exchanges, as fresh generators of those seeds would give.

    Args:
        seeds: of each.
    """

    seeds: Sequence[int]
    _streams: dict[int, Generator] = field(default_factory=dict)
    _taken: dict[int, int] = field(default_factory=dict)

    def words(self, rows: Sequence[int], count: int) -> Tensor:
        """The next `count` words of some of the streams -> (rows, count) int64."""
        drawn = torch.empty((len(rows), count), dtype=torch.int64)
        if count == 0:
            return drawn
        shared = Generator()
        for place, row in enumerate(rows):
            taken = self._taken.get(row, 0)
            stream = self._streams.get(row)
            if stream is None:
                stream = shared.manual_seed(self.seeds[row])
                if taken:  # most streams are asked once and need no generator of their own
                    stream = self._streams[row] = Generator().manual_seed(self.seeds[row])
                    torch.randint(_WORDS, (taken,), generator=stream)
            torch.randint(_WORDS, (count,), generator=stream, out=drawn[place])
            self._taken[row] = taken + count
        return drawn

    def stream(self, row: int) -> Generator:
        """One of the streams, for who draws from it by itself."""
        if row not in self._streams:
            self._streams[row] = Generator().manual_seed(self.seeds[row])
        return self._streams[row]


def through(quantizer: Quantizer, values: Tensor, chances: Chances, rows: Sequence[int]) -> Tensor:
    """What arrives of values that are sent: decode(encode(row)), each with the next of its own stream.

    Args:
        quantizer: how.
        values: (g, k).
        chances: streams.
        rows: (g) which of the streams.

    Returns:
        (g, k), of the dtype of `values`.

    Raises:
        ValueError: "not_finite".
    """
    if isinstance(quantizer, Through):
        words = chances.words(rows, quantizer.draws(values.shape[1]))
        arrived = quantizer.through(values, words.to(values.device))
    else:
        coded = (quantizer.encode(row, chances.stream(at)) for row, at in zip(values.cpu(), rows, strict=True))
        arrived = torch.stack([quantizer.decode(data, values.shape[1]) for data in coded]).to(values.device)
    arrived = arrived.to(values.dtype)
    check_finite(arrived)
    return arrived


def check_finite(values: Tensor) -> None:
    """Raises ValueError("not_finite") unless all are."""
    if values.numel() and not bool(torch.isfinite(values.abs().amax())):
        raise ValueError("not_finite")


def indices(numbers: Sequence[int] | NDArray[np.int64], like: Tensor) -> Tensor:
    """Whole numbers as an index, on the device of `like`."""
    return torch.as_tensor(np.asarray(numbers, np.int64), device=like.device)
