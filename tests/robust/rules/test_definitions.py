"""Combining rules agree with their definitions, with ties and absent peers too."""

import math
from itertools import combinations

import pytest
import torch

from starling.gossip.errors import BreakdownExceeded, ConfigError
from starling.robust.catalogue import rule
from starling.robust.rules.clipping import KAPPA
from starling.robust.rules.sorting_network import network
from tests.harness.robust_rules import combine, example

ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])


def here(count):
    return torch.ones(count, dtype=torch.bool)


def of_rows(name, params=None, rows=ROWS):
    return combine(rule(name, params), rows[0], rows[1:], here(len(rows) - 1), rows[0])


def line(*distances):
    received = torch.zeros(len(distances), 5, dtype=torch.float64)
    received[:, 0] = torch.tensor(distances)
    return torch.zeros(5, dtype=torch.float64), received, here(len(distances))


def moved(name, params, own, received, present, before=None):
    return float(combine(rule(name, params), own, received, present, own if before is None else before)[0])


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("mean", {}, [4, 5, 6]),
        ("median", {}, [4, 5, 6]),
        ("trimmed_mean", {"f": 1}, [4, 5, 6]),
        ("geometric_median", {}, [4, 5, 6]),
        ("krum", {"f": 1}, [1, 2, 3]),
        ("multi_krum", {"f": 1}, [2.5, 3.5, 4.5]),
        ("mda", {"f": 1}, [2.5, 3.5, 4.5]),
        ("nna", {"f": 1}, [2.5, 3.5, 4.5]),
        ("meamed", {"f": 1}, [2.5, 3.5, 4.5]),
        ("bulyan", {"f": 0}, [4, 5, 6]),
    ],
)
def test_three_vectors_in_a_row_give_the_values_known_from_other_libraries(name, params, expected):
    """Ties (Krum: all scores 0; meamed: 1 and 7 equally near to 4) go to the lower index, and to the lower value."""
    assert torch.allclose(of_rows(name, params), torch.tensor(expected, dtype=torch.float32), rtol=1e-6)


def test_a_centered_clip_that_clips_nothing_is_the_mean_wherever_it_starts():
    clip = rule("centered_clip", {"tau": 100.0})
    combined, state, _ = clip.combine(torch.zeros(3), ROWS[0], ROWS[1:], here(2), ROWS[0], None)
    assert torch.allclose(combined, ROWS[1], rtol=1e-6)
    assert torch.equal(state, combined)
    near = rule("centered_clip", {"tau": 0.3}).combine(torch.zeros(3), ROWS[0], ROWS[1:], here(2), ROWS[0], None)[0]
    assert float(near.norm()) == pytest.approx(0.3, rel=0.01)  # all lie in nearly one direction from 0


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    """torch.median returns the lower one."""
    assert of_rows("median", rows=torch.tensor([[1.0], [8.0], [3.0], [6.0]])).item() == 4.5


@pytest.mark.parametrize("count", range(1, 20))
def test_a_sorting_network_sorts_zeros_and_ones(count):
    """By the zero-one principle such a network sorts everything; inputs are sampled where there are too many."""
    rows = torch.randint(0, 2, (count, 4096), generator=torch.Generator().manual_seed(count)).float()
    for wanted in ((count // 2,), tuple(range(count))):
        net = network(count, wanted)
        found = net.sort(rows.unbind(0), [torch.empty(4096) for _ in range(net.scratch)])
        for index in wanted:
            assert torch.equal(found[index], rows.sort(dim=0).values[index])


def test_unneeded_steps_of_a_sorting_network_are_left_out():
    """Sixteen rows: 63 comparators are 126 steps; the median needs 53 of them, some only in one half."""
    assert len(network(16, tuple(range(16))).steps) == 126
    assert len(network(16, (7, 8)).steps) < 2 * 53


@pytest.mark.parametrize(
    ("f", "distances", "there", "total"),
    [
        (0, (3, 1, 2, 6, 5, 4), [1] * 6, 21),  # the mean
        (2, (3, 1, 2, 6, 5, 4), [1] * 6, 1 + 5 * 2),  # at the second smallest
        (3, (3, 1, 2, 6, 5, 4), [1] * 6, 0),  # all are ignored
        (2, (1, 2, 3, 4, 5, 6), [1, 1, 1, 1, 1, 0], 5 * 1),  # five, f' = 2: the smallest
        (2, (1, 2, 3, 4, 5, 6), [1, 1, 1, 1, 0, 0], 1 + 2 + 2 + 2),  # four, f' = 1: the second
        (2, (1, 2, 3, 4, 5, 6), [1, 1, 1, 0, 0, 0], 3 * 1),  # three, f' = 1: the smallest
        (2, (1e9, 1, 1e9, 1, 1, 1e9), [1, 0, 0, 0, 0, 0], KAPPA * 0.25),  # f' = 0: bounded by our own step
        (2, (1e9, 1, 1e9, 1, 1, 1e9), [0, 0, 1, 0, 0, 1], 2 * KAPPA * 0.25),
    ],
)
def test_cs_plus_clips_at_the_distance_2f_from_the_end_with_f_for_those_present(f, distances, there, total):
    own, received, _ = line(*distances)
    before = own.clone()
    before[1] = 0.25
    present = torch.tensor(there, dtype=torch.bool)
    assert moved("cs_plus", {"f": f}, own, received, present, before) == pytest.approx(total / 7, rel=1e-6)


@pytest.mark.parametrize("f", [1, 2])
def test_cs_nnm_is_the_trimmed_mean_of_nearest_means_of_what_cs_plus_clips(f):
    own, received, present, before = example(5, k=6)
    distances = (received - own).norm(dim=1)
    tau = distances.sort().values[6 - 2 * f - 1]
    clipped = own + (received - own) * (tau / distances).clamp(max=1.0)[:, None]
    order = distances.argsort()
    nearest = torch.cat([own[None], clipped[order]])  # our own nearest are taken before clipping
    means = [nearest[: 7 - f].mean(dim=0)]
    for index in range(1, 7):
        apart = (nearest - nearest[index]).norm(dim=1)
        means.append(nearest[apart.argsort()[: 7 - f]].mean(dim=0))
    wanted = torch.stack(means).sort(dim=0).values[f : 7 - f].mean(dim=0)
    assert torch.allclose(combine(rule("cs_nnm", {"f": f}), own, received, present, before), wanted)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_cs_nnm_does_not_depend_on_the_vectors_of_absent_peers(missing):
    own, received, present, before = example(6, k=7)
    present[:missing] = False
    seen = combine(rule("cs_nnm", {"f": 3}), own, received, present, before)
    received[:missing] = 1e9
    assert torch.equal(combine(rule("cs_nnm", {"f": 3}), own, received, present, before), seen)
    there = 7 - missing
    fewer = combine(rule("cs_nnm", {"f": (there - 1) // 2}), own, received[missing:], present[missing:], before)
    assert torch.allclose(seen, fewer)


@pytest.mark.parametrize("liars", [3, 4, 5, 6])
def test_more_byzantine_peers_than_cs_nnm_is_set_for_cost_a_bounded_step(liars):
    own, received, present, before = example(7, k=6)
    tau = float((received - own).norm(dim=1).max())
    received[:liars] = 1e6
    away = float((combine(rule("cs_nnm", {"f": 2}), own, received, present, before) - own).norm())
    if liars < 5:  # otherwise the second nearest is one of them
        assert away <= 7**0.5 * tau
    selected = combine(rule("trimmed_mean", {"f": 2}, "nnm", {"f": 2}), own, received, present, before)
    if liars > 3:
        assert float((selected - own).norm()) > 1e5


def test_sac_clips_at_a_multiple_of_the_running_mean_of_our_own_steps():
    own, received, present = line(100.0)
    sac, before = rule("sac", {"kappa": 3.0}), own.clone()
    before[1] = 0.5
    first, state, _ = sac.combine(sac.start(own), own, received, present, before, None)
    assert first[0] == pytest.approx(3 * 0.5 / 2)
    before[1] = 1.5
    second, state, _ = sac.combine(state, own, received, present, before, None)
    assert state.item() == pytest.approx(0.9 * 0.5 + 0.1 * 1.5)
    assert second[0] == pytest.approx(3 * state.item() / 2)


@pytest.mark.parametrize(
    ("name", "params", "distances", "there", "expected"),
    [
        ("sac", {}, (0, 0), (1, 1), 0),
        ("clipped_gossip", {"f": 1}, (1, 2, 3, 10), (1, 1, 1, 1), (1 + 2 + 3 + math.sqrt(1 + 4 + 9)) / 5),
        ("nna", {"f": 1}, (1, 2, 3, 4), (1, 1, 1, 1), 6 / 4),
        ("nna", {"f": 1}, (1, 2, 3, 4), (0, 1, 1, 1), (2 + 3) / 4),
        ("ubar", {}, (5,), (1,), 0),  # with k = 1 any vector would be the best of the worse ones
    ],
)
def test_rules_give_the_values_of_examples_on_a_line(name, params, distances, there, expected):
    own, received, _ = line(*map(float, distances))
    assert moved(name, params, own, received, torch.tensor(there, dtype=torch.bool)) == pytest.approx(expected)


def test_balance_accepts_within_a_decaying_share_of_the_own_norm():
    """gamma = 0.5 of a norm of 10; half of that after 7 rounds with a decay of 0.1."""
    own, received, present = line(4.0, 6.0, 2.0)
    own[1] = 10.0
    received[:, 1] = 10.0
    balance = rule("balance", {"gamma": 0.5, "share": 0.25, "decay": 0.1})
    first, state, _ = balance.combine(balance.start(own), own, received, present, own, None)
    assert first[0] == pytest.approx(0.75 * (4 + 2) / 2)
    later, state, _ = balance.combine(state + 6, own, received, present, own, None)
    assert state.item() == 8
    assert later[0] == pytest.approx(0.75 * 2)
    none, _, _ = balance.combine(state + 100, own, received, present, own, None)
    assert torch.equal(none, own)


def test_ubar_takes_the_nearest_models_that_are_no_worse_or_else_the_best():
    own, received, present = line(-3.0, 1.0, 2.0, -1.0)
    own[0] = 2.5  # losses of the two nearest: 1 and 2, both lower than ours
    assert moved("ubar", {"share": 0.5}, own, received, present) == pytest.approx(0.5 * 2.5 + 0.5 * 1.5)
    own[0] = 0.5  # the nearest are 1 and −1 or 2: all worse, 1 the least so
    assert moved("ubar", {"share": 0.5}, own, received, present) == pytest.approx(0.5 * 0.5 + 0.5 * 1.0)
    with pytest.raises(ValueError, match="ubar needs the losses"):
        rule("ubar").combine(own[:0], own, received, present, own, None)


@pytest.mark.parametrize("which", ["trimmed_mean", "krum"])
def test_bridge_screens_the_previous_model_and_adds_the_whole_own_step(which):
    own, received, present, before = example(3)
    screened = combine(rule(which, {"f": 1}), before, received, present, before)
    bridged = combine(rule("bridge", {"f": 1, "which": which}), own, received, present, before)
    assert torch.allclose(bridged, screened + own - before, rtol=1e-12, atol=1e-12)


def test_bulyan_is_repeated_krum_and_then_a_mean_around_the_median():
    own, received, present, _ = example(4, k=10)
    f, vectors = 1, torch.cat([own[None], received])
    left, picked = list(range(11)), []
    while len(picked) < 11 - 2 * f:
        scores = {}
        for i in left:
            squares = sorted(float((vectors[i] - vectors[j]).square().sum()) for j in left if j != i)
            scores[i] = sum(squares[: max(0, len(left) - f - 2)])
        picked.append(min(left, key=scores.__getitem__))
        left.remove(picked[-1])
    chosen = vectors[picked]
    order = (chosen - chosen.quantile(0.5, dim=0)).abs().argsort(dim=0)[: len(picked) - 2 * f]
    wanted = chosen.gather(0, order).mean(dim=0)
    assert torch.allclose(combine(rule("bulyan", {"f": f}), own, received, present, own), wanted)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_mda_and_meamed_are_as_defined(f):
    own, received, present, _ = example(f)
    vectors = torch.cat([own[None], received])
    size = len(vectors) - f
    best = min(combinations(range(len(vectors)), size), key=lambda some: float(torch.pdist(vectors[list(some)]).max()))
    assert torch.allclose(combine(rule("mda", {"f": f}), own, received, present, own), vectors[list(best)].mean(dim=0))
    order = (vectors - vectors.quantile(0.5, dim=0)).abs().argsort(dim=0)[:size]
    wanted = vectors.gather(0, order).mean(dim=0)
    assert torch.allclose(combine(rule("meamed", {"f": f}), own, received, present, own), wanted)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_geometric_median_is_where_directions_cancel(scale):
    own, received, present, _ = example(5)
    center = combine(rule("geometric_median"), own * scale, received * scale, present, own)
    away = torch.cat([own[None], received]) * scale - center
    assert float((away / away.norm(dim=1, keepdim=True)).sum(dim=0).norm()) < 1e-6


def test_the_flag_aggregator_keeps_what_most_updates_share_at_their_median_length():
    updates = torch.zeros(7, 20, dtype=torch.float64)
    updates[:5, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    updates[5, 1] = updates[6, 2] = 100.0
    before = torch.zeros(20, dtype=torch.float64)
    combined = combine(rule("flag", {"iterations": 5}), updates[0], updates[1:], here(6), before)
    assert combined[0] == pytest.approx(4 * 5 / 7, rel=1e-3)
    assert float(combined.norm()) <= 4.0


def test_flag_ignores_updates_of_length_0():
    """For example replays of the initial model in the first round: three of six."""
    own, received = torch.ones(1, 5), torch.zeros(1, 6, 5)
    received[0, :3] = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.9], [1.0, 1.0, 1.0, 0.9, 1.0], [1.0, 1.0, 0.9, 1.0, 1.0]])
    combined = combine(rule("flag"), own, received, here(6)[None], torch.zeros(1, 5))
    assert bool(torch.isfinite(combined).all())
    assert float(combined.sum()) > 0.1


def test_nearest_neighbor_mixing_is_the_mean_of_the_nearest_with_oneself():
    own, received, present, _ = example(6)
    vectors = torch.cat([own[None], received])
    nearest = torch.cdist(vectors, vectors).argsort(dim=1)[:, : len(vectors) - 2]
    after = combine(rule("median", None, "nnm", {"f": 2}), own, received, present, own)
    assert torch.allclose(after, vectors[nearest].mean(dim=1).quantile(0.5, dim=0))


def test_buckets_are_drawn_anew_each_round_and_the_same_from_the_same_seed():
    own, received, present, _ = example(7, k=6)
    bucketed = rule("median", None, "bucketing", {"bucket": 2, "seed": 1})
    first, state, _ = bucketed.combine(bucketed.start(own), own, received, present, own, None)
    second, _, _ = bucketed.combine(state, own, received, present, own, None)
    other = combine(rule("median", None, "bucketing", {"bucket": 2, "seed": 2}), own, received, present, own)
    assert torch.equal(first, combine(bucketed, own, received, present, own))
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_buckets_preserve_the_sum_of_the_peers(size):
    own, received, present, _ = example(8, k=6)
    bucketed = combine(rule("mean", None, "bucketing", {"bucket": size}), own, received, present, own)
    buckets = 6 // size
    assert torch.allclose(bucketed, (own + buckets * received.mean(dim=0)) / (buckets + 1))


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("trimmed_mean", {"f": -1}, "f must be >= 0"),
        ("sac", {"kappa": 0.0}, "kappa must be finite and > 0"),
        ("norm_bound", {"tau": math.inf}, "tau must be finite and > 0"),
        ("centered_clip", {"tau": 1.0, "iterations": 0}, "iterations must be >= 1"),
        ("ubar", {"share": 0.0}, "share must be finite and >"),
        ("ubar", {"alpha": 1.5}, "alpha must be finite and >"),
        ("balance", {"gamma": -1.0}, "gamma must be"),
        ("balance", {"share": 2.0}, "share must be finite and >"),
        ("balance", {"decay": -0.1}, "decay must be"),
        ("bridge", {"f": 1, "which": "mean"}, "which must be one of"),
        ("geometric_median", {"nu": 0.0}, "nu must be"),
        ("geometric_median", {"iterations": 0}, "iterations must be"),
        ("flag", {"iterations": 0}, "iterations must be"),
        ("nobody", {}, "is unknown, choose one of"),
    ],
)
def test_parameters_out_of_bounds_are_refused_in_one_line(name, params, reason):
    with pytest.raises(ConfigError, match=reason):
        rule(name, params)
    with pytest.raises(ConfigError, match="bucket must be"):
        rule("mean", None, "bucketing", {"bucket": 0})


@pytest.mark.parametrize(
    ("name", "f", "k"), [("trimmed_mean", 2, 3), ("meamed", 2, 3), ("krum", 2, 2), ("bulyan", 1, 3), ("mda", 2, 3), ("nna", 2, 2)]
)
def test_too_few_vectors_are_an_error(name, f, k):
    own, received, present, _ = example(1, k=k)
    with pytest.raises(BreakdownExceeded, match=rf"{name}: f = {f} needs at least"):
        combine(rule(name, {"f": f}), own, received, present, own)
    with pytest.raises(BreakdownExceeded, match="nnm: f = 2 needs at least 5"):
        combine(rule("mean", None, "nnm", {"f": 2}), own, received[:3], present[:3], own)


def test_too_many_subsets_are_refused():
    own, received, present, _ = example(1, k=30)
    with pytest.raises(ValueError, match="more than 100000 subsets"):
        combine(rule("mda", {"f": 10}), own, received, present, own)


@pytest.mark.parametrize(
    ("name", "params", "excluded"),
    [
        ("cs_plus", {"f": 1}, [False, False, False, True]),  # tau is the second smallest, 2
        ("norm_bound", {"tau": 1.5}, [False, False, False, True]),
        ("clipped_gossip", {"f": 1}, [False, False, False, True]),
        ("sac", {"kappa": 3.0}, [True, True, True, True]),  # we did not move
        ("centered_clip", {"tau": 1.5}, [False, False, False, True]),
        ("nna", {"f": 1}, [False, False, False, True]),
        ("multi_krum", {"f": 1}, [False, False, False, True]),
        ("mda", {"f": 1}, [False, False, False, True]),
        ("mean", {}, None),
        ("median", {}, None),
        ("krum", {"f": 1}, None),
    ],
)
def test_a_rule_reports_peers_that_it_excluded_or_clipped_to_less_than_half(name, params, excluded):
    """At 1, 2, 3 and 60: most clip 3 a little, which is not reported."""
    own, received, present = line(1.0, 2.0, 3.0, 60.0)
    of = rule(name, params)
    found = of.combine(of.start(own), own, received, present, own, None)[2]
    assert excluded is None if found is None else found.tolist() == excluded


def test_absent_peers_and_mixed_ones_are_not_reported():
    own, received, present = line(1.0, 2.0, 3.0, 60.0)
    present[3] = False
    nearest, mixed = rule("nna", {"f": 1}), rule("nna", {"f": 1}, "nnm", {"f": 1})
    found = nearest.combine(nearest.start(own), own, received, present, own, None)[2]
    assert found.tolist() == [False, False, True, False]
    assert mixed.combine(mixed.start(own), own, received, present, own, None)[2] is None
