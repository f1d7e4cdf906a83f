"""Cables between network namespaces that are as slow, long and lossy as wanted, whatever the kernel has: for root, with /dev/net/tun.

A cable is a TAP device at either end, in a namespace each, and a process between them that reads a frame here and writes it there when it
is due. One process carries all cables of a `cabled` block; their ends are gone with it. A frame costs that process about 20 us, whatever
its size: lines of 1 Gbit/s want `mtu` in the ten thousands.
"""

import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

DEVICE = Path("/dev/net/tun")
HOME = Path("/proc/thread-self/ns/net")
SET_INTERFACE, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002  # TUNSETIFF, IFF_TAP | IFF_NO_PI
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET
READ_AT_ONCE = 64  # frames of one end, before the others have their turn
TICK_S = 5e-4  # the least between two looks at what is due: as much precision for half of the processor time
HEADER_BYTES = 14  # of Ethernet, beside the MTU


@dataclass(frozen=True, slots=True)
class Line:
    """What a cable does to what is sent over it, each way by itself.

    Args:
        mbit: rate, in 10^6 bits of frames a second.
        delay_ms: from the last bit sent to its arrival, so half of what a round trip takes.
        loss: share of the frames that get lost, 0 to 1.
        queue_ms: a frame that would wait longer than this for the line to be free is lost.
        mtu: of the devices.
    """

    mbit: float
    delay_ms: float = 0.0
    loss: float = 0.0
    queue_ms: float = 100.0
    mtu: int = 1500


End = tuple[str, str]
"""A namespace, and the name of a device that is made there."""


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ends, and what is between."""

    ends: tuple[End, End]
    line: Line


@dataclass(slots=True)
class Direction:
    """One way of a line: which frames arrive, and when. Frames do not overtake each other."""

    line: Line
    chance: random.Random
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    _free_at: float = 0.0

    def send(self, frame: bytes, now: float) -> None:
        """A frame enters at `now`, in seconds, which never goes back."""
        begins = max(now, self._free_at)
        if begins - now > self.line.queue_ms / 1e3:
            return
        self._free_at = begins + len(frame) * 8e-6 / self.line.mbit
        if self.chance.random() >= self.line.loss:
            self.under_way.append((self._free_at + self.line.delay_ms / 1e3, frame))

    def arrived(self, now: float) -> Iterator[bytes]:
        """What has come to the other end by now, and is no longer under way."""
        while self.under_way and self.under_way[0][0] <= now:
            yield self.under_way.popleft()[1]

    def due(self) -> float:
        """When the next arrives; infinite: none is under way."""
        return self.under_way[0][0] if self.under_way else float("inf")


@contextmanager
def cabled(cables: Sequence[Cable], seed: int = 1) -> Iterator[None]:
    """Lay cables between namespaces that exist; their devices are there and up, without addresses. Skips where that cannot be done."""
    if os.geteuid() != 0 or not DEVICE.exists():
        pytest.skip(f"needs root and {DEVICE}")
    words = [sys.executable, "-m", "tests.harness.cables", str(seed)]
    with subprocess.Popen(words, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdin.write(msgspec.json.encode(cables) + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"laid\n", "cables could not be laid"
            yield
            assert process.poll() is None, "what carries the frames has ended"
        finally:
            process.kill()


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """What this thread opens and starts until the block ends is in that network namespace."""
    with HOME.open("rb") as home, Path("/run/netns", namespace).open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, NETWORK_NAMESPACE):
        raise OSError(ctypes.get_errno(), "setns")


def _end(namespace: str, device: str, mtu: int) -> int:
    """Make a device there, up. -> its file descriptor, of which a read is one frame"""
    with inside(namespace):
        end = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, SET_INTERFACE, struct.pack("16sH22x", device.encode(), TAP_WITHOUT_HEADER))
        words = ["ip", "link", "set", device, "mtu", str(mtu), "txqueuelen", "10000", "up"]
        subprocess.run(words, check=True, timeout=20)
    return end


def _carry(ways: Sequence[tuple[int, Direction, int]]) -> None:
    """Move frames from each first end to its second one until standard input closes, as when the test is killed."""
    by_end = {source: (direction, HEADER_BYTES + direction.line.mtu) for source, direction, _ in ways}
    ends = [*by_end, sys.stdin.fileno()]
    while True:
        wait_s = min(direction.due() for _, direction, _ in ways) - time.monotonic()
        wait_s = None if wait_s == float("inf") else max(0.0, wait_s)
        for source in select.select(ends, (), (), wait_s)[0]:
            if source not in by_end:
                return
            direction, size = by_end[source]
            now = time.monotonic()
            with suppress(BlockingIOError):
                for _ in range(READ_AT_ONCE):
                    direction.send(os.read(source, size), now)
        now = time.monotonic()
        for _, direction, to in ways:
            for frame in direction.arrived(now):
                with suppress(OSError):  # the device is down, which loses what is sent to it
                    os.write(to, frame)
        time.sleep(TICK_S)


def main() -> None:
    """Lay the cables that standard input tells of, say so, and carry."""
    cables = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[Cable, ...])
    seeds, ways = random.Random(int(sys.argv[1])), []
    for cable in cables:
        here, there = (_end(*end, cable.line.mtu) for end in cable.ends)
        for source, to in ((here, there), (there, here)):
            ways.append((source, Direction(cable.line, random.Random(seeds.random())), to))
    with suppress(OSError):  # on time although those who send keep every core busy
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    sys.stdout.write("laid\n")
    sys.stdout.flush()
    _carry(ways)


if __name__ == "__main__":
    main()
