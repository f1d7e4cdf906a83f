"""The parameters of users' models as one vector: which belong to it, and how it is read and written."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from starling.gossip.errors import ConfigError
from starling.gossip.vector import flatten, layout
from starling.node.script.optimizers import unwrapped
from starling.node.script.parameters import Parameters
from tests.node.script.loops import KeepsSlow, Lookahead, ScheduleFree, batches, fitted, flat, net, some


def whole(model, **keys):
    """Return the parameters of a model that one optimiser steps."""
    return Parameters(model, [SGD(model.parameters(), lr=0.1)], **keys)


def read(parameters):
    into = torch.empty(parameters.layout.dim, dtype=parameters.layout.dtype)
    parameters.read(into)
    assert not into.requires_grad
    return into


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight


class Wrapped(nn.Module):
    """Stores the wrapped module as common wrappers do."""

    def __init__(self, name, inner):
        super().__init__()
        self.add_module(name, inner)


@pytest.mark.parametrize("make", [net, Tied, lambda: net(dtype=torch.bfloat16), lambda: net(dtype=torch.float64)])
def test_the_vector_equals_the_module_s(make):
    """Names, shapes, dtype and values equal those of a task with that model; shared parameters occur once."""
    model = make()
    parameters = whole(model)
    assert parameters.layout == layout(model)
    assert list(parameters.named) == list(parameters.layout.names)
    assert torch.equal(read(parameters), flatten(model, parameters.layout))


def test_parameters_that_no_optimiser_holds_stay_out():
    model = net()
    parameters = Parameters(model, [SGD([model[2].weight, nn.Parameter(torch.zeros(3))], lr=0.1)])
    assert list(parameters.named) == ["2.weight"]
    parameters.check_same()


def test_frozen_parameters_stay_out():
    model = net()
    model[0].requires_grad_(requires_grad=False)
    assert whole(model).layout.names == ("2.weight", "2.bias")


@pytest.mark.parametrize(
    ("model", "other", "words"),
    [
        (net(), net(), "^the optimizer holds none of the model's trainable parameters: build it from the model given to Swarm$"),
        (net().requires_grad_(requires_grad=False), net(), "^the model has no trainable parameters"),
    ],
)
def test_a_model_that_is_not_trained_by_the_optimiser_is_refused(model, other, words):
    with pytest.raises(ConfigError, match=words):
        Parameters(model, [SGD(other.parameters(), lr=0.1)])


def test_a_dtype_that_is_not_mixed_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float8_e5m2))

    with pytest.raises(ConfigError, match="weight is float8_e5m2, which is not mixed; make it one of float32"):
        whole(Odd())


@pytest.mark.parametrize("name", ["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_names_do_not_depend_on_wrappers(name):
    inner = Wrapped("layer", Wrapped(name, nn.Linear(2, 1)))
    model = Wrapped(name, inner)
    assert whole(model).layout == whole(Wrapped("layer", nn.Linear(2, 1))).layout


def test_names_that_resemble_a_wrapper_s_are_kept():
    model = Wrapped("submodule", nn.Linear(2, 1))
    assert whole(model).layout.names == ("submodule.weight", "submodule.bias")


def test_the_name_of_pefts_adapter_is_left_out():
    model = Wrapped("lora_A", nn.ModuleDict({"default": nn.Linear(2, 1, bias=False)}))
    assert whole(model).layout.names == ("lora_A.weight",)


def test_names_that_would_collide_are_kept():
    model = Wrapped("module", nn.Linear(2, 1, bias=False))
    model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    assert whole(model).layout.names == ("weight", "module.weight")


def test_complex_parameters_are_pairs():
    layer = nn.Linear(2, 1, bias=False, dtype=torch.complex64)
    parameters = whole(layer)
    assert parameters.layout.shapes == ((1, 2, 2),)
    parameters.write(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert layer.weight.tolist() == [[1 + 2j, 3 + 4j]]
    assert read(parameters).tolist() == [1.0, 2.0, 3.0, 4.0]
    layer = nn.Linear(2, 1, dtype=torch.complex128)
    assert whole(layer).layout.dtype == torch.float64


def test_a_written_vector_is_read_back():
    model = net()
    parameters = whole(model)
    vector = some(parameters.layout.dim)
    parameters.write(vector)
    assert torch.equal(flat(model), vector)
    assert torch.equal(read(parameters), vector)
    assert all(each.requires_grad and each.is_leaf for each in model.parameters())


def test_a_vector_of_another_length_is_refused():
    parameters = whole(net())
    with pytest.raises(ValueError, match="flat must be"):
        parameters.read(torch.zeros(3))
    with pytest.raises(ValueError, match="flat must be"):
        parameters.write(torch.zeros(3))


def test_reading_and_writing_full_precision_keep_no_tensor_of_their_own():
    parameters = whole(net())
    parameters.write(read(parameters))
    assert not parameters.lost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixes_too_small_for_the_dtype_add_up(dtype):
    """100 mixes of 1e-4; without the rounding residual they would move it by 0.0002 (measured: own-loop.md §1)."""
    layer = nn.Linear(100, 10).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(10, 100, generator=torch.Generator().manual_seed(1)))
    parameters = whole(layer)
    before = flat(layer).float()
    for _ in range(100):
        parameters.write(read(parameters) + 1e-4)
    assert float((flat(layer).float() - before).mean()) == pytest.approx(0.01, rel=0.03)


def test_steps_of_the_optimiser_add_to_what_was_written():
    """The vector read is the last one written, moved by the optimiser's steps; reading twice gives the same."""
    model = net(dtype=torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.1)
    parameters = Parameters(model, [optimizer])
    written = read(parameters) + 1e-4
    parameters.write(written)
    before = flat(model).float()
    assert torch.allclose(read(parameters), written, atol=1e-7)
    fitted(model, next(iter(batches(1))))
    optimizer.step()
    expected = written + (flat(model).float() - before)
    for _ in range(2):
        assert torch.allclose(read(parameters), expected, atol=1e-7)


def test_a_float32_parameter_next_to_a_float64_one_keeps_its_precision():
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).double())
    parameters = whole(model)
    vector = some(parameters.layout.dim).double() + 1e-12
    parameters.write(vector)
    assert torch.allclose(read(parameters), vector, atol=1e-15)


def test_a_write_between_forward_and_backward_is_an_error_of_autograd():
    """After writing to `.data` the gradient would be wrong instead."""
    model = net()
    parameters = whole(model)
    out = model(torch.ones(2, 4)).sum()
    parameters.write(read(parameters) * 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_write_inside_an_autocast_region_is_seen_by_the_next_forward():
    model = net()
    parameters = whole(model)
    x = torch.ones(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).any()
        parameters.write(torch.zeros(parameters.layout.dim))
        assert not model(x).any()


@pytest.mark.slow  # tracing
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of modules that torch._dynamo imports
def test_a_write_is_seen_by_a_compiled_model_under_the_names_of_the_plain_one():
    torch.compiler.reset()
    model = net()
    compiled = torch.compile(model, backend="eager")
    parameters = whole(compiled)
    assert parameters.layout == layout(model)
    x = torch.ones(2, 4)
    assert compiled(x).any()
    parameters.write(torch.zeros(parameters.layout.dim))
    assert not compiled(x).any()


def lookahead(model):
    made = Lookahead(SGD(model.parameters(), lr=0.1))
    return made, lambda parameter: [made.slow[parameter]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: (ScheduleFree(model.parameters()), ()),
        lambda model: (KeepsSlow(model.parameters()), ()),
        lookahead,
        lambda model: (AdamW(model.parameters(), weight_decay=0.0), ()),
    ],
    ids=["schedule-free", "slow weights in the state", "slow weights in the wrapper", "none"],
)
def test_a_mix_is_fully_applied_with_optimisers_that_keep_copies(make, dtype):
    """Gradients are zero, so nothing else moves the parameters."""
    model = net(dtype=dtype)
    optimizer, copies = make(model)
    parameters = Parameters(model, unwrapped(optimizer), copies)

    def steps(count):
        for _ in range(count):
            for each in model.parameters():
                each.grad = torch.zeros_like(each)
            optimizer.step()

    steps(20)
    before = read(parameters)
    parameters.write(before + 1.0)
    steps(100)
    assert torch.allclose(read(parameters), before + 1.0, atol=1e-5 if dtype == torch.float32 else 0.02)


def test_copies_are_moved_by_the_difference_and_each_once():
    """Other state of the parameter's shape does not change."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    kept = {"z": torch.full((1, 2), 5.0), "mine": torch.full((1, 2), 7.0), "exp_avg": torch.zeros(1, 2), "slow": torch.zeros(3)}
    kept["slow_param"] = kept["z"]
    optimizer.state[model.weight] = kept
    parameters = Parameters(model, [optimizer], copies="mine")
    parameters.write(read(parameters) + 1.0)
    assert torch.allclose(kept["z"], torch.full((1, 2), 6.0))
    assert torch.allclose(kept["mine"], torch.full((1, 2), 8.0))
    assert not kept["exp_avg"].any()
    assert not kept["slow"].any()


def test_a_copy_of_another_shape_is_refused_before_anything_moves():
    model = net()
    parameters = whole(model, copies=lambda _: torch.zeros(3, 3))
    before = flat(model)
    with pytest.raises(ConfigError, match=r"copies: what it gave for 0\.weight has shape \(3, 3\), needed is \(3, 4\)"):
        parameters.write(before + 1.0)
    assert torch.equal(flat(model), before)


def replaced(model):
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def assigned(model):
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()}, assign=True)


def added(model):
    model.append(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replaced, r"^0\.weight is no longer a parameter of the model \(replaced or wrapped after Swarm\(\)\)"),
        (assigned, r"^0\.weight is no longer"),
        (added, r"^3\.weight was no trainable parameter of the model when Swarm\(\) was called"),
    ],
)
def test_a_parameter_that_was_replaced_or_added_is_named(change, words):
    model = net()
    parameters = whole(model)
    parameters.check_same()
    change(model)
    with pytest.raises(ConfigError, match=words):
        parameters.check_same()


def test_a_parameter_may_be_frozen_at_a_round_s_end_but_not_for_a_whole_round():
    """As a discriminator is while its generator trains; a step in between counts if it has a gradient."""
    model = net()
    parameters = whole(model)
    weight, *others = model.parameters()
    weight.requires_grad_(requires_grad=False)
    fitted(model, next(iter(batches(1))))
    parameters.check_trained()
    weight.grad = torch.zeros_like(weight)
    parameters.note_gradients([weight])
    parameters.check_trained()
    weight.grad = None
    parameters.note_gradients([weight, *others])
    parameters.check_same()
    with pytest.raises(ConfigError, match=r"^0\.weight was frozen for a whole round, .* freeze it before Swarm\(\)"):
        parameters.check_trained()


def test_a_temporarily_frozen_parameter_is_accepted():
    model = net()
    parameters = whole(model)
    for number in range(4):
        model[0].weight.requires_grad_(requires_grad=number % 2 == 0)
        parameters.check_trained()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["default dtype", "meta", "inference"])
def test_gradient_and_inference_modes_of_the_user_do_not_matter(mode, dtype):
    """Vectors made under them can be read and written outside of them."""
    ends = []
    for within in (False, True):
        model = net(dtype=dtype)
        optimizer = ScheduleFree(model.parameters())
        fitted(model, next(iter(batches(1))))
        optimizer.step()
        vector, into = some(layout(model).dim), torch.empty(layout(model).dim)
        if within and mode == "default dtype":
            torch.set_default_dtype(torch.float64)
        try:
            device = torch.device("meta" if within and mode == "meta" else "cpu")
            with device, torch.inference_mode(within and mode == "inference"):
                parameters = Parameters(model, [optimizer])
                parameters.write(vector)
                parameters.read(into)
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.allclose(into, vector, atol=1e-7)
        assert all(each.dtype == torch.float32 for each in parameters.lost.values())
        parameters.write(vector + 1.0)
        parameters.read(into)
        fitted(model, next(iter(batches(1))))
        optimizer.step()
        ends.append(torch.cat([into, flat(model).float()]))
    assert torch.equal(*ends)


def test_no_random_number_is_drawn():
    before = torch.random.get_rng_state()
    model = net(dtype=torch.bfloat16)
    torch.random.set_rng_state(before)
    parameters = whole(model)
    parameters.write(read(parameters))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["plain", "bfloat16", "channels last", "copies"])
def test_moving_adds_the_difference_of_two_vectors_and_leaves_the_first_as_the_parameters_are(kind):
    """In one pass and in several passes alike."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(5, 2)).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    if kind == "channels last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = SGD(model.parameters(), lr=0.1)
    if kind == "copies":
        for each in model.parameters():
            optimizer.state[each]["z"] = each.detach().clone()
    parameters = Parameters(model, [optimizer])
    own, other = (torch.randn(parameters.layout.dim) for _ in range(2))
    before = torch.empty_like(own)
    parameters.read(before)
    wanted = before + (other - own)
    parameters.move(own, other)
    now = torch.empty_like(own)
    parameters.read(now)
    assert torch.allclose(now, wanted, atol=1e-6)
    assert torch.allclose(own, now, atol=1e-6)
    if kind == "copies":
        assert all(torch.equal(optimizer.state[each]["z"], each) for each in model.parameters())
