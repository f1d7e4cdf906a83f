"""Frames to and from peers, on the streams of lanes.

send ── newest connection, or one dial shared by all senders ── the lane's stream, opened once ── queue
a stream that a peer opens ── its lane, or another protocol ── frames ── the peer's rate ── inbox of the lane
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from starling.gossip.errors import LocalProtocolError, PeerUnreachable
from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node.net.api import Inbound
from starling.node.net.inbox import IN_A_ROW, Inbox
from starling.node.net.libp2p.lanes import FrameTooLong, accept, lane_ids, may_carry, open_lane, read_frames, write_frame
from starling.node.net.libp2p.links import Links
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed
from starling.node.net.libp2p.partial_frames import LEAST_UNFINISHED_BYTES, PartialFrames
from starling.node.net.libp2p.peer_dialler import PeerDialler
from starling.node.net.libp2p.peers import PeerState
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.net.libp2p.version_talk import VersionTalk

Served = Callable[[Stream, Conversation], Awaitable[None]]
"""Answers a stream of a protocol that is no lane. Raises HandshakeFailed, StreamBroken, TooSlowError."""


@dataclass(slots=True)
class FrameStreams:
    """Streams of one host; `others`: handlers of streams of other protocols than lanes, by protocol."""

    links: Links
    dialler: PeerDialler
    versions: VersionTalk
    inboxes: Mapping[Lane, Inbox]
    others: Mapping[str, Served]
    _longest: dict[Lane, int] = field(default_factory=lambda: dict(MAX_FRAME_BYTES))
    _unfinished: PartialFrames = field(default_factory=PartialFrames)
    _lanes: Mapping[str, Lane] = field(init=False)

    def __post_init__(self) -> None:
        self._lanes = lane_ids(self.versions.spoken)

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Set the longest frame of a lane; a longer one is refused when its length is read."""
        self._longest[lane] = min(frame_bytes, MAX_FRAME_BYTES[lane])
        self._unfinished.limit = max(2 * max(self._longest.values()), LEAST_UNFINISHED_BYTES)

    def receives(self, peer: str) -> bool:
        """Return whether a part of a frame of `peer` has arrived, and the rest is in flight."""
        return self._unfinished.of(peer)

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Queue one frame on the lane's stream, dialling and opening it if needed. Raises LocalProtocolError if it is too long,
        PeerUnreachable if no known address answers, the peer is refused or the connection broke.
        """
        if len(frame) > MAX_FRAME_BYTES[lane]:
            raise LocalProtocolError(f"{len(frame)} bytes exceed MAX_FRAME_BYTES[{lane!r}]")
        record = self.links.peer(peer)
        lock, record.at_once = record.locks[lane], record.at_once + 1
        if lock.locked() or record.at_once >= IN_A_ROW:
            record.at_once = 0
            await lock.acquire()  # acquiring the lock lets other tasks run
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            lock.acquire_nowait()
        try:
            stream = await self._outgoing(peer, record, lane, len(frame))
            try:
                await write_frame(stream, frame)
            except StreamBroken:
                lost = stream.connection.closing
                reason = "connection lost while sending" if lost else "it did not take the frame, and reset the stream"
                raise PeerUnreachable(peer, reason) from None
        finally:
            lock.release()
        record.traffic.bytes_sent += len(frame)

    async def serve(self, stream: Stream) -> None:
        """Serve a stream that a peer opened, by its protocol, until it ends."""
        accepted = await accept(stream, (*self._lanes, *self.others))
        if accepted is None:
            stream.reset()
            return
        protocol, conversation = accepted
        try:
            if (other := self.others.get(protocol)) is None:
                await self._receive(stream, self._lanes[protocol], conversation.rest)
            else:
                with suppress(HandshakeFailed, StreamBroken, trio.TooSlowError):
                    await other(stream, conversation)
        finally:
            stream.reset()

    async def _receive(self, stream: Stream, lane: Lane, received: bytes) -> None:
        connection, inbox = stream.connection, self.inboxes[lane]
        info, record = connection.info, self.links.peer(connection.info.peer)

        def deliver(frame: memoryview) -> bool:
            if inbox.full(info.peer):
                return False
            info.useful_at, record.rejected_dials = trio.current_time(), 0
            within = record.bucket.take(1, info.useful_at)
            dropped = inbox.put(Inbound(info.peer, lane, frame)) if within else (info.peer,)
            for peer in dropped:
                self.links.peer(peer).traffic.frames_dropped += 1
            if info.peer not in dropped:
                record.traffic.bytes_received += len(frame)
            elif not record.dropped.take(1, info.useful_at):
                connection.violation = "frame_flood"
                connection.close()
                stream.reset()
            return True

        try:
            await read_frames(
                stream,
                lane,
                received,
                self._unfinished,
                deliver,
                room=partial(inbox.room, info.peer),
                known=record.known,
                longest=self._longest,
            )
        except FrameTooLong:
            connection.violation = "frame_too_long"
            connection.close()

    async def _outgoing(self, peer: str, record: PeerState, lane: Lane, size: int) -> Stream:
        for last in (False, True):
            connection = await self.dialler.connection(peer, record.everywhere)
            if not may_carry(connection.info, lane, size):
                raise PeerUnreachable(peer, f"its relay does not carry {size} bytes of the {lane} lane")
            stream = record.outgoing.pop(lane, None)
            if stream is not None and stream.connection is not connection:
                stream.finish()  # prefer the newer connection, which is likelier to be alive
                stream = None
            try:
                self.versions.check(peer, lane)
                if stream is None or stream.broken:
                    stream = await open_lane(connection, lane, self.versions.spoken)
            except HandshakeFailed as error:
                raise await self.versions.why_refused(connection, lane, str(error)) from None
            except StreamBroken:
                if last:
                    raise PeerUnreachable(peer, "connection lost") from None
            else:
                record.outgoing[lane] = stream
                return stream
        raise AssertionError("unreachable")
