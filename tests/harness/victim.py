"""`starling` with timing of its event loop: `python -m tests.harness.victim create …`.

A trio loop delays everybody while it processes ready tasks: the processor time between two waits is the delay that the node itself causes,
however busy the machine is. The longest one is in the file that VICTIM_WORST names, as a double; writing 0 there resets it.

It also has one planted bug: a frame that reads "boom" raises an unexpected error.
"""

import mmap
import os
import struct
import sys
import time
from functools import partial
from pathlib import Path

import trio

from starling.node.net.inbox import Inbox

SECONDS = struct.Struct("d")
BOOM = b"boom"


class Stopwatch(trio.abc.Instrument):
    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SECONDS.size))
        with path.open("r+b") as file:
            self._worst = mmap.mmap(file.fileno(), SECONDS.size)
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        took = time.thread_time() - self._began
        if took > SECONDS.unpack(self._worst[:])[0]:
            self._worst[:] = SECONDS.pack(took)


def main() -> None:
    from starling.node.cli.main import main as starling

    put = Inbox.put

    def fails_on_boom(inbox, inbound):
        if inbound.frame == BOOM:
            raise RuntimeError("a bug of ours")
        return put(inbox, inbound)

    Inbox.put = fails_on_boom
    trio.run = partial(trio.run, instruments=[Stopwatch(Path(os.environ["VICTIM_WORST"]))])
    sys.exit(starling())


if __name__ == "__main__":
    main()
