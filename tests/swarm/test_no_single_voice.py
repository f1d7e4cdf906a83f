"""What one peer may say, and what it costs the others: whole nodes in virtual time, and one hostile peer of the kit."""

from itertools import islice

from starling.gossip.membership.events import Died
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
    swarm = story(digits(3, rounds=1000), 1)
    async with swarm.running(3):
        await until(lambda: rounds_done(swarm, 5))
        asked.clear()
        stranger, dead = Stranger(swarm.hub, swarm.swarm), swarm.nodes[2].peer_id
        await stranger.tell(swarm.nodes[0].peer_id, *islice(stranger.comings_and_goings(256), 12))
        assert flows_with(swarm, dead) == [0, 1]
        await swarm.crash(2)
        await until(lambda: not flows_with(swarm, dead), FORGOTTEN_S)
        tables = [virtual_node.node.running.membership.table for virtual_node in swarm.nodes.values()]
        assert min(map(len, tables)) > 6 * 256  # the attack arrived, at all
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
