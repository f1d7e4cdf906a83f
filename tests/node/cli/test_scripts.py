"""In a swarm of scripts, commands that need a task's model refuse in one line that says who has the model and what to do instead."""

import json
from pathlib import Path

import pytest

from starling.gossip.errors import ConfigError
from starling.node import run_directory
from starling.node.cli.main import main
from starling.node.config.schema import Manifest, NodeConfig, TaskSection
from starling.node.engine import offline
from starling.node.simulate.api import simulate


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text('[task]\nkind = "script"\n')
    Path("begin.safetensors").write_bytes(b"a model")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("task check script", "`starling.Swarm(DIR, model=…, optimizer=…)`"),
        ("simulate s.toml", "`--set task.kind=digits`"),
        ("demo --task script", "`starling demo --task digits`"),
        ("plan --manifest s.toml", "`starling examples plan-crowd`"),
    ],
)
def test_commands_that_need_the_model_refuse_in_one_line(here, capsys, command, instead):
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "task=script is trained by its members' scripts, which only they have; " in line
    assert instead in line


def test_a_manifest_of_scripts_is_checked_and_needs_no_start_until_it_is_created(here, capsys):
    assert main(["manifest", "check", "s.toml"]) == 0
    assert main(["create", "s.toml", "--dir", "n"]) == 2
    assert "task.start: a swarm of scripts begins with the model of its creator's script" in capsys.readouterr().err
    assert not Path("n").exists()


def test_a_created_manifest_of_scripts_is_shown(here, capsys):
    manifest = Manifest(task=TaskSection(kind="script", start="begin.safetensors", metric="accuracy"))
    run_directory.create(here / "n", manifest, NodeConfig())
    capsys.readouterr()
    assert main(["config", "show", "manifest", "--dir", "n"]) == 0
    shown = capsys.readouterr().out
    assert 'start = "chunks:' in shown
    assert 'metric = "accuracy"' in shown
    assert main(["manifest", "show", "--dir", "n", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["task"]["kind"] == "script"


@pytest.mark.parametrize(
    "use",
    [
        lambda run_dir, file: offline.measure(run_dir, file, None),
        lambda run_dir, file: offline.convert(run_dir, file, "torch", file.with_suffix(".pt")),
        lambda run_dir, file: offline.ask(run_dir, file, "To be", tokens=1, temperature=0.0, seed=0),
    ],
    ids=["eval", "convert", "ask"],
)
def test_the_model_of_a_node_that_does_not_run_is_evaluated_by_no_command(here, use):
    run_directory.create(here / "n", Manifest(task=TaskSection(kind="script", start="begin.safetensors")), NodeConfig())
    with pytest.raises(ConfigError, match=r"which only they have; .*`starling export MODEL\.safetensors`") as raised:
        use(here / "n", here / "begin.safetensors")
    assert "\n" not in str(raised.value)


def test_a_scenario_from_python_is_refused_too():
    with pytest.raises(ConfigError, match="which only they have"):
        simulate(set={"task.kind": "script"})
