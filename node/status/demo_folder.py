"""Folder of a demo's nodes: run directories node-0, node-1 …, and ALONE."""

from pathlib import Path

ALONE = "alone"  # folder of the lone node, which trains on node-0's data
_PREFIX = "node-"


def place(folder: Path, number: int) -> Path:
    """Return the run directory of a node, which may not exist yet."""
    return folder / f"{_PREFIX}{number}"


def nodes(folder: Path) -> dict[int, Path]:
    """Return the existing run directories by number, in order; none if `folder` is no demo's."""
    folders = ((path.name.removeprefix(_PREFIX), path) for path in folder.glob(f"{_PREFIX}*") if path.is_dir())
    return dict(sorted((int(number), path) for number, path in folders if number.isdecimal()))
