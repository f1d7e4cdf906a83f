"""Attacks on vectors: every formula against loops over small numbers, and what makes each of them hard to see."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.catalogue import build
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.robust.attacks.broadcast import FreeRider, Gaussian, Mimic, SignFlip, Stale, Zero, foe, ipm
from starling.robust.attacks.catalogue import ATTACKS, targeting
from starling.robust.attacks.per_receiver import Dissensus, EdgeRiding, EdgeRidingMax, Equivocation, Spectral
from starling.robust.attacks.stealth import DIRECTIONS, Alie, MinMax, MinSum, quantile
from tests.harness.attack_scenes import distance, drawn, mean, scene, std, told, vectors
from tests.strategies import examples

SAME_TO_ALL = ("sign_flip", "zero", "alie", "ipm", "foe", "mimic", "min_max", "min_sum", "stale", "free_rider")
small = examples(25)


# --- the catalogue ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS)
def test_what_the_table_says_of_an_attack_is_so(name: str) -> None:
    """The command line goes by the table, the engine by `targets`."""
    assert ATTACKS[name]().targets == ATTACKS.facts(name).targets


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_tells_a_vector_to_every_receiver_and_modifies_no_input(name: str) -> None:
    """A simulator hands in the honest vectors themselves."""
    seen = drawn(1, 5, 3)
    before = {key: getattr(seen, key).clone() for key in ("own", "before", "start", "honest", "receivers", "gradient")}
    messages = told(ATTACKS[name](), seen)
    assert messages.shape == seen.receivers.shape
    assert messages.dtype == seen.receivers.dtype
    for key, value in before.items():
        assert torch.equal(getattr(seen, key), value)


@pytest.mark.parametrize("name", sorted(targeting("vector")))
def test_an_attack_on_vectors_tells_finite_numbers_even_when_it_knows_one_vector_that_is_zero(name: str) -> None:
    """On a whole node that is what an attacker knows in its first round, and a NaN would be dropped unread."""
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    alone = scene(
        own=nothing[0], before=nothing[0], start=nothing[0], honest=nothing, members=torch.tensor([4]), receivers=nothing,
        index=torch.tensor([0]), gradient=nothing[0], tau=torch.tensor([1.0], dtype=torch.float64),
    )  # fmt: skip
    assert bool(torch.isfinite(told(ATTACKS[name](), alone)).all())


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_equal_chance_gives_equal_lies(name: str) -> None:
    """A run can be replayed, liars included."""
    seen = drawn(2, 4, 6)
    assert torch.equal(
        torch.nan_to_num(told(ATTACKS[name](), seen)), torch.nan_to_num(told(ATTACKS[name](), seen))
    )  # fmt: skip


@pytest.mark.parametrize("name", SAME_TO_ALL)
def test_these_tell_everybody_the_same(name: str) -> None:
    """Colluders that agree word by word: what Krum and its kin fall for."""
    messages = told(ATTACKS[name](), drawn(3, 5, 4))
    assert torch.equal(messages, messages[:1].expand_as(messages))


def test_a_parameter_that_is_not_there_or_out_of_bounds_is_a_line_for_a_person() -> None:
    """Attacks are named in configurations, like everything else."""
    for name, params in (
        ("alie", {"zz": 1}), ("ipm", {"epsilon": 0}), ("stale", {"lag": 16}), ("min_max", {"direction": "down"}),
        ("sleeper", {"after": 2.0}), ("sleeper", {"attack": "nobody"}), ("backdoor", {"share": 0.0}), ("nobody", {}),
        ("gaussian", {"scale": -1.0}), ("mimic", {"warmup": -1}), ("clones", {"source": -1}), ("label_flip", {"source": 1}),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            build("attack_params", ATTACKS, name, params)
        assert "\n" not in str(caught.value)


# --- one vector that stands out -----------------------------------------------------------------------------------


def test_sign_flip_ipm_foe_and_zero_are_multiples_of_the_honest_mean() -> None:
    """The mean of the scene is (3, 2)."""
    seen = scene()
    assert told(SignFlip(), seen).tolist() == [[-3.0, -2.0]] * 2
    assert told(ipm(), seen).tolist() == [pytest.approx([-0.3, -0.2])] * 2
    assert told(foe(), seen).tolist() == [[-30.0, -20.0]] * 2
    assert told(Zero(), seen).tolist() == [[0.0, 0.0]] * 2


def test_sign_flip_of_updates_goes_backwards_from_where_its_steps_began() -> None:
    """before = (3, 3) and own = (2, 2): the honest step is (−1, −1)."""
    assert told(SignFlip(update=True), scene()).tolist() == [[4.0, 4.0]] * 2


def test_gaussian_noise_has_the_size_that_the_formula_says_and_differs_between_receivers() -> None:
    """s = 3 · mean σ + 0.1, measured over many coordinates."""
    seen = drawn(4, 8, 20_000)
    messages = told(Gaussian(), seen)
    expected = 3.0 * float(seen.honest.std(dim=0).mean()) + 0.1
    noise = messages - seen.honest.mean(dim=0)
    assert float(noise.std()) == pytest.approx(expected, rel=0.02)
    assert not torch.equal(messages[0], messages[1])


def test_where_the_honest_agree_gaussian_noise_has_its_floor() -> None:
    """Or the attack would say nothing at consensus."""
    one = torch.ones(3, 10_000, dtype=torch.float64)
    seen = replace(drawn(4, 3, 10_000), honest=one)
    assert float((told(Gaussian(), seen) - 1.0).std()) == pytest.approx(0.1, rel=0.05)


def test_a_stale_node_says_where_everybody_began() -> None:
    """A model of round 0, signed and well-formed."""
    assert told(Stale(), scene()).tolist() == [[0.5, -0.5]] * 2


def test_a_stale_node_with_a_lag_says_what_it_was_so_many_rounds_ago_and_keeps_no_more() -> None:
    """Before it has anything that old it says where everybody began; asked twice in a round it says the same."""
    attack, memory, heard = Stale(lag=3), None, []
    for turn in range(8):
        seen = scene(round=turn, own=vectors((float(turn), 0.0))[0])
        for _ in range(2):
            messages, memory = attack.craft(memory, seen, generator(0, "test"))
        heard.append(float(messages[0, 0]))
    assert heard == [0.5, 0.5, 0.5, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(memory) == 4


def test_a_free_rider_says_what_it_was_before_any_step_of_its_own() -> None:
    """With noise, so that nobody finds the echo by comparing bytes."""
    assert told(FreeRider(), scene()).tolist() == [[3.0, 3.0]] * 2
    noisy = told(FreeRider(noise=1e-3), scene())
    assert noisy.tolist() != [[3.0, 3.0]] * 2
    assert float((noisy - 3.0).abs().max()) < 1e-2


def test_a_mimic_without_warm_up_is_always_the_first_honest_node_it_knew() -> None:
    """Its number, not its row: later it may stand in another row, or not be heard."""
    attack = Mimic()
    _, memory = attack.craft(None, scene(), generator(0, "test"))
    turned = scene(members=torch.tensor([2, 1, 0]))
    assert attack.craft(memory, turned, generator(0, "test"))[0][0].tolist() == [5.0, 4.0]
    unheard = scene(members=torch.tensor([5, 6, 7]))
    assert attack.craft(memory, unheard, generator(0, "test"))[0][0].tolist() == [3.0, 2.0]


def test_a_mimic_with_warm_up_finds_the_node_furthest_along_the_axis_of_most_difference() -> None:
    """Honest nodes differ along (1, 1) mostly, and number 2 is the one far out."""
    honest = vectors((0.0, 0.1), (0.1, 0.0), (9.0, 9.0), (-0.1, 0.1), (-1.0, -1.2))
    seen = scene(honest=honest, members=torch.arange(5))
    attack, memory = Mimic(warmup=5), None
    for turn in range(6):
        messages, memory = attack.craft(memory, replace(seen, round=turn), generator(0, "test"))
    assert messages[0].tolist() == [9.0, 9.0]
    assert memory.chosen == 2


# --- hidden in the spread -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "bad", "expected"),
    [(16, 1, -0.08), (16, 3, 0.10), (16, 4, 0.21), (16, 5, 0.35), (50, 12, 0.34), (100, 20, 0.29), (100, 40, 0.90)],
)
def test_alie_takes_its_quantile_from_how_many_honest_nodes_must_be_further_out(
    nodes: int, bad: int, expected: float
) -> None:
    """Values of the paper's formula, to two digits."""
    assert quantile(nodes, bad) == pytest.approx(expected, abs=0.006)


def test_alie_is_one_and_a_half_deviations_below_the_mean_of_each_coordinate() -> None:
    """And where the quantile is larger, that many; or as many as are asked for."""
    seen = scene()
    rows = seen.honest.tolist()
    expected = [m - 1.5 * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert told(Alie(), seen)[0].tolist() == pytest.approx(expected)
    above = [m + 2.0 * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert told(Alie(z=-2.0), seen)[0].tolist() == pytest.approx(above)
    many = scene(nodes=1000, bad=480)
    largest = [m - quantile(1000, 480) * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert quantile(1000, 480) > 1.5
    assert told(Alie(), many)[0].tolist() == pytest.approx(largest)


def test_alie_stands_where_attackers_are_a_majority() -> None:
    """z_max is infinite then: no honest node has to side with them."""
    assert quantile(10, 6) == math.inf
    assert bool(torch.isfinite(told(Alie(), scene(nodes=10, bad=6))).all())


@small
@given(
    seed=st.integers(0, 10_000), nodes=st.integers(2, 9), dim=st.integers(1, 12), direction=st.sampled_from(DIRECTIONS)
)
def test_min_max_is_no_further_from_any_honest_vector_than_two_honest_ones_are_and_could_hardly_be(
    seed: int, nodes: int, dim: int, direction: str
) -> None:
    """The largest γ: one step of the search further, and it would stand out (or γ is at its bound)."""
    seen = drawn(seed, nodes, dim)
    rows = seen.honest.tolist()
    message = told(MinMax(direction), seen)[0]
    limit = max(distance(a, b) for a in rows for b in rows)
    assert max(distance(message.tolist(), row) for row in rows) <= limit * (1 + 1e-9)
    p = _direction(direction, rows)
    moved = [x - m for x, m in zip(message.tolist(), mean(rows), strict=True)]
    gamma = _along(moved, p)
    assert 0.0 <= gamma <= 100.0
    if gamma < 99.9:
        further = [m + (gamma + 1.5e-4) * q for m, q in zip(mean(rows), p, strict=True)]
        assert max(distance(further, row) for row in rows) > limit * (1 - 1e-9)


@small
@given(
    seed=st.integers(0, 10_000), nodes=st.integers(2, 9), dim=st.integers(1, 12), direction=st.sampled_from(DIRECTIONS)
)
def test_min_sum_keeps_the_sum_of_squared_distances_below_the_largest_of_an_honest_one(
    seed: int, nodes: int, dim: int, direction: str
) -> None:
    """And is the largest such γ."""
    seen = drawn(seed, nodes, dim)
    rows = seen.honest.tolist()
    message = told(MinSum(direction), seen)[0]
    limit = max(sum(distance(a, b) ** 2 for b in rows) for a in rows)
    assert sum(distance(message.tolist(), row) ** 2 for row in rows) <= limit * (1 + 1e-9)
    p = _direction(direction, rows)
    gamma = _along([x - m for x, m in zip(message.tolist(), mean(rows), strict=True)], p)
    if gamma < 99.9:
        further = [m + (gamma + 1.5e-4) * q for m, q in zip(mean(rows), p, strict=True)]
        assert sum(distance(further, row) ** 2 for row in rows) > limit * (1 - 1e-9)


def _direction(name: str, rows: list[list[float]]) -> list[float]:
    middle = mean(rows)
    if name == "std":
        return [-s for s in std(rows)]
    if name == "unit":
        return [-m / math.hypot(*middle) for m in middle]
    return [-math.copysign(1.0, m) for m in middle]


def _along(moved: list[float], p: list[float]) -> float:
    return sum(a * b for a, b in zip(moved, p, strict=True)) / sum(b * b for b in p)


# --- to each its own ----------------------------------------------------------------------------------------------


def test_dissensus_pushes_each_receiver_away_from_the_mean() -> None:
    """x_i + 3(x_i − μ), μ = (3, 2)."""
    assert told(Dissensus(), scene()).tolist() == [[1.0 - 6.0, 2.0], [3.0, 0.0 - 6.0]]


def test_dissensus_with_one_attacker_beside_all_honest_nodes_cancels_gossip_exactly() -> None:
    """epsilon = h with uniform weights: the honest pull to μ and the attacker's push sum to 0, so nobody ever agrees."""
    seen = drawn(5, 4, 3)
    messages = told(Dissensus(epsilon=4.0), seen)
    mixed = (seen.honest.sum(dim=0) + messages) / 5
    assert torch.allclose(mixed, seen.receivers)


def test_equivocation_tells_even_and_odd_receivers_opposite_things() -> None:
    """Along one direction that all attackers share, 3 median distances away."""
    seen = scene()
    steps = told(Equivocation(), seen) - seen.receivers
    away = sorted(distance(row, mean(seen.honest.tolist())) for row in seen.honest.tolist())
    assert float(steps[0].norm()) == pytest.approx(3.0 * away[1])
    assert torch.allclose(steps[0], -steps[1])
    other = told(Equivocation(), replace(seen, own=seen.own + 1.0, round=3)) - seen.receivers
    assert torch.allclose(other, steps)
    assert not torch.allclose(told(Equivocation(), replace(seen, seed=8)) - seen.receivers, steps)


def test_edge_riding_stands_exactly_on_the_threshold_straight_uphill() -> None:
    """The gradient (3, 4) has length 5."""
    seen = scene(tau=torch.tensor([5.0, 10.0], dtype=torch.float64))
    assert told(EdgeRiding(), seen).tolist() == [[1.0 + 3.0, 2.0 + 4.0], [3.0 + 6.0, 0.0 + 8.0]]


def test_edge_riding_without_a_threshold_is_as_far_as_two_honest_vectors_are_apart() -> None:
    """√2 times the median distance from the mean; for an even number of them the middle of the two."""
    seen = scene()
    away = sorted(distance(row, mean(seen.honest.tolist())) for row in seen.honest.tolist())
    steps = told(EdgeRiding(), seen) - seen.receivers
    assert steps.norm(dim=1).tolist() == pytest.approx([math.sqrt(2.0) * away[1]] * 2)
    four = scene(honest=vectors((0.0, 0.0), (2.0, 0.0), (0.0, 4.0), (9.0, 9.0)), members=torch.arange(4))
    away = sorted(distance(row, mean(four.honest.tolist())) for row in four.honest.tolist())
    steps = told(EdgeRiding(), four) - four.receivers
    assert steps.norm(dim=1).tolist() == pytest.approx([math.sqrt(2.0) * (away[1] + away[2]) / 2] * 2)


def test_edge_riding_max_goes_ten_means_uphill_and_never_less_than_ten() -> None:
    """μ = (3, 2)."""
    seen = scene()
    steps = told(EdgeRidingMax(), seen) - seen.receivers
    assert steps[0].tolist() == pytest.approx([10 * math.sqrt(13) * 0.6, 10 * math.sqrt(13) * 0.8])
    near = replace(seen, honest=seen.honest / 100)
    assert (told(EdgeRidingMax(), near) - near.receivers).norm(dim=1).tolist() == pytest.approx([10.0, 10.0])


def test_spectral_follows_the_slowest_mode_of_the_graph() -> None:
    """Two pairs joined by a thin link: the Fiedler vector has one sign on each, and the message pushes them apart along it."""
    links = torch.zeros(4, 4, dtype=torch.float64)
    for i, j, weight in ((0, 1, 1.0), (2, 3, 1.0), (1, 2, 0.01)):
        links[i, j] = links[j, i] = weight
    honest = vectors((0.0, 0.0), (0.1, 0.0), (2.0, 1.0), (2.1, 1.0))
    numbers = torch.arange(4)
    seen = scene(honest=honest, members=numbers, receivers=honest.clone(), index=numbers, links=links)
    steps = told(Spectral(), seen) - honest
    laplacian = torch.diag(links.sum(dim=1)) - links
    v = torch.linalg.eigh(laplacian).eigenvectors[:, 1]
    for i in range(4):
        expected = [3.0 * float(v[i]) * sum(float(v[j] * honest[j, c]) for j in range(4)) for c in range(2)]
        assert steps[i].tolist() == pytest.approx(expected)
    assert float(steps[0, 0]) < 0 < float(steps[3, 0])
    stranger = replace(seen, index=torch.tensor([0, 1, 2, 9]))
    assert torch.equal(told(Spectral(), stranger)[3], honest[3])


def test_spectral_without_a_graph_pushes_along_the_axis_of_most_difference() -> None:
    """Every vector orthogonal to the ones is a slowest mode of a complete graph; this one tears the most."""
    honest = vectors((-5.0, 0.1), (5.0, -0.1), (-4.0, -0.1), (4.0, 0.1))
    numbers = torch.arange(4)
    seen = scene(honest=honest, members=numbers, receivers=honest.clone(), index=numbers)
    steps = told(Spectral(xi=2.0), seen) - honest
    assert steps[:, 0].tolist() == pytest.approx([-10.0, 10.0, -8.0, 8.0], rel=1e-3)
    bounded = told(Spectral(), replace(seen, tau=torch.full((4,), 0.5, dtype=torch.float64))) - honest
    assert bounded.norm(dim=1).tolist() == pytest.approx([0.5] * 4)


# --- asleep -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "params"), [("foe", {}), ("alie", {"attack": "alie"})])
def test_a_sleeper_is_honest_for_half_of_the_run_and_then_another_attack(name: str, params: dict[str, Any]) -> None:
    """A record of good behaviour is no promise."""
    attack = ATTACKS["sleeper"](**params)
    assert told(attack, scene(round=4)).tolist() == [[2.0, 2.0]] * 2
    assert torch.equal(told(attack, scene(round=5)), told(ATTACKS[name](), scene(round=5)))


def test_a_sleeper_in_a_run_without_end_sleeps() -> None:
    """There is no half of it."""
    assert told(ATTACKS["sleeper"](), scene(round=10**6, rounds=0)).tolist() == [[2.0, 2.0]] * 2


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_the_page_has_a_row_for_each_attack_with_each_of_its_parameters_and_their_defaults(name: str) -> None:
    """docs/attacks.md is what people read before they use one."""
    page = (Path(__file__).parents[3] / "docs" / "attacks.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    for parameter in inspect.signature(ATTACKS[name]).parameters.values():
        assert f"`{parameter.name}" in row
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            assert f"`{parameter.name} = {parameter.default:g}`" in row
