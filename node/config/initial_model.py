"""The model that every node begins with, where `task.start` names one. Torch-free.

A manifest or scenario that a person writes names a file. A created manifest names it by digests of its bytes, so that all nodes begin with
equal bits:

    sha256:64 digits            each node says by `start` of its own settings where it has the file, which no peer sends
    chunks:64 digits:bytes      in a swarm of scripts: the root of its chunks' digests (`starling.gossip.chunks`), and how long it is. Nodes
                                have it in their run directories, and get it from each other
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from starling.gossip.chunks import DIGEST_BYTES, digests_of, root
from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node.config import script
from starling.node.config.parts import shown
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status.control import typed

MAX_BYTES = MAX_CHUNK_BYTES // DIGEST_BYTES * MAX_CHUNK_BYTES  # 32 GiB: the digests of so many chunks fit one message
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNKED = re.compile(r"chunks:([0-9a-f]{64}):([1-9][0-9]{0,11})")
_SCRIPTS = "`starling.Swarm(DIR, model=…, optimizer=…)`"


@dataclass(frozen=True, slots=True)
class Chunked:
    """A file that members send each other.

    Args:
        root: of the digests of its chunks, 32 bytes.
        size: its bytes, in [1, MAX_BYTES].
    """

    root: bytes
    size: int

    def __str__(self) -> str:
        return f"chunks:{self.root.hex()}:{self.size}"


def is_digest(start: str) -> bool:
    """Return whether `task.start` is that of a created manifest, a digest and no path."""
    return _DIGEST.fullmatch(start) is not None


def chunked(start: str) -> Chunked | None:
    """Return the file that `task.start` of a created swarm of scripts names; None: it is of another form, or too large."""
    match = _CHUNKED.fullmatch(start)
    if match is None or int(match[2]) > MAX_BYTES:
        return None
    return Chunked(bytes.fromhex(match[1]), int(match[2]))


def sent(manifest: Manifest) -> Chunked | None:
    """Return the file that members of this swarm send each other; None: it is not trained by scripts, or names a path."""
    return chunked(manifest.task.start) if script.trains(manifest) else None


def with_file_digest(manifest: Manifest, config: NodeConfig) -> tuple[Manifest, NodeConfig]:
    """Replace the file that `task.start` names by its digest; the creator's settings say where it is.

    Raises ConfigError: it cannot be read; or a swarm of scripts names none, or is a template and `config.start` is another file.
    """
    if script.trains(manifest):
        return _sealed_in_chunks(manifest, config)
    if not (found := place(manifest)):
        return manifest, config
    task = manifest.task.changed(start=_digest(_bytes("task.start", Path(found))))
    return structs.replace(manifest, task=task), structs.replace(config, start=found)


def _sealed_in_chunks(manifest: Manifest, config: NodeConfig) -> tuple[Manifest, NodeConfig]:
    template = sent(manifest)
    found = place(manifest) or config.start
    if not found:
        raise ConfigError(
            f"task.start: a swarm of scripts begins with the model of its creator's script, and none is named; create it with {_SCRIPTS}"
        )
    made = of_file("start" if template else "task.start", Path(found))
    if template is not None and made != template:
        raise ConfigError(
            f"start: {shown(found)} is {made}, must be {template}, with which the swarm of this template began; give that file, "
            "`--set start=FILE`"
        )
    return structs.replace(manifest, task=manifest.task.changed(start=str(made))), structs.replace(config, start=found)


def place(manifest: Manifest) -> str:
    """Return the absolute path of the file that a manifest names, "" where it names none: for members on the creator's machine."""
    path = manifest.task.start
    return "" if is_digest(path) or chunked(path) else absolute(path)


def absolute(path: str) -> str:
    """Return an absolute path, so that a node finds it from any folder; "" stays ""."""
    return str(Path(path).expanduser().resolve()) if path else ""


def read(start: str, file: str) -> tuple[str, bytes]:
    """Read the file that a swarm begins with -> its name for messages, its bytes. `start` is that of the task, not empty.

    `file` is `start` of the node's settings, in a swarm of scripts the one in the run directory; needed where that of the task is a digest.
    Raises ConfigError: there is none, it cannot be read, or it is another one.
    """
    if chunked(start) is not None:
        verify(start, file)
        return file, _bytes("start", Path(file).expanduser())
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


def verify(start: str, file: str) -> None:
    """Check the file of a swarm of scripts, a chunk at a time; arguments and errors as of `read`."""
    if not file:
        raise ConfigError(
            f"start: this swarm of scripts begins with the model of {start}, which is not here; members send it, try `starling run`"
        )
    if str(made := of_file("start", Path(file).expanduser())) != start:
        raise ConfigError(f"start: {shown(file)} is {made}, must be {start}; remove it, and members send it again")


def of_file(key: str, path: Path) -> Chunked:
    """Return how a swarm of scripts names a file. Raises ConfigError: it cannot be read, is empty or larger than MAX_BYTES."""
    try:
        size = path.stat().st_size
        if 0 < size <= MAX_BYTES:
            return Chunked(root(digests_of(pieces(path))), size)
    except OSError as error:
        raise ConfigError(
            f"{key}: {shown(str(path))} cannot be read: {error.strerror}; needed is what {_SCRIPTS} wrote when it created the swarm"
        ) from error
    raise ConfigError(f"{key}: {shown(str(path))} must be of 1 to {MAX_BYTES:,} bytes, has {size:,}; needed is what {_SCRIPTS} wrote")


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the chunks of a file in order. Raises OSError."""
    with path.open("rb") as file:
        while piece := file.read(MAX_CHUNK_BYTES):
            yield piece


def check(manifest: Manifest) -> None:
    """Raise ConfigError if a created manifest names a file instead of its digest: its members would read a file of their machine."""
    start = manifest.task.start
    if not manifest.founder:
        return
    if script.trains(manifest):
        if sent(manifest) is None:
            raise ConfigError(
                f"task.start: of a created swarm of scripts must be chunks:, 64 digits, : and 1 to {MAX_BYTES:,} bytes, "
                f"got {shown(start)}; create it with {_SCRIPTS}"
            )
    elif start and not is_digest(start):
        raise ConfigError(
            f"task.start: of a created manifest must be sha256: and 64 digits, got {shown(start)}; create it with `starling create`"
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
