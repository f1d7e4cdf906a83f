"""Two nodes of different versions on real sockets use the newest common version, or both report which is older."""

import pytest

from starling.gossip.errors import OtherVersion
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Inbound
from starling.node.net.libp2p import open_network
from starling.node.net.libp2p.version_talk import OTHER_VERSIONS_AT_ONCE
from starling.node.versions import LANES, Range
from tests.harness.libp2p_nodes import LOOPBACK, Remembered, next_frame, on_sockets, seed_of, until

pytestmark = [pytest.mark.real]


def of_version(name, report, **spoken):
    return open_network(seed_of(name), [LOOPBACK], [], LimitsSection(), report, spoken=LANES | spoken)


@on_sockets
async def test_nodes_use_the_newest_version_that_both_speak():
    """An upgrade of a swarm, node by node: ranges that overlap are no event."""
    reports = Remembered(), Remembered()
    async with of_version("a", reports[0], control=Range(1, 3)) as a, of_version("b", reports[1], control=Range(2, 4)) as b:
        await a.dial(b.addresses[0])
        for one, other in ((a, b), (b, a)):
            await one.send(other.peer_id, "control", b"x")
            assert await next_frame(other, "control") == Inbound(one.peer_id, "control", b"x")
        assert [report.events for report in reports] == [[], []]


@on_sockets
async def test_without_a_common_version_both_ends_learn_which_is_the_older():
    """In one line each, once, and only the differing lane is refused."""
    old, new = Remembered(), Remembered()
    async with of_version("a", old, state=Range(1, 1)) as a, of_version("b", new, state=Range(2, 3)) as b:
        await a.dial(b.addresses[0])
        for _ in range(3):
            with pytest.raises(OtherVersion, match=r"2 to 3 of the state lane, this node 1: this node is older; `pip install --upgrade"):
                await a.send(b.peer_id, "state", b"x")
        with pytest.raises(OtherVersion, match=r"version 1 of the state lane, this node 2 to 3: it is older; ask its owner"):
            await b.send(a.peer_id, "state", b"x")
        await until(lambda: new.events)
        assert ("other_version", {"peer": b.peer_id}) in old.events
        assert ("other_version", {"peer": a.peer_id}) in new.events
        assert len(old.events) <= 2  # its own finding, and the other end's report
        await a.send(b.peer_id, "control", b"still")
        assert (await next_frame(b, "control")).frame == b"still"


@on_sockets
async def test_version_reports_of_many_peers_give_few_log_lines():
    """Identities and their claims are free, and the log is for the owner."""
    report = Remembered()
    async with of_version("a", report) as a:
        for number in range(50):
            a.versions.report(f"peer {number}", "says that it speaks something else")
    assert len(report.events) == OTHER_VERSIONS_AT_ONCE
    assert report.faults == []
