"""Hooks around the optimisers of users' own loops: how a step is corrected, and what counts as one."""

import copy
import gc
import math
import multiprocessing
import os
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import LBFGS, SGD, Adam, AdamW

from starling.gossip.errors import ConfigError
from starling.gossip.vector import layout
from starling.node.script.correction import Nowhere
from starling.node.script.hooks import Hooks
from starling.node.script.optimizers import unwrapped
from starling.node.script.parameters import Parameters
from starling.node.script.processes import refuse_workers
from tests.node.script.loops import SAM, Lookahead, Subtracted, batches, fitted, flat, hooked, net, some, subtract


def test_accumulated_and_clipped_gradients_are_corrected_after_the_clipping():
    """8 batches accumulated by four are 2 local steps. At `took_step` gradients are gone."""
    ends = []
    for by_hand in (False, True):
        model = net()
        optimizer = Adam(model.parameters())
        c = some(layout(model).dim)
        hooks, _ = hooked(model, optimizer, torch.zeros_like(c) if by_hand else c)
        counted = 0
        for number, batch in enumerate(batches(8)):
            fitted(model, batch)
            if number % 4 == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                if by_hand:
                    subtract(model, c)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            counted += hooks.took_step()
        assert counted == 2
        ends.append(flat(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_closure_is_corrected_after_it_ran(kind, keyword):
    ends, losses = [], []
    for closes in (False, True):
        model = net()
        optimizer = kind(model.parameters(), lr=0.1)
        hooks, correction = hooked(model, optimizer)
        for batch in batches(3):

            def closure(model=model, optimizer=optimizer, batch=batch):
                optimizer.zero_grad()
                return fitted(model, batch)

            if not closes:
                closure()
                optimizer.step()
            else:
                losses.append(optimizer.step(closure=closure) if keyword else optimizer.step(closure))
            assert hooks.took_step()
        assert len(correction.taken) == correction.steps == 3
        ends.append(flat(model))
    assert torch.equal(*ends)
    assert all(isinstance(each, torch.Tensor) for each in losses)


def test_lbfgs_is_refused_at_creation_unless_nothing_is_corrected():
    model = net()
    optimizer = LBFGS(model.parameters(), max_iter=1)
    with pytest.raises(ConfigError, match="LBFGS evaluates its closure more than once a step"):
        hooked(model, optimizer)
    hooks = Hooks([optimizer], Parameters(model, [optimizer]), Nowhere())
    (batch,) = batches(1)
    before = flat(model)
    optimizer.step(lambda: fitted(model, batch))
    assert hooks.took_step()
    assert not torch.equal(flat(model), before)


@pytest.mark.parametrize("active", [True, False])
def test_a_closure_that_is_evaluated_twice_in_a_step_is_refused(active):
    """Even without a correction, so it is refused in the first round, not in the second."""

    class Twice(SGD):
        @torch.no_grad()
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
                closure()
            return super().step()

    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    correction.active = active
    (batch,) = batches(1)
    with pytest.raises(ConfigError, match="Twice evaluates its closure more than once a step"):
        optimizer.step(lambda: fitted(model, batch))
    assert not hooks.took_step()


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("form", ["foreach", "fused", "plain"])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_under_a_scaler_a_step_that_overflows_is_neither_corrected_nor_counted(kind, form, unscales):
    """All other steps agree bit for bit with a loop without a scaler."""
    ends = []
    for scales in (False, True):
        model = net()
        optimizer = kind(model.parameters(), lr=0.01, foreach=form == "foreach", fused=form == "fused")
        hooks, correction = hooked(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scales)
        counted = []
        for number, (x, y) in enumerate(batches(3)):
            if number == 1 and not scales:
                continue
            optimizer.zero_grad()
            scaler.scale(mse_loss(model(x), y)).backward()
            if number == 1:
                model[0].weight.grad[0, 0] = math.inf
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            counted.append(hooks.took_step())
        assert counted == ([True, False, True] if scales else [True, True])
        assert len(correction.taken) == correction.steps == 2
        ends.append(flat(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("inner_steps", [1, 2])
@pytest.mark.parametrize("base_made_before", [False, True])
def test_a_step_that_calls_that_of_its_base_class_is_corrected_once(base_made_before, inner_steps):
    """torch hooks a class when its first instance is made, so inner steps may or may not run hooks."""

    class Base(SGD):
        def step(self, closure=None):
            return super().step(closure)

    class Mine(Base):
        def step(self, closure=None):
            for _ in range(inner_steps):
                super().step(closure)

    if base_made_before:
        Base(net().parameters(), lr=0.1)
    model = net()
    optimizer = Mine(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    for number, batch in enumerate(batches(2)):
        optimizer.zero_grad()
        fitted(model, batch)
        optimizer.step()
        assert hooks.took_step()
        assert len(correction.taken) == number + 1


def test_after_a_step_that_raised_the_next_is_corrected_once():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    (batch,) = batches(1)

    class Lost(Exception):
        pass

    def closure():
        raise Lost

    with pytest.raises(Lost):
        optimizer.step(closure)
    assert not hooks.took_step()
    fitted(model, batch)
    optimizer.step()
    assert hooks.took_step()
    assert len(correction.taken) == 1


def test_a_step_without_a_gradient_after_one_that_raised_does_not_count():
    class Broken(SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                raise MemoryError
            return super().step(closure)

    model = net()
    optimizer = Broken(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    fitted(model, next(iter(batches(1))))
    with pytest.raises(MemoryError):
        optimizer.step()
    optimizer.broken = False
    optimizer.zero_grad()
    optimizer.step()
    assert not hooks.took_step()


def test_a_step_within_that_of_another_optimiser_is_corrected():
    """Also after one that raised, whose pre-hook ran without a post-hook."""
    model = net()
    first, second = (SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    hooks, correction = hooked(model, [first, second])

    def closure():
        fitted(model, next(iter(batches(1))))
        second.step()

    with pytest.raises(ZeroDivisionError):
        second.step(lambda: 1 / 0)
    first.step(closure)
    assert hooks.took_step()
    assert correction.taken == [(15, 19), (0, 15)]


def test_a_step_that_raised_keeps_no_reference_to_its_caller_s_objects():
    """For example a batch that did not fit into memory."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    large = nn.Linear(1, 1)
    kept = weakref.ref(large)

    def step(held):
        def closure():
            raise MemoryError(type(held))

        optimizer.step(closure)

    with pytest.raises(MemoryError):
        step(large)
    del large
    gc.collect()
    assert kept() is None
    assert not hooks.took_step()


def test_the_reported_rate_is_the_one_used_by_the_step():
    """A scheduler may step before `took_step`. With two groups it is the mean over coordinates."""
    model = net()
    first, second = model[0], model[2]
    optimizer = SGD([{"params": first.parameters(), "lr": 0.4}, {"params": second.parameters(), "lr": 0.1}])
    hooks, _ = hooked(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    assert math.isnan(hooks.rate)
    sizes = [sum(each.numel() for each in part.parameters()) for part in (first, second)]
    mean = (0.4 * sizes[0] + 0.1 * sizes[1]) / sum(sizes)
    for number, batch in enumerate(batches(2)):
        fitted(model, batch)
        optimizer.step()
        schedule.step()
        assert hooks.took_step()
        assert hooks.rate == pytest.approx(mean * 0.5**number)


def test_groups_replaced_by_a_loaded_state_are_read():
    model = net()
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.25))
    hooks, _ = hooked(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(state)
    (batch,) = batches(1)
    fitted(model, batch)
    optimizer.step()
    assert hooks.took_step()
    assert hooks.rate == 0.5


def test_two_optimisers_form_one_vector_and_take_one_step_per_iteration():
    """As for a generator and a discriminator, which steps twice and has gradients of the generator's loss."""
    made, judged = net(0), net(1, 5)
    first = sum(each.numel() for each in made.parameters())
    both = nn.ModuleDict({"g": made, "d": judged})
    of_made, of_judged = SGD(made.parameters(), lr=0.1), Adam(judged.parameters(), lr=0.1)
    hooks, correction = hooked(both, [of_made, of_judged])
    counted = 0
    for x, _ in batches(3):
        for _ in range(2):
            of_judged.zero_grad()
            judged(x).mean().backward()
            of_judged.step()
        of_made.zero_grad()
        (made(x) ** 2).mean().backward()
        of_made.step()
        counted += hooks.took_step()
        assert not hooks.took_step()
    dim = sum(each.numel() for each in both.parameters())
    assert counted == correction.steps == 3
    assert correction.taken == [(first, dim), (first, dim), (0, first)] * 3
    assert hooks.rate == 0.1


def test_an_optimiser_of_each_parameter_in_the_backward_pass_is_corrected():
    ends = []
    for in_backward in (False, True):
        model = net()
        optimizers = {each: SGD([each], lr=0.1) for each in model.parameters()}
        hooks, correction = hooked(model, list(optimizers.values()))

        def at_once(parameter, optimizers=optimizers):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for each in model.parameters() if in_backward else ():
            each.register_post_accumulate_grad_hook(at_once)
        for batch in batches(2):
            fitted(model, batch)
            for each in () if in_backward else optimizers:
                at_once(each)
            assert hooks.took_step()
        assert len(correction.taken) == 8
        assert correction.steps == 2
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_a_whole_model_in_one_optimiser_is_one_contiguous_range():
    """In any order of its groups; parameters without a gradient are part of it and are not changed."""
    model = net()
    optimizer = SGD([{"params": model[2].parameters()}, {"params": model[0].parameters()}], lr=0.1, weight_decay=0.1)
    hooks, correction = hooked(model, optimizer)
    (batch,) = batches(1)
    fitted(model, batch)
    model[0].bias.grad = None
    bias = model[0].bias.detach().clone()
    optimizer.step()
    assert hooks.took_step()
    assert correction.taken == [(0, layout(model).dim)]
    assert model[0].bias.grad is None
    assert torch.equal(model[0].bias, bias)


def test_adjacent_parameters_are_one_contiguous_range():
    model = net()
    weights, biases = ([each for each in model.parameters() if each.ndim == ndim] for ndim in (2, 1))
    optimizers = [SGD(weights, lr=0.1), SGD([model[0].weight, *biases], lr=0.1)]
    hooks, correction = hooked(model, optimizers)
    fitted(model, next(iter(batches(1))))
    for each in optimizers:
        each.step()
    assert hooks.took_step()
    assert correction.taken == [(0, 12), (15, 18), (0, 15), (18, 19)]


def test_gradients_of_parameters_outside_the_model_do_not_count():
    model, other = net(), net()
    optimizer = SGD([*model.parameters(), *other.parameters()], lr=0.1)
    hooks, correction = hooked(model, optimizer)
    fitted(other, next(iter(batches(1))))
    optimizer.step()
    assert not hooks.took_step()
    assert not correction.taken


def test_a_correction_sees_zeros_where_there_is_no_gradient():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    class Seen(Subtracted):
        def take(self, gradient, start):
            self.seen = gradient.clone()
            super().take(gradient, start)

    correction = Seen(some(layout(model).dim))
    hooks = Hooks([optimizer], Parameters(model, [optimizer]), correction)
    for number, batch in enumerate(batches(2)):
        fitted(model, batch)
        if number:
            model[2].weight.grad = None
        optimizer.step()
    assert hooks.took_step()
    begin = sum(each.numel() for each in model[0].parameters())
    assert torch.equal(correction.seen[begin : begin + 3], torch.zeros(3))
    assert correction.seen[-1] != 0.0


def test_gradients_in_less_precision_are_corrected_in_full():
    model = net(dtype=torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.1)
    dim = layout(model).dim
    hooks, _ = hooked(model, optimizer, torch.full((dim,), 0.3))
    (batch,) = batches(1)
    fitted(model, batch)
    whole = torch.cat([each.grad.float().reshape(-1) for each in model.parameters()])
    optimizer.step()
    assert hooks.took_step()
    found = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
    assert torch.equal(found, (whole - 0.3).bfloat16())


def test_complex_parameters_are_corrected_as_pairs():
    layer = nn.Linear(2, 1, bias=False, dtype=torch.complex64)
    optimizer = SGD(layer.parameters(), lr=0.1)
    hooks, _ = hooked(layer, optimizer, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    layer.weight.grad = torch.zeros(1, 2, dtype=torch.complex64)
    optimizer.step()
    assert hooks.took_step()
    assert layer.weight.grad.tolist() == [[-1 - 2j, -3 - 4j]]


def test_while_a_correction_is_inactive_gradients_are_not_gathered():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    correction.active = False
    for number, batch in enumerate(batches(2)):
        fitted(model, batch)
        optimizer.step()
        assert hooks.took_step()
        assert len(correction.taken) == number
        correction.active = True
    assert correction.steps == 2


def test_the_second_half_of_sam_is_corrected():
    model = net()
    optimizer = SAM(model.parameters(), SGD, lr=0.1)
    hooks, correction = hooked(model, optimizer)
    for batch in batches(2):
        fitted(model, batch)
        optimizer.first_step()
        assert not hooks.took_step()
        optimizer.zero_grad()
        fitted(model, batch)
        optimizer.second_step()
        assert hooks.took_step()
    assert len(correction.taken) == 2


@pytest.mark.slow  # tracing
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of modules that torch._dynamo imports
@pytest.mark.parametrize("compiles", ["model", "step", "around", "before the hooks"])
def test_compiled_optimisers_give_the_result_of_eager_mode(compiles):
    torch.compiler.reset()  # imports it before hooks are made
    ends = []
    for eager in (True, False):
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.01, foreach=True)
        step, forward = optimizer.step, model
        if compiles == "before the hooks" and not eager:
            step = torch.compile(optimizer.step, backend="eager")
            fitted(model, next(iter(batches(1))))
            kept = copy.deepcopy(model.state_dict())
            step()
            model.load_state_dict(kept)
            optimizer.state.clear()
        hooks, correction = hooked(model, optimizer)
        if not eager and compiles in ("step", "around"):
            step = torch.compile(optimizer.step if compiles == "step" else lambda one=optimizer: one.step(), backend="eager")
        if not eager and compiles == "model":
            forward = torch.compile(model, backend="eager")
        for batch in batches(3):
            optimizer.zero_grad()
            fitted(forward, batch)
            step()
            assert hooks.took_step()
        assert len(correction.taken) == 3
        ends.append(flat(model))
    assert torch.allclose(*ends, atol=1e-6, rtol=0)


def test_a_step_without_any_gradient_does_not_count():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    optimizer.step()
    assert not hooks.took_step()
    assert correction.steps == 0
    assert math.isnan(hooks.rate)


def test_only_consecutive_calls_without_a_step_are_an_error():
    """Accumulation has some between steps."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    fitted(model, next(iter(batches(1))))
    for _ in range(101):
        assert not hooks.took_step()
        optimizer.step()
        assert hooks.took_step()


def test_a_new_model_with_the_old_optimiser_is_noticed():
    """Three steps without a gradient give a warning, since empty batches have none either; after a hundred the loop ends."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    other = net(1)

    def step():
        fitted(other, next(iter(batches(1))))
        optimizer.step()
        return hooks.took_step()

    assert not step()
    assert not step()
    with pytest.warns(UserWarning, match="ran 3 times without a gradient"):
        assert not step()
    for _ in range(96):
        assert not step()
    with pytest.raises(ConfigError, match="ran 100 times without a gradient in any of its parameters: does it hold the model"):
        step()


def test_a_step_with_a_gradient_resets_the_count_of_those_without():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    for _ in range(3):
        for _ in range(2):
            optimizer.zero_grad()
            optimizer.step()
            assert not hooks.took_step()
        fitted(model, next(iter(batches(1))))
        optimizer.step()
        assert hooks.took_step()


def test_parameters_replaced_by_loading_are_named_at_the_third_step():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()}, assign=True)
    for _ in range(2):
        optimizer.step()
        assert not hooks.took_step()
    optimizer.step()
    with pytest.raises(ConfigError, match=r"0\.weight is no longer a parameter of the model"):
        hooks.took_step()


def test_a_copied_optimiser_without_hooks_is_noticed():
    """A copy has no hooks."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    copied = copy.deepcopy(optimizer)
    for _ in range(99):
        copied.step()
        assert not hooks.took_step()
    with pytest.raises(ConfigError, match=r"called 100 times .* and optimizer\.step\(\) never seen"):
        hooks.took_step()


@pytest.mark.parametrize("active", [True, False])
def test_sparse_gradients_are_refused_by_name(active):
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True))
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    hooks, correction = hooked(model, optimizer)
    correction.active = active
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ConfigError, match=r"^0\.weight has sparse gradients: build the embedding with sparse=False"):
        optimizer.step()
    assert not hooks.took_step()


def test_new_hooks_close_and_free_the_older_ones():
    """As when a notebook cell is run twice."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    first, correction = hooked(model, optimizer)
    second, again = hooked(model, optimizer)
    assert first.closed
    assert not second.closed
    fitted(model, next(iter(batches(1))))
    optimizer.step()
    assert second.took_step()
    with pytest.raises(ConfigError, match="another one took over its optimizer"):
        first.took_step()
    assert (len(correction.taken), len(again.taken)) == (0, 1)
    kept = weakref.ref(first)
    del first
    gc.collect()  # the traceback of the error above refers to it
    assert kept() is None


def test_unreferenced_hooks_are_freed_and_stop_correcting():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    kept = weakref.ref(hooks)
    del hooks
    assert kept() is None
    fitted(model, next(iter(batches(1))))
    optimizer.step()
    assert not correction.taken
    assert not optimizer._optimizer_step_pre_hooks


def test_closed_hooks_correct_nothing_and_report_that_they_are_closed():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    hooks.close()
    hooks.close()
    fitted(model, next(iter(batches(1))))
    optimizer.step()
    with pytest.raises(ConfigError, match="this Swarm is closed"):
        hooks.took_step()
    assert not correction.taken


@pytest.mark.parametrize("mode", ["default dtype", "meta", "inference"])
def test_gradient_and_inference_modes_of_the_user_do_not_matter(mode):
    ends = []
    for within in (False, True):
        model, (batch,) = net(), batches(1)
        optimizer = SGD(model.parameters(), lr=0.1)
        hooks, correction = hooked(model, optimizer)
        fitted(model, batch)
        if within and mode == "default dtype":
            torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta" if within and mode == "meta" else "cpu"):
                with torch.inference_mode(within and mode == "inference"):
                    hooks.correct()  # allocates the retained vector
                optimizer.step()
                hooks.corrected()
                assert hooks.took_step()
        finally:
            torch.set_default_dtype(torch.float32)
        optimizer.zero_grad()
        fitted(model, batch)
        optimizer.step()
        assert len(correction.taken) == 2
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_no_random_number_is_drawn():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    before = torch.random.get_rng_state()
    hooks, _ = hooked(model, optimizer)
    fitted(model, next(iter(batches(1))))
    optimizer.step()
    hooks.took_step()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_wrapped_optimisers_are_unwrapped_to_the_innermost():
    class Prepared:
        """Imitates Accelerate's wrapper."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    model = net()
    inner = SGD(model.parameters(), lr=0.1)
    assert unwrapped(Prepared(Lookahead(inner))) == [inner]
    assert unwrapped([inner, Prepared(inner)]) == [inner]
    sam = SAM(model.parameters(), SGD, lr=0.1)
    assert unwrapped((sam, inner)) == [sam.base_optimizer, inner]
    inner.optimizer = inner  # does not recurse without end
    assert unwrapped(inner) == [inner]


class Plain:
    """An optimiser that does not derive from torch's and has no hooks."""

    def __init__(self, params):
        self.param_groups = [{"params": list(params), "lr": 0.5}]

    def step(self):
        for each in self.param_groups[0]["params"]:
            if each.grad is not None:
                each.data.sub_(each.grad, alpha=0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty list"),
        (net(), "Sequential has no param_groups"),
        (Plain(net().parameters()), r"Plain has no hooks: .*swarm\.correct\(\) .*swarm\.corrected\(\)"),
    ],
)
def test_an_object_without_optimiser_hooks_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        unwrapped(given if isinstance(given, list) else [given])


@pytest.mark.parametrize("named", [False, True])
def test_an_optimiser_without_hooks_is_corrected_by_hand(named):
    ends = []
    for by_hand in (False, True):
        model = net()
        optimizer = Plain(model.parameters()) if by_hand else SGD(model.parameters(), lr=0.5)
        (inner,) = unwrapped(optimizer, by_hand=by_hand)
        parameters = Parameters(model, [inner])
        correction = Subtracted(some(parameters.layout.dim))
        hooks = Hooks([inner], parameters, correction)
        for batch in batches(2):
            optimizer_or_all = (optimizer,) if named else ()
            model.zero_grad()
            fitted(model, batch)
            if by_hand:
                hooks.correct(*optimizer_or_all)
            optimizer.step()
            if by_hand:
                hooks.corrected(*optimizer_or_all)
            assert hooks.took_step()
        assert hooks.rate == 0.5
        assert len(correction.taken) == correction.steps == 2
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_by_hand_and_by_hooks_a_step_is_corrected_once():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, correction = hooked(model, optimizer)
    for batch in batches(2):
        fitted(model, batch)
        hooks.correct()
        optimizer.step()
        hooks.corrected()
        assert hooks.took_step()
    assert len(correction.taken) == 2


def test_a_step_by_hand_counts_once_and_only_after_its_correction():
    model = net()
    hooks, _ = hooked(model, SGD(model.parameters(), lr=0.1))
    fitted(model, next(iter(batches(1))))
    hooks.corrected()
    assert not hooks.took_step()
    hooks.correct()
    hooks.corrected()
    assert hooks.took_step()
    hooks.corrected()
    assert not hooks.took_step()


def test_correct_by_hand_ignores_other_optimisers():
    model = net()
    hooks, _ = hooked(model, SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="Adam is none of those given to Swarm"):
        hooks.correct(Adam(model.parameters()))


@pytest.mark.parametrize("entry", ["took_step", "step"])
def test_a_fork_is_refused(monkeypatch, entry):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks, _ = hooked(model, optimizer)
    fitted(model, next(iter(batches(1))))
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(ConfigError, match="this process is a fork of the one that joined"):
        hooks.took_step() if entry == "took_step" else optimizer.step()


def test_a_worker_that_imports_the_script_again_is_refused(monkeypatch):
    """Spawned processes are recognisable until the import is done (measured: own-loop.md §7)."""
    refuse_workers()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match='put it under `if __name__ == "__main__":`'):
        refuse_workers()
