"""PET: flows with a leak, equal at both ends, and the effect of exchanging a share of the coordinates on corrections."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Effect, Phase
from starling.gossip.compress.quantize import Float64
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.compress.support import Blocks, Full
from starling.gossip.errors import ConfigError
from starling.gossip.mix import borne, edge_ledger
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.flows import KNOWN_KAPPA, chosen_kappa, steady_kappa
from starling.gossip.mix.pet import Pet
from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.catalogue import overlay
from starling.gossip.overlay.measure import matrix
from starling.gossip.overlay.static import Ring
from starling.node.config.schema import Manifest, MixSection, OptimizerSection
from starling.node.engine.mixing import mixer
from starling.robust.clip import clip
from tests.harness.bowls import bowls
from tests.harness.reference import Reference
from tests.harness.two_engines import Both, exchange_codec
from tests.strategies import examples, seeds

DIM, FEW, STEPS, LR, THETA = 130, 20, 5, 0.1, 0.5
LONG = 4000  # coordinates of a correction without an accidental direction
PHASE = Phase(0, float(STEPS), LR)
leaks = st.floats(0.01, 0.9)
quick = examples(25)


def gaussian(seed, size=DIM):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def effect(peer, value, gain=0.5, support=None):
    return Effect(peer, Full() if support is None else support, value, 0.5, gain)


@given(leak=leaks, seed=seeds, gains=st.lists(st.floats(1e-3, 50.0), min_size=1, max_size=12))
@quick
def test_flows_of_both_ends_are_bitwise_opposite(leak, seed, gains):
    """Otherwise corrections would not sum to zero, and the mean model would leave the mean gradient."""
    edge = Pet(0.3, 3.0, leak).edge
    one = other = edge_ledger.opened(torch.zeros(DIM))
    for turn, gain in enumerate(gains):
        v = gaussian(seed + turn)
        _, one = edge_ledger.average(edge, one, torch.zeros(DIM), [effect("b", v, gain)])
        _, other = edge_ledger.average(edge, other, torch.zeros(DIM), [effect("a", -v, gain)])
    assert torch.equal(one.flows["b"], -other.flows["a"])
    assert torch.equal(one.total, -other.total)


@given(leak=leaks, lie=st.floats(0.01, 90.0), turns=st.integers(1, 30))
@quick
def test_one_lie_decays_by_one_minus_leak_per_exchange(leak, lie, turns):
    edge = Pet(0.3, 100.0, leak).edge
    flow = edge.flow(torch.zeros(3), torch.tensor([lie, -lie, 0.0]))
    for _ in range(turns):
        flow = edge.flow(flow, torch.zeros(3))
    torch.testing.assert_close(flow, torch.tensor([lie, -lie, 0.0]) * (1.0 - leak) ** turns, rtol=1e-4, atol=1e-30)


@given(leak=leaks, seed=seeds)
@quick
def test_a_permanent_lie_is_bounded_by_one_over_the_leak(leak, seed):
    """The clip bounds a single exchange; the leak bounds all of them together."""
    edge, moved = Pet(0.3, 1e9, leak).edge, gaussian(seed)
    flow = torch.zeros(DIM)
    for _ in range(200):
        flow = edge.flow(flow, moved)
    assert bool((flow.abs() <= moved.abs() / leak * (1 + 1e-4)).all())


def test_only_exchanged_coordinates_leak():
    """Both ends know only the support of an exchange, so coordinates outside it must not change."""
    edge, half = Pet(0.3, 100.0, 0.5).edge, Blocks(0, 0, 1, 64)
    books = edge_ledger.opened(torch.zeros(DIM))
    _, books = edge_ledger.average(edge, books, torch.zeros(DIM), [effect("b", torch.ones(DIM), 1.0)])
    _, books = edge_ledger.average(edge, books, torch.zeros(DIM), [effect("b", torch.zeros(half.size(DIM)), 1.0, half)])
    touched = torch.zeros(DIM, dtype=torch.bool)
    touched[half.index(DIM)] = True
    assert 0 < int(touched.sum()) < DIM
    assert torch.equal(books.flows["b"], torch.where(touched, 0.5, 1.0))


def test_without_a_leak_flows_are_unchanged():
    kept, moved = gaussian(1), gaussian(2)
    assert torch.equal(Pet(0.3, 100.0).edge.flow(kept, moved), (kept + moved).clamp(-100.0, 100.0))


@pytest.mark.parametrize(("kappa", "leak"), [(0.1, 0.05), (0.1, 0.2), (0.25, 0.1)])
def test_a_leaky_flow_converges_to_2_kappa_over_2_kappa_plus_leak_of_its_value(kappa, leak):
    """Two nodes, constant gradients, θ = 1/2: the bias of a leak, which approaches plain averaging as the leak grows."""
    algorithm, lr = Pet(kappa, 1e6, leak), 0.05
    gradients = [gaussian(1).double(), gaussian(2).double()]
    target = (gradients[0] - gradients[1]) / 2
    x = [torch.zeros(DIM, dtype=torch.float64)] * 2
    books = [edge_ledger.opened(each) for each in x]
    gain = algorithm.edge.gain(0.5, 1.0, Phase(0, 1.0, lr))
    for _ in range(400):
        x = [model - lr * (gradient - book.total) for model, gradient, book in zip(x, gradients, books, strict=True)]
        v = x[1] - x[0]
        for i, sign in ((0, 1.0), (1, -1.0)):
            x[i], books[i] = edge_ledger.average(algorithm.edge, books[i], x[i], [effect(f"p{1 - i}", sign * v, gain)])
    torch.testing.assert_close(books[0].total, target * (2 * kappa / (2 * kappa + leak)), rtol=1e-6, atol=1e-9)


def test_the_leak_is_a_key_of_the_manifest_and_bounded():
    assert mixer(Manifest(mix=MixSection(leak=0.2))) == Pet(None, 100.0, 0.2)
    assert MIXERS["pet"](0.1, 1.0).leak == MixSection().leak == 0.0
    with pytest.raises(ValueError, match=r"leak must be finite and >= 0 and < 1, got 1.0"):
        Pet(0.1, 1.0, 1.0)
    with pytest.raises(ConfigError, match=r"mix\.leak: must be a number >= 0 and < 1, got -0.1"):
        mixer(Manifest(mix=MixSection(leak=-0.1)))


@pytest.mark.slow
def test_leaky_flows_are_the_same_bits_in_the_matrix_and_in_the_loop():
    both = Both(Pet(0.3, 0.5, 0.2), exchange_codec("fp16", "int4"), Mask(0.3))
    for number in range(4):
        both.round(number, Ring())
        both.check()


def errors(kappa, share, cycles):
    """Return (cycles, d): c_12 minus its fixed point (b_1 − b_2)/2, after each full cycle of exchanged coordinates.

    Two nodes with constant gradients b_1 and b_2 do K local steps per round, then exchange the next `share` of the coordinates.
    """
    slopes = torch.randn(2, FEW, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    swarm = Reference(
        ("a", "b"),
        torch.zeros(2, FEW, dtype=torch.float64),
        Pet(kappa, 1e6),
        ExchangeCodec(Float64(), Float64(), 0.0, clip),
        Mask(share, block=1),
        7,
    )

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


@pytest.fixture
def in_full(monkeypatch):
    """Return a correction that counts fully, whatever gradients say."""
    monkeypatch.setattr(borne, "counted", lambda _rows, _known: 1.0)


@pytest.mark.usefixtures("in_full")
@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.1])
@pytest.mark.parametrize("kappa", [0.05, 0.3, 0.45])
def test_each_exchange_of_a_coordinate_reduces_its_correction_s_error_by_2_kappa(kappa, share):
    """A coordinate exchanged every 1/share rounds has drifted 1/share times as far, which the share in the gain cancels.

    So kappa is as stable with a mask of a tenth as with whole vectors; without the share it would diverge for 2·kappa/share > 2.
    """
    error = errors(kappa, share, 6)
    assert bool((error[0].abs() > 1e-3).all())
    torch.testing.assert_close(error[1:], error[:-1] * (1.0 - 2.0 * kappa), rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("in_full")
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_at_half_the_correction_is_right_after_one_exchange_of_a_full_drift(share):
    assert float(errors(0.5, share, 2)[1].abs().max()) < 1e-12


def test_the_gain_of_a_share_is_that_share_of_the_gain_of_all():
    edge = Pet(0.2, 1e6).edge
    whole = edge.gain(THETA, 1.0, PHASE)
    assert whole == pytest.approx(2 * 0.2 * THETA / (STEPS * LR))
    assert edge.gain(THETA, 0.1, PHASE) == pytest.approx(0.1 * whole)


def test_the_gain_does_not_follow_a_weight_above_one_half():
    """Such a weight swaps models rather than averaging them."""
    edge = Pet(0.2, 1e6).edge
    assert edge.gain(0.25, 1.0, PHASE) == pytest.approx(0.5 * edge.gain(0.5, 1.0, PHASE))
    assert edge.gain(8 / 9, 1.0, PHASE) == edge.gain(0.5, 1.0, PHASE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_lost_exchanges_do_not_make_flows_grow_with_weights_above_one_half(seed):
    """With nine members base-2 skips the last one in all rounds but one in seven, in which its weight is 8/9."""
    left_over = BaseK(1)
    assert max(left_over.row(8, 9, 3).values()) == pytest.approx(8 / 9)
    errors, _ = bowls(Pet(0.2, 1e6), rounds=300, lr=0.1, loss=0.3, overlay=left_over, n=9, steps=5, seed=seed)
    assert errors[-1] < 1e-5
    assert bowls(Dsgd(), rounds=60, lr=0.1, overlay=left_over, n=9, steps=5, seed=seed)[0][-1] > 0.1, "which needs flows"


@pytest.mark.parametrize(
    ("share", "climb", "times"),
    [
        (1.0, 10.0, {1.0: 1.0, 0.5: 2.0, 0.1: 10.0, 0.05: 10.0}),
        (0.5, 10.0, {1.0: 1.0, 0.5: 2.0, 0.1: 5.0}),
        (0.1, 10.0, {1.0: 1.0, 0.1: 1.0}),
        (0.01, 10.0, {1.0: 1.0, 0.1: 1.0}),
        (1.0, 1.0, {1.0: 1.0, 0.1: 1.0}),
    ],
)
def test_the_gain_rises_as_the_rate_decays_and_less_with_fewer_coordinates(share, climb, times):
    """Differences shrink with the rate; those of a small mask are many rounds old and do not."""
    edge = Pet(0.2, 1e6).edge
    for lr, climbed in times.items():
        now = replace(PHASE, lr=LR * lr, highest_lr=LR, climb=climb)
        assert edge.gain(THETA, share, now) == pytest.approx(climbed * share * edge.gain(THETA, 1.0, PHASE))


def test_without_a_known_highest_rate_the_gain_uses_the_current_rate():
    edge = Pet(0.2, 1e6).edge
    assert edge.gain(THETA, 0.1, replace(PHASE, lr=LR / 50)) == pytest.approx(50 * edge.gain(THETA, 0.1, PHASE))


def apart(kind, n, share, rounds=150):
    """Return how much farther apart κ = share·steady leaves models that no gradient restores."""
    graph, pet = overlay(kind, 1, 1), Pet(share * steady_kappa(n))
    gain = 2.0 * pet.edge.gain(THETA, 1.0, PHASE) * STEPS * LR  # noise of a flow per round and unit of W, in units of models
    x = torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    flows, before = torch.zeros(n, n, 4, dtype=torch.float64), float((x - x.mean(0)).norm())
    for turn in range(rounds):
        rows = torch.from_numpy(matrix(graph, n, turn))
        x = x + flows.sum(1)
        moved = ((rows + rows.T) / 2)[:, :, None] * (x[None] - x[:, None])
        x, flows = x + moved.sum(1), flows + gain * moved
    return float((x - x.mean(0)).norm()) / before


@pytest.mark.parametrize("n", [8, 12, 32, 64])
@pytest.mark.parametrize("kind", ["sticky", "one_peer_exponential", "base_k", "random_matching"])
def test_below_one_over_the_cycle_length_flows_decay_for_any_gradients(kind, n):
    """Flat directions of a loss do not damp them. Above that bound flows of one-peer overlays grow without end from any size."""
    if (kind, n) != ("base_k", 12):  # its step is longer
        assert apart(kind, n, chosen_kappa(n) / steady_kappa(n)) < 0.01
    if kind != "random_matching":
        assert apart(kind, n, 1.2) > 100.0


@pytest.mark.parametrize(("members", "kappa"), [(1, 0.3), (2, 0.3), (8, 0.3), (9, 0.225), (32, 0.18), (1024, 0.09)])
def test_the_chosen_kappa_falls_with_the_number_of_members(members, kappa):
    assert chosen_kappa(members) == pytest.approx(kappa)
    assert Pet().edge.gain(THETA, 1.0, replace(PHASE, members=members)) == pytest.approx(Pet(kappa).edge.gain(THETA, 1.0, PHASE))
    assert Pet(0.3).edge.gain(THETA, 1.0, replace(PHASE, members=members)) == Pet(0.3).edge.gain(THETA, 1.0, PHASE), "as given"


def test_a_given_kappa_is_used_unchanged():
    """For any length of rounds compared with the optimiser's memory, and any number of exchanged coordinates."""
    for share, steps in ((1.0, 5.0), (1.0, 1.0), (0.1, 5.0)):
        phase = replace(PHASE, local_steps=steps)
        assert Pet().edge.gain(THETA, share, phase) == Pet(0.3).edge.gain(THETA, share, phase)
        assert Pet(0.05).edge.gain(THETA, share, phase) == pytest.approx(Pet(0.3).edge.gain(THETA, share, phase) / 6)
    assert (Pet().edge.size(7), Pet(0.05).edge.size(7), Pet(0.0).edge.size(7)) == (7, 7, 0)


def test_the_smallest_accepted_rate_gives_a_gain_that_messages_can_represent():
    agreed = Manifest(optimizer=OptimizerSection(lr=1e-12))
    with pytest.raises(ConfigError) as error:
        Pet.check(agreed)
    least = float(str(error.value).partition("must be >= ")[2].split()[0])
    end = Phase(0, float(agreed.pace.local_steps), least / 10, highest_lr=least, climb=10.0)
    assert Pet().edge.gain(0.5, 1.0, end) == pytest.approx(1e9)


@given(ratio=st.floats(0.001, 1.0), steps=st.integers(1, 1000), members=st.integers(1, 1 << 12))
@quick
def test_no_chosen_gain_is_above_that_of_a_single_local_step(ratio, steps, members):
    """A responder in clock pace, which knows neither the initiator's K nor its number of members, checks gains against this bound."""
    most = Pet().edge.gain(THETA, ratio, Phase(0, 1.0, LR))
    assert Pet().edge.gain(THETA, ratio, Phase(0, float(steps), LR, members=members)) <= most
    assert chosen_kappa(members) <= KNOWN_KAPPA
