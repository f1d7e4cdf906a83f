"""A host's memory of peers is bounded, and forgetting a peer neither loses traffic counts nor lifts a refusal."""

import pytest

from starling.gossip.limits import TokenBucket
from starling.node.net.libp2p import peers
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.libp2p.peers import PeerState, PeerTable, dialable

P = "12D3KooWSMUMPyTqRhyrP2e9cGqqcNa4onZ4kmZ3V8SwKkmF2JWY"


def full(connected=()):
    table = PeerTable(10.0, frozenset(connected))
    for number in range(peers.MAX_PEERS_REMEMBERED):
        table.get(str(number), 0.0).traffic.bytes_received = number
    return table


def test_traffic_with_a_forgotten_peer_stays_in_the_total():
    """A falling total looks like a restart in dashboards."""
    table = full()
    total = table.total_traffic.bytes_received
    for number in range(100):
        table.get(f"new-{number}", 1.0)
    assert len(table.traffic) == peers.MAX_PEERS_REMEMBERED
    assert "7" not in table.traffic
    assert table.total_traffic.bytes_received == total


def test_a_connected_or_refused_peer_is_never_forgotten():
    table = full(connected={"0"})
    table.get("1", 0.0).refused_until = 50.0
    for number in range(2 * peers.MAX_PEERS_REMEMBERED):
        table.get(f"new-{number}", 10.0)
    assert "0" in table.traffic
    assert table.refused("1", 49.0)
    assert not table.refused("1", 50.0)
    assert not table.refused("unknown", 0.0)


def closed(at, *, inbound=False, useful_at=None, since=0.0):
    return ConnectionInfo("p", "b", inbound, since, since if useful_at is None else useful_at), at


@pytest.mark.parametrize(
    "connection",
    [closed(1.0, inbound=True), closed(1.0, useful_at=0.5), closed(peers.REJECTED_WITHIN_S)],
    ids=["it dialled us", "it sent a frame", "it stayed"],
)
def test_only_a_dial_that_was_closed_at_once_without_a_frame_is_a_rejection(connection):
    peer = PeerState(TokenBucket(1.0, 1.0))
    peer.connection_closed(*connection)
    assert peer.rejected_dials == 0


def test_a_rejecting_peer_is_dialled_with_growing_pauses_up_to_a_minute():
    peer, now, waits = PeerState(TokenBucket(1.0, 1.0)), 0.0, []
    for _ in range(peers.REJECTED_DIALS_TOLERATED + 9):
        peer.connection_closed(*closed(now, since=now))
        waits.append(max(0.0, peer.redial_at - now) if not peer.may_dial(now) else 0.0)
        now += waits[-1]
        assert peer.may_dial(now)
    assert waits == [0.0] * peers.REJECTED_DIALS_TOLERATED + [1.0, 2.0, 4.0, 8.0, 16.0, 32.0] + [peers.MAX_REDIAL_DELAY_S] * 3


def test_a_peer_that_cannot_be_reached_is_dialled_with_growing_pauses_of_a_few_seconds():
    peer, waits = PeerState(TokenBucket(1.0, 1.0)), []
    for _ in range(2000):
        peer.dialled(reached=False, now=10.0)
        waits.append(peer.paused_until - 10.0)
    assert waits[:4] == [peers.PAUSE_S, 2 * peers.PAUSE_S, peers.MAX_PAUSE_S, peers.MAX_PAUSE_S]
    assert max(waits) == peers.MAX_PAUSE_S
    peer.dialled(reached=True, now=10.0)
    assert peer.paused_until < 10.0
    peer.dialled(reached=False, now=10.0)
    assert peer.paused_until == 10.0 + peers.PAUSE_S


def test_a_peer_is_at_the_hosts_where_it_was_met_or_can_be_dialled():
    table = PeerTable(10.0, frozenset())
    table.get("met", 0.0).met_at = "2001:db8::/64"
    table.get("told", 0.0).endpoints = tuple(dialable("told", ["/ip4/192.0.2.1/tcp/1"]))
    assert table.is_at("met", "2001:db8::/64", "2001:db8::1")
    assert table.is_at("told", "192.0.2.1", "192.0.2.1")
    assert not table.is_at("told", "192.0.2.2", "192.0.2.2")
    assert not table.is_at("unknown", "192.0.2.1", "192.0.2.1")
    assert "unknown" not in table.traffic, "a question creates no state"


def test_addresses_of_other_peers_and_invalid_ones_are_not_dialled():
    other = P[:-1] + "X"
    known = [
        "nonsense",
        "/ip4/192.0.2.1/tcp/0",
        f"/ip4/192.0.2.2/tcp/1/p2p/{other}",
        f"/ip4/192.0.2.3/tcp/2/p2p/{P}",
        "/ip4/192.0.2.4/tcp/3",
    ]
    assert [endpoint.host for endpoint in dialable(P, known)] == ["192.0.2.3", "192.0.2.4"]
