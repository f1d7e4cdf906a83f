"""A process that publishes a fixed status, for tests that need a real other end: `python -m tests.harness.tui.fake_node DIR ROUND`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import trio

from starling.node.daemon.events import Changes
from starling.node.daemon.observe.control_server import ControlServer
from tests.harness.snapshots import snapshot

ROOT = Path(__file__).parents[3]


@contextmanager
def node(run_dir: Path, first_round: int) -> Iterator[subprocess.Popen]:
    """Run such a process; it is killed at the end."""
    process = subprocess.Popen([sys.executable, "-m", "tests.harness.tui.fake_node", str(run_dir), str(first_round)], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _nothing(op, fields):
    return {}


def main():
    first = int(sys.argv[2])
    began = time.time()

    def now():
        return msgspec.structs.replace(snapshot(), time_s=time.time(), uptime_s=time.time() - began, round=first + int(time.time() - began))

    trio.run(ControlServer(Path(sys.argv[1]), now, _nothing, Changes()).run)


if __name__ == "__main__":
    main()
