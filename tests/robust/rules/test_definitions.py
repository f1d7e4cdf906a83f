"""Combining rules give the values of their definitions, ties and absences included."""

import math

import pytest
import torch

from starling.gossip.errors import BreakdownExceeded, ConfigError
from starling.robust.catalogue import rule
from starling.robust.rules.clipping import KAPPA
from starling.robust.rules.sorting_network import network
from tests.harness.robust_rules import combine, example

ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])


def of_rows(name, params=None, rows=ROWS, **before):
    return combine(
        rule(name, params, **before), rows[0], rows[1:], torch.ones(len(rows) - 1, dtype=torch.bool), rows[0]
    )


def line(*distances):
    """Peers on a line through our own vector, which is 0."""
    told = torch.zeros(len(distances), 5, dtype=torch.float64)
    told[:, 0] = torch.tensor(distances)
    return torch.zeros(5, dtype=torch.float64), told, torch.ones(len(distances), dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("mean", {}, [4, 5, 6]),
        ("median", {}, [4, 5, 6]),
        ("trimmed_mean", {"b": 1}, [4, 5, 6]),
        ("geometric_median", {}, [4, 5, 6]),
        ("krum", {"b": 1}, [1, 2, 3]),
        ("multi_krum", {"b": 1}, [2.5, 3.5, 4.5]),
        ("mda", {"b": 1}, [2.5, 3.5, 4.5]),
        ("nna", {"b": 1}, [2.5, 3.5, 4.5]),
        ("meamed", {"b": 1}, [2.5, 3.5, 4.5]),
        ("bulyan", {"b": 0}, [4, 5, 6]),
    ],
)
def test_three_vectors_in_a_row_give_the_values_known_from_other_libraries(name, params, expected):
    """Ties (Krum: all scores 0; meamed: 1 and 7 equally near to 4) go to the lower index, and to the lower value."""
    assert torch.allclose(of_rows(name, params), torch.tensor(expected, dtype=torch.float32), rtol=1e-6)


def test_a_centered_clip_that_clips_nothing_is_the_mean_wherever_it_starts():
    clip, present = rule("centered_clip", {"tau": 100.0}), torch.ones(2, dtype=torch.bool)
    combined, kept, _ = clip.combine(torch.zeros(3), ROWS[0], ROWS[1:], present, ROWS[0], None)
    assert torch.allclose(combined, ROWS[1], rtol=1e-6)
    assert torch.equal(kept, combined)
    near = rule("centered_clip", {"tau": 0.3}).combine(torch.zeros(3), ROWS[0], ROWS[1:], present, ROWS[0], None)[0]
    assert float(near.norm()) == pytest.approx(0.3, rel=0.01)  # all lie in nearly one direction from 0


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    """torch.median gives the lower, which pulls every model down."""
    assert of_rows("median", rows=torch.tensor([[1.0], [8.0], [3.0], [6.0]])).item() == 4.5


@pytest.mark.parametrize("count", range(1, 20))
def test_a_network_sorts_zeros_and_ones(count):
    """The zero-one principle: a network that sorts those sorts everything; sampled where there are too many."""
    rows = torch.randint(0, 2, (count, 4096), generator=torch.Generator().manual_seed(count)).float()
    for wanted in ((count // 2,), tuple(range(count))):
        net = network(count, wanted)
        found = net.sort(rows.unbind(0), [torch.empty(4096) for _ in range(net.scratch)])
        for index in wanted:
            assert torch.equal(found[index], rows.sort(dim=0).values[index])


def test_steps_that_nothing_depends_on_are_left_out():
    """Sixteen rows: 63 comparators are 126 steps; the median needs 53 of them, and of some only one half."""
    assert len(network(16, tuple(range(16))).steps) == 126
    assert len(network(16, (7, 8)).steps) < 2 * 53


@pytest.mark.parametrize(("b", "moved"), [(0, 21), (2, 1 + 2 + 2 + 2 + 2 + 2), (3, 0)])
def test_cs_plus_clips_at_the_distance_2b_from_the_end(b, moved):
    """Distances 1 to 6: b = 2 clips at the second smallest, b = 3 listens to nobody, b = 0 is the mean."""
    own, told, present = line(3, 1, 2, 6, 5, 4)
    assert combine(rule("cs_plus", {"b": b}), own, told, present, own)[0] == pytest.approx(moved / 7, rel=1e-6)


@pytest.mark.parametrize(
    ("there", "moved"),
    [
        ([1, 1, 1, 1, 1, 0], 5 * 1),  # five, b' = 2: the smallest
        ([1, 1, 1, 1, 0, 0], 1 + 2 + 2 + 2),  # four, b' = 1: the second
        ([1, 1, 1, 0, 0, 0], 3 * 1),  # three, b' = 1: the smallest
    ],
)
def test_cs_plus_expects_fewer_bad_ones_where_fewer_peers_are_there(there, moved):
    """And the absent still count in the denominator."""
    own, told, _ = line(1, 2, 3, 4, 5, 6)
    present = torch.tensor(there, dtype=torch.bool)
    assert combine(rule("cs_plus", {"b": 2}), own, told, present, own)[0] == pytest.approx(moved / 7, rel=1e-6)


@pytest.mark.parametrize("there", [[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]])
def test_cs_plus_holds_one_or_two_peers_to_our_own_step(there):
    """b' = 0 would clip nobody: whoever keeps the others away could send anything."""
    own, told, _ = line(1e9, 1, 1e9, 1, 1, 1e9)
    present, before = torch.tensor(there, dtype=torch.bool), own.clone()
    before[1] = 0.25
    moved = combine(rule("cs_plus", {"b": 2}), own, told, present, before)[0]
    assert moved == pytest.approx(sum(there) * KAPPA * 0.25 / 7, rel=1e-6)


@pytest.mark.parametrize("b", [1, 2])
def test_cs_nnm_is_the_trimmed_mean_of_nearest_means_of_what_cs_plus_shortens(b):
    own, told, present, before = example(5, k=6)
    distances = (told - own).norm(dim=1)
    tau = distances.sort().values[6 - 2 * b - 1]
    clipped = own + (told - own) * (tau / distances).clamp(max=1.0)[:, None]
    order = distances.argsort()
    nearest = torch.cat([own[None], clipped[order]])  # our own nearest are those before anybody was shortened
    means = [nearest[: 7 - b].mean(dim=0)]
    for index in range(1, 7):
        apart = (nearest - nearest[index]).norm(dim=1)
        means.append(nearest[apart.argsort()[: 7 - b]].mean(dim=0))
    wanted = torch.stack(means).sort(dim=0).values[b : 7 - b].mean(dim=0)
    assert torch.allclose(combine(rule("cs_nnm", {"b": b}), own, told, present, before), wanted)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_cs_nnm_does_not_know_the_absent(missing):
    """What peers that are not there would have been makes no difference, and b shrinks with those who came."""
    own, told, present, before = example(6, k=7)
    present[:missing] = False
    seen = combine(rule("cs_nnm", {"b": 3}), own, told, present, before)
    told[:missing] = 1e9
    assert torch.equal(combine(rule("cs_nnm", {"b": 3}), own, told, present, before), seen)
    there = 7 - missing
    fewer = combine(rule("cs_nnm", {"b": (there - 1) // 2}), own, told[missing:], present[missing:], before)
    assert torch.allclose(seen, fewer)


@pytest.mark.parametrize("liars", [3, 4, 5, 6])
def test_more_liars_than_cs_nnm_is_set_for_cost_a_bounded_step(liars):
    """That is why it clips first: the selection alone is theirs then."""
    own, told, present, before = example(7, k=6)
    tau = float((told - own).norm(dim=1).max())
    told[:liars] = 1e6
    away = float((combine(rule("cs_nnm", {"b": 2}), own, told, present, before) - own).norm())
    if liars < 5:  # else the second nearest is one of them
        assert away <= 7**0.5 * tau
    selected = combine(rule("trimmed_mean", {"b": 2}, "nnm", {"b": 2}), own, told, present, before)
    if liars > 3:
        assert float((selected - own).norm()) > 1e5


def test_sac_clips_at_a_multiple_of_the_running_mean_of_our_own_steps():
    own, told, present = line(100.0)
    sac, before = rule("sac", {"kappa": 3.0}), own.clone()
    before[1] = 0.5
    first, kept, _ = sac.combine(sac.start(own), own, told, present, before, None)
    assert first[0] == pytest.approx(3 * 0.5 / 2)
    before[1] = 1.5
    second, kept, _ = sac.combine(kept, own, told, present, before, None)
    assert kept.item() == pytest.approx(0.9 * 0.5 + 0.1 * 1.5)
    assert second[0] == pytest.approx(3 * kept.item() / 2)


def test_sac_has_no_trouble_with_a_peer_that_is_where_we_are_and_with_no_step():
    own, told, present = line(0.0, 0.0)
    assert torch.equal(combine(rule("sac"), own, told, present, own), own)


def test_clipped_gossip_takes_its_threshold_from_all_but_b_of_the_squares():
    own, told, present = line(1, 2, 3, 10)
    tau = math.sqrt(1 + 4 + 9)
    expected = (1 + 2 + 3 + tau) / 5
    assert combine(rule("clipped_gossip", {"b": 1}), own, told, present, own)[0] == pytest.approx(expected, rel=1e-6)


def test_nna_leaves_out_b_of_those_present_however_few_they_are():
    own, told, present = line(1, 2, 3, 4)
    assert combine(rule("nna", {"b": 1}), own, told, present, own)[0] == pytest.approx(6 / 4)
    present[0] = False
    assert combine(rule("nna", {"b": 1}), own, told, present, own)[0] == pytest.approx((2 + 3) / 4)


def test_balance_accepts_within_a_decaying_share_of_our_own_norm():
    """gamma = 0.5 of a norm of 10; after 7 rounds with a decay of 0.1 half of that."""
    own, told, present = line(4.0, 6.0, 2.0)
    own[1] = 10.0
    told[:, 1] = 10.0
    balance = rule("balance", {"gamma": 0.5, "share": 0.25, "decay": 0.1})
    first, kept, _ = balance.combine(balance.start(own), own, told, present, own, None)
    assert first[0] == pytest.approx(0.75 * (4 + 2) / 2)
    later, kept, _ = balance.combine(kept + 6, own, told, present, own, None)
    assert kept.item() == 8
    assert later[0] == pytest.approx(0.75 * 2)
    nobody, _, _ = balance.combine(kept + 100, own, told, present, own, None)
    assert torch.equal(nobody, own)


def test_ubar_takes_the_near_that_are_no_worse_and_failing_them_the_best():
    own, told, present = line(-3.0, 1.0, 2.0, -1.0)
    own[0] = 2.5  # losses of the near two: 1 and 2, both lower than ours
    ubar = rule("ubar", {"share": 0.5})
    assert combine(ubar, own, told, present, own)[0] == pytest.approx(0.5 * 2.5 + 0.5 * 1.5)
    own[0] = 0.5  # near are 1 and −1 or 2: all worse, 1 the least so
    assert combine(ubar, own, told, present, own)[0] == pytest.approx(0.5 * 0.5 + 0.5 * 1.0)


def test_ubar_never_has_to_take_the_only_one():
    """With k = 1 the best of those that are worse would be whatever was sent."""
    own, told, present = line(5.0)
    assert torch.equal(combine(rule("ubar"), own, told, present, own), own)


def test_ubar_without_losses_is_refused():
    own, told, present = line(5.0)
    with pytest.raises(ValueError, match="ubar needs the losses"):
        rule("ubar").combine(own[:0], own, told, present, own, None)


def test_bridge_screens_where_we_were_and_adds_our_whole_step():
    own, told, present, before = example(3)
    for which in ("trimmed_mean", "krum"):
        screened = combine(rule(which, {"b": 1}), before, told, present, before)
        bridged = combine(rule("bridge", {"b": 1, "which": which}), own, told, present, before)
        assert torch.allclose(bridged, screened + own - before, rtol=1e-12, atol=1e-12)


def test_bulyan_is_krum_again_and_again_and_then_a_mean_around_the_median():
    """Against the definition written out."""
    own, told, present, _ = example(4, k=10)
    b, vectors = 1, torch.cat([own[None], told])
    left, picked = list(range(11)), []
    while len(picked) < 11 - 2 * b:
        scores = {
            i: sum(
                sorted(float((vectors[i] - vectors[j]).square().sum()) for j in left if j != i)[
                    : max(0, len(left) - b - 2)
                ]
            )
            for i in left
        }
        picked.append(min(left, key=scores.__getitem__))
        left.remove(picked[-1])
    chosen = vectors[picked]
    center = chosen.quantile(0.5, dim=0)
    order = (chosen - center).abs().argsort(dim=0)[: len(picked) - 2 * b]
    assert torch.allclose(
        combine(rule("bulyan", {"b": b}), own, told, present, own), chosen.gather(0, order).mean(dim=0)
    )


@pytest.mark.parametrize("b", [1, 2, 3])
def test_mda_and_meamed_are_what_their_definitions_say(b):
    from itertools import combinations

    own, told, present, _ = example(b)
    vectors = torch.cat([own[None], told])
    size = len(vectors) - b
    best = min(combinations(range(len(vectors)), size), key=lambda some: float(torch.pdist(vectors[list(some)]).max()))
    assert torch.allclose(combine(rule("mda", {"b": b}), own, told, present, own), vectors[list(best)].mean(dim=0))
    order = (vectors - vectors.quantile(0.5, dim=0)).abs().argsort(dim=0)[:size]
    assert torch.allclose(
        combine(rule("meamed", {"b": b}), own, told, present, own), vectors.gather(0, order).mean(dim=0)
    )


def test_the_geometric_median_is_where_directions_cancel():
    """And near together or far apart makes no difference, as nu is relative."""
    own, told, present, _ = example(5)
    for scale in (1e-6, 1.0, 1e6):
        center = combine(rule("geometric_median"), own * scale, told * scale, present, own)
        away = torch.cat([own[None], told]) * scale - center
        assert float((away / away.norm(dim=1, keepdim=True)).sum(dim=0).norm()) < 1e-6


def test_the_flag_aggregator_keeps_what_most_updates_share_and_their_median_length():
    """Five updates along one direction of different lengths, two elsewhere: the result lies along it, no longer than the median."""
    before = torch.zeros(20, dtype=torch.float64)
    updates = torch.zeros(7, 20, dtype=torch.float64)
    updates[:5, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    updates[5, 1] = updates[6, 2] = 100.0
    combined = combine(
        rule("flag", {"iterations": 5}), updates[0], updates[1:], torch.ones(6, dtype=torch.bool), before
    )
    assert combined[0] == pytest.approx(4 * 5 / 7, rel=1e-3)
    assert float(combined.norm()) <= 4.0


def test_nearest_neighbor_mixing_is_the_mean_of_the_nearest_with_oneself():
    own, told, present, _ = example(6)
    vectors = torch.cat([own[None], told])
    nearest = torch.cdist(vectors, vectors).argsort(dim=1)[:, : len(vectors) - 2]
    mixed = vectors[nearest].mean(dim=1)
    after = combine(rule("median", None, "nnm", {"b": 2}), own, told, present, own)
    assert torch.allclose(after, mixed.quantile(0.5, dim=0))


def test_buckets_are_drawn_anew_each_round_and_the_same_from_the_same_seed():
    own, told, present, _ = example(7, k=6)
    bucketed = rule("median", None, "bucketing", {"size": 2, "seed": 1})
    first, kept, _ = bucketed.combine(bucketed.start(own), own, told, present, own, None)
    second, _, _ = bucketed.combine(kept, own, told, present, own, None)
    again, _, _ = bucketed.combine(bucketed.start(own), own, told, present, own, None)
    other = combine(rule("median", None, "bucketing", {"size": 2, "seed": 2}), own, told, present, own)
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_buckets_keep_the_sum_of_the_peers(size):
    """In equal buckets nobody weighs more than another, and our own vector stays by itself."""
    own, told, present, _ = example(8, k=6)
    bucketed = combine(rule("mean", None, "bucketing", {"size": size}), own, told, present, own)
    buckets = 6 // size
    assert torch.allclose(bucketed, (own + buckets * told.mean(dim=0)) / (buckets + 1))


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("trimmed_mean", {"b": -1}, "b must be >= 0"),
        ("sac", {"kappa": 0.0}, "kappa must be finite and > 0"),
        ("norm_bound", {"tau": math.inf}, "tau must be finite and > 0"),
        ("centered_clip", {"tau": 1.0, "iterations": 0}, "iterations must be >= 1"),
        ("ubar", {"share": 0.0}, "share must be in"),
        ("ubar", {"alpha": 1.5}, "alpha must be in"),
        ("balance", {"gamma": -1.0}, "gamma must be"),
        ("balance", {"share": 2.0}, "share must be in"),
        ("balance", {"decay": -0.1}, "decay must be"),
        ("bridge", {"b": 1, "which": "mean"}, "which must be one of"),
        ("geometric_median", {"nu": 0.0}, "nu must be"),
        ("geometric_median", {"iterations": 0}, "iterations must be"),
        ("flag", {"iterations": 0}, "iterations must be"),
        ("nobody", {}, "is unknown, choose one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(name, params, said):
    with pytest.raises(ConfigError, match=said):
        rule(name, params)
    with pytest.raises(ConfigError, match="size must be"):
        rule("mean", None, "bucketing", {"size": 0})


@pytest.mark.parametrize(
    ("name", "b", "k"),
    [("trimmed_mean", 2, 3), ("meamed", 2, 3), ("krum", 2, 2), ("bulyan", 1, 3), ("mda", 2, 3), ("nna", 2, 2)],
)
def test_too_few_vectors_are_an_error_and_not_a_weaker_defense(name, b, k):
    """A b that is quietly lowered turns a wrong setting into none at all."""
    own, told, present, _ = example(1, k=k)
    with pytest.raises(BreakdownExceeded, match=rf"{name}: b = {b} needs at least"):
        combine(rule(name, {"b": b}), own, told, present, own)
    with pytest.raises(BreakdownExceeded, match="nnm: b = 2 needs at least 5"):
        combine(rule("mean", None, "nnm", {"b": 2}), own, told[:3], present[:3], own)


def test_subsets_beyond_counting_are_refused():
    own, told, present, _ = example(1, k=30)
    with pytest.raises(ValueError, match="more than 100000 subsets"):
        combine(rule("mda", {"b": 10}), own, told, present, own)


def test_flag_gives_no_direction_to_who_did_not_move():
    """As replays of the first model in the first round: three updates of length 0 among six, and nothing that is not a number."""
    own, told = torch.ones(1, 5), torch.zeros(1, 6, 5)
    told[0, :3] = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.9], [1.0, 1.0, 1.0, 0.9, 1.0], [1.0, 1.0, 0.9, 1.0, 1.0]])
    flag = rule("flag", {})
    combined, _, _ = flag.combine(
        flag.start(own), own, told, torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, 5), None
    )
    assert bool(torch.isfinite(combined).all())
    assert float(combined.sum()) > 0.1


@pytest.mark.parametrize(
    ("name", "params", "held"),
    [
        ("cs_plus", {"b": 1}, [False, False, False, True]),  # tau is the second smallest, 2
        ("norm_bound", {"tau": 1.5}, [False, False, False, True]),
        ("clipped_gossip", {"b": 1}, [False, False, False, True]),
        ("sac", {"kappa": 3.0}, [True, True, True, True]),  # we did not move, so nobody moves us
        ("centered_clip", {"tau": 1.5}, [False, False, False, True]),
        ("nna", {"b": 1}, [False, False, False, True]),
        ("multi_krum", {"b": 1}, [False, False, False, True]),
        ("mda", {"b": 1}, [False, False, False, True]),
        ("mean", {}, None),
        ("median", {}, None),
        ("krum", {"b": 1}, None),
    ],
)
def test_a_rule_says_whom_it_held_back_to_less_than_half(name, params, held):
    """At 1, 2, 3 and 60: three of them say nearly the same, and 3 is clipped a little by most, which is no reproach."""
    own, told, present = line(1.0, 2.0, 3.0, 60.0)
    of = rule(name, params)
    said = of.combine(of.start(own), own, told, present, own, None)[2]
    assert held is None if said is None else said.tolist() == held


def test_who_is_absent_is_not_held_back_nor_is_anybody_named_where_vectors_were_mixed_first():
    own, told, present = line(1.0, 2.0, 3.0, 60.0)
    present[3] = False
    near, mixed = rule("nna", {"b": 1}), rule("nna", {"b": 1}, "nnm", {"b": 1})
    assert near.combine(near.start(own), own, told, present, own, None)[2].tolist() == [False, False, True, False]
    assert mixed.combine(mixed.start(own), own, told, present, own, None)[2] is None
