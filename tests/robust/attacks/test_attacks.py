"""Attacks on vectors: every formula compared with loops over small numbers, and the properties that hide each attack."""

import inspect
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.robust.attacks.api import Attack, Scene
from starling.robust.attacks.broadcast import Mimic, Stale, foe, free_rider, gaussian, ipm, sign_flip, zero
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.per_receiver import dissensus, edge_riding, edge_riding_max, equivocation, spectral
from starling.robust.attacks.stealth import DIRECTIONS, alie, min_max, min_sum, quantile
from tests.harness.attack_scenes import crafted, distance, drawn, mean, scene, std, targeting, vectors
from tests.strategies import examples

BROADCAST = ("sign_flip", "zero", "alie", "ipm", "foe", "mimic", "min_max", "min_sum", "stale", "free_rider")


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_crafts_a_vector_for_every_receiver_from_its_generator_and_modifies_no_input(name: str) -> None:
    attack, seen = ATTACKS[name](), drawn(1, 5, 3)
    assert attack.targets == ATTACKS.facts(name).targets
    before = {key: getattr(seen, key).clone() for key in ("own", "before", "start", "honest", "receivers", "gradient")}
    messages = crafted(attack, seen)
    assert messages.shape == seen.receivers.shape
    assert messages.dtype == seen.receivers.dtype
    assert torch.equal(torch.nan_to_num(messages), torch.nan_to_num(crafted(ATTACKS[name](), seen)))
    assert name not in BROADCAST or torch.equal(messages, messages[:1].expand_as(messages))
    for key, value in before.items():
        assert torch.equal(getattr(seen, key), value)


@pytest.mark.parametrize("name", sorted(targeting("vector")))
def test_an_attack_on_vectors_is_finite_even_when_it_knows_one_vector_that_is_zero(name: str) -> None:
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    alone = scene(
        own=nothing[0],
        before=nothing[0],
        start=nothing[0],
        honest=nothing,
        members=torch.tensor([4]),
        receivers=nothing,
        index=torch.tensor([0]),
        gradient=nothing[0],
        tau=torch.tensor([1.0], dtype=torch.float64),
    )
    assert bool(torch.isfinite(crafted(ATTACKS[name](), alone)).all())


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("alie", {"zz": 1}),
        ("ipm", {"epsilon": 0}),
        ("stale", {"lag": 16}),
        ("stale", {"share": 1.1}),
        ("min_max", {"direction": "down"}),
        ("sleeper", {"after": 2.0}),
        ("sleeper", {"attack": "nobody"}),
        ("backdoor", {"share": 0.0}),
        ("nobody", {}),
        ("gaussian", {"scale": -1.0}),
        ("mimic", {"warmup": -1}),
        ("clones", {"source": -1}),
        ("label_flip", {"source": 1}),
    ],
)
def test_unknown_parameters_and_bounds_are_refused_in_one_line(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ATTACKS.build("attack_params", name, params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (sign_flip(), [-3.0, -2.0]),
        (ipm(), [-0.3, -0.2]),
        (foe(), [-30.0, -20.0]),
        (zero(), [0.0, 0.0]),
        (sign_flip(update=True), [4.0, 4.0]),
        (Stale(), [0.5, -0.5]),
        (Stale(share=0.5), [1.75, 0.75]),
        (free_rider(), [3.0, 3.0]),
    ],
)
def test_values_of_attacks_that_send_the_same_to_all(attack: Attack, message: list[float]) -> None:
    """The honest mean is (3, 2), own (2, 2), before (3, 3), start (0.5, −0.5)."""
    assert crafted(attack, scene()).tolist() == [pytest.approx(message)] * 2


def test_gaussian_noise_has_the_size_that_the_formula_says_and_differs_between_receivers() -> None:
    """s = 3 · mean σ + 0.1, measured over many coordinates."""
    seen = drawn(4, 8, 20_000)
    messages = crafted(gaussian(), seen)
    expected = 3.0 * float(seen.honest.std(dim=0).mean()) + 0.1
    noise = messages - seen.honest.mean(dim=0)
    assert float(noise.std()) == pytest.approx(expected, rel=0.02)
    assert not torch.equal(messages[0], messages[1])


def test_gaussian_noise_has_a_floor_where_honest_nodes_agree() -> None:
    seen = replace(drawn(4, 3, 10_000), honest=torch.ones(3, 10_000, dtype=torch.float64))
    assert float((crafted(gaussian(), seen) - 1.0).std()) == pytest.approx(0.1, rel=0.05)


def test_a_stale_node_sends_its_vector_of_an_earlier_round() -> None:
    attack, memory, messages_of_rounds = Stale(lag=3), None, []
    for turn in range(8):
        seen = scene(round=turn, own=vectors((float(turn), 0.0))[0])
        for _ in range(2):
            messages, memory = attack.craft(memory, seen, generator(0, "test"))
        messages_of_rounds.append(float(messages[0, 0]))
    assert messages_of_rounds == [0.5, 0.5, 0.5, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(memory) == 4


def test_a_free_rider_may_add_noise() -> None:
    noisy = crafted(free_rider(noise=1e-3), scene())
    assert noisy.tolist() != [[3.0, 3.0]] * 2
    assert float((noisy - 3.0).abs().max()) < 1e-2


def test_a_mimic_without_warm_up_is_always_the_first_honest_node_it_knew() -> None:
    attack = Mimic()
    _, memory = attack.craft(None, scene(), generator(0, "test"))
    turned = scene(members=torch.tensor([2, 1, 0]))
    assert attack.craft(memory, turned, generator(0, "test"))[0][0].tolist() == [5.0, 4.0]
    absent = scene(members=torch.tensor([5, 6, 7]))
    assert attack.craft(memory, absent, generator(0, "test"))[0][0].tolist() == [3.0, 2.0]


def test_a_mimic_with_warm_up_finds_the_node_furthest_along_the_axis_of_most_difference() -> None:
    """Honest nodes differ mostly along (1, 1), and number 2 is the outlier."""
    honest = vectors((0.0, 0.1), (0.1, 0.0), (9.0, 9.0), (-0.1, 0.1), (-1.0, -1.2))
    seen = scene(honest=honest, members=torch.arange(5))
    attack, memory = Mimic(warmup=5), None
    for turn in range(6):
        messages, memory = attack.craft(memory, replace(seen, round=turn), generator(0, "test"))
    assert messages[0].tolist() == [9.0, 9.0]
    assert memory.chosen == 2


@pytest.mark.parametrize(
    ("nodes", "bad", "expected"),
    [(16, 1, -0.08), (16, 3, 0.10), (16, 4, 0.21), (16, 5, 0.35), (50, 12, 0.34), (100, 20, 0.29), (100, 40, 0.90)],
)
def test_alie_derives_its_quantile_from_the_number_of_honest_nodes_beyond_it(nodes: int, bad: int, expected: float) -> None:
    assert quantile(nodes, bad) == pytest.approx(expected, abs=0.006)


def test_alie_is_one_and_a_half_deviations_below_the_mean_of_each_coordinate() -> None:
    seen = scene()
    rows = seen.honest.tolist()
    expected = [m - 1.5 * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert crafted(alie(), seen)[0].tolist() == pytest.approx(expected)
    above = [m + 2.0 * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert crafted(alie(z=-2.0), seen)[0].tolist() == pytest.approx(above)
    many = scene(nodes=1000, attackers=480)
    largest = [m - quantile(1000, 480) * s for m, s in zip(mean(rows), std(rows), strict=True)]
    assert quantile(1000, 480) > 1.5
    assert crafted(alie(), many)[0].tolist() == pytest.approx(largest)
    assert quantile(10, 6) == math.inf
    assert bool(torch.isfinite(crafted(alie(), scene(nodes=10, attackers=6))).all())


@pytest.mark.parametrize("attack", [min_max, min_sum])
@examples(25)
@given(seed=st.integers(0, 10_000), nodes=st.integers(2, 9), dim=st.integers(1, 12), direction=st.sampled_from(DIRECTIONS))
def test_min_max_and_min_sum_take_the_largest_step_that_stays_inconspicuous(attack, seed, nodes, dim, direction):
    """One step of the search further it would exceed the bound (or γ is at its limit)."""
    seen = drawn(seed, nodes, dim)
    rows = seen.honest.tolist()

    def measure(point):
        away = [distance(point, row) for row in rows]
        return max(away) if attack is min_max else sum(each**2 for each in away)

    message, middle, p = crafted(attack(direction), seen)[0].tolist(), mean(rows), _direction(direction, rows)
    limit = max(map(measure, rows))
    assert measure(message) <= limit * (1 + 1e-9)
    moved = [x - m for x, m in zip(message, middle, strict=True)]
    gamma = sum(a * b for a, b in zip(moved, p, strict=True)) / sum(b * b for b in p)
    assert 0.0 <= gamma <= 100.0
    if gamma < 99.9:
        assert measure([m + (gamma + 1.5e-4) * q for m, q in zip(middle, p, strict=True)]) > limit * (1 - 1e-9)


def _direction(name: str, rows: list[list[float]]) -> list[float]:
    middle = mean(rows)
    if name == "std":
        return [-s for s in std(rows)]
    if name == "unit":
        return [-m / math.hypot(*middle) for m in middle]
    return [-math.copysign(1.0, m) for m in middle]


def test_dissensus_pushes_each_receiver_away_from_the_mean_and_cancels_gossip() -> None:
    """x_i + 3(x_i − μ), μ = (3, 2); with epsilon = h and uniform weights the honest pull to μ and the attack sum to 0."""
    assert crafted(dissensus(), scene()).tolist() == [[1.0 - 6.0, 2.0], [3.0, 0.0 - 6.0]]
    seen = drawn(5, 4, 3)
    messages = crafted(dissensus(epsilon=4.0), seen)
    mixed = (seen.honest.sum(dim=0) + messages) / 5
    assert torch.allclose(mixed, seen.receivers)


def test_equivocation_tells_even_and_odd_receivers_opposite_things() -> None:
    """Along one direction that all attackers share, 3 median distances away."""
    seen = scene()
    steps = crafted(equivocation(), seen) - seen.receivers
    away = sorted(distance(row, mean(seen.honest.tolist())) for row in seen.honest.tolist())
    assert float(steps[0].norm()) == pytest.approx(3.0 * away[1])
    assert torch.allclose(steps[0], -steps[1])
    other = crafted(equivocation(), replace(seen, own=seen.own + 1.0, round=3)) - seen.receivers
    assert torch.allclose(other, steps)
    assert not torch.allclose(crafted(equivocation(), replace(seen, seed=8)) - seen.receivers, steps)


FOUR = vectors((0.0, 0.0), (2.0, 0.0), (0.0, 4.0), (9.0, 9.0))


def test_edge_riding_sends_the_threshold_along_the_gradient() -> None:
    """The gradient (3, 4) has length 5."""
    seen = scene(tau=torch.tensor([5.0, 10.0], dtype=torch.float64))
    assert crafted(edge_riding(), seen).tolist() == [[1.0 + 3.0, 2.0 + 4.0], [3.0 + 6.0, 0.0 + 8.0]]


@pytest.mark.parametrize("seen", [scene(), scene(honest=FOUR, members=torch.arange(4))])
def test_edge_riding_without_a_threshold_is_as_far_as_two_honest_vectors_are_apart(seen: Scene) -> None:
    """√2 times the median distance from the mean; for an even number the mean of the middle two."""
    away = median(distance(row, mean(seen.honest.tolist())) for row in seen.honest.tolist())
    steps = crafted(edge_riding(), seen) - seen.receivers
    assert steps.norm(dim=1).tolist() == pytest.approx([math.sqrt(2.0) * away] * 2)


def test_edge_riding_max_moves_ten_times_the_mean_and_at_least_ten_uphill() -> None:
    """μ = (3, 2)."""
    seen = scene()
    steps = crafted(edge_riding_max(), seen) - seen.receivers
    assert steps[0].tolist() == pytest.approx([10 * math.sqrt(13) * 0.6, 10 * math.sqrt(13) * 0.8])
    near = replace(seen, honest=seen.honest / 100)
    assert (crafted(edge_riding_max(), near) - near.receivers).norm(dim=1).tolist() == pytest.approx([10.0, 10.0])


def test_spectral_follows_the_slowest_mode_of_the_graph() -> None:
    links = torch.zeros(4, 4, dtype=torch.float64)
    for i, j, weight in ((0, 1, 1.0), (2, 3, 1.0), (1, 2, 0.01)):
        links[i, j] = links[j, i] = weight
    honest = vectors((0.0, 0.0), (0.1, 0.0), (2.0, 1.0), (2.1, 1.0))
    numbers = torch.arange(4)
    seen = scene(honest=honest, members=numbers, receivers=honest.clone(), index=numbers, links=links)
    steps = crafted(spectral(), seen) - honest
    laplacian = torch.diag(links.sum(dim=1)) - links
    v = torch.linalg.eigh(laplacian).eigenvectors[:, 1]
    for i in range(4):
        expected = [3.0 * float(v[i]) * sum(float(v[j] * honest[j, c]) for j in range(4)) for c in range(2)]
        assert steps[i].tolist() == pytest.approx(expected)
    assert float(steps[0, 0]) < 0 < float(steps[3, 0])
    stranger = replace(seen, index=torch.tensor([0, 1, 2, 9]))
    assert torch.equal(crafted(spectral(), stranger)[3], honest[3])


def test_spectral_without_a_graph_pushes_along_the_axis_of_most_difference() -> None:
    honest = vectors((-5.0, 0.1), (5.0, -0.1), (-4.0, -0.1), (4.0, 0.1))
    numbers = torch.arange(4)
    seen = scene(honest=honest, members=numbers, receivers=honest.clone(), index=numbers)
    steps = crafted(spectral(xi=2.0), seen) - honest
    assert steps[:, 0].tolist() == pytest.approx([-10.0, 10.0, -8.0, 8.0], rel=1e-3)
    bounded = crafted(spectral(), replace(seen, tau=torch.full((4,), 0.5, dtype=torch.float64))) - honest
    assert bounded.norm(dim=1).tolist() == pytest.approx([0.5] * 4)


@pytest.mark.parametrize(("name", "params"), [("foe", {}), ("alie", {"attack": "alie"})])
def test_a_sleeper_is_honest_for_half_of_the_run_and_then_another_attack(name: str, params: dict[str, Any]) -> None:
    attack = ATTACKS["sleeper"](**params)
    assert crafted(attack, scene(round=4)).tolist() == [[2.0, 2.0]] * 2
    assert torch.equal(crafted(attack, scene(round=5)), crafted(ATTACKS[name](), scene(round=5)))
    assert crafted(attack, scene(round=10**6, rounds=0)).tolist() == [[2.0, 2.0]] * 2  # an endless run


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_the_documentation_lists_each_attack_with_parameters_and_defaults(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "attacks.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    for parameter in inspect.signature(ATTACKS[name]).parameters.values():
        assert f"`{parameter.name}" in row
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            assert f"`{parameter.name} = {parameter.default:g}`" in row
