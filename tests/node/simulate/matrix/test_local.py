"""Local steps of many nodes at once equal those of each node alone."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.catalogues import OPTIMIZERS, task
from starling.node.config.schema import Manifest, OptimizerSection, PaceSection, PartitionSection, TaskSection
from starling.node.engine.corrections import Corrections
from starling.node.engine.optimizers import optimizer
from starling.node.engine.schedules import ramp, schedule
from starling.node.simulate.api import simulate
from starling.node.simulate.matrix.local import LocalSteps
from starling.node.simulate.matrix.problem import Bowls, TorchTask, problem, stacked
from starling.node.simulate.matrix.table import adjacent
from starling.node.tasks.api import Source

LABELS = [f"node-{row}" for row in range(5)]
SMALL = {
    "digits": {"hidden": 8},
    "digits_cnn": {"model": "cnn", "hidden": 8},
    "quadratic": {"dim": 6, "nodes": 5, "dtype": "float64"},
    "quadratic_noisy": {"dim": 6, "nodes": 5, "noise": 0.3, "dtype": "float64"},
    "diagonal": {"dim": 9, "nodes": 5, "dtype": "float64"},
    "logistic": {"dim": 6, "nodes": 5, "samples": 20, "dtype": "float64"},
}
kinds = pytest.mark.parametrize("case", SMALL)


def agreement(case, **task_keys):
    kind = case.split("_")[0]
    section = TaskSection(kind=kind, **SMALL[case], **({"batch_size": 8} | task_keys))
    return Manifest(seed=4, task=section, partition=PartitionSection(kind="iid", shards=5))


def own_gradient(agreed, row, step, x):
    """Return the gradient as `starling.node.engine.local` computes it, with autograd."""
    made = task(agreed.task.kind, agreed.task.params())
    model = made.model(generator(agreed.seed, "model"))
    data = made.data(Source(None, agreed.partition, row, agreed.seed), "cpu")
    nn.utils.vector_to_parameters(x, model.parameters())
    batch = data.batch(agreed.task.batch_size, generator(agreed.seed, "batch", LABELS[row], step))
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(made.loss(model, batch), list(model.parameters()))])


@kinds
@pytest.mark.parametrize("stack_from", [2, 100], ids=["stacked", "one by one"])
def test_stacked_gradients_equal_each_node_s_own(case, stack_from):
    agreed = agreement(case)
    made = problem(agreed, LABELS, stack_from)
    rows, done = torch.tensor([0, 1, 2, 4]), torch.tensor([0, 3, 1, 7])
    x = made.start + 0.1 * torch.randn(4, made.start.numel(), generator=generator(0), dtype=made.start.dtype)
    before = x.clone()
    gradients = made.gradients(rows, done, x)
    assert torch.equal(x, before)
    expected = torch.stack([own_gradient(agreed, *each) for each in zip(rows.tolist(), done.tolist(), x, strict=True)])
    exact = x.dtype == torch.float64
    torch.testing.assert_close(gradients, expected, rtol=1e-12 if exact else 1e-4, atol=1e-14 if exact else 1e-6)


def test_tasks_with_a_formula_use_it_and_others_are_stacked():
    assert isinstance(problem(agreement("quadratic"), LABELS), Bowls)
    assert isinstance(problem(agreement("diagonal"), LABELS), Bowls)
    assert problem(agreement("logistic"), LABELS).optimum is not None
    learned = problem(agreement("digits"), LABELS, stack_from=5)
    assert isinstance(learned, TorchTask)
    assert learned.stacks
    assert not problem(agreement("digits"), LABELS, stack_from=6).stacks


@dataclass(frozen=True, slots=True)
class Branching:
    """A task whose loss branches on values, which vmap cannot trace."""

    inner: object

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def loss(self, model, batch):
        loss = self.inner.loss(model, batch)
        return 2 * loss if float(loss) > 1.0 else loss


def test_a_task_that_torch_cannot_stack_is_computed_node_by_node():
    agreed = agreement("digits")
    inner = task("digits", {"hidden": 8})
    data = [inner.data(Source(None, agreed.partition, row, 4), "cpu") for row in range(5)]
    made = TorchTask(Branching(inner), data, LABELS, 4, 8, stack_from=2)
    assert not made.stacks
    x = made.start.repeat(2, 1)
    gradients = made.gradients(torch.tensor([0, 3]), torch.tensor([2, 0]), x)
    plain = TorchTask(inner, data, LABELS, 4, 8).gradients(torch.tensor([0, 3]), torch.tensor([2, 0]), x)
    torch.testing.assert_close(gradients, 2 * plain, rtol=1e-4, atol=1e-6)  # an untrained model's loss is 2.3


@pytest.mark.parametrize("stack_from", [2, 100], ids=["stacked", "one by one"])
def test_a_nan_loss_gives_a_nan_gradient(stack_from):
    learned = problem(agreement("digits"), LABELS, stack_from)
    x = torch.stack([learned.start, torch.full_like(learned.start, math.inf)])
    gradients = learned.gradients(torch.tensor([0, 1]), torch.tensor([0, 0]), x)
    assert torch.isfinite(gradients[0]).all()
    assert not torch.isfinite(gradients[1]).any()


def test_only_trees_of_tensors_can_be_stacked():
    tree = ({"x": torch.zeros(2)}, [torch.ones(3)])
    both = stacked([tree, tree])
    assert both[0]["x"].shape == (2, 2)
    assert both[1][0].shape == (2, 3)
    with pytest.raises(TypeError, match="a batch of str is no tree of tensors"):
        stacked(["a", "b"])


@pytest.mark.parametrize(("rows", "contiguous"), [([0, 1, 2], True), ([4], True), ([0, 2], False), ([], False)])
def test_contiguous_rows_are_a_view(rows, contiguous):
    x = torch.arange(10.0).reshape(5, 2)
    at = adjacent(torch.tensor(rows, dtype=torch.int64))
    assert isinstance(at, slice) == contiguous
    assert torch.equal(x[at], x[torch.tensor(rows, dtype=torch.int64)])


walks = pytest.mark.parametrize(
    ("kind", "case", "keys"),
    [
        *((kind, "quadratic", {}) for kind in sorted({*OPTIMIZERS.built_in} - {"muon"})),
        ("muon", "digits", {}),
        ("adamw", "digits", {"decay": "matrices"}),
    ],
)


def local_steps(case, kind="sgd", clip_norm=None, keys=None, **pace):
    agreed = agreement(case)
    made = problem(agreed, LABELS)
    decay = {} if kind == "rprop" else {"weight_decay": 0.01}
    section = OptimizerSection(kind=kind, lr=0.05, clip_norm=clip_norm, **decay, **(keys or {}))
    x = made.start.repeat(5, 1)
    at = PaceSection(**({"rounds": 10, "ramp_rounds": 4} | pace))
    on_updates = kind != "sgd"
    return LocalSteps(made, section, at, x, Corrections(clip_norm, on_updates, on_updates)), x


def walk(local, x, plan):
    """Do local steps of (round, rows); `correct` subtracts a constant, as a mixing algorithm does."""
    for turn, rows in plan:
        at = torch.tensor(rows)
        x[at] = local(at, turn, 0, x[at], lambda gradient: gradient - 0.01)
    return x


def alone(local, row, rounds, joined_at=None):
    """Do the steps of a single node: one vector, one optimiser."""
    x = local.problem.start.clone()
    mine = optimizer(local.section, x, weighs_updates=local.corrections.weighs_updates, model=local.problem.model)
    rates = schedule(local.section, local.pace.rounds)
    for step, turn in enumerate(rounds):
        gradient = local.problem.gradients(torch.tensor([row]), torch.tensor([step]), x[None])[0]
        factor = 1.0 if joined_at is None else ramp(turn - joined_at, local.pace.ramp_rounds)
        direction, shift = local.corrections.corrected(gradient, lambda given: given - 0.01)
        mine.step(x, direction, rates.at(turn) * factor, shift)
    return x


@walks
def test_a_row_equals_its_node_whichever_other_rows_step(kind, case, keys):
    """Steps of contiguous rows, of scattered rows and of one row share one memory."""
    local, x = local_steps(case, kind, keys=keys)
    x = walk(local, x, [(0, [0, 1, 2, 3, 4]), (1, [0, 2, 4]), (2, [1, 2]), (3, [0, 1, 2, 3, 4])])
    rounds = {0: (0, 1, 3), 1: (0, 2, 3), 2: (0, 1, 2, 3), 3: (0, 3), 4: (0, 1, 3)}
    for row, at in rounds.items():
        torch.testing.assert_close(x[row], alone(local, row, at), rtol=0, atol=1e-15)


def test_each_row_s_gradient_is_clipped_by_its_own_length():
    local, x = local_steps("quadratic", clip_norm=1.0)
    free, y = local_steps("quadratic")
    rounds = [(turn, [0, 1, 2, 3, 4]) for turn in range(4)]
    x, y = walk(local, x, rounds), walk(free, y, rounds)
    assert not torch.equal(x, y)
    for row in range(5):
        torch.testing.assert_close(x[row], alone(local, row, range(4)), rtol=0, atol=1e-15)


@walks
def test_a_late_joiner_has_an_empty_memory_and_a_rising_rate(kind, case, keys):
    local, x = local_steps(case, kind, keys=keys)
    x = walk(local, x, [(0, [0, 1, 2]), (1, [0, 1, 2])])
    local.joined(1, 2)
    x[1] = local.problem.start
    local.done[1] = 0  # so `alone` draws the same batches
    x = walk(local, x, [(2, [0, 1, 2]), (3, [0, 1, 2])])
    torch.testing.assert_close(x[1], alone(local, 1, (2, 3), joined_at=2), rtol=0, atol=1e-15)
    torch.testing.assert_close(x[0], alone(local, 0, (0, 1, 2, 3)), rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", ["sgd", "adafactor"])  # computed stacked, and row by row
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_non_finite_step_is_undone_for_that_node_only(kind, poison):
    """Otherwise one bad batch would spread over the whole swarm. Its optimiser memory is cleared."""
    local, x = local_steps("quadratic", kind)
    x = walk(local, x, [(0, [0, 1, 2, 3, 4])])
    before = x.clone()
    honest = local.problem.b.clone()
    local.problem.b[2] = poison
    x = walk(local, x, [(1, [0, 1, 2, 3, 4])])
    assert torch.equal(x[2], before[2])
    assert torch.isfinite(x).all()
    assert local.undone == 1
    local.problem.b = honest
    x = walk(local, x, [(2, [0, 1, 2, 3, 4])])
    torch.testing.assert_close(x[0], alone(local, 0, (0, 1, 2)), rtol=0, atol=1e-15)
    local.problem.start = before[2]
    torch.testing.assert_close(x[2], alone(local, 2, (2,)), rtol=0, atol=1e-15)


def test_the_mixing_algorithm_never_sees_a_nan_gradient():
    """A tracker, for example, would stay NaN for ever."""
    local, x = local_steps("quadratic")
    local.problem.b[2] = math.nan
    seen = []

    def correct(gradient):
        seen.append(gradient.clone())
        return gradient

    local(torch.arange(5), 0, 0, x, correct)
    assert torch.isfinite(seen[0]).all()


def test_models_and_directions_are_not_modified():
    local, x = local_steps("diagonal")
    held = torch.full_like(x, 0.5)
    before = x.clone()
    local(torch.arange(5), 0, 0, x, lambda _gradient: held)
    assert torch.equal(x, before)
    assert torch.equal(held, torch.full_like(x, 0.5))


@pytest.mark.parametrize("case", ["quadratic", "diagonal", "logistic"])
def test_errors_are_measured_from_the_optimum_of_live_nodes(case):
    """Nodes that are gone do not count for the optimum."""
    made = problem(agreement(case), LABELS)
    kind = task(case, SMALL[case])
    for alive in ([0, 1, 2, 3, 4], [1, 3]):
        best = kind.optimum(alive, 4)
        assert made.score(best, alive)[0] == pytest.approx(0.0, abs=1e-20)
        assert made.values(torch.stack([made.start, best]), alive) == pytest.approx([1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("case", ["quadratic", "diagonal"])
def test_the_loss_of_a_quadratic_is_measured_from_its_minimum(case):
    made = problem(agreement(case), LABELS)
    made_task, alive = task(case, SMALL[case]), [0, 1, 2, 3, 4]
    (test,) = made_task.data(Source(None, agreement(case).partition, 0, 4), "cpu").held_out(1)
    x = torch.randn(made.start.numel(), generator=generator(1), dtype=torch.float64)
    assert made.score(x, alive)[1] == pytest.approx(float(test(x)), rel=1e-9)
    assert made.score(made_task.optimum(alive, 4), alive)[1] == pytest.approx(0.0, abs=1e-20)


def test_digits_are_evaluated_as_on_a_node():
    made = problem(agreement("digits"), LABELS)
    value, loss = made.score(made.start, [0, 1])
    assert 0.0 <= value <= 0.4
    assert loss == pytest.approx(2.3, abs=0.5)
    assert made.values(made.start[None], [0, 1]) == [value]


def test_muon_is_refused_for_quadratics_which_have_no_matrix():
    with pytest.raises(ConfigError, match=r"optimizer\.kind: muon .* has none besides embeddings"):
        local_steps("quadratic", "muon")


def test_adamw_learns_data_by_label_by_default_where_plain_averages_do_not():
    """Decision 0032: .15 and .55 after 20 rounds of ten steps."""
    split = {"partition": "by_label", "optimizer": "adamw", "optimizer.lr": 0.002, "compress.select": "full"}
    cells = {"sweep.grid": {"mix.kind": ["pet", "dsgd"]}, "pace.local_steps": 10, "pace.evaluate_every": 20}
    runs = simulate(task="digits", nodes=8, rounds=20, engine="matrix", set=split | cells | {"simulate.sample": 0})
    corrected, plain = (run["rows"][-1]["mean"] for run in json.loads(runs.to_json())["runs"])
    assert plain < 0.3
    assert corrected > 0.45
