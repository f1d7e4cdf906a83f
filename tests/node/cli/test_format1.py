"""Manifests and scenarios of format 1: refused in one line, and converted."""

import json
import tomllib
from copy import deepcopy
from pathlib import Path

import pytest
import tomli_w

from starling.gossip.errors import ConfigError
from starling.node.cli.format1 import converted
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.schema import Manifest, MixSection, RobustSection
from starling.node.simulate.schema import Scenario

FIXTURES = Path(__file__).parents[2] / "golden" / "format1"
FOUNDED = json.loads((FIXTURES / "manifest.json").read_text())["manifest"]


def convert(capsys, path):
    code = main(["manifest", "convert", str(path)])
    printed = capsys.readouterr()
    path.with_suffix(".new").write_text(printed.out)
    return code, path.with_suffix(".new"), printed.err


@pytest.mark.parametrize("name", ["manifest.toml", "simulate-thousand.toml", "strangers.toml"])
def test_an_old_file_is_refused_with_the_command_and_converts_to_what_it_meant(tmp_path, capsys, name):
    old = tmp_path / name
    old.write_text((FIXTURES / name).read_text())
    kind = Manifest if name == "manifest.toml" else Scenario
    with pytest.raises(
        ConfigError, match=r"is a key of format 1; try `starling manifest convert OLD\.toml > NEW\.toml`"
    ):
        presets.load(kind, old)
    code, new, notes = convert(capsys, old)
    assert (code, notes) == (0, "")
    before, after = tomllib.loads(old.read_text()), presets.load(kind, new)
    assert after.mix.kind == before["mix"]["kind"]
    if "robust" in before:
        assert after.robust.f == before["robust"]["b"]
    assert after.task.params() == before["task"].get("params", {})


def test_a_founded_manifest_becomes_a_manifest_to_found(tmp_path, capsys):
    """Every key of every kind stands in it; those that its kinds do not take, zeros and the signature go."""
    (tmp_path / "old.toml").write_text(tomli_w.dumps(FOUNDED))
    code, new, notes = convert(capsys, tmp_path / "old.toml")
    assert code == 0
    assert "note: signature: left out" in notes
    manifest = presets.load(Manifest, new)
    assert manifest == Manifest(mix=MixSection(kappa=0.1), robust=RobustSection(rule="cs_plus"))
    assert manifests.check(manifest) == [
        "robust: has no effect with mix=pet; `--set preset=open` shows the keys that take effect together"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"bad_share": 0.1}, {"byzantine_fraction": 0.1}),
        ({"overlay": {"kind": "ring", "weights": "", "eta": 0}}, {"overlay": {"kind": "ring"}}),
        (
            {"overlay": {"kind": "alone", "average_every": 5, "k": 3}},
            {"overlay": {"kind": "alone", "average_every": 5, "average_k": 3}},
        ),
        ({"mix": {"kind": "a:B", "params": {"x": 1}}}, {"mix": {"kind": "a:B", "x": 1}}),
        (
            {"preset": "open", "overlay": {"k": 9}, "robust": {"b": 3}},
            {"preset": "open", "overlay": {"k": 9}, "robust": {"f": 3}},
        ),
        (
            {"simulate": {}, "sweep": {"grid": {"robust": {"b": [1]}, "task.params.dim, bad_share": [[1, 0.1]]}}},
            {"simulate": {}, "sweep": {"grid": {"robust.f": [1], "task.dim, byzantine_fraction": [[1, 0.1]]}}},
        ),
    ],
)
def test_keys_are_renamed_flattened_and_left_out(old, new):
    found, notes = converted(old)
    found.pop("format", None)
    assert (found, notes) == (new, [])


@pytest.mark.parametrize(
    "old",
    [
        {"format": 2, "optimizer": {"kind": "adamw", "correction_lr": 3.0}},
        {"format": 1, "optimizer": {"kind": "adamw", "correction_lr": 3.0}, "mix": {"params": {}}},
        {"simulate": {}, "overlay": {"kind": "alone", "average_every": 5}, "optimizer": {"correction_lr": 3.0}},
    ],
)
def test_a_key_that_is_no_more_is_left_out_with_a_note(tmp_path, capsys, old):
    """A file of today's format keeps all else as it is; one of format 1 is converted as well."""
    (tmp_path / "old.toml").write_text(tomli_w.dumps(old))
    code, new, notes = convert(capsys, tmp_path / "old.toml")
    assert (code, notes.count("note:")) == (0, 1)
    assert "note: optimizer.correction_lr: left out, every optimiser is corrected in units of its own updates" in notes
    found = tomllib.loads(new.read_text())
    assert found["optimizer"] == {key: value for key, value in old["optimizer"].items() if key != "correction_lr"}
    assert found.get("overlay") == old.get("overlay")
    presets.load(Scenario if "simulate" in old else Manifest, new)


@pytest.mark.parametrize(
    ("old", "keys"),
    [
        ({"format": 2, "optimizer": {"kind": "adamw"}, "mix": {"kind": "pet", "drift_limit": 0.25}}, ["drift_limit"]),
        (
            {"format": 2, "mix": {"kind": "pet", "track": "both", "drift_noise": 0.25, "drift_reach": 0.1}},
            ["track", "drift_noise", "drift_reach"],
        ),
        ({"format": 2, "mix": {"kind": "pet", "refutable": 0.25, "track": None}}, ["refutable"]),
        ({"format": 1, "mix": {"kind": "pet", "params": {"track": "drift", "drift_limit": 0.25}}}, ["track", "drift_limit"]),
    ],
)  # fmt: skip
def test_what_said_how_flows_move_is_left_out_with_a_note_each(old, keys):
    given = deepcopy(old)
    found, notes = converted(old)
    assert found["mix"] == {"kind": "pet"}
    assert [note.partition(":")[0] for note in notes] == [f"mix.{key}" for key in keys]
    assert all(": left out, the optimiser says how nodes are corrected: sgd by flows" in note for note in notes)
    assert old == given, "what was read is not changed"


def test_todays_format_needs_no_conversion():
    with pytest.raises(ConfigError, match="format: is 2 and needs no conversion"):
        converted({"format": 2})
