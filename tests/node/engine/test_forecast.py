"""The duration of a step is predicted from its operations: their number, and the seconds that a node's own steps then take."""

import gc
import json
import sys
import time
from collections import Counter
from statistics import median

import numpy as np
import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.catalogues import task
from starling.node.config.schema import Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.engine.forecast import step as forecasts
from starling.node.engine.forecast import timing
from starling.node.engine.forecast.__main__ import main
from starling.node.engine.forecast.operations import Operation, operations
from starling.node.engine.forecast.step import forecast
from starling.node.engine.forecast.timing import apart, kernels
from starling.node.engine.local.local_step import GradientStep
from starling.node.engine.local.trainer_setup import trainer_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.tasks.api import Source
from starling.node.tasks.reserved import data_of

ADAMW = OptimizerSection(kind="adamw", lr=1e-3)
WIDE = {"width": 64, "layers": 2, "heads": 4, "context": 32}


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random bytes and images: the duration of a step does not depend on their content."""
    made, chance = tmp_path_factory.mktemp("forecast"), np.random.default_rng(0)
    images = chance.integers(0, 256, (600, 28, 28)).astype(np.uint8)
    np.savez(made / "images.npz", x=images, y=chance.integers(0, 10, 600))
    (made / "text.txt").write_bytes(chance.integers(97, 123, 100_000).astype(np.uint8).tobytes())
    return made


def manifests(folder):
    images, text = str(folder / "images.npz"), str(folder / "text.txt")
    tasks = {
        "mlp": (TaskSection(kind="images", path=images, hidden=512, batch_size=64), OptimizerSection()),
        "cnn": (TaskSection(kind="images", model="cnn", path=images, batch_size=32), OptimizerSection()),
        "gpt": (TaskSection(kind="text", path=text, batch_size=8, **WIDE), ADAMW),
    }
    partition = PartitionSection(kind="iid", shards=1)
    return {name: Manifest(task=section, optimizer=optimizer, partition=partition) for name, (section, optimizer) in tasks.items()}


def parts(manifest):
    made = task(manifest.task.kind, manifest.task.params())
    return made, data_of(made, Source(None, manifest.partition, 0, manifest.seed), "cpu", 0.0)


def ticking():
    """A clock that advances by a second at each reading."""
    now = 0.0

    def clock():
        nonlocal now
        now += 1.0
        return now

    return clock


def test_an_operation_counts_as_often_as_it_is_done_and_is_timed_once_with_its_shapes():
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())))
    found = operations(lambda m, x: m(x).sum(), model, torch.ones(2, 8))
    times = Counter[str]()
    for each in found:
        times[str(each.call)] += each.count
    assert times["aten.addmm.default"] == times["aten.relu.default"] == times["aten.threshold_backward.default"] == 3
    assert len([each for each in found if each.call is torch.ops.aten.addmm.default]) == 1
    assert kernels(found, ticking(), repeats=3) == 0.0  # each measured second is the clock's own cost


def test_seconds_of_an_operation_count_as_often_as_it_is_done():
    now = 0.0

    def taking(seconds):
        def call():
            nonlocal now
            now += seconds

        return call

    given = ((), {})
    found = [Operation(taking(2.0), given, 3), Operation(taking(0.5), given, 4)]
    assert apart(found, lambda: now, repeats=3) == [6.0, 2.0]
    assert kernels(found, lambda: now, repeats=3) == 8.0


@pytest.mark.slow
def test_an_update_is_timed_between_operations(monkeypatch, folder):
    """Timed alone it would find all of its vectors in a cache, and take a fifth less than in a step."""
    agreed, seen = manifests(folder)["gpt"], []
    monkeypatch.setattr(forecasts, "apart", lambda found, clock: seen.append(found) or apart(found, clock))
    forecast(agreed, *parts(agreed), ticking())
    *before, last = seen[0]
    assert len(before) > 50
    assert last.count == 1
    assert isinstance(last.call, GradientStep)


def test_a_forecast_allocates_no_activations():
    """The activations of this batch would be 4 TB, and its operations are counted all the same."""
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 1))
    found = operations(lambda m, x: m(x.expand(10**9, 1000)).mean(), model, torch.ones(1, 1000))
    assert any(each.count and "tanh" in str(each.call) for each in found)


def test_a_loss_that_depends_on_numbers_is_refused_in_one_line():
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=r"task\.kind: its loss cannot be followed"):
        operations(lambda m, x: m(x).sum() * (2.0 if m(x).sum() > 0 else 1.0), model, torch.ones(1, 2))


def test_a_forecast_covers_a_whole_step_and_leaves_generators_unchanged(one_thread, folder):
    agreed = manifests(folder)["gpt"]
    made, data = parts(agreed)
    before = torch.random.get_rng_state()
    found = forecast(agreed, made, data)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found.parameters == sum(each.numel() for each in made.model(torch.Generator()).parameters())
    assert min(found.batch_s, found.kernels_s, found.update_s) > 0.0
    assert found.around_s >= 0.0
    assert found.step_s == found.batch_s + found.kernels_s + found.update_s + found.around_s


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_predicted_step_times_are_within_the_documented_range_of_measured_ones(name, one_thread, folder):
    """Median of five, each followed by steps of a trainer, in processor seconds, so other load affects both."""
    agreed = manifests(folder)[name]
    made, data = parts(agreed)
    trainer = trainer_of(calls.Open(agreed, "", 0, "cpu", 1, "", "a"), Csprng(bytes), GradientWindow())
    ratios = []
    for _ in range(5):
        predicted = forecast(agreed, made, data, time.thread_time).step_s
        gc.collect()
        taken = list(timing.times(lambda: trainer.step(0), time.thread_time, 60))
        ratios.append(predicted / median(taken[10:]))
    sys.stderr.write(f"{name}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}\n")
    assert 0.8 <= median(ratios) <= 1.3, ratios


def test_the_output_of_a_forecast_is_one_line(one_thread, tmp_path, capsys):
    (tmp_path / "m.toml").write_text('[task]\nkind = "digits"\n')
    main([str(tmp_path / "m.toml")])
    said = json.loads(capsys.readouterr().out)
    assert said["parameters"] > 0
    assert said["step_s"] > said["kernels_s"] > 0.0


def test_without_data_there_is_no_forecast(tmp_path):
    (tmp_path / "m.toml").write_text('[task]\nkind = "images"\n')
    with pytest.raises(ConfigError, match=r"task\.path"):
        main([str(tmp_path / "m.toml")])


def test_operations_on_large_tensors_are_timed_in_groups_that_fit_memory(monkeypatch):
    """The sum is the same; the clock advances by a second per reading, of which one is subtracted as its own cost."""
    found = operations(lambda m, x: m(x).sum(), nn.Linear(8, 8), torch.ones(2, 8))
    whole = kernels(found, ticking(), repeats=2)
    monkeypatch.setattr(timing, "GROUP_BYTES", 1)
    assert kernels(found, ticking(), repeats=2) == whole
