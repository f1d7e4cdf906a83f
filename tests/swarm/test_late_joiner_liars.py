"""Late joiners among liars: some of the peers that they ask for a model give a false one.

A liar is a normal member except for its engine's snapshot. The joiner must start near the honest models and blame the liar only, however
different honest models are.
"""

import math

import pytest
import torch
import trio
from msgspec.structs import replace

from starling.gossip.chunk_times import LEAST_S
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Chunk, Compare, Spread, StateOffer, Sync, Want
from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.daemon.state.fetching import POLL_S
from starling.node.engine.snapshot import Snapshot
from starling.node.net.faults import Deliver, Drop
from starling.node.rpc import calls
from starling.robust.reputation import SOFT
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, lie, rounds_done, story, until

LIES = {
    "turned around": lambda x: -x,
    "ten times as large": lambda x: 10.0 * x,
    "not a number": lambda x: x * math.nan,
    "with a back door": lambda x: x + 3.0 * x.norm() * torch.nn.functional.one_hot(torch.tensor(3), len(x)),
}


def poison(virtual, lie, *, claim: int | None = None) -> list[int]:
    """Let a node give a false model from now on; return the rounds in which it was asked for it."""
    session, asked = virtual.engine.session, []

    def snapshot(_call):
        asked.append(session.round)
        schema = virtual.engine.trainer.schema
        facts = {"kind": "model", "round": session.round, "schema": schema.hex()}
        held = Snapshot(None, {"x": lie(session.replica.x.clone())}, facts)
        session.answers[calls.ReadChunk] = lambda call: calls.ChunkRead(held.read(call.offset, call.length))
        at = session.round if claim is None else claim
        return calls.SnapshotInfo(held.number, held.size, held.root, at, schema, held.digests)

    session.answers[calls.Snapshot] = snapshot
    return asked


def bowls(nodes: int, quorum: int) -> Manifest:
    """Return the cheapest problem; every model begins at 0, so a negated one is as near as possible."""
    return Manifest(
        task=TaskSection(kind="quadratic", nodes=nodes, dim=50),
        partition=PartitionSection(shards=nodes),
        pace=PaceSection(kind="steps", local_steps=5, rounds=40, quorum=quorum, max_wait_s=1.0),
    )


def spread(swarm, *nodes: int) -> float:
    """Return the largest distance of two models."""
    models = [swarm.nodes[index].vector for index in nodes]
    return max(float((a - b).norm()) for a in models for b in models)


async def joined(swarm, index: int):
    """Start a node and wait until it trains; return it and its model at that time."""
    late = await swarm.start(index)
    await until(lambda: late.node.progress.state == "training")
    return late, late.vector


@virtual(1)
@pytest.mark.parametrize(("members", "lie"), [*((3, lie) for lie in LIES), (4, "turned around")])
async def test_a_joiner_starts_near_the_honest_and_reports_a_peer_that_gave_another_model(members, lie):
    swarm = story(bowls(members + 1, members), 1)
    async with swarm.running(members):
        liar = swarm.nodes[1]
        await until(lambda: rounds_done(swarm, 12))
        asked = poison(liar, LIES[lie], claim=2**62)
        honest = [index for index in swarm.nodes if index != 1]
        apart = spread(swarm, *honest)
        late, began = await joined(swarm, members)
        near = min(float((began - swarm.nodes[index].vector).norm()) for index in honest)
        assert near <= 3.0 * max(apart, spread(swarm, *honest))
        assert late.node.progress.round < 40
        assert late.node.events.faults.keys() <= {liar.peer_id}
        proven = lie == "not a number"  # otherwise none: two that agree might be the liars
        assert late.node.network.refuses(liar.peer_id) == (bool(asked) and proven)
        assert bool(asked) or members > 3  # of three all are asked
        if asked:
            assert late.node.events.faults[liar.peer_id].keys() == {"state_poisoned" if proven else "state_outlier"}
            assert proven or late.node.policy.standing(liar.peer_id).score <= SOFT
        (told,) = [event.text for event in late.node.events.recent if event.name == "state_fetched"]
        assert liar.peer_id not in told
        await until(lambda: late.node.progress.round >= 20)
        assert late.node.running.exchange.stats.committed > 0  # it takes part


@virtual(1)
async def test_a_node_that_returns_far_behind_gets_the_honest_model_and_reports_a_peer_that_gave_another():
    """Its own checkpoint does not protect it: it is old, so the node asks for a model like a late joiner."""
    swarm = story(bowls(4, 4), 1)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 2))
        await swarm.crash(2)
        await until(lambda: rounds_done(swarm, 20))
        liar, honest = swarm.nodes[1], (0, 3)
        asked = poison(liar, LIES["turned around"], claim=2**62)
        back, began = await joined(swarm, 2)
        assert asked
        near = min(float((began - swarm.nodes[index].vector).norm()) for index in honest)
        assert near <= 3.0 * spread(swarm, *honest)
        assert back.node.events.faults.keys() == {liar.peer_id}
        assert back.node.events.faults[liar.peer_id] == {"state_outlier": 1}
        assert 18 <= back.node.progress.round < 40  # a snapshot shared with other requests may be of an earlier round


@virtual(1)
@pytest.mark.parametrize("alone", [3.0, 10.0])
async def test_an_honest_member_far_from_the_others_is_not_blamed(alone):
    swarm = story(bowls(4, 3), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 12))
        away = alone * max(spread(swarm, 0, 2), 0.01)
        draw = torch.Generator().manual_seed(3)
        step = torch.randn(50, generator=draw)
        hermit = poison(swarm.nodes[1], lambda x: swarm.nodes[0].vector + away * step / step.norm())
        late, _ = await joined(swarm, 3)
        assert hermit
        assert not late.node.events.faults
        assert "state_fetched" in events(late)


@virtual(1)
async def test_real_models_on_uneven_data_agree_and_nobody_is_blamed():
    swarm = story(digits(5, rounds=40, quorum=4), 1)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 2))
        late, _ = await joined(swarm, 4)
        assert late.node.progress.joined_late
        assert not late.node.events.faults
        assert not any(virtual.node.events.faults for virtual in swarm.nodes.values())
        (told,) = [event for event in late.node.events.recent if event.name == "state_fetched"]
        assert told.level == "info"
        assert told.text.count("12D3KooW") >= 2


@virtual(1)
async def test_contradicting_models_are_not_installed_until_they_agree():
    swarm = story(bowls(4, 2), 1)
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 8))
        honest = dict(swarm.nodes[1].engine.session.answers)
        asked = poison(swarm.nodes[1], lambda x: -x)
        late = await swarm.start(2)
        await until(lambda: len(asked) >= 3)  # it asks repeatedly
        assert late.node.progress.state == "joining"
        assert not late.node.events.faults
        assert not late.vector.any()
        assert "state_contradicted" in events(late)
        assert "state_fetched" not in events(late)
        swarm.nodes[1].engine.session.answers.update(honest)  # the liar stops lying
        await until(lambda: late.node.progress.state == "training")
        assert late.node.progress.joined_late
        assert float((late.vector - swarm.nodes[0].vector).norm()) < 0.5 * float(swarm.nodes[0].vector.norm())


@virtual(1)
async def test_the_owner_resolves_contradicting_models_by_a_ban():
    swarm = story(bowls(4, 2), 1)
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 8))
        poison(swarm.nodes[1], lambda x: -x)
        late = await swarm.start(2)
        await until(lambda: "state_contradicted" in events(late))
        told = [it.text for it in take_snapshot(late.node).events if it.name == "state_contradicted"]
        assert told[0].endswith("`starling ban PEER` leaves one out")
        late.node.policy.ban(swarm.nodes[1].peer_id)
        await until(lambda: late.node.progress.state == "training")
        assert float((late.vector - swarm.nodes[0].vector).norm()) < 0.5 * float(swarm.nodes[0].vector.norm())


def withhold(virtual, take) -> None:
    """From now on a node offers its model, and sends of it what `take(frame)` sends, if that is not None."""
    network = virtual.node.network
    honest = network.send

    async def send(peer, lane, frame):
        if lane == "state" and isinstance(decode(lane, "", frame), Chunk) and not await take(frame):
            return
        await honest(peer, lane, frame)

    network.send = send


async def nothing(_frame) -> bool:
    await trio.lowlevel.checkpoint()
    return False


async def slowly(_frame) -> bool:
    await trio.sleep(2.5)
    return True


@virtual(1)
@pytest.mark.parametrize("members", [3, 4])
@pytest.mark.parametrize("take", [nothing, slowly])
async def test_a_member_that_offers_its_model_and_sends_nothing_costs_a_joiner_a_few_seconds(members, take):
    swarm = story(bowls(members + 1, members), 1)
    async with swarm.running(members):
        await until(lambda: rounds_done(swarm, 8))
        liar = swarm.nodes[1]
        withhold(liar, take)
        began = trio.current_time()
        late, _ = await joined(swarm, members)
        assert trio.current_time() - began <= LEAST_S + 2.0 * POLL_S
        (told,) = [event.text for event in late.node.events.recent if event.name == "state_fetched"]
        assert liar.peer_id not in told
        assert told.count("12D3KooW") == members - 1
        assert late.node.events.faults in ({}, {liar.peer_id: {"state_withheld": 1}})
        assert bool(late.node.events.faults) or members > 3  # of three all are asked
        assert late.node.policy.standing(liar.peer_id).score <= SOFT


@virtual(1)
async def test_a_single_claim_of_a_far_round_is_not_followed():
    swarm = story(bowls(5, 5), 1)
    async with swarm.running(4):
        await until(lambda: all(v.node.progress.state == "waiting" for v in swarm.nodes.values()))
        poison(swarm.nodes[1], lambda x: x + 100.0, claim=30)
        late, began = await joined(swarm, 4)
        assert not late.node.progress.joined_late
        assert float(began.norm()) < 100.0


FAR = 10**6  # a round beyond the last


def only_itself(virtual):
    """Return what a node makes of control messages that would tell a newcomer of other members."""

    def forge(message):
        if isinstance(message, Compare | Want):
            return []
        if isinstance(message, Sync | Spread):
            return [replace(message, records=tuple(it for it in message.records if it.peer == virtual.peer_id))]
        return [message]

    return forge


@virtual(1)
@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.5])
async def test_a_member_that_answers_before_all_others_does_not_choose_a_newcomer_s_model(seconds):
    """It tells of nobody else, and for a moment the newcomer knows it alone."""
    swarm, newcomer = story(bowls(5, 4), 1), []
    async with swarm.running(4):
        liar = swarm.nodes[1]
        swarm.hub.rules.append(
            lambda src, dst, _now: Deliver(seconds) if {src, dst} & {*newcomer} and liar.peer_id not in {src, dst} else None
        )
        await until(lambda: rounds_done(swarm, 8))
        newcomer.append(swarm.identity(4).peer_id)
        asked = poison(liar, lambda x: x + 100.0, claim=FAR)
        lie(liar.node.network, "control", only_itself(liar), newcomer.__contains__)
        late, began = await joined(swarm, 4)
        assert asked
        assert late.node.progress.round <= 40
        assert float((began - swarm.nodes[0].vector).norm()) < 0.5 * float(swarm.nodes[0].vector.norm())
        (told,) = [event.text for event in late.node.events.recent if event.name == "state_fetched"]
        assert liar.peer_id not in told


@virtual(1)
async def test_a_claim_of_a_far_round_is_not_followed_while_a_swarm_gathers():
    """The third to come hears the creator and the liar only; whoever follows it is a second voice for the next."""
    swarm = story(bowls(5, 5), 1)
    async with swarm.running(2):
        await until(lambda: all(v.node.progress.state == "waiting" for v in swarm.nodes.values()))
        asked = poison(swarm.nodes[1], lambda x: x + 100.0, claim=FAR)
        for index in (2, 3, 4):
            late, began = await joined(swarm, index) if index == 4 else (await swarm.start(index), None)
            await trio.sleep(1.0)
            assert late.node.progress.round <= 40
        assert asked
        assert float(began.norm()) < 100.0
        await until(lambda: all(v.node.progress.state == "finished" for v in swarm.nodes.values()))
        assert {v.node.progress.round for v in swarm.nodes.values()} == {40}


@virtual(1)
@pytest.mark.parametrize("claim", [1, FAR])
async def test_a_copy_of_an_honest_model_does_not_set_the_round_of_a_newcomer(claim):
    """Where data are unlike it is a majority with the copied one."""
    agreed = digits(4, quorum=3)
    swarm = story(replace(agreed, partition=PartitionSection(kind="by_label", shards=4)), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 20))
        copied = swarm.nodes[0]
        poison(swarm.nodes[1], lambda _x: copied.vector + 1e-6, claim=claim)
        late, _ = await joined(swarm, 3)
        assert 19 <= late.node.progress.round <= 22
        assert not late.node.events.faults


@virtual(1)
async def test_a_member_that_was_cut_off_gets_a_model_although_one_of_three_others_denies_it():
    agreed = digits(4, rounds=200)
    swarm, cut = story(agreed, 1, slow={3: 3.0}), set()
    swarm.hub.rules.append(lambda src, dst, _now: Drop() if (src in cut) != (dst in cut) else None)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        away, liar = swarm.nodes[3], swarm.nodes[1]
        cut.add(away.peer_id)
        await trio.sleep(15.0)
        lie(liar.node.network, "state", lambda it: [replace(it, round=1) if isinstance(it, StateOffer) else it], lambda _peer: True)
        cut.clear()
        assert away.node.progress.round < swarm.nodes[0].node.progress.round - 30
        await until(lambda: "state_fetched" in events(away))
        await trio.sleep(10.0)
        assert away.node.progress.round > swarm.nodes[0].node.progress.round - 5
        assert all(peer == liar.peer_id for peer in away.node.events.faults)


@virtual(1)
async def test_two_of_which_one_lies_do_not_lead_a_training_node_away():
    """One of four is as far as it, one is ahead, and one says so and has another model."""
    swarm = story(bowls(4, 4), 1)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 12))
        node, liar = swarm.nodes[0], swarm.nodes[1]
        ahead = {1: lambda x: -x, 2: lambda x: x}
        for index, what in ahead.items():
            poison(swarm.nodes[index], what, claim=35)
        models = node.node.running.pace.loop.jumps.catch_up
        before = node.vector
        assert await models.fetch(32, True) is None
        assert float((node.vector - before).norm()) < 0.1 * float(before.norm())
        assert liar.peer_id not in [peer for it in node.node.events.recent if it.name == "state_fetched" for peer in it.fields["peers"]]
