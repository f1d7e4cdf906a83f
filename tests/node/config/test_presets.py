"""Presets: values for keys that nobody set, recorded like all others, and a guarantee that protective keys keep their strength."""

import re
from operator import attrgetter
from pathlib import Path

import msgspec
import pytest

from starling.gossip.errors import ConfigError
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import presets, toml
from starling.node.config.overlay import check_members
from starling.node.config.parts import convert
from starling.node.config.presets import PRESETS
from starling.node.config.schema import Manifest
from starling.node.identity import Identity
from starling.node.simulate.schema import Scenario

DOCS = Path(__file__).parents[3] / "docs" / "robustness.md"
CREATOR = Identity.from_seed(bytes(32))


def with_preset(name, *assignments):
    return presets.load(Manifest, assignments=[f"preset={name}", *assignments])


def refusal(*assignments):
    with pytest.raises(ConfigError) as refused:
        manifests.check(presets.load(Manifest, assignments=assignments))
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_records_all_of_its_values(name):
    manifest = with_preset(name)
    assert manifests.check(manifest) == []
    for key in PRESETS[name]:
        if key.name != "robust.kappa":  # of another rule
            assert attrgetter(key.name)(manifest) == key.value


@pytest.mark.parametrize("kind", [Manifest, Scenario])
def test_a_file_may_name_exactly_the_existing_presets(kind):
    (field,) = (field for field in msgspec.inspect.type_info(kind).fields if field.name == "preset")
    assert {*PRESETS, presets.CUSTOM} == set(field.type.values)


@pytest.mark.parametrize("name", PRESETS)
def test_every_value_keeps_its_own_limit(name):
    for key in PRESETS[name]:
        assert key.limit is None or key.limit.holds(key.value), key.name


def test_given_values_override_the_preset_and_the_preset_overrides_defaults(tmp_path):
    """From a file, from --set, and from both: --set wins. The preset's name may come from either."""
    (tmp_path / "m.toml").write_text("[overlay]\nk = 9\n[robust]\nf = 3\n[pace]\nlocal_steps = 2\n")
    manifest = presets.load(Manifest, tmp_path / "m.toml", ["preset=open", "pace.local_steps=3"])
    assert (manifest.overlay.k, manifest.robust.f, manifest.pace.local_steps) == (9, 3, 3)
    assert (manifest.mix.kind, manifest.byzantine_fraction) == ("gather", 0.2)
    assert manifest.pace.rounds == Manifest().pace.rounds
    (tmp_path / "m.toml").write_text('preset = "open"\n[mix]\nkind = "gather"\n')
    assert presets.load(Manifest, tmp_path / "m.toml") == with_preset("open")
    pet = ["preset=vouched", "mix=pet"]  # the preset sets nothing for the file's mixer
    assert presets.load(Manifest, tmp_path / "m.toml", pet) == with_preset("vouched")


def test_a_key_explicitly_set_to_its_default_overrides_the_preset(tmp_path):
    """`local_steps = 20` in a file means 20, although 20 is the default."""
    steps = Manifest().pace.local_steps
    assert with_preset("open", f"pace.local_steps={steps}").pace.local_steps == steps
    (tmp_path / "m.toml").write_text(f"[pace]\nlocal_steps = {steps}\n")
    assert presets.load(Manifest, tmp_path / "m.toml", ["preset=open"]).pace.local_steps == steps


def test_without_a_preset_nothing_changes(tmp_path):
    assert presets.load(Manifest) == Manifest()
    (tmp_path / "m.toml").write_text("seed = 3\n")
    assert presets.load(Manifest, tmp_path / "m.toml") == Manifest(seed=3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_created_manifest_records_all_values_and_keeps_its_id(name):
    """So a later version with other preset values changes no existing swarm."""
    manifest = manifests.create(with_preset(name), CREATOR, 1_700_000_000_000)
    assert manifests.from_bytes(manifests.to_bytes(manifest), manifests.swarm_id(manifest), "peer") == manifest
    assert convert(toml.parse(toml.to_toml(manifest)), Manifest) == manifest  # without looking at presets


def test_sections_that_other_settings_lack_are_left_out():
    """A scenario has no admission."""
    assert "admission" not in Scenario.__struct_fields__
    assert "admission" not in presets.filled({}, "open", Scenario)


@pytest.mark.parametrize("name", ["open", "vouched", "custom"])
def test_applying_a_preset_does_not_modify_the_settings_read(name):
    raw = {"overlay": {"k": 7}, "seed": 1}
    presets.filled(raw, name, Manifest)
    assert raw == {"overlay": {"k": 7}, "seed": 1}


WEAKER = {
    "vouched": {
        "mix.kind": "dsgd",
        "mix.clip_norm": "0",
        "mix.defended": "false",
        "mix.flow_limit": "101",
        "mix.settled_edges": "0",
        "overlay.kind": "ring",
        "admission.kind": "open",
    },
    "open": {
        "byzantine_fraction": "0.19",
        "mix.kind": "pet",
        "overlay.kind": "ring",
        "overlay.k": "5",
        "robust.rule": "nna",
        "robust.f": "1",
        "robust.before": "bucketing",
        "compress.select": "budget",
        "pace.kind": "clock",
        "admission.bits": "9",
        "admission.per_prefix": "0",
    },
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in WEAKER.items() for key in keys])
def test_a_weakened_protective_key_is_refused_and_the_named_remedy_works(name, key):
    weak = f"{key}={WEAKER[name][key]}"
    message = refusal(f"preset={name}", weak)
    assert message.startswith(f"{key}: must be ")
    cure = re.search(r"`--set (\S+)`", message)[1]
    assert manifests.check(with_preset(name, weak, cure)) == []


def test_a_creators_text_cannot_control_a_terminal():
    message = refusal("preset=open", 'robust.rule="\\u001b[2J\\n"')
    assert message.isprintable()


def test_every_limit_has_a_weaker_value_above():
    """Except limits that apply only where another key differs."""
    for name, keys in PRESETS.items():
        assert {key.name for key in keys if key.limit is not None} - {"robust.kappa"} == set(WEAKER[name])


@pytest.mark.parametrize(
    "words", [("optimizer=adamw",), ("optimizer=muon",), ("optimizer=adamw", "mix=moments"), ("mix=moments",)], ids=str
)
def test_invited_members_may_average_optimiser_memories(words):
    manifest = with_preset("vouched", *words)
    assert manifests.check(manifest) == []
    found = manifests.create(manifest, CREATOR, 1)
    assert manifests.from_bytes(manifests.to_bytes(found), manifests.swarm_id(found), "peer") == found


def test_a_member_refuses_a_creator_s_weak_preset():
    """The signature is valid but the preset's guarantee is broken: nobody who receives the manifest joins."""
    plain = msgspec.structs.replace(with_preset("open", "byzantine_fraction=0"), founder=CREATOR.peer_id)
    signature = CREATOR.sign(b"starling/manifest/1\0" + manifests.to_bytes(plain)).hex()
    signed = msgspec.structs.replace(plain, signature=signature)
    with pytest.raises(ConfigError, match=r"byzantine_fraction: must be at least 0\.2 with preset=open"):
        manifests.from_bytes(manifests.to_bytes(signed), manifests.swarm_id(signed), "peer")


@pytest.mark.parametrize(
    "assignments",
    [
        ["overlay.k=12", "robust.f=4", "pace.local_steps=12"],
        ["overlay.k=6", "optimizer.lr=0.1", "optimizer.momentum=0.5", "pace.rounds=50", "task=quadratic"],
        ["robust.rule=sac", "overlay.k=1", "pace.local_steps=1"],
        ["robust.rule=sac", "overlay.k=1", "robust.kappa=4"],
        ["admission=invite"],
        ["admission=allow"],
        ["admission.bits=14", "admission.per_prefix=2"],
        ["compress.response=int8"],
    ],
)
def test_stricter_and_unprotective_values_may_differ(assignments):
    assert manifests.check(with_preset("open", *assignments)) == []


@pytest.mark.parametrize("kappa", ["2", "6"])
def test_self_centred_clipping_accepts_only_thresholds_that_work(kappa):
    """Thresholds are in own steps: 2 costs accuracy, and 6 is no defense."""
    message = refusal("preset=open", "robust.rule=sac", "overlay.k=1", f"robust.kappa={kappa}")
    assert message.startswith("robust.kappa: must be 3 to 4 with preset=open")


def test_b_grows_with_k():
    """Two attackers among twelve peers are exceeded too often: with b = 1 of 4, one attack reduced accuracy from 95 % to 70 %."""
    message = refusal("preset=open", "overlay.k=12")
    assert message.startswith("robust.f: must be at least a third of overlay.k = 12")
    assert "`--set robust.f=4`" in message


@pytest.mark.parametrize(
    ("assignments", "key", "why"),
    [
        (["overlay=pull"], "overlay.kind", "only mix=gather"),
        (["byzantine_fraction=0.1"], "byzantine_fraction", "no rule"),
        (["mix=gather", "compress.select=full"], "overlay.kind", "sticky"),
        (["mix=gather", "overlay=pull", "pace=clock", "compress.select=full"], "mix.kind", "clock pace"),
        (["mix=gather", "overlay=ring", "overlay.average_every=5", "compress.select=full"], "overlay.average_every", "no defense"),
        (["mix=gather", "overlay=pull", "overlay.k=6"], "compress.select", "whole models"),
    ],
)
def test_gathering_requires_whole_models_and_named_peers(assignments, key, why):
    message = refusal(*assignments)
    assert message.startswith(f"{key}: ")
    assert why in message
    assert "try `" in message


def test_gathering_without_a_preset_takes_any_overlay_with_rows():
    base = ["mix=gather", "compress.select=full", "compress.response=fp16"]
    for more in (["overlay=pull", "overlay.k=6"], ["overlay=complete"], ["overlay=base_k", "overlay.k=3"]):
        assert manifests.check(presets.load(Manifest, assignments=[*base, *more])) == []


GATHER = ("mix=gather", "compress.select=full", "compress.response=fp16")


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (["overlay=pull", "overlay.k=3"], "robust.f: cs_nnm needs k >= 5 for f = 2"),
        (["overlay=pull", "overlay.k=6", "robust.f=1", "byzantine_fraction=0.2"], "robust.f: of k = 6 peers 1.2 are Byzantine on average"),
        (["overlay=pull", "overlay.k=6", "robust.rule=mean", "byzantine_fraction=0.1"], "byzantine_fraction: mean tolerates at most 0"),
        (["overlay=pull", "overlay.k=8", "robust.f=3", "byzantine_fraction=0.3"], "byzantine_fraction: cs_nnm tolerates at most 0.25"),
        (["overlay=pull", "overlay.k=6", "robust.rule=bulyan"], "robust.f: bulyan needs k >= 10 for f = 2"),
        (["overlay=pull", "overlay.k=3", "robust.rule=mean", "robust.before=nnm"], "robust.f: nnm needs k >= 4"),
        (["overlay=complete", "robust.rule=nna", "byzantine_fraction=0.25"], "byzantine_fraction: nna tolerates at most 0.2"),
    ],
)
def test_a_rule_past_its_breakdown_point_is_refused_and_the_remedy_works(assignments, says):
    message = refusal(*GATHER, *assignments)
    assert message.startswith(says)
    cure = re.search(r"`--set (\S+)`", message)[1]
    manifests.check(presets.load(Manifest, assignments=[*GATHER, *assignments, cure]))


def test_a_rule_is_checked_with_a_known_number_of_members():
    """On a complete overlay k is n − 1; a ring always has two peers, and CS+ with b = 2 would use neither."""
    complete = presets.load(Manifest, assignments=[*GATHER, "overlay=complete", "robust.f=3"])
    check_members(complete, 16)
    with pytest.raises(ConfigError, match=r"robust.f: cs_nnm needs k >= 7 for f = 3 .* got k = 5 peers; try `--set robust.f=2`"):
        check_members(complete, 6)
    with pytest.raises(ConfigError, match=r"robust.f: cs_nnm needs k >= 5"):
        check_members(presets.load(Manifest, assignments=[*GATHER, "overlay=ring"]), 16)
    check_members(presets.load(Manifest, assignments=[*GATHER, "overlay=ring", "robust.rule=sac"]), 16)
    with pytest.raises(ConfigError, match=r"overlay.k: must be < n = 6"):
        check_members(with_preset("open"), 6)
    check_members(with_preset("open"), 7)


@pytest.mark.parametrize(
    ("assignments", "key"),
    [
        (["robust.f=3"], "robust"),
        (["mix=gather", "compress.select=full", "overlay=pull", "overlay.k=6", "robust.rule=mean"], "robust.rule"),
        (["mix=gather", "compress.select=full", "overlay=pull", "overlay.k=6", "robust.rule=foolsgold"], "robust.rule"),
        (["preset=open", "admission.memory_kib=8"], "admission.memory_kib"),
    ],
)
def test_doubtful_settings_give_one_note(assignments, key):
    (note,) = manifests.check(presets.load(Manifest, assignments=assignments))
    assert note.startswith(f"{key}: ")


def test_config_show_prints_a_preset_as_a_template_file(tmp_path, capsys):
    assert main(["config", "show", "manifest", "--preset", "open"]) == 0
    (tmp_path / "m.toml").write_text(capsys.readouterr().out)
    assert presets.load(Manifest, tmp_path / "m.toml") == with_preset("open")
    assert main(["manifest", "check", str(tmp_path / "m.toml")]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "--preset", "opne"], "preset: must be one of custom, open, vouched, got 'opne'; did you mean open?"),
        (["create", "--preset", "open", "--set", "robust.f=0"], "robust.f: must be at least 2 with preset=open, got 0"),
        (["config", "show", "--preset", "opne"], "preset: must be one of"),
        (["config", "show", "node", "--preset", "open"], "--preset: is about a manifest or a scenario, got node"),
    ],
)
def test_impossible_settings_give_one_line(here, capsys, words, says):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"starling: {says}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(here.iterdir()) == []


def test_an_error_in_a_file_names_the_file(tmp_path):
    (tmp_path / "m.toml").write_text("sed = 1\n")
    with pytest.raises(ConfigError, match=r"m.toml: sed: no such key; did you mean seed"):
        presets.load(Manifest, tmp_path / "m.toml", ["preset=open"])


def cell(text):
    """Return a table cell without its markup."""
    return text.strip().strip("`")


@pytest.mark.parametrize("name", PRESETS)
def test_the_documented_table_of_presets_equals_the_code(name):
    """Key, value and allowed values are compared row by row."""
    section = DOCS.read_text().partition(f"\n### `{name}`\n")[2].partition("\n#")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    told = [tuple(cell(text) for text in row[:3]) for row in rows]
    assert told == [(key.name, presets.shown(key.value), words(key.limit)) for key in PRESETS[name]]


def words(limit):
    if limit is None:
        return "anything"
    if limit.where is None:
        return limit.words
    key, values = limit.where
    return f"{limit.words} where {key} = {' or '.join(map(presets.shown, values)) if isinstance(values, tuple) else values}"
