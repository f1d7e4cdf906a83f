"""What a node is built from: `NodeSetup` differs between production and simulation, `NodeContext` is shared by all services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
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
        ...


async def in_thread(work: Callable[[], T]) -> T:
    """Run in a thread, which is abandoned when this is cancelled."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class AdmissionStore:
    """A node's credentials, and the revocations of an earlier run; `keep_*` store new ones for the next.

    Args:
        chain: its chain of invitations; empty for none.
        ticket: the proof of work of an earlier run, if any.
        offload: runs proof-of-work evaluations.
    """

    chain: Chain = ()
    revoked: tuple[Revocation, ...] = ()
    keep_revoked: Callable[[tuple[Revocation, ...]], object] = lambda _revocations: None
    ticket: Ticket | None = None
    keep_ticket: Callable[[Ticket], object] = lambda _ticket: None
    offload: Offload = in_thread


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """How a node gets its network, its engine and its files.

    Args:
        manifest: the swarm's agreement; None: fetched by `swarm`, the swarm id, from the bootstrap peers.
        checkpoint: path of the checkpoint file; "" for none.
        export: path of the final model; "" for none.
        open_network: opens the network, which reports peers' faults to the reporter given.
        unix_time: seconds since 1970, for people and incarnations.
        keep_manifest: called with a fetched manifest, to store it.
        known: addresses of members of an earlier run, tried like bootstrap peers.
        remember: called with addresses of some members now and then, to store them for the next run.
        decisions: bans and trust of earlier runs, times in unix seconds; `keep_decisions` is called with all whenever they change.
        usage: resources the node uses, given the engine's process id; none in simulation, which has no process of its own.
    """

    identity: Identity
    config: NodeConfig
    manifest: Manifest | None
    swarm: str
    checkpoint: str
    export: str
    open_network: Callable[[Reporter], AbstractAsyncContextManager[Network]]
    start_engine: StartEngine
    unix_time: Callable[[], float]
    keep_manifest: Callable[[Manifest], object]
    known: tuple[str, ...] = ()
    remember: Callable[[tuple[str, ...]], object] = lambda _addresses: None
    decisions: tuple[Decision, ...] = ()
    keep_decisions: Callable[[tuple[Decision, ...]], object] = lambda _decisions: None
    admission: AdmissionStore = AdmissionStore()
    usage: Callable[[int | None], Resources] = lambda _engine: Resources()


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What every service of one running node may use, beside the parts of its `NodeSetup`.

    Args:
        incarnation: unix time in ms of this start; later starts have higher ones.
        report: takes events and peers' faults.
    """

    identity: Identity
    config: NodeConfig
    manifest: Manifest
    swarm: str
    incarnation: int
    network: Network
    engine: EngineHandle
    report: Reporter
    unix_time: Callable[[], float]

    @property
    def me(self) -> str:
        """Own peer id."""
        return self.identity.peer_id

    def secret_seed(self, use: str) -> int:
        """A seed that peers cannot know, another one for each use and each start."""
        return derive(int.from_bytes(self.identity.seed[:7], "little"), use, self.incarnation)
