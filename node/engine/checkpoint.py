"""Checkpoints on disk: what a node needs to go on after a restart, the newest and the one before it.

The file is replaced by renaming, so at every instant one whole checkpoint lies there. A damaged or foreign one is never
overwritten: the one before it is read instead, or the node says in one line what to do.

Kept: the model with its buffers, optimiser state, round, local steps, what a rule knows of each peer. Not kept: the rest of the mixer's
state. A restart voids every edge (the peers delete their flows as well, since the node comes back with a new incarnation), so flows start
from zero; a tracker starts from its next gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.node.config.schema import Manifest
from starling.node.engine import tensor_file

KIND = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is kept.

    Args:
        round: the one to do next.
        local_steps: done since the beginning of this node's training.
        tensors: "x" (d,), the optimiser's and the model's buffers.
    """

    round: int
    local_steps: int
    tensors: Mapping[str, Tensor]


def swarm_of(manifest: Manifest) -> str:
    """What a checkpoint remembers of its swarm: a digest of the whole manifest."""
    return hashlib.sha256(msgspec.json.encode(manifest, order="deterministic")).hexdigest()


class Checkpoints:
    """The checkpoint file of one node.

    Args:
        path: the newest; the one before it has `.previous` appended, and a bad one that was set aside `.bad`.
        swarm: identifies the manifest; a checkpoint of another swarm is foreign.
        schema: digest of parameter names and shapes; likewise.
    """

    def __init__(self, path: Path, *, swarm: str, schema: str) -> None:
        self._path = path
        self._previous = path.with_name(path.name + ".previous")
        self._swarm = swarm
        self._schema = schema
        self._good = False  # the newest file is one we have read or written

    def load(self) -> Checkpoint | None:
        """The newest readable checkpoint; None if there is no file at all.

        Raises:
            ConfigError: there are files, but none is a checkpoint of this node.
        """
        problems = []
        for path in (self._path, self._previous):
            try:
                checkpoint = self._read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error.strerror or error if isinstance(error, OSError) else error}")
                continue
            self._good = path == self._path
            return checkpoint
        if problems:
            raise ConfigError(
                f"checkpoint {'; '.join(problems)}; move the file away to start afresh (mv {self._path} {self._path}.bad)"
            )
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the newest; the newest becomes the previous.

        Raises:
            OSError: it could not be written. What lay there still does.
        """
        facts: dict[str, str | int] = {
            "kind": KIND, "swarm": self._swarm, "schema": self._schema,
            "round": checkpoint.round, "local_steps": checkpoint.local_steps,
        }  # fmt: skip
        temporary = tensor_file.write(self._path, tensor_file.pack(checkpoint.tensors, facts))
        if self._path.exists():
            self._path.replace(self._previous if self._good else self._path.with_name(self._path.name + ".bad"))
        temporary.replace(self._path)
        tensor_file.flush_folder(self._path.parent)
        self._good = True

    def _read(self, path: Path) -> Checkpoint:
        tensors, facts = tensor_file.unpack(path.read_bytes())
        if facts.get("kind") != KIND:
            raise ValueError("holds something else than a checkpoint")
        if facts.get("swarm") != self._swarm:
            raise ValueError("belongs to another swarm")
        if facts.get("schema") != self._schema:
            raise ValueError("holds another model")
        turn, local_steps = facts.get("round"), facts.get("local_steps")
        if type(turn) is not int or type(local_steps) is not int or min(turn, local_steps) < 0:
            raise ValueError("does not say how far it is")
        return Checkpoint(turn, local_steps, tensors)
