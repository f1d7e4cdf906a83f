"""What the rest of a node needs of an exchange service: pairwise exchanges (`exchange`) or pulled ones (`pulls`)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from starling.gossip.exchange.commands import Outcome
from starling.node.interfaces import TaskStatus
from starling.node.status.snapshot import Exchanges


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """How a round's exchanges ended.

    Args:
        round: which.
        outcomes: by peer.
        behind: the round that peers have credibly reached, if they left us behind, else `round`: who merely meets others less often
            has lost nothing.
        distance: as in `starling.node.rpc.calls.Done`.
    """

    round: int
    outcomes: Mapping[str, Outcome]
    behind: int
    distance: float | None = None


class ExchangeMembers(Protocol):
    """The members, as exchanges see them."""

    @property
    def members(self) -> Container[str]:
        """Peers believed alive."""
        ...

    def incarnation_of(self, peer: str) -> int | None:
        """Incarnation in the record of an alive peer, None for others."""
        ...

    def admits(self, peer: str) -> bool:
        """Whether a peer's frame is to be read.

        Raises:
            RemoteProtocolError: it is a stranger's.
        """
        ...


class Meetings(Protocol):
    """A service that meets peers, one round of local steps after the other."""

    @property
    def edges(self) -> Container[str]:
        """Peers we have to do with now."""
        ...

    @property
    def stats(self) -> Exchanges:
        """How exchanges ended."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Payload bytes sent in exchanges that took place."""
        ...

    def committed(self, peer: str) -> int:
        """Exchanges with `peer` that took place."""
        ...

    def round_of(self, peer: str) -> int | None:
        """Highest round reported by `peer`."""
        ...

    async def serve(self, task_status: TaskStatus) -> None:
        """Answer peers until cancelled."""
        ...

    def computing(self, round: int, links: Mapping[str, float], view: bytes) -> None:
        """Local steps of `round` begin.

        Args:
            round: which.
            links: peer -> mixing weight, as far as known yet.
            view: digest of the member list that they come from.
        """
        ...

    async def round(self, round: int, links: Mapping[str, float], view: bytes) -> RoundOutcome:
        """All exchanges of a round whose local steps are done, then Mix.

        Raises:
            EngineError: the engine cannot mix.
        """
        ...

    async def revoke(self, peer: str) -> None:
        """The peer is gone, banned or reborn: what came of it goes, what was settled too."""
        ...

    async def reset_all(self) -> None:
        """The engine was restarted, or holds another model: nothing lasts that it should have kept of peers."""
        ...
