"""What a node is built from: `NodeSetup` differs between production and simulation, `NodeContext` is shared by all services."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Revocation
from starling.node.admission.chain import Chain
from starling.node.admission.credential import Ticket
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.engine.supervisor import StartEngine
from starling.node.identity import Identity
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.net.api import Network
from starling.node.status.snapshot import Resources
from starling.robust.reputation import Decision

T = TypeVar("T")


class Offload(Protocol):
    """Runs a slow function without blocking the event loop."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """The function's result."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run in a thread, which is abandoned when this is cancelled."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]


@dataclass(slots=True)
class Limits:
    """What of the machine the node may use at present: as its settings say until its owner changes it."""

    up_bytes_per_s: int  # 0: no cap
    down_bytes_per_s: int
    threads: int  # of torch, 0: as many as are fastest

    @classmethod
    def of(cls, config: NodeConfig) -> "Limits":
        """Those of a node's settings."""
        return cls(config.up_bytes_per_s, config.down_bytes_per_s, config.threads)


@dataclass(frozen=True, slots=True)
class AdmissionStore:
    """A node's credentials, and the revocations of an earlier run; `keep_*` store new ones for the next."""

    chain: Chain = ()  # of invitations
    revoked: tuple[Revocation, ...] = ()
    keep_revoked: Callable[[tuple[Revocation, ...]], object] = lambda _revocations: None
    ticket: Ticket | None = None  # the proof of work of an earlier run
    keep_ticket: Callable[[Ticket], object] = lambda _ticket: None
    offload: Offload = in_thread  # runs proof-of-work evaluations


class SecondNodes(Protocol):
    """Further nodes on this machine."""

    def prepare(self) -> None:
        """One may be needed soon."""

    def start(self, stage: int, bootstrap: tuple[str, ...]) -> bool:
        """Start a node for a stage of the same swarm, given addresses to begin with -> whether it can be a member.

        Raises ConfigError, OSError: it cannot be started.
        """


@dataclass(frozen=True, slots=True)
class Places:
    """Where a node keeps models that it receives, in its run directory; None, as in simulation: nowhere."""

    partial: Path | None = None  # what came of a late joiner's, over restarts
    start: Path | None = (
        None  # that which a swarm of scripts begins with; None: `start` of the settings says where it is
    )


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """How a node gets its network, its engine and its files; each `keep_*` and `remember` store for the next run."""

    identity: Identity
    config: NodeConfig
    manifest: Manifest | None  # the swarm's agreement; None: fetched by the swarm's id from the bootstrap peers
    swarm: str  # its id
    checkpoint: str  # path of the checkpoint file; "" for none
    export: str  # path of the final model; "" for none
    open_network: Callable[[Reporter], AbstractAsyncContextManager[Network]]  # given where it reports peers' faults
    start_engine: StartEngine
    unix_time: Callable[[], float]  # seconds since 1970, for people and incarnations
    keep_manifest: Callable[[Manifest], object]  # called with a fetched one
    known: tuple[str, ...] = ()  # addresses of members of an earlier run, tried like bootstrap peers
    remember: Callable[[tuple[str, ...]], object] = lambda _addresses: None  # called with some members' now and then
    decisions: tuple[Decision, ...] = ()  # bans and trust of earlier runs, times in unix seconds
    keep_decisions: Callable[[tuple[Decision, ...]], object] = lambda _decisions: None  # with all, when they change
    admission: AdmissionStore = AdmissionStore()
    places: Places = Places()
    on_battery: Callable[[], bool] = lambda: False  # whether the machine has no mains
    keep_stage: Callable[[int], object] = lambda _stage: None  # the stage of a crew that this node has from now on
    seconds: SecondNodes | None = None  # for stages whose machines are lost; None: there are no such
    usage: Callable[[int | None], Resources] = lambda _engine: Resources()
    """Resources the node uses, given the engine's process id; none in simulation, which has no process of its own."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What every service of one running node may use, beside the parts of its `NodeSetup`."""

    identity: Identity
    config: NodeConfig
    manifest: Manifest
    swarm: str
    incarnation: int  # unix time in ms of this start; later starts have higher ones
    network: Network
    engine: EngineHandle
    report: Reporter
    unix_time: Callable[[], float]
    limits: Limits

    @property
    def me(self) -> str:
        """Own peer id."""
        return self.identity.peer_id

    def secret_seed(self, use: str) -> int:
        """A seed that peers cannot know, another one for each use and each start."""
        return derive(int.from_bytes(self.identity.seed[:7], "little"), use, self.incarnation)
