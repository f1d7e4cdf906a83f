"""Estimate the least memory that a task takes, before it is allocated: a manifest comes from other people. Torch-free.

What is estimated is below the peak of any engine, also of a lean one that exchanges masks, so that nothing is refused that would run. With
flows, moments and whole vectors the peak of a large model is up to three times as high.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from starling.gossip.errors import ConfigError
from starling.node import platform
from starling.node.config import size as sizes
from starling.node.config.schema import Manifest
from starling.node.status.format import size as shown

_COPIES = 4  # copies of the parameters while a model is opened, the least that any engine needs (docs/memory.md)
_EVALUATED = 256  # held-out samples evaluated at once


def available(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes of memory that this process may use: the machine's, or less in a container, or a unit or shell with a limit."""
    total: int = min((psutil.virtual_memory().total, *_limits(cgroups, own), *_address_space()))
    return total


def _address_space() -> Iterator[int]:
    """Yield the limit that `ulimit -v` (LimitAS= of a unit) sets for this process, if any."""
    most = platform.address_space()
    if most is not None:
        yield max(0, most - psutil.Process().memory_info().vms)


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        inner = PurePosixPath(path.lstrip("/"))
        for group in (inner, *inner.parents):
            with suppress(OSError, ValueError):  # ValueError: "max"
                yield int((root / group / name).read_text())


def check(manifest: Manifest, available: int, model_bytes: int | None = None) -> None:
    """Raise ConfigError if the task needs more memory than `available`; arguments as of `objection`."""
    if why := objection(manifest, available, model_bytes):
        raise ConfigError(why)


def _sizes(manifest: Manifest, model_bytes: int | None) -> tuple[int, int, int, int]:
    """Return the bytes of the parameters, of what a sample needs in training and in evaluation, and of what is always held; 0: unknown."""
    task, size = manifest.task, sizes.of(manifest.task)
    if size is None:
        return model_bytes or 0, 0, 0, 0
    each = 8 if task.params().get("dtype") == "float64" else 4
    return each * size.parameters, each * size.trained, each * size.tested, 8 * size.fixed


def objection(manifest: Manifest, available: int, model_bytes: int | None = None) -> str:
    """Return why a task cannot be learned with so many bytes, and what can be done; "" if it can, or if that is not known.

    `model_bytes`: of its parameters, once there is a model; before that only those of built-in tasks are known.
    """
    task = manifest.task
    model, sample, tested, fixed = _sizes(manifest, model_bytes)
    rest = _COPIES * model + fixed
    needed = rest + max(sample * task.batch_size, tested * _EVALUATED)
    if needed <= available:
        return ""
    fits = (available - rest) // sample if sample and rest + tested * _EVALUATED <= available else 0
    cure = f"`--set task.batch_size={fits}`" if fits > 0 else "smaller keys of `task`"
    return (
        f"task: needs at least {shown(needed)} of memory here (a model of {shown(model)}, batches of {task.batch_size:,}), "
        f"{shown(available)} are there; take a machine with more, or create it with {cure}; `starling manifest show` has them all"
    )
