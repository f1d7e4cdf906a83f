"""Stage assignments: no stage is assigned twice, no complete crew is broken up, incomplete ones are completed."""

import random

import pytest

from starling.gossip.pipeline import stage_assignments


def settled(claims, stages, stage_of):
    """Let all nodes update until none moves."""
    for _ in range(50):
        wanted = {peer: stage_assignments.chosen(claims, stages, peer, stage_of[peer]) for peer in claims}
        if wanted == claims:
            return claims
        for peer in sorted(claims):  # one after the other, as records arrive
            claims[peer] = stage_assignments.chosen(claims, stages, peer, stage_of[peer])
    raise AssertionError("they move for ever")


@pytest.mark.parametrize("seed", range(20))
def test_simultaneous_claims_form_the_largest_number_of_crews(seed):
    chance = random.Random(seed)
    stages, n = chance.randint(2, 4), chance.randint(2, 14)
    stage_of = {f"peer{i:02}": chance.randrange(stages) for i in range(n)}
    claims = settled(dict.fromkeys(stage_of, 0), stages, stage_of)
    assert len(set(claims.values())) == n, "no two of a seat"
    assert all(stage_assignments.place(number, stages)[1] == stage_of[peer] for peer, number in claims.items())
    most = min(sum(stage == s for stage in stage_of.values()) for s in range(stages))
    assert list(stage_assignments.whole(claims, stages)) == list(range(most))


def test_a_broken_crew_takes_waiting_members_and_whole_ones_stay():
    stages = 2
    stage_of = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1}
    claims = settled({"a": 1, "b": 2, "c": 3, "d": 4, "e": 6}, stages, stage_of)
    assert claims == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 6}
    del claims["b"]
    assert settled(claims, stages, stage_of) == {"a": 1, "c": 3, "d": 4, "e": 2}


def test_newcomers_get_missing_stages_and_simultaneous_ones_different_stages():
    assert stage_assignments.lacking({}, 3) == 0
    assert stage_assignments.lacking({"a": 1}, 3) == 1
    assert stage_assignments.lacking({"a": 1}, 3, promised=(1,)) == 2
    assert stage_assignments.lacking({"a": 1, "b": 2, "c": 3}, 3) == 0
    assert stage_assignments.lacking({"a": 1, "c": 3, "d": 4, "e": 5}, 3, promised=(1,)) == 2


def test_a_crews_name_is_derived_from_its_members():
    assert stage_assignments.digest([("a", 1), ("b", 2)]) != stage_assignments.digest([("a", 1), ("b", 3)])
    assert len(stage_assignments.digest([])) == 8
