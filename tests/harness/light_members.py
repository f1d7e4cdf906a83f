"""Members without engines, a process each, on real sockets: `python -m tests.harness.light_members COUNT JOINING_S LASTING_S`.

The others join through the first, one after another within JOINING_S; LASTING_S after the last, each prints a line of JSON, a `Seen`. A
member is the production network and membership service without the rest of a node; processes are forks of one that has imported both.
"""

import os
import sys
import time

import msgspec
import trio

from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.events import Died
from starling.node.config.schema import Manifest
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.contacts import Contacts
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.store import MemoryStore
from starling.node.identity import Identity
from tests.harness.context import context
from tests.harness.libp2p_nodes import Remembered, node, seed_of

AGREED = Manifest(seed=0)  # made before the processes are forked: it looks for installed parts of nine kinds


class Seen(msgspec.Struct, frozen=True):
    """One member's observations; times are seconds of the machine's monotonic clock."""

    began: float  # to join
    known: tuple[tuple[float, int], ...]  # times at which its number of members changed, and the numbers
    died: int  # members that it declared dead
    bytes_sent: int
    seconds: float  # of the processor


async def live(name: str, bootstrap: list[str], until: float, told: int | None = None) -> Seen:
    """Be a member until a time of the monotonic clock; write its address to the file descriptor `told`."""
    began, known, died = time.monotonic(), list[tuple[float, int]](), 0
    async with node(name) as network, trio.open_nursery() as nursery:
        if told is not None:
            os.write(told, network.addresses[0].encode())
        identity = Identity.from_seed(seed_of(name))

        def changed(event: object) -> None:
            nonlocal died
            died += isinstance(event, Died)
            if not known or known[-1][1] != len(membership.members):
                known.append((time.monotonic(), len(membership.members)))

        setting = context(network=network, report=Remembered(), identity=identity, manifest=AGREED)
        membership = Membership(setting, SwarmClock(), Admission(setting, MemoryStore()), changed)
        await nursery.start(membership.serve, lambda _peer, _message: None)
        nursery.start_soon(Contacts(setting, membership).keep, bootstrap)
        await trio.sleep(until - time.monotonic())
        nursery.cancel_scope.cancel()
    return Seen(began, tuple(known), died, network.total_traffic.bytes_sent, time.process_time())


def forked(number: int, bootstrap: list[str], at: float, until: float, told: int | None = None) -> int:
    """Fork a process that waits until `at`; return its id."""
    if child := os.fork():
        return child
    time.sleep(max(0.0, at - time.monotonic()))
    seen = trio.run(live, f"member {number}", bootstrap, until, told)
    os.write(sys.stdout.fileno(), msgspec.json.encode(seen) + b"\n")
    os._exit(0)


def main(count: int, joining_s: float, lasting_s: float) -> None:
    """Start all, and wait for their ends."""
    began = time.monotonic() + 1.0
    until = began + joining_s + lasting_s
    end, told = os.pipe()
    children = [forked(0, [], 0.0, until, told)]
    address = os.read(end, 1024).decode()
    step_s = joining_s / (count - 1)
    children += [forked(number, [address], began + number * step_s, until) for number in range(1, count)]
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
