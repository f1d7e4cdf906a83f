"""`starling.Swarm` in a training of several ranks, as `torchrun` starts it: one is the member, the others follow it.

    rank 0    is the member: it has the node, and tells the others all that its engine says, with the vectors that belong to it
    others    wait for that at a round's end, where rank 0 waits for the engine

All ranks count local steps and correct their gradients by themselves. With DistributedDataParallel gradients are equal in all of them, so
they come to a round's end together, and nothing is sent before. Rank 0 says every BEAT_S that there is nothing yet: no rank is in a
collective for longer, where Ctrl-C is not heard and the group's timeout runs.

Shapes: d parameters.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout
from starling.integrations import sharded
from starling.integrations.ranks import BEAT_S, Ranks, Restored, Word
from starling.node import platform
from starling.node.engine import fingerprint
from starling.node.rpc.script import VERSION, Bye, Closed, FromScript, Grant, Hello, Measure, Welcome
from starling.node.rpc.shared_vectors import SharedVectors, new_file
from starling.node.script import swarm as single
from starling.node.script.client import Client
from starling.node.script.correction import Correction, Nowhere
from starling.node.script.member import Member
from starling.node.script.optimizers import unwrapped
from starling.node.script.parts import Life, Parts, say
from starling.node.script.processes import refuse_workers
from starling.node.script.script_state import ScriptState
from starling.node.script.swarm import Running, started


class Watched:
    """Rank 0's node, of whose end the others hear. Satisfies `starling.node.script.member.Life`."""

    def __init__(self, running: Running, ranks: Ranks) -> None:
        self._running, self._ranks = running, ranks
        self.check, self.node, self.doing = running.check, running.node, running.doing

    def is_over(self) -> bool:
        with self._ranks.told_of_errors():
            over = self._running.is_over()
        if over:
            self._ranks.tell(Bye())
        return over


class Elsewhere:
    """A node's life as another rank learns it from rank 0."""

    node = None

    def check(self) -> None:
        """Do nothing."""

    def is_over(self) -> bool:
        """Return that it is: nothing else closes the connection."""
        return True

    def doing(self) -> str:
        """Return nothing: rank 0 says it."""
        return ""


class Meanwhile:
    """The life of rank 0's node, while the others wait to hear of it."""

    def __init__(self, life: Life, ranks: Ranks) -> None:
        self._life, self._ranks = life, ranks
        self.is_over, self.doing = life.is_over, life.doing

    def check(self) -> None:
        """Raises GossipError: the node has failed."""
        self._life.check()
        self._ranks.tell_to_wait()


class Telling(Client):
    """Rank 0's connection to the engine, which the others hear."""

    def __init__(self, ranks: Ranks, folder: Path, hello: Hello, layout: Layout, life: Life, said: Callable[[str], None]) -> None:
        self._ranks = ranks
        with ranks.told_of_errors():
            super().__init__(folder, hello, layout, Meanwhile(life, ranks), said)
        ranks.tell(self.welcome)

    @property
    def ready(self) -> bool:
        """Tell if there is a message; if not, the other ranks do not wait either."""
        if super().ready:
            return True
        self._ranks.tell_to_go_on()
        return False

    def receive(self) -> Grant | Measure:
        while not platform.readable(self._socket, timeout_s=BEAT_S):
            self._ranks.tell_to_wait()
        message = super().receive()
        self._ranks.tell(message, self.vectors.engine)
        return message


class Hearing(Client):
    """Another rank's connection to the engine: what rank 0 says of its own."""

    def __init__(self, ranks: Ranks, layout: Layout) -> None:
        self._ranks = ranks
        self._word: Word | None = None  # heard by `ready`, and to be received
        welcome = ranks.hear()
        assert isinstance(welcome, Welcome)
        self.welcome = welcome
        shares = {"memories": welcome.memories, "corrects": welcome.corrects}
        file = new_file(None, layout.dim, layout.dtype, **shares)
        try:
            self.vectors = SharedVectors(file, layout.dim, layout.dtype, **shares)
        finally:
            os.close(file)

    def send(self, message: FromScript) -> None:
        """Do nothing: rank 0 says the same."""

    @property
    def ready(self) -> bool:
        """Tell if rank 0 had something to receive."""
        self._word = self._ranks.hear(self.vectors.engine)
        return self._word is not None

    def receive(self) -> Grant | Measure:
        word, self._word = self._word, None
        while word is None or isinstance(word, Welcome):  # rank 0 has met another engine of the node
            word = self._ranks.hear(self.vectors.engine)
        if isinstance(word, Bye):
            raise Closed
        assert isinstance(word, Grant | Measure)
        return word

    def close(self) -> None:
        """Do nothing."""


class SharedScriptState(ScriptState):
    """State that rank 0 stores next to the node's checkpoints; it sends restored state to the other ranks."""

    def __init__(self, ranks: Ranks, folder: Path, objects: Mapping[str, Any] | None) -> None:
        self._ranks = ranks
        super().__init__(folder, objects)

    def restore(self, round: int) -> int | None:
        with self._ranks.told_of_errors():
            found = super().restore(round)
        file = io.BytesIO()
        if found is not None:
            torch.save({name: each.state_dict() for name, each in self._objects.items()}, file)
        states = bytearray(file.getbuffer())
        self._ranks.tell(Restored(found, len(states)))
        if states:
            self._ranks.share(torch.frombuffer(states, dtype=torch.uint8))
        return found


class ReceivedScriptState(ScriptState):
    """State that another rank receives from rank 0."""

    def __init__(self, ranks: Ranks, folder: Path, objects: Mapping[str, Any] | None) -> None:
        self._ranks = ranks
        super().__init__(folder, objects)

    def write(self, round: int) -> None:
        """Do nothing: rank 0 does."""

    def restore(self, round: int) -> int | None:
        """Load what rank 0 has restored -> its round; None: there was nothing."""
        word = self._ranks.hear()
        assert isinstance(word, Restored)
        if word.size:
            file = torch.empty(word.size, dtype=torch.uint8, device="cpu")
            self._ranks.share(file)
            states = torch.load(io.BytesIO(file.numpy().tobytes()), map_location="cpu", weights_only=True)
            for name, each in self._objects.items():
                each.load_state_dict(states[name])
        return word.round


class Rank(Member):
    """A rank, whose parameters may be shards. When it closes alone, the others do not give their part of a vector."""

    def __init__(self, folder: Path, parts: Parts, life: Life, ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(folder, parts, life)
        if isinstance(parts.parameters, sharded.ShardedParameters):
            self._shard(parts.optimizers, parts.parameters)

    def close(self, *, part: bool = True) -> None:
        """Close without the steps of an unfinished round."""
        super().close(part=False)

    def _shard(self, optimizers: Sequence[Optimizer], parameters: sharded.ShardedParameters) -> None:
        exchanged = self._exchanged
        if exchanged.memories is not None:
            exchanged.memories = sharded.ShardedMemories(optimizers, parameters)
        correction: Correction = Nowhere()
        if exchanged.flows is not None:
            correction = exchanged.flows = sharded.ShardedFlows(parameters, self._ranks.sum)
        self.hooks = sharded.ShardedHooks(optimizers, parameters, correction, self._ranks.size)


class Leader(Rank):
    """Rank 0, which is the member."""

    def __init__(self, folder: Path, parts: Parts, life: Life, ranks: Ranks) -> None:
        super().__init__(folder, parts, life, ranks)
        self._kept = SharedScriptState(ranks, folder, parts.state)

    def _connected(self) -> Client:
        layout = self._parameters.layout
        frozen = fingerprint.base(self._parts.model)
        hello = Hello(VERSION, os.getpid(), layout.names, layout.shapes, frozen, self.measuring.is_asked)
        return Telling(self._ranks, self._folder, hello, layout, self._life, say)


class Follower(Rank):
    """Another rank, which follows the member."""

    def __init__(self, folder: Path, parts: Parts, life: Life, ranks: Ranks) -> None:
        super().__init__(folder, parts, life, ranks)
        self._kept = ReceivedScriptState(ranks, folder, parts.state)

    def _connected(self) -> Client:
        return Hearing(self._ranks, self._parameters.layout)


class Swarm(single.Swarm):
    """As `starling.Swarm`, to be made in all ranks with the same arguments, of which all then call the same methods.

    The ranks' parameters are equal after each round. `evaluate` is called in all ranks at the same time; what it returns in rank 0 counts.
    What is given as `state` is kept by rank 0. `invite`, `status` and `log` are those of rank 0. Parameters may be shards of `fully_shard`.

    Raises:
        ConfigError: as `starling.Swarm`, and where parameters are sharded in another way.
        GossipError: the node failed, or another rank has ended.
    """

    _check_process = staticmethod(refuse_workers)

    def __init__(
        self,
        folder: str | Path,
        invite: str | None = None,
        *,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        listen: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        by_hand: bool = False,
        **more: Any,
    ) -> None:
        self._check_process()
        parts = _parts(model, unwrapped(optimizer, by_hand=by_hand), more)
        self._folder, ranks = Path(folder), Ranks()
        dim = parts.parameters.layout.dim
        if ranks.sum((dim,)) != [dim * ranks.size]:
            raise ConfigError(f"model: rank {ranks.rank} trains {dim} parameters, others do not: give all ranks the same model")
        self._life: Any = Elsewhere()
        if ranks.rank:
            self._member: Member = Follower(self._folder, parts, self._life, ranks)
            return
        with ranks.told_of_errors():
            self._life = Watched(Running(self._folder, started(self._folder, invite, listen, config)), ranks)
        try:
            self._member = Leader(self._folder, parts, self._life, ranks)
        except BaseException:
            self._stop()
            raise

    @classmethod
    def create(cls, folder: str | Path, **keys: Any) -> Self:
        """As `starling.Swarm.create`: rank 0 creates it. Raises ConfigError: parameters are shards already."""
        if sharded.is_sharded(keys["model"]):
            raise ConfigError("create: the model is sharded, and a swarm begins with whole parameters; create it before `fully_shard`")
        if dist.get_rank() == 0:
            return super().create(folder, **keys)
        return cls(folder, **{key: value for key, value in keys.items() if key in _OF_ALL})


_OF_ALL = ("model", "optimizer", "evaluate", "state", "copies", "by_hand")


def join(*given: Any, **keys: Any) -> single.Swarm:
    """Return the Swarm of a training: one for all ranks, where there are several. Arguments are those of `starling.Swarm`."""
    return _kind()(*given, **keys)


def create(*given: Any, **keys: Any) -> single.Swarm:
    """The same by `starling.Swarm.create`."""
    return _kind().create(*given, **keys)


def _kind() -> type[single.Swarm]:
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Swarm if several else single.Swarm


def _parts(model: nn.Module, optimizers: Sequence[Optimizer], more: Mapping[str, Any]) -> Parts:
    """Return the parts of a script; `more` of `Parts` by name. Raises ConfigError: they are sharded in a way that cannot be used."""
    if any(isinstance(each, FullyShardedDataParallel) for each in model.modules()):
        raise ConfigError("model: FullyShardedDataParallel keeps parameters in pieces without a shape; use fully_shard")
    if not sharded.is_sharded(model):
        return Parts(model, optimizers, **more)
    if more.get("state"):
        raise ConfigError("state: cannot be kept of shards; save it with torch.distributed.checkpoint")
    sharded.reshard(model)
    parts = Parts(model, optimizers, **more)
    parts.parameters = sharded.ShardedParameters(model, optimizers, parts.copies)
    return parts
