"""An unreadable sample is replaced in its batch; batches of any type are moved whole; bytes of a target stay bytes."""

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.tasks.api import taken_notes
from starling.node.tasks.drawn import Drawn
from starling.node.tasks.evaluate import evaluate, held_out
from starling.node.tasks.reserved import Reserved
from starling.node.tasks.samples import samples_of
from tests.harness.tasks import built_in, seeded


class Files(Dataset):
    """Sample i is (i, i), except those in `bad`, which the disk cannot read."""

    def __init__(self, bad, count=100):
        self.bad, self.count, self.reads = set(bad), count, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.reads.append(i)
        if i in self.bad:
            return self.fail(i)
        return torch.tensor([float(i)]), torch.tensor(float(i))

    def fail(self, i):
        raise OSError(f"{i}.png: truncated")


class Nothing(Files):
    """Returns None for a sample that cannot be read, as many Datasets do."""

    def fail(self, i):
        return None


class AtOnce(Files):
    """Reads a batch in one call."""

    def __getitems__(self, numbers):
        return [self[i] for i in numbers]


class Odd(Files):
    """A sample in `bad` has another shape than the others."""

    def fail(self, i):
        return torch.zeros(3), torch.tensor(0.0)


def data_of(train, test=None):
    test = (np.zeros((4, 1)), np.zeros(4)) if test is None else test
    return starling.task(model=lambda: nn.Linear(1, 1), train=train, test=test).data(built_in(), "cpu")


def numbers(batch):
    return [int(i) for i in batch[0].view(-1)]


@pytest.mark.parametrize("kind", [Files, Nothing, AtOnce])
def test_an_unreadable_sample_is_replaced_by_another_draw(kind):
    data, whole = data_of(kind({7, 30, 31})), data_of(kind(()))
    replaced = 0
    for step in range(20):
        one, other = (numbers(each.batch(16, generator(step, "batch"))) for each in (data, whole))
        assert not {7, 30, 31} & set(one)
        assert all(a == b for a, b in zip(one, other, strict=True) if b not in {7, 30, 31})
        replaced += sum(a != b for a, b in zip(one, other, strict=True))
    assert replaced > 0


def test_a_resumed_run_draws_the_same_batches_despite_bad_samples():
    long, fresh = data_of(Files({7, 30, 31})), data_of(Files({7, 30, 31}))
    batches = [long.batch(16, generator(step, "batch")) for step in range(20)]
    assert torch.equal(batches[19][0], fresh.batch(16, generator(19, "batch"))[0])


def test_each_bad_sample_is_reported_once_with_its_number_and_reason():
    files = Files({7, 30})
    data = data_of(files)
    files.reads.clear()  # left by the test whether the loss is one of classes
    for step in range(30):
        data.batch(16, generator(step, "batch"))
    notes = taken_notes(data)
    assert sorted(notes) == [f"sample {i} cannot be read, others are taken in its place: OSError: {i}.png: truncated" for i in (30, 7)]
    assert taken_notes(data) == ()
    assert files.reads.count(7) == 1


@pytest.mark.parametrize("bad", [range(60), range(100)])
def test_data_of_which_most_samples_cannot_be_read_are_an_error(bad):
    with pytest.raises(ConfigError, match=r"train: sample \d+ cannot be read: OSError: .*nor can most of the others"):
        data_of(Files(bad)).batch(32, generator(1, "batch"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_few_samples_all_of_them_bad_are_an_error_too(count):
    with pytest.raises(ConfigError, match=r"data: not one sample can be read|nor can most of the others"):
        data_of(Files(range(count), count)).batch(1, generator(1, "batch"))


def test_unreadable_held_out_samples_are_skipped_and_not_counted():
    data = data_of(Files(()), test=Files({3, 4, 5, 40}))
    counted = [(numbers(batch), count) for batch, count in held_out(data, 4)]
    assert [count for _, count in counted[:3]] == [3, 2, 4]
    assert [i for batch, _ in counted for i in batch] == [i for i in range(100) if i not in {3, 4, 5, 40}]
    assert all(len(batch) == count for batch, count in counted)


def test_a_bad_sample_does_not_prevent_recognising_a_classification_loss():
    class Labelled(Files):
        @property
        def targets(self):
            return [i % 2 for i in range(100)]

        def __getitem__(self, i):
            return super().__getitem__(i)[0], self.targets[i]

    task = starling.task(model=lambda: nn.Linear(1, 2), train=Labelled({0, 3}), loss=nn.functional.cross_entropy)
    assert task.metric == "accuracy"


def test_holding_out_samples_does_not_change_counts_and_reports():
    data = data_of(Files(()), test=Files({3}))
    kept = Reserved(data, torch.arange(10), None)
    assert [count for _, count in held_out(kept, 50)] == [49, 50]
    assert len(taken_notes(kept)) == 1


def test_a_batch_with_a_sample_of_another_shape_is_redrawn_and_reported():
    data = data_of(Odd({7}))
    drawn = [numbers(data.batch(16, generator(step, "batch"))) for step in range(20)]
    assert 7 not in {i for batch in drawn for i in batch}
    assert "a batch is drawn anew: train: samples" in taken_notes(data)[0]


def test_a_sample_requested_by_index_is_not_replaced():
    """Differential privacy relies on it: a replacement would be drawn more often than was accounted for."""
    with pytest.raises(ConfigError, match="train: sample 7 cannot be read"):
        data_of(Files({7})).take(torch.arange(10))


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Record:
    x: torch.Tensor
    names: list


class Graph:
    """An object with a `to` method, as in graph libraries."""

    def __init__(self, x):
        self.x, self.device = x, "nowhere"

    def to(self, device):
        self.device = device
        return self


def of(kind):
    """Return a batch of three samples of a type."""
    x = torch.ones(3, 2)
    return {
        "list": [x, [x, "a"]],
        "named": Pair(x, x),
        "nested": (Pair(x, x), [x]),
        "ordered": OrderedDict(x=x),
        "record": Record(x, ["a", "b", "c"]),
        "graph": Graph(x),
        "packed": (pack_sequence([x, x]), x),
        "text": ["a", "b", "c"],
    }[kind]


@pytest.mark.parametrize("kind", ["list", "named", "nested", "ordered", "record", "graph", "packed", "text"])
def test_a_batch_of_any_type_arrives_as_the_collate_function_made_it(kind):
    given = of(kind)
    data = data_of(DataLoader(Files(()), collate_fn=lambda _: given))
    found = data.batch(3, generator(1, "batch"))
    assert type(found) is type(given)
    if kind == "nested":
        assert (type(found[0]), type(found[1])) == (Pair, list)
    if kind == "graph":
        assert found.device == "cpu"
    if kind == "packed":
        assert isinstance(found[0], PackedSequence)


def test_a_model_of_packed_sequences_and_one_of_objects_train_and_are_measured():
    """The number of samples is that of the indices; a PackedSequence's first tensor has one row per token."""
    sequences = [torch.randn(1 + i % 5, 3, generator=seeded(i)) for i in range(40)]

    class Rows(Files):
        def __getitem__(self, i):
            return sequences[i % 40]

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, batch):
            rows = batch.data if isinstance(batch, PackedSequence) else batch.x
            return self.head(rows)

    def packed(rows):
        return pack_sequence(rows, enforce_sorted=False), torch.zeros(sum(map(len, rows)), 1)

    def graph(rows):
        return Graph(pad_sequence(rows, batch_first=True))

    for collate, loss in ((packed, nn.functional.mse_loss), (graph, lambda output, _: output.square().mean())):
        task = starling.task(model=Mean, train=DataLoader(Rows(()), collate_fn=collate), loss=loss)
        model, data = task.model(seeded(0)), task.data(built_in(), "cpu")
        task.loss(model, data.batch(8, seeded(1))).backward()
        assert model.head.weight.grad.norm() > 0
        *_, result = evaluate(task, model, data, 4)
        assert result.samples == 10


BYTES = torch.arange(20, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("train", "target"),
    [
        ((torch.ones(20, 1), BYTES[:, None].repeat(1, 3)), lambda batch: batch[1]),
        ((BYTES[:, None], torch.ones(20, 1), BYTES), lambda batch: batch[2]),
        ({"image": BYTES[:, None], "mask": BYTES[:, None]}, lambda batch: batch["mask"]),
        ({"pixels": BYTES[:, None], "targets": {"masks": BYTES, "boxes": BYTES}}, lambda batch: batch["targets"]["masks"]),
    ],
)
def test_target_bytes_reach_the_loss_unchanged_and_input_bytes_are_scaled(train, target):
    batch = data_of(train, test=train).batch(64, generator(1, "batch"))
    assert target(batch).dtype == torch.uint8
    assert int(target(batch).max()) == 19
    if isinstance(train, dict):
        first = batch[next(iter(train))]
        assert first.dtype == torch.float32
        assert float(first.max()) == pytest.approx(19 / 255)


def test_labels_in_bytes_are_learned_by_the_standard_loss():
    x = np.random.Generator(np.random.PCG64(1)).integers(0, 255, (40, 2), np.uint8)
    task = starling.task(model=lambda: nn.Linear(2, 2), train=(x, (x[:, 0] > 128).astype(np.uint8)))
    batch = task.data(built_in(), "cpu").batch(8, seeded(1))
    assert task.metric == "accuracy"
    assert torch.isfinite(task.loss(task.model(seeded(0)), batch))
    assert float(batch[0].max()) <= 1.0


class Augmented(Dataset):
    """Samples augmented with random numbers of all three global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, number):
        return torch.tensor([float(torch.rand(())), random.random(), np.random.rand()]), number  # noqa: NPY002


def states():
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    return (torch.get_rng_state().tolist(), python, [part.tolist() if hasattr(part, "tolist") else part for part in numpy])


def test_a_dataset_s_own_random_numbers_follow_the_batch_s_generator():
    """So a resumed run sees the same samples; the global generators are unchanged for their other users."""
    train = samples_of("train", Augmented())
    data, before, batches = Drawn(train, torch.arange(10), train, torch.arange(10), "cpu"), states(), []
    for seed in (1, 1, 2):
        batches.append(data.batch(4, torch.Generator().manual_seed(seed))[0])
        assert states() == before
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002 — somebody else's
        before = states()
    assert torch.equal(batches[0], batches[1])
    assert not (batches[0] == batches[2]).any()
    assert len({*batches[0].flatten().tolist()}) == 12
