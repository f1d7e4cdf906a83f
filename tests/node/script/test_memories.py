"""The memories of users' optimisers as vectors that are averaged: recognised by the state names of torch's optimisers."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Muon

from starling.gossip.mix.memories import Decay, carry
from starling.gossip.vector import flatten
from starling.node.config.schema import OptimizerSection
from starling.node.engine.memories import OptimizerMemory
from starling.node.engine.memory_pieces import View, pieces_of
from starling.node.engine.optimizers import optimizer as engines
from starling.node.script.memories import OptimizerMemories
from starling.node.script.parameters import Parameters
from tests.harness.sections import taken
from tests.node.script.loops import KeepsSlow, ScheduleFree, batches, fitted, net

LR = 0.01


def of(model, *optimizers):
    """Return the memories of a model's optimisers, and the model as a vector."""
    parameters = Parameters(model, optimizers)
    return OptimizerMemories(optimizers, parameters), parameters


def read(memories, parameters):
    """Return m and v, read into vectors that were not 0."""
    mean, square = (torch.full((parameters.layout.dim,), 9.0) for _ in range(2))
    memories.read(mean, square)
    return mean, square


def steps(model, optimizers, memories, count=3):
    for batch in batches(count):
        model.zero_grad()
        fitted(model, batch)
        for each in optimizers:
            each.step()
        memories.steps += 1


def muon(model):
    hidden, *others = model.parameters()
    return [Muon([hidden], lr=LR, momentum=0.9, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"), AdamW(others, lr=LR, weight_decay=0.0)]


LIKE_THE_ENGINE = {
    "adam": lambda model: [Adam(model.parameters(), lr=LR)],
    "adamw": lambda model: [AdamW(model.parameters(), lr=LR, weight_decay=0.0)],
    "radam": lambda model: [torch.optim.RAdam(model.parameters(), lr=LR)],
    "sgd": lambda model: [SGD(model.parameters(), lr=LR, momentum=0.9)],
    "muon": muon,
}


def engines_memory(kind, model, count=3):
    """Return the memory of the engine's optimiser of that kind after the same local steps, as exchanges see it."""
    section = taken(OptimizerSection, kind=kind, lr=LR, momentum=0.9, weight_decay=0.0)
    parameters = Parameters(model, [SGD(model.parameters(), lr=LR)])
    x = flatten(model, parameters.layout)
    shaped = model if kind == "muon" else None
    optimizer = engines(section, x, model=shaped)
    for batch in batches(count):
        parameters.write(x)
        model.zero_grad()
        fitted(model, batch)
        gradient = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
        optimizer.step(x, gradient, LR)
    return OptimizerMemory(lambda: optimizer, pieces_of(optimizer), View(), lambda _: None)


def by_coordinate(decays):
    return [(each.mean, each.square) for each in decays for _ in range(each.where.stop - each.where.start)]


@pytest.mark.parametrize("kind", LIKE_THE_ENGINE)
def test_exchanges_see_the_same_memory_as_of_the_engine_s_optimiser(kind):
    model = net()
    optimizers = LIKE_THE_ENGINE[kind](model)
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    engine = engines_memory(kind, net())
    for own, other in zip(read(memories, parameters), engine.read(), strict=True):
        assert torch.allclose(own, other, atol=1e-6)
    assert read(memories, parameters)[0].any()
    assert by_coordinate(memories.decays()) == by_coordinate(engine.decays)
    assert memories.age() == engine.age == 3
    assert memories.known


def test_adjacent_parameters_with_equal_decay_rates_are_one_piece():
    model = net()
    optimizers = [AdamW(model.parameters())]
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    assert memories.decays() == (Decay(slice(0, parameters.layout.dim), 0.9, 0.999),)


@pytest.mark.parametrize("other", ["optimiser", "betas", "square"])
def test_parameters_with_other_decay_rates_or_optimisers_are_separate_pieces(other):
    model = net()
    first, second = (list(part.parameters()) for part in (model[0], model[2]))
    start = sum(each.numel() for each in first)
    if other == "optimiser":
        optimizers = [AdamW(first), AdamW(second)]
    elif other == "betas":
        optimizers = [AdamW([{"params": first}, {"params": second, "betas": (0.8, 0.99)}])]
    else:
        optimizers = [AdamW(first), SGD(second, lr=LR, momentum=0.9)]
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    betas = {"optimiser": (0.9, 0.999), "betas": (0.8, 0.99), "square": (0.9, None)}[other]
    assert memories.decays() == (Decay(slice(0, start), 0.9, 0.999), Decay(slice(start, parameters.layout.dim), *betas))


@pytest.mark.parametrize("kind", LIKE_THE_ENGINE)
def test_written_memories_become_the_optimiser_s_state(kind):
    model = net()
    optimizers = LIKE_THE_ENGINE[kind](model)
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    mean, square = read(memories, parameters)
    memories.write(mean * 2, square * 3, 40)
    again = read(memories, parameters)
    assert torch.equal(again[0], mean * 2)
    assert torch.equal(again[1], square * 3)
    assert memories.age() == memories.steps == 40
    counts = [state["step"] for one in optimizers for state in one.state.values() if "step" in state]
    assert all(float(each) == 40 for each in counts)
    steps(model, optimizers, memories, 1)
    assert memories.age() == 41


def test_written_memories_are_copies():
    """The vectors are reused for the next exchange."""
    model = net()
    optimizers = [Adam(model.parameters())]
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    mean, square = read(memories, parameters)
    memories.write(mean, square, 3)
    kept = mean.clone()
    mean.zero_()
    assert torch.equal(read(memories, parameters)[0], kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_memories_of_other_dtypes_are_converted_both_ways(dtype):
    model = nn.Sequential(nn.Linear(4, 1).to(dtype))
    optimizer = Adam(model.parameters())
    memories, parameters = of(model, optimizer)
    steps(model, [optimizer], memories)
    wide = parameters.layout.dtype
    mean, square = (torch.empty(parameters.layout.dim, dtype=wide) for _ in range(2))
    memories.read(mean, square)
    kept = torch.cat([state["exp_avg"].reshape(-1) for state in optimizer.state.values()])
    assert torch.equal(mean, kept.to(wide))
    memories.write(mean * 2, square, 3)
    assert all(state["exp_avg"].dtype == dtype for state in optimizer.state.values())
    assert torch.equal(torch.cat([state["exp_avg"].reshape(-1) for state in optimizer.state.values()]), kept * 2)


def test_step_counts_that_are_python_numbers_are_set():
    """As in optimisers of other libraries."""
    model = net()
    optimizer = Adam(model.parameters())
    memories, parameters = of(model, optimizer)
    steps(model, [optimizer], memories)
    for state in optimizer.state.values():
        state["step"] = int(state["step"])
    assert memories.age() == 3
    memories.write(*read(memories, parameters), 7)
    assert [state["step"] for state in optimizer.state.values()] == [7] * 4
    assert all(type(state["step"]) is int for state in optimizer.state.values())


def test_before_the_first_step_there_is_nothing_to_average():
    model = net()
    memories, parameters = of(model, Adam(model.parameters()))
    assert memories.decays() is None
    assert memories.age() == 0
    assert memories.known
    assert not any(each.any() for each in read(memories, parameters))
    memories.write(*read(memories, parameters), 3)
    assert memories.age() == memories.steps == 0
    assert memories.known


def test_while_one_of_two_optimisers_has_not_stepped_nothing_is_averaged():
    model = net()
    optimizers = [Adam(part.parameters()) for part in (model[0], model[2])]
    memories, _ = of(model, *optimizers)
    steps(model, optimizers[:1], memories)
    assert memories.decays() is None
    assert memories.known


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_parameter_without_a_gradient_so_far_has_no_memory(kind):
    model = net()
    keys = {"momentum": 0.9} if kind is SGD else {}
    optimizer = kind(model.parameters(), lr=LR, **keys)
    memories, parameters = of(model, optimizer)
    fitted(model, next(iter(batches(1))))
    model[0].weight.grad = None
    optimizer.step()
    memories.steps = 1
    (decay,) = memories.decays()
    assert decay == Decay(slice(0, parameters.layout.dim), 0.9, None if kind is SGD else 0.999)
    mean, square = read(memories, parameters)
    assert not mean[:12].any()
    assert mean[12:].any()
    memories.write(mean + 1.0, square, 1)
    assert not read(memories, parameters)[0][:12].any()
    steps(model, [optimizer], memories, 1)
    assert memories.age() == 2
    assert read(memories, parameters)[0][:12].any()


def shared(model):
    return [Adam(model.parameters()), Adam(model[2].parameters())]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: [torch.optim.NAdam(model.parameters())],
        lambda model: [torch.optim.RMSprop(model.parameters())],
        lambda model: [torch.optim.Adamax(model.parameters())],
        lambda model: [Adam(model.parameters(), amsgrad=True)],
        lambda model: [SGD(model.parameters(), lr=LR)],
        lambda model: [ScheduleFree(model.parameters())],
        lambda model: [KeepsSlow(model.parameters())],
        lambda model: [Adam(model[0].parameters()), torch.optim.Adagrad(model[2].parameters())],
        shared,
    ],
    ids=["nadam", "rmsprop", "adamax", "amsgrad", "plain sgd", "schedule-free", "slow weights", "one of two", "shared"],
)
def test_state_under_unknown_names_is_not_averaged(make):
    model = net()
    optimizers = make(model)
    memories, parameters = of(model, *optimizers)
    steps(model, optimizers, memories)
    before = [each.clone() for one in optimizers for state in one.state.values() for each in state.values()]
    assert not memories.known
    assert memories.decays() is None
    assert not any(each.any() for each in read(memories, parameters))
    memories.write(torch.ones(parameters.layout.dim), torch.ones(parameters.layout.dim), 9)
    after = [each for one in optimizers for state in one.state.values() for each in state.values()]
    assert all(torch.equal(*each) for each in zip(before, after, strict=True))


@pytest.mark.parametrize("change", ["shape", "codes", "no betas"])
def test_memories_in_other_formats_are_not_averaged(change):
    """For example low-rank or 8-bit ones."""
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    optimizer = Adam(model.parameters())
    memories, _ = of(model, optimizer)
    steps(model, [optimizer], memories)
    assert memories.known
    (state,) = optimizer.state.values()
    if change == "shape":
        state["exp_avg"] = torch.zeros(1, 2)
    elif change == "codes":
        state["exp_avg"] = torch.zeros(1, 4, dtype=torch.uint8)
    else:
        del optimizer.param_groups[0]["betas"]
    assert memories.decays() is None


@pytest.mark.parametrize("mode", ["default dtype", "meta", "inference"])
def test_gradient_and_inference_modes_of_the_user_do_not_matter(mode):
    ends = []
    for within in (False, True):
        model = net()
        optimizer = Adam(model.parameters())
        memories, parameters = of(model, optimizer)
        steps(model, [optimizer], memories)
        mean, square = read(memories, parameters)
        if within and mode == "default dtype":
            torch.set_default_dtype(torch.float64)
        try:
            device = torch.device("meta" if within and mode == "meta" else "cpu")
            with device, torch.inference_mode(within and mode == "inference"):
                memories.write(mean, square, 5)
                memories.read(mean, square)
        finally:
            torch.set_default_dtype(torch.float32)
        steps(model, [optimizer], memories)
        ends.append(torch.cat(read(memories, parameters)))
    assert torch.equal(*ends)


@pytest.mark.parametrize("form", ["plain", "bfloat16", "channels last", "muon", "one has no gradient yet"])
def test_an_exchange_s_effect_on_memories_is_added_in_place(form):
    """In place, parameter by parameter: equal to reading m and v, adding the change, and writing them."""
    ends = []
    for in_place in (True, False):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
        generator = torch.Generator().manual_seed(1)
        if form == "bfloat16":
            model = model.bfloat16()
        if form == "channels last":
            model = model.to(memory_format=torch.channels_last)
        if form == "muon":
            others = [each for each in model.parameters() if each is not model[2].weight]
            optimizers = [Muon([model[2].weight], momentum=0.9), AdamW(others)]
        else:
            optimizers = [AdamW(model.parameters(), betas=(0.8, 0.9))]
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)
        if form == "one has no gradient yet":
            model[0].bias.grad = None
        for each in optimizers:
            each.step()
        memories, parameters = of(model, *optimizers)
        vectors = [torch.rand(parameters.layout.dim, generator=generator) for _ in range(4)]
        other, base = (vectors[0], vectors[1]), (vectors[2], vectors[3])
        if in_place:
            memories.carry(other, base, 3)
        else:
            own, age = read(memories, parameters), memories.age()
            carry(*own, other, base, memories.decays(), 3, age)
            memories.write(*own, age)
        ends.append(torch.cat(read(memories, parameters)))
    assert torch.equal(*ends)
    assert ends[0].any()
