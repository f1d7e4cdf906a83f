"""A model of any dtype follows its vector, and the vector keeps changes that are too small for the model's dtype."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from starling.gossip.binding import LOOKS, Bound, Mastered, as_parameters, bound
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import as_named, layout, trainable

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
REAL = DTYPES[:2]
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
models = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=5)


def model(drawn, seed=0):
    """Draw parameters of several dtypes and shapes."""
    chance = generator(seed, "binding")
    values = [torch.randn(shape, generator=chance, dtype=torch.complex128) for _, shape in drawn]
    values = [each if dtype.is_complex else each.real for (dtype, _), each in zip(drawn, values, strict=True)]
    return nn.ParameterDict({f"p{at}": nn.Parameter(each.to(drawn[at][0])) for at, each in enumerate(values)})


def losses(net, factor=1.0):
    """Return a sum of squares whose gradient at every number is its value times twice the factor."""
    return sum((each.abs().double().square().sum() for each in net.values()), torch.zeros((), dtype=torch.float64)) * factor


@given(drawn=models)
def test_the_vector_has_every_number_and_the_model_follows_it(drawn):
    net, other = model(drawn), model(drawn, seed=1)
    wanted = [each.detach().clone() for each in other.values()]
    vector = bound(other, layout(other)).x.clone()
    binding = bound(net, layout(net))
    assert binding.x.dtype == (torch.float64 if any(d == torch.float64 for d, _ in drawn) else torch.float32)
    binding.x.copy_(vector)
    binding.load()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(net.values(), wanted, strict=True))
    assert binding.x.numel() == sum(each.numel() * (2 if each.is_complex() else 1) for each in net.values())


@settings(max_examples=40)
@given(drawn=models, backwards=st.integers(1, 3))
def test_gradients_of_several_passes_add_up_in_the_vectors_precision(drawn, backwards):
    net = model(drawn)
    binding = bound(net, layout(net))
    gradient = binding.gradient()
    for _ in range(backwards):
        binding.load()
        losses(net).backward()
        binding.gather()
    expected = torch.zeros_like(gradient)
    for place, each in zip(as_named(expected, layout(net)).values(), net.values(), strict=True):
        once = 2 * each.detach()
        place.copy_(backwards * (torch.view_as_real(once) if once.is_complex() else once).to(gradient.dtype))
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-3)


@given(drawn=models)
def test_a_step_along_the_negative_gradient_reduces_the_loss(drawn):
    """For complex numbers too: torch's gradient is the one whose negative descends."""
    net = model(drawn)
    binding = bound(net, layout(net))
    gradient, before = binding.gradient(), losses(net)
    before.backward()
    binding.gather()
    binding.x.sub_(gradient, alpha=0.25)
    binding.load()
    assert torch.isclose(losses(net).detach(), before.detach() / 4, rtol=0.05)  # each number is halved


@given(drawn=models)
def test_parameters_made_from_a_vector_pass_their_gradients_to_it(drawn):
    net = model(drawn)
    plan = layout(net)
    binding = bound(net, plan)
    flat = binding.x.clone().requires_grad_()
    made = as_parameters(flat, plan, net)
    assert all(each.dtype == net[name].dtype and torch.equal(each, net[name]) for name, each in made.items())
    gradient = binding.gradient()
    losses(net).backward()
    binding.gather()
    (given,) = torch.autograd.grad(losses(made), flat)
    torch.testing.assert_close(given, gradient, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", REAL)
def test_one_real_dtype_is_bound_without_a_copy(dtype):
    net = model([(dtype, (3,)), (dtype, (2, 2))])
    binding = bound(net, layout(net))
    assert isinstance(binding, Bound)
    assert binding.x.data_ptr() == net["p0"].data_ptr()
    binding.gradient()
    losses(net).backward()
    binding.gather()
    assert net["p1"].grad.data_ptr() == binding.gradient()[3:].data_ptr()
    assert torch.equal(binding.gradient(), 2 * binding.x)


@pytest.mark.parametrize("dtypes", [[torch.bfloat16], [torch.float16], [torch.complex64], [torch.float32, torch.bfloat16]])
def test_other_dtypes_have_float32_master_parameters(dtypes):
    net = model([(dtype, (3,)) for dtype in dtypes])
    assert isinstance(bound(net, layout(net)), Mastered)


def test_steps_too_small_for_the_model_add_up_in_the_vector():
    """A bfloat16 parameter of 1 has neighbors at .996 and 1.008, so steps of .001 would always be rounded away."""
    net = nn.ParameterDict({"w": nn.Parameter(torch.ones(2, dtype=torch.bfloat16))})
    binding = bound(net, layout(net))
    for _ in range(10):
        binding.x.sub_(0.001)
        binding.load()
    assert torch.allclose(net["w"].float(), torch.full((2,), 0.99), atol=0.004)
    assert torch.allclose(binding.x, torch.full((2,), 0.99))


def test_sparse_and_missing_gradients_are_gathered():
    net = nn.ModuleDict({"e": nn.Embedding(4, 2, sparse=True, dtype=torch.bfloat16), "unused": nn.Linear(1, 1)})
    binding = bound(net, layout(net))
    net["e"](torch.tensor([1, 1, 3])).sum().backward()
    binding.gather()
    assert binding.gradient().tolist() == [0, 0, 2, 2, 0, 0, 1, 1, 0, 0]
    assert all(each.grad is None for each in trainable(net))


def test_partial_gradients_of_a_pass_out_of_memory_do_not_count():
    net = model([(torch.bfloat16, (3,))])
    binding = bound(net, layout(net))
    losses(net).backward()
    binding.load()
    losses(net).backward()
    binding.gather()
    assert torch.equal(binding.gradient(), 2 * binding.x)


def test_shared_parameters_occur_once_in_model_and_vector():
    net = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False).bfloat16(), "b": nn.Linear(2, 2, bias=False).bfloat16()})
    net["b"].weight = net["a"].weight
    binding = bound(net, layout(net))
    binding.x.fill_(2.0)
    binding.load()
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    (net["a"](x) + net["b"](x)).sum().backward()
    binding.gather()
    assert (net["b"].weight == 2).all()
    assert binding.gradient().tolist() == [2.0] * 4


def test_the_gradients_vector_is_freed_and_made_anew():
    for dtype in (torch.float32, torch.bfloat16):
        net = model([(dtype, (3,))])
        binding = bound(net, layout(net))
        binding.gradient().fill_(1.0)
        binding.release()
        assert net["p0"].grad is None
        assert not binding.gradient().any()


def test_an_unsupported_dtype_is_refused_with_a_remedy():
    net = nn.ParameterDict({"w": nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn))})
    with pytest.raises(ValueError, match=r"parameter w is float8_e4m3fn, .*one of float32, .*or freeze it, requires_grad_\(False\)"):
        layout(net)


class Counting(nn.Module):
    """Buffers that a forward pass changes in place, and one that it replaces."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.layer = nn.Linear(2, 2, dtype=dtype)
        self.register_buffer("inner", torch.zeros(2))
        self.register_buffer("outer", torch.zeros((), dtype=dtype))
        self.register_buffer("own", torch.zeros(3))

    def forward(self, x):
        self.inner += 1
        self.outer = self.outer + 2
        return self.layer(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_carried_buffers_lie_behind_the_parameters_and_follow_the_vector(dtype):
    net = Counting(dtype)
    plan = layout(net, ("inner", "outer"))
    assert (plan.dim, plan.trained, plan.buffers) == (9, 6, ("inner", "outer"))
    binding = bound(net, plan)
    assert binding.gradient().shape == (6,)
    net(torch.ones(1, 2, dtype=dtype)).sum().backward()
    binding.gather()
    assert binding.x[6:].tolist() == [0, 0, 0]
    binding.collect()
    assert binding.x[6:].tolist() == [1, 1, 2]
    assert binding.gradient().tolist() == [1.0] * 6
    binding.x[6:] = 5.0
    binding.load()
    assert (net.inner.tolist(), float(net.outer), net.own.tolist()) == ([5, 5], 5, [0, 0, 0])
    assert net.outer.dtype == dtype


def test_a_growing_averaged_buffer_is_reported():
    net = Counting()
    binding = bound(net, layout(net, ("inner",)))
    net.inner = torch.zeros(5)
    with pytest.raises(ValueError, match=r"buffer inner has shape \(5,\), it was averaged with \(2,\).*task.buffers"):
        binding.collect()


def test_layouts_with_other_carried_buffers_differ():
    net = Counting()
    digests = {layout(net, carried).digest for carried in ((), ("inner",), ("inner", "outer"))}
    assert len(digests) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["views", "masters"])
def test_a_parameter_moved_to_other_memory_is_reported(dtype):
    """Otherwise it would train alone, unaffected by peers."""
    net = nn.Linear(2, 1).to(dtype)
    binding = bound(net, layout(net))
    binding.check()
    net.weight.data.mul_(0.5)
    binding.check()
    net.weight.data = net.weight.data.clone()
    with pytest.raises(ConfigError, match=r"parameter weight was replaced.*copy_"):
        binding.check()


def test_a_model_with_averaged_buffers_locates_its_parameters():
    net = Counting()
    binding = bound(net, layout(net, ("inner", "outer")))
    binding.check()
    parameter = next(net.parameters())
    parameter.data = parameter.data.clone()
    with pytest.raises(ConfigError, match="was replaced"):
        binding.check()


def test_a_parameter_replaced_by_the_module_is_reported_in_time():
    net = nn.Linear(2, 1)
    binding = bound(net, layout(net))
    net.weight = nn.Parameter(net.weight.detach().clone())

    def looks():
        for _ in range(LOOKS):
            binding.check()

    with pytest.raises(ConfigError, match="parameter weight was replaced"):
        looks()
