"""A small transformer over bytes: what the text task trains.

Source: Radford et al. 2019 (GPT-2): pre-LayerNorm blocks, learned positions, tied embeddings, residual projections
initialised smaller by the square root of their number. Byte-level, so there is no tokeniser to agree on.

Shapes: m sequences, t bytes of a sequence, w width.
"""

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

BYTES = 256


class Block(nn.Module):
    """Causal self-attention, then a hidden layer of four times the width, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (m, t, w) to (m, t, w). If heads are shared among processes, `attend` gives this one's."""
        m, t, w = x.shape
        q, k, v = self.attend(self.norm_1(x)).view(m, t, 3, -1, w // self.heads).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(m, t, -1)
        x = x + self.project(attended)
        hidden: Tensor = gelu(self.expand(self.norm_2(x)))
        return torch.add(x, self.contract(hidden))


class Gpt(nn.Module):
    """Predicts the next byte at every position of at most `context` bytes, with `layers` blocks; initialised from `generator`."""

    def __init__(self, context: int, width: int, layers: int, heads: int, generator: Generator) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        _draw(self, layers, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map (m, t) int64 bytes to (m, t, 256) logits of the following byte."""
        hidden = self.embed(x) + self.position[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return linear(self.norm(hidden), self.embed.weight)


class Embed(nn.Module):
    """The first block of a model with two tables of bytes."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.position = nn.Parameter(torch.empty(context, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (m, t) int64 bytes -> (m, t, w)."""
        hidden: Tensor = self.embed(x) + self.position[: x.shape[1]]
        return hidden


class Head(nn.Module):
    """The last block of the transformer: (m, t, w) -> (m, t, 256) logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.table = nn.Linear(width, BYTES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the byte that follows each."""
        logits: Tensor = self.table(self.norm(x))
        return logits


def blocks(context: int, width: int, layers: int, heads: int, generator: Generator) -> Iterator[nn.Module]:
    """Yield `Gpt` block by block with a separate output table, so that it can be cut: a tied table would be at both ends."""
    yield _draw(Embed(context, width), layers, generator)
    for _ in range(layers):
        yield _draw(Block(width, heads), layers, generator)
    yield _draw(Head(width), layers, generator)


def _draw(module: nn.Module, layers: int, generator: Generator) -> nn.Module:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                residual = name.endswith(("project.weight", "contract.weight"))
                parameter.normal_(0.0, 0.02 / math.sqrt(2 * layers) if residual else 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return module
