"""A key that the named parts do not take is refused from every source, and is never written."""

import importlib
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.catalogue import parameters
from starling.gossip.compress.catalogue import SELECTIONS
from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.catalogue import OVERLAYS
from starling.node.catalogues import OPTIMIZERS, PARTITIONS, TASKS
from starling.node.config import manifest, parts, presets, toml
from starling.node.config.admission import ADMISSIONS
from starling.node.config.parts import convert
from starling.node.config.schema import CompressSection, Manifest, MixSection
from starling.robust.catalogue import PREAGGREGATIONS, RULES

CHOICES = {
    "mix.kind": MIXERS,
    "overlay.kind": OVERLAYS,
    "robust.rule": RULES,
    "robust.before": PREAGGREGATIONS,
    "compress.select": SELECTIONS,
    "optimizer.kind": OPTIMIZERS,
    "admission.kind": ADMISSIONS,
    "task.kind": TASKS,
    "partition.kind": PARTITIONS,
}


def load(*assignments):
    return presets.load(Manifest, assignments=assignments)


@pytest.mark.parametrize("select", ["top_k", "random_k", "top_k_sampled", "chunk_top_k", "dct_top_k", "layered"])
def test_a_key_that_a_part_inherits_keeps_its_bounds(select):
    """Also if the base class is in another file."""
    with pytest.raises(ConfigError, match=r"^compress\.ratio: must be a number > 0 and <= 1, got 2; `starling config"):
        load(f"compress.select={select}", "compress.ratio=2")


@pytest.mark.parametrize(
    ("assignments", "key", "said"),
    [
        (["mix=dsgd", "mix.kappa=0.3"], "mix.kappa", "dsgd has no such key; only pet takes it"),
        (["overlay=ring", "overlay.k=5"], "overlay.k", "only hyper_hypercube, simple_base_k, base_k, pull"),
        (["compress.select=full", "compress.rank=9"], "compress.rank", "full has no such key; only low_rank takes it"),
        (["compress.budget_bytes=9", "compress.select=mask"], "compress.budget_bytes", "only layered, budget take it"),
        (["robust.rule=median", "robust.f=1"], "robust.f", "median has no such key; only trimmed_mean"),
        (["robust.bucket=3"], "robust.bucket", "robust without before has no such key; only bucketing takes it"),
        (["optimizer=adamw", "optimizer.momentum=0.9"], "optimizer.momentum", "adamw has no such key; only sgd, rmsprop, muon take it"),
        (["admission=allow", "admission.bits=0"], "admission.bits", "only open takes it"),
        (["partition=iid", "partition.alpha=1"], "partition.alpha", "only dirichlet takes it"),
        (["pace=clock", "pace.max_wait_s=5"], "pace.max_wait_s", "clock has no such key; only steps, sampled take it"),
        (["mix=dsgd", "mix.feedback_beta=0.1"], "mix.feedback_beta", "only psgd takes it"),
        (["task.hidden=9", "task=text"], "task.hidden", "text has no such key; only digits, images, synthetic take it"),
        (["optimizer=rmsprop", "optimizer.alfa=0.9"], "optimizer.alfa", "did you mean optimizer.alpha? choose one of"),
        (["mix.x=1"], "mix.x", "no such key; choose one of kind, theta, clip_norm, defended, typical_samples, personal, turns, own, kappa"),
    ],
)
def test_a_key_of_another_part_is_refused_with_the_kinds_that_take_it(assignments, key, said):
    """Even at its default value, since it would have no effect."""
    with pytest.raises(ConfigError) as caught:
        load(*assignments)
    assert str(caught.value).startswith(f"{key}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("feedback", "key"), [("ef", "control"), ("ef21", "momentum"), ("econtrol", "beta")])
def test_a_key_of_another_feedback_scheme_is_refused(feedback, key):
    section = MixSection(kind="psgd", feedback=feedback, **{f"feedback_{key}": 0.5})
    with pytest.raises(ConfigError, match=rf"mix\.feedback_{key}: {feedback} has no such key; only \w+ takes it, e\.g\."):
        manifest.check(msgspec.structs.replace(load("overlay=complete"), mix=section))


@pytest.mark.parametrize("where", ["file", "python"])
def test_a_foreign_key_is_refused_in_a_file_and_in_python(tmp_path, where):
    (tmp_path / "m.toml").write_text('[mix]\nkind = "dsgd"\nkappa = 0.3\n')
    with pytest.raises(ConfigError, match=r"mix\.kappa: dsgd has no such key"):
        presets.load(Manifest, tmp_path / "m.toml") if where == "file" else MixSection(kind="dsgd", kappa=0.3)


def test_a_part_that_replaces_another_drops_its_keys_and_its_defaults(tmp_path):
    (tmp_path / "m.toml").write_text('[mix]\nkappa = 0.3\n[overlay]\nkind = "base_k"\nk = 3\n')
    switched = presets.load(Manifest, tmp_path / "m.toml", ["mix=dsgd", "overlay=ring"])
    assert switched == load("mix=dsgd", "overlay=ring")
    kept = presets.load(Manifest, tmp_path / "m.toml", ["overlay=simple_base_k"])
    assert (kept.mix.kappa, kept.overlay.k) == (0.3, 3)
    chunked = CompressSection(select="chunk_top_k", ratio=0.2).changed(select="dct_top_k")
    assert (chunked.chunk, chunked.ratio) == (64, 0.2)


@given(st.fixed_dictionaries({key: st.sampled_from(catalogue.built_in) for key, catalogue in CHOICES.items()}))
def test_every_choice_of_parts_survives_storage(chosen):
    """The file has exactly the keys that the parts take, with every default."""
    config = load(*(f"{key}={name}" for key, name in chosen.items()))
    assert convert(toml.parse(toml.to_toml(config)), Manifest) == config
    assert convert(toml.parse(toml.render(config)), Manifest) == config
    assert manifest.to_bytes(parts.convert(msgspec.to_builtins(config), Manifest)) == manifest.to_bytes(config)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, of in CHOICES.items() for name in of.built_in])
def test_every_key_of_a_part_has_a_default_and_a_meaning(key, name):
    section = getattr(load(f"{key}={name}"), key.partition(".")[0])
    for each in CHOICES[key].keys_of(name) or ():
        assert each.default is not msgspec.NODEFAULT, each.name
        assert each.meaning, each.name
        assert each.name in section.__struct_fields__


def test_keys_of_code_that_is_not_imported_must_be_scalars():
    section = MixSection(kind="not_there:Mixer", pace=0.7, name="x")
    assert section.params() == {"pace": 0.7, "name": "x"}
    with pytest.raises(ConfigError, match=r"mix\.pace: must be text or"):
        MixSection(kind="not_there:Mixer", pace=[1])


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["task=text", "task.width=9"], "task: width must be a multiple of heads = 4, got 9"),
        (["mix=a2cid2", "mix.chi2=2"], "mix: chi2 must be in (0, chi1 = 1.0], got 2.0"),
        (["compress.select=cocktail", "compress.ratio=0.5"], "compress: ratio must be in (0, keep = 0.2], got 0.5"),
        (["optimizer.nesterov=true", "optimizer.momentum=0"], "optimizer: nesterov must be false without momentum, got true"),
    ],
)
def test_keys_of_a_part_that_do_not_fit_each_other_are_refused_without_torch(assignments, said):
    with pytest.raises(ConfigError) as caught:
        manifest.check(load(*assignments))
    assert str(caught.value) == said


def test_a_task_chooses_the_values_of_unset_keys():
    """So canonical bytes, and with them swarm ids, depend only on the keys that were set."""
    plain = load("task.hidden=9")
    assert plain.task.params() == {"hidden": 9}
    assert "model" not in msgspec.to_builtins(plain)["task"]
    assert plain.task.changed(kind="synthetic").params() == {"hidden": 9}
    assert plain.task.changed(kind="text").params() == {}


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS.built_in if kind not in {"sgd", "muon"} and "adam" not in kind])
def test_keys_of_optimisers_have_the_defaults_of_torch(kind):
    """Except `decay`, which makes torch's parameter groups."""
    theirs = {"decay": "all"} | {name: it.default for name, it in OPTIMIZERS.parameters(kind).items()}
    assert {each.name: each.default for each in OPTIMIZERS.keys_of(kind)}.items() <= theirs.items()


@pytest.mark.parametrize("kind", TASKS.built_in)
def test_keys_of_tasks_are_the_parameters_of_their_constructors(kind):
    theirs = {name: it.default for name, it in TASKS.parameters(kind).items()}
    module, _, name = f"starling.node.tasks.keys:{TASKS[kind].__name__}".partition(":")
    stated = getattr(importlib.import_module(module), name)
    assert {name: it.default for name, it in parameters(stated).items()} == theirs
    assert {each.name for each in TASKS.keys_of(kind)} == theirs.keys()
