"""Users' own tasks: modules that cannot be copied, losses that are None, metrics of rare classes. Each runs, or is refused in one line."""

import pytest
import torch
from safetensors.torch import load_file

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NumericsSection, OptimizerSection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, opened, refused_as, run
from tests.harness.own_tasks import Followed, Initialised, Kept, X

OPTIMIZER = OptimizerSection(lr=0.05, schedule="constant")


def agreed(name):
    return manifest(f"tests.harness.own_tasks:{name}", nodes=1, mix="dsgd", optimizer=OPTIMIZER)


def exported(engine, file):
    done(engine, calls.Save(str(file)))
    return load_file(file)


@pytest.mark.parametrize("name", ["kept", "hooked", "initialised", "followed"])
def test_a_module_that_cannot_be_copied_trains_and_is_evaluated_and_exported(name, tmp_path):
    engine = opened(agreed(name))
    begun = done(engine, calls.Evaluate()).loss
    loss = done(engine, calls.Train(0, 60)).figures.loss
    ended = done(engine, calls.Evaluate())
    assert ended.loss < 0.5 * begun
    assert loss < begun
    assert all(torch.isfinite(each).all() for each in exported(engine, tmp_path / "model.safetensors").values())


def test_steps_between_slices_of_an_evaluation_change_nothing_of_it():
    """The model is evaluated as it was at the start of the evaluation, although its modules train meanwhile."""
    alone, beside = (opened(agreed("kept")) for _ in range(2))
    for engine in (alone, beside):
        done(engine, calls.Train(0, 5))
    expected = done(alone, calls.Evaluate())
    assert beside.handle(calls.Evaluate()) is None
    assert beside.handle(calls.Train(1, 40)) is None
    replies = []
    while beside.busy:
        replies.append(beside.step())
    assert next(reply for reply in replies if isinstance(reply, calls.Evaluated)) == expected
    assert done(alone, calls.Train(1, 40)).figures == next(reply.figures for reply in replies if isinstance(reply, calls.Trained))


def test_the_smoke_test_of_a_task_leaves_its_model_unchanged():
    """First-batch behaviour and a teacher's updates begin with the first local step."""
    torch.manual_seed(0)
    initial = opened(agreed("initialised")).vector
    assert float(initial[:6].abs().max()) == 0.0
    assert Initialised().begun is False
    engine, fresh = opened(agreed("followed")), Followed()
    done(engine, calls.Train(0, 1))
    assert fresh.teacher.weight.requires_grad is False
    assert Kept().seen is None


def test_a_step_without_a_loss_is_skipped_and_counted():
    engine = opened(agreed("skipping"))
    before = engine.vector
    trained = done(engine, calls.Train(0, 20))
    assert (trained.undone, trained.figures.local_steps) == (10, 20)
    assert trained.figures.loss > 0.0
    assert not torch.equal(engine.vector, before)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lossless", "loss() must return a scalar tensor with a gradient, got a NoneType"),
        ("hidden_weights", "loss() has trainable weights that are not the model's, of shape"),
        ("one_class", "the metric failed: ValueError: only one class is present"),
    ],
)
def test_tasks_that_cannot_train_or_evaluate_are_refused_in_one_line(name, words):
    refused_as("config", Worker(clock=lambda: 0.0).handle(open_request(agreed(name))), words)


def test_a_metric_that_fails_on_the_first_batch_is_measured_on_all():
    """Held-out samples are sorted by class, so only the last batch has a rare one."""
    result = done(opened(agreed("rare")), calls.Evaluate())
    assert result.value in {0.0, 1.0}
    assert result.others == {"share": pytest.approx(0.02)}
    assert result.samples == len(X)


def test_an_evaluation_without_a_figure_is_refused_and_training_continues():
    engine = opened(agreed("wide_later"))
    refused_as("config", run(engine, calls.Evaluate()), "metrics: wide must give one number, got a Tensor of shape")
    assert done(engine, calls.Train(0, 5)).undone == 0
    assert isinstance(run(engine, calls.Evaluate()), calls.Evaluated)


@pytest.mark.parametrize("key", ["micro_batch", "noise_every"])
def test_micro_batches_of_a_loss_that_is_no_mean_are_refused_at_opening(key):
    call = open_request(agreed("weighted"))
    asked = calls.Open(call.manifest, "", 0, "cpu", 1, "", "a", numerics=NumericsSection(**{key: 4}))
    refused_as("config", Worker(clock=lambda: 0.0).handle(asked), f"numerics.{key}: the loss of a batch is no mean")


def test_an_engine_reports_its_operation_when_user_code_raises():
    engine = opened(agreed("failing"))
    assert engine.handle(calls.Train(0, 20)) is None
    with pytest.raises(KeyError, match="a rare word"):
        list(iter(engine.step, "never"))
    assert engine.during == "local step 5"


def test_a_parameter_replaced_during_training_ends_it_by_name():
    """It would train unseen by peers, and checkpoints would hold its old values."""
    engine = opened(agreed("kept"))
    done(engine, calls.Train(0, 1))
    name, parameter = next(iter(engine.trainer.model.module.named_parameters()))
    parameter.data = parameter.data.clone()
    with pytest.raises(ConfigError, match=f"parameter {name} was replaced"):
        run(engine, calls.Train(1, 100))
