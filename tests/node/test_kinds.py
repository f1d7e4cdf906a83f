"""A key that the chosen kind does not take is refused, wherever it comes from, and what is written down has no such key."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.config import kinds, manifest, presets, toml
from starling.node.config.schema import Manifest, MixSection

CHOICES = {
    "mix": kinds.MIXERS.built_in,
    "overlay": kinds.OVERLAYS.built_in,
    "robust": kinds.RULES.built_in,
    "compress": (*kinds.SELECTORS.built_in, kinds.BUDGET),
    "optimizer": kinds.OPTIMIZERS.built_in,
    "admission": ("open", "invite", "allow"),
    "partition": ("iid", "dirichlet", "by_label"),
}


def load(*assignments):
    return presets.load(Manifest, assignments=assignments)


@pytest.mark.parametrize(
    ("assignments", "key", "said"),
    [
        (["mix=dsgd", "mix.kappa=0.3"], "mix.kappa", "dsgd has no such key; only pet takes it"),
        (
            ["overlay=ring", "overlay.k=5"],
            "overlay.k",
            "ring has no such key; only hyper_hypercube, simple_base_k, base_k, pull",
        ),
        (["compress.select=full", "compress.rank=9"], "compress.rank", "full has no such key; only low_rank takes it"),
        (["compress.budget_bytes=9", "compress.select=mask"], "compress.budget_bytes", "only layered, budget take it"),
        (["robust.rule=median", "robust.b=1"], "robust.b", "median has no such key; only trimmed_mean"),
        (["robust.bucket=3"], "robust.bucket", "cs_nnm has no such key"),
        (["optimizer=adamw", "optimizer.momentum=0.9"], "optimizer.momentum", "only sgd takes it"),
        (["admission=allow", "admission.bits=0"], "admission.bits", "only open takes it"),
        (["mix=dsgd", "mix.feedback_beta=0.1"], "mix.feedback_beta", "only psgd takes it"),
        (
            ["mix=psgd", "mix.feedback_control=0.1"],
            "mix.feedback_control",
            "ef has no such key; only econtrol takes it, e.g. `--set mix.feedback=econtrol`",
        ),
        (["mix=psgd", "mix.feedback=ef21", "mix.feedback_momentum=0.5"], "mix.feedback_momentum", "only dgc takes it"),
        (["mix.params.x=1"], "mix.params", "pet has no such key"),
    ],
)
def test_a_key_of_another_kind_is_refused_with_the_kinds_that_take_it(assignments, key, said):
    """Even with the value it has by default: who writes it down believes that it does something."""
    with pytest.raises(ConfigError) as caught:
        load(*assignments)
    assert str(caught.value).startswith(f"{key}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "m.toml").write_text('[mix]\nkind = "dsgd"\nkappa = 0.3\n')
    with pytest.raises(ConfigError, match=r"m\.toml: mix\.kappa: dsgd has no such key"):
        presets.load(Manifest, tmp_path / "m.toml")


def test_what_was_built_in_python_is_refused_when_it_is_checked():
    with pytest.raises(ConfigError, match=r"mix\.kappa: dsgd has no such key"):
        manifest.check(Manifest(mix=MixSection(kind="dsgd", kappa=0.3)))


def test_a_kind_that_replaces_another_drops_its_keys(tmp_path):
    (tmp_path / "m.toml").write_text('[mix]\nkappa = 0.3\n[overlay]\nkind = "base_k"\nk = 3\n')
    switched = presets.load(Manifest, tmp_path / "m.toml", ["mix=dsgd", "overlay=ring"])
    assert switched == load("mix=dsgd", "overlay=ring")
    kept = presets.load(Manifest, tmp_path / "m.toml", ["overlay=simple_base_k"])
    assert (kept.mix.kappa, kept.overlay.k) == (0.3, 3)


@pytest.mark.parametrize(
    ("assignments", "there"),
    [
        (["overlay=alone", "overlay.average_every=5", "overlay.k=3"], "k = 3"),
        (["robust.rule=median", "robust.before=nnm", "robust.b=1"], "b = 1"),
        (["robust.rule=median", "robust.before=bucketing", "robust.bucket=3"], "bucket = 3"),
    ],
)
def test_another_key_may_need_what_the_kind_does_not(assignments, there):
    assert there in toml.to_toml(load(*assignments))


@given(st.fixed_dictionaries({section: st.sampled_from(names) for section, names in CHOICES.items()}))
def test_every_choice_of_kinds_is_written_down_and_read_back(chosen):
    """What is written has just the keys that are taken, so that reading it refuses nothing and loses nothing."""
    config = load(*(f"{section}.{kinds.selector(section)}={name}" for section, name in chosen.items()))
    assert toml.from_toml(toml.to_toml(config), Manifest) == config
    assert toml.from_toml(toml.render(config), Manifest) == config
    for section in chosen:
        values = msgspec.to_builtins(getattr(config, section))
        assert set(kinds.written(config)[section]) == set(values) & kinds.taken(section, values)


def test_every_key_of_a_section_is_taken_by_some_kind():
    for section, names in CHOICES.items():
        values = msgspec.to_builtins(getattr(Manifest(), section))
        choose = kinds.selector(section)
        forms = [{**values, choose: name} for name in names] + [
            {**values, "before": before} for before in kinds.PREAGGREGATIONS
        ]
        if section == "mix":
            forms += [{**values, "kind": "psgd", "feedback": feedback} for feedback in ("ef21_sgdm", "econtrol", "dgc")]
        every = frozenset[str]().union(*(kinds.taken(section, form) for form in forms))
        assert set(values) - {"params"} <= every, section
