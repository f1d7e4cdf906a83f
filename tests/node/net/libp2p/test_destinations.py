"""Addresses reported by others: which are dialled, and how often."""

import pytest

from starling.node.net.libp2p.addresses import Endpoint, parse
from starling.node.net.libp2p.destinations import AT_ONCE, MOST_OF_HOST, Destinations, kind_of, own_kinds

PUBLIC = frozenset({"public"})


def rumored(host, port=4001):
    protocol = "ip6" if ":" in host else "ip4" if host[-1].isdigit() else "dns"
    return Endpoint(protocol, host, port, "", rumored=True)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2a00:1450::1", "public"),
        ("10.0.0.1", "private"),
        ("192.168.1.1", "private"),
        ("172.17.0.2", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("169.254.169.254", "never"),
        ("fd00:ec2::254", "never"),
        ("100.100.100.200", "never"),
        ("224.0.0.1", "never"),
        ("ff02::1", "never"),
        ("255.255.255.255", "never"),
        ("0.0.0.0", "never"),
        ("::", "never"),
        ("240.0.0.1", "never"),
        ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::a9fe:a9fe", "never"),
        ("64:ff9b::a00:1", "private"),
        ("2002:7f00:1::", "loopback"),
        ("2001:db8:1:2::/64", "private"),
    ],
)
def test_each_address_has_a_kind_even_when_nested(host, kind):
    assert kind_of(host) == kind


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "169.254.1.1", "169.254.169.254", "224.0.0.1", "::1"])
def test_private_addresses_are_not_dialled_from_outside_their_network(host):
    assert Destinations(PUBLIC).choose([rumored(host)], "", 0.0) == []
    assert Destinations(PUBLIC).choose([rumored(host)], "8.8.8.8", 0.0) == []


def test_private_addresses_are_dialled_within_their_network():
    inside = rumored("10.0.0.1")
    assert Destinations(frozenset({"private"})).choose([inside], "", 0.0) == [inside]
    assert Destinations(PUBLIC).choose([inside], "10.0.0.9", 0.0) == [inside], "it came from there itself"
    assert Destinations(frozenset({"private"})).choose([rumored("169.254.169.254")], "", 0.0) == []


def test_announced_addresses_decide_the_kind_of_network_and_host_names_do_not():
    bound = [parse("/ip4/172.18.0.2/tcp/4001")]
    assert own_kinds(bound, bound) == {"private"}
    assert own_kinds([parse("/ip4/8.8.8.8/tcp/4001")], bound) == PUBLIC
    assert own_kinds([parse("/dns4/creator/tcp/4001")], bound) == {"private"}


def test_a_destination_is_dialled_once_a_minute_until_it_answers():
    destinations, one = Destinations(PUBLIC), rumored("8.8.8.8")
    for start in (0.0, 60.0):
        dials = [len(destinations.choose([one], "", start + second)) for second in range(60)]
        assert dials == [1] + [0] * 59
    destinations.answered(one)
    assert destinations.choose([one], "", 119.0) == [one]


def test_dialled_ports_per_host_and_addresses_per_peer_are_limited():
    destinations = Destinations(PUBLIC)
    ports = [rumored("8.8.8.8", port) for port in range(1, 65)]
    assert sum(len(destinations.choose([each], "", 0.0)) for each in ports) == MOST_OF_HOST
    many = [rumored(f"9.9.9.{each}") for each in range(8)]
    assert [destinations.choose(many, "", 1.0) for _ in range(3)] == [many[:AT_ONCE], many[3:6], many[6:]]


def test_loopback_has_no_limit_of_ports():
    ports = [rumored("127.0.0.1", port) for port in range(1, 65)]
    destinations = Destinations(frozenset({"loopback"}))
    assert [each for each in ports if destinations.choose([each], "", 0.0)] == ports


def test_met_and_configured_addresses_may_be_dialled_at_any_time():
    destinations, met, given = Destinations(PUBLIC), rumored("8.8.8.8"), parse("/ip4/10.0.0.1/tcp/1")
    assert all(destinations.choose([met, given], "8.8.8.8", 0.0) == [met, given] for _ in range(10))
