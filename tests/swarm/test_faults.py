"""Non-malicious faults: whole nodes under loss, crashes, partitions, stragglers and slow links, in virtual time.

The ledger's invariants are checked bit for bit at the end of every story: each flow is the negative of its other end's, and the
corrections of live nodes sum to zero.
"""

from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import msgspec
import torch

from starling.node.config.schema import CompressSection, MembershipSection, MixSection, NodeConfig
from starling.node.engine.tensor_file import unpack
from starling.node.net.faults import Drop
from tests.harness.links import slow
from tests.harness.stories import virtual
from tests.harness.swarms import (
    agree,
    assert_flows_cancel,
    digits,
    drain,
    events,
    flows_with,
    kill_engine,
    rounds_done,
    story,
    until,
    values,
)

POINTS = 0.02  # "about as good": two points of accuracy
LEARNED = 0.93  # accuracy of a swarm on digits within forty rounds; guessing gives 0.1
WATCHFUL = MembershipSection(probe_s=0.3, timeout_s=0.15, suspicion_s=0.6, sync_s=1.0)  # deaths are detected within 2 s


def damped(agreed):
    """Return a manifest with the damping for failing or sparse exchanges: with less, models diverge at a constant learning rate."""
    return msgspec.structs.replace(agreed, mix=MixSection(kappa=0.1))


def watchful(agreed):
    return msgspec.structs.replace(agreed, membership=WATCHFUL)


@virtual(1)
async def test_an_exchange_committed_while_a_node_lingers_reaches_its_checkpoint(seed):
    with TemporaryDirectory() as folder:
        swarm = story(digits(2, rounds=3), seed, folder=Path(folder))
        async with swarm.running(2):
            one, two = sorted(swarm.nodes.values(), key=lambda node: node.peer_id)
            index = next(index for index, node in swarm.nodes.items() if node is two)
            acknowledged = lambda: one.node.running.exchange.committed(two.peer_id) == 3  # noqa: E731
            swarm.hub.rules.append(lambda src, dst, _now: Drop() if src == one.peer_id and acknowledged() else None)
            await swarm.finished()
            saved = two.engine.vector.clone()
            assert two.node.running.exchange.committed(one.peer_id) == 2
            swarm.hub.rules.clear()
            await until(lambda: two.node.running.exchange.committed(one.peer_id) == 3)
            await swarm.leave(index)
            stored, facts = unpack((Path(folder) / f"{index}.safetensors").read_bytes())
            assert torch.equal(stored["x"], two.engine.vector)
            assert not torch.equal(stored["x"], saved)
            assert facts["round"] == 3


@virtual(1)
async def test_survivors_delete_a_crashed_node_s_flow_and_it_returns_with_a_new_incarnation(seed):
    swarm = story(watchful(digits(6, rounds=40)), seed)
    async with swarm.running(6):
        await until(lambda: rounds_done(swarm, 15))
        gone = swarm.nodes[4].peer_id
        assert flows_with(swarm, gone)
        await swarm.crash(4)
        noticed_s = await until(lambda: agree(swarm))
        assert noticed_s < 2.0
        await until(lambda: not flows_with(swarm, gone), 0.5)
        for virtual in swarm.nodes.values():
            assert "peer_died" in events(virtual)
        await until(lambda: rounds_done(swarm, 25))
        back = await swarm.start(4)
        await swarm.finished()
        assert back.node.progress.joined_late
        assert back.node.progress.figures.local_steps < 40 * 10
        assert any(gone in v.node.running.exchange.edges and v.node.running.exchange.committed(gone) for v in swarm.nodes.values())
        assert abs(back.node.progress.evaluated.value - mean(values(swarm))) <= POINTS
        assert min(values(swarm)) > LEARNED
        await drain(swarm)
        assert_flows_cancel(swarm)


@virtual(1, more=(2,))
async def test_an_engine_that_dies_is_restarted_and_its_edges_begin_anew_at_both_ends(seed):
    with TemporaryDirectory() as folder:
        swarm = story(
            digits(6, rounds=40), seed, folder=Path(folder), config=NodeConfig(linger_s=1e6, threads=1, trust=True, checkpoint_s=1.0)
        )
        async with swarm.running(6):
            await until(lambda: rounds_done(swarm, 15))
            hurt = swarm.nodes[3]
            first = hurt.engine
            lives = {peer: edge.inc for peer, edge in hurt.node.running.exchange.edges.items()}
            assert first.replica.memory.ledger.flows
            kill_engine(hurt)
            await until(lambda: hurt.node.running.engine.restarts == 1 and hurt.engine.replica.memory.ledger is not None, 5.0)
            assert hurt.engine is not first
            await until(lambda: rounds_done(swarm, 20))
            for peer, edge in hurt.node.running.exchange.edges.items():
                assert edge.inc > lives.get(peer, -1)
            assert agree(swarm)  # the node never left
            await swarm.finished()
            assert "engine_restarting" in events(hurt)
            assert min(values(swarm)) > LEARNED
            await drain(swarm)
            assert assert_flows_cancel(swarm) > 0.0


@virtual(more=(1, 2))
async def test_a_node_five_times_slower_neither_stops_the_others_nor_is_excluded(seed):
    async def fast_s(slower):
        swarm = story(damped(digits(6, rounds=60)), seed, slow=slower)
        async with swarm.running(6):
            await until(lambda: rounds_done(swarm, 1))
            fast = [swarm.nodes[index].node.progress for index in range(5)]
            took_s = await until(lambda: all(progress.state == "finished" for progress in fast))
            await swarm.finished()
            return took_s, values(swarm), swarm.nodes[5].node.running.exchange.stats.committed

    even_s, *_ = await fast_s({})
    slowed_s, reached, met = await fast_s({5: 5.0})
    assert slowed_s < 3.0 * even_s
    assert met > 6
    assert min(reached) > LEARNED - POINTS


@virtual(1)
async def test_an_orderly_leave_is_forgotten_at_once_without_a_remaining_flow(seed):
    swarm = story(digits(6, rounds=30), seed)
    async with swarm.running(6):
        await until(lambda: rounds_done(swarm, 12))
        gone = swarm.nodes[1].peer_id
        assert flows_with(swarm, gone)
        await swarm.leave(1)
        await until(lambda: agree(swarm) and not flows_with(swarm, gone), 0.5)
        assert all("peer_left" in events(virtual) for virtual in swarm.nodes.values())
        await swarm.finished()
        assert not flows_with(swarm, gone)
        assert min(values(swarm)) > LEARNED - POINTS
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


@virtual(more=(1,))
async def test_on_a_thin_link_exchanges_stay_within_their_budget_of_bytes_and_the_swarm_learns(seed):
    budget = 2000
    agreed = digits(6, local_steps=5, rounds=120, compress=CompressSection(budget_bytes=budget))
    swarm = story(damped(agreed), seed)
    swarm.hub.rules.append(slow(swarm.identity(5).peer_id, 16_000.0))
    async with swarm.running(6):
        await swarm.finished()
        await drain(swarm)
        spent = sum(v.node.running.exchange.payload_bytes for v in swarm.nodes.values())
        ends = sum(v.node.running.exchange.stats.committed for v in swarm.nodes.values())
        assert 0.5 * budget < spent / (ends / 2) <= budget
        assert swarm.nodes[5].node.running.exchange.stats.committed > 60
        assert mean(values(swarm)) > LEARNED
        assert min(values(swarm)) > LEARNED - POINTS
        assert assert_flows_cancel(swarm) > 0.0
