"""Limits of memory and processor time as containers and services have them. For root, where the machine permits it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
SECOND = (ROOT / "cgroup.controllers").exists()  # version 2, where all controllers share one tree


@contextmanager
def limited_memory(pid: int, more_bytes: int) -> Iterator[None]:
    """Let a process allocate this much from now on; the kernel kills it beyond."""
    swap = 0 if SECOND else more_bytes
    with _limited(
        "memory",
        [[pid]],
        {"memory.max" if SECOND else "memory.limit_in_bytes": more_bytes},
        where_accounted={"memory.swap.max": swap, "memory.memsw.limit_in_bytes": swap},
    ):
        yield


@contextmanager
def limited_processor(families: Sequence[Sequence[int]], share: float) -> Iterator[None]:
    """Give each of these lists of processes this share of one core in total, enforced in each tenth of a second."""
    period_us = 100_000
    quota_us = round(share * period_us)
    one: dict[str, object] = {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us}
    with _limited("cpu", families, {"cpu.max": f"{quota_us} {period_us}"} if SECOND else one):
        yield


@contextmanager
def _limited(
    controller: str, families: Sequence[Sequence[int]], limits: Mapping[str, object], where_accounted: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Put each of these lists of processes into a control group with these limits; the last limits only if the kernel has them."""
    home = ROOT if SECOND else ROOT / controller
    groups = [home / f"starling-test-{os.getpid()}-{number}" for number in range(len(families))]
    try:
        try:
            for group in groups:
                group.mkdir()
                for name, value in limits.items():
                    (group / name).write_text(str(value))
        except OSError as error:
            pytest.skip(f"no control groups of {controller} here: {error}")
        for group, family in zip(groups, families, strict=True):
            for name, value in (where_accounted or {}).items():
                with suppress(OSError):
                    (group / name).write_text(str(value))
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
