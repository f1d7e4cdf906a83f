"""The best model by its metric is stored beside the last one, in one file, and exported on demand."""

import math
import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node import run_directory
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.engine import tensor_file
from starling.node.engine.best import NAME, Best
from starling.node.engine.measured_model import MeasuredModel
from starling.node.engine.worker import Worker
from starling.node.node_handle import Attached
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, opened, refused_as, x_of


def best(folder, *, swarm="s", higher=True, large=False):
    return Best(folder / NAME, swarm=swarm, schema="m", higher_is_better=higher, large=large)


def model(value):
    made = nn.Linear(1, 1)
    nn.init.constant_(made.weight, value)
    return MeasuredModel(made)


def weight(file):
    return float(load_file(file)["weight"])


@pytest.mark.parametrize(("higher", "kept"), [(True, (0.9, 2)), (False, (0.2, 4))])
def test_the_metric_says_which_way_is_better(tmp_path, higher, kept):
    """Of equal values the first stays, and NaN is never the best."""
    ours = best(tmp_path, higher=higher)
    for turn, value in enumerate((math.nan, 0.5, 0.9, 0.9, 0.2, 0.2, math.inf)):
        ours.offer(value, turn, model(turn))
    assert (ours.value, ours.round) == kept
    ours.write()
    assert weight(tmp_path / NAME) == kept[1]
    again = best(tmp_path, higher=higher)
    assert (again.value, again.round) == kept
    again.offer(0.5, 9, model(9))
    again.write()
    assert weight(tmp_path / NAME) == kept[1]


def test_the_best_model_is_one_file_written_on_request_if_it_improved(tmp_path):
    ours = best(tmp_path)
    ours.offer(0.1, 1, model(1))
    assert list(tmp_path.iterdir()) == []
    ours.write()
    written = (tmp_path / NAME).stat().st_mtime_ns
    ours.write()
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mtime_ns == written


def test_after_a_full_disk_the_old_file_remains_and_the_model_is_written_next_time(tmp_path, monkeypatch):
    ours = best(tmp_path)
    ours.offer(0.1, 1, model(1))
    ours.write()
    ours.offer(0.2, 2, model(2))
    with monkeypatch.context() as broken:
        broken.setattr(tensor_file.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space"):
            ours.write()
    assert weight(tmp_path / NAME) == 1
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
    ours.write()
    assert weight(tmp_path / NAME) == 2


def test_a_large_best_model_is_written_at_once_and_then_freed(tmp_path, monkeypatch):
    ours, first, second = best(tmp_path, large=True), model(1), model(2)
    held = [weakref.ref(each) for each in (first, second)]
    ours.offer(0.1, 1, first)
    del first
    assert (weight(tmp_path / NAME), held[0]()) == (1, None)
    with monkeypatch.context() as broken:
        broken.setattr(tensor_file.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        ours.offer(0.2, 2, second)
    del second
    assert weight(tmp_path / NAME) == 1
    ours.write()
    assert (weight(tmp_path / NAME), held[1]()) == (2, None)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, None])
def test_a_damaged_best_file_or_one_of_another_swarm_is_ignored(tmp_path, damage):
    before = best(tmp_path, swarm="another")
    before.offer(0.9, 7, model(7))
    before.write()
    if damage is not None:
        (tmp_path / NAME).write_bytes(damage)
    ours = best(tmp_path)
    assert (ours.value, ours.round) == (None, None)
    ours.offer(0.1, 1, model(1))
    ours.write()
    assert weight(tmp_path / NAME) == 1


def test_an_engine_keeps_the_model_that_it_measured(tmp_path):
    """Not the model of a later step or of the checkpoint; it survives a restart."""
    agreed = manifest("tests.harness.networks:Pictures", params={"network": "resnet"})
    engine = opened(agreed, checkpoint=tmp_path / "c")
    nothing = done(engine, calls.Save())
    assert isinstance(nothing, calls.Done)
    refused_as("state", engine.handle(calls.Save(str(tmp_path / "e"), best=True)), "no model was evaluated yet")
    trainer = engine.trainer
    done(engine, calls.Train(0, 3))
    done(engine, calls.Mix(0))
    measured, good = trainer.exported(), done(engine, calls.Evaluate(1))
    trainer.replica.x.mul_(0.0)
    worse = done(engine, calls.Evaluate(2))
    assert worse.value < good.value
    assert (good.best, good.best_round) == (worse.best, worse.best_round) == (good.value, 1)
    done(engine, calls.Save(str(tmp_path / "e"), best=True))
    for file in (tmp_path / "e", tmp_path / NAME):
        held = load_file(file)
        assert held.keys() == measured.keys()
        assert all(torch.equal(held[name], measured[name]) for name in held)
    again = Worker()
    reply = again.handle(open_request(agreed, checkpoint=tmp_path / "c"))
    assert (reply.best, reply.best_round) == (good.value, 1)
    assert not x_of(again).any()


def test_without_a_checkpoint_nothing_is_stored():
    engine = opened(manifest())
    assert done(engine, calls.Evaluate(1)).best is None


@pytest.mark.slow
def test_the_best_model_of_a_node_that_has_ended_is_exported_without_its_engine(tmp_path):
    place, _ = run_directory.create(tmp_path / "n", Manifest(), NodeConfig())
    with pytest.raises(ConfigError, match=r"--best: .* has no evaluated model yet; leave --best out"):
        Attached(place.path).export(tmp_path / "b.safetensors", best=True)
    ours = Best(place.best, swarm="s", schema="m", higher_is_better=True)
    ours.offer(0.5, 3, model(3))
    ours.write()
    Attached(place.path).export(tmp_path / "b.safetensors", best=True, card=True)
    assert weight(tmp_path / "b.safetensors") == 3


def test_a_model_evaluated_before_its_exchanges_is_never_the_best(tmp_path):
    engine = opened(manifest(), checkpoint=tmp_path / "c.safetensors")
    seen = done(engine, calls.Evaluate(1, keep=False))
    assert (seen.best, seen.best_round) == (None, None)
    assert done(engine, calls.Evaluate(2)).best_round == 2
