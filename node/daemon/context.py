"""What a node is made of: all that differs between production and simulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.engine.supervisor import StartEngine
from starling.node.daemon.membership.admission import AdmissionStore
from starling.node.identity import Identity
from starling.node.net.api import Network
from starling.node.status.snapshot import Resources
from starling.robust.reputation import Decision


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What a node is made of.

    Args:
        identity: its key.
        config: the volunteer's settings.
        manifest: the swarm's agreement, or None to fetch it by `swarm` from the bootstrap peers.
        swarm: swarm id.
        checkpoint: path of the checkpoint file; "" for none.
        export: path of the final model; "" for none.
        open_network: opens its place in a network.
        start_engine: opens one engine.
        unix_time: seconds since 1970, for people and incarnations.
        keep_manifest: told a fetched manifest, to store it.
        known: addresses of members of an earlier run, tried like bootstrap peers.
        remember: told the addresses of some members now and then, for the next run.
        decisions: bans and trust of earlier runs, times in unix seconds.
        keep_decisions: told those that hold whenever they change.
        papers: what it shows to be let in.
        usage: what the node takes of its machine, given the engine's process id; nothing in simulation, which has no process of its own.
    """

    identity: Identity
    config: NodeConfig
    manifest: Manifest | None
    swarm: str
    checkpoint: str
    export: str
    open_network: Callable[[], AbstractAsyncContextManager[Network]]
    start_engine: StartEngine
    unix_time: Callable[[], float]
    keep_manifest: Callable[[Manifest], object]
    known: tuple[str, ...] = ()
    remember: Callable[[tuple[str, ...]], object] = lambda _addresses: None
    decisions: tuple[Decision, ...] = ()
    keep_decisions: Callable[[tuple[Decision, ...]], object] = lambda _decisions: None
    papers: AdmissionStore = AdmissionStore()  # noqa: RUF009 — frozen
    usage: Callable[[int | None], Resources] = lambda _engine: Resources()
