"""What nobody had tried before: wrong clocks, frames played back, false accusations, kills without end. Whole nodes in virtual time."""

import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Rumor, Spread
from starling.node.config.schema import Manifest, NodeConfig, PaceSection, PartitionSection, TaskSection
from tests.harness.stories import virtual
from tests.harness.swarms import (
    agree,
    assert_flows_cancel,
    digits,
    drain,
    events,
    faults,
    rounds_done,
    story,
    until,
    values,
)

DAY_S = 86_400.0
KILLS = int(os.environ.get("STARLING_KILLS", "200"))


@virtual(more=(1,))
async def test_wall_clocks_that_are_wrong_or_jump_change_nothing():
    """Hours behind, days ahead, and one that jumps a year while it trains: nothing but what people read goes by them."""
    off = {0: 0.0, 1: -3600.0 * 7, 2: 3 * DAY_S, 3: 0.0}
    swarm = story(digits(4, rounds=30), 1, clock_off_s=off.__getitem__)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        off[3], off[0] = 365 * DAY_S, -30 * DAY_S
        await swarm.finished()
        assert agree(swarm)
        assert not faults(swarm)
        assert all(it.node.progress.computed.steps == 30 * 10 for it in swarm.nodes.values())
        assert not {"peer_died", "peer_reborn", "peer_suspected"} & {
            name for it in swarm.nodes.values() for name in events(it)
        }
        await drain(swarm)
        assert_flows_cancel(swarm)


@virtual(1)
async def test_a_node_whose_clock_went_back_is_a_member_again_after_a_restart():
    """Its new life has a lower number than the one that the others remember."""
    off = dict.fromkeys(range(4), 0.0) | {3: DAY_S}
    agreed = Manifest(
        task=TaskSection(kind="quadratic", nodes=4, dim=8), partition=PartitionSection(shards=4),
        pace=PaceSection(kind="steps", local_steps=2, rounds=1000, quorum=4, max_wait_s=1.0, evaluate_every=1000),
    )  # fmt: skip
    swarm = story(agreed, 1, clock_off_s=off.__getitem__)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 5))
        await swarm.crash(3)
        off[3] = 0.0
        back = await swarm.start(3)
        await until(lambda: agree(swarm) and back.node.progress.round > 5, 60.0)
        met = back.node.running.exchange.stats.committed
        await until(lambda: back.node.running.exchange.stats.committed > met + 10, 60.0)
        assert not faults(swarm)


def recorded(swarm):
    """From now on all frames of a swarm, with who sent them to whom."""
    frames, carry = [], swarm.hub.carry

    async def carried(src, dst, lane, frame):
        frames.append((src, dst, lane, bytes(frame)))
        await carry(src, dst, lane, frame)

    swarm.hub.carry = carried
    return frames


async def play_back(swarm, member, frames, *, per_s=500.0):
    """One member tells everybody what it recorded, as its own; in memory there is no rate that would stop it."""
    number = 0
    for _src, dst, lane, frame in frames:
        for peer in {dst, *(it.peer_id for it in swarm.nodes.values())} - {member.peer_id}:
            if peer in swarm.hub._peers and not swarm.hub._peers[peer].refuses(member.peer_id):
                await swarm.hub.carry(member.peer_id, peer, lane, frame)
                number += 1
                await trio.sleep(1.0 / per_s)
    return number


def deaths(virtual_node):
    return [name for name in events(virtual_node) if name in {"peer_died", "peer_reborn"}]


async def assert_the_honest_go_on(swarm, liar):
    honest = [it for index, it in swarm.nodes.items() if index != liar]
    met = {it.peer_id: it.node.running.exchange.stats.committed for it in honest}
    at = {it.peer_id: it.node.progress.round for it in honest}
    gone = {it.peer_id: deaths(it) for it in honest}
    await until(lambda: all(it.node.progress.round > at[it.peer_id] + 20 for it in honest), 60.0)
    for it in honest:
        assert it.node.running.exchange.stats.committed > met[it.peer_id] + 10
        assert not set(it.node.events.faults) & {other.peer_id for other in honest}
        assert deaths(it) == gone[it.peer_id]
        assert it.node.progress.computed.steps >= 0.95 * it.node.progress.round * 10


@virtual(more=(1,))
async def test_frames_of_another_swarm_of_another_link_and_of_an_earlier_life_change_nothing():
    """The same keys trained in another swarm before; frames of all its links, of all links here and of the liar's last life."""
    elsewhere = story(digits(4, rounds=1000, seed=7), 1)
    async with elsewhere.running(4):
        foreign = recorded(elsewhere)
        await until(lambda: rounds_done(elsewhere, 6))
    swarm = story(digits(4, rounds=1000), 1)
    assert swarm.swarm != elsewhere.swarm
    async with swarm.running(4):
        frames = recorded(swarm)
        await until(lambda: rounds_done(swarm, 6))
        await swarm.crash(3)
        await until(lambda: agree(swarm))
        liar = await swarm.start(3)
        await until(lambda: agree(swarm))
        kept = random.Random(1)
        of_life = [it for it in frames if it[0] == liar.peer_id][:200]
        of_links = [it for it in frames if liar.peer_id not in it[:2]][:200]
        kept.shuffle(of_links)
        async with trio.open_nursery() as nursery:
            for some in (of_life, of_links, foreign[:200]):
                nursery.start_soon(play_back, swarm, liar, some)
            await assert_the_honest_go_on(swarm, 3)
            nursery.cancel_scope.cancel()
        members = {it.peer_id for it in swarm.nodes.values()}
        assert all(set(it.node.running.membership.members) <= members for it in swarm.nodes.values())


@virtual(more=(1, 2))
@pytest.mark.parametrize("accusers", [1, 2])
async def test_one_or_two_that_accuse_a_member_all_the_time_kill_nobody_and_cost_it_little(accusers):
    """20 frames a second each, of the newest version there is, to all others: suspect, then dead."""
    swarm = story(digits(6, rounds=1000), 1)
    async with swarm.running(6), trio.open_nursery() as nursery:
        await until(lambda: rounds_done(swarm, 5))
        liars, victim = [swarm.nodes[index] for index in range(accusers)], swarm.nodes[5]
        verified = {index: it.node.running.membership for index, it in swarm.nodes.items()}
        frames = recorded(swarm)
        began, at = trio.current_time(), victim.node.progress.round

        async def accuse(liar):
            while True:
                newest = max(
                    it.table[victim.peer_id].record.version for it in verified.values() if victim.peer_id in it.table
                )
                incarnation = next(
                    it.table[victim.peer_id].record.incarnation
                    for it in verified.values()
                    if victim.peer_id in it.table
                )
                for state in ("suspect", "dead"):
                    rumor = Rumor(victim.peer_id, incarnation, newest, state, liar.peer_id)
                    for other in swarm.nodes.values():
                        if other is not liar:
                            await liar.node.network.send(other.peer_id, "control", encode(Spread((), (rumor,))))
                await trio.sleep(0.1)

        for liar in liars:
            nursery.start_soon(accuse, liar)
        await trio.sleep(60.0)
        seconds, rounds = trio.current_time() - began, victim.node.progress.round - at
        nursery.cancel_scope.cancel()
        mine = [frame for src, _, lane, frame in frames if src == victim.peer_id and lane == "control"]
        assert len(mine) / seconds < 40.0
        assert rounds / seconds > 3.0  # of five undisturbed
        for it in swarm.nodes.values():
            assert not deaths(it)
            assert victim.peer_id in it.node.running.membership.members
        assert victim.node.progress.computed.steps >= 0.95 * victim.node.progress.round * 10


@virtual(more=(1,))
@pytest.mark.timeout(1800)
async def test_six_nodes_stand_as_many_kills_at_random_instants_as_one_likes():
    """STARLING_KILLS of them: one node at a time without a goodbye, or its engine, and back after up to three seconds."""
    draws = random.Random(1)
    with TemporaryDirectory() as folder:
        swarm = story(
            digits(6, rounds=10**6, evaluate_every=10**6), 1, folder=Path(folder),
            config=NodeConfig(linger_s=1e6, threads=1, trust=True, checkpoint_s=2.0),
        )  # fmt: skip
        async with swarm.running(6):
            await until(lambda: rounds_done(swarm, 5))
            for _ in range(KILLS):
                await trio.sleep(draws.expovariate(1.0))
                index = draws.choice(sorted(swarm.nodes))
                await swarm.crash(index)
                await trio.sleep(draws.uniform(0.0, 3.0))
                await swarm.start(index)
            await until(lambda: agree(swarm), 120.0)
            assert not faults(swarm)
            at = {index: it.node.progress.round for index, it in swarm.nodes.items()}
            met = {index: it.node.running.exchange.stats.committed for index, it in swarm.nodes.items()}
            await until(
                lambda: all(
                    it.node.progress.round > at[index] + 20
                    and it.node.running.exchange.stats.committed > met[index] + 10
                    for index, it in swarm.nodes.items()
                ),
                120.0,
            )
            await trio.sleep(5.0)
            for it in swarm.nodes.values():
                await it.node.running.training.evaluate()
            assert min(values(swarm)) > 0.9
