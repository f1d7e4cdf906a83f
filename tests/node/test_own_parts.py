"""The package in examples/parts adds one part of every kind by entry point, and swarms train with all of them."""

import tomllib
from pathlib import Path

import pytest
from msgspec import structs

from starling.node.config import presets
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate.engines import simulate
from starling.node.simulate.rules import check_one
from starling.node.simulate.schema import Scenario
from tests.harness import packages
from tests.harness.engines import manifest, open_request
from tests.harness.texts import words

PARTS = Path(__file__).parents[2] / "examples" / "parts"
PROJECT = (PARTS / "pyproject.toml").read_text()
COMMON = [
    *words(
        "simulate.engine=virtual simulate.nodes=4 pace.rounds=12 pace.local_steps=2 pace.evaluate_every=6 task=line_fit",
        "partition.kind=iid optimizer=sign_sgd optimizer.lr=0.05 overlay=chord_ring",
    )
]
PAIRWISE = ["mix=slow_dsgd", "mix.pace=0.7", "compress.select=every_nth", "compress.ratio=0.5", "compress.response=fp24"]
PULLED = ["mix=gather", "robust.rule=midrange", "compress.select=full", "compress.response=fp24", "attack.kind=echo", "attack.nodes=1"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    with packages.shelf(tmp_path, monkeypatch) as shelf:
        shelf.install(PROJECT, **{file.stem: file.read_text() for file in PARTS.glob("*.py")})
        yield shelf


def test_the_example_package_has_every_kind_of_part_in_one_short_file():
    groups = tomllib.loads(PROJECT)["project"]["entry-points"]
    kinds = ("overlays", "mixers", "selectors", "quantizers", "rules", "attacks", "tasks", "optimizers")
    assert set(groups) == {f"starling.{kind}" for kind in kinds}
    for file in PARTS.glob("*.py"):
        assert len(file.read_text().splitlines()) <= 30, file


@pytest.mark.slow
@pytest.mark.parametrize("assignments", [PAIRWISE, PULLED], ids=["pairwise", "pulled"])
def test_a_swarm_of_whole_nodes_trains_with_parts_of_a_package(installed, assignments):
    """One mixing algorithm exchanges differences and another combines models by a rule, hence two swarms."""
    scenario = presets.load(Scenario, assignments=[*COMMON, *assignments])
    check_one(scenario)
    outcome = simulate(scenario, lambda *_: None)
    first, last = outcome.rows[0], outcome.rows[-1]
    assert last.mean < first.mean / 2


@pytest.mark.parametrize("folder", [True, False], ids=["in the folder", "not found"])
def test_an_attack_of_the_current_folder_needs_no_package(folder, tmp_path):
    """On a node, whose engine gets the folder from the daemon, as for a task."""
    module = f"own_attack_{folder}".lower()
    (tmp_path / f"{module if folder else 'other'}.py").write_text((PARTS / "echo.py").read_text())
    call = structs.replace(open_request(manifest(mix="gather")), attack=f"{module}:Echo", code=str(tmp_path))
    reply = Worker().handle(call)
    if folder:
        assert isinstance(reply, calls.Opened)
    else:
        assert isinstance(reply, calls.Refused)
        assert reply.reason.startswith(f"attack: '{module}:Echo' is not found: no {module}.py in {tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["virtual", "matrix"])
def test_an_attack_of_the_current_folder_is_simulated(engine, here):
    (here / f"attack_of_{engine}.py").write_text((PARTS / "echo.py").read_text())
    swarm = [f"simulate.engine={engine}", "simulate.nodes=4", "pace.rounds=3", "attack.nodes=1"]
    scenario = presets.load(Scenario, assignments=[*swarm, f"attack.kind=attack_of_{engine}:Echo"])
    check_one(scenario)
    assert simulate(scenario, lambda *_: None).rows


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["virtual", "matrix"])
def test_a_part_of_the_current_folder_needs_no_package(engine, here):
    module = f"my_mix_of_{engine}"
    (here / f"{module}.py").write_text((PARTS / "slow_dsgd.py").read_text())
    assignments = [f"simulate.engine={engine}", "simulate.nodes=4", "pace.rounds=3", f"mix={module}:SlowDsgd"]
    scenario = presets.load(Scenario, assignments=assignments)
    check_one(scenario)
    assert simulate(scenario, lambda *_: None).rows
