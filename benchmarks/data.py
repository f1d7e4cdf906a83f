"""Files with tasks' data: they are not shipped, so a result identifies them by a fingerprint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

VARIABLE = "STARLING_DATA"
_DIGITS = 16  # digits of a SHA-256: enough to distinguish data sets


def find(name: str) -> Path:
    """Return a file or folder inside the one that STARLING_DATA names.

    Raises:
        RuntimeError: there is none.
    """
    root = os.environ.get(VARIABLE, "")
    if not root:
        raise RuntimeError(f"{VARIABLE}: must name the folder that holds {name}; try `export {VARIABLE}=PATH`")
    path = Path(root).expanduser().absolute() / name
    if not path.exists():
        raise RuntimeError(f"{VARIABLE}: {path} does not exist; look with `ls {root}`")
    return path


def fingerprint(path: Path) -> str:
    """Return the beginning of a SHA-256 over names and contents of all files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:_DIGITS]
