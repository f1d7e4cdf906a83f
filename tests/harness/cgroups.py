"""A limit of memory as containers and services have one. For root, where the machine lets it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(pid: int, more_bytes: int) -> Iterator[None]:
    """What a process allocates from now on may be so much; beyond it the kernel kills it."""
    second = (ROOT / "cgroup.controllers").exists()
    home = ROOT if second else ROOT / "memory"
    group = home / f"starling-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(more_bytes))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control groups here: {error}")
    for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
        with suppress(OSError):  # where swap is not accounted there is none to speak of
            (group / swap).write_text("0" if second else str(more_bytes))
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):
            (home / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()
