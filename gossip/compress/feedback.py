"""Error feedback: what a compressor dropped is owed to the next vector.

Shapes: d parameters.
"""

from __future__ import annotations

from torch import Generator, Tensor

from gossip.compress.chain import Compressor


def compress_with_feedback(
    compressor: Compressor, x: Tensor, memory: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Q(x + memory), and what it dropped as the new memory.

    Conserves: what went in equals what came out plus the memory, x + memory = Q + new memory, up to one rounding of each
    coordinate.
    If the result is lost on the way, add it back to the memory. Not for models sent to changing peers: the memory
    would be owed to a peer that is not the next one.

    Source: Stich, Cordonnier and Jaggi 2018, Algorithm 1 (arXiv:1809.07599).

    Args:
        compressor: any contraction.
        x: (d,) finite.
        memory: (d,), in units of x; zeros at first.
        generator: chance for the compressor.
    """
    owed = x + memory
    compressed = compressor.compress(owed, generator)
    return compressed, owed - compressed
