"""Who keeps a stage waiting: of three stages, the one in the middle may tell its neighbors different things."""

from functools import partial

import pytest
from msgspec import structs

from starling.gossip.pipeline.company import Company
from starling.gossip.pipeline.schedule import ahead, order, position
from starling.gossip.pipeline.stage import Part, Step
from starling.gossip.pipeline.waiting import FRESH_S, Keys, Waiting, waited_for
from starling.gossip.wire.schema import Waits
from tests.gossip.pipeline.crews import signed, verified

PEERS = ("p0", "p1", "p2")
M = 2
ORDER = [("F", 0), ("F", 1), ("B", 0), ("B", 1)]  # of stage 1


def book_of(stage, name=b"12345678"):
    """Return a stage's book of what all wait for."""
    return Waiting(Company(stage, 3, 0, name, PEERS, whole=True), Keys(partial(signed, PEERS[stage]), verified))


def stage_0():
    """Return stage 0, which has sent both activations and waits for the first gradient."""
    core = Step(0, 3, M)
    core.begin()
    core.computed(b"one")
    core.computed(b"two")
    assert core.lacks == ("B", 0)
    return core


def stage_2():
    """Return stage 2, which waits for the first activation."""
    core = Step(2, 3, M)
    core.begin()
    assert core.lacks == ("F", 0)
    return core


@pytest.mark.parametrize(
    ("done", "by_0", "by_2"),
    [
        (None, {1}, {1}),  # it says nothing
        (0, {1}, set()),  # an activation, which stage 0 has sent
        (1, {1}, {1}),  # likewise the next, so stage 2 should have the first
        (2, set(), {1}),  # a gradient of stage 2
        (3, {1}, {1}),  # that of the next, so stage 0 should have the first
        (2 * M, {1}, {1}),  # a part, so both should have all
    ],
)
def test_one_of_the_neighbors_knows_better_whatever_a_stage_says(done, by_0, by_2):
    middle, first, last = book_of(1), book_of(0), book_of(2)
    for book in (first, last):
        book.learn(() if done is None else middle.say(3, 7, done))
    assert set(first.without_excuse(stage_0(), 3, 7)) == by_0
    assert set(last.without_excuse(stage_2(), 3, 7)) == by_2
    assert by_0 | by_2 == {1}


def test_stages_told_different_things_learn_so_from_each_other():
    """To stage 2 it waits for stage 0, and to stage 0 for stage 2."""
    middle, first, last = book_of(1), book_of(0), book_of(2)
    first.learn(middle.say(3, 7, 2))
    last.learn(middle.say(3, 7, 0))
    assert first.without_excuse(stage_0(), 3, 7) == last.without_excuse(stage_2(), 3, 7) == ()
    last.learn(first.say(3, 7, stage_0().done))
    assert last.without_excuse(stage_2(), 3, 7) == (1,)
    last.learn(middle.say(3, 7, 0))
    assert last.without_excuse(stage_2(), 3, 7) == (1,), "the largest number counts"


@pytest.mark.parametrize(("turn", "step", "done"), [(2, 7, 0), (3, 6, 0), (3, 5, 9), (3, 8, 0), (4, 7, 0)])
def test_statements_about_other_steps_excuse_nobody(turn, step, done):
    last = book_of(2)
    last.learn(book_of(1).say(turn, step, done))
    assert last.without_excuse(stage_2(), 3, 7) == (1,)


def test_a_stage_that_is_a_step_behind_waits_for_one_part():
    """Stage 2 excuses it if that is another's; of its own it knows that it was sent."""
    last = book_of(2)
    last.learn(book_of(1).say(3, 6, 2 * M + 0))
    assert last.without_excuse(stage_2(), 3, 7) == ()
    last.learn(book_of(1).say(3, 6, 2 * M + 2))
    assert last.without_excuse(stage_2(), 3, 7) == (1,)


def test_a_stage_that_waits_for_us_counts_even_if_we_need_nothing_of_it():
    """Stage 0 waits for a gradient of stage 1; stage 2 says that it waits for a part of stage 0, of the last step and then of this one."""
    first, core = book_of(0), stage_0()
    first.learn(book_of(1).say(3, 7, 2))
    first.learn(book_of(2).say(3, 6, 2 * M))
    assert first.without_excuse(core, 3, 7) == (2,)
    first.learn(book_of(2).say(3, 7, 2 * M))
    assert first.without_excuse(core, 3, 7) == (), "it has not told that one yet"


def test_a_stage_that_has_all_its_tasks_done_owes_its_part():
    core = Step(0, 3, 1)
    core.begin()
    core.computed(b"out")
    core.arrived("B", 0, b"in")
    core.computed(b"")
    core.part(0, Part(1.0))
    core.part(1, Part(1.0))
    first = book_of(0)
    assert first.without_excuse(core, 3, 7) == (2,)
    first.learn(book_of(2).say(3, 7, 0))
    assert first.without_excuse(core, 3, 7) == (), "it waits for an activation of stage 1"
    first.learn(book_of(2).say(3, 7, 2 + 1))
    assert first.without_excuse(core, 3, 7) == (2,), "a part of stage 1, after its own"
    assert core.done == 2 + 2


def test_forged_statements_are_refused_and_repeated_ones_are_not_verified_again():
    book, true = book_of(0), book_of(1).say(3, 7, 2)
    for wrong in ({"done": 3}, {"step": 8}, {"turn": 4}, {"stage": 2}, {"signature": bytes(64)}):
        with pytest.raises(ValueError, match="waits_forged"):
            book.learn((structs.replace(true[0], **wrong),))
    with pytest.raises(ValueError, match="waits_forged"):
        book.learn(book_of(1, b"87654321").say(3, 7, 2))
    with pytest.raises(ValueError, match="no_such_stage"):
        book.learn((Waits(3, 3, 7, 2),))
    book.learn(true)
    book.learn((structs.replace(true[0], signature=b""),))
    assert [each.stage for each in book.say(3, 8, 0)] == [0, 1], "it is passed on"
    assert [each.stage for each in book.say(4, 8, 0)] == [0], "in the steps of its meeting"
    assert book_of(1).say(3, 7, 0)[0].signature != true[0].signature
    book.reset()
    assert len(book.say(3, 8, 0)) == 1


def test_every_number_names_one_stage():
    core = stage_0()
    assert [waited_for(1, done, core) for done in range(2 * M + 4)] == [0, 0, 2, 2, 0, None, 2, None]
    assert [waited_for(0, done, core) for done in range(4)] == [None, None, 1, 1]
    assert [waited_for(2, done, core) for done in range(4)] == [1, None, 1, None]


@pytest.mark.parametrize(("stage", "m", "w"), [(0, 1, 0), (0, 7, 0), (1, 7, 1), (2, 7, 0), (0, 3, 2)])
def test_positions_are_those_of_the_order(stage, m, w):
    kept = ahead(stage, 3, m, w)
    assert [position(kept, m, *task) for task in order(kept, m)] == list(range(2 * m))


def test_who_lacks_a_third_ones_part_of_the_last_step_is_about_to_finish_as_long_as_it_says_so():
    """Stage 0 is at the next meeting, after 8 steps; after its tasks stage 1 needs the parts of stages 0, 1 and 2."""
    here, other = book_of(0), book_of(1)

    def said(step, done, now=10.0):
        here.reset()
        here.learn(other.say(3, step, done))
        here.says(1, now)
        return here.finishes(1, 8, M, 12.0)

    assert said(7, 2 * M + 2)
    assert not said(7, 2 * M), "our part, which it has been sent"
    assert not said(7, 2 * M + 1), "its own"
    assert not said(7, 2 * M - 1), "a task: nobody could have ended that step"
    assert not said(7, 2 * M + 3), "nothing"
    assert not said(6, 2 * M + 2), "another step"
    assert not said(7, 2 * M + 2, now=12.0 - FRESH_S - 0.1), "it no longer says so"
    assert not here.finishes(2, 8, M, 12.0), "it has said nothing"
