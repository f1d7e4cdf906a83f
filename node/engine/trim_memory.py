"""Memory that was freed, given back to the system. glibc keeps what lies between blocks in use: after the vectors that come and go in a
round of a large model, several bytes a parameter.
"""

import ctypes
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Give back whole free pages; nothing where the C library is another one."""
    if (give := _trimmer()) is not None:
        give(0)


@cache
def _trimmer() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # musl, macOS, Windows
        return None
