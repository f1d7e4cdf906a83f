"""Talking to a running node through its control socket. A leaf: the standard library and `starling.node.status.snapshot`, no event loop.

The socket is `control.sock` in the run directory, for its owner alone. One JSON line asks, JSON lines answer:

    {"op": "status"}              one snapshot
    {"op": "watch"}               a snapshot a second, sooner on a change
    {"op": "leave" | "stop" | "pause" | "resume" | "evaluate"}, {"op": "export", "path": …},
    {"op": "revoke" | "unban" | "trust", "peer": …}, {"op": "ban", "peer": …, "for_s": …, "why": …},
    {"op": "limits", "up_bytes_per_s": …, "down_bytes_per_s": …, "threads": …}
                                  {"ok": true, …} or {"ok": false, "error": …}, with "wrong_input": true if a field is wrong
"""

import json
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from starling.node import platform
from starling.node.status import snapshot as snapshots
from starling.node.status.snapshot import StatusSnapshot

SOCKET_NAME = "control.sock"
MAX_REQUEST_BYTES = 64 << 10
MAX_REPLY_BYTES = 16 << 20  # a snapshot of 50,000 members
MAX_ADDRESS_BYTES = 100  # sun_path has 108 bytes on Linux, 104 on macOS, with a final zero
REPLY_S = 300.0  # an evaluation of a large model on a slow machine
STATUS_S = 10.0
CHUNK_BYTES = 1 << 18
_OF_A_NODE = re.compile(r"`starling (resume|invite|peers|logs|status|doctor|ban|unban|trust)( [^`-]+)?`")


class ControlError(Exception):
    """A node could not be reached, or refused. The message is one line for a person."""


class WrongInput(ControlError):
    """The node refused because a field of the request is wrong, such as a peer that it does not know."""


class NotRunning(ControlError):
    """Raised when no node runs in that directory."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"no node is running in {run_dir}; start it with `starling run --dir {typed(run_dir)}`")


def typed(path: Path | str) -> str:
    """Return a path or another word as it must be typed in a shell, for messages that name the next command."""
    return shlex.quote(str(path))


def addressed(text: str, run_dir: Path) -> str:
    """Return a node's text with its directory in the commands that it suggests, as it does not know what its owner calls it."""
    return _OF_A_NODE.sub(lambda found: f"`starling {found[1]}{found[2] or ''} --dir {typed(run_dir)}`", text)


@contextmanager
def socket_address(run_dir: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """Yield a path of the socket that fits into a socket address, however deep the run directory is.

    Raises OSError: the directory cannot be opened, or its path is too long for this system.
    """
    path = run_dir / name
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    with platform.short_path(run_dir, name) as short:
        yield short


def connect(run_dir: Path) -> socket.socket:
    """Return a non-blocking connection to the node in `run_dir`.

    Raises NotRunning: nothing listens there; ControlError: something listens, but cannot be reached.
    """
    try:
        connection = platform.unix_socket()
    except platform.Unsupported as error:
        raise ControlError(f"cannot reach the node in {run_dir}: {error.strerror}") from error
    connection.setblocking(False)
    try:
        with socket_address(run_dir) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        match error:
            case FileNotFoundError() | ConnectionRefusedError() | NotADirectoryError():
                raise NotRunning(run_dir) from error
            case BlockingIOError():
                raise ControlError(f"the node in {run_dir} is too busy to answer; try again") from error
        raise ControlError(f"cannot reach the node in {run_dir}: {error.strerror}") from error
    return connection


class _Lines:
    """A connection on which one request was written, and answers are read line by line. Closed before a ControlError is raised."""

    def __init__(self, run_dir: Path, request: dict[str, object]) -> None:
        line = json.dumps(request).encode() + b"\n"
        if len(line) > MAX_REQUEST_BYTES:
            raise ControlError(f"a request has at most {MAX_REQUEST_BYTES} bytes, this one {len(line)}")
        self._run_dir, self._buffer, self._socket = run_dir, bytearray(), connect(run_dir)
        self._socket.settimeout(STATUS_S)
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may be waiting to be read: `receive` raises it
        except OSError as error:
            raise self._failed(f"does not accept requests: {error}") from error
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def receive(self, timeout_s: float) -> list[bytes]:
        """Complete lines; empty if none was complete within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while platform.readable(self._socket, timeout_s=max(0.0, deadline - time.monotonic())):
            ended = self._read()
            end = self._buffer.rfind(b"\n")
            if end >= 0:
                lines = bytes(self._buffer[:end]).split(b"\n")
                del self._buffer[: end + 1]
                for line in lines:
                    if line.startswith(b'{"ok":false'):
                        self.close()
                        answer = _answer(line, self._run_dir)
                        reason = addressed(str(answer.get("error", "the node refused without a reason")), self._run_dir)
                        raise WrongInput(reason) if answer.get("wrong_input") is True else ControlError(reason)
                return lines
            if ended:
                raise self._failed("went away")
        return []

    def _read(self) -> bool:
        """Read what has arrived into the buffer; True at the end of the stream."""
        try:
            while chunk := self._socket.recv(CHUNK_BYTES):
                self._buffer += chunk
                if len(self._buffer) > MAX_REPLY_BYTES:
                    raise self._failed(f"sends a line of more than {MAX_REPLY_BYTES >> 20} MiB")
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _failed(self, what: str) -> ControlError:
        self.close()
        return ControlError(f"the node in {self._run_dir} {what}")


class Watch(_Lines):
    """A running node's snapshots as they arrive. Never blocks without a timeout, so a UI's loop can use it.

    Raises ControlError: the node cannot be reached.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir, {"op": "watch"})

    def poll(self, timeout_s: float = 0.0) -> StatusSnapshot | None:
        """Return the newest snapshot that arrived since the last call; None if there is none within `timeout_s`.

        Raises ControlError: the node went away, refused, or has another version.
        """
        lines = self.receive(timeout_s)
        return _snapshot(lines[-1]) if lines else None


def watch(run_dir: Path) -> Iterator[StatusSnapshot]:
    """Snapshots of the node in `run_dir` for as long as it runs.

    Raises ControlError: it cannot be reached, went away, or sent nothing for ten seconds.
    """
    with Watch(run_dir) as connection:
        while (snapshot := connection.poll(STATUS_S)) is not None:
            yield snapshot
    raise ControlError(f"the node in {run_dir} sent nothing for {STATUS_S:.0f} s")


def status(run_dir: Path) -> StatusSnapshot:
    """Return one snapshot of the node in `run_dir`. Raises ControlError: it cannot be reached or did not answer within ten seconds."""
    return _snapshot(_ask(run_dir, {"op": "status"}, STATUS_S))


def request(run_dir: Path, op: str, *, timeout_s: float = REPLY_S, **fields: object) -> dict[str, object]:
    """Send a request to the node in `run_dir`; return the fields of its answer.

    leave, stop, pause, resume and evaluate take no fields, export `path`, revoke, ban, unban and trust `peer`, ban also `for_s` and `why`,
    limits any of `up_bytes_per_s`, `down_bytes_per_s` and `threads`.

    Raises WrongInput: a field is wrong; ControlError: it cannot be reached, refused, or did not answer in time.
    """
    answer = _answer(_ask(run_dir, {"op": op, **fields}, timeout_s), run_dir)
    return {key: value for key, value in answer.items() if key != "ok"}


def _ask(run_dir: Path, message: dict[str, object], timeout_s: float) -> bytes:
    with _Lines(run_dir, message) as connection:
        lines = connection.receive(timeout_s)
    if not lines:
        raise ControlError(f"the node in {run_dir} did not answer within {timeout_s:.0f} s")
    return lines[0]


def _answer(line: bytes, run_dir: Path) -> dict[str, object]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ControlError(f"the node in {run_dir} gave an answer that is not JSON")
    return answer


def _snapshot(line: bytes) -> StatusSnapshot:
    try:
        return snapshots.decode(line)
    except ValueError as error:
        raise ControlError(str(error)) from error
