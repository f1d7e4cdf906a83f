"""Inbound queues of a node: frames by lane, bounded per peer and read round-robin, and connection events."""

import trio

from starling.gossip.wire.schema import LANES, MAX_FRAME_BYTES, Lane
from starling.node.net.api import Connected, Disconnected, Inbound
from starling.node.net.round_robin import RoundRobin

MAX_EVENTS = 1024
IN_A_ROW = 16  # frames handled before other tasks run


class Inbox(trio.abc.ReceiveChannel[Inbound]):
    """Received frames of one lane. A noisy peer fills its own queue and does not delay other peers: reads are round-robin.

    At most `frames` are queued for one peer: await `room` to lose none. All together never exceed two of the largest that the lane
    allows: when these are full, the peer that holds most loses its newest frames to one that holds less.
    """

    def __init__(self, lane: Lane, frames: int) -> None:
        self._waiting: RoundRobin[Inbound] = RoundRobin(frames, 2 * MAX_FRAME_BYTES[lane])
        self._readers = trio.lowlevel.ParkingLot()
        self._waits: dict[str, trio.lowlevel.ParkingLot] = {}  # peers whose frames wait for space in the queue
        self._at_once = 0  # frames received while other tasks did not run
        self._closed = False

    def full(self, peer: str) -> bool:
        """Tell if the next frame of a peer would be dropped, as the peer's share of the queue is full."""
        return self._waiting.full(peer)

    async def room(self, peer: str) -> None:
        """Wait until there is space in the queue, which another frame may take first."""
        if self._waiting.full(peer):
            await self._waits.setdefault(peer, trio.lowlevel.ParkingLot()).park()

    def put(self, inbound: Inbound) -> tuple[str, ...]:
        """Queue a frame -> the peer of each frame that was dropped: the sender's own, or others' for lack of space."""
        if self._readers:
            self._readers.unpark_all()
        dropped = self._waiting.put(inbound.peer, inbound, len(inbound.frame))
        for peer in dropped:
            self._wake(peer)
        return dropped

    async def receive(self) -> Inbound:
        """Return the next frame. Other tasks run before more than IN_A_ROW are received. Raises EndOfChannel after `close`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._at_once >= IN_A_ROW:
            self._at_once = 0
            await trio.lowlevel.checkpoint()
        while not self._waiting and not self._closed:
            self._at_once = 0
            await self._readers.park()
        self._at_once += 1
        return self.receive_nowait()

    def receive_nowait(self) -> Inbound:
        """Return the next frame. Raises EndOfChannel after `close`, WouldBlock: there is none."""
        if self._closed:
            raise trio.EndOfChannel
        if not self._waiting:
            raise trio.WouldBlock
        inbound = self._waiting.take()
        self._wake(inbound.peer)
        return inbound

    def close(self) -> None:
        """Stop receiving frames."""
        self._closed = True
        self._readers.unpark_all()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def _wake(self, peer: str) -> None:
        if peer in self._waits:
            self._waits.pop(peer).unpark_all()


class Inboxes:
    """The part of a `Network` that is equal for all: id and queues, with at most `frames` of a peer and lane."""

    def __init__(self, peer_id: str, frames: int) -> None:
        self.peer_id = peer_id
        self._inboxes = {lane: Inbox(lane, frames) for lane in LANES}
        self._sender, self._events = trio.open_memory_channel[Connected | Disconnected](MAX_EVENTS)
        self._oldest = self._events.clone()

    def inbound(self, lane: Lane) -> Inbox:
        """Return the inbox of one lane."""
        return self._inboxes[lane]

    def events(self) -> trio.MemoryReceiveChannel[Connected | Disconnected]:
        """Return opened and closed connections. When full the oldest is dropped, since the newest describe the present."""
        return self._events

    def announce(self, event: Connected | Disconnected) -> None:
        """Add an event, dropping the oldest if the queue is full."""
        try:
            self._sender.send_nowait(event)
        except trio.WouldBlock:
            self._oldest.receive_nowait()
            self._sender.send_nowait(event)

    def close(self) -> None:
        """End the frames now, and the events after those queued."""
        for inbox in self._inboxes.values():
            inbox.close()
        self._sender.close()
        self._oldest.close()
