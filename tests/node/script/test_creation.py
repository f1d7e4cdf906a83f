"""`starling.Swarm.create` reports all wrong keys and values at once, one line each."""

import math

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.script import swarm
from starling.node.script.swarm import Swarm
from starling.node.storage.run_dir import RunDir
from tests.node.script.loops import net


class Began(Exception):
    """Raised where the node would be started."""


@pytest.fixture(autouse=True)
def _no_node(monkeypatch):
    def started(*_given):
        raise Began

    monkeypatch.setattr(swarm, "started", started)


def created(folder, model=None, **keys):
    model = net() if model is None else model
    with pytest.raises((ConfigError, Began)) as raised:
        Swarm.create(folder, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **keys)
    return raised.value


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"set": {"foo": 1, "bar.baz": 2}, "config": {"bax": 3}}, ["foo: no such", "bar: no such", "bax: no such"]),
        ({"rounds": -1, "local_steps": 0, "quorum": "x"}, ["pace.local_steps: must be", "pace.rounds: ", "pace.quorum: "]),
        ({"metric": "a b", "preset": "foo"}, ["metric: must be 1 to 32 letters", "preset: must be one of"]),
        ({"set": {"crew.stages": 2, "optimizer.sam": 0.1}}, ["crew.stages: each script", "optimizer.sam: the script's"]),
        (
            {"set": {"mix": "gather", "robust.rule": "median"}},
            ["overlay.kind: gather asks", "compress.select: gather combines whole models, must be full"],
        ),
    ],
)
def test_all_errors_are_reported_at_once_and_nothing_is_written(tmp_path, keys, said):
    error = created(tmp_path / "new", **keys)
    lines = str(error).splitlines()
    assert len(lines) == len(said), lines
    assert all(any(line.startswith(words) for line in lines) for words in said), lines
    assert not (tmp_path / "new").exists()


def test_following_the_error_lines_creates_a_swarm_with_these_keys(tmp_path):
    keys = {"mix": "gather", "robust.rule": "median", "overlay": "pull", "compress.select": "full"}
    assert isinstance(created(tmp_path, set=keys), Began)
    made = RunDir.existing(tmp_path).read_manifest()
    assert (made.mix.kind, made.robust.rule, made.overlay.kind, made.compress.select) == tuple(keys.values())


def test_a_directory_that_holds_a_node_goes_on_and_refuses_what_its_swarm_has_otherwise(tmp_path):
    """What was not given is no contradiction: a script that names its directory alone goes on with any swarm."""
    created(tmp_path, rounds=60, metric="accuracy", set={"mix": "pet"})
    before = RunDir.existing(tmp_path).read_config()
    for keys in ({}, {"rounds": 60, "quorum": 2, "set": {"mix": "pet"}}, {"metric": "accuracy", "higher_is_better": True}):
        assert isinstance(created(tmp_path, **keys), Began)
    refused = created(tmp_path, rounds=200, metric="loss", set={"mix": "dsgd", "mix.own": None}, config={"nice": 3})
    rounds, mix, metric = str(refused).splitlines()
    assert rounds.startswith("pace.rounds: must be 60, got 200; ")
    assert mix.startswith("mix: must be 'pet', got 'dsgd'; ")
    assert metric.startswith("task.metric: must be 'accuracy', got 'loss'; ")
    assert RunDir.existing(tmp_path).read_config() == before
    assert isinstance(created(tmp_path, config={"nice": 3}), Began)
    assert RunDir.existing(tmp_path).read_config().nice == 3


def test_a_non_finite_model_is_reported_with_the_other_errors(tmp_path):
    model = net()
    torch.nn.init.constant_(model[0].bias, math.inf)
    first, second = str(created(tmp_path, model, set={"foo": 1})).splitlines()
    assert first.startswith("model: its parameters are not finite")
    assert second.startswith("foo: no such key")
