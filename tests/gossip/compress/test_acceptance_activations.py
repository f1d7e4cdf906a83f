"""Errors of compressed activations between the stages of a trained net: a constant share with direct codecs, vanishing with differences.

Nets for digits and for a smooth function, cut in three, with gradients in randomly rounded int8; means of three seeds, where the
reference has one or two.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from starling.gossip.compress.activations import Cache, codec, encode
from starling.gossip.rng import generator
from starling.node.tasks.digits import Digits
from tests.harness.tasks import built_in

pytestmark = pytest.mark.acceptance
BATCH = 32


@dataclass(frozen=True)
class Problem:
    """The data, and the stages: each one's layer widths, with a tanh after all layers but the last."""

    stages: tuple[tuple[int, ...], ...]
    epochs: int
    lr: float
    loss: Callable[[Tensor, Tensor], Tensor]
    data: Callable[[], tuple[Tensor, Tensor, Tensor, Tensor]]


def digits():
    """Return digits, split as in the reference: 1,297 for training and 500 for testing."""
    data = Digits().data(built_in(), "cpu")
    known, held_out = data.take(torch.arange(data.samples)), next(data.held_out(1000))
    x, y = torch.cat([known[0], held_out[0]]).flatten(1), torch.cat([known[1], held_out[1]])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    test, train = order[:500], order[500:]
    return x[train], y[train], x[test], y[test]


def smooth():
    """Return 512 points of a smooth function, whose loss shows rounding errors."""
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(512, 16, generator=chance)
    y = torch.sin(x @ torch.randn(16, 3, generator=chance) / 4).sum(1, keepdim=True)
    return x, y, x, y


DIGITS = Problem(((64, 128), (128, 128), (128, 128, 10)), 20, 0.1, cross_entropy, digits)
FIT = Problem(((16, 32), (32, 32), (32, 32, 1)), 40, 0.02, mse_loss, smooth)


class Line(torch.autograd.Function):
    """Passes the decoded activations to the next stage, and gradients back through their codec."""

    @staticmethod
    def forward(ctx, sent, arrived, chance):
        ctx.chance = chance
        return arrived.clone()

    @staticmethod
    def backward(ctx, gradient):
        return encode(gradient, codec("int8", by_chance=True), ctx.chance)[1], None, None


@dataclass
class Trained:
    errors: list[float]  # relative errors of the second stage's input, in each epoch
    loss: float  # on the training data, without rounding
    hits: float  # accuracy, without rounding
    bits: float  # bits per number that is sent forward, with frames


def trained(name, seed, problem=DIGITS):
    """Train with the named codec; with None nothing is rounded."""
    x, y, test_x, test_y = problem.data()
    chance = generator(seed, "net")
    stages = [_stage(widths, last=widths is problem.stages[-1], chance=chance) for widths in problem.stages]
    optimizer = torch.optim.SGD([each for stage in stages for each in stage.parameters()], problem.lr, momentum=0.9)
    steps, number, errors, told, numbers = problem.epochs * (len(y) // BATCH), 0, [], 0, 0
    caches = [Cache(1 << 28) for _ in stages[1:]]
    for _ in range(problem.epochs):
        off = whole = 0.0
        for drawn in torch.randperm(len(y), generator=chance)[: len(y) // BATCH * BATCH].split(BATCH):
            h = x[drawn]
            for place, stage in enumerate(stages[:-1]):
                h = stage(h)
                if name is None:
                    continue
                data, arrived = encode(h, codec(name), chance, caches[place], drawn.tolist())
                caches[place].commit()
                told, numbers = told + len(data), numbers + h.numel()
                if place == 0:
                    off += float((arrived - h.detach()).square().sum())
                    whole += float(h.detach().square().sum())
                h = Line.apply(h, arrived, chance)
            optimizer.param_groups[0]["lr"] = problem.lr * (0.51 + 0.5 * math.cos(math.pi * number / steps))
            number += 1
            optimizer.zero_grad()
            problem.loss(stages[-1](h), y[drawn]).backward()
            optimizer.step()
        errors.append(math.sqrt(off / whole) if whole else 0.0)
    made = nn.Sequential(*stages)
    with torch.no_grad():
        hits = float((made(test_x).argmax(1) == test_y.flatten()).float().mean())
        return Trained(errors, float(problem.loss(made(x), y)), hits, 8 * told / max(numbers, 1))


def _stage(widths, *, last, chance):
    parts = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [_linear(inputs, outputs, chance), nn.Tanh()]
    return nn.Sequential(*parts[: -1 if last else None])


def _linear(inputs, outputs, chance):
    made = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for each in (made.weight, made.bias):
            each.uniform_(-1.0, 1.0, generator=chance).div_(math.sqrt(inputs))
    return made


@pytest.fixture(scope="module")
def exact():
    """The results on both problems without rounding."""
    return {problem: [trained(None, seed, problem) for seed in range(3)] for problem in (DIGITS, FIT)}


def means(runs, epochs):
    """Return (errors in the second epoch, half way and in the last, loss, accuracy)."""
    errors = [fmean(run.errors[epoch] for run in runs) for epoch in (1, epochs // 2, epochs - 1)]
    return errors, fmean(run.loss for run in runs), fmean(run.hits for run in runs)


@pytest.mark.parametrize(
    ("name", "second", "middle", "last"),
    [("int8", 0.004, 0.004, 0.004), ("int4", 0.079, 0.079, 0.079), ("delta4", 0.076, 0.0128, 0.0), ("delta2", 0.517, 0.162, 0.002)],
)
def test_the_error_of_values_stays_and_that_of_differences_vanishes(name, second, middle, last, exact):
    """Errors in the second epoch, half way and in the last.

    Half way the reference reports .008 and .148 for differences, one seed each; five seeds of its script on these data give .0128 and .162
    (.0084 to .0162, .135 to .179).
    """
    errors, loss, hits = means([trained(name, seed) for seed in range(3)], DIGITS.epochs)
    _, unrounded, unrounded_hits = means(exact[DIGITS], DIGITS.epochs)
    assert errors == [pytest.approx(each, rel=0.35, abs=0.002) for each in (second, middle, last)]
    assert unrounded == pytest.approx(2.1e-3, rel=0.35)
    assert loss <= 1.2 * unrounded
    assert unrounded_hits == pytest.approx(0.963, abs=0.015)
    assert hits >= unrounded_hits - 0.01


@pytest.mark.parametrize(
    ("name", "bits", "second", "middle", "last", "loss"),
    [
        ("int8", 8.0, 0.004, 0.004, 0.004, 1.0),
        ("int4", 4.0, 0.075, 0.075, 0.075, 1.11),
        ("delta4", 4.3, 0.020, 0.004, 0.0, 1.0),
        ("delta2", 2.35, 0.126, 0.023, 0.001, 1.16),
    ],
)
def test_two_bit_differences_learn_a_smooth_function_like_four_bit_values(name, bits, second, middle, last, loss, exact):
    """The loss relative to that without rounding, in five seeds of the reference's script, which differ twofold (.0105 to .0233).

    Scales of 64 numbers add half a bit per number, and the sample's number two bits in samples of 32 numbers.
    """
    runs = [trained(name, seed, FIT) for seed in range(3)]
    errors, found, _ = means(runs, FIT.epochs)
    _, unrounded, _ = means(exact[FIT], FIT.epochs)
    assert errors == [pytest.approx(each, rel=0.35, abs=0.002) for each in (second, middle, last)]
    assert found / unrounded == pytest.approx(loss, rel=0.1)
    assert 0.01 < unrounded < 0.024
    assert bits < runs[0].bits < bits + 3.0
