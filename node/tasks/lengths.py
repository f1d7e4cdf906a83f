"""Batches of samples of like length, so that little of a padded batch is padding.

Source: Ge et al. 2025, ByteScale, of which only the sorting is taken. A deviation: each batch draws its own window, so that it follows
from its generator alone and a resumed run sees the same batches.
"""

import torch
from torch import Generator, Tensor

WINDOW = 512  # samples drawn at least, of which a batch is a neighbourhood by length


def like_length(lengths: Tensor, size: int, generator: Generator) -> Tensor:
    """Return (size,), indices into `lengths` (n,) > 0: drawn with replacement, each sample equally likely, those of a batch about equally
    long.

    A window of at least `WINDOW` samples and eight batches is drawn, sorted by length and cut into batches, one of which is taken.
    """
    batches = max(8, -(-WINDOW // size))
    window = torch.randint(len(lengths), (batches * size,), generator=generator)
    ordered = window[torch.sort(lengths[window], stable=True).indices]
    taken = int(torch.randint(batches, (), generator=generator))
    return ordered[taken * size : (taken + 1) * size]
