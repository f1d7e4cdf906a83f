"""The model that all nodes begin with, where `task.start` names one. Torch-free.

A manifest or scenario that a person writes names a file. A founded manifest names it by the SHA-256 of its bytes, so that all nodes begin
with equal bits; each node says by `start` of its own settings where it has the file, which no peer sends.
"""

import hashlib
import re
from pathlib import Path

from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.config.parts import shown
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status.control import typed

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(start: str) -> bool:
    """Whether `task.start` is that of a founded manifest: no path."""
    return _DIGEST.fullmatch(start) is not None


def sealed(manifest: Manifest, config: NodeConfig) -> tuple[Manifest, NodeConfig]:
    """Replace the file that `task.start` names by its digest; the founder's settings say where it is.

    Raises ConfigError: it cannot be read.
    """
    if not (found := place(manifest)):
        return manifest, config
    task = manifest.task.changed(start=_digest(_bytes("task.start", Path(found))))
    return structs.replace(manifest, task=task), structs.replace(config, start=found)


def place(manifest: Manifest) -> str:
    """Absolute path of the file that a manifest names, "" where it names none: for members of the founder's own machine."""
    path = manifest.task.start
    return "" if is_digest(path) else absolute(path)


def absolute(path: str) -> str:
    """So that a node finds it from whichever folder it is started; "" stays ""."""
    return str(Path(path).expanduser().resolve()) if path else ""


def read(start: str, file: str) -> tuple[str, bytes]:
    """The file that a swarm begins with -> its name for messages, its bytes. `start` is that of the task, not empty.

    `file` is `start` of the node's settings, needed where that of the task is its digest. Raises ConfigError: there is none, it cannot be
    read, or it is another one.
    """
    if not is_digest(start):
        return start, _bytes("task.start", Path(start).expanduser())
    if not file:
        raise ConfigError(
            f"start: this swarm begins with the model of {start}, which is a file that no peer sends; get it from who invited you and give "
            "it, `starling join INVITE --set start=FILE`"
        )
    data = _bytes("start", Path(file).expanduser())
    if (digest := _digest(data)) != start:
        raise ConfigError(
            f"start: {shown(file)} is {digest}, must be {start}; look with `sha256sum {typed(file)}`, and give the right file, "
            "`starling join INVITE --set start=FILE`"
        )
    return file, data


def check(manifest: Manifest) -> None:
    """Raises ConfigError if a founded manifest names a file instead of its digest: its members would read a file of their machine."""
    start = manifest.task.start
    if start and manifest.founder and not is_digest(start):
        raise ConfigError(
            f"task.start: of a founded manifest must be sha256: and 64 digits, got {shown(start)}; found it with `starling found`"
        )


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _bytes(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key}: {shown(str(path))} cannot be read: {error.strerror}; needed is a model, try `starling export MODEL.safetensors`"
        ) from error
