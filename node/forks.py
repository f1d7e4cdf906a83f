"""Processes of a local swarm, forked from two that have imported everything nodes and engines need: they start at once and share memory.

    starter ── python -m starling.node.forks FOLDER ──> server of nodes ──> server of engines
                                                            ├──> node, asks the other server for its engine
                                                            └──> node …

A request is one message with descriptors on a new connection to FOLDER/KIND; it is answered by a pidfd, and by the exit status at the end.
Servers end with their standard input, thus with whoever started them, and take FOLDER with them if that was killed; what they forked lives
on. Linux has the pidfds that this needs.
"""

import gc
import importlib
import os
import select
import selectors
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Literal, Self

from msgspec import msgpack

from starling.node import platform

Kind = Literal["node", "engine"]
FOLDER = "STARLING_FORKS"  # environment variable of nodes: where the servers listen
_MAINS = {"node": "starling.node.cli.main", "engine": "starling.node.engine.process"}
_NEEDED = {
    "node": ("starling.node.cli.run", "starling.node.daemon.main"),
    "engine": ("starling.node.engine.worker", "torch._dynamo"),  # loaded by torch.optim on first use
}
_MOST_FDS, _MOST_BYTES = 8, 1 << 16
_ASK_S = 180.0  # seconds for a server that is importing from a slow disk
UNKNOWN = 255  # exit status of a process whose server is gone


def available() -> bool:
    """Return whether this machine can fork nodes."""
    return platform.CAN_FORK


class Forked:
    """A process forked by a server, with the part of `subprocess.Popen` that is used of it.

    Args:
        kind: node or engine.
        folder: where the servers listen.
        arguments: of its entry point.
        stdio: descriptors of its standard input, output and error.
        keep: further descriptors of ours that it gets, under numbers that its arguments say by "{0}", "{1}", ….
        stdin: our end of its standard input, if that is a pipe.

    Raises OSError: no server answers.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        arguments: Sequence[str],
        stdio: tuple[int, int, int],
        keep: Sequence[int] = (),
        stdin: IO[bytes] | None = None,
    ) -> None:
        self.stdin = stdin
        self.returncode: int | None = None
        with ExitStack() as failed:
            self._line = failed.enter_context(platform.unix_socket(socket.SOCK_SEQPACKET))
            self._line.settimeout(_ASK_S)
            self._line.connect(str(folder / kind))
            platform.send_files(self._line, msgpack.encode(list(arguments)), [*stdio, *keep])
            answer, fds = platform.receive_files(self._line, 64, 1)
            if not fds:
                raise ConnectionResetError(f"the server of forked {kind}s is gone")
            failed.pop_all()
        self.pid, self._pidfd = int(answer), fds[0]

    def fileno(self) -> int:
        """Return a descriptor that is readable once the process has ended."""
        return self._pidfd

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None and select.select([self._pidfd], [], [], 0.0)[0]:
            status = b""
            with suppress(OSError):
                status = self._line.recv(64)
            self.returncode = int(status) if status else UNKNOWN
            self._line.close()
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status at the end; subprocess.TimeoutExpired if that has not come within `timeout` seconds."""
        if self.returncode is None:
            select.select([self._pidfd], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def kill(self) -> None:
        """Send SIGKILL; do nothing if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                platform.kill(self._pidfd)


class Servers:
    """Both servers; a context manager. `folder` gets their sockets and is readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the first server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Return once both listen, which is before they have imported anything."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "starling.node.forks", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, FOLDER: str(self.folder)},
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process is not None
        with self._process as process, suppress(ProcessLookupError):
            # Both end at once: a process that still imports torch would notice the end of its standard input seconds later.
            platform.kill_session(process.pid)

    def node(self, arguments: Sequence[str], output: int) -> Forked:
        """Return a node with the arguments of `starling`, which writes to a descriptor of ours and ends when its standard input closes."""
        read, write = os.pipe()
        stdin = os.fdopen(write, "wb")
        try:
            return Forked("node", self.folder, arguments, (read, output, output), stdin=stdin)
        except OSError:
            stdin.close()
            raise
        finally:
            os.close(read)


def engine(folder: Path, sock: socket.socket) -> Forked:
    """Return an engine for the node that calls this, at the other end of `sock`; it writes where the node does."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 — a descriptor
        return Forked("engine", folder, ["{0}"], (nothing.fileno(), 2, 2), [sock.fileno()])


class _Server:
    def __init__(self, kind: Kind, listener: socket.socket) -> None:
        self._kind = kind
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, and the requester's socket

    def serve(self) -> None:
        """Serve until standard input ends."""
        for name in _NEEDED[self._kind]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # so that garbage collection in children does not copy shared memory
        while True:
            for key, _events in self._selector.select():
                if key.fd == 0:
                    return
                if key.fileobj is self._listener:
                    self._fork()
                else:
                    self._reap(key.fd)

    def _fork(self) -> None:
        asker, _from = self._listener.accept()
        message, fds = platform.receive_files(asker, _MOST_BYTES, _MOST_FDS)
        if not message:
            asker.close()
            return
        if not (pid := platform.fork()):
            self._become(msgpack.decode(message, type=list[str]), fds, asker)
        for fd in fds:
            os.close(fd)
        pidfd = platform.process_descriptor(pid)
        self._children[pidfd] = pid, asker
        self._selector.register(pidfd, selectors.EVENT_READ)
        with suppress(OSError):  # the requester has gone
            platform.send_files(asker, str(pid).encode(), [pidfd])

    def _reap(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        pid, asker = self._children.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError), asker:
            asker.send(str(code).encode())
        os.close(pidfd)

    def _become(self, arguments: list[str], fds: list[int], asker: socket.socket) -> None:
        """Drop the server's resources in the child, and never return to the server."""
        code = 1
        try:
            platform.begin_session()
            self._selector.close()
            for sock in (self._listener, asker, *(each for _, each in self._children.values())):
                sock.close()
            for pidfd in self._children:
                os.close(pidfd)
            for number, fd in enumerate(fds[:3]):
                os.dup2(fd, number)
                os.close(fd)
            sys.argv[1:] = [argument.format(*fds[3:]) for argument in arguments]
            code = importlib.import_module(_MAINS[self._kind]).main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 — as the interpreter does with what nobody handles
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # an orderly exit would be the server's


def _remove(folder: Path) -> None:
    """Delete the sockets, and the folder if it holds nothing else: who started the servers was killed, and did not do it."""
    with suppress(OSError):
        for kind in _MAINS:
            (folder / kind).unlink(missing_ok=True)
        folder.rmdir()


def main() -> None:
    """Entry point of the servers."""
    listeners: dict[Kind, socket.socket] = {}
    for kind in ("node", "engine"):
        listeners[kind] = listener = platform.unix_socket(socket.SOCK_SEQPACKET)
        listener.bind(str(Path(sys.argv[1]) / kind))
        listener.listen(64)
    print(flush=True)  # noqa: T201 — to who started us: both listen
    os.dup2(2, 1)
    mine: Kind = "node" if platform.fork() else "engine"
    for kind, listener in listeners.items():
        if kind != mine:
            listener.close()
    _Server(mine, listeners[mine]).serve()
    _remove(Path(sys.argv[1]))
    os._exit(0)  # there is nothing to store, and an orderly exit of torch takes half a second


if __name__ == "__main__":
    main()
