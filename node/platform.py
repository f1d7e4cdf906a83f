"""Functions that differ between systems, under one name each. The standard library only; no other part checks the system.

Linux has all of it. macOS has no process descriptors and no paths to open folders; a file in memory and room on a disk are had in another
way. Windows has none of: sockets in the file system, descriptors that travel over sockets, forks, and children that inherit a socket. So a
node does not start there, and `Unsupported` says so in one line; what reads files works. On Windows nothing of this has been run.
"""

import errno
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ZEROS = bytes(1 << 20)

CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether this system can fork nodes, and has the process descriptors by which they are watched."""


class Unsupported(OSError):
    """Raised if this system lacks a required feature."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.ENOTSUP, f"this system has no {what}; on Windows run Starling in WSL")


LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""The network interface of this machine itself."""


# Waiting


def readable(*sources: socket.socket | int, timeout_s: float | None = 0.0) -> bool:
    """Wait until one of these sockets or descriptors is readable or closed; None: no timeout. Return whether one is."""
    if sys.platform == "win32":
        return bool(select.select(sources, [], [], timeout_s)[0])
    poll = select.poll()  # a poll object must be used by one thread at a time
    for each in sources:
        poll.register(each, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000.0 * timeout_s))


def closes(pipe: int, within_s: float) -> bool:
    """Wait so long, or until the reader of a pipe has closed it. Returns whether it has; on Windows that shows when it is written to."""
    if sys.platform == "win32":
        time.sleep(within_s)
        return False
    poll = select.poll()
    poll.register(pipe, 0)  # errors are always reported
    return bool(poll.poll(1000.0 * within_s))


# Sockets in the file system


def unix_socket(kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a new Unix socket. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("Unix sockets")
    return socket.socket(socket.AF_UNIX, kind)


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """Yield a short path of `name` in a folder that lies deep, through /proc/self/fd, which the kernel resolves when it binds or connects.

    Raises OSError: the folder cannot be opened, or the system has no such paths.
    """
    if sys.platform == "linux":
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{handle}/{name}"
        finally:
            os.close(handle)
    else:
        why = "the path is too long for a socket; choose a shorter --dir"
        raise OSError(errno.ENAMETOOLONG, why, str(folder / name))


def send_files(sock: socket.socket, data: bytes, files: Sequence[int]) -> int:
    """Send bytes, and open files with them. Returns how many bytes went. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("sockets that carry files")
    return socket.send_fds(sock, [data], list(files))


def receive_files(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive at most `size` bytes, and the descriptors of at most `most` files that came with them. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("sockets that carry files")
    data, files, _, _ = socket.recv_fds(sock, size, most)
    return data, files


def has_hung_up(descriptor: int) -> bool:
    """Tell if the other end of a connection has closed it, where the system says so while there is still something to read."""
    if sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


# Processes


def inheriting(*descriptors: int) -> Mapping[str, Any]:
    """Return the arguments with which a child process is started that inherits these descriptors. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("children that inherit a socket")
    return {"pass_fds": descriptors}


def fork() -> int:
    """Fork this process. Returns the child's number, 0 in the child. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("forks")
    return os.fork()


def process_descriptor(pid: int) -> int:
    """Return a descriptor of a child, readable at its end. Raises OSError."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise Unsupported("process descriptors")


def kill(descriptor: int) -> None:
    """Kill the process of a descriptor. Raises OSError: it has ended."""
    if sys.platform == "linux":
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    else:
        raise Unsupported("process descriptors")


def begin_session() -> None:
    """Make this process the leader of a new session, which a closed terminal does not end. Raises OSError."""
    if sys.platform == "win32":
        raise Unsupported("sessions")
    os.setsid()


def kill_session(pid: int) -> None:
    """Kill a process that was started as leader of a session, with its children. Raises OSError: it has ended."""
    if sys.platform == "win32":
        os.kill(pid, signal.SIGTERM)  # on Windows this ends the process at once
    else:
        os.killpg(pid, signal.SIGKILL)


def lower_priority(by: int) -> None:
    """Lower the priority of this process by 0 … 19; later threads inherit it, and on Linux existing ones are lowered too."""
    if sys.platform == "win32":
        return
    to = os.nice(by)
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), to)


def usable_cores() -> set[int]:
    """Return the cores that this process may use; all of the machine, where that cannot be asked."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def keep_to(pid: int, cores: Iterable[int]) -> None:
    """Let a process use these cores only, where one can choose."""
    if sys.platform == "linux":
        os.sched_setaffinity(pid, cores)


# Signals


def hangup() -> signal.Signals | None:
    """Return the signal of a closed terminal, or None where there is none."""
    if sys.platform == "win32":
        return None
    return signal.SIGHUP


HANGUP = hangup()
"""That of this system."""
ENDING = (signal.SIGINT, signal.SIGTERM, *(() if HANGUP is None else (HANGUP,)))
"""Signals that end a program in order."""


def out_of_memory(returncode: int) -> bool:
    """Return whether a process may have ended so because memory ran out: it was killed."""
    return sys.platform != "win32" and returncode == -signal.SIGKILL


def block_interrupt() -> None:
    """Keep Ctrl-C from this thread, and from processes that it starts."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


# Files and memory

if sys.platform == "win32":
    ONLY_HERE = os.O_BINARY | os.O_NOINHERIT
else:
    ONLY_HERE = os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `os.open`: no link is followed, no child inherits the descriptor."""


def owner_only(descriptor: int) -> None:
    """Give an open file mode 0600. Raises OSError: it has another owner, or none has modes."""
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)


def read_at(descriptor: int, count: int, at: int) -> bytes:
    """Return at most so many bytes of a file from a place on; one thread at a time. Raises OSError."""
    if sys.platform == "win32":
        os.lseek(descriptor, at, os.SEEK_SET)
        return os.read(descriptor, count)
    return os.pread(descriptor, count, at)


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write all bytes to a file from a place on; one thread at a time. Raises OSError."""
    done = 0
    while done < len(data):
        if sys.platform == "win32":
            os.lseek(descriptor, at + done, os.SEEK_SET)
            done += os.write(descriptor, data[done:])
        else:
            done += os.pwrite(descriptor, data[done:], at + done)


def allocate(descriptor: int, size: int) -> None:
    """Give a file room on the disk for so many bytes: else a full disk would end the process when a mapped page is written.

    Raises OSError: there is not so much.
    """
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
        return
    for at in range(os.fstat(descriptor).st_size, size, len(_ZEROS)):
        write_at(descriptor, _ZEROS[: size - at], at)


def drop_pages(pages: mmap.mmap) -> None:
    """Take the pages of a mapped file out of memory until they are looked at again, where one can: what was written stays in the file."""
    if sys.platform != "win32":
        pages.madvise(mmap.MADV_DONTNEED)


def nameless_file(folder: Path | None) -> int:
    """Return the descriptor of a new file without a name: in memory where the system can do that, else in `folder`. Raises OSError."""
    if sys.platform == "linux":
        return os.memfd_create("starling", os.MFD_CLOEXEC)
    file, name = tempfile.mkstemp(prefix="starling-", dir=folder)
    os.unlink(name)  # noqa: PTH108 - a name, not a path
    return file


def address_space() -> int | None:
    """Return the bytes of address space that this process may have, as `ulimit -v` and LimitAS= of a unit set it; None: any number."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 — not on Windows

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def asleep_s() -> float:
    """Return the seconds for which the machine slept since it booted, and its monotonic clock stood; 0 where it does not say."""
    if sys.platform != "linux":
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
