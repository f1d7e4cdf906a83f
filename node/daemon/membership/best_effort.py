"""Messages of the control lane that nobody waits for: sent beside everything else, dropped where too many wait for one peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Message
from starling.node.interfaces import TaskStatus
from starling.node.net.api import Network

SEND_S = 5.0
MAX_SENDING = 8
"""Sendings under way to one peer; more are dropped."""


class BestEffort:
    """What one service sends. Until it serves, and after, nothing is sent.

    Args:
        network: to send.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._sending: Counter[str] = Counter()
        self._nursery: trio.Nursery | None = None

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run something beside the rest, while we serve."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def send_soon(self, peer: str, message: Message) -> None:
        """Send, some time soon; what cannot be sent is lost."""
        if self._nursery is not None and self._sending[peer] < MAX_SENDING:
            self._sending[peer] += 1
            self._nursery.start_soon(partial(self._send_counted, peer, message))

    async def _send_counted(self, peer: str, message: Message) -> None:
        try:
            await self.send(peer, message)
        finally:
            self._sending[peer] -= 1
            if not self._sending[peer]:
                del self._sending[peer]

    async def send(self, peer: str, message: Message) -> None:
        """Send now; what cannot be sent within SEND_S is lost."""
        try:
            with trio.move_on_after(SEND_S):
                await self._network.send(peer, "control", encode(message))
        except PeerUnreachable:
            return
