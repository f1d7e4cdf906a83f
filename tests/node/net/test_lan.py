"""Members on the local network: what a node announces, and which announcements it accepts."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.node.net.lan import MAX_FOUND, PER_PEER, Found, Lan, mark_of, told
from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.destinations import kind_of
from tests.harness.daemons import Reports
from tests.harness.libp2p_nodes import peer_of

SWARM, ME, PEER = "sabc", peer_of("me"), peer_of("other")
ANYTHING = st.binary(max_size=200)


def announcement(swarm=SWARM, peer=PEER):
    return {b"swarm": mark_of(swarm), b"peer": peer.encode()}


def test_only_private_addresses_are_announced_and_never_the_swarm_id():
    addresses = (
        f"/ip4/9.9.9.9/tcp/4001/p2p/{ME}",
        f"/ip4/192.168.1.7/tcp/4001/p2p/{ME}",
        f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{ME}",
        f"/dns4/me.example.org/tcp/4001/p2p/{ME}",
    )
    assert [each.host for each in told(addresses)] == ["192.168.1.7"]
    assert SWARM.encode() not in mark_of(SWARM)
    assert mark_of(SWARM) != mark_of("sabd")


def test_a_member_of_the_same_swarm_is_found_once_and_again_when_it_moves():
    found = Found(SWARM, ME)
    assert found.heard(announcement("other"), ["192.168.1.8"], 4001) == ()
    assert found.heard(announcement(peer=ME), ["192.168.1.8"], 4001) == ()
    assert found.heard(announcement(), ["192.168.1.8"], 4001) == (f"/ip4/192.168.1.8/tcp/4001/p2p/{PEER}",)
    assert found.heard(announcement(), ["192.168.1.8"], 4001) == ()
    assert found.heard(announcement(), ["192.168.1.9"], 4002) == (f"/ip4/192.168.1.9/tcp/4002/p2p/{PEER}",)


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from([b"swarm", b"peer", b"x"]), st.one_of(st.none(), ANYTHING, st.just(mark_of(SWARM)))),
    st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["8.8.8.8", "10.0.0.1", "127.0.0.1", "fe80::1", "fd00::1"]))),
    st.one_of(st.none(), st.integers(-1, 70_000)),
)
def test_announcements_give_only_private_addresses_of_the_named_peer(properties, hosts, port):
    """Nobody on the local network can make the node dial hosts elsewhere."""
    for extra in ({}, announcement()):
        found = Found(SWARM, ME).heard(properties | extra, hosts, port)
        assert len(found) <= PER_PEER
        for each in map(parse, found):
            assert kind_of(each.host) == "private"
            assert (each.peer, each.port) == (PEER, port)


def test_announcements_are_bounded_and_none_is_excluded():
    found = Found(SWARM, ME)
    for number in range(2 * MAX_FOUND):
        assert found.heard(announcement(peer=peer_of(str(number))), ["10.0.0.1"], 4001)
    last = announcement(peer=peer_of(str(2 * MAX_FOUND - 1)))
    assert not found.heard(last, ["10.0.0.1"], 4001), "it is known"
    assert found.heard(announcement(peer=peer_of("0")), ["10.0.0.1"], 4001), "it was forgotten"


@pytest.mark.trio
async def test_a_node_on_loopback_only_announces_nothing(autojump_clock, monkeypatch):
    """Tests, demos and simulations must not be discovered."""
    monkeypatch.setattr(Lan, "_open", lambda: pytest.fail("it opened a socket"))
    lan = Lan(SWARM, ME, lambda: (f"/ip4/127.0.0.1/tcp/1/p2p/{ME}",), lambda _address: None, Reports())
    with trio.move_on_after(60.0):
        await lan.serve()


@pytest.mark.trio
async def test_without_multicast_a_node_continues_with_a_warning(monkeypatch):
    def refuse():
        raise OSError("no such device")

    monkeypatch.setattr(Lan, "_open", staticmethod(refuse))
    reports = Reports()
    await Lan(SWARM, ME, lambda: (f"/ip4/10.0.0.1/tcp/1/p2p/{ME}",), lambda _address: None, reports).serve()
    assert reports.names == ["no_lan"]
