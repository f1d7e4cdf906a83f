"""Membership over a network in memory, in virtual time: known members, forwarded records, and the cost of an absent bootstrap peer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import msgspec
import pytest
import trio

from starling.gossip.errors import GossipError, RemoteProtocolError
from starling.gossip.membership.events import Died, Joined
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Probe, Record, Spread
from starling.node.config.schema import AdmissionSection, Manifest
from starling.node.daemon.membership.bootstrap import Bootstrap
from starling.node.daemon.membership.contacts import FIRST_PAUSE_S, LONGEST_PAUSE_S
from starling.node.daemon.membership.neighbors import Caps, RandomNeighbors, secret_draws
from starling.node.identity import Identity
from starling.node.net.faults import Drop
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from tests.harness.daemons import agreed, until
from tests.harness.members import SWARM, Node

SILENT_ONE = Identity.from_seed(b"s" * 32)
pytestmark = pytest.mark.trio


@asynccontextmanager
async def swarm(n, hub=None, incarnation=1) -> AsyncIterator[tuple[MemoryHub, list[Node], trio.Nursery]]:
    hub = hub or MemoryHub()
    async with trio.open_nursery() as nursery:
        nodes = [Node(hub, index, incarnation) for index in range(n)]
        for node in nodes:
            await nursery.start(node.live, [nodes[0].address])
        yield hub, nodes, nursery
        nursery.cancel_scope.cancel()


async def test_all_members_know_each_other_within_a_fraction_of_a_second(autojump_clock):
    async with swarm(6) as (_, nodes, _):
        await until(lambda: agreed(nodes), 0.5)
        assert len({node.membership.view for node in nodes}) == 1
        assert [type(event) for event in nodes[0].take_events()] == [Joined] * 5
        assert all(node.told.faults == [] and node.told.events == [] for node in nodes)


async def test_swarm_clocks_agree_soon_after_joining(autojump_clock):
    async with swarm(4) as (_, nodes, _):
        await trio.sleep(3.0)
        now = trio.current_time()
        times = [node.clock.time(now) for node in nodes]
        assert max(times) - min(times) < 0.01
        assert nodes[0].membership.rtt(nodes[1].peer) < 0.1
        assert nodes[0].membership.last_frame(nodes[1].peer) <= now


@pytest.mark.parametrize("given", [True, False])
async def test_only_an_address_that_the_owner_gave_lets_its_peer_name_any_number(autojump_clock, given):
    async with trio.open_nursery() as nursery:
        hub = MemoryHub()
        nodes = member, joiner = Node(hub, 0), Node(hub, 1)
        for node in nodes:
            await nursery.start(node.live)
        nursery.start_soon(joiner.contacts.keep, [member.address], [member.address] if given else [])
        await until(lambda: agreed(nodes), 3.0)
        assert joiner.membership._records.greeted == ({member.peer} if given else set())
        nursery.cancel_scope.cancel()


async def told_of_nobody(teller, told):
    """Let `teller` report a peer that does not exist to `told`; return its id."""
    nobody, place = SILENT_ONE.peer_id, (address_of(SILENT_ONE.peer_id),)
    record = SILENT_ONE.sign_record(Record(nobody, SWARM, 1, 0, "alive", place, b"", b""))
    await teller.network.send(told.peer, "control", encode(Spread((record,))))
    await until(lambda: nobody in told.membership.members, 1.0)
    return nobody


async def test_a_fabricated_peer_is_known_only_to_the_liars_contacts(autojump_clock):
    async with swarm(4) as (_, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        nobody = await told_of_nobody(nodes[1], nodes[0])
        for _ in range(100):
            await trio.sleep(0.2)
            assert not any(nobody in node.membership.table for node in nodes[1:])
        assert agreed(nodes)


async def test_addresses_of_met_peers_are_stored_for_the_next_run(autojump_clock):
    async with swarm(3) as (_, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        await told_of_nobody(nodes[1], nodes[0])
        kept = []
        Bootstrap((), (), kept.append, nodes[0].told)._store(nodes[0].membership)
        assert sorted(kept[0]) == sorted(node.address for node in nodes[1:])


async def test_a_crashed_member_is_declared_dead_once(autojump_clock):
    async with swarm(5) as (hub, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        [node.take_events() for node in nodes]
        *rest, victim = nodes
        victim.scope.cancel()
        hub.crash(victim.peer)
        assert await until(lambda: agreed(rest), 10.0) < 5.0
        await trio.sleep(30.0)
        for node in rest:
            assert [event for event in node.take_events() if isinstance(event, Died)] == [Died(victim.peer)]
            assert node.membership.table[victim.peer].status == "dead"


async def test_an_absent_bootstrap_peer_is_one_line_and_never_a_crash(autojump_clock):
    hub = MemoryHub()
    dials = []
    hub.rules.append(lambda src, dst, now: dials.append(now) or Drop() if now < 200.0 else None)
    async with trio.open_nursery() as nursery:
        absent, node = Node(hub, 0), Node(hub, 1)
        await nursery.start(node.live, [absent.address])
        await trio.sleep(190.0)
        assert len(node.told.named("bootstrap_unreachable")) == 1
        pauses = sorted({round(b - a, 3) for a, b in pairwise(dials) if b - a > 0.5})
        assert FIRST_PAUSE_S * 0.75 < pauses[0] < 3 * FIRST_PAUSE_S
        assert pauses[-1] <= 1.25 * LONGEST_PAUSE_S + 1.0
        assert len(pauses) >= 5  # they grow
        await nursery.start(absent.live)
        await trio.sleep(2 * LONGEST_PAUSE_S)
        assert agreed([absent, node])
        assert len(node.told.named("bootstrap_unreachable")) == len(node.told.named("bootstrap_reached")) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("address", ["", "nonsense", "/ip4/127.0.0.1/tcp/1", "/memory/x/p2p/x"])
async def test_an_unreachable_bootstrap_address_gives_one_line(autojump_clock, address):
    hub = MemoryHub()
    async with trio.open_nursery() as nursery:
        node = Node(hub, 0)
        await nursery.start(node.live, [address, address])
        await trio.sleep(600.0)
        assert len(node.told.events) == 1
        nursery.cancel_scope.cancel()


async def test_invalid_frames_and_foreign_swarms_are_faults_of_the_sender(autojump_clock):
    async with swarm(2) as (hub, nodes, nursery):
        await until(lambda: agreed(nodes), 1.0)
        stranger = hub.join("stranger")
        await stranger.dial(nodes[0].address)
        await stranger.send(nodes[0].peer, "control", b"rubbish")
        foreign = Node(hub, 9, swarm="s" + "b" * 32)
        await nursery.start(foreign.live, [nodes[0].address])
        await trio.sleep(1.0)
        assert ("stranger", "frame_not_msgpack") in nodes[0].told.faults
        assert (foreign.peer, "foreign_swarm") in nodes[0].told.faults
        assert agreed(nodes)
        assert foreign.membership.members == (foreign.peer,)


async def test_a_flood_of_frames_starts_a_bounded_number_of_tasks(autojump_clock):
    hub = MemoryHub()
    async with swarm(2, hub) as (_, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        hub.rules.append(lambda src, dst, now: Drop() if dst == "flooder" else None)
        flooder = hub.join("flooder")
        await flooder.dial(nodes[0].address)
        for nonce in range(500):
            await flooder.send(nodes[0].peer, "control", encode(Probe(nonce, bytes(8), 0.0)))
        await flooder.send(nodes[0].peer, "control", encode(Spread()))
        await trio.sleep(0.1)
        hub.sever("flooder", nodes[0].peer)
        await trio.sleep(10.0)
        assert nodes[0].membership._best_effort._sending == {}
        assert agreed(nodes)


async def test_frames_on_another_lane_keep_a_peer_alive_whose_probes_are_lost(autojump_clock):
    hub = MemoryHub()
    async with swarm(3, hub) as (_, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        [node.take_events() for node in nodes]
        here, there, other = nodes
        hub.rules.append(lambda src, _dst, _now: Drop() if src == there.peer else None)
        for _ in range(100):
            assert here.membership.admits(there.peer)
            await trio.sleep(0.2)
        assert here.take_events() == []
        assert Died(there.peer) in other.take_events()  # its first frame goes to another peer


async def test_a_peer_declared_dead_returns_with_its_next_frame(autojump_clock):
    hub = MemoryHub()
    async with swarm(3, hub) as (_, nodes, _):
        await until(lambda: agreed(nodes), 1.0)
        here, there, _other = nodes
        hub.rules.append(lambda src, _dst, _now: Drop() if src == there.peer else None)
        await until(lambda: here.membership.table[there.peer].status == "dead", 10.0)
        hub.rules.clear()
        assert not here.membership.admits(there.peer)
        await until(lambda: here.membership.admits(there.peer), 1.0)
        assert here.membership.table[there.peer].status == "alive"


async def test_a_stranger_on_another_lane_is_at_fault(autojump_clock):
    async with swarm(2) as (_, nodes, _):
        stranger = Identity.from_seed((9).to_bytes(32, "big")).peer_id
        with pytest.raises(RemoteProtocolError, match="not_a_member"):
            nodes[0].membership.admits(stranger)


async def test_a_node_whose_receiver_failed_ends(autojump_clock):
    hub = MemoryHub()
    node = Node(hub, 0)
    with pytest.RaisesGroup(pytest.RaisesExc(GossipError, match="no .* any more"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(node.live, [])
            node.network.close()


def own_record(node):
    return node.membership.table[node.peer].record


async def told(sender, receiver, *records):
    """Let a peer forward records, as in the membership protocol."""
    await sender.network.send(receiver.peer, "control", encode(Spread(records)))
    await trio.sleep(0.1)


async def test_one_identity_in_two_processes_is_reported_at_both(autojump_clock):
    """Each process outranks the other's record; peers keep the newest, and one of the two never exchanges."""
    async with swarm(2) as (_, (first, one), _), swarm(2, incarnation=5_000) as (_, (second, other), _):
        await trio.sleep(1.0)
        assert first.peer == second.peer
        for _ in range(2):
            await told(one, first, own_record(second))
            await told(other, second, own_record(first))
        for node in (first, second):
            assert node.membership.is_twice
            assert node.told.names == ["identity_twice"]
            assert "`starling leave`" in node.told.texts[0]
        assert one.told.names == other.told.names == []


async def test_records_of_an_earlier_run_are_not_taken_for_a_second_node(autojump_clock):
    """A clock that was set back leaves records from the future, and a delayed message leaves some from the past."""
    async with swarm(2, incarnation=5_000) as (_, (me, peer), _):
        await trio.sleep(1.0)
        own = own_record(me)
        for life in (4_000, 10**15):
            before = me.identity.sign_record(msgspec.structs.replace(own, incarnation=life, version=3))
            for _ in range(2):
                await told(peer, me, before)
        assert own_record(me).incarnation == 10**15 + 1
        assert not me.membership.is_twice
        assert me.told.names == []


async def test_a_silent_bootstrap_peer_is_reported_once(autojump_clock):
    """This happens when it has a connection of another node with our identity, and answers there."""
    hub = MemoryHub()
    hub.join(SILENT_ONE.peer_id)
    node = Node(hub, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, [address_of(SILENT_ONE.peer_id)])
        await trio.sleep(2.0)
        assert not node.contacts.ignored
        await trio.sleep(120.0)
        assert node.contacts.ignored
        assert node.told.names == ["bootstrap_silent"]
        assert "identity.key" in node.told.texts[0]
        assert own_record(node).incarnation == 10**12, "which a node in our place hears of, and says so too"
        nursery.cancel_scope.cancel()


async def test_a_bootstrap_peer_whose_engine_still_opens_is_not_blamed(autojump_clock):
    """It serves the manifest, but is no member before it has opened the task."""
    hub = MemoryHub()
    hub.join(SILENT_ONE.peer_id)
    node, open_request = Node(hub, 0), True

    async def opens(peer):
        await trio.sleep(0.01)
        return open_request and peer == SILENT_ONE.peer_id

    async with trio.open_nursery() as nursery:
        await nursery.start(node.live, [])
        nursery.start_soon(partial(node.contacts.keep, [address_of(SILENT_ONE.peer_id)], opens=opens))
        await trio.sleep(600.0)
        assert not node.contacts.ignored
        assert node.told.names == []
        open_request = False
        await trio.sleep(600.0)
        assert node.told.names == ["bootstrap_silent"]
        nursery.cancel_scope.cancel()


async def test_peers_with_host_names_are_limited_by_the_address_they_are_connected_from(autojump_clock):
    """All names share one prefix until they are resolved: six peers of a compose file count as six."""
    async with swarm(7) as (hub, nodes, _):
        await until(lambda: agreed(nodes), 5.0)
        me, *others = nodes
        await until(lambda: all(me.network.origin(node.peer) is not None for node in others), 60.0)
        drawn = RandomNeighbors(
            lambda: me.membership.members, me.peer, 6, Caps(1, me.membership.origins.prefixes), lambda _: True, secret_draws(b"secret", 1)
        )
        assert len(drawn.weights(0)) == 6
        for node in others[:2]:
            hub.origins[node.peer] = "8.8.8.0/24"
        assert len(drawn.weights(1)) == 5, "a public prefix counts"


@pytest.mark.parametrize(
    ("addresses", "per_prefix", "said"),
    [(("/dns4/a/tcp/1",), 1, ["named_only"]), (("/dns4/a/tcp/1", "/ip4/8.8.8.8/tcp/1"), 1, []), (("/dns4/a/tcp/1",), 0, []), ((), 1, [])],
)
async def test_announcing_host_names_only_warns_of_their_limits(addresses, per_prefix, said, monkeypatch):
    hub = MemoryHub()
    network = hub.join(SILENT_ONE.peer_id)
    network.addresses = addresses
    monkeypatch.setattr(hub, "join", lambda _: network)
    open_to_all = Manifest(admission=AdmissionSection(per_prefix=per_prefix))
    assert Node(hub, 0, manifest=open_to_all).told.names == said
