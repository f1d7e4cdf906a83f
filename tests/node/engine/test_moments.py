"""Adam's moments in less than float32: what a short run would not show, and what a checkpoint keeps of them."""

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
from tests.harness.engines import done, manifest, opening, refused_as, x_of
from tests.strategies import examples, seeds

FORMS = {"bfloat16": Bfloat16(), "int8": Int8()}


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def through(form, name, values, seed=0):
    """What is read of values that were written."""
    tensors = {each: torch.empty(count, dtype=dtype) for each, (count, dtype) in form.forms(name, len(values)).items()}
    form.write(tensors, name, 0, values, chance(seed))
    return form.read(tensors, name, 0, len(values))


def followed(keep):
    """Root of a second moment over what it should be, 2,000 steps after gradients became a tenth."""
    draw = chance(1)
    held = exact = torch.ones(1024)
    for _ in range(2000):
        square = (0.1 * torch.randn(1024, generator=draw)).square()
        exact = exact * 0.999 + 0.001 * square
        held = keep(held * 0.999 + 0.001 * square, draw)
    return float(held.sqrt().mean() / exact.sqrt().mean())


def test_a_second_moment_follows_gradients_down():
    """Rounded to the nearest it is a ratchet: a thousandth of it is less than half a step of bfloat16."""
    assert followed(lambda v, _: v.to(torch.bfloat16).float()) > 2.0
    assert followed(lambda v, draw: by_chance(v, draw).float()) == pytest.approx(1.0, abs=0.03)
    assert followed(lambda v, _: through(Int8(), "exp_avg_sq", v)) < 1.4


@examples(30)
@given(seed=seeds, size=st.integers(1, 3 * BLOCK), spread=st.floats(0.0, 12.0))
def test_an_8_bit_second_moment_is_never_0_and_a_first_one_keeps_its_sign(seed, size, spread):
    """A step divides by the root of the one, so it may not vanish beside large ones of its block."""
    values = torch.randn(size, generator=chance(seed)) * 10.0 ** (-spread * torch.rand(size, generator=chance(seed + 1)))
    assert (through(Int8(), "exp_avg_sq", values.square()) > 0.0).all()
    first = through(Int8(), "exp_avg", values)
    assert ((first == 0.0) | (first.sign() == values.sign())).all()
    assert (first - values).abs().max() <= values.abs().max() / 100


def test_rounding_by_chance_is_to_a_neighbour_and_right_in_the_mean():
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
        assert torch.equal(one, other)  # else chance is drawn in another order


@pytest.mark.parametrize("moments", FORMS)
def test_steps_go_on_from_a_checkpoint_with_the_same_bits(moments):
    """Chance is that of the step's number, so it need not be stored."""
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
def test_an_engine_keeps_moments_as_its_owner_says(moments, tmp_path):
    agreed = manifest("synthetic", optimizer=OptimizerSection(kind="adamw", lr=0.01))
    engine = Worker(clock=lambda: 0.0)
    asked = opening(agreed, checkpoint=tmp_path / "checkpoint")
    done(engine, structs.replace(asked, numerics=NumericsSection(moments=moments)))
    done(engine, calls.Train(0, 5))
    done(engine, calls.Mix(0))
    done(engine, calls.Save())
    saved = tensor_file.tensors((tmp_path / "checkpoint").read_bytes())
    kept_as = {str(tensor.dtype) for name, tensor in saved.items() if "exp_avg" in name}
    assert f"torch.{moments}" in kept_as
    assert torch.isfinite(x_of(engine)).all()


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "muon"])
def test_only_adam_s_family_has_such_moments(kind):
    with pytest.raises(ConfigError, match=r"numerics\.moments: int8 .* leave it out"):
        kept("int8", kind)
    assert kept("float32", kind) is None
    if kind != "muon":
        asked = structs.replace(opening(manifest(optimizer=OptimizerSection(kind=kind))), numerics=NumericsSection(moments="int8"))
        refused_as("config", Worker(clock=lambda: 0.0).handle(asked), "numerics.moments")
