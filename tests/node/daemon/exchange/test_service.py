"""The exchange service over a memory network in virtual time."""

from __future__ import annotations

from random import Random

import pytest
import trio

from starling.gossip.errors import EngineError
from starling.gossip.overlay.sticky import StickyEdges
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Ack, Solicit
from starling.node.net.faults import loss
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges
from tests.harness.exchange_swarm import PairwiseSwarm
from tests.harness.memory_swarm import VIEW
from tests.harness.virtual import virtual


def ring(names: str):
    """Each with both beside it, in every round."""

    def links(me: str):
        at = names.index(me)
        return {names[at - 1]: 0.25, names[(at + 1) % len(names)]: 0.25}

    return links


def matching(names: str, seed: int):
    """Pairs drawn anew in every round."""

    def links(me: str, round: int):
        order = list(names)
        Random(f"{seed} {round}").shuffle(order)
        at = order.index(me)
        partner = order[at ^ 1] if at ^ 1 < len(order) else None
        return {} if partner is None else {partner: 0.5}

    return links


@virtual
async def test_a_round_of_two_averages_them_exactly():
    """The plain case: each end applies the same difference with opposite sign, then both mix."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
        assert swarm["a"].engine.x == swarm["b"].engine.x == 500
        assert swarm["a"].engine.flows == {"b": 500}
        assert swarm["b"].engine.flows == {"a": -500}
        for member in swarm.members.values():
            assert member.engine.mixed == [0]
            assert member.exchange.stats == Exchanges(committed=1)
            assert member.exchange.payload_bytes > 0
        assert swarm["a"].exchange.committed("b") == 1
        assert not swarm["a"].facts.faults


@pytest.mark.slow
@pytest.mark.parametrize("overlay", ["ring", "matching"])
@virtual
async def test_rounds_finish_and_sums_hold_with_a_third_of_the_frames_lost(overlay):
    """Loss costs exchanges, never a round and never the balance of an edge."""
    rules = [loss(0.3, seed=7)]
    swarm = PairwiseSwarm(6, rules=rules)
    names = "abcdef"
    rng = Random(1)

    def links(name: str):
        return lambda turn: ring(names)(name) if overlay == "ring" else matching(names, 3)(name, turn)

    async with swarm.serving():
        await swarm.all(lambda member: member.rounds(30, links(member.name), lambda: rng.uniform(0.0, 0.05)))
        for member in swarm.members.values():
            assert member.engine.mixed[-1] == 29
            assert member.exchange.stats.committed > 0
        swarm.hub.rules.clear()

        async def last(member):
            for turn in range(30, 40):  # with all well again every edge meets once more and proves what was pending
                await member.exchange.round(turn, {n: 0.5 for n in names if n != member.name}, VIEW)

        await swarm.all(last)
        assert swarm.imbalance() == 0
        assert sum(member.engine.x for member in swarm.members.values()) == sum(range(0, 6000, 1000))
        assert not any(member.facts.faults for member in swarm.members.values())


@virtual
async def test_a_faster_peer_is_parked_until_our_local_steps_are_done():
    """Nobody is told off for being ready first."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving() as nursery:
        slow, fast = swarm["b"], swarm["a"]
        slow.exchange.computing(0, {"a": 0.5}, VIEW)
        nursery.start_soon(fast.exchange.round, 0, {"b": 0.5}, VIEW)
        await trio.sleep(1.0)
        assert not fast.engine.mixed
        outcome = await slow.exchange.round(0, {"a": 0.5}, VIEW)
        assert outcome.outcomes == {"a": "committed"}


@virtual
async def test_who_is_behind_hears_of_it_and_can_jump():
    """A node that slept gets Busy "late" with the peer's round instead of waiting in vain."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        swarm["b"].exchange.computing(50, {"a": 0.5}, VIEW)
        began = trio.current_time()
        outcome = await swarm["a"].exchange.round(3, {"b": 0.5}, VIEW)
        assert outcome.outcomes == {"b": "busy"}
        assert outcome.behind == swarm["a"].exchange.behind == 50
        assert swarm["a"].exchange.round_of("b") == 50
        assert trio.current_time() - began < 0.1


@virtual
async def test_who_is_ahead_waits_within_its_deadline_for_the_peer_to_come_up():
    """Else one lost exchange would drive two nodes apart for good: who is ahead must not hurry on because it is ahead."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving() as nursery:
        swarm["b"].exchange.computing(3, {"a": 0.5}, VIEW)
        nursery.start_soon(swarm["a"].exchange.round, 50, {"b": 0.5}, VIEW)
        await trio.sleep(0.5)
        assert swarm["b"].exchange.behind == 50
        outcome = await swarm["b"].exchange.round(50, {"a": 0.5}, VIEW)
        assert outcome.outcomes == {"a": "committed"}
        assert swarm["a"].exchange.stats.busy >= 1


@virtual
async def test_a_silent_peer_costs_the_deadline_and_no_more():
    """Nobody waits for anybody for ever; the round mixes what it has."""
    swarm = PairwiseSwarm(3)
    async with swarm.serving():
        swarm.hub.crash("b")

        async def play(member):
            if member.name != "b":
                other = "ac".replace(member.name, "")
                outcome = await member.exchange.round(0, {"b": 0.5, other: 0.5}, VIEW)
                assert outcome.outcomes == {"b": "timeout", other: "committed"}
                assert member.exchange.stats == Exchanges(committed=1, timeout=1)

        await swarm.all(play)
        assert trio.current_time() < 2.5


@virtual
async def test_different_member_lists_do_not_exchange():
    """A round's weights come from the list; two lists would not add up to a mixing matrix."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():

        async def play(member):
            outcome = await member.exchange.round(
                0, dict.fromkeys("ab".replace(member.name, ""), 0.5), member.name.encode() * 9
            )
            assert set(outcome.outcomes.values()) == {"busy"}

        await swarm.all(play)
        assert swarm["a"].exchange.stats == swarm["b"].exchange.stats == Exchanges(busy=1)


@pytest.mark.parametrize("which", [calls.Offer, calls.Answer, calls.Apply])
@virtual
async def test_a_refusing_engine_ends_that_exchange_only(which):
    """The next round works, and nothing one-sided is left."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        for member in swarm.members.values():
            member.engine.refuse = lambda call: calls.Refused("peer", "not_finite") if isinstance(call, which) else None
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
        for member in swarm.members.values():
            member.engine.refuse = lambda _call: None
            assert member.exchange.stats.committed == 0
        assert any(
            ("a", "not_finite") in m.facts.faults or ("b", "not_finite") in m.facts.faults
            for m in swarm.members.values()
        )

        async def again(member):
            await member.exchange.round(1, {"ab".replace(member.name, ""): 0.5}, VIEW)

        await swarm.all(again)
        assert all(member.exchange.stats.committed == 1 for member in swarm.members.values())
        assert swarm.imbalance() == 0


@virtual
async def test_an_engine_that_dies_and_restarts_begins_every_edge_anew():
    """Its flows are gone with it, so the peers must delete theirs: sum zero again, and exchanges go on."""
    swarm = PairwiseSwarm(3)
    everybody = {name: {n: 1 / 3 for n in "abc" if n != name} for name in "abc"}

    async def play(member, round):
        await member.exchange.round(round, everybody[member.name], VIEW)

    async with swarm.serving():
        await swarm.all(lambda member: play(member, 0))
        assert swarm["b"].engine.flows
        swarm["b"].engine.dead = (object,)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, swarm["a"], 1)
            nursery.start_soon(play, swarm["c"], 1)
            with pytest.raises(EngineError):
                await play(swarm["b"], 1)
        swarm["b"].engine.restart()
        await swarm["b"].exchange.reset_all()
        await trio.sleep(0.5)
        assert swarm.imbalance() == 0
        assert "b" not in swarm["a"].engine.flows
        await swarm.all(lambda member: play(member, 2))
        assert swarm.imbalance() == 0
        assert swarm["b"].exchange.stats.committed > 2


@virtual
async def test_a_commit_the_engine_cannot_do_resets_the_edge_at_both_ends():
    """The initiator has applied by then; deleting both flows is the only way back to balance."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        swarm["b"].engine.refuse = lambda call: (
            calls.Refused("state", "lost") if isinstance(call, calls.Commit) else None
        )
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
        swarm["b"].engine.refuse = lambda _call: None
        assert swarm["a"].engine.flows
        await swarm.all(lambda member: member.exchange.round(1, {"ab".replace(member.name, ""): 0.5}, VIEW))
        assert swarm.imbalance() == 0
        assert "edge_reset" in swarm["b"].facts.events


@virtual
async def test_a_revoked_peer_leaves_no_flow_and_may_come_back():
    """A false suspicion: one end deletes; at the next contact the other does as well."""
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        links = {"a": {"b": 0.5}, "b": {"a": 0.5}}
        await swarm.all(lambda member: member.exchange.round(0, links[member.name], VIEW))
        await swarm["a"].exchange.revoke("b")
        assert "b" not in swarm["a"].exchange.edges
        assert not swarm["a"].engine.flows
        swarm["a"].engine.x += 500
        for turn in (1, 2):
            await swarm.all(lambda member, turn=turn: member.exchange.round(turn, links[member.name], VIEW))
        assert swarm.imbalance() == 0
        assert swarm["a"].engine.flows["b"] == -250, "the meetings after the revocation, and they alone"


@virtual
async def test_where_the_other_flows_leaned_against_a_revoked_one_every_edge_begins_anew():
    """At both ends, so that the corrections still sum to zero; edges of others stay as they are."""
    swarm = PairwiseSwarm(3)
    links = {"a": {"b": 0.5, "c": 0.5}, "b": {"a": 0.5, "c": 0.5}, "c": {"a": 0.5, "b": 0.5}}
    async with swarm.serving():
        await swarm.all(lambda member: member.exchange.round(0, links[member.name], VIEW))
        engine = swarm["a"].engine

        def leaning(call):
            leaned = call.peer in engine.flows
            engine.answer(call)
            return calls.Done(leaned=leaned)

        engine.refuse = lambda call: leaning(call) if isinstance(call, calls.Revoke) else None
        assert set(engine.flows) == {"b", "c"}
        await swarm["a"].exchange.revoke("c")
        await trio.sleep(1.0)
        assert swarm["a"].facts.events.count("edges_anew") == 1, "what goes with the others is no news"
        assert not engine.flows
        assert set(swarm["b"].engine.flows) == {"c"}
        for turn in (1, 2):
            await swarm.all(lambda member, turn=turn: member.exchange.round(turn, links[member.name], VIEW))
        assert swarm.imbalance() == 0


@pytest.mark.parametrize("closer", ["a", "b"])
@virtual
async def test_closing_in_order_settles_both_ends_in_spite_of_loss(closer):
    """A settled flow stays in the correction; if one end settled and the other deleted, the sum would be off for ever."""
    swarm = PairwiseSwarm(2)
    links = {"a": {"b": 0.5}, "b": {"a": 0.5}}
    async with swarm.serving():
        await swarm.all(lambda member: member.exchange.round(0, links[member.name], VIEW))
        swarm.hub.rules.append(loss(0.4, seed=11))
        assert await swarm[closer].exchange.settle("ab".replace(closer, ""))
        await trio.sleep(5.0)
        assert swarm["a"].engine.settled == {"b": 500}
        assert swarm["b"].engine.settled == {"a": -500}
        assert not swarm["a"].engine.flows
        assert not swarm["b"].engine.flows
        assert not await swarm["a"].exchange.settle("nobody")


@virtual
async def test_faults_of_peers_are_reported_and_change_nothing():
    """A stranger, garbage and a message of the wrong role: each counted, none answered with an exception of ours."""
    swarm = PairwiseSwarm(3)
    async with swarm.serving():
        a = swarm["a"]
        a.strangers.add("c")
        await swarm["c"].network.send("a", "exchange", encode(Solicit(1, 0, VIEW)))
        await swarm["b"].network.send("a", "exchange", b"garbage")
        await swarm["b"].network.send("a", "exchange", encode(Ack(1, 1)))
        await swarm["b"].network.send("a", "exchange", encode(Solicit(2**62, 0, VIEW)))
        await trio.sleep(0.1)
        assert sorted(a.facts.faults) == [
            ("b", "frame_not_msgpack"), ("b", "incarnation_too_large"), ("b", "wrong_role"), ("c", "not_a_member"),
        ]  # fmt: skip
        assert not a.engine.flows
        await swarm.all(lambda m: m.exchange.round(0, {"a": {"b": 0.5}, "b": {"a": 0.5}, "c": {}}[m.name], VIEW))
        assert a.exchange.stats.committed == 1


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.0, 0.3])
@virtual
async def test_clock_pace_visits_edges_in_rotation_and_conserves(lost):
    """Nobody waits for anybody's round: visits from either end commit, and the sums hold."""
    swarm = PairwiseSwarm(4, pace="clock", rules=[loss(lost, seed=2)] if lost else [])

    async def slots(member, first=0, last=40):
        others = sorted(swarm.members.keys() - {member.name})
        for slot in range(first, last):
            with trio.move_on_after(1.0):
                await member.exchange.contact_next(others, slot)
            await trio.sleep_until(slot + 1.0)

    async with swarm.serving():
        await swarm.all(slots)
        swarm.hub.rules.clear()
        await swarm.all(lambda member: slots(member, 40, 60))
        assert swarm.imbalance() == 0
        assert sum(member.engine.x for member in swarm.members.values()) == 6000
        xs = [member.engine.x for member in swarm.members.values()]
        assert max(xs) - min(xs) <= 8, "they agree, up to integer division"
        for member in swarm.members.values():
            assert all(member.exchange.committed(other) > 10 for other in swarm.members if other != member.name)
        assert not any(member.facts.faults for member in swarm.members.values())


@virtual
async def test_an_unwelcome_caller_is_told_and_drops_the_edge():
    """An edge exists only if both ends say so."""
    full, roomy = StickyEdges(1, b""), StickyEdges(1, b"")
    for peer in "xyz":
        assert full.accept(peer)
    roomy.update("a", ["b"])
    swarm = PairwiseSwarm(2, pace="clock", sticky={"a": roomy, "b": full})
    async with swarm.serving():
        assert roomy.peers == ("b",)
        assert await swarm["a"].exchange.contact("b", 0) == "busy"
        assert roomy.peers == ()


@virtual
async def test_a_cancelled_visit_leaves_the_edge_free_for_the_next():
    """A slot ends whatever is under way in it."""
    swarm = PairwiseSwarm(2, pace="clock")
    async with swarm.serving():
        swarm["b"].engine.cost_s = 5.0
        with trio.move_on_after(0.2):
            await swarm["a"].exchange.contact("b", 0)
        assert swarm["a"].exchange.edges["b"].ready
        swarm["b"].engine.cost_s = 0.001
        await trio.sleep(10.0)
        assert await swarm["a"].exchange.contact("b", 10) == "committed"
        await trio.sleep(0.5)
        assert swarm.imbalance() == 0
