"""Whole crews in virtual time: several nodes hold one model and are one member of the swarm."""

import pytest
import torch
import trio
from msgspec import structs

from starling.gossip.pipeline.later_rounds import MOST
from starling.gossip.pipeline.minutes import body
from starling.gossip.wire.schema import Backward, Minutes, Ready
from starling.node.config.schema import CrewSection, OptimizerSection, PartitionSection, TaskSection
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.net.faults import delay, loss
from tests.harness.crews import PLAIN, one_machine, text_in
from tests.harness.swarms import assert_flows_cancel, digits, drain, events, faults, flows_with, lie, rounds_done, story, until, values
from tests.harness.virtual import virtual

ROUNDS, STEPS = 6, 3


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_in(tmp_path_factory.mktemp("text"))


def gpt(text, stages=3, **rounds):
    agreed = digits(1, rounds=ROUNDS, local_steps=STEPS, quorum=1, evaluate_every=ROUNDS, **rounds)
    return structs.replace(
        agreed,
        task=TaskSection(kind="text", path=text, batch_size=8, context=16, width=16, layers=2, heads=2, tied=False),
        partition=PartitionSection(kind="iid", shards=1),
        optimizer=OptimizerSection(kind="adamw", lr=3e-3, schedule="constant"),
        crew=CrewSection(stages=stages, **PLAIN),
    )


def alone(text):
    """Return (d,) the model of one machine that accumulates the same micro-batches."""
    engine = one_machine(gpt(text))
    for _ in range(ROUNDS * STEPS):
        engine.trainer.step(0)
    return engine.vector


def whole(swarm):
    """Return (d,) the model of the only crew."""
    by_stage = {virtual.node.running.role.service.stage_peers.stage: virtual.vector for virtual in swarm.nodes.values()}
    return torch.cat([by_stage[stage] for stage in sorted(by_stage)])


@pytest.mark.acceptance
@virtual
async def test_a_crew_of_three_trains_bit_for_bit_like_one_machine(text):
    swarm = story(gpt(text), 0)
    async with swarm.running(3):
        await swarm.finished()
        assert torch.equal(whole(swarm), alone(text))
        assert len(set(values(swarm))) == 1, "all stages know how good the model is"
        assert values(swarm)[0] is not None
        assert not faults(swarm)


ACCEPTANCE = pytest.mark.acceptance


@pytest.mark.parametrize(("victim", "at"), [(1, 2), pytest.param(0, 3, marks=ACCEPTANCE), pytest.param(2, 1, marks=ACCEPTANCE)])
@virtual
async def test_a_lost_stage_is_taken_by_the_machine_that_keeps_its_copy_and_nothing_is_lost(victim, at, text):
    swarm = story(gpt(text), 0, delay(0.01))
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, at))
        await swarm.crash(victim)
        began = trio.current_time()
        done = max(virtual.node.progress.figures.local_steps for virtual in swarm.nodes.values())
        survivors = list(swarm.nodes.values())
        await until(lambda: all(each.node.running.role.service.machine.states.step > done + STEPS for each in survivors), 60.0)
        assert trio.current_time() - began < 15.0
        await swarm.finished()
        assert sorted(virtual.node.running.role.service.stage_peers.stage for virtual in swarm.nodes.values()) == [0, 1, 2]
        assert torch.equal(whole(swarm), alone(text)), "what was done since the last copy was done again"
        assert not faults(swarm)


@pytest.mark.acceptance
@virtual
async def test_lost_frames_cost_time_and_nothing_else(text):
    swarm = story(gpt(text), 0, loss(0.02, seed=3), delay(0.05))
    async with swarm.running(3):
        await swarm.finished()
        assert torch.equal(whole(swarm), alone(text))
        assert not faults(swarm)


@pytest.mark.acceptance
@virtual
async def test_a_stage_that_withholds_its_gradients_is_replaced_and_the_crew_ends_as_one_machine(text):
    """It comes to meetings and says that it lives; after eight minutes the others go on with a second node in its place.

    Its own machine finds that its neighbor withholds what comes next, and frees that one's seat; nobody goes with it.
    """
    swarm = story(gpt(text), 0, delay(0.01))
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 2))
        lie(swarm.nodes[2].node.network, "crew", lambda message: [] if isinstance(message, Backward) else [message], lambda _peer: True)
        began = trio.current_time()
        others = [swarm.nodes[0], swarm.nodes[1]]
        await until(lambda: all(each.node.progress.state == "finished" for each in others), 900.0)
        assert 450.0 < trio.current_time() - began < 600.0
        seconds = [each for index, each in swarm.nodes.items() if index > 2 and each.node.progress.round > 2]
        assert torch.equal(torch.cat([each.vector for each in (*others, *seconds)]), alone(text))
        assert "crew_withheld" in events(others[1])
        assert not faults(swarm)


@virtual
async def test_two_crews_of_two_learn_more_together_than_alone():
    agreed = structs.replace(
        digits(2, rounds=8, local_steps=5, quorum=2, evaluate_every=8),
        partition=PartitionSection(kind="by_label", shards=2),
        crew=CrewSection(stages=2, micro_batches=2),
    )
    swarm = story(agreed, 0, delay(0.002))
    async with swarm.running(4):
        await swarm.finished()
        assert all("crew_whole" in events(virtual) for virtual in swarm.nodes.values())
        together = values(swarm)
        committed = [virtual.node.running.exchange.stats.committed for virtual in swarm.nodes.values()]
        assert min(committed) >= 6
        await drain(swarm)
        for stage in (0, 1):
            pair = [virtual for virtual in swarm.nodes.values() if virtual.node.running.role.service.stage_peers.stage == stage]
            held = [virtual.engine.replica.memory.ledger for virtual in pair]
            assert torch.equal(held[0].flows[pair[1].peer_id], -held[1].flows[pair[0].peer_id])
    apart = []
    for shard in (0, 1):
        one = structs.replace(agreed, pace=agreed.pace.changed(quorum=1))
        swarm = story(one, 0)
        async with swarm.running(0):
            await swarm.start(0, shard=shard)
            await swarm.start(1, shard=shard)
            await swarm.finished()
            apart += values(swarm)
    assert min(together) > max(apart) + 0.2


@virtual
async def test_one_stage_that_says_that_the_run_is_over_ends_it_for_nobody():
    """It says so to its neighbor alone; its crew goes on by few rounds, and the other one does not notice."""
    rounds, steps = 16, 2
    agreed = structs.replace(
        digits(2, rounds=rounds, local_steps=steps, quorum=2, evaluate_every=rounds),
        partition=PartitionSection(kind="iid", shards=2),
        crew=CrewSection(stages=2, micro_batches=2),
    )
    swarm = story(agreed, 0, delay(0.002))
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 2))
        liar = swarm.nodes[3].node
        stage, sign = liar.running.role.service.stage_peers.stage, liar.running.context.identity.sign

        def over(message):
            if isinstance(message, Minutes):
                return []
            if not isinstance(message, Ready) or not message.turn:
                return [message]
            false = structs.replace(message, round=rounds)
            return [structs.replace(false, signature=sign(body(stage, false)))]

        lie(liar.network, "crew", over, lambda _peer: True)
        await swarm.finished()
        done = sorted(virtual.node.running.role.service.machine.states.step for virtual in swarm.nodes.values())
        assert done[2:] == [rounds * steps] * 2
        assert done[0] >= (rounds - MOST) * steps
        assert not faults(swarm)


@virtual
async def test_a_quorum_counts_crews_and_a_node_says_what_it_waits_for():
    """Three machines make one crew of two, and two crews are required."""
    swarm = story(structs.replace(digits(2, rounds=8, quorum=2), crew=CrewSection(stages=2, micro_batches=2)), 0)
    async with swarm.running(3):
        await until(lambda: all(virtual.node.progress.state == "waiting" for virtual in swarm.nodes.values()))
        await trio.sleep(30.0)
        for virtual in swarm.nodes.values():
            assert virtual.node.progress.state == "waiting"
            assert take_snapshot(virtual.node).problem.startswith("waiting for 2 whole crews, 1 here; invite others")


@pytest.mark.acceptance
@virtual
async def test_losing_a_stage_peer_deletes_only_its_flow():
    agreed = structs.replace(digits(2, rounds=400, local_steps=2, quorum=2), crew=CrewSection(stages=2, micro_batches=4))
    swarm = story(agreed, 0, delay(0.005))
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 5))
        lost, other = swarm.nodes[3].peer_id, swarm.nodes[2].peer_id
        assert flows_with(swarm, lost)
        await swarm.crash(3)
        await until(lambda: 1001 in swarm.nodes and swarm.nodes[1001].engine is not None, 60.0)
        await until(lambda: not flows_with(swarm, lost), 60.0)
        assert flows_with(swarm, other), "the stage that lives keeps its edge"
        new = swarm.nodes[1001].peer_id
        await until(lambda: flows_with(swarm, new), 60.0)
        assert not faults(swarm)
    assert assert_flows_cancel is not None
