"""Terms that a swarm agreed on for all exchanges, and the form of one node's vectors in them.

Shapes: D numbers of the shared vector.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from starling.gossip.mix.exchange_codec import ExchangeCodec, edge
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.engine.compression import Selection


@dataclass(frozen=True, slots=True)
class Form:
    """Form of shared vectors."""

    dim: int  # D
    dtype: torch.dtype
    device: torch.device  # of the model
    model: int  # how many of the D numbers, from the first, belong to the model

    def zeros(self, *more: int) -> Tensor:
        """Return zeros (…, D) of this form."""
        return torch.zeros(*more, self.dim, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of all exchanges of a node."""

    node: str
    seed: int  # of the swarm
    codec: ExchangeCodec
    select: Selection
    wished: int  # most coordinates that a responder requests besides its answer; 0: none
    form: Form

    def mask_seed(self, peer: str, inc: int) -> int:
        """Return the selector's seed, of an edge's incarnation, equal at both ends."""
        return derive(self.seed, "mask", edge(self.node, peer), inc)

    def chance(self, peer: str, inc: int, seq: int, *labels: str) -> Generator:
        """Return the quantizers' generator in a transaction, which begins the same at both ends."""
        return generator(self.seed, "quantize", edge(self.node, peer), inc, seq, *labels)
