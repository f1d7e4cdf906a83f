"""Busy processes that keep a core each, for measurements under load."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import os
print(flush=True)
while os.getppid() == {parent}:
    for _ in range(100_000):
        pass
"""


@contextmanager
def busy(count: int) -> Iterator[tuple[int, ...]]:
    """Yield the ids of `count` spinning processes with this one's priority, when all of them spin.

    They are ended and waited for on the way out, also after Ctrl-C, and end themselves where this process was killed.
    """
    program = _SPIN.format(parent=os.getpid())
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            words = [sys.executable, "-I", "-S", "-c", program]
            spinning.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()
        yield tuple(process.pid for process in spinning)
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.communicate()
