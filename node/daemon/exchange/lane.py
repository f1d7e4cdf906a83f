"""What both exchange services do alike: take frames in, start tasks that live no longer than they do, wake who waits for something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from starling.gossip.errors import RemoteProtocolError
from starling.node.interfaces import Reporter, TaskStatus
from starling.node.net.api import Network


class Reception:
    """The exchange lane of one node.

    Args:
        network, report: the node's.
    """

    def __init__(self, network: Network, report: Reporter) -> None:
        self._network = network
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._moved = trio.Event()

    async def serve(
        self, receive: Callable[[str, bytes], None], *beside: Callable[[], Awaitable[None]], task_status: TaskStatus
    ) -> None:
        """Hand (peer, frame) to `receive` until cancelled, and run `beside`. A RemoteProtocolError is the peer's fault, no more."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in beside:
                nursery.start_soon(task)
            try:
                task_status.started()
                async for inbound in self._network.inbound("exchange"):
                    try:
                        receive(inbound.peer, inbound.frame)
                    except RemoteProtocolError as error:
                        self._report.fault(error.peer, error.reason)
                    self.move()
            finally:
                self._nursery = None

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task; nothing happens where the service is stopping: there is no more work."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def move(self) -> None:
        """Something happened that a round may wait for."""
        self._moved.set()
        self._moved = trio.Event()

    async def moved(self) -> None:
        """Wait for the next move."""
        await self._moved.wait()
