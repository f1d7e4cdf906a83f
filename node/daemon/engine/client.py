"""Handle of the engine process: calls and replies over a pipe.

One task writes frames, one reads them; a call puts its frame in the writer's queue and waits for the reply with its id. So a
cancelled call never leaves half a frame on the pipe: its frame is still sent and its reply discarded. When the process
ends, every pending and later call raises EngineError; the supervisor starts a new engine.
The child ends by itself when its end of the pipe closes, so it never outlives a daemon, not even one that was killed.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from starling.gossip.errors import EngineError, LocalProtocolError
from starling.node import forks, platform
from starling.node.forks import Forked
from starling.node.rpc import pipe
from starling.node.rpc.calls import Reply, Request

QUEUED_FRAMES = 64  # calls in the pipe's queue before further callers wait
_REAP_S = 5.0  # seconds for the exit status of a child that closed its pipe


class ProcessEngine:
    """A running engine process; satisfies `starling.node.interfaces.EngineHandle`. Made by `open_engine`."""

    def __init__(self, process: trio.Process | Forked, stream: trio.SocketStream) -> None:
        self._process = process
        self._stream = stream
        self._queue, self._outgoing = trio.open_memory_channel[bytearray](QUEUED_FRAMES)
        self._waiting: dict[int, trio.Event] = {}
        self._replies: dict[int, Reply] = {}
        self._calls = 0
        self._end: EngineError | None = None  # error that every call raises once the engine has ended

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """Return why the engine ended, in one line; None while it runs."""
        return None if self._end is None else str(self._end)

    async def call(self, request: Request) -> Reply:
        """Send one call and return its reply. Raises EngineError: the engine has ended, or ended before it replied."""
        if self._end is not None:
            raise self._gone()
        self._calls += 1
        call_id = self._calls
        done = self._waiting[call_id] = trio.Event()
        try:
            await self._queue.send(pipe.encode(call_id, request))
            await done.wait()
        except trio.BrokenResourceError as error:
            raise self._gone() from error
        finally:
            del self._waiting[call_id]
            reply = self._replies.pop(call_id, None)
        if reply is None:
            raise self._gone()
        return reply

    def kill(self) -> None:
        """End the process at once, e.g. when it does not answer. Pending calls raise EngineError."""
        self._process.kill()

    async def run(self) -> None:
        """Transfer frames until the child closes its end of the pipe."""
        try:
            async with concurrent(self._write):
                await self._read()
        except LocalProtocolError as error:
            self._end = EngineError(f"the engine broke the pipe: {error}")
        finally:
            self._end = self._end or EngineError("the engine was closed")
            self._outgoing.close()
            for done in self._waiting.values():
                done.set()

    def _gone(self) -> EngineError:
        end = self._end or EngineError("the engine ended")
        return EngineError(str(end), end.place, refused=end.refused)  # a new exception for each call, as it carries that call's traceback

    async def _write(self) -> None:
        async for frame in self._outgoing:
            try:
                await self._stream.send_all(memoryview(frame))
            except trio.BrokenResourceError:
                return  # the reading task sees the end too, and knows the reason

    async def _read(self) -> None:
        while (header := await self._receive(pipe.HEADER.size)) is not None:
            body = await self._receive(pipe.body_bytes(header))
            if body is None:
                break
            call_id, reply = pipe.decode_reply(body)
            if isinstance(reply, pipe.Failed):
                self._end = _breakdown(reply)
                return
            if (done := self._waiting.get(call_id)) is not None:
                self._replies[call_id] = reply
                done.set()
        with trio.move_on_after(_REAP_S):
            await _ended(self._process)
        self._end = EngineError(f"the engine process ended with {_status(self._process.returncode)}")

    async def _receive(self, count: int) -> bytearray | None:
        """Return exactly `count` bytes, or None at the end of the stream."""
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            try:
                received = await self._stream.socket.recv_into(view)
            except (OSError, trio.ClosedResourceError):
                return None
            if not received:
                return None
            view = view[received:]
        return buffer


@asynccontextmanager
async def open_engine() -> AsyncIterator[ProcessEngine]:
    """Start an engine process; on leaving it is killed and reaped. Its first call must be `Open`.

    Raises EngineError: the machine has no room for another process.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            try:
                process = await _start(theirs)
            except OSError as error:
                raise EngineError(f"the engine process cannot be started: {error}") from error
        engine = ProcessEngine(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        try:
            async with concurrent(engine.run):
                yield engine
        finally:
            engine.kill()
            with trio.CancelScope(shield=True):
                await _ended(process)


async def _start(sock: socket.socket) -> trio.Process | Forked:
    if forks.FOLDER in os.environ:
        return await trio.to_thread.run_sync(forks.engine, Path(os.environ[forks.FOLDER]), sock)
    return await trio.lowlevel.open_process(
        # -P: a file in the daemon's working directory never shadows a module of ours
        [sys.executable, "-P", "-m", "starling.node.engine.process", str(sock.fileno())],
        stdin=subprocess.DEVNULL,
        **platform.inheriting(sock.fileno()),
    )


async def _ended(process: trio.Process | Forked) -> None:
    if isinstance(process, trio.Process):
        await process.wait()
    elif process.poll() is None:
        await trio.lowlevel.wait_readable(process.fileno())
        process.poll()


@asynccontextmanager
async def concurrent(service: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `service` while the body runs. An error of the body is raised as it is, not wrapped in a group."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


def _breakdown(failed: pipe.Failed) -> EngineError:
    if failed.refused:
        return EngineError(failed.message, refused=True)
    during = f" in {failed.during}" if failed.during else ""
    place = f"{failed.during}, {failed.place}" if failed.during and failed.place else ""
    return EngineError(f"the engine broke down{during}: {failed.message}", place)


def _status(returncode: int | None) -> str:
    if returncode is None:
        return "its pipe closed but still running"
    killed = " (the kernel sends it where memory runs out)" if platform.out_of_memory(returncode) else ""
    return f"signal {-returncode}{killed}" if returncode < 0 else f"exit status {returncode}"
