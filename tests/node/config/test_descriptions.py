"""Descriptions of a manifest: every part that a manifest can name has one, and it says what was chosen."""

import pytest

from starling.gossip.compress.catalogue import QUANTIZERS
from starling.node.config import descriptions
from starling.node.config.parts import KINDS as EVERY
from starling.node.config.schema import Manifest
from starling.node.config.toml import apply_set

TABLES = {
    "task.kind": descriptions.TASK,
    "optimizer.kind": descriptions.OPTIMIZER,
    "mix.kind": descriptions.MIX,
    "overlay.kind": descriptions.OVERLAY,
    "robust.rule": descriptions.RULE,
    "robust.before": descriptions.BEFORE,
    "compress.select": descriptions.SELECT,
    "partition.kind": descriptions.PARTITION,
    "admission.kind": descriptions.ADMISSION,
    "pace.kind": descriptions.PACE,
}


def manifest(*assignments):
    return apply_set(Manifest(), assignments)


@pytest.mark.parametrize("key", [key for key in EVERY if EVERY[key] is not QUANTIZERS])
def test_every_catalogue_part_has_a_description_and_nothing_else_does(key):
    """Without a description users would see the part's key."""
    assert {*TABLES[key]} == {*EVERY[key].built_in}
    assert len({*TABLES[key].values()}) == len(TABLES[key])
    assert all(text.isprintable() and text == text.strip() for text in TABLES[key].values())


def test_every_codec_has_a_description_of_its_own():
    said = {name: descriptions.codec(name) for name in QUANTIZERS.built_in}
    assert len({*said.values()}) == len(said)
    assert not [text for text in said.values() if "_" in text]
    assert (said["int2_nearest_x3"], said["sign_x2"]) == ("int2 to the nearest in 3 steps", "signs in 2 steps")


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        ((), "pairwise edge tracking over sticky edges, int4, 20 local steps a round"),
        (("mix=dsgd", "overlay=ring", "pace.local_steps=1"), "plain averaging over a ring, int4, 1 local step a round"),
        (("pace=clock", "pace.slot_s=2"), "pairwise edge tracking over sticky edges, int4, an exchange every 2 s"),
        (
            ("mix=gather", "overlay=pull", "robust.rule=median", "compress.response=fp16"),
            "median of pulled models from peers drawn in secret, fp16, 20 local steps a round",
        ),
    ],
)
def test_the_method_is_one_line(assignments, line):
    assert descriptions.method(manifest(*assignments)) == line


def test_the_manifest_is_described_row_by_row():
    said = dict(descriptions.sections(manifest("partition=by_label", "pace.rounds=0", "optimizer=adamw")))
    assert said["method"] == descriptions.method(manifest("optimizer=adamw"))
    assert said["method"].startswith("averages of models and of what optimisers remember over sticky edges"), "no flows"
    assert said["learns"] == "handwritten digits, few labels each, 8 shards"
    assert said["length"].startswith("endless, begins with 2 members")
    assert said["steps"].startswith("AdamW, rate 0.02")
    assert said["tolerates"] == "crashed and slow members; false models are bounded, far ones refused"
    assert (
        dict(descriptions.sections(manifest("mix.defended=false")))["tolerates"] == "crashed and slow members; what members send is trusted"
    )


def test_parts_of_other_packages_are_called_by_their_names():
    """A plug-in has no description here, and its code is not imported to obtain one."""
    assert descriptions.method(manifest("mix.kind=my_mix:Mine")).startswith("my_mix:Mine over sticky edges")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("mix.clip_norm=0",), "mix.clip_norm = 0: one false peer can ruin the model"),
        (("mix.defended=false",), "mix.defended = false: one false peer can ruin the model"),
        (("mix.clip_norm=0", "mix.defended=false"), "mix.clip_norm = 0, mix.defended = false: "),
        (("mix=gradient_tracking", "mix.defended=false"), None),
        (
            ("mix=sparse_outer", "overlay=complete", "compress.select=chunk_top_k", "compress.response=spread1", "mix.norm_bound=0"),
            "mix.norm_bound",
        ),
        (("mix.clip_norm=1",), None),
        (("mix=choco", "overlay=ring"), "mix.kind = choco"),
        (("mix=gather", "overlay=complete", "robust.rule=mean"), "robust.rule = mean"),
        (("mix=gather", "overlay=complete", "robust.f=0"), "robust.f = 0"),
        (("mix=gather", "overlay=complete", "robust.f=1"), None),
        (("mix=defended_tracking",), None),
        (("preset=open",), None),
        (("preset=vouched",), None),
    ],
)
def test_members_read_which_protection_a_manifest_turns_off(given, said):
    found = dict(descriptions.sections(manifest(*given))).get("unprotected")
    assert found is None if said is None else found.startswith(said)
