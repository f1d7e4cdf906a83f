"""A swarm of scripts exchanges parameters only: settings that need more of a model are refused in one line with a remedy."""

import pytest

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.config import descriptions, fingerprint, memory, memory_estimate, script
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest, NodeConfig, TaskSection
from starling.node.config.toml import apply_set
from starling.node.identity import Identity

START = f"chunks:{'ab' * 32}:4000000"
CREATOR = Identity.from_seed(bytes(32))


def agreed(*assignments):
    return apply_set(Manifest(), ("task.kind=script", *assignments))


def refused(*assignments):
    with pytest.raises(ConfigError) as raised:
        manifests.check(agreed(*assignments))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("kind", [name for name in MIXERS.built_in if name not in script.MIXES])
def test_algorithms_that_compute_or_change_gradients_are_refused(kind):
    assert refused(f"mix.kind={kind}").startswith(f"mix.kind: {kind} changes gradients")


@pytest.mark.parametrize("kind", script.MIXES)
def test_algorithms_with_plain_local_steps_are_accepted(kind):
    script.check(agreed(f"mix.kind={kind}"))


def test_no_algorithm_with_trackers_is_among_those_allowed():
    assert not [name for name in script.MIXES if MIXERS.facts(name).trackers]
    assert set(script.MIXES) < set(MIXERS.built_in)


def test_a_custom_algorithm_is_refused():
    """It may correct gradients, which cannot be known without importing it."""
    assert refused("mix.kind=my_module:Mine").startswith("mix.kind: my_module:Mine changes")


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (("crew.stages=2",), "crew.stages: each script has the whole model, must be 1"),
        (("pace.kind=sampled", "mix.kind=gather"), "pace.kind: a script takes its steps in every round, must be steps"),
        (("task.buffers=average",), "task.buffers: buffers stay with the script"),
        (('task.buffers=["bn*"]',), "task.buffers: buffers stay with the script"),
        (("optimizer.sam=0.1",), "optimizer.sam: the script's optimiser takes the steps, must be 0"),
        (("optimizer.gradient=optimistic",), "optimizer.gradient: the script's optimiser takes the steps, must be plain"),
        (("mix.kind=dsgd", "mix.own=0.2"), "mix.own: samples are the script's"),
        (("mix.kind=dsgd", 'mix.turns=["*a*", "*b*"]'), "mix.turns: a script trains all of its parameters"),
        (("mix.typical_samples=100",), "mix.typical_samples: gradients are the script's"),
    ],
)
def test_settings_that_need_a_module_batches_or_gradients_are_refused(assignments, words):
    message = refused(*assignments)
    assert message.startswith(words)
    assert "`--set " in message


@pytest.mark.parametrize(
    ("assignments"),
    [(), ("task.buffers=local",), ('mix.personal=["head.*"]',), ("pace.kind=clock",), ("pace.overlap=true",), ("overlay.average_every=5",)],
)
def test_settings_that_need_only_parameters_are_accepted(assignments):
    manifests.check(agreed(*assignments))


def test_other_tasks_have_none_of_these_rules():
    manifests.check(apply_set(Manifest(), ("mix.kind=k_gt", "optimizer.sam=0.1")))
    script.check_node(apply_set(NodeConfig(), ("privacy.noise=1",)), Manifest())


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("privacy.noise=1", "privacy.noise: is for the gradients of single samples"),
        ("ranks=2", "ranks: a script computes on the devices"),
        ("numerics.micro_batch=4", "numerics: a script says itself"),
    ],
)
def test_a_node_s_own_settings_about_local_steps_are_refused(assignment, words):
    with pytest.raises(ConfigError, match=words) as raised:
        script.check_node(apply_set(NodeConfig(), (assignment,)), agreed())
    assert "\n" not in str(raised.value)
    script.check_node(apply_set(NodeConfig(), ("privacy.exchange_noise=0.1",)), agreed())


@pytest.mark.parametrize("metric", ["a b", "1st", "x" * 33, "", "ünder", "loss\n", "a;b"])
def test_a_metric_must_be_a_plain_word(metric):
    with pytest.raises(ConfigError, match=r"metric"):
        manifests.check(Manifest(task=TaskSection(kind="script", metric=metric)))
    manifests.check(Manifest(task=TaskSection(kind="script", metric="F1_macro", higher_is_better=True)))


def test_the_caller_s_fingerprint_is_kept():
    lines = ("metric loss, lower is better", "model 1000000 1 " + "ab" * 16, "float32 trained 1000000 w")
    manifest = Manifest(task=TaskSection(kind="script", fingerprint=lines))
    assert fingerprint.sealed(manifest, "").task.fingerprint == lines
    assert memory_estimate.parameters(manifest) == 1_000_000


def test_memory_is_estimated_from_the_initial_model_without_a_fingerprint():
    assert memory_estimate.parameters(agreed(f"task.start={START}")) == 1_000_000
    assert memory_estimate.parameters(agreed()) is None
    assert memory.objection(agreed(), 1) == ""


def test_a_script_swarm_is_described_in_words():
    said = dict(descriptions.sections(agreed(f"task.start={START}")))
    assert said["learns"] == "what its members' scripts train, from a given model"
    assert said["steps"].endswith("batches of the scripts")


def test_a_created_manifest_of_scripts_keeps_its_bytes_when_read():
    created = manifests.create(agreed(f"task.start={START}", "task.metric=accuracy"), CREATOR, 1)
    assert manifests.from_bytes(manifests.to_bytes(created), manifests.swarm_id(created), "peer") == created
