"""Steps of whole crews whose frames arrive in any order that links allow, and frames that no honest stage sends."""

import random

import pytest

from starling.gossip.pipeline.schedule import ahead, order, task
from starling.gossip.pipeline.stage import Apply, Compute, Part, Pass, Step, Tell, shortened


def asked_for(cores):
    """Let all stages ask for what they lack; return (from, to) -> what is sent again."""
    again = {}
    for s, core in enumerate(cores):
        if core.lacks is not None:
            core.ask()
            neighbor = s + (-1 if core.lacks[0] == "F" else 1)
            sent = cores[neighbor].wanted(s, core.done)
            if sent is not None:
                assert (sent.way, sent.micro) == core.lacks
                again[neighbor, s] = [sent]
    return again


def played(stages, m, w, seed, lost=0.0):
    """Run a crew in which any stage and link may be slow; return each stage's tasks, most stored activations, and applied values.

    The share `lost` of all results is lost; once nothing moves, stages ask for those that they lack.
    """
    chance = random.Random(seed)
    cores = [Step(s, stages, m, w) for s in range(stages)]
    work = {s: [] for s in range(stages)}
    lines = {}  # (from, to) -> frames in order
    done, held, applied = [[] for _ in cores], [0] * stages, [None] * stages

    def carry(s, commands):
        for command in commands:
            if isinstance(command, Compute):
                work[s].append(command)
            elif isinstance(command, Pass):
                lines.setdefault((s, command.to), []).append(command)
            elif isinstance(command, Tell):
                for to in range(stages):
                    lines.setdefault((s, to), []).append(Part(float(s), loss=1.0))
            else:
                assert isinstance(command, Apply)
                assert applied[s] is None
                applied[s] = command.parts

    for s, core in enumerate(cores):
        carry(s, core.begin())
    while True:
        able = [("work", s) for s in work if work[s]] + [("line", pair) for pair in lines if lines[pair]]
        if not able and all(applied):
            return done, held, applied
        if not able:
            again = asked_for(cores)
            assert again, "whoever has what is lacking keeps it"
            lines |= again
            continue
        kind, which = chance.choice(able)
        if kind == "work":
            task = work[which].pop(0)
            assert not work[which], "one task at a time"
            done[which].append((task.way, task.micro))
            expected = b"" if (task.way, which) in {("F", 0), ("B", stages - 1)} else b"%d %d" % (which, task.micro)
            assert task.payload == expected
            to = which + (1 if task.way == "F" else -1)
            carry(which, cores[which].computed(b"%d %d" % (to, task.micro)))
            held[which] = max(held[which], cores[which].held)
        else:
            (came, to), frame = which, lines[which].pop(0)
            if isinstance(frame, Part):
                carry(to, cores[to].part(came, frame))
            elif chance.random() < lost:
                continue
            else:
                carry(to, cores[to].arrived(frame.way, frame.micro, frame.payload, frame.labels))


@pytest.mark.parametrize("seed", range(40))
def test_every_stage_follows_the_schedule_s_order_and_memory(seed):
    chance = random.Random(seed)
    stages, m, w = chance.randint(2, 5), chance.randint(1, 9), chance.randint(0, 3)
    done, held, applied = played(stages, m, w, seed, lost=chance.choice((0.0, 0.5)))
    for s in range(stages):
        kept = ahead(s, stages, m, w)
        assert done[s] == order(kept, m) == [task(kept, m, index) for index in range(2 * m)]
        assert [i for way, i in done[s] if way == "B"] == list(range(m)), "gradients add up as on one machine"
        assert held[s] == kept
    assert applied == [tuple(Part(float(s), loss=1.0) for s in range(stages))] * stages


def test_a_crew_applies_a_step_only_after_all_stages_reported():
    core = Step(0, 3, 1)
    (first,) = core.begin()
    core.computed(b"out")
    (back,) = core.arrived("B", 0, b"in")
    assert (first.way, back.way) == ("F", "B")
    assert core.computed(b"") == [Tell()]
    assert core.part(0, Part(1.0)) == []
    assert core.part(2, Part(4.0)) == []
    assert not core.applied
    assert core.part(1, Part(4.0)) == [Apply((Part(1.0), Part(4.0), Part(4.0)))]
    assert core.applied


@pytest.mark.parametrize(
    ("way", "micro", "reason"),
    [
        ("F", 4, "no_such_micro_batch"),
        ("F", -1, "no_such_micro_batch"),
        ("F", 0, "micro_batch_twice"),
        ("F", 3, "micro_batch_too_early"),
        ("B", 1, "micro_batch_never_sent"),
    ],
)
def test_a_frame_that_no_honest_stage_sends_is_a_fault_and_changes_nothing(way, micro, reason):
    """Stage 1 of three with the textbook's warm-up: up to three micro-batches may be in flight; one has arrived and was forwarded."""
    core = Step(1, 3, 4)
    assert [c.micro for c in core.arrived("F", 0, b"in")] == [0]
    assert core.computed(b"out") == [Pass(2, "F", 0, b"out")]
    with pytest.raises(ValueError, match=reason):
        core.arrived(way, micro, b"?")
    assert [c.micro for c in core.arrived("F", 1, b"in")] == [1]


def test_a_gradient_proves_that_all_activations_before_it_arrived():
    core = Step(0, 3, 4)
    core.begin()
    for _ in range(3):
        core.computed(b"out")
    core.arrived("B", 1, b"in")
    assert set(core.sent) == {("F", 2)}


def test_ends_of_the_pipeline_have_one_neighbour():
    for core, way in ((Step(0, 2, 2), "F"), (Step(1, 2, 2), "B")):
        core.begin()
        with pytest.raises(ValueError, match="no_such_neighbour"):
            core.arrived(way, 0, b"?")


def test_a_result_that_was_asked_for_may_come_twice_and_no_third_time():
    core = Step(1, 3, 4)
    assert core.arrived("F", 1, b"second") == [], "the one before it was lost"
    assert core.lacks == ("F", 0)
    core.ask()
    assert [c.payload for c in core.arrived("F", 0, b"first")] == [b"first"]
    assert core.lacks is None, "it computes"
    assert core.arrived("F", 0, b"first") == [], "it was late"
    for micro in (0, 1):
        with pytest.raises(ValueError, match="micro_batch_twice"):
            core.arrived("F", micro, b"?")
    core.computed(b"out")
    core.computed(b"out")
    assert core.lacks == ("B", 0)
    assert core.done == 2
    assert core.wanted(2, 0) == Pass(2, "F", 0, b"out")
    assert [core.wanted(2, 1), core.wanted(0, 0), core.wanted(2, 8)] == [None, None, None]


@pytest.mark.parametrize(("stage", "w"), [(0, 0), (1, 0), (1, 2), (2, 1)])
def test_what_was_sent_is_kept_until_what_follows_from_it_arrives(stage, w):
    """Results of a stage that may be asked for again: no more forwards than it may be ahead, and backwards than the stage before may be."""
    m, core = 9, Step(stage, 3, 9, w)
    most = ahead(stage, 3, m, w) + (ahead(stage - 1, 3, m, w) if stage else 0)
    commands, came = core.begin(), {"F": 0, "B": 0}
    before = order(ahead(stage - 1, 3, m, w), m) if stage else []
    while core.done < 2 * m:
        assert len(core.sent) <= most
        if commands and isinstance(commands[-1], Compute):
            commands = core.computed(b"out")
            continue
        way, micro = core.lacks
        assert micro == came[way]
        came[way] += 1
        commands = core.arrived(way, micro, b"in")
        kept = {micro for kind, micro in core.sent if kind == "B"}
        if way == "F":
            assert all(before.index(("B", each)) > before.index(("F", micro)) for each in kept)
        else:
            assert ("F", micro) not in core.sent


def test_parts_of_the_norm_are_reported_once_and_must_be_numbers():
    core = Step(0, 2, 1)
    core.part(1, Part(1.0))
    assert core.part(1, Part(1.0)) == [], "the same again, as where it was asked for"
    for stage, part in ((1, Part(2.0)), (2, Part(1.0)), (0, Part(float("nan"))), (0, Part(-1.0)), (0, Part(1.0, loss=float("inf")))):
        with pytest.raises(ValueError, match="part_"):
            core.part(stage, part)


def test_gradients_are_clipped_by_the_norm_over_all_stages():
    parts = (Part(9.0), Part(16.0))
    assert shortened(parts, None) == shortened(parts, 5.0) == 1.0
    assert shortened(parts, 1.0) == pytest.approx(0.2)
