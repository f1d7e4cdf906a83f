"""PowerSGD: low rank with error feedback, each power iteration going on where the last one ended. Nodes have the selector `low_rank`,
whose power iterations start anew, with the error feedback of `mix.kind = psgd`.

Shapes: d parameters, k coefficients.
"""

from dataclasses import dataclass

from starling.gossip.api import Quantizer
from starling.gossip.compress.select.low_rank import Factors, LowRank
from starling.gossip.lazy_torch import Generator, Tensor, torch


@dataclass(frozen=True, slots=True, eq=False)
class Warm:
    """State of `PowerSgd`: the residual (d,), and the right bases with which it continues."""

    memory: Tensor
    directions: Factors


@dataclass(frozen=True, slots=True)
class PowerSgd:
    """Compress M = update + owed: P = orthonormal(M Q), message P (Mᵀ P)ᵀ, and Mᵀ P is the next Q.

    The rank-r part of what changes slowly converges within a few rounds, because the iteration never starts over. Between two peers who
    store each other's last result the basis is never recomputed: PowerGossip, `Factors.turned` after each exchange.

    Source: Vogels, Karimireddy and Jaggi 2019, Algorithms 1 and 2 (arXiv:1905.13727). Deviations: P is rounded to fp16, Mᵀ P to
    what the quantizer makes of it, and the message is exactly what a receiver of those gets.
    """

    low_rank: LowRank  # matrices to compress, and their rank
    quantizer: Quantizer  # of the coefficients
    seed: int = 0  # seed of the first directions

    def start(self, x: Tensor) -> Warm:
        """Return the state without residual and with random directions. x: (d,)."""
        return Warm(torch.zeros_like(x), self.low_rank.start(self.seed))

    def compress(self, state: Warm, update: Tensor, generator: Generator) -> tuple[Tensor, Warm]:
        """Compress an update (d,), finite; return the message (d,) and the new state."""
        owed = update + state.memory
        support = state.directions.step(owed)
        values = support.take(owed)
        decoded = self.quantizer.decode(self.quantizer.encode(values, generator), values.numel()).to(owed)
        message = support.spread(decoded, owed.numel())
        return message, Warm(owed - message, support.turned(decoded))
