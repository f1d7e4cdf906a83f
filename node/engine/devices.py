"""Which device the model lives on."""

from __future__ import annotations

import torch

from gossip.errors import ConfigError


def device(wanted: str) -> str:
    """The device to use for auto, cpu, cuda or mps; auto takes the fastest there is.

    Raises:
        ConfigError: it is not there.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, there in present.items() if there)
    if not present.get(wanted, False):
        there = ", ".join(sorted(name for name, there in present.items() if there))
        raise ConfigError(f"device: {wanted!r} is not on this machine, choose auto or one of {there}")
    return wanted
