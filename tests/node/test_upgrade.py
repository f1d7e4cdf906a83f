"""Versions: one table; files of released versions are read, or refused with the next command; and upgrade-check's output."""

import json
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import LANES
from starling.node import upgrade, versions
from starling.node.admission import invite as invites
from starling.node.cli.main import main
from starling.node.config.schema import Manifest
from starling.node.engine import tensor_file
from starling.node.engine.checkpoint import Checkpoints, swarm_of
from starling.node.identity import Identity
from starling.node.status import final, record, snapshot
from starling.node.storage.run_dir import RunDir
from starling.node.versions import CHECKPOINT, INVITE, MANIFEST, RUN_DIRECTORY, SNAPSHOT, TABLE, UPGRADE, Range
from tests.harness.processes import ROOT

RELEASED = ROOT / "tests/golden/formats"
RANGES = st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda pair: Range(pair[0], sum(pair)))


@pytest.fixture(params=sorted(path.name for path in RELEASED.iterdir() if path.is_dir()))
def left_behind(request, tmp_path):
    """The run directory of a node of a released version, with file modes that git does not store."""
    folder = tmp_path / "node"
    shutil.copytree(RELEASED / request.param / "node", folder)
    for file in folder.iterdir():
        file.chmod(0o600)
    return folder


def checks(path):
    return {check.check: check for check in upgrade.of_directory(path)}


def test_every_file_of_a_released_version_is_read(left_behind):
    """By a node, the terminal UI and pandas, beyond the headers."""
    run_dir = RunDir.existing(left_behind)
    manifest = run_dir.read_manifest()
    assert run_dir.read_config().shard == 1
    assert run_dir.swarm() == "sz2rtk32s6d73lmsqgvuls3g56bjtaisv"
    assert run_dir.read_invite().swarm == run_dir.swarm()
    assert Identity.load_or_create(run_dir.key).peer_id == final.load(left_behind).snapshot.peer
    assert [each.round for each in record.load(left_behind / "record.jsonl")][-1] > 0
    _, facts = tensor_file.unpack(run_dir.checkpoint.read_bytes())
    loaded = Checkpoints(run_dir.checkpoint, swarm=swarm_of(manifest), schema=facts["schema"]).load()
    assert (loaded.round, loaded.local_steps, loaded.tensors["x"].shape) == (12, 48, (20,))
    found = checks(left_behind)
    assert {check.verdict for check in found.values()} == {"ok"}
    assert {"manifest", "identity", "invite", "checkpoint.safetensors", "best.safetensors", "record.jsonl", "final.json"} <= found.keys()


def test_the_table_of_versions_equals_the_code():
    """A version number raised without the table, or a lane without one, fails here."""
    assert set(versions.LANES) == set(LANES)
    assert get_args(get_type_hints(Manifest)["format"]) == (MANIFEST.newest,)
    assert (CHECKPOINT.newest, SNAPSHOT.newest) == (tensor_file.FORMAT, snapshot.VERSION)
    assert [f"starling{number}:" for number in INVITE] == [invites.PREFIX, invites.INVITED]
    page = (ROOT / "docs/upgrade.md").read_text()
    for row in TABLE:
        where = ", ".join(f"`{each}`" for each in row.where.split(", "))
        assert f"| {row.what} | {where} | {row.range} | {row.older} |" in page
    assert versions.spoken(versions.LANES) == b"control 1 1, crew 2 2, exchange 1 1, state 2 2"


@pytest.mark.parametrize(
    ("spoil", "name", "said"),
    [
        (lambda d: (d / "format").write_text("2\n"), "run directory", "version 2, this program reads 1"),
        (lambda d: _restamp(d / "checkpoint.safetensors", 7), "checkpoint.safetensors", "version 7, this program reads 1"),
        (lambda d: (d / "best.safetensors").write_bytes(b"\xff" * 40), "best.safetensors", "cut short"),
        (lambda d: (d / "invite").write_text("starling9:abc"), "invite", "version 9, this program reads versions 1 and 2"),
        (lambda d: _replace(d / "manifest.toml", "format = 1", "format = 2"), "manifest", "version 2, this program reads 1"),
        (lambda d: _replace(d / "manifest.toml", "seed = 0", "seed = 1"), "manifest", "was changed since it was signed"),
        (lambda d: _replace(d / "final.json", '"version":1', '"version":4'), "final.json", "version 4, this program reads 1"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_files_of_a_later_version_are_refused_with_the_next_command(left_behind, spoil, name, said):
    """In one line each: the version found, the versions readable, the next command."""
    spoil(left_behind)
    found = checks(left_behind)[name]
    assert found.verdict == "fail"
    assert said in found.found
    assert "\n" not in found.found + found.todo
    assert found.todo
    if "this program reads" in said:
        assert UPGRADE in found.found + found.todo


def test_files_of_a_later_version_are_never_replaced(left_behind):
    """Unlike for a damaged checkpoint: the owner would lose what was trained."""
    _restamp(left_behind / "checkpoint.safetensors", CHECKPOINT.newest + 1)
    with pytest.raises(ConfigError, match="pip install --upgrade") as caught:
        Checkpoints(left_behind / "checkpoint.safetensors", swarm="", schema="").load()
    assert "start afresh" not in str(caught.value)
    (left_behind / "format").write_text(f"{RUN_DIRECTORY.newest + 1}\n")
    for refused in (RunDir.existing, RunDir.create):
        with pytest.raises(ConfigError, match="pip install --upgrade"):
            refused(left_behind)


def test_upgrade_check_has_text_and_json_output(left_behind, capsys):
    """Exit code 1 only where something cannot be read."""
    assert main(["upgrade-check", str(left_behind)]) == 0
    assert "all of it is read as it is" in capsys.readouterr().out
    assert main(["upgrade-check", str(left_behind), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["what"]: (each["oldest"], each["newest"]) for each in told["reads"]} == {row.what: row.range for row in TABLE}
    assert told["checks"][-1]["check"] == "upgrade"
    assert main(["upgrade-check", str(left_behind.parent)]) == 2
    assert "holds no node" in capsys.readouterr().err


@settings(max_examples=60)
@given(ours=RANGES, theirs=RANGES)
def test_a_version_mismatch_is_reported_to_both_and_the_older_one_is_named(ours, theirs):
    """And exactly where no version is common."""
    told = [versions.mismatch({"state": one}, {"state": other}) for one, other in ((ours, theirs), (theirs, ours))]
    common = set(range(ours.oldest, ours.newest + 1)) & set(range(theirs.oldest, theirs.newest + 1))
    assert all(not text for text in told) if common else all(told)
    assert sum("this node is older" in text for text in told) == sum("it is older" in text for text in told) == (not common)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["control", "exchange", "state", "crew"]), RANGES, min_size=1))
def test_announced_versions_survive_encoding(lanes):
    assert versions.heard(versions.spoken(lanes)) == lanes


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.from_regex(rb"\A(state [0-9]{1,9} [0-9]{1,9}(, )?){1,3}\Z"))
def test_other_texts_give_a_value_error(data):
    try:
        heard = versions.heard(data)
    except ValueError:
        return
    assert all(1 <= each.oldest <= each.newest <= versions.MOST for each in heard.values())


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _restamp(path: Path, version: int) -> None:
    """Write the same tensors with another format number."""
    data = path.read_bytes()
    tensors, facts = tensor_file.unpack(data)
    packed = tensor_file.pack({name: torch.as_tensor(value) for name, value in tensors.items()}, facts)
    stamped = packed.replace(b'\\"format\\": 1,', b'\\"format\\": %d,' % version)
    assert len(stamped) == len(packed) != 0
    assert stamped != packed
    path.write_bytes(stamped)
