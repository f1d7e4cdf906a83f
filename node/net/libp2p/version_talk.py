"""Find out why a peer refuses a stream: mostly one of the two nodes must be upgraded, and both learn which."""

from collections.abc import Mapping
from contextlib import suppress

import trio

from starling.gossip.errors import OtherVersion, PeerUnreachable
from starling.gossip.limits import TokenBucket
from starling.gossip.wire.schema import Lane
from starling.node import versions
from starling.node.interfaces import Reporter
from starling.node.net.libp2p.connection import Connection
from starling.node.net.libp2p.lanes import ask_versions, tell_versions
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.negotiation import Conversation
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.versions import Range

OTHER_VERSIONS_PER_S, OTHER_VERSIONS_AT_ONCE = 1 / 60, 8
"""Peers of other versions that are reported; anybody can make a new id."""


class VersionTalk:
    """Exchanges the spoken versions of every lane with peers; `spoken`: those of this host."""

    def __init__(self, spoken: Mapping[str, Range], links: Links, report: Reporter) -> None:
        self.spoken = spoken
        self._links, self._report = links, report
        self._reports = TokenBucket(OTHER_VERSIONS_PER_S, OTHER_VERSIONS_AT_ONCE)

    async def serve(self, stream: Stream, conversation: Conversation) -> None:
        """Answer a peer that asks for our versions, and read its own."""
        told = await tell_versions(stream, conversation, self.spoken)
        if told is not None and (other := versions.mismatch(self.spoken, told)):
            self.report(stream.connection.info.peer, other)
        await stream.hang_up()

    def check(self, peer: str, lane: Lane) -> None:
        """Raise OtherVersion if a connected peer is known to speak no version of a lane that this node does."""
        if other := self._links.peer(peer).other_version.get(lane):
            raise OtherVersion(peer, other)

    async def why_refused(self, connection: Connection, lane: Lane, why: str) -> PeerUnreachable:
        """Return the error to raise for a lane's stream that a peer refused, for `why` or as it speaks another version."""
        peer = connection.info.peer
        with suppress(StreamBroken):
            told = await ask_versions(connection, self.spoken)
            other = versions.mismatch({lane: self.spoken[lane]}, told)
            if other and not connection.closing:
                self.report(peer, other)
                self._links.peer(peer).other_version[lane] = other
                return OtherVersion(peer, other)
        return PeerUnreachable(peer, why)

    def report(self, peer: str, why: str) -> None:
        """Tell the owner of a peer of another version, once per connection and at most a few."""
        if not self._links.peer(peer).other_version and self._reports.take(1, trio.current_time()):
            self._report.event("other_version", f"{peer} {why}", level="warning", peer=peer)
