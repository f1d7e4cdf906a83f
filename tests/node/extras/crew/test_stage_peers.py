"""Stage assignments as a node sees them."""

from types import SimpleNamespace

import pytest
import trio

from starling.gossip.pipeline.stage_assignments import place, seat
from starling.node.extras.crew.daemon.stage_peers import AVOIDED_S, StagePeers
from tests.harness.detectors import detector


@pytest.mark.trio
async def test_a_newcomer_is_not_offered_the_stage_of_a_member_about_to_claim_it():
    just_started = SimpleNamespace(me="creator", members=(), table={})
    mates = StagePeers(just_started, stages=3, stage=0)
    assert [mates.wanted("second"), mates.wanted("third")] == [1, 2]
    assert mates.wanted("second") == 1, "it is kept for it"


def test_a_node_that_leaves_says_what_it_left_and_not_that_it_looks_for_a_crew():
    """Its record says that it left, so no member assigns it a stage again."""
    node = detector("p0")
    seen = SimpleNamespace(me="p0", members=("p0",), table=node.member_list.members)
    mates = StagePeers(seen, stages=2, stage=1)
    assert mates.words == "stage 1 of 2, looking for a crew"
    node.update(1.0, seat=seat(3, 1, 2))
    seen.table = node.member_list.members
    assert mates.words == "crew 3, stage 1 of 2, lacks stage 0"
    node.leave(now=2.0)
    seen.members, seen.table = (), node.member_list.members
    assert mates.words == "left crew 3, stage 1 of 2"


def test_leaving_before_a_stage_was_assigned_leaves_no_crew():
    node = detector("p0")
    node.leave(now=1.0)
    assert StagePeers(SimpleNamespace(me="p0", members=(), table=node.member_list.members), 2, 1).words == "stage 1 of 2, left"


@pytest.mark.trio
async def test_members_that_stay_elsewhere_are_joined_again_after_ten_minutes(autojump_clock):
    """They have left this node, and lack its stage still; who was with it is with it again, and was not away at all."""
    seats = {"p0": seat(0, 0, 3), "p1": seat(0, 1, 3), "p2": seat(1000, 2, 3)}
    table = {peer: SimpleNamespace(record=SimpleNamespace(seat=number)) for peer, number in seats.items()}
    swarm = SimpleNamespace(me="p1", members=tuple(seats), table=table, incarnation_of=lambda _peer: 1)
    swarm.sit = lambda number: setattr(table["p1"].record, "seat", number)
    mates = StagePeers(swarm, stages=3, stage=1, last=tuple(seats))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mates.sit)
        await trio.sleep(1.0)
        table["p0"].record.seat = seat(1000, 0, 3)
        await trio.sleep(AVOIDED_S - 2.0)
        assert place(mates.seat, 3) == (0, 1), "it does not come after them"
        await trio.sleep(4.0)
        assert place(mates.seat, 3) == (1000, 1)
        assert mates.elsewhere(mates.last) == set()
        nursery.cancel_scope.cancel()
