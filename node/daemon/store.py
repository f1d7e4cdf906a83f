"""State that a node keeps between its runs: in its run directory (`starling.node.storage.run_dir`), or in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from starling.gossip.wire.schema import Revocation
from starling.node.admission.chain import Chain
from starling.node.admission.credential import Ticket
from starling.node.config.schema import Manifest
from starling.robust.reputation import Decision


class NodeStore(Protocol):
    """Stores a node's state between runs.

    Attributes:
        checkpoint: of the engine; None: there are no checkpoints.
        model: where the final model is written; None: nowhere.
        partial: what was received of a late joiner's model, over restarts; None: it is received anew.
        start: the model that a swarm of scripts begins with; None: `start` of the settings says where it is.
    """

    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def model(self) -> Path | None: ...
    @property
    def partial(self) -> Path | None: ...
    @property
    def start(self) -> Path | None: ...

    def read_manifest(self) -> Manifest | None:
        """Return the swarm's manifest; None: it must be fetched from the bootstrap peers by the swarm's id."""
        ...

    def write_manifest(self, manifest: Manifest) -> object:
        """Store a fetched manifest."""
        ...

    def keep_stage(self, stage: int) -> None:
        """Store the stage of a crew that this node has from now on."""
        ...

    def known_peers(self) -> tuple[str, ...]:
        """Return addresses of members, which are tried like bootstrap peers."""
        ...

    def remember_peers(self, addresses: tuple[str, ...]) -> None:
        """Store some members' current addresses."""
        ...

    def known_decisions(self) -> tuple[Decision, ...]:
        """Return bans and trust, times in unix seconds. Raises ConfigError: they cannot be read."""
        ...

    def keep_decisions(self, kept: tuple[Decision, ...]) -> None:
        """Store all bans and trust, when they change."""
        ...

    def known_revoked(self) -> tuple[Revocation, ...]:
        """Return revocations of invitations."""
        ...

    def keep_revoked(self, revocations: tuple[Revocation, ...]) -> None:
        """Store all revocations, when there are new ones."""
        ...

    def issued(self) -> Mapping[int, Chain]:
        """Return the invitations that this node has given, by number, the lowest first."""
        ...

    def known_ticket(self) -> Ticket | None:
        """Return the last proof of work."""
        ...

    def keep_ticket(self, ticket: Ticket) -> None:
        """Store a new proof of work."""
        ...


@dataclass(slots=True)
class MemoryStore:
    """A `NodeStore` that lasts as long as its object, as in simulations."""

    manifest: Manifest | None = None
    decisions: tuple[Decision, ...] = ()
    ticket: Ticket | None = None
    checkpoint: Path | None = None
    model: Path | None = None
    partial: Path | None = field(default=None, init=False)
    start: Path | None = field(default=None, init=False)
    revoked: tuple[Revocation, ...] = field(default=(), init=False)
    given: dict[int, Chain] = field(default_factory=dict, init=False)
    peers: tuple[str, ...] = field(default=(), init=False)
    stage: int = field(default=-1, init=False)

    def read_manifest(self) -> Manifest | None:
        return self.manifest

    def write_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def keep_stage(self, stage: int) -> None:
        self.stage = stage

    def known_peers(self) -> tuple[str, ...]:
        return self.peers

    def remember_peers(self, addresses: tuple[str, ...]) -> None:
        self.peers = addresses

    def known_decisions(self) -> tuple[Decision, ...]:
        return self.decisions

    def keep_decisions(self, kept: tuple[Decision, ...]) -> None:
        self.decisions = kept

    def known_revoked(self) -> tuple[Revocation, ...]:
        return self.revoked

    def keep_revoked(self, revocations: tuple[Revocation, ...]) -> None:
        self.revoked = revocations

    def issued(self) -> dict[int, Chain]:
        return self.given

    def known_ticket(self) -> Ticket | None:
        return self.ticket

    def keep_ticket(self, ticket: Ticket) -> None:
        self.ticket = ticket
