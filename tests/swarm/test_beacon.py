"""Whole nodes ranked by beacons: all agree on orders that nobody could foresee, forgers are refused, a dead creator stops nobody."""

import trio

from starling.gossip.overlay.beacon import signed
from starling.gossip.overlay.ranks import ranked, ranked_at
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Beacon
from starling.node.config.schema import CompressSection, Manifest, MixSection, OverlaySection, PaceSection, PartitionSection, TaskSection
from tests.harness.stories import virtual
from tests.harness.swarms import events, rounds_done, story, until

NODES = 8
CREATOR, LAST = 0, NODES - 1
EVERY = 4


def reranking(rounds: int) -> Manifest:
    """Return a manifest with one exchange per round, and a new order every four."""
    return Manifest(
        task=TaskSection(kind="quadratic", nodes=NODES, dim=8),
        partition=PartitionSection(shards=NODES),
        mix=MixSection(kind="dsgd"),
        overlay=OverlaySection(kind="base_k", rerank_every=EVERY),
        compress=CompressSection(select="full"),
        pace=PaceSection(kind="steps", local_steps=1, rounds=rounds, evaluate_every=rounds, quorum=NODES, max_wait_s=1.0),
    )


def begin(rounds: int):
    """Start a swarm with rounds of a fifth of a second."""
    return story(reranking(rounds), 1, slow=dict.fromkeys(range(NODES), 10.0))


def order(virtual, round: int) -> tuple[str, ...]:
    """Return the members as a node ranks them."""
    return ranked(virtual.node.running.membership.members, virtual.node.running.around.beacons.salt(round))


def held(virtual):
    return virtual.node.running.around.beacons._beacons


def missed(swarm) -> int:
    """Return the number of exchanges that failed, by both their ends."""
    return sum(v.node.running.exchange.stats.busy + v.node.running.exchange.stats.timeout for v in swarm.nodes.values())


def committed(swarm) -> int:
    return sum(virtual.node.running.exchange.stats.committed for virtual in swarm.nodes.values())


def count_beacons(swarm) -> list[int]:
    """Record the epochs of beacons sent from now on."""
    sent: list[int] = []

    def watch(network):
        honest = network.send

        async def send(peer, lane, frame):
            message = decode(lane, "", frame)
            if isinstance(message, Beacon):
                sent.append(message.epoch)
            await honest(peer, lane, frame)

        network.send = send

    for one in swarm.nodes.values():
        watch(one.node.network)
    return sent


@virtual(1)
async def test_all_nodes_derive_the_same_order_from_beacons_without_lost_exchanges():
    swarm = begin(15)
    async with swarm.running(NODES):
        sent = count_beacons(swarm)
        for epoch in (1, 2, 3):
            await until(lambda at=epoch: rounds_done(swarm, at * EVERY + 2))
            orders = {order(virtual, epoch * EVERY) for virtual in swarm.nodes.values()}
            peers = [virtual.peer_id for virtual in swarm.nodes.values()]
            assert len(orders) == 1
            assert orders != {ranked_at(peers, swarm.swarm.encode(), epoch * EVERY, EVERY)}
            assert all(epoch + 1 in held(virtual) for virtual in swarm.nodes.values())
            assert not any(epoch + 2 in held(virtual) for virtual in swarm.nodes.values())
            assert sent.count(epoch + 1) <= NODES * (NODES - 1)
        await swarm.finished()
        assert missed(swarm) == 0
        assert committed(swarm) >= 15 * NODES
        for virtual in swarm.nodes.values():
            assert virtual.node.events.faults == {}
            assert "beacon_missing" not in events(virtual)


@virtual(1)
async def test_without_its_creator_a_swarm_continues_with_the_default_order():
    swarm = begin(200)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 2))
        await swarm.crash(CREATOR)
        others = list(swarm.nodes.values())
        await until(lambda: all(len(virtual.node.running.membership.members) == NODES - 1 for virtual in others))
        await until(lambda: all("beacon_missing" in events(virtual) for virtual in others))
        began = max(virtual.node.progress.round for virtual in others) + 1
        await until(lambda: rounds_done(swarm, began))
        before, lost = committed(swarm), missed(swarm)
        await until(lambda: rounds_done(swarm, began + 6))
        assert committed(swarm) >= before + 4 * len(others)
        assert missed(swarm) == lost
        assert all(events(virtual).count("beacon_missing") == 1 for virtual in others)
        await swarm.start(CREATOR)
        await until(lambda: all("beacon_back" in events(virtual) for virtual in others))
        assert all(virtual.node.events.faults == {} for virtual in swarm.nodes.values())


@virtual(1)
async def test_a_forged_beacon_is_a_fault_without_effect_and_is_not_forwarded():
    swarm = begin(30)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 2))
        liar, victim = swarm.nodes[LAST], swarm.nodes[1]
        assert 1 in held(victim)
        assert 2 not in held(victim)
        salts = [held(victim).salt(b"", epoch) for epoch in (1, 2)]
        for epoch in (1, 2):
            forged = signed(swarm.swarm, epoch, swarm.identity(LAST).sign)
            await liar.node.network.send(victim.peer_id, "control", encode(forged))
            await trio.sleep(0.01)
        assert [held(victim).salt(b"", epoch) for epoch in (1, 2)] == salts
        assert victim.node.events.faults == {liar.peer_id: {"beacon_forged": 2}}
        assert victim.node.policy.standing(liar.peer_id).state == "quarantine"
        assert not any(virtual.node.events.faults for virtual in swarm.nodes.values() if virtual is not victim)


@virtual(1)
async def test_a_node_without_the_salt_uses_no_other_order_and_requests_it():
    swarm = begin(60)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 1))
        alone = swarm.nodes[3]
        beacons, kept_back = alone.node.running.around.beacons, []
        honest = beacons.receive
        beacons.receive = lambda peer, message: kept_back.append((peer, message))
        held(alone)._held.clear()
        await until(lambda: alone.node.progress.round > EVERY + 2)
        assert "beacon_missing" in events(alone)
        assert missed(swarm) > 0
        told = {message.epoch for _, message in kept_back if isinstance(message, Beacon)}
        assert told == {1, 2}, "the answer to its question, and the news"
        beacons.receive = honest
        await until(lambda: "beacon_back" in events(alone))
        settled = alone.node.progress.round + 2
        await until(lambda: rounds_done(swarm, settled))
        lost = missed(swarm)
        await until(lambda: rounds_done(swarm, settled + 6))
        assert missed(swarm) == lost
        assert all(virtual.node.events.faults == {} for virtual in swarm.nodes.values())
