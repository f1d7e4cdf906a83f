"""Control-lane messages that need no answer: sent in the background, dropped if too many wait for one peer or it cannot be reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Message
from starling.node.interfaces import TaskStatus
from starling.node.net.api import Network
from starling.node.net.round_robin import RoundRobin

SEND_S = 5.0
MAX_QUEUED = 1024  # queued messages to all peers together; when full, the peer with the most loses its newest
MAX_SENDING = 8  # messages being sent to one peer; more are dropped


class BestEffort:
    """Sends one service's messages, each in a task of its own and `per_peer` at a time to one, while it serves.

    `unreachable` is called with a peer to which a message could not be sent.
    """

    def __init__(self, network: Network, *, per_peer: int = MAX_SENDING, unreachable: Callable[[str], object] = lambda _peer: None) -> None:
        self._network = network
        self._per_peer = per_peer
        self._unreachable = unreachable
        self._sending: Counter[str] = Counter()
        self._waiting: RoundRobin[tuple[str, Message]] = RoundRobin(MAX_QUEUED, MAX_QUEUED)
        self._queued = trio.Event()

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send queued messages until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._queued.wait()
                self._queued = trio.Event()
                while self._waiting:
                    peer, message = self._waiting.take()
                    if self._sending[peer] < self._per_peer:
                        self._sending[peer] += 1
                        nursery.start_soon(self._send_counted, peer, message)

    def send_soon(self, peer: str, message: Message) -> None:
        """Queue a message; one that cannot be sent is lost."""
        self._waiting.put(peer, (peer, message), 1)
        self._queued.set()

    async def send(self, peer: str, message: Message) -> None:
        """Send now; a message that cannot be sent within SEND_S is lost."""
        try:
            with trio.move_on_after(SEND_S):
                await self._network.send(peer, "control", encode(message))
        except PeerUnreachable:
            self._unreachable(peer)

    async def _send_counted(self, peer: str, message: Message) -> None:
        try:
            await self.send(peer, message)
        finally:
            self._sending[peer] -= 1
            if not self._sending[peer]:
                del self._sending[peer]
