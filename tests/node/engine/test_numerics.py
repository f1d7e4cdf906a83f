"""Gradients in parts, in lower precision and with too little memory equal those of the whole batch; layers draw from the step's seed."""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import bind, layout
from starling.node.catalogues import task
from starling.node.config.schema import NumericsSection, PartitionSection, PrivacySection
from starling.node.engine.loss_scale import FIRST, GROWTH_STEPS, MOST, LossScale
from starling.node.engine.numerics import DRAW_NOTHING, Gradients, inductor, slowdown
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.tasks.api import Source
from starling.node.tasks.batches import part, samples
from tests.harness.engines import done, manifest, open_request, opened, refused_as, x_of
from tests.harness.processes import ROOT

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Record:
    x: torch.Tensor


class Fit:
    """Mean squared error of a small network, whose gradient runs out of memory above `most` samples."""

    def __init__(self, most=10**6, error=FULL):
        self.most, self.error, self.sizes = most, error, []

    def loss(self, model, batch):
        x, y = batch
        if torch.is_grad_enabled():
            self.sizes.append(len(x))
            if len(x) > self.most:
                raise self.error
        return ((model(x) - y) ** 2).mean()


def gradient_of(task, batch, *, dropout=0.0, seed=3, compiler=inductor, scale=None, notes=None, **keys):
    chance = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))
    x, gradient = bind(model, layout(model))
    x.copy_(torch.randn(x.numel(), generator=chance))
    resets = []
    computed = Gradients(NumericsSection(**keys), task, model, "cpu", compiler)
    computed.scale = scale or computed.scale
    before = torch.random.get_rng_state()
    loss = computed.compute(batch, gradient, seed, lambda: resets.append(1))
    if notes is not None:
        notes += computed.notes
    assert torch.equal(before, torch.random.get_rng_state())
    return gradient, loss, computed.micro_batch, len(resets)


def batch_of(count):
    chance = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=chance), torch.randn(count, 2, generator=chance)


@pytest.mark.parametrize("micro_batch", [1, 3, 8, 11, 12, 100])
def test_micro_batches_add_up_to_the_gradient_of_the_batch(micro_batch):
    """A smaller last micro-batch counts by its samples."""
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
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory: you tried to allocate"),
        MemoryError(),
    ],
)
def test_a_batch_that_exceeds_memory_is_halved_until_it_fits_with_one_report(error):
    whole, *_ = gradient_of(Fit(), batch_of(12))
    task = Fit(3, error)
    ours, _, found, resets = gradient_of(task, batch_of(12), notes=(notes := []))
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-6)
    assert (task.sizes, found, resets) == ([12, 6, 3, 3, 3, 3], 3, 2)
    assert notes[-1].endswith("`--set numerics.micro_batch=3` begins with that")


class Tagging:
    """A loss over labels other than -100, of texts of unequal lengths; class `weights` make it a mean of no number in the batch."""

    def __init__(self, most=10**6, weights=None):
        self.most, self.weights = most, weights

    def loss(self, model, batch):
        if torch.is_grad_enabled() and len(batch["labels"]) > self.most:
            raise FULL
        output = model(batch["x"])
        weight = None if self.weights is None else torch.tensor(self.weights)
        return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), weight=weight)


def texts(count=8, longest=12):
    chance = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 2, (count, longest), generator=chance)
    for row in range(count):
        labels[row, 1 + 5 * row % longest :] = -100
    return {"x": torch.randn(count, longest, 5, generator=chance), "labels": labels}


@pytest.mark.parametrize("how", [{"micro_batch": 1}, {"micro_batch": 3}, {"most": 2}])
def test_tokens_have_equal_weight_in_every_part_of_a_batch(how):
    """Padding in one part does not give its tokens more weight, also after memory ran out."""
    whole, loss, *_ = gradient_of(Tagging(), texts())
    task = Tagging(how.pop("most", 10**6))
    ours, own, *_ = gradient_of(task, texts(), dropout=0.0, notes=(notes := []), **how)
    torch.testing.assert_close((ours, own), (whole, loss), rtol=1e-5, atol=1e-6)
    assert not any("not known" in note for note in notes)


def test_a_loss_that_is_not_a_mean_of_its_parts_is_refused_in_one_line():
    task = Tagging(weights=[1.0, 30.0])
    with pytest.raises(ConfigError, match=r"no mean of the losses of its parts.*starling\.task\(weight=…\)") as error:
        gradient_of(task, texts(), micro_batch=2)
    assert "\n" not in str(error.value)
    task.weight = lambda batch: torch.tensor([1.0, 30.0])[batch["labels"][batch["labels"] >= 0]].sum()
    whole, loss, *_ = gradient_of(task, texts())
    ours, own, *_ = gradient_of(task, texts(), micro_batch=2)
    torch.testing.assert_close((ours, own), (whole, loss), rtol=1e-5, atol=1e-6)


def test_incomparable_parts_are_reported_to_the_owner():
    class Drawn(Fit):
        def loss(self, model, batch):
            return super().loss(model, batch) * (1 + torch.rand(()))

    gradient_of(Drawn(), batch_of(8), micro_batch=2, notes=(notes := []))
    assert [note for note in notes if "is not known: it is drawn at random" in note]


def test_a_batch_without_a_loss_leaves_no_gradient_and_no_number():
    class Picky(Fit):
        def loss(self, model, batch):
            return None if float(batch[0][0, 0]) < 10 else super().loss(model, batch)

    gradient, loss, *_ = gradient_of(Picky(), batch_of(4))
    assert loss != loss  # noqa: PLR0124 — nan
    assert not gradient.any()


def test_other_errors_are_attributed_to_the_task():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradient_of(Fit(0, RuntimeError("mat1 and mat2 shapes cannot be multiplied")), batch_of(4))


def test_a_sample_too_large_for_memory_is_reported_in_one_line():
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
        (Record(torch.zeros(4)), None),
        ((torch.zeros(4), Record(torch.zeros(4))), None),
        ((torch.zeros(4), nn.utils.rnn.pack_sequence([torch.zeros(2)] * 4)), None),
        ((torch.zeros(4), ["a", "b", "c", "d"]), 4),
    ],
)
def test_a_batch_is_split_where_all_its_tensors_have_one_length(batch, count):
    assert samples(batch) == count
    if count is not None:
        first = part(batch, 1, 3)
        assert samples(first) == 2
        assert all(len(each) == 2 for each in first if isinstance(each, list) and isinstance(each[0], str))
        assert type(first) is type(batch)


def test_layers_draw_from_the_seed_and_torch_s_global_generator_is_unchanged():
    one, other, another = (gradient_of(Fit(), batch_of(6), dropout=0.5, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, another)


def test_tasks_that_draw_nothing_leave_the_generators_alone():
    """A list of modules says which tasks these are: with every network they draw nothing in a step. Tasks of users are seeded."""
    for module in DRAW_NOTHING:
        assert importlib.import_module(module)
    tasks = [("digits", {}), ("digits", {"model": "cnn"}), ("text", {"width": 32, "layers": 1, "heads": 1, "context": 8})]
    tasks += [("quadratic", {"dim": 5, "noise": 1.0}), ("logistic", {}), ("synthetic", {"model": "mlp"})]
    for kind, params in tasks:
        made = task(kind, params)
        assert type(made).__module__ in DRAW_NOTHING
        model = made.model(torch.Generator().manual_seed(1))
        assert not any(isinstance(each, nn.Dropout) for each in model.modules())
        data = None if kind == "text" else made.data(Source(None, PartitionSection(shards=16), 0, 5), "cpu")
        batch = torch.zeros(2, 9, dtype=torch.int64) if data is None else data.batch(4, torch.Generator().manual_seed(2))
        _, gradient = bind(model, layout(model))
        before = torch.random.get_rng_state()
        Gradients(NumericsSection(), made, model, "cpu").compute(batch, gradient, 3, lambda: None)
        assert torch.equal(before, torch.random.get_rng_state())


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


def test_in_float16_a_small_gradient_survives_where_it_would_have_become_zero():
    """Without a scale the numbers of the backward pass are below float16's smallest."""

    class Tiny(Fit):
        def loss(self, model, batch):
            return 1e-9 * super().loss(model, batch)

    whole, *_ = gradient_of(Tiny(), batch_of(12))
    lost, *_ = gradient_of(Tiny(), batch_of(12), precision="float16", scale=LossScale(1.0))
    kept, *_ = gradient_of(Tiny(), batch_of(12), precision="float16", scale=LossScale(MOST))
    assert float((lost - whole).norm() / whole.norm()) > 0.5
    assert float((kept - whole).norm() / whole.norm()) < 0.05
    assert kept.dtype == torch.float32


def test_a_scale_too_large_is_halved_and_the_same_batch_computed_again():
    scale, task = LossScale(MOST), Fit()
    whole, loss, *_ = gradient_of(Fit(), batch_of(12))
    ours, own, _, resets = gradient_of(task, batch_of(12), precision="float16", scale=scale)
    assert scale.scale < MOST
    assert resets == len(task.sizes) - 1 == round(torch.log2(torch.tensor(MOST / scale.scale)).item())
    torch.testing.assert_close((ours, own), (whole, loss), rtol=0.02, atol=0.02)


def test_an_emulated_precision_is_reported_to_the_owner(monkeypatch):
    ticks = iter([0.0, 1.0, 5.0, 15.0])
    assert slowdown("cpu", torch.float16, lambda: next(ticks)) == 10.0
    assert slowdown("cuda", torch.float16) == 1.0
    monkeypatch.setattr("starling.node.engine.numerics.slowdown", lambda *_: 10.4)
    engine = Worker(clock=lambda: 0.0)
    done(engine, msgspec.structs.replace(open_request(manifest()), numerics=NumericsSection(precision="float16")))
    [note] = done(engine, calls.Train(0, 1)).notes
    assert "float16 is 10 times slower than float32 on this machine's cpu" in note


def test_a_non_finite_loss_does_not_change_the_scale():
    class Broken(Fit):
        def loss(self, model, batch):
            return super().loss(model, batch) * float("nan")

    scale, task = LossScale(), Broken()
    _, loss, *_ = gradient_of(task, batch_of(4), precision="float16", scale=scale)
    assert loss != loss  # noqa: PLR0124 — nan
    assert (scale.scale, len(task.sizes)) == (FIRST, 1)


def test_a_scale_grows_after_many_finite_gradients_within_its_bounds():
    scale, good, bad = LossScale(MOST / 2), torch.ones(3), torch.tensor([1.0, torch.inf])
    for _ in range(3 * GROWTH_STEPS):
        assert scale.unscaled(good)
    assert scale.scale == MOST
    assert [scale.unscaled(bad) for _ in range(24)] == [False] * 24
    assert scale.scale == 1.0
    assert scale.unscaled(bad), "left to the learner, which undoes the step"


@pytest.mark.parametrize("state", [[0.5, 0.0], [2.0**25, 0.0], [1.0, -1.0], [1.0, 1e9], [float("nan"), 0.0], [1.0]])
def test_a_damaged_scale_of_a_checkpoint_is_refused(state):
    scale = LossScale()
    with pytest.raises(ValueError, match="loss scale"):
        scale.restore({"numerics.scale": torch.tensor(state, dtype=torch.float64)})
    assert scale.scale == FIRST


def test_a_resumed_run_in_float16_goes_on_at_its_scale(tmp_path):
    agreed, numerics = manifest(), NumericsSection(precision="float16")
    first, second = Worker(clock=lambda: 0.0), Worker(clock=lambda: 0.0)
    asked = msgspec.structs.replace(open_request(agreed, checkpoint=tmp_path / "c.safetensors"), numerics=numerics)
    done(first, asked)
    first.trainer.means.gradients.scale.scale = 64.0
    done(first, calls.Train(0, 3))
    done(first, calls.Save())
    done(second, asked)
    assert second.trainer.means.gradients.scale == LossScale(64.0, 3)


def interpreted(loss):
    return loss


def failing(at):
    """Return a compiler whose result fails at its `at`-th call; 0: it fails while compiling."""

    def compiler(loss):
        calls_so_far = []

        def compiled(model, batch):
            calls_so_far.append(1)
            if len(calls_so_far) == at:
                raise NotImplementedError("no such operation\nand much more")
            return loss(model, batch)

        if not at:
            raise ImportError("no compiler")
        return compiled

    return compiler


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_compiler_failure_falls_back_with_the_reason(at):
    """Also in the middle of a batch, whose gradient is not counted twice."""
    whole, loss, *_ = gradient_of(Fit(), batch_of(12), micro_batch=4)
    keys = {"micro_batch": 4, "compile": True}
    ours, own, _, resets = gradient_of(Fit(), batch_of(12), compiler=failing(at), notes=(notes := []), **keys)
    assert torch.equal(ours, whole)
    assert (own, resets) == (loss, min(at, 1))
    if at:
        [note] = notes
        assert note.startswith("numerics.compile: the model is not compiled from here on, NotImplementedError: no such operation; ")


def test_errors_of_a_compiled_task_are_attributed_to_the_task():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradient_of(Fit(0, RuntimeError("mat1 and mat2")), batch_of(4), compile=True, compiler=interpreted)


def test_automatic_changes_are_reported_once():
    engine = opened(manifest())
    engine.trainer.means.gradients.notes.append("out of memory: …")
    assert [done(engine, calls.Train(turn, 1)).notes for turn in (0, 1)] == [("out of memory: …",), ()]


@pytest.mark.acceptance
@pytest.mark.parametrize("cxx", ["", "/nonexistent"])
def test_torch_s_own_compiler_or_its_absence(cxx, tmp_path):
    """In a separate process, since torch looks for a compiler once. Takes half a minute each."""
    program = """
import torch
from tests.node.engine.test_numerics import Fit, batch_of, gradient_of
whole, *_ = gradient_of(Fit(), batch_of(12), dropout=0.5)
ours, _, _, resets = gradient_of(Fit(), batch_of(12), compile=True, notes=(notes := []))
plain, *_ = gradient_of(Fit(), batch_of(12))
torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
print(resets, *notes)
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)} | ({"CXX": cxx} if cxx else {})
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("1 numerics.compile: the model is not compiled" if cxx else "0")


@pytest.mark.parametrize("numerics", [{"micro_batch": 5}, {"precision": "bfloat16"}, {"precision": "float16"}])
def test_a_node_with_different_numerics_learns_with_the_swarm(numerics):
    agreed = manifest()
    plain, own = opened(agreed), Worker(clock=lambda: 0.0)
    done(own, msgspec.structs.replace(open_request(agreed), numerics=NumericsSection(**numerics)))
    losses = [done(each, calls.Train(0, 20)).figures.loss for each in (plain, own)]
    moved = x_of(plain) - opened(agreed).vector
    assert not torch.equal(x_of(plain), x_of(own))
    assert float((x_of(plain) - x_of(own)).norm()) < 0.05 * float(moved.norm())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_features_that_machine_or_model_lack_are_refused_in_one_line(monkeypatch):
    def refused(words, agreed=None, **keys):
        asked = msgspec.structs.replace(open_request(agreed or manifest()), **keys)
        refused_as("config", Worker().handle(asked), words)

    bf16 = NumericsSection(precision="bfloat16")
    refused("bfloat16 is for models in float32", manifest("quadratic"), numerics=bf16)
    both = NumericsSection(compile=True, activation_checkpointing=True)
    refused("activation_checkpointing: not with numerics.compile", numerics=both)
    refused("numerics: privacy.noise needs", numerics=bf16, privacy=PrivacySection(noise=1.0))
    monkeypatch.setattr("starling.node.engine.numerics.has_precision", lambda *_: False)
    refused("cpu of this machine has no bfloat16; leave it out", numerics=bf16)
