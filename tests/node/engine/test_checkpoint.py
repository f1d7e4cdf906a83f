"""Checkpoints: a restart continues where the node stopped, and a bad file costs at most one checkpoint."""

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.config.schema import OptimizerSection
from starling.node.engine import tensor_file
from starling.node.engine.checkpoint import Checkpoint, Checkpoints
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, refused_as, state_of, x_of

ADAMW = OptimizerSection(kind="adamw", lr=1e-3)
GROUPS = OptimizerSection(kind="adamw", lr=1e-3, weight_decay=0.1, decay="matrices", warmup=0.05)
MUON = OptimizerSection(kind="muon", lr=1e-3, schedule="linear", clip_norm=1.0)


def checkpoint(round, value=0.0):
    return Checkpoint(round, 10 * round, {"x": torch.full((7,), value), "optimizer.steps": torch.tensor([round])})


def files(path, **kwargs):
    return Checkpoints(path, **{"swarm": "s", "schema": "m"} | kwargs)


@pytest.mark.parametrize("optimizer", [OptimizerSection(), ADAMW, GROUPS, MUON], ids=["sgd", "adamw", "groups", "muon"])
def test_a_resumed_node_continues_bit_for_bit(tmp_path, optimizer):
    """Model, optimiser memory, position in the batches and in the schedule agree bit for bit."""
    agreed = manifest(optimizer=optimizer)
    whole, first = opened(agreed), opened(agreed, checkpoint=tmp_path / "c")
    for engine, rounds in ((whole, 6), (first, 3)):
        for turn in range(rounds):
            done(engine, calls.Train(turn, 5))
            done(engine, calls.Mix(turn))
    done(first, calls.Stop())
    second = Worker()
    reply = second.handle(open_request(agreed, checkpoint=tmp_path / "c"))
    assert (reply.resumed, reply.round, reply.figures.local_steps) == (True, 3, 15)
    for turn in range(3, 6):
        done(second, calls.Train(turn, 5))
        done(second, calls.Mix(turn))
    assert torch.equal(x_of(second), x_of(whole))


def test_flows_do_not_survive_a_restart(tmp_path):
    """Peers delete theirs as well, since the node returns with a new incarnation: stored flows would be one-sided."""
    engines = {peer: opened(manifest(), shard, peer, tmp_path / peer) for shard, peer in enumerate("ab")}
    every(engines, calls.Train(0, 5))
    exchange(engines, "a", "b", seq=1)
    done(engines["a"], calls.Mix(0))
    assert state_of(engines["a"]).total.any()
    done(engines["a"], calls.Save())
    resumed = opened(manifest(), 0, "a", tmp_path / "a")
    assert torch.equal(x_of(resumed), x_of(engines["a"]))
    assert not state_of(resumed).total.any()


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "gone"])
def test_a_damaged_checkpoint_costs_one_checkpoint(tmp_path, damage):
    """Also if the machine went down between the two renames of a save, which leaves only the previous file."""
    path = tmp_path / "c"
    for number in (1, 2):
        saved = files(path)
        saved.load()
        saved.save(checkpoint(number, float(number)))
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-3], "flipped": data[:-3] + b"\x7f" + data[-2:], "emptied": b""}[damage])
    again = files(path)
    found = again.load()
    assert (found.round, float(found.tensors["x"][0])) == (1, 1.0)
    assert (str(path) in again.damaged) == (damage != "gone"), "a missing one is not damaged: a machine may go down between two renames"
    again.save(checkpoint(3))
    assert files(path).load().round == 3
    assert tensor_file.unpack((tmp_path / "c.previous").read_bytes())[1]["round"] == 1, "the good one before it is still there"
    assert (tmp_path / "c.bad").exists() == (damage != "gone")


@pytest.mark.parametrize("facts", [{}, {"round": 3}, {"round": "3", "local_steps": 4}, {"round": -1, "local_steps": 4}])
def test_a_checkpoint_without_its_round_is_invalid(tmp_path, facts):
    """One line says so, and the previous checkpoint is used."""
    path = tmp_path / "c"
    files(path).save(checkpoint(1))
    path.replace(tmp_path / "c.previous")
    tensor_file.write(path, tensor_file.pack({"x": torch.zeros(7)}, {"kind": "checkpoint", "swarm": "s", "schema": "m"} | facts)).replace(
        path
    )
    assert files(path).load().round == 1
    (tmp_path / "c.previous").unlink()
    with pytest.raises(ConfigError, match="c: does not say how far it is; move the file away") as error:
        files(path).load()
    assert "\n" not in str(error.value)


def test_with_no_readable_checkpoint_the_node_names_a_remedy_and_changes_nothing(tmp_path):
    path = tmp_path / "c"
    path.write_bytes(b"precious")
    (tmp_path / "c.previous").write_bytes(b"too")
    with pytest.raises(ConfigError, match=r"c: .*not written by Starling.*\(mv ") as error:
        files(path).load()
    assert "\n" not in str(error.value)
    reply = Worker().handle(open_request(manifest(), checkpoint=path))
    refused_as("config", reply, "mv")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"c": b"precious", "c.previous": b"too"}


@pytest.mark.parametrize(
    ("foreign", "word"), [({"swarm": "t"}, "another swarm"), ({"schema": "n"}, "another model"), ({}, "something else")]
)
def test_a_foreign_checkpoint_is_neither_loaded_nor_overwritten(tmp_path, foreign, word):
    """The same holds for a snapshot and an export."""
    files(tmp_path / "c").save(checkpoint(1))
    if not foreign:
        (tmp_path / "c").write_bytes(tensor_file.pack({"x": torch.zeros(3)}, {"kind": "model"}))
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(ConfigError, match=word):
        files(tmp_path / "c", **foreign).load()
    assert (tmp_path / "c").read_bytes() == before


def test_an_unwritable_disk_prevents_only_saving(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    engine = opened(manifest(), checkpoint=folder / "c")
    done(engine, calls.Train(0, 5))
    folder.rename(tmp_path / "away")
    refused_as("disk", engine.handle(calls.Save()), "run")
    done(engine, calls.Mix(0))
    done(engine, calls.Train(1, 5))
    (tmp_path / "away").rename(folder)
    done(engine, calls.Save())
    assert [file.name for file in folder.iterdir()] == ["c"]


def test_a_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    saved = files(tmp_path / "c")
    saved.save(checkpoint(1))

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("starling.node.engine.tensor_file.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        saved.save(checkpoint(2))
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    assert files(tmp_path / "c").load().round == 1


def test_a_state_blob_describes_itself_and_is_deterministic(tmp_path):
    tensors = {"b": torch.arange(3), "a": torch.eye(2, dtype=torch.float64), "empty": torch.zeros(0)}
    data = tensor_file.pack(tensors, {"round": 4, "kind": "test"})
    assert data == tensor_file.pack(dict(reversed(tensors.items())), {"kind": "test", "round": 4})
    found, facts = tensor_file.unpack(data)
    assert facts == {"round": 4, "kind": "test"}
    file = tensor_file.save(tmp_path / "c", tensors, {"round": 4, "kind": "test"})
    assert len(file.read_bytes()) == len(data)
    assert file.stat().st_mode & 0o777 == 0o600
    mapped, facts = tensor_file.load(file)
    assert facts == {"round": 4, "kind": "test"}
    assert all(torch.equal(mapped[name], tensor) for name, tensor in found.items())
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 0x10
        with pytest.raises(ValueError, match=r"cut short|damaged|format"):
            tensor_file.unpack(bytes(changed))
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=r"cut short|damaged|format"):
            tensor_file.load(file)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="cut short"):
        tensor_file.load(file)
