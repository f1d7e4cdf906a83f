"""Text from files, byte by byte, for a small GPT.

Shapes: m sequences of a batch, t = context + 1 bytes of a window.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.errors import ConfigError
from starling.node.tasks import keys
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.files import MAX_BYTES
from starling.node.tasks.gpt import BYTES, Gpt, blocks
from starling.node.tasks.partition import Indices, cut, take

Encode = Callable[[Path, NDArray[np.uint8]], NDArray[Any]]
"""(file, its bytes) -> tokens (n,)."""

MAX_FILES = 4096
MAX_WINDOWS = 512  # held-out windows, spread evenly over all held-out text, so that an evaluation takes seconds
BLOCK_WINDOWS = 8  # windows in a block, the unit in which text is cut into shards


@dataclass(frozen=True, slots=True)
class TextData:
    """One node's share on the device; satisfies `starling.node.tasks.api.Data`."""

    text: Tensor  # (n,) uint8, this node's stretches one after the other
    begins: Tensor  # (r,) int64 on the CPU, start of each part in `text`
    windows: Tensor  # (r,) int64 on the CPU, running total of the windows that lie within stretches
    test: Tensor  # (k, t) uint8, the held-out windows

    @property
    def samples(self) -> int:
        """Number of disjoint windows in this node's training text."""
        return max(1, self.text.numel() // self.test.shape[1])

    def batch(self, size: int, generator: Generator) -> Tensor:
        """Return (size, t) int64: windows that begin anywhere but never span two parts of the shard."""
        return self._read(self.windows, torch.randint(int(self.windows[-1]), (size,), generator=generator), 1)

    @property
    def units(self) -> int:
        """Disjoint windows, side by side within stretches."""
        return int(self._disjoint()[-1])

    def take(self, index: Tensor) -> Tensor:
        """Return the windows `index` of the disjoint ones, (m, t) int64."""
        return self._read(self._disjoint(), index, self.test.shape[1])

    def _disjoint(self) -> Tensor:
        """Return (r,), running total of the disjoint windows within stretches."""
        windows = torch.diff(self.windows, prepend=self.windows.new_zeros(1))
        return torch.cumsum((windows + self.test.shape[1] - 1) // self.test.shape[1], 0)

    def _read(self, totals: Tensor, index: Tensor, apart: int) -> Tensor:
        """Return windows (m,), counted over all parts by `totals` (r,), whose starts are `apart` bytes apart."""
        stretch = torch.searchsorted(totals, index, right=True)
        before = torch.where(stretch > 0, totals[stretch - 1], 0)
        begin = (self.begins[stretch] + (index - before) * apart).to(self.text.device)
        window = torch.arange(self.test.shape[1], device=self.text.device)
        return self.text[begin[:, None] + window].long()

    def held_out(self, size: int) -> Iterator[Tensor]:
        """Yield (≤ size, t) int64, in order."""
        for windows in torch.split(self.test, size):
            yield windows.long()


@dataclass(frozen=True, slots=True)
class Text(keys.Text):
    """Prediction of the next byte.

    Data are one file, or a folder whose *.txt files are read in the order of their names. The last tenth of each file is held
    out. Partition by_file gives each shard whole files, or contiguous ranges if there are more shards than files; iid deals
    short blocks of all files at random.
    """

    metric: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False

    def model(self, generator: Generator) -> nn.Module:
        if self.tied:
            return Gpt(self.context, self.width, self.layers, self.heads, generator)
        return nn.Sequential(*self.blocks(generator))

    def blocks(self, generator: Generator) -> Iterator[nn.Module]:
        """Yield the blocks of an untied transformer. Raises ConfigError: it is tied."""
        if self.tied:
            raise ConfigError(
                "task.tied: must be false in a crew, since a tied table would be on the first and on the last machine; "
                "try `--set task.tied=false`"
            )
        return blocks(self.context, self.width, self.layers, self.heads, generator)

    def parted(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Map (m, t) to all bytes but the last, and all but the first."""
        return batch[:, :-1], batch[:, 1:]

    def data(self, source: Source, device: str) -> TextData:
        """Return our shard of the built-in text, or all of the volunteer's own. Raises DataError if it is missing or too short."""
        return self.windows(source, device)

    def windows(self, source: Source, device: str, encode: Encode | None = None) -> TextData:
        """Return the data in tokens that `encode` makes of each file, else in bytes; `context` counts tokens then."""
        path = source.path or (Path(self.path).expanduser() if self.path else None)
        if path is None:
            raise DataError("task.path: text needs a file or a folder; set it, or start with --data PATH")
        files = _open(path, encode)
        ends = [len(file) - len(file) // 10 for file in files]
        test = self._test(path, files, ends)
        blocks = self._blocks(ends)
        if not blocks.size:
            raise DataError(f"{path}: no file is longer than context = {self.context} bytes")
        if source.path is None:
            parts = cut(source.partition, len(blocks), source.seed, files=blocks[:, 0])
            blocks = blocks[take(parts, source.shard)]
        stretches = [files[file][begin:end] for file, begin, end in _joined(blocks)]
        lengths = np.array([len(stretch) for stretch in stretches])
        return TextData(
            text=torch.tensor(np.concatenate(stretches), device=device),
            begins=torch.tensor(np.cumsum(lengths) - lengths),
            windows=torch.tensor(np.cumsum(lengths - self.context)),
            test=torch.tensor(test, device=device),
        )

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per byte."""
        x, y = self.parted(batch)
        return self.loss_of(model(x), y)

    def loss_of(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (m, t, 256)."""
        return cross_entropy(output.reshape(-1, BYTES), labels.reshape(-1))

    def score(self, model: nn.Module, batch: Tensor) -> tuple[float, float, int]:
        """Return (bits, nats, bytes predicted)."""
        x, y = self.parted(batch)
        return self.score_of(model(x), y)

    def score_of(self, output: Tensor, labels: Tensor) -> tuple[float, float, int]:
        """Return bits, nats and number of bytes, for logits (m, t, 256)."""
        logits = output.reshape(-1, BYTES)
        nats = float(cross_entropy(logits, labels.reshape(-1), reduction="sum"))
        return nats / math.log(2), nats, logits.shape[0]

    def encode(self, text: str) -> list[int]:
        """Return the bytes of UTF-8."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Return the text of UTF-8 bytes."""
        return bytes(tokens).decode(errors="replace")

    def logits(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """Map (m, t) -> (m, t, 256)."""
        made: Tensor = model(tokens)
        return made

    def _blocks(self, ends: list[int]) -> Indices:
        """Return (blocks, 3): file, begin, end of each block of training text; a file's last block takes the rest."""
        block = BLOCK_WINDOWS * (self.context + 1)
        rows = [np.empty((0, 3), np.int64)]
        for file, end in enumerate(ends):
            if end > self.context:
                begins = np.arange(max(1, end // block), dtype=np.int64) * block
                rows.append(np.stack([np.full_like(begins, file), begins, np.append(begins[1:], end)], axis=1))
        return np.concatenate(rows)

    def _test(self, path: Path, files: list[NDArray[Any]], ends: list[int]) -> NDArray[Any]:
        """Return (≤ MAX_WINDOWS, t) of the held-out text: adjacent windows, so that no byte is predicted twice."""
        counts = [max(0, len(file) - end - 1) // self.context for file, end in zip(files, ends, strict=True)]
        totals = np.cumsum(counts)
        if not totals[-1]:
            raise DataError(f"{path}: the held-out tenth of no file is longer than context = {self.context} bytes")
        windows = []
        for window in np.linspace(0, totals[-1] - 1, min(totals[-1], MAX_WINDOWS)).astype(np.int64):
            file = int(np.searchsorted(totals, window, side="right"))
            begin = ends[file] + int(window - totals[file] + counts[file]) * self.context
            windows.append(files[file][begin : begin + self.context + 1])
        return np.stack(windows)


def _open(path: Path, encode: Encode | None) -> list[NDArray[Any]]:
    """Files mapped, not read: a node copies only its own part into memory. Encoded ones are read."""
    try:
        paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        sizes = [file.stat().st_size for file in paths]
        if not any(sizes):
            raise DataError(f"{path}: no text here, needed is a file or a folder of .txt files")
        if len(paths) > MAX_FILES or sum(sizes) > MAX_BYTES:
            raise DataError(f"{path}: at most {MAX_FILES} files and {MAX_BYTES} bytes, got {len(paths)} and {sum(sizes)}")
        files = {file: np.memmap(file, np.uint8, "r") for file, size in zip(paths, sizes, strict=True) if size}
        return [raw if encode is None else encode(file, raw) for file, raw in files.items()]
    except OSError as error:
        raise DataError(f"{path}: not readable: {error}") from error


def _joined(blocks: Indices) -> list[tuple[int, int, int]]:
    """Return file, begin, end of each part: adjacent blocks of the same file merged."""
    broken = (blocks[1:, 0] != blocks[:-1, 0]) | (blocks[1:, 1] != blocks[:-1, 2])
    first = np.flatnonzero(np.append(True, broken))
    last = np.append(first[1:] - 1, len(blocks) - 1)
    return list(zip(blocks[first, 0].tolist(), blocks[first, 1].tolist(), blocks[last, 2].tolist(), strict=True))
