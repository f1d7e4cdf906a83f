"""The state from which a crew continues, by its stages' reports."""

from starling.gossip.pipeline.meeting import Fetch, Has, Start, agree

BEFORE = {"points": (10, 20), "copies": (10, 20), "safe": 21}


def test_a_new_crew_keeps_its_first_state():
    assert agree([Has(0, 5, batches=4), Has(0, 5)], 5, 5) == Start(0, False, 5, True, 4)


def test_a_crew_state_is_stored_when_all_stages_reached_it_and_the_last_is_safe():
    there = Has(25, 5, **BEFORE)
    assert not agree([there, there], 10, 5).keep, "too early"
    assert agree([Has(30, 5, **BEFORE)] * 2, 10, 5).keep
    unsafe = Has(30, 5, points=(10, 20), copies=(10, 20), safe=11)
    assert not agree([Has(30, 5, **BEFORE), unsafe], 10, 5).keep


def test_a_step_missing_at_one_stage_is_repeated_from_a_common_state():
    assert agree([Has(27, 3, **BEFORE), Has(26, 4, **BEFORE)], 10, 5) == Start(20, True, 30, False)


def test_a_new_machine_first_gets_the_copy_of_the_previous_stage():
    told = [Has(27, 3, **BEFORE), Has(27, 3, **BEFORE), Has(0, 5)]
    assert agree(told, 10, 5) == Fetch(20, (2,))
    told[2] = Has(20, 5, points=(20,))
    assert agree(told, 10, 5) == Start(20, True, 30, False)
    ring = [Has(0, 5), Has(27, 3, **BEFORE), Has(27, 3, points=(10, 20), copies=(10,))]
    assert agree(ring, 10, 5) == Fetch(10, (0,)), "stage 0's copy is at the last; only the older one was complete"


def test_without_a_common_state_each_stage_continues_from_its_own():
    assert agree([Has(30, 5), Has(0, 5)], 10, 5) == Start(0, False, 5, True, torn=True)
    assert agree([Has(30, 5), Has(2**60, 5), Has(0, 5), Has(29, 5)], 10, 5) == Start(29, False, 34, True, torn=True), (
        "one stage moves nobody"
    )


def test_a_pausing_stage_pauses_its_crew():
    start = agree([Has(30, 0, **BEFORE), Has(30, 5, **BEFORE)], 10, 5)
    assert start.until == start.step == 30


def test_a_round_has_no_more_steps_than_are_due_and_those_since_the_oldest_state():
    assert agree([Has(30, 10**9), Has(30, 5)], 10, 5).until == 35
    assert agree([Has(10**12, 5, points=(20,)), Has(26, 4, **BEFORE)], 10, 5) == Start(20, True, 45, False)


def test_one_stage_alone_names_no_state_that_nobody_was_in():
    """It says that it has one, and keeps the same of the stage behind."""
    false = Has(27, 3, points=(999,), copies=(999,))
    assert agree([false, Has(26, 4, **BEFORE), Has(26, 4, **BEFORE)], 10, 5) == Fetch(20, (0,))
