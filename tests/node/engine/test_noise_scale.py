"""The gradient noise scale is that of the samples, and measuring it does not change the step."""

import msgspec
import pytest
import torch

from starling.node.config.schema import NumericsSection
from starling.node.engine.noise_scale import LEAST, NoiseScale
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, opened, refused_as, x_of

MEAN = torch.tensor([0.3, -0.4, 0.0])  # |G|² = 0.25


def by_samples(_batch, _parts, sizes):
    return [size / sum(sizes) for size in sizes]


def measured(count, sizes, *, sigma=2.0, **keys):
    """Return measurements of batches whose samples have gradients MEAN + sigma · normal: tr Σ = 3 sigma²."""
    chance, scale, gradient = torch.Generator().manual_seed(1), NoiseScale(1, **keys), torch.zeros(3)

    def compute(batch, _seed):
        gradient.copy_(batch.mean(0))
        return float(len(batch))

    for turn in range(count):
        batch = MEAN + sigma * torch.randn(sizes[turn % len(sizes)], 3, generator=chance)
        first, rest = len(batch) // 2, (len(batch) + 1) // 2
        assert scale.measure(compute, batch, gradient, turn, by_samples) == pytest.approx((first**2 + rest**2) / len(batch))
        assert torch.allclose(gradient, batch.mean(0), atol=1e-5)
    return scale


@pytest.mark.parametrize("sizes", [(33,), (2, 64, 9)])
def test_it_is_the_variance_of_a_sample_s_gradient_over_the_square_of_the_mean(sizes):
    """It is unbiased for any batch size, and for halves of different size."""
    scale = measured(2000, sizes, memory=0.0)
    assert scale.trace == pytest.approx(12.0, rel=0.1)
    assert scale.square == pytest.approx(0.25, abs=0.05 if sizes == (33,) else 0.25)
    assert scale.figure == scale.trace / scale.square


def test_three_samples_are_split_into_one_and_two():
    scale, gradient, batch = NoiseScale(1), torch.zeros(1), torch.tensor([[4.0], [1.0], [0.0]])

    def compute(part, _seed):
        gradient.copy_(part.mean(0))
        return 0.0

    scale.measure(compute, batch, gradient, 0, by_samples)
    assert (scale.trace, scale.square) == pytest.approx((3.5**2 / 1.5, 4.0 * 0.5))


def test_the_noise_scale_is_measured_periodically_on_batches_that_can_be_split():
    scale = NoiseScale(3)
    assert [step for step in range(1, 8) if scale.due(step, torch.zeros(2))] == [3, 6]
    assert not scale.due(3, torch.zeros(1))
    assert not scale.due(3, "text")


def test_no_noise_scale_is_shown_before_enough_measurements_or_if_noise_dominates():
    assert measured(LEAST - 1, (32,)).figure is None
    assert measured(LEAST, (64,), sigma=0.1).figure == pytest.approx(0.03 / 0.25, rel=0.3)
    assert NoiseScale(1, count=100, trace=1.0, square=-0.1).figure is None


def test_numbers_that_are_not_finite_are_left_out():
    scale = measured(LEAST, (8,))
    before = msgspec.to_builtins((scale.count, scale.trace, scale.square))
    scale.record(torch.tensor([torch.inf]), torch.tensor([1.0]), 1.0)
    assert (scale.count, scale.trace, scale.square) == tuple(before)


def test_measuring_the_noise_scale_does_not_change_training():
    agreed = manifest()
    plain, own = opened(agreed), Worker(clock=lambda: 0.0)
    done(own, msgspec.structs.replace(open_request(agreed), numerics=NumericsSection(noise_every=2)))
    seen = [[done(each, calls.Train(0, steps)).figures.noise_scale for steps in (2 * LEAST - 1, 1)] for each in (plain, own)]
    assert seen[0] == [None, None]
    assert seen[1][0] is None
    assert seen[1][1] > 0.0
    assert not torch.equal(x_of(plain), x_of(own))
    torch.testing.assert_close(x_of(plain), x_of(own), rtol=1e-3, atol=1e-4)


def test_halves_are_weighted_by_the_numbers_that_the_loss_averages():
    """Half of the labels are in the first of four samples, and the loss is their mean: each half is weighted by its labels."""
    labels = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0]])
    x, gradient = torch.tensor([2.0]), torch.zeros(1)

    def compute(part, _seed):
        gradient.copy_((x * part * torch.arange(1.0, 4.0)).sum() / part.sum() / x)
        return float(x * gradient)

    whole = compute(labels, 0)
    expected = gradient.clone()
    weights = [float(part.sum() / labels.sum()) for part in (labels[:2], labels[2:])]
    assert NoiseScale(1).measure(compute, labels, gradient, 0, lambda *_: weights) == pytest.approx(whole)
    torch.testing.assert_close(gradient, expected)


def test_batches_that_cannot_be_split_are_refused():
    asked = msgspec.structs.replace(open_request(manifest("quadratic")), numerics=NumericsSection(noise_every=2))
    refused_as("config", Worker().handle(asked), "numerics.noise_every: the task's batches cannot be split")
