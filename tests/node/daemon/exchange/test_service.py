"""The exchange service over a memory network in virtual time."""

from types import SimpleNamespace

import pytest
import trio

from starling.gossip.overlay.sticky import StickyEdges
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Ack, Solicit
from starling.node.config.schema import Manifest, OverlaySection
from starling.node.daemon.exchange.rounds import rounds_of
from starling.node.daemon.exchange.visits import slots_of
from starling.node.net.faults import loss
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges
from tests.harness.exchange_swarm import PairwiseSwarm
from tests.harness.memory_swarm import VIEW
from tests.harness.virtual import virtual


@virtual
async def test_a_round_of_two_averages_them_exactly():
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


@virtual
async def test_the_engine_receives_the_number_of_members_that_links_are_computed_from():
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        for member in swarm.members.values():
            member.roster = tuple("abcdefg")
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
    offers = [call for member in swarm.members.values() for call in member.engine.calls if isinstance(call, calls.Offer)]
    assert [offer.members for offer in offers] == [7]


@pytest.mark.parametrize(("theirs", "exchanged"), [(0.5, 1), (0.25, 0)])
@virtual
async def test_nodes_with_different_rosters_exchange_if_both_compute_the_same_weight(theirs, exchanged):
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        weights = {"a": {"b": 0.5}, "b": {"a": theirs}}
        await swarm.all(lambda member: member.exchange.round(0, weights[member.name], member.name.encode() * 16))
        assert [member.exchange.stats.committed for member in swarm.members.values()] == [exchanged] * 2
        assert swarm["a"].engine.flows.get("b", 0) == 500 * exchanged
        assert swarm.imbalance() == 0


def knowing(silent=(), lately_gone=()):
    """Return what a pace asks about these members."""
    return SimpleNamespace(silent=silent.__contains__, lately_gone=lately_gone.__contains__)


@pytest.mark.parametrize(
    ("overlay", "same_roster"),
    [
        (OverlaySection(kind="base_k"), False),
        (OverlaySection(kind="one_peer_exponential"), True),  # the two directions have different weights
        (OverlaySection(kind="base_k", average_every=4), True),  # the kind of a round depends on the number of members
    ],
)
def test_rosters_must_be_equal_where_the_overlay_s_weights_depend_on_all_members(overlay, same_roster):
    assert rounds_of(Manifest(overlay=overlay), knowing()).same_roster == same_roster


@pytest.mark.parametrize("pace", [rounds_of, lambda agreed, members: slots_of(agreed, "swarm", StickyEdges(1, b"salt"), members)])
def test_silent_or_recently_returned_peers_get_the_usual_deadline_in_both_paces(pace):
    link_deadlines = pace(Manifest(), knowing(silent={"gone"}, lately_gone={"back"})).link_deadlines
    assert [link_deadlines.hurried(peer) for peer in ("gone", "back", "there")] == [True, True, False]
    assert [link_deadlines.unextended(peer) for peer in ("gone", "back")] == [False, True]


@virtual
async def test_a_silent_peer_costs_the_deadline_and_no_more():
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


@pytest.mark.parametrize("which", [calls.Offer, calls.Answer, calls.Apply])
@virtual
async def test_a_refusing_engine_ends_that_exchange_only(which):
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        for member in swarm.members.values():
            member.engine.refuse = lambda call: calls.Refused("peer", "not_finite") if isinstance(call, which) else None
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
        for member in swarm.members.values():
            member.engine.refuse = lambda _call: None
            assert member.exchange.stats.committed == 0
        assert any(("a", "not_finite") in m.facts.faults or ("b", "not_finite") in m.facts.faults for m in swarm.members.values())

        async def again(member):
            await member.exchange.round(1, {"ab".replace(member.name, ""): 0.5}, VIEW)

        await swarm.all(again)
        assert all(member.exchange.stats.committed == 1 for member in swarm.members.values())
        assert swarm.imbalance() == 0


@virtual
async def test_a_commit_the_engine_cannot_do_resets_the_edge_at_both_ends():
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        swarm["b"].engine.refuse = lambda call: calls.Refused("state", "lost") if isinstance(call, calls.Commit) else None
        await swarm.all(lambda member: member.rounds(1, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
        swarm["b"].engine.refuse = lambda _call: None
        assert swarm["a"].engine.flows
        await swarm.all(lambda member: member.exchange.round(1, {"ab".replace(member.name, ""): 0.5}, VIEW))
        assert swarm.imbalance() == 0
        assert "edge_reset" in swarm["b"].facts.names


@virtual
async def test_a_revoked_peer_s_flow_is_deleted_and_it_may_return():
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


@pytest.mark.parametrize("closer", ["a", "b"])
@virtual
async def test_an_orderly_close_settles_both_ends_despite_losses(closer):
    swarm = PairwiseSwarm(2, pace="clock")
    async with swarm.serving():
        assert await swarm["a"].exchange.contact("b", 0) == "committed"
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
            ("b", "frame_not_msgpack"),
            ("b", "incarnation_too_large"),
            ("b", "wrong_role"),
            ("c", "not_a_member"),
        ]
        assert not a.engine.flows
        await swarm.all(lambda m: m.exchange.round(0, {"a": {"b": 0.5}, "b": {"a": 0.5}, "c": {}}[m.name], VIEW))
        assert a.exchange.stats.committed == 1


@virtual
async def test_a_refused_caller_gets_an_answer_and_drops_the_edge():
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
