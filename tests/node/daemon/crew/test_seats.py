"""Seats as a node sees them."""

from types import SimpleNamespace

import pytest

from starling.node.daemon.crew.seats import Crewmates


@pytest.mark.trio
async def test_a_newcomer_is_not_told_the_stage_of_who_is_asked_before_that_one_has_claimed_its_seat():
    just_started = SimpleNamespace(me="founder", members=(), table={})
    mates = Crewmates(just_started, stages=3, stage=0)
    assert [mates.wanted("second"), mates.wanted("third")] == [1, 2]
    assert mates.wanted("second") == 1, "it is kept for it"
