"""Parts of a batch add up to the whole, whatever its loss averages over; a loss without known weights is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from starling.node.tasks.batches import cut, samples
from starling.node.tasks.means import Means, NoMean, counts, weighted
from tests.harness.tasks import seeded

LENGTHS = (3, 12, 5, 12, 2, 9, 4, 1)


def tokens(padding=0, ignored=-100):
    """Return eight texts of unequal lengths, padded to twelve tokens, with the model's outputs and the targets."""
    chance = seeded(0)
    ids = torch.full((8, 12), padding)
    labels = torch.full((8, 12), ignored)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(1, 20, (length,), generator=chance)
        labels[row, :length] = ids[row, :length]
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    logits = torch.randn(8, 12, 20, generator=chance)
    return {"ids": ids, "mask": mask, "labels": labels, "logits": logits, "lengths": torch.tensor(LENGTHS)}


def entropy(batch, **more):
    return functional.cross_entropy(batch["logits"].flatten(0, 1), batch["labels"].flatten(), **more)


def shifted(batch):
    return functional.cross_entropy(batch["logits"][:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def each(batch, target):
    return functional.cross_entropy(batch["logits"].flatten(0, 1), target.clamp(min=0).flatten(), reduction="none").view(len(target), -1)


def masked(batch):
    mask = batch["mask"].float()
    return (each(batch, batch["ids"]) * mask).sum() / mask.sum()


def by_length(batch):
    lengths = batch["lengths"]
    rows = each(batch, batch["ids"]).sum(1)
    return rows.sum() / lengths.sum()


LOSSES = {
    "samples": lambda batch: each(batch, batch["ids"]).mean(1).mean(),
    "labels": entropy,
    "shifted labels": shifted,
    "a mask": masked,
    "a padding token": lambda batch: functional.cross_entropy(batch["logits"].flatten(0, 1), batch["ids"].flatten(), ignore_index=17),
    "lengths": by_length,
    "a sum": lambda batch: each(batch, batch["ids"]).sum(),
}


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_the_numbers_that_a_loss_averages_are_found(name, size):
    batch = tokens(padding=17 if name == "a padding token" else 0)
    loss, means = LOSSES[name], Means()
    for _ in range(3):
        parts, sizes = cut(batch, size)
        shares = means.shares(batch, parts, sizes, lambda part: float(loss(part)))
        assert weighted(shares, [float(loss(part)) for part in parts]) == pytest.approx(float(loss(batch)), rel=1e-5)


def test_a_text_without_targets_has_weight_0_despite_its_nan_loss():
    batch = tokens()
    batch["labels"][2] = -100
    parts, sizes = cut(batch, 1)
    shares = Means().shares(batch, parts, sizes, lambda part: float(entropy(part)))
    assert shares[2] == 0.0
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "loss",
    [
        lambda batch: entropy(batch, weight=torch.linspace(1, 30, 20)),
        lambda batch: functional.cross_entropy(batch["logits"].mean(1) @ batch["logits"].mean(1).T, torch.arange(len(batch["ids"]))),
        lambda batch: entropy(batch).square(),
    ],
    ids=["weights of classes", "contrast within the batch", "no mean at all"],
)
def test_a_loss_for_which_no_weights_are_known_is_refused(loss):
    batch = tokens()
    with pytest.raises(NoMean, match=r"no mean of the losses of its parts.*starling\.task\(weight=…\)") as caught:
        Means().shares(batch, *cut(batch, 4), lambda part: float(loss(part)))
    assert "\n" not in str(caught.value)


def test_weights_declared_by_a_task_are_used_and_checked():
    """For example weighted classes, whose sum is the count of nothing in the batch."""
    of_class, batch = torch.linspace(1, 30, 20), tokens()

    def loss(part):
        return float(entropy(part, weight=of_class))

    def weight(part):
        return of_class[part["labels"][part["labels"] >= 0]].sum()

    parts, sizes = cut(batch, 3)
    shares = Means(weight).shares(batch, parts, sizes, loss)
    assert weighted(shares, list(map(loss, parts))) == pytest.approx(loss(batch), rel=1e-5)
    with pytest.raises(NoMean, match="weighted by weight they give"):
        Means(lambda part: len(part["ids"])).shares(batch, parts, sizes, loss)


def test_known_loss_weights_are_rechecked_rarely():
    batch, calls = tokens(), []
    means = Means()

    def loss(part):
        calls.append(1)
        return float(entropy(part))

    for _ in range(100):
        means.shares(batch, *cut(batch, 4), loss)
    assert len(calls) <= 3 * 8


def test_the_first_padded_batch_decides_the_loss_weights():
    even = {name: tensor[:2].repeat(4, *[1] * (tensor.ndim - 1)) for name, tensor in tokens().items()}
    even["labels"] = even["labels"].clamp(min=1)
    means, padded = Means(), tokens()
    for batch in (even, even, even, padded):
        parts, sizes = cut(batch, 4)
        shares = means.shares(batch, parts, sizes, lambda part: float(entropy(part)))
        found = weighted(shares, [float(entropy(part)) for part in parts])
        assert found == pytest.approx(float(entropy(batch)), rel=1e-5)


def test_counts_are_of_every_tensor_and_bytes_have_no_negative_padding():
    named = counts({"x": torch.zeros(4, 3), "y": [torch.full((4,), 156, dtype=torch.uint8)]}, 4)
    assert named["samples"] == 4
    assert named["numbers of x"] == 12
    assert not any("-100" in name for name in named)
    assert samples({"x": torch.zeros(4, 3)}) == 4


def test_dropout_does_not_hide_the_numbers_that_a_loss_averages():
    """The trial losses are computed in evaluation mode."""
    from starling.node.engine.parts import Parts

    class Task:
        def loss(self, model, batch):
            return functional.cross_entropy(model(batch["logits"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    model, notes, batch = nn.Dropout(0.5).train(), [], tokens()
    parts, sizes = cut(batch, 4)
    shares = Parts(Task(), model, "cpu", notes).shares(batch, parts, sizes)
    labels = [int((part["labels"] >= 0).sum()) for part in parts]
    assert shares == pytest.approx([count / sum(labels) for count in labels])
    assert notes == []
    assert model.training
