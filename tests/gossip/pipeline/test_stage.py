"""Steps of whole crews whose frames arrive in any order that links allow, and frames that no honest stage sends."""

import random

import pytest

from starling.gossip.pipeline.schedule import ahead, order
from starling.gossip.pipeline.stage import Apply, Compute, Gap, Part, Pass, Step, Tell, shortened


def played(stages, m, w, seed):
    """Run a crew in which any stage and link may be slow; return each stage's tasks, most stored activations, and applied values."""
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
        if not able:
            return done, held, applied
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
            else:
                carry(to, cores[to].arrived(frame.way, frame.micro, frame.payload, frame.labels))


@pytest.mark.parametrize("seed", range(40))
def test_every_stage_follows_the_schedule_s_order_and_memory(seed):
    chance = random.Random(seed)
    stages, m, w = chance.randint(2, 5), chance.randint(1, 9), chance.randint(0, 3)
    done, held, applied = played(stages, m, w, seed)
    for s in range(stages):
        kept = ahead(s, stages, m, w)
        assert done[s] == order(kept, m)
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


def test_ends_of_the_pipeline_have_one_neighbour():
    for core, way in ((Step(0, 2, 2), "F"), (Step(1, 2, 2), "B")):
        core.begin()
        with pytest.raises(ValueError, match="no_such_neighbour"):
            core.arrived(way, 0, b"?")


def test_a_lost_frame_is_not_blamed():
    core = Step(1, 3, 4)
    with pytest.raises(Gap):
        core.arrived("F", 1, b"in")


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
