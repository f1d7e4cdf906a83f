"""The node's control socket: sends the status and executes the owner's commands (protocol: `starling.node.status.control`).

Theory of operation: one task per connection, at most 16 of them. A connection sends request lines; `watch` is the last one it may
send, from then on it gets snapshots: one a second, and one soon after a change, at most four a second. A client that does not read
is dropped after two seconds, an idle one after a minute; the node waits for neither. The socket is bound under another
name, its permissions are restricted, and then it is renamed, so at no moment can other users open it.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.node import platform
from starling.node.daemon.events import Changes
from starling.node.interfaces import TaskStatus
from starling.node.status import control
from starling.node.status.snapshot import StatusSnapshot, encode

MAX_CONNECTIONS = 16
COMMANDS = ("leave", "stop", "pause", "resume", "limits", "evaluate", "export", "ban", "unban", "trust", "revoke")
WATCH_S = 1.0
CHANGE_S = 0.25
SLOW_S = 2.0
IDLE_S = 60.0

Command = Callable[[str, Mapping[str, object]], Awaitable[dict[str, object]]]


@dataclass(slots=True)
class ControlServer:
    """Serves one run directory's control socket."""

    run_dir: Path
    snapshot: Callable[[], StatusSnapshot]  # returns the current status, up to four times a second per watcher
    command: Command  # carries out a command -> the fields of the answer; a GossipError or OSError is sent as the error
    changes: Changes
    _connections: int = 0

    async def run(self, *, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once requests are answered.

        Raises ConfigError: another node runs in this directory, or the socket cannot be made.
        """
        listener, made = self._listen()
        try:
            async with trio.open_nursery() as nursery:
                streams = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
                nursery.start_soon(trio.serve_listeners, self.answer, [streams])
                task_status.started()
        finally:
            listener.close()
            path = self.run_dir / control.SOCKET_NAME
            with suppress(OSError):
                if path.stat().st_ino == made:
                    path.unlink()

    def _listen(self) -> tuple[socket.socket, int]:
        """Return a listening socket in the run directory, and its inode."""
        try:
            control.connect(self.run_dir).close()
        except control.NotRunning:
            pass
        except control.ControlError as error:
            raise ConfigError(f"--dir: {error}") from error
        else:
            raise ConfigError(
                f"--dir: a node is already running in {self.run_dir}; see `starling status --dir {control.typed(self.run_dir)}`"
            )
        name = f"{control.SOCKET_NAME}.{os.getpid()}"
        made = self.run_dir / name
        listener = platform.unix_socket()
        try:
            made.unlink(missing_ok=True)
            with control.socket_address(self.run_dir, name) as address:
                listener.bind(address)
            made.chmod(0o600)
            listener.listen(MAX_CONNECTIONS)
            inode = made.stat().st_ino
            made.replace(self.run_dir / control.SOCKET_NAME)
        except OSError as error:
            listener.close()
            with suppress(OSError):
                made.unlink()
            look = f"`ls -ld {control.typed(self.run_dir)}`"
            raise ConfigError(f"--dir: a node must be able to write {self.run_dir}: {error.strerror}; look with {look}") from error
        listener.setblocking(False)
        return listener, inode

    async def answer(self, stream: trio.SocketStream) -> None:
        """Answer the requests of a connection until it ends."""
        self._connections += 1
        try:
            async with stream:
                if self._connections > MAX_CONNECTIONS:
                    await _send(stream, _error(f"{MAX_CONNECTIONS} programs watch this node already; close one"))
                else:
                    await self._requests(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the client disconnected, or does not read
        finally:
            self._connections -= 1

    async def _requests(self, stream: trio.SocketStream) -> None:
        buffer = bytearray()
        while True:
            while (end := buffer.find(b"\n")) < 0:
                if len(buffer) > control.MAX_REQUEST_BYTES:
                    await _send(stream, _error(f"a request has at most {control.MAX_REQUEST_BYTES} bytes"))
                    return
                with trio.fail_after(IDLE_S):
                    chunk = await stream.receive_some()
                if not chunk:
                    return
                buffer += chunk
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            try:
                fields = msgspec.json.decode(line, type=dict[str, object])
            except (msgspec.DecodeError, ValueError, RecursionError):
                await _send(stream, _error("a request is one JSON object on one line"))
                return
            op = fields.pop("op", None)
            if op == "watch":
                await self._watch(stream)
            elif op == "status":
                await _send(stream, encode(self.snapshot()))
            else:
                await _send(stream, await self._answer(op, fields), shield=True)

    async def _watch(self, stream: trio.SocketStream) -> None:
        while True:
            changed = self.changes.event
            await _send(stream, encode(self.snapshot()))
            await trio.sleep(CHANGE_S)
            with trio.move_on_after(WATCH_S - CHANGE_S):
                await changed.wait()

    async def _answer(self, op: object, fields: Mapping[str, object]) -> bytes:
        if not isinstance(op, str) or op not in COMMANDS:
            return _error(f"op: must be one of status, watch, {', '.join(COMMANDS)}")
        needed = {"export": "path", "revoke": "peer"}.get(op)
        if needed is not None and not isinstance(fields.get(needed), str):
            return _error(f"{op}: needs {needed}, a string")
        try:
            result = await self.command(op, fields)
        except (GossipError, OSError) as error:
            return _error(str(error), wrong_input=isinstance(error, ConfigError))
        return msgspec.json.encode({"ok": True, **result}) + b"\n"


def _error(why: str, *, wrong_input: bool = False) -> bytes:
    return msgspec.json.encode({"ok": False, "error": why, **({"wrong_input": True} if wrong_input else {})}) + b"\n"


async def _send(stream: trio.SocketStream, line: bytes, *, shield: bool = False) -> None:
    """Write within a deadline, shielded from cancellation: the answer to `stop` goes out while the node is being cancelled."""
    with trio.fail_after(SLOW_S) as scope:
        scope.shield = shield
        await stream.send_all(line)
