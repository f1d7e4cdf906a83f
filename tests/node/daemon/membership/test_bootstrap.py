"""Joining a swarm: the manifest comes from the first peer that answers, and an invite passes on selected addresses."""

from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.daemon.membership.bootstrap import MAX_ADDED, NEXT_S, OWN_SHARED, VAIN_DIALS, Bootstrap, listed, to_share
from starling.node.daemon.state.transfer import REPLY_S, Transfer
from starling.node.identity import Identity
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from tests.harness.daemons import Reports

CREATOR, MEMBER, JOINER = (Identity.from_seed(bytes([seed]) * 32) for seed in (1, 2, 3))
MANIFEST = manifests.create(Manifest(), CREATOR, 1)
SWARM = manifests.swarm_id(MANIFEST)


@asynccontextmanager
async def joining(hub):
    """Return a newcomer that has only an invite, and a function that makes a peer with the manifest appear."""
    async with trio.open_nursery() as nursery:

        async def appear(identity, raw=b""):
            network = hub.join(identity.peer_id)
            known = {SWARM: raw}.get
            transfer = Transfer(network=network, report=Reports(), manifest=known)
            await nursery.start(transfer.serve)
            return network, transfer

        yield appear
        nursery.cancel_scope.cancel()


def invited(report, *identities):
    return Bootstrap(tuple(address_of(each.peer_id) for each in identities), (), lambda _known: None, report)


@pytest.mark.trio
async def test_a_bootstrap_peer_that_says_nothing_costs_half_a_second_not_its_deadline(autojump_clock):
    hub = MemoryHub()
    async with joining(hub) as appear:
        hub.join(CREATOR.peer_id)  # takes connections and says nothing
        await appear(MEMBER, manifests.to_bytes(MANIFEST))
        network, transfer = await appear(JOINER)
        began = trio.current_time()
        assert await invited(Reports(), CREATOR, MEMBER).fetch_manifest(transfer, network, SWARM) == MANIFEST
        assert trio.current_time() - began < NEXT_S + 0.1 < REPLY_S


@pytest.mark.trio
async def test_dead_bootstrap_peers_are_reported_once_and_used_when_they_return(autojump_clock):
    hub, report, found = MemoryHub(), Reports(), []
    async with joining(hub) as appear, trio.open_nursery() as nursery:
        network, transfer = await appear(JOINER)

        async def fetch():
            found.append(await invited(report, CREATOR, MEMBER).fetch_manifest(transfer, network, SWARM))

        nursery.start_soon(fetch)
        await trio.sleep(500.0)
        assert report.names == ["bootstrap_unreachable"]
        await appear(MEMBER, manifests.to_bytes(MANIFEST))
        await trio.sleep(65.0)
        assert found == [MANIFEST]


@pytest.mark.trio
async def test_what_each_bootstrap_peer_answered_is_said_once(autojump_clock):
    """Where some answer, another invite or another network is what helps; "no answer" would send their owner to the firewall."""
    hub, report, silent = MemoryHub(), Reports(), Identity.from_seed(b"4" * 32)
    async with joining(hub) as appear, trio.open_nursery() as nursery:
        network, transfer = await appear(JOINER)
        await appear(CREATOR)  # of another swarm
        hub.join(silent.peer_id)
        nursery.start_soon(invited(report, CREATOR, MEMBER, silent).fetch_manifest, transfer, network, SWARM)
        await trio.sleep(500.0)
        (text,) = (text for name, text, *_ in report.events if name == "bootstrap_unreachable")
        other, dead, mute = (address_of(each.peer_id).rpartition("/p2p/")[0] for each in (CREATOR, MEMBER, silent))
        assert f"{other}: it is not of this swarm" in text
        assert f"{mute}: it takes the connection and answers nothing" in text
        assert f"{dead}: " in text
        nursery.cancel_scope.cancel()


def test_equal_reasons_are_said_once_and_each_is_bounded():
    why = {f"/ip4/10.0.0.{n}/tcp/4/p2p/a": f"10.0.0.{n}:4: Connection refused" for n in (1, 2)} | {"/ip6/::1/tcp/4/p2p/b": "long " * 99}
    same, other = listed(why).split("; ")
    assert same == "10.0.0.1:4, 10.0.0.2:4: Connection refused"
    assert other.startswith("/ip6/::1/tcp/4: long long")
    assert len(other) < 100


@pytest.mark.trio
async def test_a_member_discovered_meanwhile_is_requested_at_once(autojump_clock):
    """All peers named in the invite are gone, and a member is found on the local network."""
    hub = MemoryHub()
    async with joining(hub) as appear, trio.open_nursery() as nursery:
        await appear(MEMBER, manifests.to_bytes(MANIFEST))
        network, transfer = await appear(JOINER)
        bootstrap, later = invited(Reports(), CREATOR), {}

        async def follow():
            async for address in bootstrap.additions(bootstrap.given):
                later[address] = None

        async def find():
            await trio.sleep(300.0)
            bootstrap.add(address_of(MEMBER.peer_id))

        nursery.start_soon(follow)
        nursery.start_soon(find)
        assert await bootstrap.fetch_manifest(transfer, network, SWARM) == MANIFEST
        assert trio.current_time() < 302.0
        for number in range(2 * MAX_ADDED):
            bootstrap.add(address_of(str(number)))
        await trio.sleep(1.0)
        assert tuple(later) == bootstrap.addresses[1:]
        assert len(later) == MAX_ADDED
        nursery.cancel_scope.cancel()


def test_unreachable_addresses_are_evicted_and_those_of_members_are_not():
    """Otherwise thirty-two false announcements would block local discovery until a restart."""
    bootstrap = invited(Reports(), CREATOR)
    flood, honest, late = ([address_of(f"flood {number}") for number in range(MAX_ADDED - 1)], address_of("honest"), address_of("late"))
    for address in (*flood, honest):
        bootstrap.add(address)
    bootstrap.add(late)
    assert late not in bootstrap.addresses
    for address in flood:
        for _ in range(VAIN_DIALS):
            assert bootstrap.dialled(address, reached=False)
    assert bootstrap.dialled(honest, reached=False)
    assert bootstrap.dialled(honest, reached=True)
    for number in range(3 * MAX_ADDED):
        bootstrap.add(address_of(f"more {number}"))
        bootstrap.dialled(address_of(f"more {number}"), reached=False)
        bootstrap.dialled(address_of(f"more {number}"), reached=False)
    bootstrap.add(late)
    assert {late, honest} < set(bootstrap.addresses)
    assert not bootstrap.dialled(flood[0], reached=False), "nobody dials it again"
    assert len(bootstrap.addresses) == MAX_ADDED + 1


@pytest.mark.trio
async def test_a_found_member_is_dialled_before_silent_invited_ones(autojump_clock):
    """The creator's machine is off, which only a timeout shows, and a member is on the local network."""
    hub = MemoryHub()
    async with joining(hub) as appear, trio.open_nursery() as nursery:
        hub.join(CREATOR.peer_id)  # takes connections and says nothing
        await appear(MEMBER, manifests.to_bytes(MANIFEST))
        network, transfer = await appear(JOINER)
        bootstrap = invited(Reports(), CREATOR)

        async def find():
            await trio.sleep(2 * NEXT_S)
            bootstrap.add(address_of(MEMBER.peer_id))

        nursery.start_soon(find)
        began = trio.current_time()
        assert await bootstrap.fetch_manifest(transfer, network, SWARM) == MANIFEST
        assert trio.current_time() - began < 2 * NEXT_S + 0.1 < REPLY_S


@pytest.mark.trio
async def test_a_lying_bootstrap_peer_is_at_fault_and_does_not_prevent_joining(autojump_clock):
    hub, report = MemoryHub(), Reports()
    async with joining(hub) as appear:
        await appear(CREATOR, b"nonsense")
        await appear(MEMBER, manifests.to_bytes(MANIFEST))
        network, transfer = await appear(JOINER)
        assert await invited(report, CREATOR, MEMBER).fetch_manifest(transfer, network, SWARM) == MANIFEST
        assert [peer for peer, _ in report.faults] == [CREATOR.peer_id]


addresses = st.lists(st.integers(0, 99).map("/ip4/10.0.0.{}/tcp/1".format), max_size=12, unique=True)


@given(own=addresses, members=st.lists(st.integers(0, 99).map(str), max_size=20, unique=True), data=st.data())
def test_an_invite_has_few_addresses_its_maker_first_then_those_that_answered(own, members, data):
    answered = data.draw(st.sets(st.sampled_from(members))) if members else set()
    met = data.draw(st.sets(st.sampled_from(members))) if members else set()
    shared = to_share(own, members, lambda peer: peer if peer in answered else None, lambda peer: (peer,) * (peer in met))
    assert len(shared) <= MAX_ADDRESSES
    assert len(set(shared)) == len(shared)
    assert shared[: min(len(own), OWN_SHARED)] == tuple(own[:OWN_SHARED])
    others = [address for address in shared if address not in own]
    reached = [peer for peer in members if peer in answered]
    assert others == [*reached, *(peer for peer in members if peer in met - answered)][: len(others)]
    if len(shared) < MAX_ADDRESSES:
        assert set(shared) == {*own, *answered, *met}
