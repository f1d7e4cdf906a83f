"""Frames and states on their way to the other stages of a crew."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from starling.gossip.errors import TransportError
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Piece
from starling.gossip.wire.schema import Crew as Frame
from starling.node.net.api import Network

SEND_S = 30.0  # a peer that takes no frame for so long is unreachable
MAX_FRAMES = 512  # waiting to be sent to one peer
PAUSE_S = 0.1  # seconds to wait after a frame that could not be sent

Read = Callable[[int, int], Awaitable[bytes]]
"""Returns bytes of a state, given offset and length."""


@dataclass(slots=True)
class _Queue:
    """Frames that wait to be sent to one peer, the first of them perhaps on its way."""

    frames: list[Frame] = field(default_factory=list)
    added: trio.Event = field(default_factory=trio.Event)


class Lines:
    """One queue per peer: frames arrive in order, or are lost. The machine asks again for what it misses."""

    def __init__(self, network: Network, crew: Callable[[], bytes]) -> None:
        """`crew` returns the current name of the crew; frames of another one are dropped."""
        self._network, self._crew = network, crew
        self._queues: dict[str, _Queue] = {}
        self._nursery: trio.Nursery | None = None  # None: nothing is sent yet, or sending has ended

    async def serve(self) -> None:
        """Send what is queued, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def send(self, peer: str, frame: Frame) -> None:
        """Queue a frame for a peer, unless it waits already: on a slow line a result is asked for before it has arrived."""
        if self._nursery is None:
            return
        if peer not in self._queues:
            self._queues[peer] = _Queue()
            self._nursery.start_soon(self._carry, peer, self._queues[peer])
        queue = self._queues[peer]
        if len(queue.frames) < MAX_FRAMES and frame not in queue.frames:
            queue.frames.append(frame)
            queue.added.set()

    async def state(self, peer: str, stage: int, step: int, size: int, read: Read) -> None:
        """Send the `size` bytes of a stage's state; stop if no more can be read or sent."""
        crew, offset = self._crew(), 0
        with suppress(TransportError, trio.TooSlowError):  # the next meeting reports missing states
            while offset < size and (data := await read(offset, MAX_CHUNK_BYTES)):
                await self._deliver(peer, Piece(crew, stage, step, size, offset, data))
                offset += len(data)

    async def _carry(self, peer: str, queue: _Queue) -> None:
        while True:
            await queue.added.wait()
            queue.added = trio.Event()
            while queue.frames:
                if queue.frames[0].crew == self._crew():
                    try:
                        await self._deliver(peer, queue.frames[0])
                    except (TransportError, trio.TooSlowError):
                        await trio.sleep(PAUSE_S)
                del queue.frames[0]

    async def _deliver(self, peer: str, frame: Frame) -> None:
        with trio.fail_after(SEND_S):
            await self._network.send(peer, "crew", encode(frame))
