"""A model and its flat vector share memory, and equal schemas give equal layouts."""

import math

import pytest
import torch
from torch import nn

from starling.gossip.rng import generator
from starling.gossip.vector import SAMPLED, as_named, bind, finite, layout, swap


def model(hidden=5, bias=True):
    return nn.Sequential(nn.Linear(3, hidden, bias=bias), nn.Tanh(), nn.Linear(hidden, 2))


def gaussian(*shape):
    return torch.randn(*shape, generator=generator(0, "vector"))


def test_the_layout_concatenates_parameters_in_order_of_definition():
    plan = layout(model())
    assert plan.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert plan.offsets == (0, 15, 20, 30, 32)
    assert plan.dim == 32


def test_binding_keeps_the_values():
    net = model()
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    plan = layout(net)
    flat, grads = bind(net, plan)
    assert flat.is_contiguous()
    assert not grads.any()
    for name, value in as_named(flat, plan).items():
        assert torch.equal(value, before[name])


def test_gradients_arrive_flat_and_add_up():
    net, other = model(), model()
    other.load_state_dict(net.state_dict())
    flat, grads = bind(net, layout(net))
    x = gaussian(7, 3)
    for _ in range(2):
        net(x).square().sum().backward()
        other(x).square().sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in other.parameters()])
    assert torch.equal(grads, expected)
    grads.zero_()
    assert all(not parameter.grad.any() for parameter in net.parameters())
    assert net[0].weight.grad.data_ptr() == grads.data_ptr()
    assert flat.data_ptr() == net[0].weight.data_ptr()


def test_a_step_on_the_vector_steps_the_model():
    net, other = model(), model()
    other.load_state_dict(net.state_dict())
    flat, grads = bind(net, layout(net))
    x = gaussian(7, 3)
    net(x).square().sum().backward()
    other(x).square().sum().backward()
    flat.add_(grads, alpha=-0.1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
    assert torch.equal(flat, torch.cat([parameter.detach().reshape(-1) for parameter in other.parameters()]))


def test_shared_parameters_appear_once_and_stay_shared():
    net = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    net["b"].weight = net["a"].weight
    plan = layout(net)
    flat, _ = bind(net, plan)
    assert plan.dim == 16
    flat.fill_(2.0)
    assert (net["b"].weight == 2.0).all()


def test_frozen_parameters_are_not_exchanged():
    net = model()
    net[0].weight.requires_grad_(False)
    assert layout(net).names == ("0.bias", "2.weight", "2.bias")


def test_named_and_flat_are_inverse():
    plan = layout(model())
    flat = gaussian(plan.dim)
    named = as_named(flat, plan)
    assert torch.equal(torch.cat([named[name].reshape(-1) for name in plan.names]), flat)
    assert named["2.bias"].data_ptr() == flat[30:].data_ptr()


def test_the_digest_distinguishes_exactly_the_layouts():
    digest = layout(model()).digest
    assert len(digest) == 16
    assert digest == layout(model()).digest == layout(model().double()).digest
    assert digest != layout(model(hidden=6)).digest
    assert digest != layout(model(bias=False)).digest
    renamed = nn.ModuleDict({"0": nn.Linear(3, 5), "3": nn.Linear(5, 2)})
    assert digest != layout(renamed).digest


def test_the_layout_digest_is_golden():
    assert layout(model()).digest.hex() == DIGEST


DIGEST = "a10478f4c730c8918a84f5e1db43e5a0"


def test_parameters_of_another_dtype_than_the_vectors_cannot_be_views():
    net = model()
    net[0].double()
    assert layout(net).dtype == torch.float64
    with pytest.raises(ValueError, match="cannot be views"):
        bind(net, layout(net))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no trainable parameters; set requires_grad"):
        layout(nn.Tanh())


def test_a_foreign_layout_is_refused():
    with pytest.raises(ValueError, match="another model"):
        bind(model(), layout(model(hidden=6)))


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match="flat must be"):
        as_named(torch.zeros(31), layout(model()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_finite_numbers_with_an_overflowing_sum_count_as_finite(dtype):
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 1
    assert finite(torch.full((3, 5), largest, dtype=dtype))
    assert finite(torch.zeros(0, dtype=dtype))


@pytest.mark.parametrize("bad", [(math.inf,), (math.nan,), (math.inf, -math.inf), (-math.inf, -math.inf)])
def test_a_single_non_finite_number_is_found(bad):
    x = gaussian(1000)
    x[torch.tensor([7, 500])[: len(bad)]] = torch.tensor(bad)
    assert not finite(x)


@pytest.mark.parametrize("dim", [1, SAMPLED, 2 * SAMPLED + 1])
def test_vectors_are_swapped_whole_and_one_with_itself_is_unchanged(dim):
    a, b = torch.arange(dim), -torch.arange(dim)
    swap(a, b)
    assert torch.equal(a, -torch.arange(dim))
    assert torch.equal(b, torch.arange(dim))
    swap(a, a)
    assert torch.equal(a, -torch.arange(dim))
