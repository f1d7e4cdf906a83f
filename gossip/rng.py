"""Torch generators from derived seeds: one generator per use."""

from __future__ import annotations

from starling.gossip.lazy_torch import torch
from starling.gossip.seeds import derive


def generator(seed: int, *labels: str | int | bytes, device: str = "cpu") -> torch.Generator:
    """Return a new `torch.Generator` seeded by `derive(seed, *labels)`; equal arguments give equal streams."""
    return torch.Generator(device=device).manual_seed(derive(seed, *labels))
