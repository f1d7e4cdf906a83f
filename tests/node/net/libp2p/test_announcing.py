"""The addresses that a node announces as its interfaces and met peers change."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.destinations import kind_of

EVERYWHERE = (("0.0.0.0", 4001), ("::", 4001))
HOME, LAN6, PUBLIC, PUBLIC6 = "192.168.1.5", "fd00::5", "8.8.4.4", "2a00:1450::5"
hosts = st.lists(st.ip_addresses().map(str), max_size=12, unique=True)


def node(*found, configured=()):
    made = Announcing("P", tuple(parse(each) for each in configured), EVERYWHERE)
    made.poll(found)
    return made


def texts(endpoints):
    return [each.host for each in endpoints]


@given(found=hosts, met=st.booleans())
def test_announced_addresses_are_a_bounded_subset_of_the_known_ones(found, met):
    one = node(*found)
    one.met_public = met
    assert set(one.told) <= set(one.known)
    assert len(one.known) <= MAX_ADDRESSES
    assert all(each.peer == "P" for each in one.known)
    if met:
        assert all(kind_of(each.host) == "public" for each in one.told)
    kinds = [kind_of(each.host) == "public" for each in one.known]
    assert kinds == sorted(kinds, reverse=True), "public ones first"
    if found:
        assert {ipaddress.ip_address(each.host) for each in one.known} <= set(map(ipaddress.ip_address, found))


def test_private_addresses_are_announced_in_private_networks_only():
    one = node(HOME, LAN6, PUBLIC, PUBLIC6)
    assert texts(one.told) == [PUBLIC, PUBLIC6, HOME, LAN6]
    one.met_public = True
    assert texts(one.told) == [PUBLIC, PUBLIC6]
    assert len(one.known) == 4


def test_configured_addresses_are_announced_and_do_not_change():
    one = node(HOME, configured=["/ip4/10.0.0.9/tcp/5", "/dns4/me.example/tcp/6"])
    one.met_public = True
    assert not one.poll([PUBLIC])
    assert sorted(texts(one.told)) == ["10.0.0.9", "me.example"]


def test_without_ipv4_there_is_no_loopback_of_it():
    assert texts(node(PUBLIC6).known) == [PUBLIC6]
    assert texts(node().known) == ["127.0.0.1", "::1"]


def test_a_new_address_is_reported_once_and_having_none_is_not_a_move():
    one = node(HOME)
    assert not one.poll([HOME])
    assert one.poll([PUBLIC])
    assert texts(one.known) == [PUBLIC]
    assert not one.poll([])
    assert texts(one.known) == [PUBLIC]


def test_connections_from_a_lost_address_are_closed_except_loopback():
    one = node(HOME)
    one.poll([PUBLIC, PUBLIC6])
    assert one.is_gone(HOME)
    assert one.is_gone(LAN6)
    assert not any(map(one.is_gone, (PUBLIC, PUBLIC6, "127.0.0.1", "::1", "fe80::1%eth0")))
    assert not node().is_gone(HOME), "with no interface at all it may come back"
