"""Tasks whose models have more than trained float32 parameters: codebooks, teachers, packed bases, other dtypes."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from tests.harness.networks import Pictures


class Codebook(nn.Module):
    """A layer whose code vectors follow its batches without gradients; normalisation; a counter."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
        self.register_buffer("codes", torch.zeros(2, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.ones(8))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x):
        h = self.norm(self.inner(x.flatten(1)))
        if self.training:
            with torch.no_grad():
                self.codes.mul_(0.9).add_(0.1 * h.detach()[:2])
                self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)  # replaced instead of changed in place
                self.seen += 1
        return self.outer(h * self.constant + 0.01 * (self.codes.mean(0) + self.mean))


class Taught(nn.Module):
    """A student and its moving average, written through `data`, one tensor of it replaced each time."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        if self.training:
            pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
            for number, (own, other) in enumerate(pairs):
                if number:
                    own.data = 0.9 * own.data + 0.1 * other.data
                else:
                    own.data.mul_(0.9).add_(0.1 * other.data)
        return self.student(x)


class Extra(nn.Module):
    """A layer with non-tensor state, and one that counts its forward passes in it."""

    def __init__(self, counts=False):
        super().__init__()
        self.head, self.scale, self.counts = nn.Linear(64, 10), 1.5, counts

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

    def forward(self, x):
        self.scale += self.counts * 0.01
        return self.head(x.flatten(1)) * self.scale


class WholeNumbers(nn.Module):
    """A frozen integer layer with a scale, as in packed bases; it does not load what it adds to a state_dict."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16, 64, dtype=torch.int8), requires_grad=False)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.scale"] = torch.ones(16)

    def forward(self, x):
        return (x.flatten(1) @ self.weight.t().float()) / 64


class Packed(nn.Module):
    """A trained layer on a packed one."""

    def __init__(self):
        super().__init__()
        self.base, self.head = WholeNumbers(), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.base(x))


class Spectral(nn.Module):
    """A filter in the frequencies of each row, as in Fourier neural operators."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.ones(8, 5, dtype=torch.complex64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        rows = torch.fft.rfft(x.reshape(-1, 8, 8))
        return self.head(torch.fft.irfft(rows * self.filter, n=8).flatten(1))


class Cast(nn.Module):
    """A layer of another dtype before a float32 one."""

    def __init__(self, dtype, last=torch.float32):
        super().__init__()
        self.inner, self.head = nn.Linear(64, 16).to(dtype), nn.Linear(16, 10).to(last)

    def forward(self, x):
        h = self.inner(x.flatten(1).to(self.inner.weight.dtype)).relu()
        return self.head(h.to(self.head.weight.dtype)).float()


MODELS = {
    "codebook": Codebook,
    "taught": Taught,
    "packed": Packed,
    "extra": Extra,
    "counting": lambda: Extra(counts=True),
    "complex": Spectral,
    "bfloat16": lambda: Cast(torch.bfloat16, torch.bfloat16),
    "mixed": lambda: Cast(torch.bfloat16),
    "float16": lambda: Cast(torch.float16),
    "float64": lambda: Cast(torch.float64),
    "float8": lambda: Cast(torch.float8_e4m3fn),
}


@dataclass(frozen=True, slots=True)
class Beside(Pictures):
    """The digits, learned by one of `MODELS`."""

    def model(self, generator):
        made = MODELS[self.network]()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.is_floating_point() and parameter.dim() > 1 and parameter.dtype.itemsize > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
                elif parameter.dim() == 1 and not (parameter == 1).all():
                    parameter.zero_()
                elif not parameter.is_floating_point() and not parameter.is_complex():
                    parameter.copy_(torch.randint(-9, 9, parameter.shape, generator=generator))
            if isinstance(made, Taught):
                made.teacher.load_state_dict(made.student.state_dict())
        return made
