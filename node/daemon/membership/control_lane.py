"""Reading the control lane: messages of membership are made legible first, others are for members only."""

from collections.abc import Callable

import trio

from starling.gossip.errors import GossipError, RemoteProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire.schema import (
    Attestations,
    Beacon,
    BeaconQuery,
    Control,
    Dialed,
    DialMe,
    Evidence,
    StopVote,
)
from starling.node.daemon.membership.origins import Origins
from starling.node.daemon.membership.records import RecordVerifier
from starling.node.interfaces import Reporter
from starling.node.net.api import Network

OtherControl = Attestations | Evidence | Beacon | BeaconQuery | DialMe | Dialed | StopVote
"""Control messages that are not about membership."""


class ControlLane:
    """The control lane of one node.

    Args:
        admits: returns whether a peer is a member; raises RemoteProtocolError: it never was.
        read: takes a message about membership whose records are verified.
        seen: is told of a frame whose records are not verified yet.
    """

    def __init__(
        self, network: Network, report: Reporter, records: RecordVerifier, origins: Origins, *,
        admits: Callable[[str], bool], read: Callable[[str, Control], None], seen: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._network, self._report, self._records, self._origins = network, report, records, origins
        self._admits, self._read, self._seen = admits, read, seen

    async def serve(self, other: Callable[[str, OtherControl], object]) -> None:
        """Read frames until cancelled; `other` takes members' other messages, and may raise RemoteProtocolError. Raises GossipError."""
        async for inbound in self._network.inbound("control"):
            peer, now = inbound.peer, trio.current_time()
            try:
                message = frames.decode("control", peer, inbound.frame)
                if isinstance(message, OtherControl):
                    if self._admits(peer):
                        other(peer, message)
                elif (legible := self._records.receive(self._origins.source(peer), peer, message, now)) is not None:
                    self._read(peer, legible)
                else:
                    self._seen(peer)
            except RemoteProtocolError as error:
                self._report.fault(error.peer, error.reason)
        await ended("frames")


async def ended(what: str) -> None:
    """Raise GossipError, as what is followed ended: a node that hears nothing any more does not go on as if all were quiet."""
    await trio.lowlevel.checkpoint()  # raises Cancelled where the node itself ends
    raise GossipError(f"the network gives no {what} any more")
