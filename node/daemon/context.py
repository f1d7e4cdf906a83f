"""Inputs of a node: `NodeSetup` differs between production and simulation, `NodeContext` is shared by all services."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio

from starling.gossip.seeds import derive
from starling.node.admission.chain import Chain
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.engine.supervisor import StartEngine
from starling.node.daemon.store import NodeStore
from starling.node.identity import Identity
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.net.api import Network
from starling.node.status.snapshot import Resources

T = TypeVar("T")


class Offload(Protocol):
    """Runs a slow function without blocking the event loop."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a function elsewhere and return its result."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread, which is abandoned on cancellation."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]


@dataclass(slots=True)
class Limits:
    """Current limits on bandwidth and threads: the node's settings until its owner changes them."""

    up_bytes_per_s: int  # 0: no cap
    down_bytes_per_s: int
    threads: int  # threads of torch, 0: as many as are fastest

    @classmethod
    def of(cls, config: NodeConfig) -> "Limits":
        """Return the limits in a node's settings."""
        return cls(config.up_bytes_per_s, config.down_bytes_per_s, config.threads)


class SecondNodes(Protocol):
    """Further nodes on this machine."""

    def prepare(self) -> None:
        """Prepare for a second node that may soon be needed."""

    def start(self, stage: int, bootstrap: tuple[str, ...]) -> bool:
        """Start a node for a stage of the same swarm, given addresses to begin with -> whether it can be a member.

        Raises ConfigError, OSError: it cannot be started.
        """


class Sensors(Protocol):
    """Measurements of the machine."""

    def on_battery(self) -> bool:
        """Return whether the machine runs on battery."""
        ...

    def usage(self, engine_pid: int | None) -> Resources:
        """Return the resources that the node uses; `engine_pid`: the engine's process."""
        ...


class NoSensors:
    """Sensors of a simulated machine, which measure nothing. Satisfies `Sensors`."""

    def on_battery(self) -> bool:
        return False

    def usage(self, engine_pid: int | None) -> Resources:
        return Resources()


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a node runs on, real or in virtual time."""

    open_network: Callable[[Reporter], AbstractAsyncContextManager[Network]]  # opens the network, given a reporter for peers' faults
    start_engine: StartEngine
    unix_time: Callable[[], float]  # seconds since 1970, for people and incarnations
    offload: Offload = in_thread
    sensors: Sensors = field(default_factory=NoSensors)
    seconds: SecondNodes | None = None  # starts nodes for stages whose machines are lost; None: not available


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """A node's identity, settings and environment."""

    identity: Identity
    config: NodeConfig
    swarm: str  # the swarm's id
    store: NodeStore
    machine: Machine
    chain: Chain = ()  # invitations from the creator down to this node
    limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", Limits.of(self.config))


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Facts and helpers that every service of a running node may use."""

    setup: NodeSetup
    manifest: Manifest
    incarnation: int  # unix time in ms of this start; later starts have higher ones
    network: Network
    engine: EngineHandle
    report: Reporter

    @property
    def identity(self) -> Identity:
        """Return this node's key."""
        return self.setup.identity

    @property
    def me(self) -> str:
        """Return this node's peer id."""
        return self.setup.identity.peer_id

    @property
    def config(self) -> NodeConfig:
        """Return the owner's settings."""
        return self.setup.config

    @property
    def limits(self) -> Limits:
        """Return the current limits."""
        return self.setup.limits

    @property
    def swarm(self) -> str:
        """Return the swarm's id."""
        return self.setup.swarm

    def unix_time(self) -> float:
        """Return the seconds since 1970."""
        return self.setup.machine.unix_time()

    def secret_seed(self, use: str) -> int:
        """Return a seed that peers cannot know, different for each use and each start."""
        return derive(int.from_bytes(self.identity.seed[:7], "little"), use, self.incarnation)
