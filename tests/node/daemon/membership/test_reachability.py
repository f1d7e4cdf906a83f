"""The dial-back service: which members it asks, for whom it dials, and what it reports to the network."""

from contextlib import asynccontextmanager

import pytest
import trio

from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Dialed, DialMe
from starling.node.daemon.membership.reachability import BURST, MAX_DIALLING, ReachabilityService
from tests.harness.context import context
from tests.harness.daemons import Reports, until

OTHERS = {"p1": "1.1.1.0/24", "p2": "2.2.2.0/24", "p3": "3.3.3.0/24", "home": ""}
pytestmark = pytest.mark.trio


class Ports:
    """A network with ports; the test decides which addresses others see."""

    def __init__(self):
        self.addresses = self.announced = ("/ip4/10.0.0.1/tcp/4001/p2p/me",)
        self.port, self.met_public, self.callers = 4001, True, ()
        self.sent, self.dialled, self.said = [], [], None
        self.ways = dict.fromkeys(OTHERS, "direct")

    def way(self, peer):
        return self.ways.get(peer)

    def origin(self, peer):
        return OTHERS.get(peer)

    def found(self, *, hidden, host):
        self.said = hidden, host
        self.announced = () if hidden else self.addresses

    async def dial_back(self, peer, port):
        self.dialled.append((peer, port))
        await trio.sleep(1.0)
        return "9.9.9.9", True

    async def send(self, peer, lane, frame):
        self.sent.append((peer, decode(lane, peer, frame)))


class Everybody:
    members = ("me", *OTHERS)


@asynccontextmanager
async def serving(network):
    report = Reports()
    service = ReachabilityService(context(network=network, report=report), Everybody())
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        yield service, report
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("reached", "state"), [(True, "reachable"), (False, "hidden")])
async def test_reachability_is_the_agreement_of_members_in_other_networks(autojump_clock, reached, state):
    network = Ports()
    async with serving(network) as (service, report):
        await until(lambda: len(network.sent) == 3, 10.0)
        assert {peer for peer, _ in network.sent} == {"p1", "p2", "p3"}, "not who is in our own network"
        for peer, asked in network.sent[:2]:
            assert asked == DialMe(asked.nonce, 4001)
            service.receive(peer, Dialed(asked.nonce + 1, "6.6.6.6", not reached))  # the answer to another request
            service.receive("home", Dialed(asked.nonce, "6.6.6.6", not reached))
            service.receive(peer, Dialed(asked.nonce, "8.8.8.8", reached))
        await until(lambda: service.state != "unknown", 5.0)
        assert (service.state, network.said) == (state, (not reached, "8.8.8.8" if reached else ""))
        assert [event[3] for event in report.events] == [{"state": state}]
        assert service.may_meet("p1", lambda _peer: ())
        assert service.may_meet("unknown", lambda _peer: ()) is reached
        assert service.may_meet("unknown", lambda _peer: ("/ip4/7.7.7.7/tcp/1",))


async def test_a_relayed_peer_is_a_neighbor_if_the_relay_carries_exchanges_or_an_end_can_be_dialled(autojump_clock):
    """Both ends decide alike, so that neither waits for the other."""
    network = Ports()
    at_a_relay = ("/ip4/9.9.9.9/tcp/1/p2p/R/p2p-circuit/p2p/P",)
    service = ReachabilityService(context(network=network, report=Reports()), Everybody())
    for way, ours, theirs, meet in [
        ("relayed", at_a_relay, at_a_relay, True),
        ("control", at_a_relay, at_a_relay, False),
        ("control", at_a_relay, ("/ip4/7.7.7.7/tcp/1",), True),
        ("control", ("/ip4/7.7.7.7/tcp/1",), at_a_relay, True),
        (None, (), at_a_relay, True),
        (None, (), (), False),
    ]:
        network.ways["p1"], network.announced = way, ours
        assert service.may_meet("p1", lambda _peer, theirs=theirs: theirs) is meet


async def test_an_inbound_connection_proves_reachability(autojump_clock):
    network = Ports()
    network.callers = ("p1", "p2", "home")
    async with serving(network) as (service, _):
        await until(lambda: service.state == "reachable", 5.0)


async def test_dial_backs_per_member_are_limited(autojump_clock):
    network = Ports()
    async with serving(network) as (service, _):
        await trio.sleep(0.5)
        network.sent.clear()
        for nonce in range(50):
            service.receive("p1", DialMe(nonce, 22))
            await trio.sleep(0.01)
        await trio.sleep(3.0)
        assert network.dialled == [("p1", 22)] * int(BURST)
        assert [message for _, message in network.sent if isinstance(message, Dialed)] == [
            Dialed(nonce, "9.9.9.9", True) for nonce in range(int(BURST))
        ]


async def test_simultaneous_requests_are_all_answered(autojump_clock):
    """A whole swarm behind routers starts at once: a node without an answer would ask again only a minute later, and be hard to reach."""
    network, askers = Ports(), [f"n{number}" for number in range(20)]
    async with serving(network) as (service, _):
        await trio.sleep(0.5)
        network.sent.clear()
        for peer in askers:
            service.receive(peer, DialMe(1, 22))
        await trio.sleep(20 / MAX_DIALLING + 0.1)
        answered = [peer for peer, message in network.sent if isinstance(message, Dialed)]
        assert sorted(answered) == sorted(askers)


async def test_a_node_with_a_new_address_asks_again(autojump_clock):
    network = Ports()
    network.callers = ("p1", "p2")
    async with serving(network) as (service, _):
        await until(lambda: service.state == "reachable", 5.0)
        network.callers, network.addresses = (), ("/ip4/10.0.0.2/tcp/4001/p2p/me",)
        await until(lambda: service.state == "unknown", 5.0)
