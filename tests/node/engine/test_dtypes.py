"""Models of other dtypes than float32: their vector is float32, so steps and exchanges lose nothing; the model keeps its dtypes."""

from pathlib import Path

import pytest
import torch
from msgspec import structs

import tests
from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.engine import tensor_file
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate.matrix.problem import problem
from tests.harness.engines import done, every, exchange, island, manifest, open_request, opened, refused_as, x_of
from tests.harness.side_tasks import MODELS

KIND = "tests.harness.side_tasks:Beside"
OTHER = ["bfloat16", "mixed", "float16", "complex"]
WHOLE = CompressSection(request="identity", response="identity", select="full")


def agreed(network, **keys):
    return manifest(KIND, params={"network": network}, nodes=2, compress=WHOLE, **keys)


def module(engine):
    return engine.trainer.model.module


@pytest.mark.parametrize("network", OTHER)
def test_the_vector_is_float32_and_the_model_keeps_its_dtypes(network):
    engine = opened(agreed(network, optimizer=OptimizerSection(kind="adamw", lr=0.01)))
    made = dict(MODELS[network]().named_parameters())
    before = done(engine, calls.Evaluate())
    for turn in range(4):
        assert done(engine, calls.Train(turn, 20)).undone == 0
        done(engine, calls.Mix(turn))
    after = done(engine, calls.Evaluate())
    assert x_of(engine).dtype == torch.float32
    assert {name: each.dtype for name, each in module(engine).named_parameters()} == {n: p.dtype for n, p in made.items()}
    assert after.value > max(0.5, before.value)


@pytest.mark.parametrize("network", OTHER)
def test_two_nodes_average_in_float32(network):
    engines = {peer: opened(agreed(network), shard, peer) for shard, peer in enumerate("ab")}
    every(engines, calls.Train(0, 3))
    middle = (x_of(engines["a"]) + x_of(engines["b"])) / 2
    exchange(engines, "a", "b", seq=1, round=0)
    every(engines, calls.Mix(0))
    assert torch.allclose(x_of(engines["a"]), middle, atol=1e-6)
    if network != "complex":
        assert not torch.equal(middle, middle.bfloat16().float())


@pytest.mark.parametrize("network", OTHER)
def test_a_restart_goes_on_with_the_same_bits(network, tmp_path):
    made = agreed(network)
    engine = opened(made, checkpoint=tmp_path / "c")
    done(engine, calls.Train(0, 3))
    done(engine, calls.Mix(0))
    done(engine, calls.Stop())
    again = opened(made, checkpoint=tmp_path / "c")
    for each in (engine, again):
        done(each, calls.Train(1, 3))
    assert torch.equal(x_of(again), x_of(engine))
    assert done(again, calls.Evaluate()).loss == done(engine, calls.Evaluate()).loss


@pytest.mark.parametrize("network", OTHER)
def test_an_export_has_the_model_s_dtypes_and_is_a_valid_initial_model(network, tmp_path):
    engine = opened(agreed(network))
    done(engine, calls.Train(0, 3))
    done(engine, calls.Save(str(tmp_path / "m")))
    tensors, _ = tensor_file.load(tmp_path / "m")
    assert {name: each.dtype for name, each in tensors.items()} == {n: p.dtype for n, p in module(engine).named_parameters()}
    made = agreed(network)
    started = opened(structs.replace(made, task=made.task.changed(start=str(tmp_path / "m"))))
    for ours, theirs in zip(module(started).parameters(), tensors.values(), strict=True):
        assert torch.equal(ours, tensors[next(n for n, p in module(started).named_parameters() if p is ours)])
        assert theirs.numel()


@pytest.mark.parametrize("network", ["mixed", "complex"])
def test_micro_batches_add_up_in_the_vectors_precision(network):
    whole, parts = opened(agreed(network)), Worker(clock=lambda: 0.0)
    call = open_request(agreed(network))
    done(parts, structs.replace(call, numerics=structs.replace(call.numerics, micro_batch=8)))
    for each in (whole, parts):
        done(each, calls.Train(0, 1))
    torch.testing.assert_close(x_of(parts), x_of(whole), rtol=1e-2, atol=1e-3)
    assert not torch.equal(x_of(parts), opened(agreed(network)).vector)


@pytest.mark.parametrize("network", OTHER)
def test_simulations_of_rows_take_the_same_first_step(network):
    engine = opened(agreed(network))
    many = problem(agreed(network), ["a", "b"])
    gradients = many.gradients(torch.tensor([0, 1]), torch.tensor([0, 0]), many.start.repeat(2, 1))
    engine.trainer.step(0)
    torch.testing.assert_close(gradients[0], engine.trainer.model.gradient)


@pytest.mark.parametrize("network", ["mixed", "complex"])
def test_stacked_rows_equal_single_rows(network):
    labels = [f"node-{row}" for row in range(4)]
    many, alone = problem(agreed(network), labels, stack_from=4), problem(agreed(network), labels)
    assert many.stacks
    arguments = torch.arange(4), torch.zeros(4, dtype=torch.int64), many.start.repeat(4, 1)
    torch.testing.assert_close(many.gradients(*arguments), alone.gradients(*arguments), rtol=2e-2, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mixed", pytest.param("complex", marks=pytest.mark.acceptance)])
def test_ranks_of_an_island_compute_models_of_other_dtypes(network):
    alone = opened(agreed(network))
    with island(agreed(network), code=str(Path(tests.__file__).parent.parent)) as together:
        for each in (alone, together):
            done(each, calls.Train(0, 2))
        torch.testing.assert_close(x_of(together), x_of(alone), rtol=2e-2, atol=2e-3)


def test_float64_models_are_bound_as_before():
    engine = opened(agreed("float64"))  # plus a head in float32
    assert x_of(engine).dtype == torch.float64
    done(engine, calls.Train(0, 2))


@pytest.mark.slow
def test_private_gradients_of_mixed_models_are_of_the_models_numbers():
    call = open_request(agreed("mixed"))
    engine = Worker(clock=lambda: 0.0)
    done(engine, structs.replace(call, privacy=structs.replace(call.privacy, noise=0.01)))
    before = x_of(engine).clone()
    assert done(engine, calls.Train(0, 2)).undone == 0
    assert not torch.equal(x_of(engine), before)


def test_an_unsupported_dtype_gives_one_line():
    refused_as(
        "config",
        Worker().handle(open_request(agreed("float8"))),
        "parameter inner.weight is float8_e4m3fn, which is not trained here; make",
    )
