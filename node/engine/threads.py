"""How many of torch's threads compute.

They meet at a barrier after each operation. Where a busy process keeps one of them off its core for milliseconds, all others wait, and
many threads may be slower than one by far. Coding a payload is hundreds of short operations: it is done on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on the calling thread alone. Also a decorator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
