"""Clones that turn class 1 into 7, in a complete overlay: which FoolsGold on sketched histories detects, and which not.

16 nodes, softmax regression, 100 rounds of one local step with momentum, Dirichlet(0.5); attack success is the share of class 1 test
samples that honest nodes classify as 7. Each attacker trains on its own data with flipped labels; clones all send the model of the first
of them. "known" is a rule that excludes the attackers it is told of: its rate of 7 comes from the missing data, not from the attack.

Means over two splits and three draws of batches each; a single split is off by several points.
"""

import math
from functools import lru_cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from starling.gossip.rng import generator
from starling.node.tasks.synthetic import CLASSES, FEATURES, drawn, split
from starling.robust.rules import foolsgold
from starling.robust.sketches import BUCKETS, sketch

NODES, ROUNDS, BATCH, RATE, BETA = 16, 100, 32, 0.1, 0.9
FROM, TO = 1, 7

pytestmark = pytest.mark.acceptance


def tensors(examples):
    return torch.tensor(examples.x), torch.tensor(examples.y)


def logits(models, x):
    """Compute (…, 650) models on (…, B, 64) samples -> (…, B, 10)."""
    weight = models[..., : FEATURES * CLASSES].unflatten(-1, (CLASSES, FEATURES))
    return x @ weight.transpose(-1, -2) + models[..., None, FEATURES * CLASSES :]


def gradient(models, x, y):
    """Return the gradient of the mean cross-entropy with a weight decay of 1e-3, for each model."""
    error = (torch.softmax(logits(models, x), -1) - one_hot(y, CLASSES)) / y.shape[-1]
    return torch.cat(((error.transpose(-1, -2) @ x).flatten(-2), error.sum(-2)), -1) + 1e-3 * models


def learned(rule: str, attack: str, bad: int, alpha: float, seed: int, draw: int) -> tuple[float, float]:
    (x, y), (test_x, test_y) = map(tensors, drawn())
    parts = [torch.tensor(part) for part in split(tuple(y.tolist()), NODES, alpha, seed)]
    liars = torch.zeros(NODES, dtype=torch.bool)
    liars[torch.randperm(NODES, generator=torch.Generator().manual_seed(11 + seed))[:bad]] = attack != "none"
    others = torch.tensor([[j for j in range(NODES) if j != i] for i in range(NODES)])
    models = torch.zeros(NODES, FEATURES * CLASSES + CLASSES)
    momentum, seen = torch.zeros_like(models), torch.zeros(NODES, NODES - 1, BUCKETS)
    chance = generator(seed, "sybil table", draw)
    for turn in range(ROUNDS):
        places = torch.stack([part[torch.randint(len(part), (BATCH,), generator=chance)] for part in parts])
        labels = torch.where(liars[:, None] & (y[places] == FROM), TO, y[places])
        steepest = gradient(models, x[places], labels)
        momentum = BETA * momentum + (1 - BETA) * steepest if turn else steepest
        half = models - RATE * (0.5 * (1 + math.cos(math.pi * turn / ROUNDS)) + 0.02) * momentum
        sent = half.clone()
        if attack == "clones":
            sent[liars] = half[liars][0]
        received = sent[others]
        if rule == "foolsgold":
            seen = seen + sketch(received - models[:, None], seed)
            weights = foolsgold.weights(foolsgold.similarity(seen))
        else:
            weights = 1.0 - (liars[others] & (rule == "known")).float()
        weights = weights.to(half.dtype)[..., None]
        models = half + (weights * (received - half[:, None])).sum(1) / (1.0 + weights.sum(1))
    return measured(models[~liars], test_x, test_y)


def measured(models: Tensor, x: Tensor, y: Tensor) -> tuple[float, float]:
    guessed = logits(models, x.expand(len(models), -1, -1)).argmax(-1)
    return 100 * float((guessed == y).float().mean()), 100 * float((guessed[:, y == FROM] == TO).float().mean())


@lru_cache(maxsize=64)
def cell(rule, attack, bad, alpha=0.5):
    runs = [learned(rule, attack, bad, alpha, seed, draw) for seed in (0, 1) for draw in range(3)]
    return tuple(sum(each) / len(runs) for each in zip(*runs, strict=True))


def test_the_gradient_in_this_file_is_the_loss_s():
    models = torch.randn(2, FEATURES * CLASSES + CLASSES, generator=generator(0, "g"), dtype=torch.float64).requires_grad_()
    x = torch.randn(2, 5, FEATURES, generator=generator(1, "g"), dtype=torch.float64)
    y = torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])
    loss = sum(cross_entropy(logits(models, x)[i], y[i]) for i in range(2)) + 0.5e-3 * (models**2).sum()
    (exact,) = torch.autograd.grad(loss, models)
    assert torch.allclose(gradient(models, x, y), exact)


@pytest.mark.parametrize("bad", [5, 8])
def test_clones_succeed_against_a_mean_and_not_against_foolsgold(bad):
    accuracy, success = cell("foolsgold", "clones", bad)
    mean_accuracy, mean_success = cell("mean", "clones", bad)
    assert mean_success >= 20
    assert success <= 3
    assert success - cell("known", "clones", bad)[1] <= 1
    assert accuracy > mean_accuracy + 5


def test_without_attackers_foolsgold_costs_little():
    assert cell("mean", "none", 0)[0] - cell("foolsgold", "none", 0)[0] <= 2


def test_equal_data_do_not_make_honest_nodes_look_like_clones():
    assert cell("foolsgold", "clones", 8, 100.0)[1] <= 2
    assert cell("mean", "clones", 8, 100.0)[1] >= 20
    assert cell("mean", "none", 0, 100.0)[0] - cell("foolsgold", "none", 0, 100.0)[0] <= 2


def test_sybils_with_different_data_still_succeed():
    assert cell("foolsgold", "diverse", 5)[1] >= 20
