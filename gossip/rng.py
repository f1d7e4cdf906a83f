"""Torch generators from derived seeds: each use of chance has its own."""

from __future__ import annotations

from starling.gossip.lazy_torch import torch
from starling.gossip.seeds import derive


def generator(seed: int, *labels: str | int | bytes, device: str = "cpu") -> torch.Generator:
    """A fresh `torch.Generator` for one use; equal arguments give an equal stream."""
    return torch.Generator(device=device).manual_seed(derive(seed, *labels))
