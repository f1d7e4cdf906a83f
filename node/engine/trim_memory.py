"""Return freed memory to the system. glibc keeps free blocks that lie between blocks in use: several bytes per parameter after a round of a
large model.
"""

import ctypes
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Return whole free pages to the system; does nothing if the C library is not glibc."""
    if (give := _trimmer()) is not None:
        give(0)


@cache
def _trimmer() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # musl, macOS, Windows
        return None
