"""The gain of PET: how far an exchange of a share of the coordinates moves their corrections, against the closed form for two nodes."""

import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Float64
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.mix.pet import Pet
from starling.gossip.reference import Reference
from starling.robust.clip import clip

DIM, STEPS, LR, THETA = 20, 5, 0.1, 0.5
PHASE = Phase(0, float(STEPS), LR)


def errors(kappa, share, cycles):
    """(cycles, d): c_12 less its fixed point (b_1 − b_2)/2, each time that every coordinate was exchanged once more.

    Two nodes with constant gradients b_1 and b_2 do K local steps a round, and then exchange the next `share` of the coordinates.
    """
    slopes = torch.randn(2, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    swarm = Reference(
        ("a", "b"), torch.zeros(2, DIM, dtype=torch.float64), Pet(kappa, 1e6),
        Terms(Float64(), Float64(), 0.0, clip), Mask(share, block=1), 7,
    )  # fmt: skip

    def local(node, _round, x, correct):
        for _ in range(STEPS):
            x = x - LR * correct(slopes[node])
        return x

    seen = []
    for _ in range(cycles):
        for _ in range(round(1 / share)):
            swarm.round(PHASE, local, [(0, 1, THETA, THETA)])
        seen.append(swarm.states[0].c - (slopes[0] - slopes[1]) / 2)
    return torch.stack(seen)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.1])
@pytest.mark.parametrize("kappa", [0.05, 0.3, 0.45])
def test_every_exchange_of_a_coordinate_multiplies_the_error_of_its_correction_by_one_less_two_kappa(kappa, share):
    """A coordinate that is exchanged every 1/share rounds has drifted 1/share times as far: the share in the gain makes up for it.

    So the same kappa is as stable with a mask of a tenth as with the whole vector; without the share it would diverge for
    2·kappa/share > 2.
    """
    error = errors(kappa, share, 6)
    assert bool((error[0].abs() > 1e-3).all())
    torch.testing.assert_close(error[1:], error[:-1] * (1.0 - 2.0 * kappa), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_at_half_the_correction_is_right_after_one_exchange_of_a_full_drift(share):
    """The factor 1 − 2·kappa is 0."""
    assert float(errors(0.5, share, 2)[1].abs().max()) < 1e-12


def test_the_gain_of_a_share_is_that_share_of_the_gain_of_all():
    edge = Pet(0.2, 1e6).edge
    whole = edge.gain(THETA, 1.0, PHASE)
    assert whole == pytest.approx(2 * 0.2 * THETA / (STEPS * LR))
    assert edge.gain(THETA, 0.1, PHASE) == pytest.approx(0.1 * whole)
