"""`starling.Swarm` with an existing node: notebook cells that are run again, and processes that cannot be members."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NodeConfig
from starling.node.script.swarm import Running, Swarm
from starling.node.script.swarm import started as start_node
from starling.node.status.final import FinalStatus
from starling.node.storage.run_dir import RunDir
from tests.harness.snapshots import snapshot
from tests.integrations.nodes import Node, beside
from tests.node.script.loops import batches, fitted, flat, net


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    beside(monkeypatch)


def cell(swarm, model, optimizer, steps):
    """Run the steps of a notebook cell with its Swarm; fewer if the swarm ends."""
    for batch in batches(steps):
        if swarm.finished:
            return
        fitted(model, batch)
        optimizer.step()
        optimizer.zero_grad()
        swarm.step()


def test_running_a_cell_again_closes_and_frees_the_earlier_swarm(tmp_path):
    """In the middle of a round, whose steps so far go to the node. Its hooks are removed with it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Node(tmp_path, model, rounds=3, steps=4, optimizer="sgd", mix="pet") as node:
        swarm = Swarm(tmp_path, model=model, optimizer=optimizer)
        cell(swarm, model, optimizer, 3)
        freed, stepped = weakref.ref(swarm), flat(model)
        swarm = Swarm(tmp_path, model=model, optimizer=optimizer)
        gc.collect()
        assert freed() is None
        cell(swarm, model, optimizer, 100)
        assert swarm.finished
        swarm.close()
    assert torch.equal(node.before[0], stepped)
    assert node.steps == 3 + 2 * 4


def test_a_script_that_is_refused_leaves_the_settings_of_a_task_s_node(tmp_path, monkeypatch):
    """Else the node would wait for a script from then on, and do no local steps of its task."""
    place, started = RunDir.create(tmp_path / "n"), []
    place.write_config(NodeConfig())

    class Child:
        def __init__(self, folder):
            self.folder = folder

        def start(self):
            started.append(RunDir(self.folder).read_config().script)
            return self

        def stop(self):
            started.append("stopped")

    def refused(*_arguments):
        raise ConfigError("weight has shape (1, 4), the swarm's has (1, 8)")

    monkeypatch.setattr("starling.node.script.swarm.child_node.Node", Child)
    monkeypatch.setattr("starling.node.script.swarm.Member", refused)
    monkeypatch.setattr("starling.node.script.swarm.started", start_node)
    model = net()
    with pytest.raises(ConfigError, match="has shape"):
        Swarm(place.path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert started == [True, "stopped"]
    assert place.read_config() == NodeConfig()


def test_what_a_node_did_in_an_earlier_run_is_not_said_of_one_that_starts(tmp_path):
    place = RunDir.create(tmp_path / "n")
    place.keep_final(FinalStatus(ended="left", snapshot=snapshot(state="leaving")))
    assert Running(place.path, None).doing() == ""


def test_a_closed_swarm_takes_no_step(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Node(tmp_path, model):
        first = Swarm(tmp_path, model=model, optimizer=optimizer)
        assert not first.finished
        second = Swarm(tmp_path, model=model, optimizer=optimizer)
        with pytest.raises(ConfigError, match="this Swarm is closed, or another one took over its optimizer"):
            first.step()
        second.close()


@pytest.mark.parametrize("trains", [True, False])
def test_a_discriminator_may_be_frozen_at_each_step_but_not_for_whole_rounds(tmp_path, trains):
    """Loops of GANs freeze it before the generator's step. It is mixed all the same."""
    model = nn.ModuleDict({"g": net(), "d": net(1, 5)})
    optimizers = {name: torch.optim.AdamW(part.parameters(), 0.01) for name, part in model.items()}

    def step(name, *, frozen):
        model["d"].requires_grad_(requires_grad=not frozen)
        optimizers[name].zero_grad()
        x, y = next(batches(1))
        mse_loss(model["d"](x) * model["g"](x), y).backward()
        optimizers[name].step()

    with Node(tmp_path, model, rounds=3, steps=2) as node:
        swarm = Swarm(tmp_path, model=model, optimizer=[*optimizers.values()])
        with nullcontext() if trains else pytest.raises(ConfigError, match=r"^d\.0\.weight was frozen for a whole round"):
            while not swarm.finished:
                if trains:
                    step("d", frozen=False)
                step("g", frozen=True)
                swarm.step()
        swarm.close()
    if trains:
        assert torch.equal(flat(model), node.after[-1])
    assert len(node.after) == (3 if trains else 1)


@pytest.mark.parametrize("make", [Swarm, Swarm.create])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["torchrun", "initialised"])
def test_ranks_of_a_distributed_run_cannot_be_members(tmp_path, monkeypatch, make, rank, how):
    """Each rank would start a node; and where gradients are shared, a rank mixed alone would differ from the others."""
    if how == "torchrun":
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
    else:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    model = net()
    with pytest.raises(ConfigError, match=rf"^this is rank {rank} of 2, .* make starling\.integrations\.distributed\.Swarm"):
        make(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_one_rank_alone_is_a_member(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    model = net()
    with Node(tmp_path, model):
        Swarm(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).close()
