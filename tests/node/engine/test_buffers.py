"""Models with buffers (running statistics, counters, masks): training does not corrupt them for evaluation, export or a restart."""

import copy
import math

import pytest
import safetensors.torch
import torch
from torch import nn

from starling.node.rpc import calls
from starling.node.simulate.matrix.problem import problem
from starling.node.tasks.api import Source
from starling.node.tasks.evaluate import evaluate
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, x_of
from tests.harness.networks import NETWORKS, Pictures

PICTURES = "tests.harness.networks:Pictures"


def pictures(network, **keys):
    return manifest(PICTURES, params={"network": network}, **keys)


def trained(agreed, rounds=8, checkpoint=""):
    engines = {peer: opened(agreed, shard, peer, checkpoint and f"{checkpoint}-{peer}") for shard, peer in enumerate("ab")}
    for turn in range(rounds):
        every(engines, calls.Train(turn, 5))
        exchange(engines, "a", "b", seq=turn + 1, round=turn)
        every(engines, calls.Mix(turn))
    return engines


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_an_exported_model_loads_strictly_scores_as_reported_and_does_not_affect_training(network, tmp_path):
    agreed = pictures(network)
    engine = trained(agreed)["a"]
    before = {name: tensor.clone() for name, tensor in engine.trainer.tensors().items()}
    said = done(engine, calls.Evaluate())
    fresh = NETWORKS[network]()
    done(engine, calls.Save(export=str(tmp_path / "model.safetensors")))
    assert safetensors.torch.load_model(fresh, tmp_path / "model.safetensors", strict=True) == (set(), [])
    data = Pictures(network).data(Source(None, agreed.partition, 0, agreed.seed), "cpu")
    *_, result = evaluate(Pictures(network), fresh, data, 256)
    assert (result.value, result.loss) == (said.value, pytest.approx(said.loss, rel=1e-5))
    assert all(torch.equal(before[name], tensor) for name, tensor in engine.trainer.tensors().items())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_statistics_are_computed_from_training_data_with_the_current_parameters():
    agreed = pictures("resnet")
    engine = trained(agreed, rounds=12)["a"]
    model = copy.deepcopy(engine.trainer.model.module)
    data = Pictures("resnet").data(Source(None, agreed.partition, 0, agreed.seed), "cpu")
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    model.train()
    with torch.no_grad():
        model(data.x)
    *_, best = evaluate(Pictures("resnet"), model, data, 256)
    assert done(engine, calls.Evaluate()).loss == pytest.approx(best.loss, rel=0.1)


def test_buffers_survive_a_restart_and_mismatched_ones_are_refused(tmp_path):
    agreed = pictures("resnet")
    engine = trained(agreed, checkpoint=tmp_path / "checkpoint")["a"]
    done(engine, calls.Stop())
    again = opened(agreed, 0, "a", f"{tmp_path}/checkpoint-a")
    ours, theirs = again.trainer.tensors(), engine.trainer.tensors()
    assert any(name.endswith("running_mean") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert int(ours["buffer.1.num_batches_tracked"]) == 40
    assert done(again, calls.Evaluate()) == done(engine, calls.Evaluate())
    for changed in (
        {name: value for name, value in ours.items() if name != "buffer.1.running_var"},
        ours | {"buffer.1.running_var": torch.zeros(3)},
        ours | {"buffer.more": torch.zeros(3)},
    ):
        with pytest.raises(ValueError, match="buffers"):
            again.trainer.restore(changed, 0)


def test_a_late_joiner_evaluates_the_model_it_took_over(tmp_path):
    """A transfer contains parameters only; the joiner estimates statistics from its own data."""
    agreed = pictures("resnet")
    giver, joiner = trained(agreed, rounds=20)["a"], opened(agreed, 0, "c")
    held = done(giver, calls.Snapshot())
    state = done(giver, calls.ReadChunk(held.snapshot, 0, held.size)).data
    done(joiner, calls.Consider("a", 20, state))
    done(joiner, calls.Agree())
    assert torch.equal(x_of(joiner), x_of(giver))
    ours, theirs = done(joiner, calls.Evaluate()), done(giver, calls.Evaluate())
    assert theirs.value > 0.6
    assert ours.value == pytest.approx(theirs.value, abs=0.05)


def test_undone_steps_and_losses_of_peers_models_do_not_change_buffers():
    """One infinite number in a batch would spoil running statistics for good; buffers belong to the node's own parameters."""
    engine = trained(pictures("resnet"), rounds=4)["a"]
    trainer = engine.trainer
    before = {name: buffer.clone() for name, buffer in trainer.model.side.buffers.items()}
    losses = trainer.losses()(torch.stack([trainer.replica.x, trainer.replica.x + 0.01]))
    assert torch.isfinite(losses).all()
    assert float(losses[0]) < 2.3
    trainer.model.data.x.fill_(math.inf)
    assert done(engine, calls.Train(4, 3)).undone == 3
    assert all(torch.equal(trainer.model.side.buffers[name], buffer) for name, buffer in before.items())


def test_a_model_with_buffers_reports_the_number_of_exchanged_parameters():
    engine = opened(pictures("tied"))
    trainable = 16 * 16 + 16 + 16 + 16 * 10 + 10
    assert engine.vector.numel() == trainable
    assert isinstance(engine.handle(open_request(pictures("tied"))), calls.Refused)


def test_the_matrix_simulation_trains_and_scores_as_a_node_does():
    agreed = pictures("resnet")
    engine = opened(agreed)
    trainer = engine.trainer
    many = problem(agreed, ["a", "b"])
    gradients = many.gradients(torch.tensor([0, 1]), torch.tensor([0, 0]), many.start.repeat(2, 1))
    before = trainer.replica.x.clone()
    trainer.step(0)
    torch.testing.assert_close(gradients[0], trainer.model.gradient)
    assert not torch.equal(before, trainer.replica.x)
    said = done(engine, calls.Evaluate())
    ours, _theirs = many.values(torch.stack([trainer.replica.x, many.start]), [0, 1])
    assert ours == said.value
    assert many.score(trainer.replica.x, [0])[1] == pytest.approx(said.loss, rel=1e-5)


@pytest.mark.slow
def test_many_rows_of_a_normalised_model_are_stacked():
    many = problem(pictures("resnet"), [f"node-{row}" for row in range(4)], stack_from=4)
    alone = problem(pictures("resnet"), [f"node-{row}" for row in range(4)])
    assert many.stacks
    assert not alone.stacks
    arguments = torch.arange(4), torch.zeros(4, dtype=torch.int64), many.start.repeat(4, 1)
    torch.testing.assert_close(many.gradients(*arguments), alone.gradients(*arguments), rtol=1e-3, atol=1e-5)
