"""Attacks on the real network, each of which harms or ends a stock py-libp2p host; here the victim survives.

The letters denote the attacks measured against py-libp2p 0.8.1: A to C end or cripple it, D to L slow it down.
"""

import os
from contextlib import suppress
from math import inf

import psutil
import pytest
import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Connected, Disconnected
from starling.node.net.inbox import Inbox
from starling.node.net.libp2p import guards
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.libp2p.guards import IDLE_S, MAX_HANDSHAKES, MAX_HANDSHAKES_PER_BLOCK, MAX_PER_PEER, Handshakes, make_room
from starling.node.net.libp2p.yamux import STRANGE_WINDOW, WINDOW
from tests.harness.libp2p_nodes import (
    Remembered,
    attacker,
    data,
    ended,
    hang_up,
    lane_opened,
    next_event,
    next_frame,
    node,
    nodes,
    on_sockets,
    peer_of,
    raw_connection,
    until,
)

pytestmark = [pytest.mark.real]


async def is_well(victim) -> None:
    """Assert that an honest newcomer connects, and its frame arrives."""
    async with node("honest") as honest:
        await honest.dial(victim.addresses[0])
        await honest.send(victim.peer_id, "control", b"hello")
        while (await next_frame(victim, "control")).peer != honest.peer_id:
            pass


@on_sockets
async def test_an_error_in_a_handler_ends_one_connection_only(monkeypatch):
    """A: in a stock host one exception that a peer can provoke in a handler ends the whole node."""
    async with nodes("victim", "other", report=(report := Remembered())) as (victim, other):
        await other.dial(victim.addresses[0])
        put = Inbox.put

        def fails_on_boom(inbox, inbound):
            if inbound.frame == b"boom":
                raise RuntimeError("a bug of ours")
            return put(inbox, inbound)

        monkeypatch.setattr(Inbox, "put", fails_on_boom)
        async with node("mallory") as mallory:
            await mallory.dial(victim.addresses[0])
            await mallory.send(victim.peer_id, "control", b"boom")
            assert [await next_event(mallory) for _ in range(2)] == [Connected(victim.peer_id), Disconnected(victim.peer_id)]
        await other.send(victim.peer_id, "control", b"still here?")
        assert (await next_frame(victim, "control")).frame == b"still here?"
        [(name, fields)] = report.events
        assert name == "connection_failed"
        assert fields["peer"] == mallory.peer_id
        assert "a bug of ours" in fields["traceback"]


@on_sockets
async def test_more_successive_connections_than_places_are_all_served():
    """B: a stock host is unreachable for ever after 250 inbound connections, open or not."""
    async with node("victim", connections=4, connections_per_ip=4) as victim:
        for i in range(20):
            async with node(f"n{i}", listen=None) as caller:
                await caller.dial(victim.addresses[0])
                await caller.send(victim.peer_id, "control", bytes([i]))
                assert (await next_frame(victim, "control")).frame == bytes([i])


VIOLATIONS = {
    "muxer_window_overrun": ("exchange", data(b"", length=WINDOW + 1)),
    "frame_flood": ("control", data(b"\0\0\0\1x" * 12_000) * 2),
    **{
        f"frame_too_long on {lane}": (lane, data((MAX_FRAME_BYTES[lane] + 1).to_bytes(4, "big")))
        for lane in ("control", "exchange", "state")
    },
    "frame_too_long of this swarm": ("exchange", data((1_001).to_bytes(4, "big"))),
}
"""Fault -> lane and bytes. C: a stock host holds all of 600 MB that are never read. Nothing is allocated for an announced length, of which
a swarm knows its own longest. Five bytes a frame: a record holds 13,000, and to drop and count them all would take the whole processor."""


async def read_all(network, lane):
    async for _ in network.inbound(lane):
        pass


@on_sockets
async def test_a_burst_beyond_the_inbox_waits_and_arrives():
    """A sender faster than the reader is slowed down: 4 KB frames beyond the inbox were once dropped silently."""
    async with node("reader", inbox_frames=16) as reader, node("writer") as writer:
        await writer.dial(reader.addresses[0])
        async with trio.open_nursery() as nursery:

            async def send():
                for number in range(600):
                    await writer.send(reader.peer_id, "state", number.to_bytes(2, "big") * 2048)

            nursery.start_soon(send)
            await until(lambda: reader.traffic[writer.peer_id].bytes_received >= 16 * 4096)
            assert reader.links.newest(writer.peer_id).session.most_window == STRANGE_WINDOW, "it is nobody's member"
            await trio.sleep(0.1)
            assert reader.traffic[writer.peer_id].bytes_received <= 17 * 4096
            frames = [await next_frame(reader, "state") for _ in range(600)]
        assert [int.from_bytes(each.frame[:2], "big") for each in frames] == list(range(600))
        assert reader.traffic[writer.peer_id].frames_dropped == 0
        reader.learn(writer.peer_id, writer.addresses)
        assert reader.links.newest(writer.peer_id).session.most_window == WINDOW


@pytest.mark.parametrize("violation", VIOLATIONS)
@on_sockets
async def test_a_violation_of_the_protocol_ends_the_connection_and_is_a_fault(violation):
    lane, written = VIOLATIONS[violation]
    async with node("victim", report=(report := Remembered())) as victim, attacker(victim) as channel:
        await lane_opened(channel, lane)
        if "of this swarm" in violation:
            victim.expect("exchange", 1_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, victim, lane)
            await channel.write(written)
            assert await ended(channel)
            nursery.cancel_scope.cancel()
        await until(lambda: report.faults)
        assert report.faults == [(peer_of("mallory"), violation.split()[0])]
        traffic = victim.traffic.get(peer_of("mallory"))
        assert traffic is None or traffic.frames_dropped < 1_200
        await is_well(victim)


@on_sockets
async def test_an_announced_frame_costs_only_the_memory_that_has_arrived():
    """The largest frame announced on many streams at once, with a few bytes of each: memory follows the bytes."""
    async with node("victim") as victim:
        before = psutil.Process().memory_info().rss
        async with attacker(victim) as channel:
            await lane_opened(channel, "exchange")
            await channel.write(data(MAX_FRAME_BYTES["exchange"].to_bytes(4, "big") + b"a few bytes"))
            await trio.sleep(0.05)
            assert psutil.Process().memory_info().rss - before < 16 << 20
        await is_well(victim)


@pytest.mark.slow
@on_sockets
async def test_garbage_at_every_stage_is_survived():
    """D, E, F: random bytes before and during the handshake, after it, and lengths that promise gigabytes."""
    async with node("victim", report=(report := Remembered())) as victim:
        for i in range(40):
            async with await raw_connection(victim) as stream:
                await stream.send_all(b"\x13/multistream/1.0.0\n" * (i % 2) + os.urandom(1 + 7 * i))
        for promise in (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x13/multistream/1.0.0\n\x80\x80\x80\x80\x10"):
            async with await raw_connection(victim) as stream:
                await stream.send_all(promise)
                await trio.sleep(0.01)
        for i in range(5):
            async with attacker(victim, f"mallory{i}") as channel:
                await channel.write(os.urandom(64))
                assert await ended(channel)
        await until(lambda: len(report.faults) == 5)
        assert report.events == []
        await is_well(victim)


@pytest.mark.slow
@on_sockets
async def test_three_hundred_rapid_connects_are_survived():
    """J: connecting and closing as fast as possible, with and without a first line."""
    async with node("victim", report=(report := Remembered())) as victim:
        for i in range(300):
            stream = await raw_connection(victim)
            if i % 3 == 0:
                await stream.send_all(b"\x13/multistream/1.0.0\n")
            await stream.aclose()
        start = trio.current_time()
        await is_well(victim)
        assert trio.current_time() - start < 2.0
        assert report.events == []


@on_sockets
async def test_half_open_connections_do_not_keep_an_honest_peer_out():
    """G: 400 silent sockets occupy every place of a stock host for ten seconds. Here the oldest is dropped."""
    async with node("victim") as victim:
        silent = [await raw_connection(victim) for _ in range(100)]
        start = trio.current_time()
        await is_well(victim)
        assert trio.current_time() - start < 2.0
        for stream in silent:
            await stream.aclose()


@on_sockets
async def test_one_address_gets_only_its_share_of_places():
    """L: 400 identities from one address fill a stock host, which then refuses others for ever."""
    async with node("victim", connections_per_ip=2) as victim, nodes("s1", "s2", "s3") as sybils:
        for sybil in sybils:
            sybil.learn(victim.peer_id, victim.addresses)
        for sybil in sybils[:2]:
            await sybil.dial(victim.addresses[0])
        with pytest.raises(PeerUnreachable):
            await sybils[2].dial(victim.addresses[0])
        for sybil in sybils[:2]:
            await sybil.send(victim.peer_id, "control", b"in")
            await next_frame(victim, "control")
        await hang_up(victim, sybils[0].peer_id)
        await sybils[2].send(victim.peer_id, "control", b"now")
        assert (await next_frame(victim, "control")).frame == b"now"


@pytest.mark.slow
@on_sockets
async def test_a_refused_peer_is_refused_until_the_ban_ends():
    """A ban must apply to connections in both directions, and end."""
    async with nodes("victim", "mallory") as (victim, mallory):
        await mallory.dial(victim.addresses[0])
        await next_event(mallory)
        until_when = trio.current_time() + 0.3
        victim.refuse(mallory.peer_id, until_when)
        assert await next_event(mallory) == Disconnected(victim.peer_id)
        with pytest.raises(PeerUnreachable, match="refused"):
            await victim.dial(mallory.addresses[0])
        mallory.learn(victim.peer_id, victim.addresses)
        with pytest.raises(PeerUnreachable):
            await mallory.send(victim.peer_id, "control", b"let me in")
        await trio.sleep_until(until_when)
        await mallory.send(victim.peer_id, "control", b"thanks")
        assert (await next_frame(victim, "control")).frame == b"thanks"


@on_sockets
async def test_a_flood_of_frames_is_dropped_and_counted():
    """Frames are bounded per peer on arrival, so the node's work per second is its own choice."""
    async with node("victim", frames_per_s=10.0, inbox_frames=1000) as victim, node("mallory") as mallory:
        await mallory.dial(victim.addresses[0])
        for _ in range(500):
            await mallory.send(victim.peer_id, "control", b"x")
        await until(lambda: victim.traffic[mallory.peer_id].frames_dropped > 400)
        assert 40 <= victim.traffic[mallory.peer_id].bytes_received <= 60


@on_sockets
async def test_a_repeatedly_refused_node_dials_with_growing_pauses():
    """A handshake costs both ends, and identifies the peer only at its end: a banned node must not start one per frame."""
    async with nodes("victim", "banned") as (victim, banned):
        victim.refuse(banned.peer_id, inf)
        banned.learn(victim.peer_id, victim.addresses)
        made = 0
        for _ in range(20):
            with suppress(PeerUnreachable):
                await banned.send(victim.peer_id, "control", b"let me in")
            with suppress(trio.WouldBlock):
                while True:
                    made += isinstance(banned.events().receive_nowait(), Connected)
        assert 2 < made < 8
        victim.learn(banned.peer_id, banned.addresses)
        victim.refuse(banned.peer_id, -inf)
        await victim.send(banned.peer_id, "control", b"pardon")
        await next_frame(banned, "control")
        await banned.send(victim.peer_id, "control", b"thanks")


@pytest.mark.slow
@on_sockets
async def test_a_peer_that_never_reads_does_not_hold_up_the_others():
    """The stock writer gives up after five seconds; here only this send waits, up to its caller's deadline."""
    async with nodes("victim", "other") as (victim, other):
        await victim.dial(other.addresses[0])
        async with attacker(victim) as channel:
            await lane_opened(channel, "control")
            with trio.move_on_after(0.2) as patience:
                await victim.send(peer_of("mallory"), "exchange", bytes(32 << 20))
            assert patience.cancelled_caught
            await victim.send(other.peer_id, "control", b"x")
            assert (await next_frame(other, "control")).frame == b"x"


def guest(peer: str, block: str = "10.0.0.1", *, inbound: bool = True, useful_at: float = 0.0) -> ConnectionInfo:
    return ConnectionInfo(peer, block, inbound, since=0.0, useful_at=useful_at)


def test_the_oldest_handshake_gives_way_first_within_its_block():
    """A flood from one block ends its own handshakes; one from many blocks ends the oldest."""
    handshakes: Handshakes[str] = Handshakes()
    assert handshakes.begin("honest", "honest") is None
    for i in range(MAX_HANDSHAKES_PER_BLOCK):
        assert handshakes.begin("flood", f"f{i}") is None
    assert handshakes.begin("flood", "more") == "f0"
    for i in range(MAX_HANDSHAKES - MAX_HANDSHAKES_PER_BLOCK - 1):
        assert handshakes.begin(f"block{i}", f"one of many {i}") is None
    assert handshakes.begin("another", "another") == "honest"
    handshakes.end("one of many 0")
    assert handshakes.begin("last", "last") is None


def test_full_connection_slots_drop_only_useless_connections():
    """Idle Sybils are disconnected; peers with exchanges stay."""
    limits = LimitsSection(connections=3, connections_per_ip=3)
    busy = [guest(f"b{i}", f"10.0.0.{i}", useful_at=1000.0) for i in range(2)]
    idle = guest("sybil", "10.0.1.1", useful_at=1000.0 - IDLE_S)
    newcomer = guest("new", "10.0.2.1", useful_at=1000.0)
    assert make_room(busy, newcomer, limits, 1000.0) == []
    assert make_room([*busy, idle], newcomer, limits, 1000.0) == [idle]
    another = guest("b2", "10.0.0.9", useful_at=1000.0)
    assert make_room([*busy, another], newcomer, limits, 1000.0) is None
    ours = guest("dialled", inbound=False, useful_at=0.0)
    assert make_room([*busy, ours], newcomer, limits, 1000.0) is None, "what we dialled is not for strangers to end"


def test_connections_from_a_full_address_block_are_refused_before_a_handshake():
    """Otherwise 400 identities that connect five times per second would keep the node busy with handshakes."""
    limits = LimitsSection(connections=100, connections_per_ip=2)
    sybils = [guest(f"s{i}", useful_at=1000.0) for i in range(2)]
    assert not guards.is_full(sybils[:1], "10.0.0.1", limits, 1000.0)
    assert guards.is_full(sybils, "10.0.0.1", limits, 1000.0)
    assert not guards.is_full(sybils, "10.0.0.2", limits, 1000.0)
    assert not guards.is_full(sybils, "10.0.0.1", limits, 1000.0 + IDLE_S), "one of them may go"
    assert not guards.is_full([guest("ours", inbound=False), *sybils[:1]], "10.0.0.1", limits, 1000.0)


def test_an_address_that_connects_too_often_is_refused_without_a_handshake():
    """A handshake takes milliseconds of this processor and one packet of the attacker's."""
    knocks = guards.AcceptRate()
    assert sum(knocks.allowed("10.0.0.1", 0.0) for _ in range(10_000)) == guards.ACCEPTS_AT_ONCE
    assert knocks.allowed("10.0.0.2", 0.0), "others are not in its way"
    assert sum(knocks.allowed("10.0.0.1", 2.0) for _ in range(10_000)) == 2 * guards.ACCEPTS_PER_S
    for number in range(10_000):
        knocks.allowed(f"2001:db8::{number:x}", 3.0)
    assert knocks.blocks == guards.MAX_BLOCKS


def test_a_returning_peer_replaces_its_own_oldest_connection():
    """A restarted peer's dead connections must not block it."""
    limits = LimitsSection(connections=100, connections_per_ip=100)
    old = [guest("p") for _ in range(MAX_PER_PEER)]
    assert make_room([guest("q"), *old], guest("p"), limits, 0.0) == [old[0]]
    assert guards.MAX_PER_PEER >= 2, "simultaneous dials leave two"


@pytest.mark.slow
@on_sockets
async def test_strangers_that_have_used_up_their_share_wait_and_an_absent_member_does_not():
    """From one address, which is a stranger's until a member that was met there is absent."""
    members: list[str] = []
    async with nodes("a", "b") as (a, b):
        await b.dial(a.addresses[0])
        await hang_up(b, a.peer_id)
        a.ration(lambda: tuple(members))
        order: list[str] = []

        async def visit(name: str) -> None:
            async with node(name) as visitor:
                await visitor.dial(a.addresses[0])
                order.append(name)

        waited = 0
        for number in range(100):
            began = trio.current_time()
            await visit(f"early {number}")
            waited += trio.current_time() - began > 0.4
            if waited == 2:
                break
        assert waited == 2
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(visit, f"late {number}")
            await trio.sleep(0.5)
            members.append(b.peer_id)
            await b.dial(a.addresses[0])
            assert sum(name.startswith("late") for name in order) < 8, "they still wait"
            nursery.cancel_scope.cancel()
