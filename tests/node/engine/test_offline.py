"""A model without its node: exported from the last checkpoint, measured on the task's data or one's own."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from starling.gossip.errors import ConfigError
from starling.node import operate
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.engine import offline
from starling.node.engine.engine import Engine
from starling.node.identity import Identity
from starling.node.rpc import calls
from starling.node.storage.run_dir import RunDir
from starling.node.tasks.digits import built_in


@pytest.fixture
def left(tmp_path):
    """A run directory whose node has trained one round, saved, and is gone; the engine that trained."""
    manifest = toml.apply_set(Manifest(), ["pace.local_steps=3", "task.batch_size=16"])
    place, _ = operate.found(tmp_path / "n", manifest, NodeConfig(device="cpu"))
    engine = Engine()
    opening = calls.Open(place.read_manifest(), "", 0, "cpu", 1, str(place.checkpoint), "me")
    assert isinstance(engine.handle(opening), calls.Opened)
    assert engine.handle(calls.Train(0, 3)) is None
    while engine.step() is None:
        pass
    assert isinstance(engine.handle(calls.Save(str(tmp_path / "at_once.safetensors"))), calls.Done)
    return place


def test_the_model_of_a_checkpoint_is_the_one_its_node_would_have_exported(left, tmp_path):
    before = {path.name: path.read_bytes() for path in left.path.iterdir()}
    offline.export(left.path, tmp_path / "later.safetensors")
    once, later = (load_file(tmp_path / f"{name}.safetensors") for name in ("at_once", "later"))
    assert once.keys() == later.keys()
    assert all((once[name] == later[name]).all() for name in once)
    assert {path.name: path.read_bytes() for path in left.path.iterdir()} == before


def test_an_export_estimates_statistics_from_the_shard_that_its_node_trained_on(tmp_path):
    """Also where the shard follows from the peer id: the export of a node that has ended is the one it would have made."""
    manifest = toml.apply_set(
        Manifest(),
        [
            "task=tests.harness.networks:Pictures",
            "task.params.network=resnet",
            "partition=by_label",
            "partition.shards=4",
        ],
    )
    place, _ = operate.found(tmp_path / "n", manifest, NodeConfig(device="cpu", trust=True))
    me = Identity.load_or_create(place.key).peer_id
    engine = Engine()
    shard = manifests.shard_of(manifest, -1, me)
    opening = calls.Open(place.read_manifest(), "", shard, "cpu", 1, str(place.checkpoint), me)
    assert isinstance(engine.handle(opening), calls.Opened)
    assert engine.handle(calls.Train(0, 3)) is None
    while engine.step() is None:
        pass
    assert isinstance(engine.handle(calls.Save(str(tmp_path / "at_once.safetensors"))), calls.Done)
    offline.export(place.path, tmp_path / "later.safetensors")
    once, later = (load_file(tmp_path / f"{name}.safetensors") for name in ("at_once", "later"))
    assert any("running_mean" in name for name in once)
    assert all((once[name] == later[name]).all() for name in once)


def test_a_model_is_measured_on_the_task_s_data_or_on_a_file(left, tmp_path):
    model = tmp_path / "at_once.safetensors"
    built = offline.measure(left.path, model, None)
    assert built["metric"] == "accuracy"
    assert 0.0 <= built["value"] <= 1.0
    _, test = built_in()
    whole = tmp_path / "whole.npz"
    np.savez(whole, x=test.x.reshape(-1, 64) * 16.0, y=test.y)
    assert offline.measure(left.path, model, whole)["value"] == pytest.approx(built["value"])


def test_what_is_no_model_of_the_swarm_is_refused(left, tmp_path):
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"no model")
    with pytest.raises(ConfigError, match="is not a model of this swarm"):
        offline.measure(left.path, other, None)
    left.checkpoint.unlink()
    with pytest.raises(ConfigError, match="has no model yet"):
        offline.export(left.path, tmp_path / "x.safetensors")


@pytest.mark.slow
@pytest.mark.real
def test_eval_and_export_of_a_left_node_work_from_its_directory(left, tmp_path):
    """`starling eval` and `export` start this program, as the command line itself has no torch."""

    def starling(*words):
        command = [sys.executable, "-m", "starling.node.cli.main", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = starling("eval", left.path, "--json")
    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)["value"] == offline.measure(left.path, tmp_path / "at_once.safetensors", None)["value"]
    )
    done = starling("export", tmp_path / "m.safetensors", left.path)
    assert done.returncode == 0, done.stderr
    assert load_file(tmp_path / "m.safetensors").keys() == load_file(tmp_path / "at_once.safetensors").keys()
    (tmp_path / "bad.npz").write_bytes(b"")
    done = starling("eval", left.path, "--data", tmp_path / "bad.npz")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "bad.npz" in done.stderr
    assert RunDir.existing(left.path)
