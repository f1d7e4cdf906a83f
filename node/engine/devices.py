"""The device of the model, and its utilisation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

try:
    import pynvml  # nvidia-ml-py, an optional dependency
except ImportError:
    pynvml = None

from starling.gossip.errors import ConfigError


def device(wanted: str) -> str:
    """Return the device to use for auto, cpu, cuda or mps; auto takes the fastest there is. Raises ConfigError if it is not there."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, there in present.items() if there)
    if not present.get(wanted, False):
        there = ", ".join(sorted(name for name, there in present.items() if there))
        raise ConfigError(f"device: {wanted!r} is not on this machine, choose auto or one of {there}")
    return wanted


@dataclass(slots=True)
class Gpu:
    """Utilisation and memory of the model's GPU, measured once a second at most."""

    device: str
    clock: Callable[[], float]
    _seen: tuple[float | None, int | None] = (None, None)
    _at: float = -math.inf

    def poll(self) -> tuple[float | None, int | None]:
        """Return the GPU utilisation of all processes, 0 to 1 (None without nvidia-ml-py), and bytes reserved by torch; None, None without
        a GPU.
        """
        if self.device == "cuda" and not 0.0 <= self.clock() - self._at < 1.0:
            self._at = self.clock()
            self._seen = _busy(), torch.cuda.memory_reserved()
        return self._seen


def _busy() -> float | None:
    if pynvml is None:
        return None
    try:
        return torch.cuda.utilization() / 100.0
    except (pynvml.NVMLError, RuntimeError):
        return None
