"""Stages of a crew equal one machine that accumulates gradients, bit for bit, and invalid messages of neighbors are refused."""

from dataclasses import replace

import pytest
import torch
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config.crew import check_node, ends
from starling.node.config.schema import (
    CrewSection,
    Manifest,
    MixSection,
    NodeConfig,
    NumericsSection,
    OptimizerSection,
    PaceSection,
    PartitionSection,
    PrivacySection,
    TaskSection,
)
from starling.node.rpc import calls
from starling.node.simulate.crew import InlineCrew
from starling.node.tasks.text import Text
from tests.harness.crews import PLAIN, one_machine, text_in


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_in(tmp_path_factory.mktemp("text"))


def agreed(text, stages=3, optimizer=None, **crew):
    return Manifest(
        seed=3,
        partition=PartitionSection(kind="iid", shards=1),
        optimizer=optimizer or OptimizerSection(schedule="constant"),
        task=TaskSection(kind="text", path=text, batch_size=8, context=16, width=24, layers=2, heads=2, tied=False),
        crew=CrewSection(stages=stages, **(PLAIN | crew)),
    )


@pytest.mark.parametrize("stages", [3])
@pytest.mark.parametrize("optimizer", [{}, {"kind": "adamw", "lr": 1e-3}])
def test_a_replica_cut_into_stages_trains_bit_for_bit_like_a_whole_one(text, stages, optimizer):
    manifest = agreed(text, stages, OptimizerSection(schedule="constant", **optimizer))
    crew, alone = InlineCrew(manifest), one_machine(manifest)
    assert torch.equal(crew.vector, alone.vector), "they begin with one model"
    for _ in range(3):
        loss, whole = crew.step(), alone.trainer.step(0)
        assert loss == whole
    assert torch.equal(crew.vector, alone.vector)


def test_gradients_are_clipped_by_their_norm_over_all_stages(text):
    manifest = agreed(text, 3, OptimizerSection(schedule="constant", clip_norm=0.05, lr=0.5))
    crew, alone = InlineCrew(manifest), one_machine(manifest)
    before = alone.vector
    crew.step()
    alone.trainer.step(0)
    moved = (alone.vector - before).norm()
    assert torch.allclose(crew.vector, alone.vector, rtol=0, atol=1e-5 * float(moved))


def test_with_fewer_bits_it_learns_nearly_the_same(text):
    """The number of digits in which losses agree after four steps, by bits."""
    optimizer = OptimizerSection(kind="adamw", lr=1e-2, schedule="constant")
    final = {}
    for name in ("float32", "bfloat16", "int8", "delta4"):
        crew = InlineCrew(agreed(text, 3, optimizer, activation=name, gradient="float32" if name == "float32" else "int8"))
        first, *_, final[name] = (crew.step() for _ in range(4))
    assert final["float32"] < first - 0.1
    assert final["bfloat16"] == pytest.approx(final["float32"], abs=5e-3)
    assert final["int8"] == pytest.approx(final["float32"], abs=5e-3)
    assert final["delta4"] == pytest.approx(final["float32"], abs=5e-2), "of other batches"


def test_an_abandoned_step_changes_nothing_and_repeats_identically(text):
    manifest = agreed(text)
    crew, other = InlineCrew(manifest), InlineCrew(manifest)
    before = crew.vector
    first = crew.engines[0]
    assert isinstance(first.handle(calls.Advance(0, 0, 0)), calls.Advanced)
    assert isinstance(first.handle(calls.Abandon()), calls.Done)
    assert torch.equal(crew.vector, before)
    crew.step()
    other.step()
    assert torch.equal(crew.vector, other.vector)


def test_states_are_stored_and_restored_by_step(text, tmp_path):
    crew = InlineCrew(agreed(text, optimizer=OptimizerSection(kind="adamw", lr=1e-3)))
    kept = []
    for step in range(3):
        pointed = [engine.handle(calls.Point("keep", 0, step)) for engine in crew.engines]
        kept.append(crew.vector)
        crew.step()
    end = crew.vector
    assert [it.points for it in pointed] == [(1, 2)] * 3, "the two newest"
    for engine in crew.engines:
        assert engine.handle(calls.Point("back", 0, 1)).step == 1
    assert torch.equal(crew.vector, kept[1])
    crew.steps = 1
    crew.step()
    crew.step()
    assert torch.equal(crew.vector, end), "with the optimiser's memory"
    state = crew.engines[1].handle(calls.ReadPoint(2, 0, 1 << 20))
    assert len(state.data) == state.size
    fresh = InlineCrew(agreed(text, optimizer=OptimizerSection(kind="adamw", lr=1e-3))).engines[1]
    assert fresh.handle(calls.Point("take", 0, 2, state.data)).points == (2,)
    assert torch.equal(fresh.vector, kept[2].split([engine.vector.numel() for engine in crew.engines])[1])
    for wrong in (b"", state.data[:-1], state.data[:200] + b"x" + state.data[201:]):
        assert isinstance(fresh.handle(calls.Point("take", 0, 3, wrong)), calls.Refused)
    other = crew.engines[0].handle(calls.ReadPoint(2, 0, 1 << 20)).data
    assert isinstance(fresh.handle(calls.Point("take", 0, 2, other)), calls.Refused), "another stage's"
    crew.engines[0].handle(calls.Point("back", 0, 1))
    given_up = crew.engines[0].handle(calls.Point("keep", 0, 0))
    assert (given_up.points, given_up.step) == ((0,), 0), "later ones are of steps that were given up"
    moved = crew.engines[1].handle(calls.Point("look", 5, 0))
    assert (moved.points, moved.step) == ((), 0), "states of another crew are no states of this one"


def turned(it):
    """Return the tensor with its last two dimensions exchanged."""
    return replace(it, payload=it.payload[:7] + it.payload[11:15] + it.payload[7:11] + it.payload[15:])


def nan(payload):
    return payload[:-4] + b"\x00\x00\xc0\x7f"


@pytest.mark.parametrize(
    ("way", "forged", "reason"),
    [
        ("F", lambda it: replace(it, payload=nan(it.payload)), "activation_not_finite"),
        ("F", lambda it: replace(it, payload=it.payload[:-4]), "activation_bad_length"),
        ("F", lambda it: replace(it, payload=b""), "activation_bad_length"),
        ("F", turned, "activation_bad_shape"),
        ("F", lambda it: replace(it, payload=it.payload[:1] + b"\x04" + it.payload[2:]), "activation_bad_codec"),
        ("F", lambda it: replace(it, labels=b""), "activation_bad_labels"),
        ("F", lambda it: replace(it, labels=it.labels[:-1]), "activation_bad_labels"),
        ("B", lambda it: replace(it, payload=nan(it.payload)), "gradient_not_finite"),
        ("B", lambda it: replace(it, payload=it.payload[:-4]), "gradient_bad_length"),
        ("B", turned, "gradient_bad_shape"),
    ],
)
def test_mismatched_payloads_are_refused_with_a_reason_and_not_applied(text, way, forged, reason):
    crew = InlineCrew(agreed(text), on_the_way=lambda it: forged(it) if it.way == way and it.micro == 1 else it)
    before = crew.vector
    with pytest.raises(ValueError, match=reason):
        crew.step()
    assert torch.equal(crew.vector, before)


def test_a_label_outside_the_classes_is_refused(text):
    def relabelled(it):
        if it.way != "F":
            return it
        head = b"\x01" + it.labels[1:10]
        return replace(it, labels=head + (300).to_bytes(4, "little") * (len(it.labels) - 10))

    with pytest.raises(ValueError, match="activation_bad_labels"):
        InlineCrew(agreed(text), on_the_way=relabelled).step()


def test_non_finite_numbers_undo_the_step_at_all_stages(text):
    crew = InlineCrew(agreed(text))
    crew.engines[1].replica.x[0] = float("nan")
    before = crew.vector
    crew.step()
    assert torch.equal(crew.vector.nan_to_num(7.0), before.nan_to_num(7.0))
    assert [engine.undone for engine in crew.engines] == [1, 1, 1]


def test_blocks_are_cut_by_speed_and_memory_or_refused():
    blocks = (100, 100, 100, 100, 100, 100)
    assert ends(CrewSection(stages=3), blocks) == (2, 4, 6)
    assert ends(CrewSection(stages=3, speeds=(1.0, 1.0, 4.0)), blocks) == (1, 2, 6)
    assert ends(CrewSection(stages=2, memory_gb=(1.0, 2.4e-6)), blocks) == (5, 6)
    with pytest.raises(ConfigError, match=r"crew.memory_gb: no cut fits"):
        ends(CrewSection(stages=2, memory_gb=(2e-6, 2e-6)), blocks)
    with pytest.raises(ConfigError, match=r"crew.stages: must be <= 6, the blocks of the model, got 7"):
        ends(CrewSection(stages=7), blocks)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"crew": CrewSection(micro_batches=4)}, r"crew.stages: must be at least 2, a crew of one is a node"),
        ({"preset": "open"}, r"crew.stages: must be 1 with preset=open, got 3: .*49 % of crews.*7.2 % of bad machines"),
        ({"pace": PaceSection(kind="clock")}, r"crew.stages: a crew does rounds"),
        ({"mix": MixSection(kind="gather")}, r"mix.kind: gather is of whole models"),
        ({"mix": MixSection(kind="choco")}, r"mix.kind: choco is of whole models"),
        ({"task": TaskSection(kind="quadratic")}, r"crew.stages: quadratic is not cut into blocks"),
        ({"task": TaskSection(kind="text")}, r"task.tied: must be false"),
        ({"task": TaskSection(kind="digits", batch_size=3)}, r"crew.micro_batches: must be <= task.batch_size = 3, got 4"),
        ({"crew": CrewSection(stages=3, speeds=(1.0,))}, r"crew.speeds: must be one number for each of 3 stages, got 1"),
    ],
)
def test_settings_impossible_for_a_crew_are_refused_in_one_line(text, change, line):
    manifests.check(agreed(text))
    with pytest.raises(ConfigError, match=line):
        manifests.check(structs.replace(agreed(text), **change))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"stage": 3}, r"stage: must be < crew.stages = 3, got 3"),
        ({"privacy": PrivacySection(noise=1.0)}, r"privacy.noise: not in a crew"),
        ({"ranks": 2}, r"ranks: not in a crew"),
        ({"numerics": NumericsSection(micro_batch=2)}, r"numerics: not in a crew"),
    ],
)
def test_settings_that_do_not_fit_a_crew_are_refused(text, settings, line):
    check_node(NodeConfig(stage=2), agreed(text))
    with pytest.raises(ConfigError, match=line):
        check_node(NodeConfig(**settings), agreed(text))
    with pytest.raises(ConfigError, match=r"stage: this swarm has no crews, got 1"):
        check_node(NodeConfig(stage=1), structs.replace(agreed(text), crew=CrewSection()))


def test_a_crew_s_model_that_is_not_in_float32_is_refused(text, monkeypatch):
    made = Text.blocks
    monkeypatch.setattr(Text, "blocks", lambda self, chance: (each.bfloat16() for each in made(self, chance)))
    with pytest.raises(ConfigError, match=r"crew\.stages: must be 1 for models .*, parameter \S+ is in less than float32"):
        InlineCrew(agreed(text))


def test_a_stage_too_large_for_this_machine_is_refused_with_alternatives(text, monkeypatch):
    monkeypatch.setattr("starling.node.engine.local.placing.memory.available", lambda: 260_000)
    with pytest.raises(ConfigError, match=r"stage: \d needs at least .* of memory here, .* are there; try `--stage \d`"):
        InlineCrew(agreed(text))
    monkeypatch.setattr("starling.node.engine.local.placing.memory.available", lambda: 1000)
    with pytest.raises(ConfigError, match=r"no stage fits this machine"):
        InlineCrew(agreed(text))
