"""The manifest: one canonical byte string, one id, one signature; and rules between its fields."""

import json
import re
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError, RemoteProtocolError
from starling.node.config import descriptions, toml
from starling.node.config import manifest as manifests
from starling.node.config.overlay import check_members
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest
from starling.node.identity import Identity

CREATOR = Identity.from_seed(bytes(32))
GOLDEN = Path(__file__).parents[2] / "golden" / "manifest.json"


def changed(*assignments):
    return toml.apply_set(Manifest(), assignments)


def created(*assignments):
    return manifests.create(changed(*assignments), CREATOR, 1_700_000_000_000)


def test_a_created_manifest_has_creator_and_time_and_verifies():
    manifest = created()
    assert (manifest.founder, manifest.founded_ms) == (CREATOR.peer_id, 1_700_000_000_000)
    manifests.verify(manifest)


def test_the_swarm_id_is_short_readable_and_stable():
    """The id is a golden value: a new version must compute the same ids for existing swarms."""
    manifest = convert(json.loads(GOLDEN.read_text())["manifest"], Manifest)
    assert manifests.swarm_id(manifest) == json.loads(GOLDEN.read_text())["swarm"]
    manifests.verify(manifest)


def test_a_new_key_at_its_default_does_not_change_the_swarm_id(monkeypatch):
    """A key at its default is left out of the canonical bytes, which are then those of older versions."""
    manifest = created()
    plain = msgpack.unpackb(manifests.to_bytes(manifest))
    later = {"mix.leak": manifest.mix.leak, "crew": msgspec.to_builtins(manifest)["crew"]}
    monkeypatch.setattr(manifests, "_LATER", later)
    older = created()
    raw = manifests.to_bytes(older)
    assert msgpack.unpackb(raw) == {key: value for key, value in plain.items() if key != "crew"} | {
        "signature": older.signature,
        "mix": {key: value for key, value in plain["mix"].items() if key != "leak"},
    }
    assert manifests.from_bytes(raw, manifests.swarm_id(older), "peer") == older
    assert "leak" in msgpack.unpackb(manifests.to_bytes(created("mix.leak=0.1")))["mix"]


OF_FLOWS = ("kappa=0.1", "flow_limit=5.0", "leak=0.1", "settled_edges=2", "flows=bfloat16")


@pytest.mark.parametrize("given", OF_FLOWS)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_keys_of_flows_are_refused_where_memories_are_averaged(given, kind):
    """They would have no effect."""
    with pytest.raises(ConfigError) as error:
        manifests.check(changed(f"optimizer={kind}", f"mix.{given}"))
    key = given.partition("=")[0]
    assert str(error.value) == (
        f"mix.{key}: applies to flows, which optimizer={kind} does not use (its moments are averaged instead); leave it out, or try "
        "`--set optimizer.kind=sgd`"
    )
    manifests.check(changed(f"mix.{given}"))


def test_the_golden_manifest_has_every_field():
    """A new field changes every swarm id: then `format` must rise, and this file change with it."""
    assert msgspec.to_builtins(created()).keys() == json.loads(GOLDEN.read_text())["manifest"].keys()


@given(st.permutations(list(msgspec.to_builtins(Manifest()))))
def test_the_id_does_not_depend_on_the_order_in_a_file(keys):
    plain = msgspec.to_builtins(created("task.model=cnn", "task.hidden=2"))
    shuffled = convert({key: plain[key] for key in keys}, Manifest)
    assert manifests.swarm_id(shuffled) == manifests.swarm_id(created("task.hidden=2", "task.model=cnn"))


def test_any_changed_field_changes_the_swarm_id():
    assert manifests.swarm_id(created("seed=1")) != manifests.swarm_id(created())
    assert len(manifests.swarm_id(created())) == 33


@pytest.mark.parametrize("change", ["seed=1", "founded_ms=1", "pace.rounds=1", "signature=00", "signature=xyz", "founder=12D3"])
def test_a_manifest_changed_after_signing_does_not_verify(change):
    with pytest.raises(ConfigError, match="signature: does not fit"):
        manifests.verify(toml.apply_set(created(), [change]))


def test_an_uncreated_manifest_is_refused_with_the_command():
    with pytest.raises(ConfigError, match="starling create"):
        manifests.verify(Manifest())


def test_a_manifest_survives_toml_and_bytes():
    manifest = created("mix=dsgd", "task.model=cnn", "optimizer.lr=1")
    assert convert(toml.parse(toml.to_toml(manifest)), Manifest) == manifest
    assert manifests.from_bytes(manifests.to_bytes(manifest), manifests.swarm_id(manifest), "peer") == manifest


def resealed(plain):
    raw = msgpack.packb(plain) if not isinstance(plain, bytes) else plain
    return raw, manifests.hash_of(raw)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: (manifests.to_bytes(m) + b"\0", manifests.swarm_id(m)), "manifest_hash"),
        (lambda m: (b"", manifests.swarm_id(m)), "manifest_hash"),
        (lambda m: resealed(b"x" * (65 << 10)), "manifest_hash"),
        (lambda m: resealed(b"\xc1"), "manifest_not_msgpack"),
        (lambda m: resealed([1, 2]), "manifest_not_msgpack"),
        (lambda m: resealed(b"\x91" * 60_000), "manifest_not_msgpack"),
        (lambda m: resealed(manifests.to_bytes(msgspec.structs.replace(m, seed=9))), "manifest_signature"),
    ],
)
def test_bytes_that_are_not_the_manifest_are_the_senders_fault(spoil, reason):
    with pytest.raises(RemoteProtocolError, match=f"liar: {reason}"):
        manifests.from_bytes(*spoil(created()), "liar")


@pytest.mark.parametrize(
    "change",
    [
        {"news": 1},
        {"protocol": 2},
        {"pace": 3},
        {"format": 2},
        {"task": {"kind": "x:y", "a": [[1]]}},
        {"seed": -1},
        {"pace": {"slot_s": 1e999}},
    ],
)
def test_a_manifest_of_another_version_asks_for_an_upgrade(change):
    """The hash matches, so the sender is honest: this version cannot read the manifest."""
    raw, swarm = resealed(manifests.ordered({**msgspec.to_builtins(created()), **change}))
    with pytest.raises(ConfigError, match=r"another version.*upgrade") as error:
        manifests.from_bytes(raw, swarm, "peer")
    assert "\n" not in str(error.value)


def test_missing_fields_mean_another_version():
    """Filling in our defaults would give a different manifest with a different id."""
    plain = manifests.ordered(msgspec.to_builtins(created()))
    del plain["pace"]
    with pytest.raises(ConfigError, match="another version"):
        manifests.from_bytes(*resealed(plain), "peer")


def test_a_peers_manifest_must_keep_the_rules_between_fields():
    plain = msgspec.structs.replace(Manifest(), name="\x1b[2J", founder=CREATOR.peer_id)
    signed = msgspec.structs.replace(plain, signature=CREATOR.sign(b"starling/manifest/1\0" + manifests.to_bytes(plain)).hex())
    with pytest.raises(ConfigError, match="name: must be printable"):
        manifests.from_bytes(manifests.to_bytes(signed), manifests.swarm_id(signed), "peer")


def test_the_defaults_give_no_warning():
    assert manifests.check(Manifest()) == []


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (["pace.min_wait_s=20"], "pace.min_wait_s: must be <= pace.max_wait_s = 10, got 20"),
        (["membership.suspicion_s=0.5"], "membership.suspicion_s: must be >= 2 membership.timeout_s = 1, got 0.5"),
        (["optimizer.lr=1e-12"], "optimizer.lr: must be >= 1.5e-10 with mix=pet, kappa = 0.3 and 20 local steps, got 1e-12"),
        (["optimizer.lr=1e-12", "pace=clock", "overlay=sticky", "mix.kappa=0.1"], "optimizer.lr: must be >= 1e-09 with mix=pet"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_remedy(assignments, says):
    with pytest.raises(ConfigError) as error:
        manifests.check(changed(*assignments))
    message = str(error.value)
    assert message.startswith(says)
    cure = message.partition("--set ")[2].partition("`")[0]
    manifests.check(changed(*assignments, cure))  # the command that the message names works
    with pytest.raises(ConfigError):
        created(*assignments)


@pytest.mark.parametrize(
    ("assignments", "key"),
    [
        (["pace=clock", "overlay=ring"], "overlay.kind"),
        (["overlay=hypercube"], "overlay.kind"),
        (["pace.rounds=0"], "optimizer.schedule"),
        (["mix.kappa=0.5"], "mix.kappa"),
        (["mix.clip_norm=0"], "mix.clip_norm"),
    ],
)
def test_doubtful_settings_give_one_warning(assignments, key):
    (warning,) = manifests.check(changed(*assignments))
    assert warning.startswith(f"{key}: ")
    assert "\n" not in warning


NOLOCO = ("overlay=random_matching", "overlay.average_every=0", "mix.outer_momentum=0.5")
DILOCO = (
    "compress.select=full",
    "compress.request=identity",
    "compress.response=identity",
    "mix=outer",
    "overlay=alone",
    "overlay.average_every=1",
    "mix.clip_norm=1",
)


@pytest.mark.parametrize(
    ("assignments", "keys"),
    [
        (["optimizer.schedule=constant", "pace.rounds=150", "pace.quorum=8"], ["mix.outer_momentum"]),
        (["optimizer.schedule=constant", "pace.rounds=0"], ["mix.outer_momentum"]),
        (["pace.rounds=0"], ["mix.outer_momentum", "optimizer.schedule"]),
        (["pace.rounds=149", "pace.quorum=8"], ["pace.rounds"]),
        (["pace.rounds=150", "pace.quorum=8"], []),
        (["pace.rounds=150", "pace.quorum=8", "mix.plain_averages=1"], ["pace.rounds"]),
        (["pace.rounds=99", "overlay.average_every=2"], ["pace.rounds"]),
        (["pace.rounds=100", "overlay.average_every=2"], []),
        (["pace.rounds=49", "overlay=random_matching", "overlay.average_every=0", "mix.outer_momentum=0.5"], ["pace.rounds"]),
        (["pace.rounds=149", "pace.gossips=3", *NOLOCO], ["pace.rounds"]),
        (["pace.rounds=150", "pace.gossips=3", *NOLOCO], []),
        (["pace.rounds=2", "optimizer.schedule=constant", "mix.outer_momentum=0"], []),
    ],
)
def test_outer_momentum_warns_without_a_falling_rate_and_enough_outer_steps(assignments, keys):
    """A falling rate and fifty outer steps: a sweep of 8 members is three rounds, of the first two members one."""
    warnings = manifests.check(changed(*DILOCO, *assignments))
    assert [warning.partition(":")[0] for warning in warnings] == keys
    assert all("\n" not in warning and "`--set " in warning for warning in warnings if "mix.outer" in warning)


@pytest.mark.parametrize(
    "assignments", [["optimizer=adamw", "mix=dsgd"], ["pace=clock"], ["compress.response=identity"], ["overlay=base_k"]]
)
def test_a_correct_task_passes_without_output(assignments):
    assert manifests.check(changed(*assignments)) == []


@pytest.mark.parametrize(
    ("assignments", "key", "why"),
    [
        (["mix=d2"], "mix.kind", "never changes"),
        (["mix=exact_diffusion", "overlay=static_exponential"], "mix.kind", "symmetric"),
        (["mix=choco", "overlay=ring", "overlay.average_every=5"], "mix.kind", "never changes"),
        (["mix=k_gt", "pace=clock"], "mix.kind", "clock pace"),
        (["mix.theta=0.3"], "mix.theta", "no effect in steps pace"),
        (["overlay=alone", "overlay.average_every=5", "pace=clock"], "overlay.average_every", "pace.kind=clock"),
        (["pace.gossips=2", "pace=clock"], "pace.gossips", "unless pace.kind is steps"),
        (["pace.gossips=2", "pace.overlap=true"], "pace.gossips", "pace.overlap"),
        (["pace.gossips=2", "overlay.average_every=5"], "pace.gossips", "already"),
        (["pace.gossips=2", "mix=d2", "overlay=ring"], "mix.kind", "never changes"),
        (["mix=push_sum"], "compress.response", "running sums"),
        (["mix=quasi_global"], "optimizer.momentum", "its own"),
        (["mix=psgd", "overlay=ring"], "overlay.kind", "all members"),
        (
            ["mix=psgd", "overlay=complete", "mix.feedback=ef21", "mix.control_variate=true", "pace.overlap=true"],
            "pace.overlap",
            "the previous round",
        ),
        (["mix=outer", "overlay.average_every=5"], "overlay.kind", "no exchanges between"),
        (["mix=outer", "mix.nesterov=false", "mix.outer_lr=0.5"], "mix.outer_momentum", "must be < 1"),
        (["compress.response=int2"], "compress.response", "expected error"),
        (["compress.select=every_nth"], "compress.select", "is unknown, choose one of"),
        (["overlay=erdos_renyi", "overlay.weights=uniform"], "overlay.weights", "one direction"),
        (["overlay.overlap=true"], "overlay.overlap", "average_every"),
        (["overlay.choose=fast"], "overlay.choose", "pace.kind=clock"),
        (["overlay.choose=fast", "pace=clock", "overlay.degree=2"], "overlay.degree", ">= 3"),
        (["overlay.choose_every=9", "pace=clock"], "overlay.choose_every", "choose=fast"),
        (["overlay.eta=0.5"], "overlay.eta", "sticky"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_before_anything_starts(assignments, key, why):
    """In one line with the key and the reason, for the creator and for everybody who receives the manifest."""
    with pytest.raises(ConfigError, match=rf"^{key}\b.*{why}") as refused:
        manifests.check(changed(*assignments))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("assignments", "n"), [(["overlay=base_k", "overlay.k=4"], 4), (["overlay=hypercube"], 6)])
def test_a_known_number_of_members_refuses_impossible_settings(assignments, n):
    with pytest.raises(ConfigError):
        check_members(changed(*assignments), n)
    check_members(changed("overlay=base_k", "overlay.k=3"), n)


@pytest.mark.parametrize(
    ("codecs", "said"),
    [
        ((), ["select = budget", "request = fp16", "response = int4"]),
        (("compress.select=full", "compress.request=identity"), ["response = int4"]),
        (("compress.select=full", "compress.request=identity", "compress.response=identity"), []),
    ],
)
def test_an_average_of_all_members_notes_its_lossy_codecs(codecs, said):
    """And how to make it exact; no note where it is exact or where there is no such average."""
    swept = toml.apply_set(Manifest(), ["mix=dsgd", "overlay=alone", "overlay.average_every=1", *codecs])
    about = [each for each in manifests.check(swept) if each.startswith("overlay.average_every")]
    assert len(about) == bool(said)
    for each in said:
        assert f"compress.{each}" in about[0]
    if said:
        exact = re.findall("--set (\\S+)", about[0].replace("`", " "))
        assert not any("average_every" in each for each in manifests.check(toml.apply_set(swept, exact)))
    assert not any("average_every" in each for each in manifests.check(toml.apply_set(swept, ["overlay.average_every=0", "overlay=ring"])))
    assert ("exact" in dict(descriptions.sections(swept))["sends"]) == (not said)
