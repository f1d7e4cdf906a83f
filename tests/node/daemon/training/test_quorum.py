"""The first round begins when enough members are here, and not for those of whom a node was only told."""

from types import SimpleNamespace

import pytest
import trio

from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Record, Spread
from starling.node.config.schema import PaceSection
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.loop import STABLE_S, Training
from starling.node.identity import Identity
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from tests.harness.daemons import Reports, until
from tests.harness.members import SWARM, Node

pytestmark = pytest.mark.trio
GONE = Identity.from_seed(b"g" * 32)


def waiting(node, quorum):
    """Return the training of a node that has nothing but its members, and the list of rounds at which it began."""
    begun = []

    async def begin(start):
        begun.append(start)

    house = SimpleNamespace(progress=Progress(), context=SimpleNamespace(report=Reports()))
    return Training(PaceSection(quorum=quorum), node.membership, None, SimpleNamespace(begin=begin), house), begun


async def test_a_member_that_left_while_another_joined_is_not_counted_by_the_newcomer(autojump_clock):
    """The newcomer gets its record from a member to which the farewell is still under way, and never meets it."""
    hub = MemoryHub()
    async with trio.open_nursery() as nursery:
        member, newcomer = Node(hub, 0), Node(hub, 1)
        await nursery.start(member.live)
        await nursery.start(newcomer.live, [member.address])
        await until(lambda: len(newcomer.membership.members) == 2, 1.0)
        training, begun = waiting(newcomer, 3)
        nursery.start_soon(training.quorum, 0)
        record = GONE.sign_record(Record(GONE.peer_id, SWARM, 1, 0, "alive", (address_of(GONE.peer_id),), b"", b""))
        await member.network.send(newcomer.peer, "control", encode(Spread((record,))))
        await until(lambda: GONE.peer_id in newcomer.membership.members, 1.0)
        await trio.sleep(2 * STABLE_S)
        assert begun == []
        await nursery.start(Node(hub, 2).live, [member.address])
        assert STABLE_S <= await until(lambda: begun, 3.0) < 2 * STABLE_S
        nursery.cancel_scope.cancel()
