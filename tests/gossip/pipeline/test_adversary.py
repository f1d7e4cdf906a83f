"""What one stage of a crew can do to the others by what it sends, and whom they hold for its cause."""

from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.pipeline import stage_assignments
from starling.gossip.pipeline.crew_commands import Blame, FreeStage, Unusable, UseState
from starling.gossip.pipeline.minutes import body
from starling.gossip.pipeline.owed import CALLS, TURNS, Owed
from starling.gossip.pipeline.roll import MOST_SKIPPED, MOST_STEPS_AHEAD
from starling.gossip.pipeline.waiting import Keys, Waiting
from starling.gossip.wire.schema import Minutes, Ready, Said, StepReport
from tests.gossip.pipeline.adversary import Adversary
from tests.gossip.pipeline.crews import Engine, World, resigned, signed, verified

STEPS = 12
ENOUGH = 60  # further steps with which a crew goes on beside the liar


@given(st.integers(0, 2**32), st.integers(3, 5), st.integers(0, 4), st.booleans(), st.sampled_from([0.0, 1.0]))
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
def test_whatever_one_stage_sends_no_other_is_charged_or_freed_and_steps_go_on_or_it_is_freed(seed, stages, which, evaluates, rests_s):
    """Its single word frees a seat once for each peer, where it says that it frees one (decision 0137); nobody is charged for that."""
    world = Adversary(stages, which % stages, seed=seed, evaluates=evaluates)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 100.0)
    for node in world.nodes.values():
        node.rests_s = rests_s
    goal = world.steps() + ENOUGH
    world.begin()
    others = [node.peer for node in world.honest]

    def freed_by(peer):
        return {freed for _, freed in world.nodes[peer].freed}

    assert world.run(lambda: all(world.liar in freed_by(peer) for peer in others) or world.steps() >= goal, 2000.0)
    assert {peer for _, peer, _ in world.charges} <= {world.liar}
    followed = [(peer, freed) for peer in others for freed in freed_by(peer) - {world.liar}]
    assert followed == [] or (world.freed_in_word and len({peer for peer, _ in followed}) == len(followed))


def trained(stages, **world):
    """Return a crew that has done some steps."""
    world = World(stages, **world)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    return world


def at_a_meeting(stages=3):
    """Return a crew of which only stage 0 is at the second meeting, its machine, and the reports of the others for it."""
    world = World(stages)
    for node in world.nodes.values():
        node.rests_s = 1e9 * (node.stage > 0)
    machine = world.nodes["p0"].machine
    assert world.run(lambda: machine.phase == "meeting" and machine.roll.number == 2, 60.0)
    return world, machine, {stage: said(machine, stage) for stage in range(1, stages)}


def said(machine, stage, **other):
    """Return what a stage says at a machine's meeting, signed."""
    ready = structs.replace(machine.roll.own, **other)
    return structs.replace(ready, signature=signed(f"p{stage}", body(stage, ready)))


def test_what_is_kept_of_a_report_to_be_passed_on_is_signed_also_if_it_is_repeated_without():
    """Else who passes it on to one that has heard another would be at fault, and nothing would be proven."""
    world, machine, reports = at_a_meeting()
    machine.receive("p2", reports[2], world.now)
    with pytest.raises(RemoteProtocolError, match=r"p2.*crew_ready_unsigned"):
        machine.receive("p2", structs.replace(reports[2], signature=b"x"), world.now)
    assert machine.roll.minutes(2, 3).said[-1].ready.signature == reports[2].signature


def test_the_first_of_two_statements_is_kept():
    world, machine, reports = at_a_meeting()
    machine.receive("p2", reports[2], world.now)
    commands = machine.receive("p2", said(machine, 2, left=1), world.now)
    assert [each.reason for each in commands if isinstance(each, Blame)] == ["crew_equivocation"]
    assert machine.roll.said(2, 2) == reports[2]


def test_who_called_a_meeting_is_part_of_what_a_stage_signs():
    """Who passes its report on cannot take that away, so that it would seem to have come in an earlier state by itself."""
    world, machine, reports = at_a_meeting()
    assert reports[1].waits != ()
    altered = structs.replace(reports[1], waits=())
    with pytest.raises(RemoteProtocolError, match=r"p2.*crew_ready_unsigned"):
        machine.receive("p2", Minutes(reports[1].crew, 2, (Said(1, altered),)), world.now)


def test_a_report_that_is_passed_on_does_not_take_the_place_of_the_same_one():
    """Else its stage would not be answered that lacks another's, as it would not seem to repeat itself."""
    world, machine, reports = at_a_meeting()
    machine.receive("p1", reports[1], world.now)
    passed = structs.replace(reports[1], heard_at=7, freed=(2,))
    machine.receive("p2", Minutes(reports[1].crew, 2, (Said(1, passed),)), world.now)
    assert machine.roll.said(1, 2) == reports[1]


def test_a_stage_that_follows_to_a_number_far_ahead_is_not_who_called_it():
    """It was at a later meeting, so that the number was not too far for it."""
    world, machine, _ = at_a_meeting()
    far = 3 + MOST_SKIPPED
    word = Waiting(world.nodes["p2"].machine.company, Keys(partial(signed, "p2"), verified)).call(far, 3)
    with pytest.raises(RemoteProtocolError, match=r"p2.*crew_turn_too_far"):
        machine.receive("p2", said(machine, 2, turn=far, waits=(word,)), world.now)
    machine.receive("p1", said(machine, 1, turn=far, waits=(word,)), world.now)
    assert machine.roll.called == far


def test_reports_of_steps_that_never_come_leave_room_for_those_of_others():
    world = trained(3, seed=1)
    name = world.nodes["p2"].machine.company.name
    for step in range(MOST_STEPS_AHEAD):
        world.send(world.nodes["p2"], "p1", StepReport(name, 10**6, step, 0.0))
    goal = world.steps() + 10 * STEPS
    assert world.run(lambda: world.steps() >= goal, 60.0)
    assert world.blamed == []


def test_a_stage_may_be_ahead_by_as_many_frames_of_a_step_as_an_honest_one():
    world, machine, reports = at_a_meeting(2)
    for squares in (0.0, 1.0):
        machine.receive("p1", StepReport(reports[1].crew, 2, 9, squares), world.now)
    with pytest.raises(RemoteProtocolError, match="crew_too_far_ahead"):
        machine.receive("p1", StepReport(reports[1].crew, 2, 9, 2.0), world.now)


class Longer(World):
    """A crew whose first stage tells the second of more held-out data than the others."""

    def send(self, node, peer, frame):
        if node.stage == 0 and isinstance(frame, Ready) and frame.turn:
            frame = resigned(node, structs.replace(frame, batches=4 if peer == "p1" else 1))
        super().send(node, peer, frame)


def test_stages_that_were_told_of_different_held_out_data_charge_only_who_told_them():
    world = Longer(4, seed=1, evaluates=True)
    world.run(lambda: False, 30.0)
    assert set(world.blamed) == {("p0", "crew_equivocation")}


@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_whose_exchanges_take_longer_than_an_evaluation_waits_keeps_its_assignment(stages):
    """The others no longer evaluate when it comes, and it has not to call another meeting for that."""
    world = World(stages, seed=1, evaluates=True)
    world.nodes["p1"].rests_s = 40.0
    world.run(lambda: False, 20 * 45.0)
    assert world.steps() >= 19 * world.k
    assert all(not node.freed for node in world.nodes.values())
    assert all(node.machine.owed.costs.stages == frozenset() for node in world.nodes.values())


def test_who_calls_the_next_meeting_after_one_without_steps_has_told_the_others_what_was_said_there():
    """A paused stage says so to one only: the other would count as interruptions what the one calls."""
    world = trained(3)
    for node in world.nodes.values():
        node.rests_s = 0.9
    paused = world.nodes["p1"]
    paused.paused, paused.withholds, paused.only_to = True, "Ready", "p2"
    world.run(lambda: False, 100.0)
    assert world.nodes["p2"].machine.owed.costs.stages <= {1}
    assert all(not world.nodes[peer].freed for peer in ("p0", "p2"))


class Skips(World):
    """A crew whose second stage does not evaluate."""

    def measure(self, node):
        if node.peer == "p1":
            self.at(0.0, self._round, node)
        else:
            super().measure(node)


def test_who_leaves_a_meeting_about_an_evaluation_for_steps_has_told_the_others_what_was_said_there():
    """A stage comes to it for steps, and says so to one only."""
    world = Skips(3, evaluates=True)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    skips = world.nodes["p1"]
    skips.withholds, skips.only_to = "Ready", "p2"
    world.run(lambda: False, 60.0)
    assert world.nodes["p2"].machine.owed.costs.stages <= {1}
    assert all(not world.nodes[peer].freed for peer in ("p0", "p2"))


class Leaves(World):
    """A crew whose second stage, from `leaving` on, is away from its seat for `away_s` seconds of every `away_s` + `there_s`."""

    leaving, away_s, there_s = False, 0.0, 0.0

    def _sit(self, node):
        if node.peer != "p1" or not self.leaving:
            super()._sit(node)
            return
        away = self.now % (self.away_s + self.there_s) < self.away_s
        self.claims["p1"] = stage_assignments.seat(77 if away else 0, 1, self.stages)


@pytest.mark.parametrize(("away_s", "there_s"), [(0.3, 2.0), (0.33, 0.71)])
def test_a_stage_that_leaves_and_comes_back_without_end_is_freed_and_not_who_calls_the_meetings_then(away_s, there_s):
    """The others notice it at different times, and the first calls the next meeting, which interrupts the others."""
    world = Leaves(3, seed=2)
    assert world.run(lambda: world.steps() >= STEPS and world.safe(), 60.0)
    for node in world.nodes.values():
        node.rests_s = 1.0
    world.nodes["p1"].aside, world.leaving, world.away_s, world.there_s = True, True, away_s, there_s
    others = world.nodes["p0"], world.nodes["p2"]
    assert world.run(lambda: all("p1" in node.avoided for node in others), 300.0)
    world.run(lambda: False, 60.0)
    assert {freed for node in others for _, freed in node.freed} == {"p1"}
    assert world.blamed == []


def missed(machine, now):
    """Let a machine miss stage 1 and find it again; return its commands then."""
    company = machine.company
    machine.parted((), now, away=("p1",))
    return machine.joined(company.crew, company.name, company.peers, now, alone=True)


def test_a_stage_that_was_away_too_often_is_freed_before_another_meeting_is_called():
    world, machine, _ = at_a_meeting()
    for _ in range(CALLS * TURNS - 1):
        (look,) = missed(machine, world.now)
        assert isinstance(look, UseState)
        machine.done(world.nodes["p0"].engine.answer(look), world.now)
    commands = missed(machine, world.now)
    assert [each.peer for each in commands if isinstance(each, FreeStage)] == ["p1"]
    assert not [each for each in commands if isinstance(each, UseState)]


def test_a_newcomer_does_not_answer_for_the_one_who_had_its_stage():
    world, machine, _ = at_a_meeting()
    machine.parted((), world.now, away=("p1",))
    machine.joined(0, b"12345678", ("p0", "new", "p2"), world.now, alone=True)
    assert machine.owed.costs.stages == frozenset()


def test_a_stage_that_is_away_between_rounds_costs_nothing():
    world, _, _ = at_a_meeting()
    machine = world.nodes["p2"].machine
    assert world.run(lambda: machine.phase == "idle", 1.0)
    assert missed(machine, world.now) == []
    assert machine.owed.costs.stages == frozenset()


def test_marks_of_both_kinds_count_together():
    """A stage calls a meeting because of either, and must leave their stage before seven calls are eight."""
    owed = Owed()
    for _ in range(CALLS * (TURNS - 1) - 1):
        owed.costs.add(1)
    owed.unfit.add(1)
    assert owed.count(1) == TURNS - 1
    owed.costs.add(1)
    assert owed.mute == (1,)


def test_a_stage_whose_seat_was_freed_has_no_voice_wherever_it_sits_later():
    world = trained(4)
    honest = world.nodes["p0"].machine
    crew = honest.company.name
    honest.receive("p3", Ready(crew, 0, 0, 0, 0, False, freed=(1,)), world.now)
    honest.receive("p1", Ready(crew, 0, 0, 0, 0, False, freed=(3,)), world.now)
    assert [each.peer for each in honest.parted(("p1",), world.now) if isinstance(each, FreeStage)] == ["p3"]
    assert [each for each in honest.parted(("p3",), world.now) if isinstance(each, FreeStage)] == []


def test_a_copy_that_cannot_be_used_is_nobody_s_fault():
    """It came from the machine that had the stage before, of which its keeper knows no more than who gets it."""

    class Refuses(Engine):
        def answer(self, work):
            return Unusable("size") if isinstance(work, UseState) and work.action == "take" else super().answer(work)

    world = trained(3)
    world.kill("p1")
    world.run(lambda: False, 3.0)
    new = world.start("new", 1)
    new.engine = Refuses(1)
    assert world.run(lambda: "crew_state_unusable" in new.notes, 60.0)
    world.run(lambda: False, 60.0)
    assert world.blamed == []


def test_a_peer_is_away_whose_seat_in_the_crew_is_not_its_own():
    seats = {f"p{stage}": stage_assignments.seat(0, stage, 3) for stage in range(3)}
    peers = tuple(seats)
    assert stage_assignments.away(seats, 3, "p0", 0, peers) == ()
    assert stage_assignments.away(seats | {"p1": stage_assignments.seat(5, 1, 3)}, 3, "p0", 0, peers) == ("p1",)
    assert stage_assignments.away({"p0": 1, "p2": 3}, 3, "p0", 0, peers) == ("p1",)
    assert stage_assignments.away(seats | {"p0": stage_assignments.seat(5, 0, 3)}, 3, "p0", 0, peers) == ()
