"""Models with buffers: running statistics, counters, masks. What training leaves in them must not spoil evaluation, export or a restart."""

import copy
import math

import pytest
import safetensors.torch
import torch
from torch import nn

from starling.node.rpc import calls
from starling.node.simulate.matrix.problem import problem
from starling.node.tasks.api import Source
from starling.node.tasks.evaluate import Result, evaluate
from tests.harness.engines import done, exchange, manifest, opened, opening, x_of
from tests.harness.networks import NETWORKS, Pictures

PICTURES = "tests.harness.networks:Pictures"


def pictures(network, **keys):
    return manifest(PICTURES, params={"network": network}, **keys)


def trained(agreed, rounds=8, checkpoint=""):
    """Two engines after some rounds in which they exchanged."""
    engines = {
        peer: opened(agreed, shard, peer, checkpoint and f"{checkpoint}-{peer}") for shard, peer in enumerate("ab")
    }
    for turn in range(rounds):
        for engine in engines.values():
            done(engine, calls.Train(turn, 5))
        exchange(engines, "a", "b", seq=turn + 1, round=turn)
        for engine in engines.values():
            done(engine, calls.Mix(turn))
    return engines


def exported(engine, path):
    done(engine, calls.Save(export=str(path)))
    return safetensors.torch.load_file(path)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_an_exported_model_loads_strictly_and_scores_as_the_node_said(network, tmp_path):
    """`load_state_dict` of the task's own module, without `strict=False` and without a word about missing keys."""
    agreed = pictures(network)
    engine = trained(agreed)["a"]
    said = done(engine, calls.Evaluate())
    fresh = NETWORKS[network]()
    fresh.load_state_dict(exported(engine, tmp_path / "model.safetensors"), strict=True)
    data = Pictures(network).data(Source(None, agreed.partition, 0, agreed.seed), "cpu")
    *_, result = evaluate(Pictures(network), fresh, data, 256)
    assert isinstance(result, Result)
    assert result.value == said.value
    assert result.loss == pytest.approx(said.loss, rel=1e-5)


def test_statistics_are_those_of_the_training_data_under_the_parameters_of_now():
    """As close to those of all training samples at once as a few hundred samples come."""
    agreed = pictures("resnet")
    engine = trained(agreed, rounds=12)["a"]
    model = copy.deepcopy(engine._session.learner._model)
    data = Pictures("resnet").data(Source(None, agreed.partition, 0, agreed.seed), "cpu")
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    model.train()
    with torch.no_grad():
        model(data.x)
    *_, best = evaluate(Pictures("resnet"), model, data, 256)
    assert done(engine, calls.Evaluate()).loss == pytest.approx(best.loss, rel=0.1)


def test_evaluating_and_exporting_change_nothing_in_training(tmp_path):
    """Statistics are estimated on a copy."""
    engine = trained(pictures("vgg"), rounds=2)["a"]
    before = {name: tensor.clone() for name, tensor in engine._session.learner.tensors().items()}
    done(engine, calls.Evaluate())
    exported(engine, tmp_path / "model.safetensors")
    after = engine._session.learner.tensors()
    assert all(torch.equal(before[name], after[name]) for name in after)


def test_buffers_survive_a_restart(tmp_path):
    agreed = pictures("resnet")
    engine = trained(agreed, checkpoint=tmp_path / "checkpoint")["a"]
    done(engine, calls.Stop())
    again = opened(agreed, 0, "a", f"{tmp_path}/checkpoint-a")
    ours, theirs = again._session.learner.tensors(), engine._session.learner.tensors()
    assert any(name.endswith("running_mean") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert int(ours["buffer.1.num_batches_tracked"]) == 40
    assert done(again, calls.Evaluate()) == done(engine, calls.Evaluate())


def test_a_checkpoint_with_other_buffers_is_refused(tmp_path):
    """One line that says what to do, and nothing is overwritten."""
    agreed, path = pictures("resnet"), tmp_path / "checkpoint"
    engine = opened(agreed, 0, "a", path)
    tensors = engine._session.learner.tensors()
    for changed in (
        {name: value for name, value in tensors.items() if name != "buffer.1.running_var"},
        tensors | {"buffer.1.running_var": torch.zeros(3)},
        tensors | {"buffer.more": torch.zeros(3)},
    ):
        with pytest.raises(ValueError, match="buffers"):
            engine._session.learner.restore(changed, 0)


def test_a_late_joiner_evaluates_the_model_it_took_over(tmp_path):
    """A transfer carries parameters alone; the joiner estimates statistics from its own data, so they fit at once."""
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


def test_a_step_that_is_undone_leaves_nothing_in_the_buffers():
    """A batch with an infinite number makes running statistics infinite, and no later batch would mend them."""
    engine = opened(pictures("resnet"))
    learner = engine._session.learner
    before = {name: buffer.clone() for name, buffer in learner._buffers.items()}
    learner.data.x.fill_(math.inf)
    assert done(engine, calls.Train(0, 3)).undone == 3
    assert all(torch.equal(learner._buffers[name], buffer) for name, buffer in before.items())


def test_losses_of_peers_models_are_measured_without_their_statistics():
    """A rule that goes by losses compares models as in training; our statistics belong to our parameters, and stay as they are."""
    engine = trained(pictures("resnet"), rounds=4)["a"]
    learner = engine._session.learner
    before = {name: buffer.clone() for name, buffer in learner._buffers.items()}
    models = torch.stack([learner.x, learner.x + 0.01])
    losses = learner._losses()(models)
    assert torch.isfinite(losses).all()
    assert float(losses[0]) < 2.3
    assert all(torch.equal(learner._buffers[name], buffer) for name, buffer in before.items())


def test_a_model_with_buffers_opens_and_says_how_many_parameters_travel():
    """Buffers and frozen parameters are no part of what is exchanged."""
    engine = opened(pictures("tied"))
    trainable = 16 * 16 + 16 + 16 + 16 * 10 + 10
    assert engine.vector.numel() == trainable
    assert isinstance(engine.handle(opening(pictures("tied"))), calls.Refused)


def test_the_matrix_simulation_trains_and_scores_as_a_node_does():
    """Local steps normalise by the batch in both; scores have statistics of the row's own data."""
    agreed = pictures("resnet")
    engine = opened(agreed)
    learner = engine._session.learner
    many = problem(agreed, ["a", "b"])
    gradients = many.gradients(torch.tensor([0, 1]), torch.tensor([0, 0]), many.start.repeat(2, 1))
    before = learner.x.clone()
    done(engine, calls.Train(0, 1))
    torch.testing.assert_close(gradients[0], learner._gradient)
    assert not torch.equal(before, learner.x)
    said = done(engine, calls.Evaluate())
    ours, _theirs = many.values(torch.stack([learner.x, many.start]), [0, 1])
    assert ours == said.value
    assert many.score(learner.x, [0])[1] == pytest.approx(said.loss, rel=1e-5)


@pytest.mark.slow
def test_many_rows_of_a_normalised_model_are_stacked():
    """`torch.func` cannot change running statistics, so local steps have none."""
    many = problem(pictures("resnet"), [f"node-{row}" for row in range(4)], stack_from=4)
    alone = problem(pictures("resnet"), [f"node-{row}" for row in range(4)])
    assert many.stacks
    assert not alone.stacks
    arguments = torch.arange(4), torch.zeros(4, dtype=torch.int64), many.start.repeat(4, 1)
    torch.testing.assert_close(many.gradients(*arguments), alone.gradients(*arguments), rtol=1e-3, atol=1e-5)
