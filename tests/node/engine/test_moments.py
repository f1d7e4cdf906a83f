"""Adam's moments in less than float32: errors that a short run would not show, and their storage in checkpoints."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NumericsSection, OptimizerSection
from starling.node.engine import tensor_file
from starling.node.engine.moments import BLOCK, FAMILY, Bfloat16, Int8, by_chance, kept
from starling.node.engine.optimizers import optimizer
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, refused_as, x_of
from tests.strategies import examples, seeds

FORMS = {"bfloat16": Bfloat16(), "int8": Int8()}


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def through(form, name, values, seed=0):
    """Write values and return them as read back."""
    tensors = {each: torch.empty(count, dtype=dtype) for each, (count, dtype) in form.forms(name, len(values)).items()}
    form.write(tensors, name, 0, values, chance(seed))
    return form.read(tensors, name, 0, len(values))


def followed(keep):
    """Return the root of a second moment over its ideal value, 2,000 steps after gradients fell to a tenth."""
    draw = chance(1)
    held = exact = torch.ones(1024)
    for _ in range(2000):
        square = (0.1 * torch.randn(1024, generator=draw)).square()
        exact = exact * 0.999 + 0.001 * square
        held = keep(held * 0.999 + 0.001 * square, draw)
    return float(held.sqrt().mean() / exact.sqrt().mean())


def test_a_second_moment_falls_with_the_gradients():
    """With rounding to nearest it could not fall: a change by a thousandth is less than half a step of bfloat16."""
    assert followed(lambda v, _: v.to(torch.bfloat16).float()) > 2.0
    assert followed(lambda v, draw: by_chance(v, draw).float()) == pytest.approx(1.0, abs=0.03)
    assert followed(lambda v, _: through(Int8(), "exp_avg_sq", v)) < 1.4


@examples(30)
@given(seed=seeds, size=st.integers(1, 3 * BLOCK), spread=st.floats(0.0, 12.0))
def test_an_8_bit_second_moment_is_never_0_and_a_first_one_keeps_its_sign(seed, size, spread):
    """A step divides by its root, so it may not become 0 beside large values of its block."""
    values = torch.randn(size, generator=chance(seed)) * 10.0 ** (-spread * torch.rand(size, generator=chance(seed + 1)))
    assert (through(Int8(), "exp_avg_sq", values.square()) > 0.0).all()
    first = through(Int8(), "exp_avg", values)
    assert ((first == 0.0) | (first.sign() == values.sign())).all()
    assert (first - values).abs().max() <= values.abs().max() / 100


def test_random_rounding_is_to_an_adjacent_value_and_unbiased():
    values = torch.full((100_000,), 1.0 + 2.0**-9)  # a quarter of the way between two numbers of bfloat16
    rounded = by_chance(values, chance()).float()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert float(rounded.mean()) == pytest.approx(1.0 + 2.0**-9, abs=1e-4)
    exact = torch.tensor([0.0, -1.5, 2.0**-120, 3.0])
    assert torch.equal(by_chance(exact, chance()).float(), exact)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", FAMILY)
def test_steps_stay_close_to_those_with_float32(kind, form):
    draw, minimum = chance(2), torch.linspace(-1.0, 1.0, 600)
    ends = []
    for moments in ("float32", form):
        x = torch.zeros(600)
        stepper = optimizer(OptimizerSection(kind=kind), x, moments=moments)
        for _ in range(200):
            stepper.step(x, x - minimum, 0.02, chance=draw)
        ends.append(x)
    assert not torch.equal(*ends)
    torch.testing.assert_close(ends[1], ends[0], rtol=0.0, atol=0.05)


@pytest.mark.parametrize("moments", FORMS)
def test_long_vectors_are_stored_like_short_ones(moments, monkeypatch):
    ends = []
    for stretch in (10_000, 512):
        monkeypatch.setattr("starling.node.engine.stretches.STRETCH", stretch)
        x, draw = torch.zeros(1100), chance(3)
        stepper = optimizer(OptimizerSection(kind="adamw"), x, moments=moments)
        for _ in range(5):
            stepper.step(x, torch.randn(1100, generator=chance(4)), 0.01, chance=draw)
        ends.append((x, stepper.state_dict()))
    (one, held), (other, also) = ends
    assert held.keys() == also.keys()
    assert {name: tensor.dtype for name, tensor in held.items()} == {name: tensor.dtype for name, tensor in also.items()}
    if moments == "int8":
        assert torch.equal(one, other)  # otherwise random numbers would be drawn in another order


@pytest.mark.parametrize("moments", FORMS)
def test_steps_go_on_from_a_checkpoint_with_the_same_bits(moments):
    """Random rounding is derived from the step's number, so no generator state is stored."""
    ends = []
    for resumed in (False, True):
        x = torch.zeros(700)
        stepper = optimizer(OptimizerSection(kind="adamw"), x, moments=moments)
        for step in range(6):
            if resumed and step == 3:
                saved = {name: tensor.clone() for name, tensor in stepper.state_dict().items()}
                stepper = optimizer(OptimizerSection(kind="adamw"), x, moments=moments)
                stepper.load(saved)
            stepper.step(x, torch.randn(700, generator=chance(step)), 0.01, chance=chance(100 + step))
        ends.append(x)
    assert torch.equal(*ends)


def test_a_checkpoint_with_other_moments_is_recognised():
    x = torch.zeros(700)
    stepper = optimizer(OptimizerSection(kind="adamw"), x, moments="int8")
    stepper.step(x, torch.ones(700), 0.01)
    for moments in ("float32", "bfloat16"):
        with pytest.raises(ValueError, match="optimizer state"):
            optimizer(OptimizerSection(kind="adamw"), x, moments=moments).load(stepper.state_dict())


@pytest.mark.parametrize("moments", FORMS)
def test_moments_are_stored_in_the_configured_format(moments, tmp_path):
    agreed = manifest("synthetic", optimizer=OptimizerSection(kind="adamw", lr=0.01))
    engine = Worker(clock=lambda: 0.0)
    asked = open_request(agreed, checkpoint=tmp_path / "checkpoint")
    done(engine, structs.replace(asked, numerics=NumericsSection(moments=moments)))
    done(engine, calls.Train(0, 5))
    done(engine, calls.Mix(0))
    done(engine, calls.Save())
    saved = tensor_file.tensors((tmp_path / "checkpoint").read_bytes())
    kept_as = {str(tensor.dtype) for name, tensor in saved.items() if "exp_avg" in name}
    assert f"torch.{moments}" in kept_as
    assert torch.isfinite(x_of(engine)).all()


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "muon"])
def test_moment_formats_are_refused_for_other_optimisers_than_adam_s(kind):
    with pytest.raises(ConfigError, match=r"numerics\.moments: int8 .* leave it out"):
        kept("int8", kind)
    assert kept("float32", kind) is None
    if kind != "muon":
        asked = structs.replace(open_request(manifest(optimizer=OptimizerSection(kind=kind))), numerics=NumericsSection(moments="int8"))
        refused_as("config", Worker(clock=lambda: 0.0).handle(asked), "numerics.moments")
