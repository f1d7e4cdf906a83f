"""A model without its node: exported from the last checkpoint, evaluated on the task's data or on other data."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from starling.gossip.errors import ConfigError, GossipError
from starling.node import run_directory
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.engine import offline
from starling.node.engine.worker import Worker
from starling.node.identity import Identity
from starling.node.node_handle import Attached
from starling.node.rpc import calls
from starling.node.storage.run_dir import RunDir
from starling.node.tasks.digits import built_in
from tests.harness.cli_doubles import refused
from tests.harness.engines import done
from tests.harness.schemas import valid


def trained(folder, *settings):
    """The run directory of a node that has trained one round, saved and ended."""
    manifest = toml.apply_set(Manifest(), [*settings, "pace.local_steps=3", "task.batch_size=16"])
    place, _ = run_directory.create(folder / "n", manifest, NodeConfig(device="cpu", trust=True))
    me = Identity.load_or_create(place.key).peer_id
    shard = manifests.shard_of(manifest, -1, me)
    engine = Worker()
    done(engine, calls.Open(place.read_manifest(), "", shard, "cpu", 1, str(place.checkpoint), me))
    done(engine, calls.Train(0, 3))
    done(engine, calls.Save(str(folder / "at_once.safetensors")))
    return place


@pytest.fixture
def left(tmp_path):
    return trained(tmp_path)


def test_a_target_that_cannot_be_written_is_a_failure_and_not_wrong_input(left, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(GossipError, match=r"export: cannot write .*file/x\.safetensors") as failed:
        offline.export(left.path, tmp_path / "file" / "x.safetensors")
    assert failed.type is GossipError
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 3, "", "export: cannot write x: full\n"))
    refused(capsys, ["export", tmp_path / "y.safetensors", "--dir", left.path], "export: cannot write x: full", code=1)


PICTURES = ("task=tests.harness.networks:Pictures", "task.network=resnet", "partition=by_label", "partition.shards=4")


@pytest.mark.parametrize("settings", [(), PICTURES], ids=["digits", "statistics"])
def test_the_model_of_a_checkpoint_is_the_one_its_node_would_have_exported(tmp_path, settings):
    """Also with statistics estimated from the node's shard, which follows from its peer id; the directory does not change."""
    place = trained(tmp_path, *settings)
    before = {path.name: path.read_bytes() for path in place.path.iterdir()}
    offline.export(place.path, tmp_path / "later.safetensors")
    once, later = (load_file(tmp_path / f"{name}.safetensors") for name in ("at_once", "later"))
    assert once.keys() == later.keys()
    assert any("running_mean" in name for name in once) == bool(settings)
    assert all((once[name] == later[name]).all() for name in once)
    assert {path.name: path.read_bytes() for path in place.path.iterdir()} == before


def test_a_model_is_measured_on_the_task_s_data_or_on_a_file(left, tmp_path):
    model = tmp_path / "at_once.safetensors"
    built = offline.measure(left.path, model, None)
    assert built["metric"] == "accuracy"
    assert 0.0 <= built["value"] <= 1.0
    _, test = built_in()
    whole = tmp_path / "whole.npz"
    np.savez(whole, x=test.x.reshape(-1, 64) * 16.0, y=test.y)
    assert offline.measure(left.path, model, whole)["value"] == pytest.approx(built["value"])


def test_a_model_of_another_swarm_is_refused(left, tmp_path):
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"no model")
    with pytest.raises(ConfigError, match="is not a model of this swarm"):
        offline.measure(left.path, other, None)
    left.checkpoint.unlink()
    with pytest.raises(ConfigError, match="has no model yet"):
        offline.export(left.path, tmp_path / "x.safetensors")


@pytest.fixture
def writer(tmp_path):
    """A node with a small byte model, and its text."""
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be. " * 200)
    keys = (f"task.path={text}", "task.context=8", "task.width=16", "task.layers=1", "task.heads=2", "partition=iid")
    return trained(tmp_path, "task=text", *keys)


def test_a_text_model_continues_a_prompt_sampled_or_greedily(writer, tmp_path):
    model = tmp_path / "at_once.safetensors"

    def ask(seed, temperature=0.8):
        written = offline.ask(writer.path, model, "To be", tokens=12, temperature=temperature, seed=seed)
        assert (written["prompt"], written["tokens"], written["round"]) == ("To be", 12, 0)
        return written["text"]

    assert ask(1) == ask(1) != ask(2)
    assert ask(1, 0.0) == ask(2, 0.0)


@pytest.mark.parametrize(("prompt", "words"), [("", "got 0; try `starling ask A`"), ("to be\n" * 9, "got 54; try")])
def test_a_prompt_that_is_empty_or_too_long_is_refused_in_one_line(writer, tmp_path, prompt, words):
    with pytest.raises(ConfigError, match="PROMPT: must be 1 to 8 tokens") as error:
        offline.ask(writer.path, tmp_path / "at_once.safetensors", prompt, tokens=1, temperature=0.0, seed=0)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_task_that_cannot_generate_text_names_those_that_can(left, tmp_path):
    with pytest.raises(ConfigError, match="ask: task=digits does not write text; text and"):
        offline.ask(left.path, tmp_path / "at_once.safetensors", "A", tokens=1, temperature=0.0, seed=0)


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.real
def test_ask_works_on_a_node_that_has_left(writer, tmp_path, capsys):
    assert main(["ask", "To be", "--tokens", "5", "--dir", str(writer.path), "--json"]) == 0
    said = valid("ask", capsys.readouterr().out)
    here = offline.ask(writer.path, tmp_path / "at_once.safetensors", "To be", tokens=5, temperature=0.8, seed=0)
    assert said == {"version": 1, **here}


@pytest.mark.slow
@pytest.mark.real
def test_an_evaluation_of_a_left_node_starts_one_process(left, tmp_path, monkeypatch):
    """The model is exported in the process that evaluates it, since importing torch takes seconds."""
    started, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: started.append(command) or run(command, **options))
    value = Attached(left.path).evaluate().value
    assert len(started) == 1
    assert value == offline.measure(left.path, tmp_path / "at_once.safetensors", None)["value"]


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.real
def test_eval_of_a_left_node_works_from_its_directory(left, tmp_path):
    """`starling eval`, like `export`, starts this program, as the command line itself does not import torch."""

    def starling(*words):
        command = [sys.executable, "-m", "starling.node.cli.main", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ran = starling("eval", left.path, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["value"] == offline.measure(left.path, tmp_path / "at_once.safetensors", None)["value"]
    (tmp_path / "bad.npz").write_bytes(b"")
    ran = starling("eval", left.path, "--data", tmp_path / "bad.npz")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "bad.npz" in ran.stderr
    assert RunDir.existing(left.path)
