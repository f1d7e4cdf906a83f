"""States of stages to the machines that keep them, and back."""

from collections.abc import Callable
from contextlib import suppress

import trio

from starling.gossip.errors import EngineError
from starling.gossip.pipeline.crew_commands import GiveState, PushState
from starling.node.extras.crew.daemon.lines import Lines
from starling.node.interfaces import EngineHandle
from starling.node.rpc import calls


class StateSender:
    """Sends states over a crew's lines; `pushed` is called when one of this stage's own was sent, or could not be."""

    def __init__(self, lines: Lines, engine: EngineHandle, pushed: Callable[[], object]) -> None:
        self._lines, self._engine, self._pushed = lines, engine, pushed
        self._push, self._pushes = trio.open_memory_channel[PushState](1)

    async def give(self, give: GiveState) -> None:
        """Send a copy that is stored here back to its stage."""

        async def read(offset: int, length: int) -> bytes:
            return give.state[offset : offset + length]

        await self._lines.state(give.peer, give.stage, give.step, len(give.state), read)

    def push(self, push: PushState) -> None:
        """Send a state of this stage soon; the machine has one under way at a time."""
        self._push.send_nowait(push)

    async def serve(self) -> None:
        """Send states of this stage to the peer that stores copies, until cancelled."""
        async for push in self._pushes:

            async def read(offset: int, length: int, step: int = push.step) -> bytes:
                reply = await self._engine.call(calls.ReadPoint(step, offset, length))
                return reply.data if isinstance(reply, calls.ChunkRead) else b""

            with suppress(EngineError):  # the state is copied after the next meeting
                found = await self._engine.call(calls.ReadPoint(push.step, 0, 0))
                if isinstance(found, calls.ChunkRead):
                    await self._lines.state(push.peer, push.stage, push.step, found.size, read)
            self._pushed()
