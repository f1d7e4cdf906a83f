"""Whole nodes that no longer improve stop together, long before their last round; improving ones continue."""

import msgspec

from starling.gossip.wire.schema import StopVote
from starling.node.config.schema import OptimizerSection
from starling.node.daemon.observe.snapshot import take_snapshot
from tests.harness.stories import virtual
from tests.harness.swarms import digits, rounds_done, story, until

ROUNDS = 60


def resting(every=2):
    """Return a manifest in which nothing is learned, so no evaluation after the first is better."""
    agreed = digits(4, mix="dsgd", rounds=ROUNDS, evaluate_every=every, stop_after=2)
    return msgspec.structs.replace(agreed, optimizer=OptimizerSection(lr=1e-12))


@virtual(0)
async def test_a_swarm_that_no_longer_improves_stops_and_says_why(seed):
    swarm = story(resting(), seed)
    async with swarm.running(4):
        await swarm.finished()
        for it in swarm.nodes.values():
            progress = it.node.progress
            assert 6 <= progress.round <= 8, "the first evaluation, two more, and a round for votes to arrive"
            assert progress.evaluated.round == progress.round
            said = [event.text for event in take_snapshot(it.node).events if event.name == "finished"]
            assert said == [f"stopped after {progress.round} rounds: two thirds of the members or more no longer improve"]


@virtual(0)
async def test_a_single_vote_stops_no_node_and_late_joiners_get_it(seed):
    swarm = story(resting(every=ROUNDS), seed)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 2))
        votes = {it.peer_id: it.node.running.stop.votes for it in swarm.nodes.values()}
        first, *others = swarm.nodes.values()
        votes[first.peer_id].stalled = True
        for other in others:
            other.node.running.stop.receive(first.peer_id, StopVote(2, True))
        await swarm.crash(3)
        await swarm.start(3)
        late = swarm.nodes[3].node
        await until(lambda: late.progress.state == "training" and late.running.stop.votes.received.get(first.peer_id))
        await until(lambda: rounds_done(swarm, 8))
        assert not any(it.node.running.training.house.evaluation.stopped_early for it in swarm.nodes.values())


@virtual(0)
async def test_identities_without_exchanges_stop_nobody(seed):
    """Eight identities of one stranger are members within seconds, and all vote to stop."""
    swarm = story(resting(every=ROUNDS), seed)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 2))
        stops = [it.node.running.stop for it in swarm.nodes.values()]
        for stop in stops:
            stop.votes.stalled = True
            for number in range(8):
                stop.receive(f"identity {number}", StopVote(2, True))
        await until(lambda: rounds_done(swarm, 12))
        assert all(len(it.node.running.begun.policy.electors()) >= 2 for it in swarm.nodes.values())
        assert not any(stop.agreed() for stop in stops)
        for stop in stops:
            for it in swarm.nodes.values():
                stop.receive(it.peer_id, StopVote(12, True))
        assert all(stop.agreed() for stop in stops)


@virtual(0)
async def test_members_that_are_gone_prevent_no_stop(seed):
    """Each had earned a vote, and two of five are more than a third."""
    agreed = digits(5, mix="dsgd", rounds=ROUNDS, evaluate_every=2, stop_after=12)
    swarm = story(msgspec.structs.replace(agreed, optimizer=OptimizerSection(lr=1e-12)), seed)
    async with swarm.running(5):
        await until(lambda: all(len(it.node.running.begun.policy.electors()) == 4 for it in swarm.nodes.values()))
        for index in (3, 4):
            await swarm.leave(index)
        await swarm.finished()
        assert all(it.node.progress.round < ROUNDS for it in swarm.nodes.values())
