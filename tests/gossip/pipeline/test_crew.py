"""A crew's machines together in virtual time: whatever links and machines do, all stages learn exactly what they would without faults."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.gossip.exchange.marks import FORGIVEN
from starling.gossip.pipeline import stage_assignments
from starling.gossip.pipeline.company import Company, Moment
from starling.gossip.pipeline.copies import Copies
from starling.gossip.pipeline.crew_commands import Blame, DoTask, FreeStage, Send, Unfit, Unfollow, Unusable, UseState
from starling.gossip.pipeline.crew_states import StageStates
from starling.gossip.pipeline.freed_seats import FreedSeats
from starling.gossip.pipeline.later_rounds import MOST, LaterRounds
from starling.gossip.pipeline.minutes import body
from starling.gossip.pipeline.owed import CALLS, TURN_S, TURNS, Owed, RoundMarks
from starling.gossip.pipeline.roll import Roll
from starling.gossip.pipeline.waiting import Keys, Waiting
from starling.gossip.wire.schema import Backward, Forward, Minutes, Piece, Ready, Said, StepReport
from tests.gossip.pipeline.crews import EXCUSES, Engine, World, learned, signed, verified

SEEDS = st.integers(0, 2**32)
STEPS = 12
SHOWN = (Phase.explicit, Phase.generate)  # shrinking a seed gives no simpler schedule
FREED_S = (TURNS + 1) * TURN_S + 1.0
WITHHELD_S = (2**TURNS - 1) * TURN_S + 3 * TURN_S


def watched(world, steps):
    """Run until all have done this many steps; return each stage's state then, or None if they do not get there."""
    history = {}

    def seen():
        for node in world.nodes.values():
            if not node.aside:
                history[node.stage, node.engine.step] = node.engine.x
        return world.steps() >= steps

    return [history[stage, steps] for stage in range(world.stages)] if world.run(seen, 900.0) else None


@given(SEEDS, st.integers(2, 5), st.integers(1, 5), st.sampled_from([0.0, 0.03, 0.3]), st.booleans())
@settings(max_examples=25, deadline=None, phases=SHOWN)
def test_lost_and_reordered_frames_cost_time_and_nothing_else(seed, stages, micro, lost, reorders):
    world = World(stages, seed=seed, micro=micro, lost=lost, reorders=reorders)
    assert watched(world, STEPS) == learned(stages, STEPS, micro=micro)
    assert world.blamed == []
    assert all(not node.freed for node in world.nodes.values())


@example(2709900430, 4, 0, 0.0, 0.0)  # frames of the abandoned step arrive afterwards
@given(SEEDS, st.integers(2, 4), st.integers(0, 3), st.floats(0.0, 3.0), st.sampled_from([0.0, 0.02]))
@settings(max_examples=25, deadline=None, phases=SHOWN)
def test_a_stage_lost_at_any_time_continues_on_another_machine_without_loss(seed, stages, victim, when, lost):
    world, victim = World(stages, seed=seed, lost=lost), victim % stages
    assert world.run(world.safe, 600.0)
    world.run(lambda: False, when)
    world.kill(f"p{victim}")
    world.run(lambda: False, 3.0)
    assert all(node.machine.phase in {"lacking", "idle"} for node in world.nodes.values())
    world.start("new", victim)
    goal = max(node.engine.step for node in world.nodes.values()) + STEPS
    assert watched(world, goal) == learned(stages, goal)
    assert world.blamed == []


@example(158686318, 4, 2, 2.0907147756270312, True)  # the waiting machine is in a crew with a lower number
@given(SEEDS, st.integers(2, 5), st.integers(0, 4), st.floats(0.0, 3.0), st.booleans())
@settings(max_examples=25, deadline=None, phases=SHOWN)
def test_a_mute_stage_loses_its_assignment_and_its_work_is_repeated_by_the_next(seed, stages, which, when, waits):
    """It receives frames, answers probes and claims its stage, but never sends results: the crew must not wait for ever.

    Its replacement comes later, or `waits` all the time in a crew of its own, which the others must not join.
    """
    world, which = World(stages, seed=seed), which % stages
    assert world.run(world.safe, 60.0)
    if waits:
        world.start("new", which).aside = True
    world.run(lambda: False, when)
    mute = world.nodes[f"p{which}"]
    mute.mute, mute.aside, began = True, True, world.now
    others = [node for node in world.nodes.values() if node.stage != which]
    assert world.run(lambda: all(mute.peer in node.avoided for node in others), FREED_S)
    assert world.now - began > (TURNS - 1) * TURN_S, "not before"
    goal = max(node.engine.step for node in others) + STEPS
    if waits:
        world.nodes["new"].aside = False
    else:
        world.run(lambda: False, 5.0)
        world.start("new", which)
    assert watched(world, goal) == learned(stages, goal)
    assert all(freed == mute.peer for node in others for _, freed in node.freed)
    assert all("crew_torn" not in node.notes for node in world.nodes.values()), "the states went along to the other crew"
    assert stage_assignments.place(world.claims[mute.peer], stages)[0] == 0, "it does not come after them"
    assert set(world.blamed) <= {(mute.peer, "crew_mute")}


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_two_stages_reports_of_a_mute_one_are_a_fault_and_one_report_is_not(victim):
    """Each stage blames it once, after its own timeout."""
    world = World(3)
    assert world.run(world.safe, 60.0)
    mute = world.nodes[f"p{victim}"]
    mute.mute = mute.aside = True
    world.run(lambda: False, FREED_S + 5.0)
    assert world.blamed == [(mute.peer, "crew_mute")] * 2
    pair = World(2)
    assert pair.run(pair.safe, 60.0)
    pair.nodes["p1"].mute = True
    assert pair.run(lambda: bool(pair.nodes["p0"].freed), FREED_S)
    assert pair.blamed == []


@example(0, 3, 1, "Forward")
@example(0, 3, 1, "Backward")
@given(SEEDS, st.integers(2, 5), st.integers(0, 4), st.sampled_from(["Forward", "Backward", "Forward Backward"]))
@settings(max_examples=20, deadline=None, phases=SHOWN)
def test_a_stage_with_four_unusable_results_loses_its_assignment(seed, stages, which, forges):
    """It is not mute, and only its neighbors notice: the others follow the one that leaves it. This costs a few seconds and no step."""
    world = World(stages, seed=seed)
    which %= stages
    if (which == stages - 1 and forges == "Forward") or (which == 0 and forges == "Backward"):
        which = stages - 1 - which
    assert world.run(world.safe, 60.0)
    forger = world.nodes[f"p{which}"]
    forger.forges, forger.aside = forges, True
    others = [node for node in world.nodes.values() if node.stage != which]
    assert world.run(lambda: all(forger.peer in node.avoided for node in others), 10.0)
    goal = max(node.engine.step for node in others) + STEPS
    world.start("new", which)
    assert watched(world, goal) == learned(stages, goal)
    assert {peer for peer, _ in world.blamed} == {forger.peer}
    assert all(freed == forger.peer for node in others for _, freed in node.freed)


@given(
    SEEDS,
    st.integers(2, 5),
    st.integers(0, 4),
    st.sets(st.sampled_from(["Forward", "Backward", "StepReport"]), min_size=1),
    st.sampled_from(EXCUSES),
    st.sampled_from([0.0, 0.1, 0.3]),
)
@settings(max_examples=8, deadline=None, phases=SHOWN)
def test_a_stage_that_withholds_results_loses_its_assignment_whatever_it_says(seed, stages, which, kinds, excuse, lost):
    """It comes to meetings and is heard, so it is not mute. Nobody else's seat is freed, and no work is lost."""
    world, which = World(stages, seed=seed), which % stages
    kinds -= {"Forward" if which == stages - 1 else "", "Backward" if which == 0 else ""}  # it sends none
    assert world.run(world.safe, 60.0)
    liar = world.nodes[f"p{which}"]
    world.lost, liar.withholds, liar.excuse, liar.aside = lost, " ".join(sorted(kinds or {"StepReport"})), excuse, True
    others = [node for node in world.nodes.values() if node.stage != which]
    assert world.run(lambda: all(liar.peer in node.avoided for node in others), WITHHELD_S)
    world.lost = 0.0
    goal = max(node.engine.step for node in others) + STEPS
    world.start("new", which)
    assert watched(world, goal) == learned(stages, goal)
    assert {freed for node in others for _, freed in node.freed} == {liar.peer}
    assert set(world.blamed) <= {(liar.peer, "crew_mute")}


@pytest.mark.parametrize(("task_s", "for_s"), [(0.01, 300.0), (20.0, 1800.0)])
@given(SEEDS, st.integers(2, 4), st.integers(0, 3))
@settings(max_examples=4, deadline=None, phases=SHOWN)
def test_a_slow_honest_stage_with_lost_frames_keeps_its_assignment(task_s, for_s, seed, stages, which):
    """It is four times slower than the others, with tasks of up to 80 s, longer than any timeout; its frames show that it is alive."""
    world = World(stages, seed=seed, task_s=task_s)
    slow = world.nodes[f"p{which % stages}"]
    slow.slower, slow.lost = 4.0, 0.3
    world.run(lambda: False, for_s)
    assert all(not node.freed for node in world.nodes.values())
    assert world.blamed == []
    assert world.steps() > 0, "what was lost was sent again"


def test_a_single_false_accusation_frees_a_stage_once_and_is_no_fault_of_it():
    """It accuses an honest stage and leaves: the others follow it this time, and stay the next."""
    world = World(3)
    assert world.run(world.safe, 60.0)
    honest, liar = world.nodes["p0"], world.nodes["p2"]
    crew = honest.machine.company.name
    honest.machine.receive("p2", Ready(crew, 0, 0, 0, 0, False, freed=(1,)), world.now)
    assert [each for each in honest.machine.parted((), world.now) if isinstance(each, FreeStage)] == [], "it has not left"
    assert [each.peer for each in honest.machine.parted(("p2",), world.now) if isinstance(each, FreeStage)] == ["p1"]
    honest.machine.joined(1000, b"12345678", ("p0", "p9", "p2"), world.now, alone=True, carried=True)
    honest.machine.receive("p2", Ready(b"12345678", 0, 0, 0, 0, False, freed=(1,)), world.now)
    assert [each for each in honest.machine.parted(("p2",), world.now) if isinstance(each, FreeStage)] == []
    honest.machine.receive("p9", Ready(b"12345678", 0, 0, 0, 0, False, freed=(0,)), world.now)
    assert honest.machine.parted(("p9",), world.now) == [], "of us we know better"
    assert world.blamed == []
    with pytest.raises(RemoteProtocolError, match="crew_no_such_stage"):
        honest.machine.receive("p2", Ready(b"12345678", 0, 0, 0, 0, False, freed=(3,)), world.now)
    assert liar.freed == []


def test_of_two_stages_that_free_each_other_the_lower_one_is_followed():
    """Both have left, and nobody else knows better; the others stay together, and the other one is told not to come after them."""
    world = World(3)
    assert world.run(world.safe, 60.0)
    first, crew = world.nodes["p0"].machine, world.nodes["p0"].machine.company.name
    for sender, freed in (("p1", 2), ("p2", 1)):
        first.receive(sender, Ready(crew, 0, 0, 0, 0, False, freed=(freed,)), world.now)
    commands = first.parted(("p1", "p2"), world.now)
    assert [each.peer for each in commands if isinstance(each, FreeStage)] == ["p2"]
    assert [(each.peer, each.frame.freed) for each in commands if isinstance(each, Send)] == [("p2", (2,))]
    told = world.nodes["p2"].machine.receive("p0", Ready(crew, 0, 0, 0, 0, False, freed=(2,)), world.now)
    assert [each.peer for each in told if isinstance(each, Unfollow)] == ["p0"]
    assert world.blamed == []
    other = World(3)
    assert other.run(other.safe, 60.0)
    first = other.nodes["p0"].machine
    first.receive("p1", Ready(crew, 0, 0, 0, 0, False, freed=(2,)), other.now)
    kinds = [type(each) for each in first.parted(("p1", "p2"), other.now)]
    assert FreeStage not in kinds, "stage 2 has left by itself"


def test_clipped_results_are_reported_the_1st_10th_and_100th_time():
    class Bounded(Engine):
        def answer(self, work):
            result = super().answer(work)
            return replace(result, over=20.0) if isinstance(work, DoTask) and work.way == "F" else result

    world = World(2)
    world.nodes["p1"].engine = Bounded(1)
    assert world.run(lambda: world.steps() >= 12, 60.0)
    assert world.nodes["p1"].notes.count("crew_shortened") == 2, "of 36"
    assert "crew_shortened" not in world.nodes["p0"].notes
    assert all(not node.freed for node in world.nodes.values()), "a bound is no verdict"


def test_a_stage_follows_a_leaving_majority_without_blaming_anybody():
    """Two of four accuse a third: this stage leaves with them, and reports no fault that it has not seen itself."""
    world = World(4)
    assert world.run(world.safe, 60.0)
    honest = world.nodes["p0"]
    crew = honest.machine.company.name
    for sender in ("p1", "p2"):
        said = honest.machine.receive(sender, Ready(crew, 0, 0, 0, 0, False, freed=(3,)), world.now)
        assert not [each for each in said if isinstance(each, Blame)]
    kinds = [type(each) for each in honest.machine.parted(("p3",), world.now)]
    assert FreeStage not in kinds, "that is the accused, who may move as it likes"
    assert FreeStage in [type(each) for each in honest.machine.parted(("p1",), world.now)]
    other = World(4)
    assert other.run(other.safe, 60.0)
    waits = other.nodes["p0"].machine
    waits.receive("p1", Ready(waits.company.name, 0, 0, 0, 0, False, freed=(3,)), other.now)
    assert FreeStage not in [type(each) for each in waits.parted(("p2",), other.now)], "the one who said it is still here"


@pytest.mark.parametrize(("reason", "freed", "blamed"), [("labels", {"p0", "p1"}, set()), ("shape", {"p1"}, {"p1"})])
def test_mismatched_labels_free_all_possible_senders_stages_and_blame_nobody(reason, freed, blamed):
    """The first stage draws labels and the last one uses them; activations come from the previous stage only, labels through all."""

    class Strict(Engine):
        def answer(self, work):
            return Unfit(f"activation_bad_{reason}") if isinstance(work, DoTask) else super().answer(work)

    world = World(3)
    last = world.nodes["p2"]
    last.engine = Strict(2)
    assert world.run(lambda: len(last.freed) >= len(freed), 30.0)
    assert {peer for _, peer in last.freed} == freed
    assert {peer for peer, _ in world.blamed} == blamed


@pytest.mark.parametrize(("rests_s", "of_others_s"), [(400.0, 0.0), (700.0, 60.0)])
def test_a_stage_that_is_busy_between_rounds_keeps_its_assignment(rests_s, of_others_s):
    """It may exchange with slow peers: for as long as a result may take, or fifteen times as long as the others' exchanges."""
    world = World(3)
    world.run(lambda: world.steps() >= world.k, 60.0)
    for node in world.nodes.values():
        node.rests_s = of_others_s
    world.nodes["p1"].rests_s = rests_s
    world.run(lambda: False, 3.0 * rests_s)
    assert all(not node.freed for node in world.nodes.values())
    assert world.steps() >= 3 * world.k


LACKS, EVALUATES, RESTS = {"points": (), "step": 0}, {"evaluate": True}, {"left": 0}
SAYS = {"evaluates": (EVALUATES,), "lacks its state": (LACKS,), "changes": (LACKS, RESTS)}


@example(0, 3, 1, "evaluates", 0.0)
@example(0, 3, 1, "paused", 0.0)
@example(0, 4, 2, "lacks its state", 0.0)
@example(0, 2, 1, "changes", 0.1)
@given(SEEDS, st.integers(2, 5), st.integers(0, 4), st.sampled_from(["busy", "paused", *SAYS]), st.sampled_from([0.0, 0.1]))
@settings(max_examples=3, deadline=None, phases=SHOWN)
def test_a_stage_that_puts_off_every_meeting_loses_its_assignment(seed, stages, which, how, lost):
    """It is heard, and says that it does something else, has no steps to do, or lacks its state, which it was given: it is not mute.

    It is no fault, as its owner may have a reason.
    """
    world, which = World(stages, seed=seed), which % stages
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    for node in world.nodes.values():
        node.rests_s = 2.0
    liar = world.nodes[f"p{which}"]
    world.lost, liar.aside = lost, True
    liar.rests_s, liar.paused, liar.says = 1e9 if how == "busy" else 2.0, how == "paused", SAYS.get(how, ())
    others = [node for node in world.nodes.values() if node.stage != which]
    assert world.run(lambda: all(liar.peer in node.avoided for node in others), WITHHELD_S)
    world.lost = 0.0
    goal = max(node.engine.step for node in others) + STEPS
    world.start("new", which)
    assert watched(world, goal) == learned(stages, goal)
    assert {freed for node in others for _, freed in node.freed} == {liar.peer}
    assert {peer for peer, _ in world.blamed} <= ({liar.peer} if how in SAYS else set())


def test_a_paused_stage_finds_its_crew_again_after_it_resumes_and_the_others_stay_together():
    """No other machine waits: it is freed, and again ten minutes later, until it resumes."""
    world = World(3)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    paused = world.nodes["p1"]
    for node in world.nodes.values():
        node.rests_s = 10.0
    paused.paused = True
    world.run(lambda: False, 1600.0)
    assert [peer for peer in ("p0", "p2") for _, freed in world.nodes[peer].freed if freed == "p1"] == ["p0", "p0", "p2", "p2"]
    assert world.steps() == max(node.engine.step for node in world.nodes.values())
    paused.paused = False
    goal = world.steps() + STEPS
    assert watched(world, goal) == learned(3, goal)
    assert {stage_assignments.place(number, 3)[0] for number in world.claims.values()} == {1001}
    assert len(paused.freed) == 0
    assert world.blamed == []


def test_pauses_shorter_than_a_crew_waits_cost_nobody_the_assignment():
    """Rounds without a step follow each other fast, and whoever concludes first calls the next meeting."""
    world = World(3, lost=0.3)
    assert world.run(world.safe, 600.0)
    for _ in range(3):
        world.nodes["p1"].paused = True
        world.run(lambda: False, 200.0)
        world.nodes["p1"].paused = False
        before = world.steps()
        assert world.run(lambda before=before: world.steps() > before + world.k, 300.0)
    assert all(not node.freed for node in world.nodes.values())


def test_what_a_stage_owes_outlives_its_restart():
    world = World(3)
    assert world.run(world.safe, 60.0)
    paused = world.nodes["p1"]
    for node in world.nodes.values():
        node.rests_s = 10.0
    paused.paused = True
    world.run(lambda: False, 400.0)
    again = world.restart(paused)
    again.paused, again.rests_s = True, 10.0
    assert world.run(lambda: again.peer in world.nodes["p0"].avoided, 100.0)
    honest = World(3)
    assert honest.run(honest.safe, 60.0)
    honest.restart(honest.nodes["p1"])
    before = honest.steps()
    assert honest.run(lambda: honest.steps() > before + STEPS, 60.0)
    assert all(not node.freed for node in honest.nodes.values())


@given(
    SEEDS,
    st.integers(2, 5),
    st.integers(0, 4),
    st.sampled_from([(0.01, 0.01), (0.01, 0.1), (1.0, 0.5)]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=6, deadline=None, phases=SHOWN)
def test_a_stage_that_calls_meetings_without_end_loses_its_assignment(seed, stages, which, times, by_one, lost):
    """It comes to all of them. It calls now all others and now one, or only one, who then calls the rest: they know whose meeting it is."""
    (task_s, calls_s), which = times, which % stages
    world = World(stages, seed=seed, task_s=task_s)
    assert world.run(world.safe, 600.0)
    liar = world.nodes[f"p{which}"]
    world.lost, liar.aside, liar.calls_s = lost, True, calls_s
    world.at(0.0, world.call, liar)
    others = [node for node in world.nodes.values() if node.stage != which]
    liar.only_to = others[0].peer if by_one else ""
    assert world.run(lambda: all(liar.peer in node.avoided for node in others), 30.0 if calls_s < task_s * 2 < 1.0 else WITHHELD_S)
    world.lost = 0.0
    goal = max(node.engine.step for node in others) + STEPS
    world.start("new", which)
    assert watched(world, goal) == learned(stages, goal)
    assert {freed for node in others for _, freed in node.freed} == {liar.peer}
    assert {peer for peer, _ in world.blamed} <= {liar.peer}


@pytest.mark.parametrize("lost", [0.0, 0.1])
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("lie", [{"step": 0}, {"left": 0}, {"left": 1}, {"evaluate": True}, {"points": ()}])
def test_a_stage_that_tells_two_others_different_things_is_named_by_all_and_loses_its_assignment(lie, which, lost):
    """What each of the others does is right by what it heard, so that they would free each other."""
    world = World(4, seed=which)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    liar, world.lost = world.nodes[f"p{which}"], lost
    liar.aside, liar.says, liar.only_to = True, (lie,), "p1"
    others = [node for node in world.nodes.values() if node is not liar]
    assert world.run(lambda: all(liar.peer in node.avoided for node in others), 120.0)
    assert set(world.blamed) == {(liar.peer, "crew_equivocation")}
    assert len(world.blamed) >= len(others) - bool(lost), "the proof may be lost on its way to one, who follows the others"
    goal, world.lost = max(node.engine.step for node in others) + STEPS, 0.0
    world.start("new", which)
    assert watched(world, goal) == learned(4, goal)
    assert {freed for node in others for _, freed in node.freed} == {liar.peer}


def test_what_stages_did_in_vain_is_forgiven_where_a_third_one_equivocates():
    company, owed = Company(0, 3, 0, b"12345678", ("p0", "p1", "p2")), Owed()
    seats = FreedSeats(company, owed, Moment(), StageStates(0, 3, Copies(8), 0), Roll())
    for _ in range(CALLS * TURNS):
        owed.costs.add(1)
        owed.unfit.add(1)
    assert owed.mute == (1,)
    assert [seats.equivocated(2), seats.equivocated(2)] == [True, False]
    assert owed.mute == (2,)
    assert seats.peers == {"p2"}


def test_copies_of_states_that_a_crew_has_given_up_are_dropped():
    copies = Copies(8)
    for step in (10, 20, 5, 15):
        copies.keep(step, b"state")
    assert copies.steps == (5, 15)


def test_what_a_stage_was_not_told_at_a_meeting_it_learns_from_the_others():
    world = World(4)
    silent = world.nodes["p3"]
    silent.withholds, silent.only_to = "Ready", "p1"
    assert watched(world, STEPS) == learned(4, STEPS)
    assert all(not node.freed for node in world.nodes.values())


def test_the_same_peers_together_again_sign_no_number_of_a_meeting_twice():
    """Else what was said before could be shown as a second statement."""
    world = World(2)
    assert world.run(world.safe, 60.0)
    machine = world.nodes["p0"].machine
    company, number = machine.company, machine.roll.number
    name, peers = company.name, company.peers
    machine.joined(1, b"12345678", ("p0", "p9"), world.now, alone=True)
    assert machine.roll.number == 0
    machine.joined(0, name, peers, world.now, alone=True)
    assert machine.roll.open() == number + 1


@pytest.mark.parametrize(("every", "freed"), [(1, True), (2, True), (12, False)])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_that_sends_its_crew_back_more_often_than_every_ninth_round_loses_its_assignment(stages, every, freed):
    """It goes back to an earlier state between rounds, and says so: its crew can only follow. An engine that is lost does so as well."""
    world = World(stages)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    back = world.nodes["p1"]
    back.goes_back_every = every
    others, rounds = [node for node in world.nodes.values() if node is not back], back.round
    assert world.run(lambda: back.round >= rounds + 40 or back.peer in world.nodes["p0"].avoided, 600.0)
    assert {peer for node in others for _, peer in node.freed} == ({back.peer} if freed else set())
    assert back.round < rounds + 20 if freed else back.notes.count("crew_back") >= 2
    assert {peer for peer, _ in world.blamed} <= {back.peer}


@pytest.mark.parametrize(("step_of_call", "caller", "costs"), [(2, 2, {2}), (3, 2, {1}), (2, 1, {1}), (2, None, {1})])
def test_a_stage_that_was_called_away_from_its_last_step_is_not_who_sent_its_crew_back(step_of_call, caller, costs):
    """Stage 1 comes one step short of what was agreed: because of who called it before, if that one signed that it was short as well.

    None: it says so of stage 2, whose signature it has not.
    """
    world = World(3)
    world.nodes["p1"].rests_s = world.nodes["p2"].rests_s = 1e9
    machine = world.nodes["p0"].machine
    assert world.run(lambda: machine.phase == "meeting" and machine.roll.number == 2, 60.0)
    name, points = machine.company.name, machine.states.points
    word = call(name, "p2" if caller == 2 else "p1", 2, step_of_call, caller or 2)
    for stage, step in ((2, step_of_call if caller == 2 else 3), (1, 2)):
        ready = Ready(name, 2, 1, step, 3, False, points, waits=(word,) if stage in {caller, 1} else ())
        ready = structs.replace(ready, signature=signed(f"p{stage}", body(stage, ready)))
        machine.receive(f"p{stage}", ready, world.now)
    assert machine.owed.costs.stages == costs


def test_one_stages_word_moves_the_others_by_few_rounds():
    world = World(3)
    world.nodes["p1"].says = ({"round": 10**6},)
    others = world.nodes["p0"], world.nodes["p2"]
    assert world.run(lambda: world.steps() >= STEPS * world.k, 60.0)
    assert {node.round for node in others} == {STEPS + MOST}
    assert others[0].notes.count("crew_ahead") == 2, "the first time and the tenth"
    assert all(not node.freed for node in world.nodes.values())


@pytest.mark.parametrize(
    ("own", "others", "alone", "round"),
    [
        (40, (57,), True, 57),
        (40, (10**6,), False, 40 + MOST),
        (40, (41,), False, 41),
        (40, (57, 57), False, 57),
        (57, (57, 10**6), True, 57 + MOST),
        (57, (40, 57, 10**6), False, 57 + MOST),
        (40, (57, 57, 10**6), False, 57 + MOST),
        (57, (40, 40), True, 57),
    ],
)
def test_a_stage_goes_on_in_a_later_round_if_two_others_are_there(own, others, alone, round):
    assert LaterRounds().following(own, others, alone=alone) == round


def test_rounds_by_which_one_stage_moves_another_are_earned_slowly():
    rounds, own = LaterRounds(), 0
    for _ in range(320):
        own = rounds.following(own, (10**6,), alone=False) + 1
        rounds.done()
    assert 320 + MOST < own <= 320 + MOST + 10


def test_marks_of_a_stage_are_forgiven_by_rounds_without_one():
    marks = RoundMarks()
    for _ in range(40):
        marks.add(1)
        for _ in range(round(1 / FORGIVEN)):
            marks.round()
    assert marks.count(1) == 5, "an eighth in a round is one in nine, as the round in which it came forgives none"
    for _ in range(2 * CALLS * TURNS):
        marks.add(2)
        marks.round()
    assert marks.count(2) == 2 * CALLS * TURNS
    assert marks.stages == {1, 2}
    for _ in range(1000):
        marks.round()
    assert marks == RoundMarks()


def test_a_stage_whose_engine_is_lost_seven_times_in_a_row_keeps_its_assignment():
    """It calls a meeting after each, and no step is done between."""
    world = World(3, task_s=1.0)
    assert world.run(world.safe, 600.0)
    broken = world.nodes["p1"]
    for _ in range(2 * TURNS - 1):
        assert world.run(lambda: broken.machine.phase == "stepping", 60.0)
        world.lose_engine(broken)
        world.run(lambda: False, 1.0)
    before = world.steps()
    assert world.run(lambda: world.steps() > before + world.k, 120.0)
    assert all(not node.freed for node in world.nodes.values())


def lacking_its_state(state_s):
    """Return three stages that have trained, and a newcomer in the place of the second whose state takes so many seconds."""
    world = World(3)
    world.state_s = state_s
    assert world.run(lambda: world.steps() >= STEPS, 60.0)
    world.kill("p1")
    world.run(lambda: False, 3.0)
    return world, world.start("new", 1)


def test_a_state_that_takes_an_hour_on_its_way_costs_nobody_the_assignment():
    """Its sender is not at the meetings meanwhile; who receives it sees that it comes, and the third stage was told so."""
    world, _ = lacking_its_state(1200.0)
    assert world.run(lambda: world.steps() > STEPS, 1300.0), "and it is sent once"
    assert all(not node.freed for node in world.nodes.values())


def test_a_stage_that_gives_no_more_of_a_state_loses_its_assignment():
    """It sends the first piece again and again; who waits for the state knows, and the third stage follows."""
    world, new = lacking_its_state(1e9)
    giver = world.nodes["p0"]

    def again():
        kept = giver.machine.states.copies.kept[max(giver.machine.states.copies.steps)]
        piece = Piece(new.machine.company.name, 1, max(giver.machine.states.copies.steps), len(kept), 0, kept[:4])
        world.send(giver, "new", piece)
        world.at(100.0, again)

    world.at(10.0, again)
    assert world.run(lambda: all("p0" in node.avoided for node in (new, world.nodes["p2"])), WITHHELD_S)
    assert all(freed == "p0" for node in world.nodes.values() for _, freed in node.freed)


@example(0, 3, 1, 0.0)
@given(SEEDS, st.integers(2, 5), st.integers(0, 4), st.sampled_from([0.0, 0.1]))
@settings(max_examples=2, deadline=None, phases=SHOWN)
def test_a_stage_that_gives_a_part_of_a_state_at_each_meeting_loses_its_assignment(seed, stages, which, lost):
    """It comes to all of them; only the stage that waits for the state knows, and the others follow that one."""
    world, which = World(stages, seed=seed), which % stages
    assert world.run(lambda: world.steps() >= STEPS, 60.0)
    behind = (which + 1) % stages
    world.kill(f"p{behind}")
    world.run(lambda: False, 3.0)
    world.start("new", behind)
    giver, world.lost = world.nodes[f"p{which}"], lost
    giver.gives_part = True
    others = [node for node in world.nodes.values() if node is not giver]
    assert world.run(lambda: all(giver.peer in node.avoided for node in others), WITHHELD_S)
    assert {freed for node in others for _, freed in node.freed} == {giver.peer}
    assert world.blamed == []


@pytest.mark.parametrize(("rests", "freed"), [(False, ["p1"]), (True, [])])
def test_eight_calls_to_a_meeting_to_which_not_all_have_come_free_the_caller_s_stage(rests, freed):
    """Not where somebody had no steps to do: another may have concluded the meeting already."""
    world = World(3)
    world.nodes["p1"].mute = world.nodes["p2"].mute = True
    world.run(lambda: world.nodes["p0"].machine.phase == "meeting", 10.0)
    machine, commands = world.nodes["p0"].machine, []
    machine.meeting.holding.rests = rests
    for turn in range(2, 2 + 2 * TURNS):
        assert machine.phase == "meeting"
        assert [each.peer for each in commands if isinstance(each, FreeStage)] == []
        word = world.nodes["p1"].machine.steps.waiting.call(turn, 0)
        for _ in range(2):  # the second is a repeated one
            commands += machine.receive("p1", says(machine.company.name, turn, (word,)), world.now)
        commands += machine.done(Engine(0).answer(UseState("look", 0)), world.now)
    assert [each.peer for each in commands if isinstance(each, FreeStage)] == freed


def test_a_stage_that_still_lacks_a_third_ones_part_is_not_the_one_that_puts_off_the_meeting():
    """Its neighbor has withheld its part from it alone, and is at the next meeting with the others in time."""
    world = World(3, k=1)
    assert world.run(world.safe, 60.0)
    liar = world.nodes["p1"]
    liar.withholds, liar.only_to, liar.aside = "StepReport", "p2", True
    assert world.run(lambda: world.nodes["p0"].machine.phase == "meeting", 10.0)
    assert world.run(lambda: bool(world.nodes["p0"].freed), WITHHELD_S)
    assert {freed for stage in ("p0", "p2") for _, freed in world.nodes[stage].freed} == {"p1"}
    assert world.nodes["p0"].machine.owed.put_off.turns == {}


def test_a_stage_silent_for_few_averagings_keeps_its_assignment():
    world = World(3)
    world.run(lambda: world.steps() >= world.k, 60.0)
    world.nodes["p1"].mute = True
    world.run(lambda: False, 3 * TURN_S)
    world.nodes["p1"].mute = False
    before = world.steps()
    assert world.run(lambda: world.steps() > before + world.k, 60.0)
    assert all(not node.freed for node in world.nodes.values())
    assert all(not node.machine.owed.arrears for node in world.nodes.values())


def test_all_stages_receive_the_evaluation():
    world = World(3, evaluates=True)
    assert world.run(lambda: all(len(node.evaluations) > 2 for node in world.nodes.values()), 120.0)
    assert {each.value for node in world.nodes.values() for each in node.evaluations if each is not None} == {0.5}


def test_a_stage_continues_without_a_value_if_others_do_not_evaluate():
    world = World(2)
    world.nodes["p0"].machine.give_up()
    alone = world.nodes["p0"]
    world.events.clear()
    world.at(0.0, world.look, alone)
    world.at(0.0, world.measure, alone)
    assert world.run(lambda: alone.evaluations == [None], 40.0)


def test_arrears_end_when_the_message_or_any_frame_arrives():
    owed = Owed()
    owed.agree([(0, "activation 0"), (2, "gradient 0"), (2, "part")])
    assert owed.debtors == (0, 2)
    owed.arrived(0, "activation 0")
    for turn in range(1, TURNS + 1):
        assert owed.mute == ()
        owed.end_turn()
        assert owed.turns == {2: turn}, "stage 0 owes nothing"
    assert owed.mute == (2,)
    owed.heard(2)
    assert owed.arrears == owed.mute == ()
    owed.end_turn()
    assert owed.turns == {}, "it was heard in that turn"


def test_all_stages_follow_one_that_leaves_a_mute_stage():
    """Timeouts end at different moments; stages still counting follow, and the crew stays together."""
    world = World(3)
    world.run(lambda: world.steps() >= world.k, 60.0)
    world.nodes["p2"].mute = True
    assert world.run(lambda: bool(world.nodes["p0"].machine.owed.arrears), FREED_S)
    world.nodes["p0"].avoided.add("p2")
    assert world.run(lambda: "p2" in world.nodes["p1"].avoided, 1.0)


def call(crew, peer, turn, step=0, stage=1):
    """Return the signed call of a stage to a meeting."""
    return Waiting(Company(stage, 2, 0, crew), Keys(partial(signed, peer), verified)).call(turn, step)


def says(crew, turn, waits=(), *, peer="p1", left=3, **other):
    """Return a report of stage 1, signed by `peer`."""
    ready = Ready(crew, turn, 0, 0, left, False, waits=waits, **other)
    return structs.replace(ready, signature=signed(peer, body(1, ready)))


def machine_of_two():
    """Return stage 0 of two in training, at its first meeting, and the other's name for the crew."""
    world = World(2)
    world.nodes["p1"].mute = True
    world.run(lambda: world.nodes["p0"].machine.phase == "meeting", 10.0)
    return world, world.nodes["p0"].machine, world.nodes["p0"].machine.company.name


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (lambda crew: says(crew, 1 << 40, waits=(call(crew, "p1", 1 << 40),)), "crew_turn_too_far"),
        (lambda crew: says(crew, 5), "crew_call_unsigned"),
        (lambda crew: says(crew, 5, waits=(call(crew, "p1", 4),)), "crew_call_unsigned"),
        (lambda crew: says(crew, 5, waits=(structs.replace(call(crew, "p1", 5), stage=0),)), "crew_call_unsigned"),
        (lambda crew: says(crew, 5, waits=(structs.replace(call(crew, "p1", 5), stage=2),)), "crew_no_such_stage"),
        (lambda crew: Ready(crew, 5, 0, 0, 3, False, waits=(call(crew, "p1", 5),)), "crew_ready_unsigned"),
        (lambda crew: structs.replace(says(crew, 5, (call(crew, "p1", 5),)), left=2), "crew_ready_unsigned"),
        (lambda crew: says(crew, 1, left=10), "crew_left_too_many"),
        (lambda crew: says(crew, 5, (call(crew, "p1", 5, 1),)), "crew_call_differs"),
        (lambda crew: Minutes(crew, 1, (Said(2, says(crew, 1)),)), "crew_minutes_of_another_meeting"),
        (lambda crew: Minutes(crew, 1, (Said(1, says(crew, 5)),)), "crew_minutes_of_another_meeting"),
        (lambda crew: Minutes(crew, 1, (Said(1, says(bytes(8), 1)),)), "crew_minutes_of_another_meeting"),
        (lambda crew: Minutes(crew, 1, (Said(1, Ready(crew, 1, 0, 0, 3, False)),)), "crew_ready_unsigned"),
        (lambda crew: Piece(crew, 0, 0, 9, 0, b"1234"), "crew_bad_piece"),
        (lambda crew: Piece(crew, 0, 0, 8, 0, b"12345678"), "crew_bad_piece"),
        (lambda crew: Piece(crew, 0, 0, 8, 0, b"1"), "crew_bad_piece"),
        (lambda crew: Piece(crew, 0, 0, 8, 1, b"1234"), "crew_bad_piece"),
        (lambda crew: Piece(crew, 0, 0, 8, 8, b"1234"), "crew_bad_piece"),
        (lambda crew: Piece(crew, 7, 0, 8, 0, b"12345678"), "crew_piece_of_another_stage"),
    ],
)
def test_frames_that_no_honest_stage_sends_are_faults(frame, reason):
    world, machine, crew = machine_of_two()
    with pytest.raises(RemoteProtocolError, match=reason):
        machine.receive("p1", frame(crew), world.now)


def test_frames_of_future_steps_are_bounded_and_faults_in_them_do_not_end_the_node():
    world, machine, crew = machine_of_two()
    for micro in (9, 0):
        machine.receive("p1", Forward(crew, 1, 0, micro, b"x", b""), world.now)
    for step in range(1, 4):
        machine.receive("p1", StepReport(crew, 1, step, 0.0), world.now)
    for step in (4, 5):
        with pytest.raises(RemoteProtocolError, match="crew_too_far_ahead"):
            machine.receive("p1", StepReport(crew, 1, step, 0.0), world.now)
    world.nodes["p1"].mute = False
    world.run(lambda: bool(world.blamed), 10.0)
    assert set(world.blamed) == {("p1", "crew_no_such_neighbour")}


def test_early_messages_of_later_crew_members_are_used():
    """Members learn of one another at different times, and an early Ready is not requested again."""
    world = World(2)
    machine = world.nodes["p0"].machine
    world.run(lambda: world.nodes["p0"].machine.phase == "meeting", 10.0)
    ready = says(b"12345678", 1, (call(b"12345678", "p9", 1),), peer="p9")
    assert machine.receive("p9", ready, world.now) == []
    machine.parted((), world.now)
    machine.joined(0, b"12345678", ("p0", "p9"), world.now, alone=True)
    machine.done(Engine(0).answer(UseState("look", 0)), world.now)
    assert machine.phase == "beginning", "it needed no other Ready"


def test_early_messages_that_no_honest_stage_sends_do_not_end_the_node():
    world = World(2)
    machine = world.nodes["p0"].machine
    machine.receive("p9", says(b"12345678", 1 << 40, (call(b"12345678", "p9", 1 << 40),), peer="p9"), world.now)
    machine.joined(0, b"12345678", ("p0", "p9"), world.now, alone=True)
    assert machine.roll.called == 0


def test_an_engine_that_cannot_restore_its_own_state_is_lost():
    world, machine, _ = machine_of_two()
    machine.give_up()
    (look,) = machine.train(0, 3, world.now)
    assert isinstance(look, UseState)
    with pytest.raises(EngineError, match="cannot be used: "):
        machine.done(Unusable("none"), world.now)
    machine.give_up()
    assert machine.phase == "idle"


def test_a_busy_member_acknowledges_a_call_to_a_crew_meeting():
    world, machine, crew = machine_of_two()
    machine.give_up()
    (answer,) = machine.receive("p1", says(crew, 5, waits=(call(crew, "p1", 5),)), world.now)
    assert isinstance(answer, Send)
    assert answer.frame.turn == 0
    assert machine.receive("p1", answer.frame, world.now) == [], "it calls nobody, and is not answered"


def frames(commands, kind):
    """Return the frames of one kind that these commands send."""
    return [each.frame for each in commands if isinstance(each, Send) and isinstance(each.frame, kind)]


def results(commands):
    """Return the results among the frames of these commands."""
    return frames(commands, Forward | Backward)


def test_a_lost_result_is_asked_for_once_a_second_and_sent_again():
    """Only the stage that lacks it, in its step, and not more often than twice a second, whatever it asks."""
    world = World(2)
    world.lost = 1.0
    first, second = world.nodes["p0"], world.nodes["p1"]
    assert world.run(lambda: first.machine.phase == second.machine.phase == "meeting", 10.0)
    world.lost = 0.0
    assert world.run(lambda: first.machine.phase == "stepping", 10.0)
    world.lost = 1.0
    assert world.run(lambda: first.machine.steps.running.lacks == ("B", 0), 10.0)
    assert world.run(lambda: second.machine.phase == "stepping" and second.machine.steps.running is not None, 10.0)
    began = world.now
    world.run(lambda: False, 2.0)
    asks = [each.frame for each in second.machine.tick(began + 5.0) if isinstance(each, Send)]
    assert [frame.waits[0].done for frame in asks] == [0]
    again = first.machine.receive("p1", asks[0], began + 5.0)
    assert [(frame.step, frame.micro) for frame in results(again)] == [(0, 0)]
    assert results(first.machine.receive("p1", asks[0], began + 5.4)) == []
    assert len(results(first.machine.receive("p1", asks[0], began + 5.6))) == 1
    say = Waiting(second.machine.company, Keys(partial(signed, "p1"), verified)).say
    for wrong in ((9, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 1 << 20)):
        other = structs.replace(asks[0], waits=say(*wrong))
        assert results(first.machine.receive("p1", other, began + 9.0)) == [], wrong


def test_answers_to_repeated_messages_of_a_meeting_are_not_answered():
    """Two stages that had left the meeting would else answer each other for ever, as fast as the line is."""
    world = World(3)
    assert world.run(lambda: all(node.machine.phase == "stepping" for node in world.nodes.values()), 60.0)
    one, other = world.nodes["p0"].machine, world.nodes["p1"].machine
    repeated = one.roll.own
    (answer,) = frames(other.receive("p0", repeated, world.now), Minutes)
    assert frames(one.receive("p1", answer, world.now), Ready | Minutes) == []
    assert (answer.turn, [said.stage for said in answer.said]) == (repeated.turn, [0, 1, 2])


def test_stages_that_wait_for_a_busy_one_excuse_each_other_and_it_says_that_it_lives():
    """Only its neighbors count the time; it computes for three turns, and its result ends that."""
    world = World(4)
    assert world.run(world.safe, 60.0)
    busy = world.nodes["p2"]
    busy.slower = 1e5  # up to a thousand seconds for a task
    owed = {node.stage: node.machine.owed for node in world.nodes.values()}
    assert world.run(lambda: owed[3].withheld.turns == {2: 1}, 2.0 * TURN_S)
    world.run(lambda: False, TURN_S)
    assert owed[0].withheld.turns == {}, "stage 1 says that it waits for stage 2"
    assert all(not each.turns for each in owed.values()), "it is not silent"
    assert world.nodes["p3"].notes.count("crew_withheld") == 1
    busy.slower = 1.0
    before = world.steps()
    assert world.run(lambda: world.steps() > before or world.nodes["p3"].freed, 1200.0)


def test_the_name_of_a_freed_stage_is_repeated_until_the_crew_is_whole():
    """The others waited for another stage, as they were told to, and follow who knows better: a frame of it may be lost."""
    world = World(3)
    assert world.run(world.safe, 60.0)
    liar, victim = world.nodes["p2"], world.nodes["p0"]
    liar.withholds, liar.aside = "Backward", True
    world.run(lambda: False, 460.0)
    assert world.nodes["p1"].machine.owed.withheld.turns == {2: 3}
    world.lost = 1.0
    assert world.run(lambda: bool(world.nodes["p1"].freed), 20.0)
    world.run(lambda: False, 5.0)
    assert victim.freed == []
    world.lost = 0.0
    assert world.run(lambda: bool(victim.freed), 3.0)


def test_a_stage_owes_turns_twice_as_long_each_time_until_a_result_arrives():
    owed = Owed()
    owed.agree([(1, "gradient 0"), (1, "gradient 1"), (2, "ready")])
    ends = [second for second in range(1, 1000) if owed.count(1) < TURNS and owed.withheld.add(1, TURN_S)]
    assert ends == [30, 90, 210, 450]
    assert owed.mute == owed.arrears == (1,)
    owed.arrived(1, "gradient 2")
    assert owed.mute == (1,), "that was due from nobody"
    owed.arrived(1, "gradient 0")
    assert owed.mute == owed.arrears == ()
    assert [owed.withheld.add(1, TURN_S) for _ in range(30)][-1]
    assert owed.arrears == (), "a slow stage follows nobody for that"
    owed.arrived(1, "gradient 0")
    assert owed.withheld.turns == {1: 1}, "it came before"
    owed.done()
    assert owed.withheld.turns == {}
    assert [owed.withheld.add(1, 45.0) for _ in range(45)].index(True) == 44, "or as many seconds as the fastest step took"
    assert [owed.put_off.add(2, TURN_S, seconds) for seconds in (3600.0, 59.0, 1.0)] == [True, False, True], "a machine may have slept"
    assert owed.put_off.turns == {2: 2}
