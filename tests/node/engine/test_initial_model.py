"""All nodes begin with the model of a file, bit for bit, in engines, simulations and the reference; any other file is refused."""

import hashlib
from functools import partial

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from starling.node import run_directory
from starling.node.config.initial_model import with_file_digest
from starling.node.config.parts import shown
from starling.node.config.schema import NodeConfig
from starling.node.engine import offline
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate.matrix.problem import problem
from starling.node.storage.run_dir import RunDir
from tests.harness.engines import done, manifest, opened, refused_as, x_of

SMALL = {"hidden": 8}


@pytest.fixture(params=["digits", "quadratic", "tests.harness.networks:Pictures"])
def trained(request, tmp_path):
    """Return the task's manifest, the file of a slightly trained model, and its parameters (d,); with buffers or a formula too."""
    params = {"digits": SMALL, "quadratic": {}}.get(request.param, {"network": "resnet"})
    made = partial(manifest, request.param, params=params, local_steps=2)
    engine, file = opened(made()), tmp_path / "warm.safetensors"
    done(engine, calls.Train(0, 2))
    done(engine, calls.Save(str(file)))
    return made, file, x_of(engine)


def open_request(agreed, shard, label, start):
    return calls.Open(agreed, "", shard, "cpu", 1, "", label, start=start)


def from_file(agreed, file):
    """Return the manifest as its creator writes it, and as created, with the path in the node's settings."""
    named = structs.replace(agreed, task=agreed.task.changed(start=str(file)))
    return named, *with_file_digest(named, NodeConfig())


def test_every_node_and_simulation_begins_with_the_file_bit_for_bit(trained):
    made, file, x = trained
    named, created, config = from_file(made(), file)
    engines = [Worker(clock=lambda: 0.0) for _ in "ab"]
    for shard, (engine, label) in enumerate(zip(engines, "ab", strict=True)):
        done(engine, open_request(created, shard, label, config.start))
        assert torch.equal(x_of(engine), x)
        assert torch.equal(engine.replica.beginning(), x)
    assert torch.equal(problem(named, "ab").start, x)
    assert not torch.equal(x_of(opened(made())), x)
    done(engines[0], calls.Train(0, 2))
    assert torch.equal(engines[0].replica.beginning(), x)  # a late joiner compares its model with this


def _renamed(tensors):
    return {name.replace("weight", "kernel"): tensor for name, tensor in tensors.items()}


def _one_more(tensors):
    return {**tensors, "zzz": torch.zeros(1)}


def _flatter(tensors):
    return {name: tensor.reshape(-1) for name, tensor in tensors.items()}


def _wider(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


def _broken(tensors):
    return {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_renamed, "has a foreign tensor '0.kernel'"),
        (_one_more, "has a foreign tensor 'zzz'"),
        (_flatter, "must be float32 of shape (8, 64)"),
        (_wider, "must be float32 of shape"),
        (_broken, "not finite"),
    ],
)
def test_a_model_of_another_task_is_refused_in_one_line(tmp_path, change, words):
    engine, file = opened(manifest(params=SMALL)), tmp_path / "warm.safetensors"
    done(engine, calls.Save(str(file)))
    save_file(change(load_file(file)), file)
    _, created, config = from_file(manifest(params=SMALL), file)
    refused = refused_as("config", Worker().handle(open_request(created, 0, "a", config.start)), words)
    assert refused.reason.startswith(f"task.start: {shown(str(file))} ")
    assert refused.reason.endswith("as `starling export MODEL.safetensors` writes it")


def test_only_safetensors_files_are_read_and_nothing_is_unpickled(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "warm.pt")
    for file, data in (("warm.pt", None), ("empty", b""), ("cut", b"\xff" * 20)):
        if data is not None:
            (tmp_path / file).write_bytes(data)
        _, created, config = from_file(manifest(params=SMALL), tmp_path / file)
        refused_as("config", Worker().handle(open_request(created, 0, "a", config.start)), "is no safetensors file, or cut short")


def test_a_node_without_the_initial_file_is_told_which_it_needs(tmp_path):
    (tmp_path / "warm").write_bytes(b"x")
    _, created, _ = from_file(manifest(params=SMALL), tmp_path / "warm")
    digest = hashlib.sha256(b"x").hexdigest()
    refused_as("config", Worker().handle(open_request(created, 0, "a", "")), f"begins with the model of sha256:{digest}")


def test_an_unrequested_file_is_an_error():
    """Its owner may expect training to start from it."""
    refused_as("config", Worker().handle(open_request(manifest(params=SMALL), 0, "a", "my.safetensors")), "begins with a random model")


def test_a_run_directory_stores_the_initial_file_s_path(tmp_path, monkeypatch):
    """The node is created in one folder and exported from another."""
    engine = opened(manifest(params=SMALL))
    done(engine, calls.Save(str(tmp_path / "warm.safetensors")))
    monkeypatch.chdir(tmp_path)
    named, *_ = from_file(manifest(params=SMALL), "warm.safetensors")
    place, _ = run_directory.create(tmp_path / "n", named, NodeConfig(device="cpu"))
    config, created = RunDir(tmp_path / "n").read_config(), place.read_manifest()
    assert config.start == str(tmp_path / "warm.safetensors")
    other = Worker()
    done(other, calls.Open(created, "", 0, "cpu", 1, str(place.checkpoint), "me", start=config.start))
    done(other, calls.Train(0, 1))
    done(other, calls.Save(""))
    monkeypatch.chdir("/")
    offline.export(place.path, tmp_path / "later.safetensors")
    assert (tmp_path / "later.safetensors").stat().st_size > 0
