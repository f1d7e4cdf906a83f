"""The preset for strangers against every attack on messages: an open swarm with one Byzantine member in five keeps learning."""

import pytest

from starling.node.config import presets, toml
from starling.node.simulate import rules
from starling.node.simulate.engines import check
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from tests.harness import robust_tables as tables
from tests.harness.attack_scenes import targeting

LEAST, PRICE = 90.0, 0.5
ROUNDS = 50
TOLD = sorted(targeting("vector", "data", "wire"))


def open_swarm(seed, *assignments):
    """Return a scenario with every key of the preset that a scenario has; task, rate and Byzantine nodes are those of the tables."""
    preset = toml.convert(presets.filled({}, "open", Scenario), Scenario)
    of_tables = [each for each in tables.COMMON if each.startswith(("simulate", "task", "partition", "optimizer", "pace.evaluate"))]
    made = toml.apply_set(
        preset, (*of_tables, f"pace.rounds={ROUNDS}", f"simulate.seed={seed}", f"attack.rows={tables.bad(seed)}", *assignments)
    )
    rules.check(cells(made))
    check(made)
    return made


def percent(*assignments):
    return sum(tables.percent(open_swarm(seed, *assignments)) for seed in tables.SEEDS) / len(tables.SEEDS)


def test_the_preset_pulls_and_combines_robustly():
    made = open_swarm(0)
    assert (made.mix.kind, made.overlay.kind, made.overlay.k) == ("gather", "pull", 6)
    assert (made.robust.rule, made.robust.f, made.pace.local_steps) == ("cs_nnm", 2, 6)


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", TOLD)
def test_three_liars_of_sixteen_do_not_stop_an_open_swarm(kind):
    assert percent(f"attack.kind={kind}") >= LEAST


@pytest.mark.acceptance
def test_without_an_attack_the_preset_costs_at_most_half_a_point():
    assert percent() >= percent("preset=custom", "byzantine_fraction=0", "robust.rule=mean") - PRICE
