"""Gradients in pieces, in less precision and under short memory are those of the whole batch; what layers draw is of the step."""

from typing import NamedTuple

import msgspec
import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import bind, layout
from starling.node.config.schema import NumericsSection, PrivacySection
from starling.node.engine.engine import Engine
from starling.node.engine.numerics import Gradients, part, samples
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened, opening, refused_as, x_of

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Fit:
    """Mean squared error of a small network, which runs out of memory beyond `most` samples."""

    def __init__(self, most=10**6, error=FULL):
        self.most, self.error, self.sizes = most, error, []

    def loss(self, model, batch):
        x, y = batch
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise self.error
        return ((model(x) - y) ** 2).mean()


def gradient_of(task, batch, *, dropout=0.0, seed=3, **keys):
    chance = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))
    x, gradient = bind(model, layout(model))
    x.copy_(torch.randn(x.numel(), generator=chance))
    resets = []
    computed = Gradients(NumericsSection(**keys), task, model, "cpu")
    before = torch.random.get_rng_state()
    loss = computed.compute(batch, gradient, seed, lambda: resets.append(1))
    assert torch.equal(before, torch.random.get_rng_state())
    return gradient, loss, computed.micro_batch, len(resets)


def batch_of(count):
    chance = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=chance), torch.randn(count, 2, generator=chance)


@pytest.mark.parametrize("micro_batch", [1, 3, 8, 11, 12, 100])
def test_micro_batches_add_up_to_the_gradient_of_the_batch(micro_batch):
    """Also where the last one is smaller: it counts by its samples."""
    whole, loss, *_ = gradient_of(Fit(), batch_of(12))
    task = Fit()
    ours, own, *_ = gradient_of(task, batch_of(12), micro_batch=micro_batch)
    torch.testing.assert_close((ours, own), (whole, loss), rtol=1e-5, atol=1e-6)
    assert max(task.sizes) == min(micro_batch, 12)
    assert sum(task.sizes) == 12


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory: you tried to allocate"
        ),
        MemoryError(),
    ],
)
def test_a_batch_that_does_not_fit_is_halved_until_it_does_and_said_once(error, capsys):
    whole, *_ = gradient_of(Fit(), batch_of(12))
    task = Fit(3, error)
    ours, _, found, resets = gradient_of(task, batch_of(12))
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-6)
    assert (task.sizes, found, resets) == ([12, 6, 3, 3, 3, 3], 3, 2)
    assert capsys.readouterr().err.splitlines()[-1].endswith("`--set numerics.micro_batch=3` begins with that")


def test_an_error_of_another_kind_is_the_task_s():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradient_of(Fit(0, RuntimeError("mat1 and mat2 shapes cannot be multiplied")), batch_of(4))


def test_what_does_not_fit_one_sample_at_a_time_is_said_in_one_line():
    with pytest.raises(ConfigError, match=r"numerics\.micro_batch: a single sample.*smaller model") as error:
        gradient_of(Fit(0), batch_of(4))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(4, 2), 4),
        ((torch.zeros(4), [torch.ones(4, 3)]), 4),
        ({"x": torch.zeros(4), "name": "a"}, 4),
        (Pair(torch.zeros(4), torch.zeros(4)), 4),
        ((torch.zeros(4), torch.zeros(3)), None),
        ((torch.zeros(4), torch.tensor(1.0)), None),
        ("text", None),
    ],
)
def test_a_batch_is_split_where_all_its_tensors_have_one_length(batch, count):
    assert samples(batch) == count
    if count is not None:
        first = part(batch, 1, 3)
        assert samples(first) == 2
        assert type(first) is type(batch)


def test_what_layers_draw_is_of_the_seed_and_torch_s_own_chance_is_left_alone():
    one, other, another = (gradient_of(Fit(), batch_of(6), dropout=0.5, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, another)


def test_autocast_computes_in_bfloat16_and_leaves_parameters_and_gradients_in_float32():
    seen = []

    class Watching(Fit):
        def loss(self, model, batch):
            seen.append(model(batch[0]).dtype)
            return super().loss(model, batch)

    whole, loss, *_ = gradient_of(Fit(), batch_of(32))
    ours, own, *_ = gradient_of(Watching(), batch_of(32), precision="bfloat16")
    assert seen == [torch.bfloat16]
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, whole)
    assert float((ours - whole).norm() / whole.norm()) < 0.03
    assert own == pytest.approx(loss, rel=0.03)


@pytest.mark.parametrize("numerics", [{"micro_batch": 5}, {"precision": "bfloat16"}])
def test_a_node_with_other_numerics_learns_what_the_swarm_learns(numerics):
    agreed = manifest()
    plain, own = opened(agreed), Engine(clock=lambda: 0.0)
    done(own, msgspec.structs.replace(opening(agreed), numerics=NumericsSection(**numerics)))
    losses = [done(each, calls.Train(0, 20)).figures.loss for each in (plain, own)]
    moved = x_of(plain) - opened(agreed).vector
    assert not torch.equal(x_of(plain), x_of(own))
    assert float((x_of(plain) - x_of(own)).norm()) < 0.05 * float(moved.norm())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_what_a_machine_or_a_model_has_not_is_refused_in_one_line(monkeypatch):
    def refused(words, agreed=None, **keys):
        asked = msgspec.structs.replace(opening(agreed or manifest()), **keys)
        refused_as("config", Engine().handle(asked), words)

    bf16 = NumericsSection(precision="bfloat16")
    refused("bfloat16 is for models in float32", manifest("quadratic"), numerics=bf16)
    refused("numerics: with privacy.noise", numerics=bf16, privacy=PrivacySection(noise=1.0))
    monkeypatch.setattr("starling.node.engine.numerics.has_precision", lambda *_: False)
    refused("cpu of this machine has no bfloat16; leave it out", numerics=bf16)
