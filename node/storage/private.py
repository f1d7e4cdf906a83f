"""Files of a run directory: for their owner alone, and never through a symbolic link."""

import os
from contextlib import suppress
from pathlib import Path

from starling.node import platform

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | platform.ONLY_HERE
_KEPT = os.O_CREAT | platform.ONLY_HERE


def create(path: Path) -> int:
    """Return a descriptor that writes a new file of mode 0600, in the place of whatever has that name, e.g. since a crash. Raises
    OSError.
    """
    path.unlink(missing_ok=True)
    return os.open(path, _NEW, 0o600)


def replace(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 in one step: it has the old content or the new. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    with open(create(part), "wb") as file:
        file.write(data)
    part.replace(path)


def keep(path: Path, access: int) -> int:
    """Return a descriptor of a file that grows, made with mode 0600 if it is missing, which it has from then on. Raises OSError: also
    for a link.

    `access`: os.O_RDWR, or os.O_WRONLY | os.O_APPEND.
    """
    descriptor = os.open(path, _KEPT | access, 0o600)
    with suppress(OSError):  # a file system without modes, or another owner
        platform.owner_only(descriptor)
    return descriptor
