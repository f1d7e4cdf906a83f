"""The influence of a single peer's reports: whole nodes in virtual time, and one hostile peer."""

from functools import cache
from itertools import islice

import pytest
import trio

from starling.gossip.membership.events import Died
from starling.gossip.wire.frames import encode
from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from starling.node.daemon.membership.records import RecordVerifier
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.daemon.running import RunningNode
from starling.node.net.faults import Drop
from starling.node.rpc import calls
from starling.node.simulate.virtual.inline_engine import InlineEngine
from tests.harness.hostile import Stranger
from tests.harness.stories import replayable, virtual
from tests.harness.swarms import digits, flows_with, rounds_done, story, until

FORGOTTEN_S = 20.0  # time within which a dead peer's flow is deleted in any case


@virtual(1)
async def test_a_flapping_stranger_costs_the_engine_little_and_dead_peers_flows_are_deleted(monkeypatch):
    asked: list[str] = []
    honest_call = InlineEngine.call

    async def call(self, request):
        if isinstance(request, calls.Revoke):
            asked.append(request.peer)
        return await honest_call(self, request)

    monkeypatch.setattr(InlineEngine, "call", call)
    # or little arrives
    monkeypatch.setattr(RecordVerifier, "receive", lambda _self, _source, _peer, message, _now: message)
    swarm = story(digits(3, rounds=1000), 1)
    async with swarm.running(3):
        stranger, dead = Stranger(swarm.hub, swarm.swarm), swarm.nodes[2].peer_id
        await until(lambda: rounds_done(swarm, 5) and flows_with(swarm, dead) == [0, 1])
        asked.clear()
        await stranger.tell(swarm.nodes[0].peer_id, *islice(stranger.comings_and_goings(56), 54))
        assert flows_with(swarm, dead)
        await swarm.crash(2)
        await until(lambda: not flows_with(swarm, dead), FORGOTTEN_S)
        arrived = len(swarm.nodes[0].node.running.membership.table)
        assert arrived > 27 * 56
        assert dead in asked
        assert len(asked) < 0.05 * arrived  # those that were linked to a peer while present


@virtual(1)
async def test_a_lost_event_is_recovered(monkeypatch):
    honest = RunningNode.member_changed
    monkeypatch.setattr(RunningNode, "member_changed", lambda self, event: None if isinstance(event, Died) else honest(self, event))
    swarm = story(digits(3, rounds=1000), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 5))
        dead = swarm.nodes[2].peer_id
        await swarm.crash(2)
        await until(lambda: not flows_with(swarm, dead), FORGOTTEN_S)


async def committed_in(seconds: float, flood: str) -> int:
    """Return exchanges of three honest nodes while one gets twenty full frames a second of a "stranger" or "member", or "": of nobody."""
    swarm = story(digits(4, rounds=1000), 1)
    async with swarm.running(4), trio.open_nursery() as nursery:
        await until(lambda: rounds_done(swarm, 5))
        victim, stranger = swarm.nodes[0].peer_id, Stranger(swarm.hub, swarm.swarm)
        exchanges = [swarm.nodes[index].node.running.exchange for index in range(3)]

        async def pour():
            for frame in stranger.fresh_records():
                if flood == "member":
                    await swarm.nodes[3].node.network.send(victim, "control", encode(frame))
                else:
                    await stranger.tell(victim, frame)
                await trio.sleep(0.05)

        if flood:
            nursery.start_soon(pour)
        before = sum(exchange.stats.committed for exchange in exchanges)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
        return sum(exchange.stats.committed for exchange in exchanges) - before


@virtual(1)
async def test_exchanges_go_on_while_frames_of_fresh_records_pour_in():
    undisturbed = await committed_in(8.0, "")
    got = {flood: await committed_in(8.0, flood) / undisturbed for flood in ("stranger", "member")}
    assert min(got.values()) >= 0.7


SECONDS = 3.0


@virtual(1)
async def test_the_slower_of_two_nodes_catches_up_by_training():
    swarm = story(digits(2, rounds=400), 1)
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 5))
        ahead, behind = swarm.nodes.values()
        swarm.hub.rules.append(lambda _src, _dst, _now: Drop())
        engine = behind.node.running.engine.engine
        engine.step_cost_s *= 20
        await until(lambda: ahead.node.progress.round > 80)
        lag = ahead.node.progress.round - behind.node.progress.round
        assert lag > 40
        swarm.hub.rules.clear()
        engine.step_cost_s /= 20
        met = behind.node.running.exchange.stats.committed
        await until(lambda: behind.node.running.exchange.stats.committed > met + 20)
        assert abs(ahead.node.progress.round - behind.node.progress.round) <= 2
        assert behind.node.progress.computed.steps >= 10 * (behind.node.progress.round - 1)


@virtual(1)
async def test_status_says_that_a_node_did_few_of_its_steps():
    swarm = story(digits(2, rounds=1000), 1)
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 1))
        node = swarm.nodes[0].node
        node.running.training.loop.grants.due += 10**6
        await until(lambda: take_snapshot(node).problem is not None, 10.0)
        assert "local steps done" in take_snapshot(node).problem


@cache
def committed_per_s(records: str, strangers: int) -> float:
    """Return exchanges committed per second, in a swarm of eight to which strangers each report joins and leaves 47.5 times per second."""

    async def tale():
        agreed = Manifest(
            task=TaskSection(kind="quadratic", nodes=8, dim=20),
            partition=PartitionSection(shards=8),
            pace=PaceSection(kind="steps", local_steps=5, rounds=10**6, quorum=8, max_wait_s=1.0, evaluate_every=10**6),
        )
        swarm = story(agreed, 1)
        async with swarm.running(8), trio.open_nursery() as nursery:
            await until(lambda: rounds_done(swarm, 5))
            victims = [virtual_node.peer_id for virtual_node in swarm.nodes.values()]
            for number in range(strangers):
                stranger = Stranger(swarm.hub, swarm.swarm, f"stranger {number}")
                nursery.start_soon(stranger.keep_saying, getattr(stranger, records)(), victims[number:], 47.5)
            began = sum(virtual_node.node.running.exchange.stats.committed for virtual_node in swarm.nodes.values())
            await trio.sleep(SECONDS)
            ended = sum(virtual_node.node.running.exchange.stats.committed for virtual_node in swarm.nodes.values())
            nursery.cancel_scope.cancel()
        return (ended - began) / 2 / SECONDS

    return replayable(tale, 1)


@pytest.mark.slow
@pytest.mark.acceptance
@pytest.mark.parametrize("records", ["versions", "lives"])
def test_flapping_strangers_prevent_few_exchanges(deterministic_scheduler, records):
    deterministic_scheduler(1)
    undisturbed = committed_per_s(records, 0)
    deterministic_scheduler(1)
    assert committed_per_s(records, 4) >= 0.7 * undisturbed > 0.0
