"""Built-in quantizers by wire code, and compressors of one vector and of many."""

from dataclasses import dataclass
from typing import Any

import torch

from starling.gossip.compress.catalogue import QUANTIZERS, by_code, quantizer

BY_CODE = by_code(
    {"float32": quantizer("identity", torch.float32), "float64": quantizer("identity", torch.float64)}
    | {name: quantizer(name, torch.float32) for name in QUANTIZERS.built_in if name != "identity"}
)


@dataclass(frozen=True)
class Chain:
    """A compressor Q: selects with a drawn seed, quantises the selection, and puts it back.

    The error is ‖x‖² − ‖x_S‖² outside the support and at most omega·‖x_S‖² on it, hence δ = δ_S·(1 − omega).
    """

    selector: Any
    quantizer: Any

    def contraction(self, dim):
        return self.selector.contraction(dim) * (1.0 - self.quantizer.omega)

    def compress(self, x, generator):
        support = self.selector.select(x, None, int(torch.randint(2**62, (), generator=generator)), 0)
        values = support.take(x)
        decoded = self.quantizer.decode(self.quantizer.encode(values, generator), values.numel())
        return support.add(torch.zeros_like(x), decoded.to(x))


@dataclass(frozen=True)
class Rows:
    """A compressor of vectors (d,) applied to (n, d); rows draw from the generator in order."""

    compressor: Any

    def compress(self, x, generator):
        return torch.stack([self.compressor.compress(row, generator) for row in x])


@dataclass(frozen=True)
class TopRows:
    """Exact top-k of every row at once."""

    k: int

    def compress(self, x, generator):
        index = x.abs().topk(self.k, -1).indices
        return torch.zeros_like(x).scatter(-1, index, x.gather(-1, index))


def send(feedback, state, update, compressor, generator=None):
    """Pass one update through a feedback scheme; return message and state."""
    message = compressor.compress(feedback.target(state, update), generator)
    return message, feedback.sent(state, update, message)
