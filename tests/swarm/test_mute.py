"""One of six members never answers an exchange, though it answers probes: rounds of the others in virtual time."""

from statistics import median

import pytest
import trio

from starling.gossip.wire.schema import NotNow, Pulled
from starling.node.config import presets
from starling.node.config.schema import Manifest
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.hostile import answering, silent
from tests.harness.stories import virtual
from tests.harness.swarms import STEP_S, lie, rounds_done, story, until

NODES, ROUNDS, LOCAL_STEPS = 6, 100, 10
USUAL_S = ROUNDS * LOCAL_STEPS * STEP_S  # and a few milliseconds a round for exchanges


def bowls(*further: str) -> Manifest:
    """The cheapest problem there is; deadlines as a manifest has them that names none.

    Pairs are not defended: a slow node with an optimum of its own is as far from the others as a liar.
    """
    sets = [
        "mix.defended=false",
        "task.kind=quadratic",
        f"task.nodes={NODES}",
        "task.dim=50",
        f"partition.shards={NODES}",
        f"pace.quorum={NODES}",
        *further,
    ]
    return presets.load(Manifest, assignments=[*sets, f"pace.local_steps={LOCAL_STEPS}", f"pace.rounds={100 * ROUNDS}"])


async def seconds_for(nodes, rounds: int) -> float:
    """Until the middle one of these nodes has done so many rounds."""
    began = trio.current_time()
    await until(lambda: median(it.node.progress.round for it in nodes) >= rounds, 300.0)
    return trio.current_time() - began


def named(virtual) -> set[str]:
    """Return the peers of which a node has said that they say nothing."""
    return {event.text.split()[0] for event in virtual.node.events.recent if event.name == "peer_mute"}


@virtual(3, more=(1, 2))
async def test_a_member_that_answers_probes_and_no_exchange_costs_the_others_few_rounds():
    """With ten seconds for who never answered, and full deadlines now and then, a hundred rounds took 39 to 50 s."""
    swarm = story(bowls(), 1)
    async with swarm.running(NODES):
        mute = swarm.nodes.pop(NODES - 1)
        await until(lambda: rounds_done(swarm, 1))
        answering(mute.node.network, "exchange", silent)
        began, honest = trio.current_time(), list(swarm.nodes.values())
        assert await seconds_for(honest, ROUNDS // 2) <= 1.1 * USUAL_S
        assert await seconds_for(honest, ROUNDS) <= 0.6 * USUAL_S
        assert not any(it.node.events.faults for it in honest)
        most = NODES - 2  # lasting edges leave one honest node without a link to it
        await until(lambda: sum(named(it) == {mute.peer_id} for it in honest) >= most, began + 60.0 - trio.current_time())


@virtual(3, more=(1, 2))
async def test_a_node_five_times_slower_takes_part_in_as_many_exchanges_as_before():
    swarm = story(bowls(), 1, slow={NODES - 1: 5.0})
    async with swarm.running(NODES):
        slow, *others = (swarm.nodes[index] for index in (NODES - 1, *range(NODES - 1)))
        await seconds_for(others, ROUNDS // 2)
        assert sum(it.node.running.exchange.committed(slow.peer_id) for it in others) >= ROUNDS // 10
        assert not any(it.node.events.faults or named(it) for it in others)


PULLED = ("mix=gather", "overlay=pull", "overlay.k=4", "robust.rule=cs_nnm", "robust.f=1", "compress.select=full", "compress.response=fp16")


@virtual(1, more=(2,))
@pytest.mark.parametrize(("reason", "behind"), [pytest.param("wait", 0, marks=pytest.mark.acceptance), ("early", 5)])
async def test_a_member_that_puts_off_every_pull_costs_the_others_few_rounds(reason, behind):
    """It says that its vector will follow, or that it is rounds behind.

    A hundred rounds took 41 and 168 s instead of 20, the next hundred 42 and over 300.
    """
    swarm = story(bowls(*PULLED), 1)
    async with swarm.running(NODES):
        liar = swarm.nodes.pop(NODES - 1)
        await until(lambda: rounds_done(swarm, 3))

        def put_off(message):
            return [NotNow(message.nonce, max(0, message.round - behind), reason) if isinstance(message, Pulled) else message]

        lie(liar.node.network, "exchange", put_off, lambda _peer: True)
        honest = list(swarm.nodes.values())
        assert await seconds_for(honest, ROUNDS // 2) <= 0.7 * USUAL_S
        assert await seconds_for(honest, ROUNDS) <= 0.65 * USUAL_S


FIVE = ("partition.shards=5", "pace.quorum=5", "task.nodes=5")
SHORT_S = 0.0025  # cost of a local step: a round takes a tenth of the shortest deadline


@virtual(3, more=(1, 2))
@pytest.mark.acceptance
async def test_a_member_that_goes_mute_costs_few_rounds_where_rounds_are_shorter_than_any_deadline(seed):
    """Each wait for it puts this node rounds behind the others. Sixty rounds took 34 s, and take 3 s where all answer.

    A node out of phase waited for it as long as for a node that is behind, for ten seconds, and others for that one.
    """
    swarm = VirtualSwarm(bowls(*FIVE), seed=seed, step_cost_s=lambda index: SHORT_S * (1 + (index == 3)))
    async with swarm.running(5):
        mute = swarm.nodes.pop(4)
        await until(lambda: rounds_done(swarm, 5))
        answering(mute.node.network, "exchange", silent)
        honest = list(swarm.nodes.values())
        assert await seconds_for(honest, 60) <= 6.0
        assert not any(it.node.events.faults for it in honest)
