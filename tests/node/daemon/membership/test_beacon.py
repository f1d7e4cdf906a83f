"""The beacon service of one node among simulated peers: to whom beacons are sent, who is asked, and what is ignored."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.overlay.beacon import signed
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Beacon, BeaconQuery
from starling.node.config.schema import Manifest, MembershipSection, OverlaySection
from starling.node.daemon.membership.beacon import BURST, BeaconService
from starling.node.identity import Identity
from tests.harness.context import SWARM, context

pytestmark = pytest.mark.trio
CREATOR, ME, OTHER, THIRD = (Identity.from_seed(bytes([number]) * 32) for number in range(4))
PEERS = tuple(sorted(identity.peer_id for identity in (CREATOR, ME, OTHER, THIRD)))
EVERY = 4
SYNC_S = 5.0


@dataclass
class Wire:
    """A network that records what is sent, and a reporter that records events."""

    peer_id: str
    sent: list = field(default_factory=list)
    said: list = field(default_factory=list)

    async def send(self, peer, lane, frame):
        self.sent.append((peer, decode(lane, "", frame)))

    def event(self, name, text, **_fields):
        assert "\n" not in text
        self.said.append(name)

    def taken(self):
        """Return what was sent since the last call, sorted by peer."""
        sent, self.sent = sorted(self.sent, key=lambda it: it[0]), []
        return sent


@dataclass
class Here:
    """A member list."""

    members: tuple


@asynccontextmanager
async def serving(identity=ME, members=PEERS):
    wire = Wire(identity.peer_id)
    manifest = Manifest(founder=CREATOR.peer_id, overlay=OverlaySection(rerank_every=EVERY), membership=MembershipSection(sync_s=SYNC_S))
    service = BeaconService(context(network=wire, report=wire, identity=identity, manifest=manifest), Here(members))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        yield service, wire
        nursery.cancel_scope.cancel()


def beacon(epoch, identity=CREATOR):
    return signed(SWARM, epoch, identity.sign)


async def test_the_creator_sends_each_beacon_one_epoch_ahead_and_no_earlier(autojump_clock):
    others = [peer for peer in PEERS if peer != CREATOR.peer_id]
    async with serving(CREATOR) as (service, wire):
        for now, told in ((0, 1), (1, None), (3, None), (4, 2), (7, None), (8, 3)):
            service.salt(now)
            await trio.sleep(0.01)
            assert wire.taken() == ([(peer, beacon(told)) for peer in others] if told else [])
        service.receive(OTHER.peer_id, BeaconQuery(4))  # a peer that asks more often gets no answer
        await trio.sleep(10 * SYNC_S)
        assert wire.taken() == []


async def test_a_restarted_creator_signs_the_same_beacon_for_the_current_epoch(autojump_clock):
    async with serving(CREATOR) as (service, wire):
        service.salt(4 * EVERY + 1)
        await trio.sleep(0.01)
        assert {message for _, message in wire.taken()} == {beacon(4), beacon(5)}
        assert wire.said == []


async def test_news_is_forwarded_once_but_not_to_its_sender_or_signer(autojump_clock):
    async with serving() as (service, wire):
        for sender in (OTHER, THIRD, OTHER):
            service.receive(sender.peer_id, beacon(1))
        await trio.sleep(0.01)
        assert wire.taken() == [(THIRD.peer_id, beacon(1))]


async def test_a_missing_beacon_is_reported_once_and_requested_from_the_creator_and_another_member(autojump_clock):
    async with serving() as (service, wire):
        service.salt(0)
        await trio.sleep(0.01)
        assert wire.taken() == []
        fallback = service.salt(EVERY)
        await trio.sleep(0.01)
        asked = wire.taken()
        assert {message for _, message in asked} == {BeaconQuery(1)}
        assert len(asked) == 2
        assert CREATOR.peer_id in dict(asked)
        service.salt(2 * EVERY)
        assert wire.said == ["beacon_missing"]
        service.receive(OTHER.peer_id, beacon(2))
        assert wire.said == ["beacon_missing", "beacon_back"]
        assert service.salt(2 * EVERY) not in {fallback, b""}
        service.salt(3 * EVERY)
        assert wire.said == ["beacon_missing", "beacon_back", "beacon_missing"]


async def test_a_new_node_requests_the_beacon_without_a_warning(autojump_clock):
    async with serving() as (service, wire):
        service.salt(9 * EVERY + 2)
        await trio.sleep(0.01)
        assert {message for _, message in wire.taken()} == {BeaconQuery(9)}
        assert wire.said == []


async def test_the_next_beacon_is_requested_repeatedly_until_it_arrives(autojump_clock):
    async with serving() as (service, wire):
        service.salt(0)
        await trio.sleep(SYNC_S + 0.1)
        assert {message for _, message in wire.taken()} == {BeaconQuery(1)}
        service.receive(OTHER.peer_id, beacon(1))
        await trio.sleep(0.1)
        wire.taken()
        await trio.sleep(5 * SYNC_S)
        assert wire.taken() == []


async def test_a_request_is_answered_with_all_known_beacons_from_that_epoch_on(autojump_clock):
    async with serving() as (service, wire):
        for epoch in (1, 2):
            service.receive(CREATOR.peer_id, beacon(epoch))
        await trio.sleep(0.01)
        wire.taken()
        service.receive(THIRD.peer_id, BeaconQuery(1))
        service.receive(OTHER.peer_id, BeaconQuery(3))
        await trio.sleep(0.01)
        assert sorted(message.epoch for _, message in wire.sent) == [1, 2]
        assert {peer for peer, _ in wire.taken()} == {THIRD.peer_id}


async def test_requests_per_member_are_limited(autojump_clock):
    async with serving() as (service, wire):
        service.receive(CREATOR.peer_id, beacon(1))
        for _ in range(100):
            service.receive(OTHER.peer_id, beacon(1))
        for _ in range(int(BURST)):
            with pytest.raises(RemoteProtocolError, match="beacon_forged"):
                service.receive(OTHER.peer_id, Beacon(2, bytes(64)))
        service.receive(OTHER.peer_id, Beacon(2, bytes(64)))
        service.receive(THIRD.peer_id, beacon(2))  # every peer has a quota of its own
        await trio.sleep(0.01)
        wire.taken()
        service.receive(OTHER.peer_id, BeaconQuery(1))
        await trio.sleep(0.01)
        assert wire.taken() == []
