"""Shared by tests of tasks: small files of every format, and the location of the real ones."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from starling.node.config.schema import PartitionSection
from starling.node.tasks.api import Source

REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

needs_real_data = pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real data at {REAL_DATA}")


def built_in(kind: str = "iid", shards: int = 1, shard: int = 0, seed: int = 0) -> Source:
    return Source(None, PartitionSection(kind=kind, shards=shards), shard, seed)


def own(path: Path) -> Source:
    return Source(path, PartitionSection(), 0, 0)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_idx(path: Path, array: np.ndarray) -> None:
    raw = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_mnist(folder: Path, train: int = 60, test: int = 20, side: int = 4, gz: str = "") -> Path:
    chance = np.random.default_rng(0)
    for split, n in (("train", train), ("t10k", test)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        images = chance.integers(0, 60, (n, side, side), dtype=np.uint8)
        images.reshape(n, -1)[np.arange(n), labels] = 255
        write_idx(folder / f"{split}-images-idx3-ubyte{gz}", images)
        write_idx(folder / f"{split}-labels-idx1-ubyte{gz}", labels)
    return folder


def write_texts(folder: Path, files: int = 3, size: int = 4000) -> Path:
    for number in range(files):
        (folder / f"{number}.txt").write_bytes(bytes([97 + number]) * size)
    return folder
