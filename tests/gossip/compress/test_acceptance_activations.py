"""What activations lose between the stages of a net that is trained: direct codecs a share that stays, changes one that dies.

A net for digits cut in three, 20 epochs, gradients back in int8 by chance. The reference has two seeds.
"""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.compress.activations import Cache, codec, encode
from starling.gossip.rng import generator
from starling.node.tasks.digits import Digits
from tests.harness.tasks import built_in

pytestmark = pytest.mark.acceptance
EPOCHS, BATCH = 20, 32


class Line(torch.autograd.Function):
    """The next stage works with what arrived; the gradient comes back through its codec."""

    @staticmethod
    def forward(ctx, sent, arrived, chance):
        ctx.chance = chance
        return arrived.clone()

    @staticmethod
    def backward(ctx, gradient):
        return encode(gradient, codec("int8", by_chance=True), ctx.chance)[1], None, None


def trained(name, seed):
    """-> (error of what the second stage sees in each epoch, loss on the training data, accuracy); a name of None: nothing is rounded."""
    data = Digits().data(built_in(), "cpu")
    x, y = data.take(torch.arange(data.samples))
    x = x.flatten(1)
    chance = generator(seed, "net")
    sizes = [((64, 128),), ((128, 128),), ((128, 128), (128, 10))]
    stages = [
        nn.Sequential(
            *(
                part
                for place, size in enumerate(each)
                for part in ((nn.Tanh(),) if place else ()) + (_linear(*size, chance),)
            )
        )
        for each in sizes
    ]
    optimizer = torch.optim.SGD([each for stage in stages for each in stage.parameters()], 0.1, momentum=0.9)
    steps, number, errors = EPOCHS * (len(y) // BATCH), 0, []
    caches = [Cache(1 << 28) for _ in stages[1:]]
    for _ in range(EPOCHS):
        off = whole = 0.0
        for drawn in torch.randperm(len(y), generator=chance)[: len(y) // BATCH * BATCH].split(BATCH):
            h = x[drawn]
            for place, stage in enumerate(stages[:-1]):
                h = torch.tanh(stage(h))
                if name is None:
                    continue
                _, arrived = encode(h, codec(name), chance, caches[place], drawn.tolist())
                caches[place].commit()
                if place == 0:
                    off += float((arrived - h.detach()).square().sum())
                    whole += float(h.detach().square().sum())
                h = Line.apply(h, arrived, chance)
            optimizer.param_groups[0]["lr"] = 0.1 * (0.51 + 0.5 * math.cos(math.pi * number / steps))
            number += 1
            optimizer.zero_grad()
            cross_entropy(stages[-1](h), y[drawn]).backward()
            optimizer.step()
        errors.append(math.sqrt(off / whole) if whole else 0.0)
    with torch.no_grad():
        test_x, test_y = next(data.held_out(1000))
        hits = (_whole(stages, test_x.flatten(1)).argmax(1) == test_y).float().mean()
        return errors, float(cross_entropy(_whole(stages, x), y)), float(hits)


def _linear(inputs, outputs, chance):
    made = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for each in (made.weight, made.bias):
            each.uniform_(-1.0, 1.0, generator=chance).div_(math.sqrt(inputs))
    return made


def _whole(stages, x: Tensor) -> Tensor:
    for stage in stages[:-1]:
        x = torch.tanh(stage(x))
    return stages[-1](x)


@pytest.fixture(scope="module")
def exact():
    return [trained(None, seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("name", "second", "middle", "last"),
    [
        ("int8", 0.004, 0.0055, 0.004),
        ("int4", 0.079, 0.11, 0.079),
        ("delta4", 0.076, 0.03, 0.0),
        ("delta2", 0.517, 0.3, 0.002),
    ],
)
def test_an_error_of_values_stays_and_one_of_changes_dies_and_neither_costs_accuracy(name, second, middle, last, exact):
    """In the second epoch, half way and in the last, means of three seeds. Half way changes leave .022, .20; the reference .008, .148."""
    runs = [trained(name, seed) for seed in range(3)]
    errors = [sum(run[0][epoch] for run in runs) / 3 for epoch in (1, EPOCHS // 2, EPOCHS - 1)]
    losses, hits = ([sum(run[part] for run in of) / 3 for of in (runs, exact)] for part in (1, 2))
    assert errors[0] == pytest.approx(second, rel=0.35)
    assert errors[1] <= middle
    assert errors[2] == pytest.approx(last, rel=0.35, abs=0.004)
    assert losses[0] <= 1.2 * losses[1]
    assert hits[0] >= hits[1] - 0.01
