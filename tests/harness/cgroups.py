"""Limits of memory and of processor time as containers and services have them. For root, where the machine lets it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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


@contextmanager
def limited_processor(families: Sequence[Sequence[int]], share: float) -> Iterator[None]:
    """Each of these lists of processes has this share of one core together; the kernel lets it run so much of each tenth of a second."""
    second = (ROOT / "cgroup.controllers").exists()
    home = ROOT if second else ROOT / "cpu"
    period_us = 100_000
    quota_us = round(share * period_us)
    groups = [home / f"starling-test-{os.getpid()}-{number}" for number in range(len(families))]
    try:
        try:
            for group in groups:
                group.mkdir()
                if second:
                    (group / "cpu.max").write_text(f"{quota_us} {period_us}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(period_us))
                    (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            pytest.skip(f"no control groups of processor time here: {error}")
        for group, family in zip(groups, families, strict=True):
            for pid in family:
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            with suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    (home / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                group.rmdir()
