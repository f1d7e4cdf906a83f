"""Metrics are computed over all held-out samples at once: their order and the batch size change nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import starling
from starling.gossip.errors import ConfigError
from starling.node.tasks.evaluate import evaluate
from starling.node.tasks.gathered import Gathered
from tests.harness.tasks import built_in, seeded

Y = (torch.rand(600, generator=seeded(0)) < 0.05).long()
X = torch.randn(600, 4, generator=seeded(1)) + Y[:, None]


def f1(output, target):
    guess = output.argmax(1)
    hit = ((guess == 1) & (target == 1)).sum()
    return 2 * hit / ((guess == 1).sum() + (target == 1).sum()).clamp(min=1)


def auc(output, target):
    """Compute a metric that is undefined without both classes and then raises, as in other libraries."""
    score = output[:, 1] - output[:, 0]
    if not 0 < int(target.sum()) < len(target):
        raise ValueError("only one class is present")
    return (score[target == 1][:, None] > score[target == 0][None]).float().mean()


def errors(output, target):
    return float((output.argmax(1) != target).float().mean())


class MeanError:
    """A metric object like those of torchmetrics."""

    higher_is_better = False

    def __init__(self):
        self.reset()

    def reset(self):
        self.wrong = self.count = 0

    def update(self, preds, target):
        assert preds.device.type == "cpu"
        self.wrong += int((preds.argmax(1) != target).sum())
        self.count += len(target)

    def compute(self):
        return torch.tensor(self.wrong / self.count)


class Two(MeanError):
    """Returns several figures, as a collection does."""

    def compute(self):
        return {"error": super().compute(), "count": self.count}


def weighted(output, target):
    return nn.functional.cross_entropy(output, target, weight=torch.tensor([1.0, 30.0]))


def measured(metrics, order=None, size=50, loss=weighted, model=None, **more):
    order = torch.arange(len(Y)) if order is None else order
    task = starling.task(model=lambda: nn.Linear(4, 2), train=(X, Y), test=(X[order], Y[order]), loss=loss, metrics=metrics, **more)
    made = task.model(seeded(0)) if model is None else model
    *_, result = evaluate(task, made, task.data(built_in(), "cpu"), size)
    return task, made, result


@pytest.mark.parametrize("size", [7, 64, 1000])
@pytest.mark.parametrize("order", [None, Y.argsort()], ids=["mixed", "sorted by class"])
@pytest.mark.parametrize("metric", [f1, auc, MeanError()], ids=["f1", "auc", "object"])
def test_a_metric_is_computed_over_all_samples(metric, order, size):
    _, model, result = measured(metric, order, size)
    with torch.no_grad():
        output = model(X)
    whole = errors(output, Y) if isinstance(metric, MeanError) else float(metric(output, Y))
    assert result.value == pytest.approx(whole, abs=1e-6)
    assert result.loss == pytest.approx(float(weighted(output, Y)), rel=1e-5)
    assert result.samples == 600


def test_the_first_metric_decides_and_the_others_are_reported():
    task, _, result = measured({"f1": f1, "errors": errors, "object": Two()})
    assert (task.metric, task.higher_is_better) == ("f1", True)
    assert result.others.keys() == {"errors", "error", "count"}
    assert result.others["error"] == pytest.approx(result.others["errors"])
    assert result.others["count"] == 600


def test_a_metric_object_declares_its_direction_and_is_reset_each_evaluation():
    shared = MeanError()
    task, model, first = measured(shared)
    assert (task.metric, task.higher_is_better) == ("MeanError", False)
    assert measured(shared, higher_is_better=True)[0].higher_is_better
    assert (shared.wrong, shared.count) == (0, 0)
    *_, again = evaluate(task, model, task.data(built_in(), "cpu"), 50)
    assert again == first


class Texts(Dataset):
    """Text i has 1 + 7 i mod 11 tokens."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.randint(1, 9, (1 + 7 * i % 11,), generator=seeded(i))


def padded(rows):
    return {
        "ids": nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "labels": nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100),
    }


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, ids, labels):
        return self.head(self.embed(ids))


def tagging(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())


def token_accuracy(output, batch):
    asked = batch["labels"] != -100
    return ((output.argmax(-1) == batch["labels"]) & asked).sum() / asked.sum()


@pytest.mark.parametrize("metrics", ["accuracy", token_accuracy, None])
def test_padded_batches_of_unlike_lengths_are_measured_token_by_token(metrics):
    """Labels of joined batches are padded with -100, which a token loss ignores."""
    task = starling.task(model=Tagger, train=DataLoader(Texts(), collate_fn=padded), loss=tagging, metrics=metrics)
    model, data = task.model(seeded(0)), task.data(built_in(), "cpu")
    with torch.no_grad():
        (batch,) = data.held_out(100)
        output = model(**batch)
    for size in (1, 3, 100):
        *_, result = evaluate(task, model, data, size)
        assert result.loss == pytest.approx(float(tagging(output, batch)), rel=1e-5)
        if metrics is not None:
            assert result.value == pytest.approx(float(token_accuracy(output, batch)))


def contrast(output, _target):
    return nn.functional.cross_entropy(output @ output.T, torch.arange(len(output)))


@pytest.mark.parametrize("loss", [contrast, lambda output, target: nn.functional.cross_entropy(output, target, reduction="sum")])
def test_a_summed_loss_is_reported_per_batch(loss):
    _, model, result = measured("accuracy", size=50, loss=loss)
    with torch.no_grad():
        losses = [float(loss(model(x), y)) for x, y in zip(X.split(50), Y.split(50), strict=True)]
    assert result.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_a_batch_without_a_loss_is_measured_without_it():
    calls = []

    def loss(output, target):
        calls.append(1)
        return None if int(target.sum()) == 0 else nn.functional.cross_entropy(output, target)

    _, _, result = measured("accuracy", Y.argsort(), 50, loss)
    assert 0.0 < result.loss < 5.0
    assert result.samples == 600


def test_metrics_that_need_too_much_memory_are_refused_with_a_remedy():
    gathered = Gathered("metrics: f1", most_bytes=5 << 20)
    gathered.add(torch.zeros(1 << 20), torch.zeros(1))
    with pytest.raises(ConfigError, match=r"metrics: f1: is given all outputs .* more than 5 MiB; give an object with update") as caught:
        gathered.add(torch.zeros(1 << 20), torch.zeros(1))
    assert "\n" not in str(caught.value)


def test_a_nan_metric_is_named():
    with pytest.raises(ConfigError, match=r"metrics: wide must give one number, got a Tensor of shape \(600, 2\)"):
        measured({"wide": lambda output, _: output})


def ages(output, target):
    return nn.functional.mse_loss(output[:, 0], target.float())


def logit(output, target):
    return nn.functional.binary_cross_entropy_with_logits(output.reshape(-1), target.float())


def probability(output, target):
    return nn.functional.binary_cross_entropy(output[:, 0], target.float())


def hinge(output, target):
    return (1 - (2 * target - 1) * output[:, 0]).clamp(min=0).mean()


def spread(output, target):
    """Return a mean and a variance, of two outputs."""
    return nn.functional.gaussian_nll_loss(output[:, 0], target.float(), output[:, 1].exp())


def focal(output, target):
    return ((1 - output.softmax(1).gather(1, target[:, None])) ** 2 * -output.log_softmax(1).gather(1, target[:, None])).mean()


@pytest.mark.parametrize(
    ("width", "loss", "labels", "metric"),
    [
        (1, ages, (40 + 10 * X[:, 0]).long(), "loss"),
        (1, ages, Y, "loss"),
        (1, logit, Y, "accuracy"),
        (1, probability, Y, "loss"),
        (1, nn.BCELoss(), Y, "loss"),
        (2, spread, Y, "loss"),
        (2, focal, Y, "accuracy"),
        (2, nn.CrossEntropyLoss(label_smoothing=0.1), Y, "accuracy"),
        (3, None, Y, "accuracy"),
        (2, nn.functional.cross_entropy, (40 + 10 * X[:, 0]).long(), "loss"),
    ],
)
def test_accuracy_is_the_default_metric_for_classification_losses(width, loss, labels, metric):
    task = starling.task(model=lambda: nn.Linear(4, width), train=(X, labels), loss=loss)
    assert task.metric == metric
    assert task.higher_is_better == (metric == "accuracy")


class Pairs(Dataset):
    """(x, y) without `targets`, sorted by label; one sample cannot be read."""

    def __init__(self, labels):
        self.order, self.labels_ = labels.argsort(), labels

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        if i == 0:
            raise OSError("broken")
        return X[self.order[i]], self.labels_[self.order[i]]


class OwnLoss(nn.Linear):
    def forward(self, x):
        return SimpleNamespace(loss=super().forward(x).square().mean())


@pytest.mark.parametrize("wrapped", [lambda data: data, DataLoader], ids=["Dataset", "DataLoader"])
@pytest.mark.parametrize(
    ("model", "loss", "labels", "metric"),
    [
        (lambda: nn.Linear(4, 2), None, Y, "accuracy"),
        (lambda: nn.Linear(4, 2), nn.functional.cross_entropy, Y, "accuracy"),
        (lambda: nn.Linear(4, 1), logit, Y, "accuracy"),
        (lambda: nn.Linear(4, 1), ages, (40 + 10 * X[:, 0]).long(), "loss"),
        (lambda: nn.Linear(4, 1), ages, Y, "loss"),
        (lambda: nn.Linear(4, 2), spread, Y, "loss"),
        (lambda: nn.Linear(4, 1), None, X.sum(1), "loss"),
        (lambda: OwnLoss(4, 2), None, Y, "loss"),
    ],
)
def test_a_dataset_without_a_label_list_is_classified_by_a_few_samples(model, loss, labels, metric, wrapped):
    """Most users' Datasets are like this; a model with its own loss may have no class labels at all."""
    task = starling.task(model=model, train=wrapped(Pairs(labels)), loss=loss)
    assert (task.metric, task.higher_is_better) == (metric, metric == "accuracy")


def test_a_single_logit_predicts_by_its_sign():
    task = starling.task(model=lambda: nn.Linear(4, 1), train=(X, Y), test=(X, Y), loss=logit)
    model = task.model(seeded(0))
    *_, result = evaluate(task, model, task.data(built_in(), "cpu"), 64)
    with torch.no_grad():
        assert result.value == pytest.approx(float(((model(X)[:, 0] > 0) == (Y > 0)).float().mean()))


class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, output, target):
        return nn.functional.cross_entropy(output @ self.weight.T, target)


def enclosed():
    margin = Margin()
    return lambda output, target: margin(2 * output, target)


@pytest.mark.parametrize("loss", [Margin(), Margin().forward, enclosed()], ids=["module", "method", "closure"])
def test_a_loss_with_trainable_weights_is_refused_in_one_line(loss):
    with pytest.raises(ConfigError, match=r"loss: Margin has trainable weights of its own \(weight\).*part of the model") as caught:
        starling.task(model=lambda: nn.Linear(4, 4), train=(X, Y), loss=loss)
    assert "\n" not in str(caught.value)


def test_a_loss_with_frozen_weights_or_buffers_is_accepted():
    frozen = Margin().requires_grad_(False)
    assert starling.task(model=lambda: nn.Linear(4, 4), train=(X, Y), loss=frozen).loss_name == "Margin"
    starling.task(model=lambda: nn.Linear(4, 2), train=(X, Y), loss=nn.CrossEntropyLoss(weight=torch.ones(2)))


def test_numpy_arrays_are_accepted_as_figures():
    _, _, result = measured({"share": lambda output, _: np.float64(output.shape[0])})
    assert result.value == 600.0


@pytest.mark.parametrize("size", [2, 7])
def test_a_model_s_own_loss_over_shifted_labels_is_weighted_by_them(size):
    """As in transformers: the loss averages over all labels but the first of each text, and padding is -100."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=9, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    task = starling.task(
        model=lambda: transformers.GPT2LMHeadModel(config), train=DataLoader(Texts(), collate_fn=padded), metrics="accuracy"
    )
    model, data = task.model(seeded(0)).eval(), task.data(built_in(), "cpu")
    model.forward = without_ids(model.forward)
    (batch,) = data.held_out(100)
    with torch.no_grad():
        whole = model(**batch)
    *_, result = evaluate(task, model, data, size)
    assert result.loss == pytest.approx(float(whole.loss), rel=1e-5)
    assert result.samples == 4


def without_ids(forward):
    return lambda ids, labels: forward(input_ids=ids, labels=labels)


@pytest.mark.parametrize("order", [None, Y.argsort()], ids=["mixed", "sorted by class"])
def test_objects_of_torchmetrics_are_updated_and_computed_once(order):
    torchmetrics = pytest.importorskip("torchmetrics")
    classification = torchmetrics.classification
    named = {
        "f1": classification.MulticlassF1Score(2, average="macro"),
        "all": torchmetrics.MetricCollection([classification.MulticlassAUROC(2), classification.MulticlassRecall(2)]),
    }
    task, model, result = measured(named, order)
    with torch.no_grad():
        output = model(X)
    assert task.higher_is_better
    assert result.value == pytest.approx(float(classification.MulticlassF1Score(2, average="macro")(output, Y)))
    assert result.others["MulticlassAUROC"] == pytest.approx(float(classification.MulticlassAUROC(2)(output, Y)))
    assert not starling.task(model=lambda: nn.Linear(4, 1), train=(X, X.sum(1)), metrics=torchmetrics.MeanSquaredError()).higher_is_better


class Named(MeanError):
    """Returns its one figure by name."""

    def compute(self):
        return {"error": super().compute()}


@pytest.mark.parametrize("kind", [Named, Two])
def test_a_metric_with_named_values_decides_under_both_names(kind):
    """The metric's name is agreed on before any evaluation; the figure's name is reported with it."""
    task, _, result = measured(kind())
    assert task.metric == kind.__name__
    assert result.others["error"] == result.value
    assert list(measured({"error": kind()})[2].others) == ["count"][: kind is Two], "not twice under one name"


class Nothing(MeanError):
    def compute(self):
        return {}


@pytest.mark.parametrize("metrics", [Nothing(), {"f1": f1, "Nothing": Nothing()}], ids=["alone", "beside another"])
def test_a_metric_that_gives_no_figure_is_named(metrics):
    with pytest.raises(ConfigError, match=r"metrics: Nothing gave no figure"):
        measured(metrics)
