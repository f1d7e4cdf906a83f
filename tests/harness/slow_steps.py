"""A user's task whose local steps mostly sleep, so that more nodes than cores each have their own speed."""

from pathlib import Path

KIND = "slow_steps:SlowSteps"
_SOURCE = """\
import time

import torch
from torch import nn


class SlowSteps:
    metric, higher_is_better, samples = "error", False, 64

    def model(self, generator):
        layers = [nn.utils.skip_init(nn.Linear, {width}, {width}) for _ in range({layers})]
        for each in layers:
            nn.init.normal_(each.weight, std=0.01, generator=generator)
            nn.init.zeros_(each.bias)
        return nn.Sequential(*layers)

    def data(self, source, device):
        return self

    def batch(self, size, generator):
        return torch.rand((size, {width}), generator=generator)

    def held_out(self, size):
        yield torch.ones((1, {width}))

    def loss(self, model, x):
        time.sleep({seconds})
        return nn.functional.mse_loss(model(x), x.flip(1))

    def score(self, model, x):
        total = float(nn.functional.mse_loss(model(x), x.flip(1)))
        return total, total, 1
"""


def write(folder: Path, *, width: int, layers: int, seconds: float) -> None:
    """Write the task `KIND` into a folder: square layers of this width, a sleep of this many seconds per step."""
    source = _SOURCE.format(width=width, layers=layers, seconds=seconds)
    (folder / "slow_steps.py").write_text(source)
