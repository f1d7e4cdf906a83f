"""Links between network namespaces with a given rate, delay and loss, independent of the kernel's features: for root, with /dev/net/tun.

A cable is a TAP device at either end, in a namespace each, and a process that reads frames at one end and writes them at the other when
due. One process serves all cables of a `cabled` block and removes them at its end. A frame costs that process about 20 us, whatever its
size, so lines of 1 Gbit/s need an `mtu` of ten thousand or more.
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
READ_AT_ONCE = 64  # frames read from one end before the others
TICK_S = 5e-4  # minimum between two checks: this precision takes half of the processor time of a shorter one
HEADER_BYTES = 14  # Ethernet header, in addition to the MTU


@dataclass(frozen=True, slots=True)
class Line:
    """Properties of a cable, in each direction separately.

    Args:
        mbit: rate, in 10^6 bits of frames per second.
        delay_ms: from the last bit sent to its arrival, half of a round trip.
        loss: share of lost frames, 0 to 1.
        queue_ms: frames that would wait longer than this for the line are dropped.
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
    """Two ends and the line between them."""

    ends: tuple[End, End]
    line: Line


@dataclass(slots=True)
class Direction:
    """One direction of a line: which frames arrive, and when. Frames do not overtake each other."""

    line: Line
    chance: random.Random
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    _free_at: float = 0.0

    def send(self, frame: bytes, now: float) -> None:
        """Enqueue a frame at `now`, in seconds, which never decreases."""
        begins = max(now, self._free_at)
        if begins - now > self.line.queue_ms / 1e3:
            return
        self._free_at = begins + len(frame) * 8e-6 / self.line.mbit
        if self.chance.random() >= self.line.loss:
            self.under_way.append((self._free_at + self.line.delay_ms / 1e3, frame))

    def arrived(self, now: float) -> Iterator[bytes]:
        """Yield the frames that have reached the other end by now."""
        while self.under_way and self.under_way[0][0] <= now:
            yield self.under_way.popleft()[1]

    def due(self) -> float:
        """Return when the next frame arrives; infinite without one."""
        return self.under_way[0][0] if self.under_way else float("inf")


@contextmanager
def cabled(cables: Sequence[Cable], seed: int = 1) -> Iterator[None]:
    """Connect existing namespaces by cables; their devices are up, without addresses. Skips the test where that is impossible."""
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
    """Run the block in a network namespace, for this thread and the processes that it starts."""
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
    """Make a device in a namespace, up; return its file descriptor, of which a read is one frame."""
    with inside(namespace):
        end = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, SET_INTERFACE, struct.pack("16sH22x", device.encode(), TAP_WITHOUT_HEADER))
        words = ["ip", "link", "set", device, "mtu", str(mtu), "txqueuelen", "10000", "up"]
        subprocess.run(words, check=True, timeout=20)
    return end


def _carry(ways: Sequence[tuple[int, Direction, int]]) -> None:
    """Move frames from each first end to its second one until standard input closes, for example because the test was killed."""
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
    """Make the cables described on standard input, report that they are ready, and serve them."""
    cables = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[Cable, ...])
    seeds, ways = random.Random(int(sys.argv[1])), []
    for cable in cables:
        here, there = (_end(*end, cable.line.mtu) for end in cable.ends)
        for source, to in ((here, there), (there, here)):
            ways.append((source, Direction(cable.line, random.Random(seeds.random())), to))
    with suppress(OSError):  # on time although the senders keep every core busy
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    sys.stdout.write("laid\n")
    sys.stdout.flush()
    _carry(ways)


if __name__ == "__main__":
    main()
