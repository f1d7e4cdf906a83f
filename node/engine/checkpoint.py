"""Checkpoints on disk: the newest and the one before it.

The file is replaced by renaming, so that there is always a whole one. A damaged or foreign one is never overwritten: the one before it is
read instead, or the node says in one line what to do.

Saved: the model with its buffers, optimiser state, round, local steps, a rule's memory of each peer, what sparse outer steps have not sent.
Not saved: the rest of the mixer's state. A restart voids every edge (the peers delete their flows as well, since the node returns with a
new incarnation), so flows start from zero; a tracker starts from its next gradient.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.engine import tensor_file
from starling.node.versions import UPGRADE

KIND = "checkpoint"
_PROBLEMS = {"kind": "holds something else than a checkpoint", "swarm": "belongs to another swarm", "schema": "holds another model"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The round to do next, local steps done so far, and tensors: "x" (d,), the optimiser's and the model's buffers."""

    round: int
    local_steps: int
    tensors: Mapping[str, Tensor]


def swarm_of(manifest: Manifest) -> str:
    """Return the digest of the whole manifest; it stays the same where a later version has more keys."""
    return hashlib.sha256(manifests.to_bytes(manifest)).hexdigest()


class NoCheckpoints:
    """Stands for the checkpoint file of a node that has none."""

    damaged = ""

    def load(self) -> None:
        """Return None."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Do nothing."""


class Checkpoints:
    """The checkpoint file of one node; the one before it has `.previous` appended, a bad one that was set aside `.bad`.

    A checkpoint with another digest of the manifest (`swarm`), or of parameter names and shapes (`schema`), is foreign.
    """

    def __init__(self, path: Path, *, swarm: str, schema: str) -> None:
        self._path = path
        self._previous = path.with_name(path.name + ".previous")
        self._identity: dict[str, str | int] = {"kind": KIND, "swarm": swarm, "schema": schema}
        self._good = False  # whether the newest file is one that this process has read or written
        self.damaged = ""
        """Why the newest file was not read, and the one before it was; "": it was, or neither."""

    def load(self) -> Checkpoint | None:
        """Return the newest readable checkpoint; None if there is no file. Raises ConfigError if no file is a checkpoint of this node."""
        problems = []
        for path in (self._path, self._previous):
            try:
                checkpoint = self._read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error.strerror or error if isinstance(error, OSError) else error}")
                continue
            self._good, self.damaged = path == self._path, "; ".join(problems)
            return checkpoint
        if any(UPGRADE in problem for problem in problems):
            raise ConfigError(f"checkpoint {'; '.join(problems)}")
        if problems:
            raise ConfigError(f"checkpoint {'; '.join(problems)}; move the file away to start afresh (mv {self._path} {self._path}.bad)")
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the newest, which becomes the previous; after an OSError both are unchanged."""
        facts = {**self._identity, "round": checkpoint.round, "local_steps": checkpoint.local_steps}
        temporary = tensor_file.save(self._path, checkpoint.tensors, facts)
        if self._path.exists():
            self._path.replace(self._previous if self._good else self._path.with_name(self._path.name + ".bad"))
        temporary.replace(self._path)
        tensor_file.flush_folder(self._path.parent)
        self._good = True

    def _read(self, path: Path) -> Checkpoint:
        tensors, facts = tensor_file.load(path)
        for key, problem in _PROBLEMS.items():
            if facts.get(key) != self._identity[key]:
                raise ValueError(problem)
        turn, local_steps = facts.get("round"), facts.get("local_steps")
        if type(turn) is not int or type(local_steps) is not int or min(turn, local_steps) < 0:
            raise ValueError("does not say how far it is")
        return Checkpoint(turn, local_steps, tensors)
