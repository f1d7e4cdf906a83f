"""The memory network: order, faults, crashes and bounds, all in virtual time."""

import pytest
import trio
from trio.testing import MockClock

from starling.gossip.errors import LocalProtocolError, PeerUnreachable
from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Connected, Disconnected, Inbound, Network
from starling.node.net.faults import Deliver, Drop, delay, loss
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import MemoryNetwork, address_of
from tests.harness.links import partition, slow
from tests.harness.virtual import virtual


async def pair(rules=(), **limits) -> tuple[MemoryHub, MemoryNetwork, MemoryNetwork]:
    hub = MemoryHub(rules)
    a, b = (hub.join(name, LimitsSection(**limits)) for name in "ab")
    await a.dial(b.addresses[0])
    return hub, a, b


async def drained(channel, patience_s: float = 5.0) -> list:
    got = []
    while True:
        with trio.move_on_after(patience_s) as scope:
            got.append(await channel.receive())
        if scope.cancelled_caught:
            return got


@virtual
async def test_frames_of_a_lane_arrive_whole_and_in_order():
    _, a, b = await pair([delay(0.05, 0.05, seed=3)])
    network: Network = a
    frames = [bytes([i]) * i for i in range(40)]
    for frame in frames:
        await network.send("b", "control", frame)
    assert await drained(b.inbound("control")) == [Inbound("a", "control", frame) for frame in frames]
    assert a.traffic["b"].bytes_sent == b.traffic["a"].bytes_received == sum(map(len, frames))


@virtual
async def test_both_ends_hear_of_a_connection_and_of_its_end():
    """Membership learns of a lost peer from events, not from failing sends."""
    hub, a, b = await pair()
    hub.sever("a", "b")
    assert await drained(a.events()) == [Connected("b"), Disconnected("b")]
    assert await drained(b.events()) == [Connected("a"), Disconnected("a")]


@virtual
async def test_a_frame_under_way_dies_with_its_connection():
    """A frame of an old connection must not arrive on the new one: the peer may have restarted in between."""
    hub, a, b = await pair([delay(1.0)])
    await a.send("b", "state", b"old")
    await trio.sleep(0.5)
    hub.sever("a", "b")
    await a.send("b", "state", b"new")
    assert await drained(b.inbound("state")) == [Inbound("a", "state", b"new")]


@virtual
async def test_a_crash_is_reported_to_all_other_nodes_only():
    hub, a, b = await pair()
    c = hub.join("c")
    await c.dial(b.addresses[0])
    hub.crash("b")
    assert (await drained(a.events()))[-1] == (await drained(c.events()))[-1] == Disconnected("b")
    with pytest.raises(PeerUnreachable, match="not running"):
        await a.send("b", "control", b"x")
    with pytest.raises(PeerUnreachable, match="crashed"):
        await b.dial(a.addresses[0])
    assert [inbound async for inbound in b.inbound("control")] == []
    again = hub.join("b")
    await a.send("b", "control", b"hello again")
    assert await again.inbound("control").receive() == Inbound("a", "control", b"hello again")
    assert not again.traffic["a"].frames_dropped


@virtual
async def test_a_partition_heals_on_time():
    hub, a, b = await pair([partition([["a", "c"], ["b"]], 10.0, 20.0)])
    c = hub.join("c")
    await trio.sleep_until(12.0)
    await a.send("b", "control", b"lost")
    with pytest.raises(PeerUnreachable, match="no answer"):
        await c.dial(b.addresses[0])
    await c.dial(a.addresses[0])
    await trio.sleep_until(20.0)
    await a.send("b", "control", b"found")
    assert [inbound.frame for inbound in await drained(b.inbound("control"))] == [b"found"]


async def lost_of_1000(seed: int) -> list[bytes]:
    _, a, b = await pair([loss(0.3, seed)], inbox_frames=1000)
    for i in range(1000):
        await a.send("b", "control", i.to_bytes(2, "big"))
    return [inbound.frame for inbound in await drained(b.inbound("control"))]


def test_loss_has_the_configured_rate_and_replays_by_seed():
    first, second, other = (trio.run(lost_of_1000, seed, clock=MockClock(autojump_threshold=0)) for seed in (1, 1, 2))
    assert first == second != other
    assert 0.65 < len(first) / 1000 < 0.75


@virtual
async def test_the_first_rule_with_an_answer_decides():
    hub, a, b = await pair()
    hub.rules[:] = [lambda src, dst, now: Deliver(2.0) if src == "a" else None, lambda src, dst, now: Drop()]
    start = trio.current_time()
    await a.send("b", "control", b"x")
    await b.send("a", "control", b"y")
    assert (await b.inbound("control").receive()).frame == b"x"
    assert trio.current_time() - start == pytest.approx(2.0)
    assert await drained(a.inbound("control")) == []


@virtual
async def test_a_slow_link_takes_size_over_rate_and_lanes_share_it():
    """1000 bytes at 100 B/s take ten seconds on any lane; the sender waits meanwhile, not the network."""
    _, a, b = await pair([slow("b", 100.0, after_s=0.0)])
    start = trio.current_time()
    await a.send("b", "exchange", bytes(1000))
    await a.send("b", "control", bytes(500))
    assert trio.current_time() - start == pytest.approx(10.0)
    await b.inbound("exchange").receive()
    await b.inbound("control").receive()
    assert trio.current_time() - start == pytest.approx(15.0)


@virtual
async def test_a_full_inbox_drops_the_newest_of_the_noisy_peer_only():
    """The bound is per peer: a flood must not displace another peer's frames."""
    hub, a, b = await pair(inbox_frames=8)
    c = hub.join("c")
    c.learn("b", b.addresses)
    for i in range(50):
        await a.send("b", "control", bytes([i]))
    await trio.sleep(1.0)
    await c.send("b", "control", b"mine")
    got = await drained(b.inbound("control"))
    flood = [inbound.frame[0] for inbound in got if inbound.peer == "a"]
    assert flood == list(range(len(flood)))
    assert 8 <= len(flood) <= 9, "one may be in the hands of the channel"
    assert b.traffic["a"].frames_dropped == 50 - len(flood)
    assert [inbound.frame for inbound in got if inbound.peer == "c"] == [b"mine"]


@virtual
async def test_a_refused_peer_is_refused_until_its_time():
    _, a, b = await pair()
    b.refuse("a", until=trio.current_time() + 30.0)
    assert (await drained(a.events()))[-1] == Disconnected("b")
    for one, other in ((a, "b"), (b, "a")):
        with pytest.raises(PeerUnreachable, match="refused"):
            await one.dial(address_of(other))
    await trio.sleep(30.0)
    await a.dial(address_of("b"))


@virtual
async def test_unreachable_peers_are_reported():
    hub, a, _ = await pair()
    hub.join("c")
    with pytest.raises(PeerUnreachable, match="no known address"):
        await a.send("c", "control", b"")
    a.learn("c", ["/ip4/127.0.0.1/tcp/1", address_of("c")])
    await a.send("c", "control", b"")
    for address, why in (("/memory/x", "not a memory"), (address_of("x"), "not running"), (address_of("a"), "itself")):
        with pytest.raises(PeerUnreachable, match=why):
            await a.dial(address)
    with pytest.raises(LocalProtocolError, match="exceed"):
        await a.send("c", "control", bytes(MAX_FRAME_BYTES["control"] + 1))


@virtual
async def test_events_keep_the_newest_when_they_are_not_read():
    """A node that reads late must see the current state."""
    hub, a, b = await pair()
    for _ in range(2000):
        hub.sever("a", "b")
        await a.dial(b.addresses[0])
    events = await drained(a.events())
    assert len(events) == 1024
    assert events[-1] == Connected("b")


@virtual
async def test_caps_apply_to_all_links_of_a_peer_and_short_frames_interleave_with_long_ones():
    hub = MemoryHub()
    a, b, c = (hub.join(name) for name in "abc")
    for other in (b, c):
        await a.dial(other.addresses[0])
    a.cap(100_000, 0)
    c.cap(0, 25_000)
    took = {}

    async def send(name, lane, size):
        began = trio.current_time()
        await a.send(name, lane, bytes(size))
        took[name, lane] = trio.current_time() - began

    async with trio.open_nursery() as nursery:
        for what in (("b", "exchange", 400_000), ("c", "exchange", 100_000), ("b", "control", 100)):
            nursery.start_soon(send, *what)
    assert took["c", "exchange"] == pytest.approx(4.0, abs=1.0), "as fast as it takes them"
    assert took["b", "exchange"] == pytest.approx(5.0, abs=0.5), "all that the other left"
    assert took["b", "control"] < 0.5


@virtual
async def test_a_frame_that_waits_for_a_cap_is_lost_with_its_connection():
    hub, a, _ = await pair()
    a.cap(1000, 0)
    hub.rules.append(lambda _src, _dst, now: hub.sever("a", "b") if now > 5.0 else None)

    async def probe():
        await trio.sleep(6.0)
        hub.fate("a", "b")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        with pytest.raises(PeerUnreachable, match="lost while sending"):
            await a.send("b", "exchange", bytes(100_000))
