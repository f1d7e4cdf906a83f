"""What one peer may say, and what it costs the others: whole nodes in virtual time, and one hostile peer of the kit."""

from itertools import islice

import trio

from starling.gossip.membership.events import Died
from starling.gossip.wire.frames import encode
from starling.node.daemon.membership.records import RecordVerifier
from starling.node.daemon.running import RunningNode
from starling.node.rpc import calls
from starling.node.simulate.virtual.inline_engine import InlineEngine
from tests.harness.hostile import Stranger
from tests.harness.stories import virtual
from tests.harness.swarms import digits, flows_with, rounds_done, story, until

FORGOTTEN_S = 20.0  # in which the flow of a peer that died is deleted, whatever happens


@virtual(1)
async def test_a_stranger_s_comings_and_goings_cost_the_engine_next_to_nothing_and_the_flows_of_the_dead_go(
    monkeypatch,
):
    asked: list[str] = []
    honest_call = InlineEngine.call

    async def call(self, request):
        if isinstance(request, calls.Revoke):
            asked.append(request.peer)
        return await honest_call(self, request)

    monkeypatch.setattr(InlineEngine, "call", call)
    monkeypatch.setattr(
        RecordVerifier, "receive", lambda _self, _source, _peer, message, _now: message
    )  # or little arrives
    swarm = story(digits(3, rounds=1000), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 5))
        asked.clear()
        stranger, dead = Stranger(swarm.hub, swarm.swarm), swarm.nodes[2].peer_id
        await stranger.tell(swarm.nodes[0].peer_id, *islice(stranger.comings_and_goings(56), 54))
        assert flows_with(swarm, dead) == [0, 1]
        await swarm.crash(2)
        await until(lambda: not flows_with(swarm, dead), FORGOTTEN_S)
        tables = [virtual_node.node.running.membership.table for virtual_node in swarm.nodes.values()]
        assert min(map(len, tables)) > 27 * 56  # the attack arrived, at all
        assert dead in asked
        assert len(asked) < 0.05 * min(map(len, tables))  # those that were linked to somebody while they were there


@virtual(1)
async def test_an_event_that_got_lost_is_made_up_for(monkeypatch):
    honest = RunningNode._member_changed
    monkeypatch.setattr(
        RunningNode, "_member_changed", lambda self, event: None if isinstance(event, Died) else honest(self, event)
    )
    swarm = story(digits(3, rounds=1000), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 5))
        dead = swarm.nodes[2].peer_id
        await swarm.crash(2)
        await until(lambda: not flows_with(swarm, dead), FORGOTTEN_S)


async def committed_in(seconds: float, flood: str) -> int:
    """Exchanges of three honest nodes while one gets twenty full frames a second of a "stranger", of a "member", or "" for none."""
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
    undisturbed = await committed_in(12.0, "")
    got = {flood: await committed_in(12.0, flood) / undisturbed for flood in ("stranger", "member")}
    assert min(got.values()) >= 0.7
