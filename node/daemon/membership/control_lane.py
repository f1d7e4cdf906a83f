"""Read the control lane: messages of membership are verified first, others are read from members only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from starling.gossip.errors import GossipError, RemoteProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire.schema import Attestations, Beacon, BeaconQuery, Control, Dialed, DialMe, Evidence, StopVote
from starling.node.daemon.membership.origins import Origins
from starling.node.daemon.membership.records import RecordVerifier
from starling.node.interfaces import Reporter
from starling.node.net.api import Network

OtherControl = Attestations | Evidence | Beacon | BeaconQuery | DialMe | Dialed | StopVote
"""Control messages that are not about membership."""


class Reader(Protocol):
    """Operations of the member list that reading the lane needs."""

    def admits(self, peer: str) -> bool:
        """Return whether a peer is a member. Raises RemoteProtocolError: it never was."""

    def read(self, peer: str, message: Control) -> None:
        """Process a message about membership whose records are verified."""

    def seen(self, peer: str) -> None:
        """Note a frame of a peer, whose records are not verified yet."""


@dataclass(frozen=True, slots=True)
class ControlLane:
    """The control lane of one node."""

    network: Network
    report: Reporter
    records: RecordVerifier
    origins: Origins

    async def serve(self, reader: Reader, other: Callable[[str, OtherControl], object]) -> None:
        """Read frames until cancelled; `other` takes members' other messages, and may raise RemoteProtocolError. Raises GossipError."""
        async for inbound in self.network.inbound("control"):
            peer, now = inbound.peer, trio.current_time()
            try:
                message = frames.decode("control", peer, inbound.frame)
                if isinstance(message, OtherControl):
                    if reader.admits(peer):
                        other(peer, message)
                elif (legible := self.records.receive(self.origins.source(peer), peer, message, now)) is not None:
                    reader.read(peer, legible)
                else:
                    reader.seen(peer)
            except RemoteProtocolError as error:
                self.report.fault(error.peer, error.reason)
        await ended("frames")


async def ended(what: str) -> None:
    """Raise GossipError because a followed channel ended: a node that hears nothing must not continue as if all were quiet."""
    await trio.lowlevel.checkpoint()  # raises Cancelled if the node itself is ending
    raise GossipError(f"the network gives no {what} any more")
