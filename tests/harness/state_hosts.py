"""Hosts that have a model and one that fetches it, as processes: `python -m tests.harness.state_hosts hold|lie|fetch FILE …`.

    hold FILE NAME            serves the bytes of a file as a model; prints its address, and ends with its input
    lie FILE NAME             the same with wrong chunks
    fetch FILE PARTIAL ADDRESS …   fetches a model of that file's size; prints lines of JSON as it progresses, and one at the end

Only the state lane runs, over real sockets; the file stands in for an engine.
"""

import hashlib
import json
import mmap
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import trio

from starling.gossip import chunks
from starling.node.daemon.state.transfer import Transfer
from starling.node.rpc import calls
from tests.harness.libp2p_nodes import Remembered, node

SCHEMA, SNAPSHOT, ROUND = b"schema", 1, 5
REPORTED_S = 0.1
ANYWHERE = "/ip4/0.0.0.0/tcp/0"


def say(line: str) -> None:
    """Print a line to the process that started this one."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class FileEngine:
    """Gives the bytes of a file as a snapshot; as a liar, wrong ones for every chunk."""

    def __init__(self, path: Path, *, lies: bool) -> None:
        with path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._listed, self._lies = chunks.digests(self._pages), lies

    async def call(self, request: object) -> object:
        await trio.lowlevel.checkpoint()
        match request:
            case calls.ReadChunk(_, offset, size):
                data = self._pages[offset : offset + size]
                return calls.ChunkRead(bytes(len(data)) if self._lies else data)
            case _:
                size, root = len(self._pages), chunks.root(self._listed)
                return calls.SnapshotInfo(SNAPSHOT, size, root, ROUND, SCHEMA, self._listed)


async def hold(path: Path, name: str, *, lies: bool) -> None:
    """Serve until standard input closes."""
    async with node(name, listen=ANYWHERE) as network, trio.open_nursery() as nursery:
        transfer = Transfer(network=network, report=Remembered(), manifest=lambda _swarm: None)
        transfer.give(FileEngine(path, lies=lies), lambda _peer: True)
        await nursery.start(transfer.serve)
        say(next(each for each in network.addresses if "/127." not in each))
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


async def fetch(size: int, kept: Path, addresses: list[str]) -> None:
    """Fetch from all addresses at once, and report progress."""
    report = Remembered()
    async with node("joiner", listen=ANYWHERE) as network, trio.open_nursery() as nursery:
        transfer = Transfer(network=network, report=report, manifest=lambda _swarm: None, partial=kept)
        transfer.expect(SimpleNamespace(schema=SCHEMA, parameters=size // 8 + 1))
        await nursery.start(transfer.serve)
        peers = [await network.dial(address) for address in addresses]
        first, *others = await transfer.offers(peers)

        async def tell() -> None:
            while True:
                for it in transfer.downloads.incoming:
                    say(json.dumps({"received": it.done_bytes}))
                await trio.sleep(REPORTED_S)

        nursery.start_soon(tell)
        began, worked = trio.current_time(), time.process_time()
        file = await transfer.downloads.download(first, others)
        seconds, worked = trio.current_time() - began, time.process_time() - worked
        digest = "" if file is None else hashlib.sha256(file.path.read_bytes()).hexdigest()
        before = [fields["received"] for name, fields in report.events if name == "state_resumed"]
        end = {
            "seconds": seconds,
            "processor_s": worked,
            "digest": digest,
            "before": sum(before),
            "faults": report.faults,
            "came": network.total_traffic.bytes_received,
        }
        say(json.dumps(end))
        if file is not None:
            file.delete()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    what, held, *more = sys.argv[1:]
    if what == "fetch":
        trio.run(fetch, Path(held).stat().st_size, Path(more[0]), more[1:])
    else:
        trio.run(partial(hold, Path(held), *more, lies=what == "lie"))
