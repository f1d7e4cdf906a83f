"""Recipes are valid, and the runner draws the right conclusions from runs. The runs themselves are `make bench`."""

import itertools
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import (
    authors,
    codecs,
    command,
    data,
    demos,
    facts,
    honest,
    large,
    loop,
    never_worse,
    overlap,
    overlays,
    plots,
    recipes,
    results,
    scaling,
    simulations,
    startup,
    table,
    tracking,
    warm,
)
from benchmarks import rules as combining
from benchmarks import run as bench
from benchmarks.facts import Facts
from benchmarks.recipes import (
    AuthorsRecipe,
    CodecRecipe,
    DemoRecipe,
    HonestRecipe,
    LargeRecipe,
    LoopRecipe,
    NeverWorseRecipe,
    NodeRoundRecipe,
    OverlapRecipe,
    OverlaysRecipe,
    RulesRecipe,
    SimulateRecipe,
    StartupRecipe,
    TrackingRecipe,
)
from benchmarks.results import Result
from starling.gossip.overlay import catalogue
from starling.kernels import never_worse as grid
from starling.kernels.schema import ALL_RULES, CODECS, LOOP_CASES, RULES
from starling.node.catalogues import task
from starling.node.cli.demo import make_plan
from starling.node.cli.research.bench_loop import wanted
from starling.node.config.assignments import assignments
from starling.node.engine.initial_model import initial
from starling.node.simulate import rules, sweep
from starling.node.simulate.schema import PATH_TASKS, manifest
from tests.harness.attack_scenes import targeting
from tests.harness.programs import needs

FACTS = Facts(
    cpu="a cpu", cores=2, memory_gb=1.5, system="Linux", python="3.11.7", torch="2", libp2p="0.8", commit="c" * 40, modified=False
)
MOST_PLOT_BYTES = 150_000
ALL = [pytest.param(path, id=path.stem) for path in recipes.everything()]
PAGES = [pytest.param(path, id=path.stem) for path in sorted(table.PAGES.glob("*.md")) if path.name != "README.md"]
BOWLS = facts.ROOT / "benchmarks" / "scenarios" / "heterogeneous.toml"
TWO = DemoRecipe(title="two cases", seeds=(1, 2), cases={"a": (), "b": ("mix=dsgd",)}, compare=("a", "b"))


def demo_run(case: str, seed: int, mean: float, **over: object) -> results.Run:
    """Return the printed result of a demo of two nodes, as far as figures use it."""
    exchanges = {"committed": 5}
    node = {"bytes_sent": 600, "rounds": 10, "exchanges": exchanges}
    run = {"case": case, "seed": seed, "mean": mean, "min": mean - 0.01, "wall_s": 3.0, "dense_bytes": 400}
    return {**run, "bytes_per_exchange": 100.0, "nodes": [node, node], **over}


def result(name: str = "claim", date: str = "2026-01-02T03:04:05+00:00", **over: float) -> Result:
    recipe = DemoRecipe(title="A claim.", at_least={"a.mean": 0.9}, at_most={"a.mean": 1.0})
    figures = {"a.mean": 0.95, "a.bytes_per_node": 1234567.0, **over}
    return Result(name=name, date=date, facts=FACTS, load=(0.5, 1.0), recipe=recipe, figures=figures, runs=[])


def curve(values, per_round=100.0, **over):
    """Return a simulation's curve, evaluated every ten rounds."""
    rounds = list(range(0, 10 * len(values), 10))
    same = {key: list(values) for key in simulations.CURVE}
    return {**same, "round": rounds, "seconds": [0.5 * t for t in rounds], "bytes_per_node": [per_round * t for t in rounds], **over}


def simulated(case: str, seed: int, values=(1.0, 0.1), **over: object) -> results.Run:
    """Return a simulation's stored result, as far as figures use it."""
    run = {"case": case, "seed": seed, "higher_is_better": False, "metric": "error", "diverged": None, "wall_s": 2.0, "parameters": 10}
    return {**run, "counts": {"exposed": 0, "named": 0, "accused": 0}, "curve": curve(values), **over}


GRID = TrackingRecipe(
    title="x",
    scenario="benchmarks/scenarios/tracking.toml",
    seeds=(1, 2),
    rounds=4,
    local_steps=3,
    splits={"iid": ("partition=iid",)},
    optimizers={"sgd": ("optimizer.lr=0.1",)},
    methods={"dsgd": ("mix=dsgd",), "pet": ("mix=pet",), "k_gt": ("mix=k_gt",)},
    halved=("k_gt",),
)


def tracked(recipe: TrackingRecipe, cell: tuple[str, str, str], method: str, ends=(0.8, 0.9), **over: object) -> results.Run:
    """Return a method's stored result in a cell."""
    run = {"cell": "-".join(cell), "faults": cell[2], "method": method, "metric": "accuracy", "higher_is_better": True}
    sent = {"bytes": [100.0] * len(recipe.seeds), "rounds": 4, "diverged": 0}
    return {**run, "ends": list(ends), **sent, **over}


def written(recipe: AuthorsRecipe) -> list[results.Run]:
    """Return the stored result of two authors."""
    both = {"austen": 2.0, "twain": 3.0}
    looks = [[{"austen": 4.0, "twain": 1.5}], [both, {"austen": 2.5, "twain": 2.75}], [{"austen": 2.75, "twain": 2.75}]]
    swarm = {"case": "swarm", "bits": looks, "parameters": 10, "steps": 6, "bytes_per_node": 50.0}
    central = {"case": "central", "steps": 6, "bits": [[{"austen": 2.25, "twain": 2.5}], [{"austen": 2.25, "twain": 3.0}]]}
    lone = [{"case": author, "steps": 6, "bits": [[{author: bits + 0.75}], [{author: bits + 0.875}]]} for author, bits in both.items()]
    return [swarm, central, *lone]


def honest_run(case: str, *, defended: bool, **over: object) -> results.Run:
    """Return the stored result of an honest swarm."""
    seen = {"nodes": 4, "exchanges": 40, "shortened": 1, "strikes": 0, "refusals": 0, "longest": 1.5} if defended else {}
    seen = seen or {"nodes": 0, **dict.fromkeys(honest.COUNTS, 0), "longest": 0.0}
    run = {"case": case, "seed": 0, "defended": defended, "committed": 20, "bytes": 100.0, "final": 0.9, "cpu_s": 1.0}
    return {**run, **seen, **over}


def walked(case: str, n: int, errors=(1.0, 0.01, 1e-20), **over: object) -> results.Run:
    """Return the stored result of an overlay."""
    run = {"case": case, "n": n, "seed": 1, "period": 2, "finite_time_rounds": 2, "left_after_measured_rounds": 1e-17}
    return {**run, "messages": 1.0, "consensus_error": list(errors), "messages_per_node": [0.0, 2.0, 4.0], **over}


def coded(codec: str, d: int, **over: object) -> results.Run:
    """Return a case of `starling bench codec`."""
    speeds = dict.fromkeys(("encode_gb_s", "decode_gb_s", "round_trip_gb_s"), 2.0)
    run = {"codec": codec, "d": d, **speeds, "bytes_per_parameter": 0.5, "index_bits_over_entropy": None}
    return {**run, "peak_extra_bytes": 2 * d, "memcpy_gb_s": 4.0, **over}


def combined(rule: str, d: int) -> results.Run:
    """Return a case of `starling bench rules`."""
    return {"rule": rule, "n": 16, "d": d, "ours_cpu_s": 1.0, "peer_cpu_s": 9.0, "ratio": 9.0, "max_error": 0.0}


def large_run(**over: object) -> results.Run:
    """Return the stored result of the run with a large model."""
    run = {
        "parameters": 1000,
        "round_s": [2.0, 4.0, 3.0],
        "local_steps_s": [1.0, 2.0],
        "payload_bytes": 500.0,
        "committed": [3, 2, 1],
        "timeout": [1, 0, 0],
        "engine_peaks": [30_000, 20_000, 10_000],
        "daemon_peaks": [9, 8, 7],
        "checkpoint_bytes": 8000,
        "resumed_s": 5.0,
        "resumed_exchange_s": 6.0,
        "rounds_lost": 1,
        "late_s": 7.0,
        "late_exchange_s": 9.0,
        "late_bytes": 4100,
        "losses": [[0, 5.0], [1, 4.0], [2, 3.0]],
    }
    return {**run, **over}


def looped(model: str, optimizer: str, mix: str, driver: str) -> results.Run:
    """Return a case of `starling bench loop`."""
    return {"model": model, "optimizer": optimizer, "mix": mix, "driver": driver, "plain_ms": 1.0, "ours_ms": 1.1, "kept": 0.91}


def compared(cell: str, **over: object) -> results.Run:
    """Return a case of `starling bench never-worse`."""
    run = {
        "cell": cell,
        "data": "digits",
        "metric": "accuracy",
        "higher_is_better": True,
        "seeds": [1, 2, 3, 4],
        "rounds": [2, 4],
        "difference": [-0.1, 0.2],
        "error": [0.01, 0.02],
        "worst": -0.1,
        "worst_error": 0.01,
        "worst_round": 2,
        "end": 0.2,
        "end_error": 0.02,
        "default_end": 0.9,
        "plain_end": 0.7,
        "below": 1,
        "above": 1,
        "diverged": [0, 0],
        "committed": [1.0, 1.0],
        "worse": True,
    }
    return {**run, **over}


def overlapped(model: str, d: int, pace: str, driver: str, mbit: float) -> results.Run:
    """Return a case of `starling bench overlap`."""
    figures = {
        "kept": 0.96,
        "kept_undisturbed": 0.97,
        "ratio": 0.98,
        "undisturbed": 0.97,
        "plain_steps_s": 10.2,
        "alone_steps_s": 10.0,
        "swarm_steps_s": 9.8,
        "peak_bytes_per_parameter": 30.0,
    }
    case = {"model": model, "d": d, "pace": pace, "driver": driver, "link": mbit}
    return {**case, "exchanges": 4, "load": [0.5, 1.5], **figures}


def plausible(recipe: recipes.Recipe) -> results.Figures:
    """Return all figures of a recipe, from made-up runs."""
    match recipe:
        case DemoRecipe():
            return demos.figures(recipe, [demo_run(case, s, 0.9) for s in recipe.seeds for case in recipe.all_cases])
        case StartupRecipe():
            memory = {"memory": [dict.fromkeys(("begin", "end", "peak"), 1)]}
            return startup.figures([{**dict.fromkeys(startup.TIMES, 1.0), **memory}])
        case OverlaysRecipe():
            return overlays.figures(recipe, [walked(case, n) for case in recipe.cases for n in recipe.sizes])
        case SimulateRecipe():
            return simulations.figures(recipe, [simulated(case, s) for case in recipe.cases for s in recipe.seeds])
        case HonestRecipe():
            arms = {case: honest.arms(recipe, case, 0) for case in recipe.cases}
            return honest.figures(recipe, [honest_run(case, defended=arm) for case in recipe.cases for arm in arms[case]])
        case TrackingRecipe():
            each = itertools.product(tracking.cells(recipe), recipe.methods)
            return tracking.figures(recipe, [tracked(recipe, cell, method) for cell, method in each])
        case NeverWorseRecipe():
            return never_worse.figures([compared(cell.name) for cell in grid.cells(recipe.cells)])
        case AuthorsRecipe():
            return authors.figures(recipe, written(recipe))
        case CodecRecipe():
            return codecs.figures(
                [
                    coded(codec, d, beside=beside, beside_over_quiet=0.7)
                    for d in recipe.dims
                    for beside in recipe.beside or (0,)
                    for codec in recipe.codecs or CODECS
                ]
            )
        case RulesRecipe():
            return combining.figures([combined(rule, d) for d in recipe.dims for rule in recipe.rules or RULES])
        case LargeRecipe():
            return large.figures([large_run()])
        case LoopRecipe():
            return loop.figures([looped(*case) for case in LOOP_CASES])
        case OverlapRecipe():
            each = itertools.product(recipe.models.items(), recipe.paces, recipe.drivers, recipe.mbit)
            return overlap.figures([overlapped(*model, *rest) for model, *rest in each])
        case NodeRoundRecipe():
            return scaling.figures(recipe, [{"nodes": n, "us_per_node_round": 1.0} for n in recipe.nodes])


@pytest.mark.parametrize("path", ALL)
def test_every_recipe_can_be_read_and_bounds_only_figures_that_are_measured(path):
    """A misspelt figure would be an unchecked claim."""
    recipe = recipes.load(path)
    results.verdicts(recipe, plausible(recipe))


@pytest.mark.parametrize("path", ALL)
def test_comparisons_have_at_least_three_seeds(path):
    """One run shows what a case can reach, not that it is better than another: so it has no comparison and no bound on one."""
    recipe = recipes.load(path)
    if len(getattr(recipe, "seeds", ())) not in (1, 2):
        return
    assert not recipe.compare
    compared = [name for name in (*recipe.at_least, *recipe.at_most) if "-" in name or "/" in name]
    assert not compared, f"take three seeds, or leave out the bounds on {', '.join(compared)}"


@pytest.mark.parametrize("path", ALL)
def test_every_command_line_of_a_recipe_is_valid(path):
    """So a recipe does not fail after ten minutes because a key was renamed."""
    recipe = recipes.load(path)
    match recipe:
        case DemoRecipe():
            for case, own in recipe.all_cases.items():
                attackers = [recipe.byzantine[case]] if case in recipe.byzantine else []
                make_plan(
                    nodes=recipe.nodes,
                    rounds=recipe.rounds,
                    seed=recipe.seeds[0],
                    assignments=(*recipe.set, *own),
                    preset=recipe.preset or None,
                    byzantine=tuple(attackers),
                )
        case OverlaysRecipe():
            for case in recipe.cases.values():
                for n in recipe.sizes:
                    catalogue.check(catalogue.overlay(case.kind, case.k, recipe.seeds[0]), n)
        case SimulateRecipe():
            for case in recipe.cases:
                check_simulation(recipe, case)
        case HonestRecipe():
            assert all(honest.scenario(recipe, case, 1, arm).mix.defended is arm for case in recipe.cases for arm in (True, False))
        case TrackingRecipe():
            check_tracking(recipe)
        case AuthorsRecipe():
            check_authors(recipe)
        case CodecRecipe():
            assert set(recipe.codecs) <= set(CODECS)
        case LoopRecipe():
            assert wanted(recipe.cases)
        case NeverWorseRecipe():
            assert [check_pair(recipe, cell) for cell in grid.cells(recipe.cells)]
        case RulesRecipe():
            assert set(recipe.rules) <= set(ALL_RULES)


def check_tracking(recipe: TrackingRecipe) -> None:
    for cell, method in itertools.product(tracking.cells(recipe), recipe.methods):
        needs_files = any(f"task={kind}" in recipe.set for kind in PATH_TASKS)
        given = tracking.assignments(recipe, cell, method, str(facts.ROOT) if needs_files else "")
        _, cells = sweep.read(facts.ROOT / recipe.scenario, assignments(given))
        rules.check(cells)


def check_pair(recipe: NeverWorseRecipe, cell: grid.Cell) -> None:
    texts = facts.ROOT if grid.wanted([cell]) else None
    for scenario in grid.scenarios(cell, recipe.rounds, texts, recipe.set):
        rules.check_one(scenario)


def check_authors(recipe: AuthorsRecipe) -> None:
    for case, members in {authors.SWARM: recipe.nodes, authors.CENTRAL: 1}.items():
        chosen = authors.scenario(recipe, case, facts.ROOT)
        rules.check_one(chosen)
        assert authors.steps(manifest(chosen), members) == recipe.steps


def check_simulation(recipe: SimulateRecipe, case: str) -> None:
    words = simulations.arguments(recipe, case)
    given = [word for word in words if "=" in word]
    scenario, cells = sweep.read(facts.ROOT / words[1], given)
    if scenario.task.kind in PATH_TASKS:
        _, cells = sweep.read(facts.ROOT / words[1], [*given, f"task.path={facts.ROOT}"])
    rules.check(cells)
    assert [cell.scenario.simulate.seed for cell in cells] == list(recipe.seeds)


def test_a_case_can_start_from_a_model_trained_on_all_data(tmp_path):
    """START is that model's file, which is reproducible and fits the recipe's task."""
    sets = ("task=digits", "task.hidden=8", "pace.local_steps=2", "pace.rounds=2", "mix=dsgd")
    recipe = SimulateRecipe(
        title="x",
        scenario="benchmarks/scenarios/digits-by-label.toml",
        set=sets,
        warm=("pace.rounds=3",),
        cases={"cold": (), "warm": ("task.start=START",)},
    )
    (file, digest), (_, again) = (warm.write(recipe, None, tmp_path) for _ in range(2))
    assert digest == again
    words = simulations.arguments(recipe, "warm", None, file)
    assert f"task.start={file}" in words
    assert not any("task.start" in word for word in simulations.arguments(recipe, "cold", None, file))
    agreed = manifest(sweep.read(facts.ROOT / words[1], [word for word in words if "=" in word])[1][0].scenario)
    begun = initial(task(agreed.task.kind, agreed.task.params()), agreed).state_dict()
    assert all(torch.equal(begun[name], tensor) for name, tensor in load_file(file).items())


@pytest.mark.parametrize(
    "text",
    [
        "title = 'x'",
        "kind = 'demo'",
        "kind = 'demo'\ntitle = 'x'\nnodse = 3",
        "kind = [",
        "kind = 'demo'\ntitle = 'x'\ncompare = ['a', 'b']",
        "kind = 'simulate'\ntitle = 'x'\nscenario = 'y'\ncompare = [['a', 'b']]",
        "kind = 'simulate'\ntitle = 'x'\nscenario = 'y'\nahead = [['a', 'b']]",
        "kind = 'tracking'\ntitle = 'x'\nscenario = 'y'\nhalved = ['c']\n[splits]\na = []\n[optimizers]\na = []\n[methods]\na = []\nb = []",
        "kind = 'overlays'\ntitle = 'x'\nsizes = []\ncases = { a = { kind = 'ring' } }",
    ],
)
def test_an_invalid_recipe_gives_one_line_that_names_the_file(tmp_path, text):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.toml: .+"):
        recipes.load(path)


def test_a_recipe_is_loaded_by_name_or_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.touch()
    assert recipes.find("by_label") == recipes.FOLDER / "by_label.toml"
    assert recipes.find(str(path)) == path
    with pytest.raises(ValueError, match=r"no recipe 'by_lable'; there are .*by_label, "):
        recipes.find("by_lable")


def test_the_command_line_of_a_demo_has_all_settings():
    """The case's own settings come last and override the recipe's."""
    recipe = DemoRecipe(title="x", rounds=200, set=("partition=by_label",), cases={"pet": ("mix=pet",)})
    words = "demo --json --no-tui --nodes 8 --seed 3 --rounds 200 --set partition=by_label --set mix=pet"
    assert demos.arguments(recipe, "pet", 3) == words.split()


def test_figures_of_a_case_are_over_its_seeds():
    runs = [demo_run("default", 1, 0.9, wall_s=2.0), demo_run("default", 2, 0.8, bytes_per_exchange=60.0)]
    figures = demos.figures(DemoRecipe(title="x"), runs)
    assert figures["default.mean"] == pytest.approx(0.85)
    assert figures["default.least_mean"] == 0.8
    assert figures["default.min"] == pytest.approx(0.79)
    assert figures["default.wall_s"] == 3.0
    assert figures["default.bytes_per_exchange"] == 80.0
    assert figures["default.less_than_dense"] == 5.0
    assert figures["default.bytes_per_node"] == 600
    assert figures["default.sent_over_payload"] == 2400 / (80 * 20)
    assert figures["default.exchanges_per_round"] == 0.5


AUTHORS = AuthorsRecipe(
    title="x",
    scenario="benchmarks/scenarios/text.toml",
    data="texts",
    nodes=2,
    steps=4,
    local_steps=2,
    batch_size=2,
    set=("mix=dsgd", "overlay=alone", "partition=by_file"),
    swarm=("overlay=ring",),
    lone=("optimizer.lr=0.01",),
)


def test_the_swarm_of_authors_counts_by_its_worst_node_and_models_by_their_best_evaluation():
    """Of three evaluations of the swarm the second is best, where nodes' means are 2.5 and 2.625: it counts the second node.

    All-reduce of 10 parameters by two in 6 steps: 2·1/2·40·6 = 240 bytes.
    """
    table = authors.figures(AUTHORS, written(AUTHORS))
    assert [table[f"twain.{name}"] for name in authors.COLUMNS] == [3.75, 3.875, 2.75, 2.5, 1.0]
    assert [table[f"mean.{name}"] for name in authors.COLUMNS] == [3.25, 3.375, 2.625, 2.375, 0.625]
    assert table["swarm.least_gain"] == 0.25
    assert table["swarm.gap"] == 0.25
    assert table["swarm.apart"] == 0.125
    assert [table[f"swarm.{name}"] for name in ("stopped", "end")] == [4, 2.75]
    assert [table[f"central.{name}"] for name in ("stopped", "end")] == [3, 2.625]
    assert table["swarm.fewer"] == 240 / 50


def test_lone_and_central_models_do_the_steps_of_the_swarm():
    """A lone model has a node's batch, the central one those of all; settings of one do not apply to the other."""
    folder = Path("/texts")
    swarm, central, lone = (authors.assignments(AUTHORS, case, folder) for case in ("swarm", "central", "twain"))
    assert all({"pace.local_steps=2", "pace.rounds=2"} <= set(each) for each in (swarm, central, lone))
    assert {"task.path=/texts", "task.batch_size=2", "overlay=ring"} <= set(swarm)
    assert {"task.path=/texts", "task.batch_size=4", "partition.shards=1"} <= set(central)
    assert {"task.path=/texts/twain.txt", "task.batch_size=2", "partition.shards=1", "optimizer.lr=0.01"} <= set(lone)
    assert "optimizer.lr=0.01" not in (*swarm, *central)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "texts"
    folder.mkdir(parents=True)
    for author, phrase in {"austen": "It is a truth universally acknowledged. ", "twain": "You do not know about me. "}.items():
        (folder / f"{author}.txt").write_text(phrase * 40)
    monkeypatch.setenv(data.VARIABLE, str(folder.parent))
    return folder


def test_an_interrupted_measurement_of_authors_resumes(texts, tmp_path):
    """Stored results of the same recipe, data and commit are not measured again, and deleted afterwards."""
    kept = tmp_path / "kept"
    learned = {"name": "texts", "sha256": data.fingerprint(texts)}
    done = kept / authors.key(AUTHORS, learned) / "central.json"
    done.parent.mkdir(parents=True)
    done.write_bytes(msgspec.json.encode({"case": "central", "bits": [[{"austen": 7.0, "twain": 8.0}]], "steps": 4, "wall_s": 0.0}))
    runs = authors.measure(AUTHORS, kept)
    assert [run["case"] for run in runs] == ["swarm", "central", "austen", "twain"]
    assert [len(look) for look in runs[0]["bits"]] == [AUTHORS.nodes] * 2
    assert [len(run["bits"]) for run in runs[2:]] == [2, 2]
    assert all(run["data"] == learned for run in runs if run["case"] != "central")
    table = authors.figures(AUTHORS, runs)
    assert table["mean.central"] == 7.5
    assert table["twain.lone"] < 8.0
    assert not list(kept.iterdir())


@pytest.mark.parametrize(("text_bytes", "left"), [(100, 100), (None, 1600)])
def test_texts_may_be_shortened(texts, tmp_path, text_bytes, left):
    """To their beginnings; all authors stay."""
    (tmp_path / "cut").mkdir()
    assert authors.cut(texts, tmp_path / "cut", text_bytes) == ["austen", "twain"]
    whole, kept = (folder / "austen.txt" for folder in (texts, tmp_path / "cut"))
    assert kept.read_bytes() == whole.read_bytes()[:left]


def test_a_lone_model_learns_as_a_node_that_never_exchanges_anything(texts):
    """From an equal start, on its own text alone, in as many steps of equal length; batches differ."""
    slow = ("optimizer=sgd", "optimizer.lr=0.02")
    recipe = msgspec.structs.replace(AUTHORS, steps=20, local_steps=10, batch_size=8, swarm=slow, lone=slow)
    swarm, _, *lone = authors.measure(recipe, texts.parent / "kept")
    nodes = swarm["bits"][-1]
    for author, node, alone in zip(("austen", "twain"), nodes, lone, strict=True):
        before, end = (look[0][author] for look in alone["bits"][-2:])
        assert node[author] == pytest.approx(end, abs=0.05)
        assert before > end + 0.05
    assert nodes[1]["austen"] > nodes[0]["austen"] + 0.5


def test_equal_models_of_nodes_are_evaluated_once(texts):
    """After a common outer step all nodes have the same model."""
    every = ("mix=sparse_outer", "overlay=complete", "compress.select=full", "compress.response=spread2")
    swarm, *_ = authors.measure(msgspec.structs.replace(AUTHORS, swarm=every), texts.parent / "kept")
    assert [len(look) for look in swarm["bits"]] == [1, 1]


def test_a_swarm_with_another_number_of_steps_is_refused(texts):
    """For example one of four whose averages take one more round, without local steps, and whose recipe has no more rounds."""
    with pytest.raises(RuntimeError, match="swarm: must do steps = 4, got 2 by pace and overlay"):
        authors.measure(msgspec.structs.replace(AUTHORS, nodes=4, swarm=("overlay.average_every=1",)), texts.parent / "kept")


def test_bytes_are_compared_with_those_of_a_ring_all_reduce_each_step():
    """Four members, 10 parameters, 6 steps: 2·3/4·40 bytes a step, 360 in all; the case sent 100 a round in ten rounds."""
    recipe = SimulateRecipe(title="x", scenario="x.toml", seeds=(1,), cases={"a": ()}, all_reduce=(4, 6))
    table = simulations.figures(recipe, [simulated("a", 1)])
    assert table["a.fewer"] == pytest.approx(0.36)
    silent = simulated("a", 1) | {"curve": curve((1.0, 0.1), 0.0)}
    assert simulations.figures(recipe, [silent])["a.fewer"] is None


def test_cases_are_compared_seed_by_seed():
    """The least difference belongs to one seed in both cases: another seed's luck does not hide it."""
    means = {("a", 1): 0.9, ("a", 2): 0.8, ("b", 1): 0.7, ("b", 2): 0.79}
    runs = [demo_run(case, seed, mean) for (case, seed), mean in means.items()]
    figures = demos.figures(TWO, runs)
    assert figures["a-b.mean"] == pytest.approx(0.105)
    assert figures["a-b.least"] == pytest.approx(0.01)
    assert figures["a/b.bytes_per_exchange"] == 1.0
    assert figures["a/b.bytes_per_node"] == 1.0


def test_the_cost_of_liars_is_their_worst_case_minus_the_honest_one():
    recipe = DemoRecipe(title="x", seeds=(1,), cases={"honest": ()}, byzantine={"foe": "3:foe", "nan": "3:nan"})
    words = "demo --json --no-tui --nodes 8 --seed 1 --byzantine 3:foe"
    assert demos.arguments(recipe, "foe", 1) == words.split()
    means = {"honest": 0.9, "foe": 0.7, "nan": 0.95}
    figures = demos.figures(recipe, [demo_run(case, 1, mean) for case, mean in means.items()])
    assert figures["attacked-honest.mean"] == pytest.approx(-0.2)
    assert figures["attacked.min"] == pytest.approx(0.69)


def test_the_recipe_has_every_attack_possible_in_an_open_swarm():
    """Except attacks on trackers and on drift, which an open swarm does not have."""
    recipe = recipes.load(recipes.find("strangers_live"))
    assert recipe.byzantine == {name: f"3:{name}" for name in targeting("vector", "data", "wire")}


def test_start_up_reports_medians_and_maxima():
    runs = [dict.fromkeys(startup.TIMES, value) for value in (3.0, 1.0, 2.0)]
    memory = [{"begin": 2_000_000, "end": 3_000_000, "peak": 4_000_000}, {"begin": 1, "end": 5_000_000, "peak": 1}]
    figures = startup.figures([*runs, {"memory": memory}])
    assert (figures["help_s.median"], figures["help_s.worst"]) == (2.0, 3.0)
    assert [figures[f"daemon_mb.{name}"] for name in ("begin", "end", "peak")] == [2.0, 5.0, 4.0]


def test_a_large_models_memory_is_that_of_its_worst_node_per_parameter():
    figures = large.figures([large_run()])
    assert figures["engine.peak_bytes_per_parameter"] == 30.0
    assert (figures["round.seconds"], figures["exchange.committed"], figures["exchange.timeout"]) == (3.0, 6, 1)
    assert (figures["late.bytes_per_parameter"], figures["checkpoint.bytes_per_parameter"]) == (4.1, 8.0)
    assert (figures["loss.first"], figures["loss.last"]) == (5.0, 4.0)
    assert list(large.spans({0: 1.0, 1: 9.0, 3: 13.0, 4: 16.0})) == [2.0, 3.0], "without what came before the first"


@pytest.mark.real
@pytest.mark.acceptance
def test_the_recipe_of_large_models_runs_with_a_small_one():
    """Real processes: two train in fragments, one is killed and resumes, a third joins late."""
    small = {"task.width=768": "task.width=32", "task.heads=12": "task.heads=2", "task.layers=14": "task.layers=1"}
    recipe = recipes.load(recipes.find("large"))
    chosen = tuple(small.get(word, word) for word in recipe.set)
    recipe = msgspec.structs.replace(recipe, set=chosen, checkpoint_s=0.5, patience_s=180.0)
    (run,) = large.measure(recipe)
    assert run["committed"][2] > 0
    figures = large.figures([run])
    assert figures["late.bytes_per_parameter"] >= 4.0
    assert figures["exchange.payload_bytes_per_parameter"] == pytest.approx((2 + 0.53125) / 4, rel=0.1)


def test_an_overlay_is_measured_up_to_the_first_round_at_1e_9_and_no_further_than_rounding():
    """A simulation that is exact after two rounds loses sixteen powers of ten in two, however long it runs."""
    recipe = OverlaysRecipe(title="x", sizes=(8,), cases={"a": recipes.OverlayCase(kind="ring")})
    exact = overlays.figures(recipe, [walked("a", 8, (1.0, 0.01, 0.0, 0.0))])
    assert exact["a@8.decades"] == pytest.approx(8.0)
    assert exact["a@8.decades_per_message"] == pytest.approx(4.0)
    slow = overlays.figures(recipe, [walked("a", 8, (1.0, 0.1, 0.01), period=None, finite_time_rounds=None)])
    assert slow["a@8.decades"] == pytest.approx(0.5)
    assert slow["a@8.left"] is None
    assert slow["a@8.exact_rounds"] is None


def test_figures_of_a_simulation_are_medians_over_its_seeds():
    recipe = SimulateRecipe(title="x", scenario="y", cases={"a": ()}, targets=(0.5, 0.001), timed=True)
    values = {1: (1.0, 0.4, 0.2, 0.1), 2: (1.0, 0.6, 0.3, 0.2), 3: (1.0, 0.6, 0.4, 0.4)}
    runs = [simulated("a", seed, each, wall_s=float(seed)) for seed, each in values.items()]
    figures = simulations.figures(recipe, runs)
    assert (figures["a.final"], figures["a.worst"], figures["a.floor"], figures["a.diverged"]) == (0.2, 0.4, 0.2, 0.0)
    assert (figures["a.rounds"], figures["a.bytes"], figures["a.wall_s"]) == (30, 3000, 3.0)
    assert (figures["a.rounds_to_0.5"], figures["a.bytes_to_0.5"], figures["a.seconds_to_0.5"]) == (20, 2000, 10)
    assert figures["a.rounds_to_0.001"] is None


def test_figures_of_who_was_named_are_sums_over_seeds_and_the_median_of_first_refusals():
    recipe = SimulateRecipe(title="x", scenario="y", cases={"a": ()}, named=True)
    counts = {"exposed": 5, "named": 2, "accused": 1}
    refusals = [{"round": at, "node": node, "peer": peer} for at, node, peer in ((6, 0, 3), (9, 0, 3), (7, 1, 2), (8, 2, 3))]
    runs = [simulated("a", 1) | {"counts": counts, "refusals": refusals, "bad": [3]}, simulated("a", 2) | {"counts": counts}]
    figures = simulations.figures(recipe, runs)
    assert [figures[f"a.{key}"] for key in ("exposed", "named", "accused", "named_after")] == [10, 4, 2, 7]
    assert simulations.figures(recipe, runs[1:])["a.named_after"] is None


def test_a_diverged_simulation_fails_every_bound():
    recipe = SimulateRecipe(title="x", scenario="y", seeds=(1, 2), cases={"a": ()}, at_most={"a.final": 1.0})
    figures = simulations.figures(recipe, [simulated("a", 1), simulated("a", 2, diverged=7)])
    assert figures["a.diverged"] == 1
    assert figures["a.final"] is None
    assert results.verdicts(recipe, figures)[0].met is False


def test_cases_of_a_simulation_are_compared_by_floor_bytes_and_delay():
    recipe = SimulateRecipe(title="x", scenario="y", seeds=(1,), cases={"a": (), "b": ()}, compare=(("a", "b"),), targets=(0.1,))
    behind = simulated("a", 1, (1.0, 0.9, 0.5, 0.1))
    figures = simulations.figures(recipe, [behind, simulated("b", 1, (1.0, 0.1, 0.1, 0.1))])
    assert figures["a/b.floor"] == 1.0
    assert figures["a/b.bytes_to_0.1"] == 3.0
    assert figures["a/b.transient"] == 30
    for_ever = simulations.figures(recipe, [behind, simulated("b", 1, (1.0, 0.1, 0.1, 0.01))])
    assert for_ever["a/b.transient"] is None


def test_nodes_are_compared_with_the_best_of_those_that_train_alone():
    """The seed with the smallest lead counts, for metrics where less is better too."""
    recipe = SimulateRecipe(title="x", scenario="y", seeds=(1, 2), cases={"a": (), "b": ()}, ahead=(("a", "b"),))
    runs = [simulated("a", 1, (0.5, 0.1)), simulated("a", 2, (0.5, 0.2)), simulated("b", 1, (0.9, 0.5)), simulated("b", 2, (0.9, 0.4))]
    for run, best, worst in zip(runs, (0.05, 0.1, 0.4, 0.35), (0.15, 0.25, 0.6, 0.5), strict=True):
        run["curve"] |= {"min": [0.0, best], "max": [1.0, worst]}
    figures = simulations.figures(recipe, runs)
    assert figures["a/b.ahead"] == pytest.approx(0.15)
    assert figures["a/b.ahead_worst"] == pytest.approx(0.1)
    turned = simulations.figures(recipe, [run | {"higher_is_better": True} for run in runs])
    assert turned["a/b.ahead"] == pytest.approx(0.1 - 0.6)
    assert turned["a/b.ahead_worst"] == pytest.approx(0.05 - 0.6)
    lost = simulations.figures(recipe, [*runs[:1], runs[1] | {"diverged": 3}, *runs[2:]])
    assert lost["a/b.ahead"] is lost["a/b.ahead_worst"] is None


def test_over_folds_a_swarm_is_compared_with_the_best_lone_node():
    """By seed: the best of one seed may be another's worst."""
    folds = (("a", "b"), ("c", "d"))
    recipe = SimulateRecipe(title="x", scenario="y", seeds=(1, 2), cases=dict.fromkeys("abcd", ()), folds=folds)
    ends = {"a": (0.9, 0.8), "b": (0.5, 0.8), "c": (0.6, 0.3), "d": (0.2, 0.4)}
    runs = [simulated(case, seed, (0.1, end)) for case, of in ends.items() for seed, end in zip((1, 2), of, strict=True)]
    better = [run | {"higher_is_better": True} for run in runs]
    assert simulations.figures(recipe, better)["folds.ahead"] == pytest.approx(0.7 - 0.6)
    assert simulations.figures(recipe, runs)["folds.ahead"] == pytest.approx(0.3 - 0.8)
    assert simulations.figures(recipe, [better[0] | {"diverged": 3}, *better[1:]])["folds.ahead"] is None


def test_methods_that_send_twice_per_round_have_half_the_rounds():
    """Equal bytes and equal gradients; nodes still crash at half-time."""
    dsgd, k_gt = (tracking.assignments(GRID, ("iid", "sgd", "faults"), method) for method in ("dsgd", "k_gt"))
    assert (dsgd["pace.rounds"], dsgd["pace.local_steps"], dsgd["faults.churn_from"]) == (4, 3, 2)
    assert (k_gt["pace.rounds"], k_gt["pace.local_steps"], k_gt["faults.churn_from"]) == (2, 6, 1)
    assert (k_gt["faults.churn_until"], k_gt["faults.loss"], k_gt["faults.tries"]) == (3, 0.1, 1)
    assert dsgd["mix"] == "dsgd"
    assert not [key for key in tracking.assignments(GRID, ("iid", "sgd", "calm"), "k_gt") if "faults" in key]


def grid_of(**ends: tuple[float, ...]) -> list[results.Run]:
    """Return a grid with this final value of `method_faults` or `method`; others end with .8 and .9."""
    return [
        tracked(GRID, cell, method, ends.get(f"{method}_{cell[2]}", ends.get(method, (0.8, 0.9))))
        for cell, method in itertools.product(tracking.cells(GRID), GRID.methods)
    ]


def test_a_grid_counts_cells_in_which_a_method_is_better_by_more_than_noise():
    """dsgd .85 ± .0707, so noise is twice .0707 where the other does not vary: .98 is within it, .995 is not."""
    runs = grid_of(pet_calm=(0.995, 0.995), pet_faults=(0.98, 0.98), k_gt=(0.1, 0.1))
    figures = tracking.figures(GRID, runs)
    assert figures["iid-sgd-calm.pet"] == pytest.approx(0.995)
    assert figures["sgd-pet.gain"] == pytest.approx((0.145 + 0.13) / 2)
    assert figures["sgd-pet.least"] == pytest.approx(0.13)
    assert (figures["sgd-pet.better"], figures["sgd-pet.worse"]) == (1, 0)
    assert (figures["sgd-k_gt.better"], figures["sgd-k_gt.worse"]) == (0, 2)
    lower = tracking.figures(GRID, [run | {"higher_is_better": False} for run in runs])
    assert (lower["sgd-k_gt.better"], lower["sgd-k_gt.worse"]) == (2, 0)
    assert lower["sgd-pet.least"] == pytest.approx(-0.145)


def test_a_method_that_diverged_in_a_cell_is_worse_there_and_has_no_gain():
    runs = [run | {"diverged": int(run["method"] == "pet" and run["faults"] == "faults")} for run in grid_of()]
    figures = tracking.figures(GRID, runs)
    assert figures["iid-sgd-faults.pet"] is None
    assert (figures["sgd-pet.gain"], figures["sgd-pet.least"], figures["sgd-pet.worse"]) == (None, None, 1)
    assert "iid-sgd-faults.pet" not in tracking.spread(GRID, runs)
    both = tracking.figures(GRID, [run | {"diverged": 1} for run in runs])
    assert both["sgd-pet.worse"] == 0
    only_first = tracking.figures(GRID, [run | {"diverged": int(run["method"] == "dsgd")} for run in runs])
    assert only_first["sgd-pet.better"] == 2


def test_bytes_of_a_grid_are_those_of_calm_cells():
    runs = [run | {"bytes": [100.0, 200.0 if run["method"] == "pet" else 100.0]} for run in grid_of()]
    lossy = [run | {"bytes": [1.0, 1.0]} if run["faults"] == "faults" else run for run in runs]
    figures = tracking.figures(GRID, lossy)
    assert (figures["pet.bytes"], figures["pet.rounds"], figures["pet.bytes_ratio"]) == (150, 4, 1.5)


def test_a_grid_is_shown_with_spreads_and_marks():
    runs = grid_of(pet=(0.995, 0.995), k_gt=(0.1, 0.1))
    shown = msgspec.structs.replace(
        result(), recipe=GRID, runs=runs, figures=tracking.figures(GRID, runs), spread=tracking.spread(GRID, runs)
    )
    page = table.show(shown)
    assert "| `iid-sgd-calm` | 0.85 ± 0.071 | 0.995 ± 0 ▲ | 0.1 ± 0 ▼ |" in page
    assert "| `sgd-pet` | 0.145 | 0.145 | 2 | 0 |" in page
    assert "`iid-sgd-calm.pet`" not in page


HARMLESS = {"worst": 0.0, "below": 0, "worse": False}


def test_cells_of_a_grid_are_counted_by_optimiser_as_worse_and_better():
    """Better means above at some evaluation and below at none, or diverging in fewer seeds."""
    runs = [
        compared("iid/sgd/cosine/normal/calm"),
        compared("iid/sgd/cosine/normal/faults", **HARMLESS),
        compared("iid/muon/cosine/normal/calm", **HARMLESS, above=0),
        compared("iid/muon/cosine/normal/faults", **HARMLESS | {"above": 0, "diverged": [0, 1]}),
    ]
    table = never_worse.figures(runs)
    for optimizer, counts in {"sgd": (2, 1, 1), "muon": (2, 0, 1), "all": (4, 1, 2)}.items():
        assert tuple(table[f"{optimizer}.{name}"] for name in ("cells", "worse", "better")) == counts
    of_cell = {key.rpartition(".")[2]: value for key, value in table.items() if key.startswith("iid-sgd-cosine-normal-calm.")}
    assert of_cell == {
        "worst": -0.1,
        "worst_round": 2,
        "worst_error": 0.01,
        "end": 0.2,
        "end_error": 0.02,
        "plain": 0.7,
        "below": 0.5,
        "above": 0.5,
        "committed": 1.0,
    }
    deviations = never_worse.spread(runs)
    assert deviations["iid-sgd-cosine-normal-calm.worst"] == 0.02
    assert never_worse.spread([compared("a/b", worst_error=None, end_error=None)]) == {}


def test_a_page_lists_cells_that_are_worse_the_worst_first():
    recipe = NeverWorseRecipe(title="x")
    nothing = dict.fromkeys(("worst", "worst_error", "worst_round", "end", "end_error", "plain_end"))
    runs = [
        compared("iid/sgd/a/b/c"),
        compared("iid/adamw/a/b/c", worst=-0.3),
        compared("iid/muon/a/b/c", **HARMLESS),
        compared("iid/muon/a/b/d", **nothing, diverged=[2, 1]),
    ]
    shown = table.show(msgspec.structs.replace(result(), recipe=recipe, runs=runs, figures=never_worse.figures(runs)))
    first, second, third = [line for line in shown.splitlines() if line.startswith("| `iid")]
    assert first == "| `iid-muon-a-b-d` | accuracy | – | – | 1 of 2 | – | –; 2 diverged, of plain averages 1 |"
    assert second == "| `iid-adamw-a-b-c` | accuracy | -0.3 ± 0.01 | 2 | 1 of 2 | 0.2 ± 0.02 | 0.7 |"
    assert third.startswith("| `iid-sgd-a-b-c` | accuracy | -0.1 ± 0.01 |")
    assert "| `all` | 4 | 3 | 1 |" in shown
    none = [compared("iid/muon/a/b/c", **HARMLESS)]
    better = msgspec.structs.replace(result(), recipe=recipe, runs=none, figures=never_worse.figures(none))
    assert "Worse in no cell." in table.show(better)


def test_one_command_measures_a_grid_and_stores_finished_cells(tmp_path, monkeypatch):
    said = []

    def cases(words, what):
        said.append(words)
        folder = Path(words[words.index("--keep") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cell.json").touch()
        if len(said) == 1:
            raise RuntimeError
        return [compared("iid/sgd/cosine/normal/calm")]

    monkeypatch.setattr(never_worse, "cases", cases)
    recipe = NeverWorseRecipe(title="x", cells=("iid/*",), pairs=2, rounds=4, set=("mix.kappa=0.2",), jobs=1)
    with pytest.raises(RuntimeError):
        never_worse.measure(recipe, tmp_path)
    assert len(list(tmp_path.rglob("cell.json"))) == 1
    assert never_worse.measure(recipe, tmp_path) == [compared("iid/sgd/cosine/normal/calm")]
    assert said[0] == said[1]
    assert list(tmp_path.iterdir()) == []
    words = "bench never-worse --cells iid/* --seeds 2 --rounds 4 --jobs 1 --set mix.kappa=0.2 --keep"
    assert said[0][: len(words.split())] == words.split()
    assert never_worse.key(recipe) != never_worse.key(msgspec.structs.replace(recipe, rounds=5))


def test_codecs_are_named_without_dots_and_measured_in_dense_vectors():
    """A dot ends the name of the group whose figures share a row of a table."""
    figures = codecs.figures([coded("mask:0.1+int4", 100), coded("torch.topk:0.001+numpy", 100)])
    assert figures["mask:10%+int4@100.peak_over_dense"] == 0.5
    assert figures["mask:10%+int4@100.of_memcpy"] == 0.5
    assert figures["torch_topk:0.1%+numpy@100.encode_gb_s"] == 2.0


def test_the_least_of_the_repetitions_is_the_cost_of_a_node_round():
    recipe = NodeRoundRecipe(title="x", nodes=(10, 20, 30))
    costs = [(10, 3.0), (20, 8.0), (30, 4.0), (10, 2.0), (20, 5.0), (30, 4.0)]
    figures = scaling.figures(recipe, [{"nodes": n, "us_per_node_round": cost} for n, cost in costs])
    assert figures == {
        "n_10.us_per_node_round": 2.0,
        "n_20.us_per_node_round": 5.0,
        "n_30.us_per_node_round": 4.0,
        "n.growth": 2.0,
        "n.spread": 2.5,
    }


@pytest.mark.slow
def test_a_small_comparison_of_overlays_runs():
    """Base-2 is exact for five members, a ring is not."""
    cases = {"base_2": recipes.OverlayCase(kind="base_k"), "ring": recipes.OverlayCase(kind="ring")}
    recipe = OverlaysRecipe(title="x", sizes=(5,), rounds=10, seeds=(1,), cases=cases)
    figures = overlays.figures(recipe, overlays.measure(recipe))
    assert figures["base_2@5.exact_rounds"] == 5
    assert figures["ring@5.exact_rounds"] is None
    assert figures["ring@5.decades"] < figures["base_2@5.decades"]


def test_figures_of_honest_swarms_add_up_and_compare_with_and_without_the_defence():
    recipe = HonestRecipe(title="x", scenario="x", cases={"a": (), "b": ()}, beside=("b",))
    runs = [honest_run("a", defended=True, strikes=2, longest=4.5), honest_run("b", defended=True, bytes=101.0, cpu_s=1.1)]
    figures = honest.figures(recipe, [*runs, honest_run("b", defended=False, final=0.8)])
    assert [figures[f"all.{name}"] for name in ("nodes", *honest.COUNTS, "longest")] == [8, 80, 2, 2, 0, 4.5]
    assert figures["b.final_off"] == 0.8
    assert figures["b.bytes_ratio"] == 1.01
    assert figures["b.cpu_ratio"] == pytest.approx(1.1)
    assert "a.bytes_ratio" not in figures


def test_what_a_node_says_of_far_models_is_counted():
    """Three peers are near, the fourth is far until it is refused."""
    made: list[honest.Watched] = []
    watched = honest.Watched(made)
    verdicts = []
    for number in range(4):
        watched.stepped(0.7)
        for peer in "abc":
            assert watched.met(peer, 1.0, number) is None
        verdicts.append(watched.met("far", 10.0, number))
    assert made == [watched]
    assert watched.exchanges == 15, "one that is refused is not judged"
    assert watched.shortened == watched.strikes == sum(far is not None for far in verdicts) == 3
    assert watched.refusals == sum(far is not None and far.refused > 0 for far in verdicts) >= 1
    assert 4.0 < watched.longest < 100.0


def test_sleepers_miss_exchanges_and_a_measurement_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    few = ("simulate.nodes=4", "partition.shards=4", "pace.rounds=6", "pace.local_steps=2", "task.hidden=4", "pace.max_wait_s=0.3")
    scenario = "benchmarks/scenarios/vouched.toml"
    base = ("preset=custom", "attack.nodes=0", "simulate.engine=virtual", *few)
    recipe = HonestRecipe(
        title="x", scenario=scenario, seeds=(1,), set=base, cases={"a": (), "b": ()}, sleepers={"b": (0.5, 3.0, 2)}, beside=("a",)
    )
    run = honest.run

    def fails(*case):
        if case[1] == "b":
            raise RuntimeError("stopped")
        return run(*case)

    monkeypatch.setattr(honest, "run", fails)
    with pytest.raises(RuntimeError, match="stopped"):
        honest.measure(recipe, tmp_path)
    monkeypatch.setattr(honest, "run", lambda *case: run(*case) if case[1] == "b" else pytest.fail("it was measured already"))
    awake, undefended, slept = honest.measure(recipe, tmp_path)
    assert not list(tmp_path.iterdir())
    assert [awake["nodes"], undefended["nodes"]] == [4, 0]
    assert awake["exchanges"] == 2 * awake["committed"] == 24
    assert undefended["committed"] == 12
    assert slept["committed"] < 12


@pytest.mark.acceptance
def test_a_small_simulation_runs():
    """Averages with all nodes are better than no averages."""
    few = ("simulate.nodes=4", "pace.rounds=60", "task.dim=5")
    cases = {"all": ("mix=dsgd", "overlay=complete"), "none": ("mix=dsgd", "overlay=alone")}
    recipe = SimulateRecipe(title="x", scenario=str(BOWLS), seeds=(1, 2), set=few, cases=cases)
    runs = simulations.measure(recipe)
    assert [(run["case"], run["seed"]) for run in runs] == [("all", 1), ("all", 2), ("none", 1), ("none", 2)]
    figures = simulations.figures(recipe, runs)
    assert figures["all.rounds"] == 60
    assert figures["all.floor"] < 0.1 * figures["none.floor"]


@pytest.mark.slow
def test_a_small_grid_runs():
    """A method that sends twice has the others' bytes, except for message headers."""
    runs = tracking.measure(msgspec.structs.replace(GRID, set=("simulate.nodes=4",)))
    assert all(run["metric"] == "accuracy" and len(run["ends"]) == 2 for run in runs)
    figures = tracking.figures(GRID, runs)
    assert figures["k_gt.bytes_ratio"] == pytest.approx(1.0, abs=0.03)


def test_a_grid_without_its_data_is_an_error_and_no_result(monkeypatch):
    monkeypatch.delenv(data.VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="STARLING_DATA"):
        tracking.measure(msgspec.structs.replace(GRID, data="mnist"))
    with pytest.raises(RuntimeError, match=r"iid-sgd-calm\.dsgd: "):
        tracking.measure(msgspec.structs.replace(GRID, set=("overlay=base_k", "overlay.k=99")))


@pytest.mark.acceptance
@pytest.mark.slow
def test_a_small_measurement_of_codecs_runs():
    recipe = CodecRecipe(title="x", dims=(10_000,), codecs=("mask:0.1+int4",), repeat=1)
    figures = codecs.figures(codecs.measure(recipe))
    assert 0.05 < figures["mask:10%+int4@10000.bytes_per_parameter"] < 0.06


def test_combining_rules_are_measured_by_one_command_for_each_length(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "starling", lambda words, what: asked.append(words) or {"cases": [combined("median", 10)]})
    recipe = RulesRecipe(title="x", dims=(10, 20), rules=("median", "nnm"), repeat=3)
    figures = combining.figures(combining.measure(recipe))
    assert figures["median@10.ratio"] == 9.0
    assert [" ".join(words) for words in asked] == [
        f"bench rules --d {d} --n 16 --rule median --rule nnm --repeat 3 --json" for d in (10, 20)
    ]


@pytest.mark.acceptance
@pytest.mark.slow
def test_a_small_measurement_of_node_rounds_runs():
    recipe = NodeRoundRecipe(title="x", nodes=(4, 8), dim=50, rounds=2, repeats=1)
    assert scaling.figures(recipe, scaling.measure(recipe))["n_8.us_per_node_round"] > 0


@pytest.mark.slow
def test_a_command_that_fails_is_an_error_and_no_result():
    recipe = SimulateRecipe(title="x", scenario="no such file", seeds=(1,))
    with pytest.raises(RuntimeError, match="default: `starling simulate` ended with 2"):
        simulations.measure(recipe)


@pytest.mark.slow
@pytest.mark.real
def test_the_help_command_is_timed_and_reaped():
    """Warnings are errors here, such as that of a process that was not waited for."""
    run = startup.time_help()
    assert run["help_s"] > 0
    assert run["help_cpu_s"] > 0


@pytest.mark.parametrize(("value", "met"), [(0.89, False), (0.9, True), (1.0, True), (1.01, False), (float("nan"), False)])
def test_a_figure_is_checked_against_both_bounds(value, met):
    recipe = DemoRecipe(title="x", at_least={"f": 0.9}, at_most={"f": 1.0})
    assert [verdict.met for verdict in results.verdicts(recipe, {"f": value, "g": 1.0})] == [met, None]


def test_a_bound_on_an_unmeasured_figure_is_an_error():
    with pytest.raises(ValueError, match="no figure g; there are f"):
        results.verdicts(DemoRecipe(title="x", at_most={"g": 1.0}), {"f": 1.0})


def test_figures_over_seeds_are_stored_with_their_standard_deviation():
    """Ends .1, .2 and .4: √(((.1 − .2333)² + (.2 − .2333)² + (.4 − .2333)²)/2) = .1528."""
    recipe = SimulateRecipe(title="x", scenario="y", cases={"a": ()}, timed=True)
    runs = [simulated("a", seed, (1.0, end), wall_s=float(seed)) for seed, end in ((1, 0.1), (2, 0.2), (3, 0.4))]
    spread = simulations.spread(recipe, runs)
    assert spread["a.final"] == pytest.approx(0.15275, rel=1e-4)
    assert "a.wall_s" not in spread
    one = msgspec.structs.replace(recipe, seeds=(1,))
    assert simulations.spread(one, runs[:1]) == {}
    diverged = [*runs[:2], simulated("a", 3, diverged=1)]
    assert "a.final" not in simulations.spread(recipe, diverged)


@pytest.mark.parametrize(
    ("then", "now", "spread", "within"),
    [
        (1.0, 1.019, 0.0, True),
        (1.0, 1.021, 0.0, False),
        (-1.0, -1.021, 0.0, False),
        (1.0, 1.29, 0.1, True),  # three standard deviations over seeds
        (1.0, 1.31, 0.1, False),
        (None, None, 0.0, True),
        (None, 1.0, 0.0, False),
        (1.0, None, 5.0, False),
    ],
)
def test_a_figure_may_differ_by_the_tolerance_or_three_deviations(then, now, spread, within):
    stored = msgspec.structs.replace(result(), figures={"a.mean": then}, spread={"a.mean": spread})
    (difference,) = results.compare(stored, msgspec.structs.replace(result(), figures={"a.mean": now}), 0.02)
    assert difference.within is within


def test_a_figure_that_only_one_result_has_is_outside():
    differences = results.compare(result(), result(**{"b.mean": 1.0}), 0.5)
    assert [each.figure for each in differences if not each.within] == ["b.mean"]


@pytest.mark.parametrize(
    ("case", "factor", "agrees"),
    [("mean", 1.02, True), ("mean", 1.2, False), ("wall_s", 1.4, True), ("wall_s", 1.6, False), ("bytes_per_exchange", 1.4, True)],
)
def test_accuracies_are_compared_by_their_spread_and_times_loosely(case, factor, agrees):
    """The spread of three seeds is .01: results stored without one have it in their runs."""
    recipe = DemoRecipe(title="x")
    runs = [demo_run("default", seed, mean) for seed, mean in ((1, 0.89), (2, 0.9), (3, 0.91))]
    stored = msgspec.structs.replace(result(), recipe=recipe, runs=runs, figures=demos.figures(recipe, runs), spread={})
    name = f"default.{case}"
    measured = msgspec.structs.replace(stored, figures=stored.figures | {name: factor * stored.figures[name]})
    assert bench.agrees(stored, measured, None) is agrees
    assert demos.spread(recipe, runs)["default.mean"] == pytest.approx(0.01)


@pytest.mark.acceptance
@pytest.mark.slow
def test_a_measurement_is_compared_with_a_stored_one(tmp_path, capsys):
    """The same code on the same machine agrees with itself; a different figure is named, with exit code 1."""
    recipe = tmp_path / "bowls.toml"
    recipe.write_text(
        'kind = "simulate"\ntitle = "x"\nscenario = "benchmarks/scenarios/heterogeneous.toml"\nseeds = [1]\n'
        'set = ["simulate.nodes=4", "pace.rounds=4", "pace.evaluate_every=2"]\n'
    )
    assert bench.main([str(recipe), "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*-bowls.json")
    kept = tmp_path / "kept.json"
    kept.write_bytes(stored.read_bytes())
    first = results.read(kept)
    wrong = {name: value and 1.5 * value for name, value in first.figures.items()}
    kept.write_bytes(msgspec.json.encode(msgspec.structs.replace(first, figures=wrong, spread={})))
    assert bench.main([str(recipe), "--out", str(tmp_path), "--against", str(kept)]) == 1
    (again,) = set(tmp_path.glob("*-bowls*.json")) - {kept}
    assert results.read(again).figures["default.final"] == first.figures["default.final"]
    assert "bowls: default.final: was" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        bench.main(["sparse", "--out", str(tmp_path), "--against", str(kept)])
    assert ended.value.code == 2


@pytest.mark.parametrize("path", ALL)
def test_every_recipe_names_the_paths_it_measures(path):
    measures = recipes.load(path).measures
    assert measures
    assert all((facts.ROOT / each.removeprefix(":!")).exists() for each in measures)


@needs("git")
def test_a_result_is_outdated_if_measured_paths_have_changed_since(tmp_path):
    def git(*words):
        given = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", tmp_path, *given, *words], check=True, capture_output=True, text=True).stdout.strip()

    def commit(name, text):
        (tmp_path / name).write_text(text)
        git("add", name)
        git("commit", "-qm", text)
        return git("rev-parse", "HEAD")

    git("init", "-q")
    first, second, third = commit("measured", "1"), commit("other", "1"), commit("measured", "2")
    fourth = commit("other", "2")
    assert third.startswith(facts.changed_since(second, ["measured"], tmp_path))
    assert facts.changed_since(second, ["measured"], tmp_path)
    assert facts.changed_since(third, ["measured"], tmp_path) == ""
    assert facts.changed_since(fourth, ["measured"], tmp_path) == ""
    assert facts.changed_since(first, ["."], tmp_path)
    assert facts.changed_since("f" * 40, ["measured"], tmp_path)  # a commit that this clone does not have
    assert facts.changed_since(first, [], tmp_path) == ""


def test_without_git_results_have_no_commit_and_pages_keep_their_marks(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (facts.gather().commit, facts.gather().modified) == ("", False)
    assert facts.changed_since("f" * 40, ["benchmarks"]) == ""
    page = tmp_path / "README.md"
    page.write_text("as it was")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(table, "PAGES", tmp_path)
    assert table.main() == 1
    assert capsys.readouterr().err.startswith("git is missing: ")
    assert page.read_text() == "as it was"


def test_a_result_can_be_marked_outdated_and_unmarked():
    text = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    place = "<!-- result: claim -->\nold\n<!-- end of result -->\n"
    mark = f"**{table.OLDER} (gossip) was last changed.**"
    for make, page in ((table.page, text), (table.fill, place)):
        marked = make(page, [result()], {"claim": mark})
        assert f"{table.circumstances(result())}\n\n{mark}\n\n" in marked
        assert table.unmarked(marked) == make(page, [result()])


def test_a_result_is_stored_by_day_and_name_and_read_back(tmp_path):
    stored = result()
    path = results.save(stored, tmp_path / "made")
    assert path.name == "2026-01-02-claim.json"
    assert results.newest(path.parent) == [stored]


def test_the_newest_result_of_a_recipe_is_shown(tmp_path):
    old, new = result(), result(date="2026-02-01T00:00:00+00:00")
    other = result(name="another")
    for each in (new, old, other):
        results.save(each, tmp_path)
    assert results.newest(tmp_path) == [other, new]


def test_every_stored_result_can_be_read():
    """Also after a change of the recipe format."""
    results.newest(results.FOLDER)


def test_the_table_names_circumstances_figures_bounds_and_verdicts():
    shown = table.show(result())
    assert "commit" not in shown
    assert "cccccccccc;" in shown
    assert "load average 0.5 before, 1.0 after" in shown
    assert "| `a.mean` | ≥ 0.9, ≤ 1 | 0.95 | yes |" in shown
    assert "|  | mean | bytes_per_node |\n|---|---:|---:|\n| `a` | 0.95 | 1,234,567 |" in shown
    missed = msgspec.structs.replace(result(), figures={"a.mean": 0.5})
    assert "| `a.mean` | ≥ 0.9, ≤ 1 | 0.5 | **no** |" in table.show(missed)


def test_cases_share_a_table_and_other_figures_have_their_own():
    """Five cases of nine figures are five rows, not forty-five."""
    figures = {"a.mean": 0.1, "a.min": 0.2, "b.mean": 0.3, "b.min": 0.4, "a-b.mean": -0.2}
    shown = table.show(msgspec.structs.replace(result(), recipe=DemoRecipe(title="x"), figures=figures))
    both = "|  | mean | min |\n|---|---:|---:|\n| `a` | 0.1 | 0.2 |\n| `b` | 0.3 | 0.4 |"
    assert shown.endswith(f"{both}\n\n|  | mean |\n|---|---:|\n| `a-b` | -0.2 |")


def test_updating_tables_keeps_the_page_s_text():
    """The command is idempotent."""
    text = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    once = table.page(text, [result()])
    assert once.startswith(f"before\n{table.BEGIN}\n")
    assert once.endswith(f"{table.END}\nafter\n")
    assert "old" not in once
    assert table.page(once, [result()]) == once
    with pytest.raises(ValueError, match="no <!-- results"):
        table.page("no place", [])


def test_the_page_s_tables_equal_the_stored_results():
    """`python -m benchmarks.table` would change nothing."""
    text = table.PAGE.read_text()
    assert table.page(text, results.newest(results.FOLDER)) == table.unmarked(text)


@pytest.mark.parametrize("path", PAGES)
def test_pages_of_reproductions_equal_stored_results_and_pictures_exist(path):
    """Its tables are generated, and each names its recipe, result and picture."""
    text = path.read_text()
    stored = {each.name: each for each in results.newest(results.FOLDER)}
    named = [match[1] for match in table.PLACE.findall(text)]
    assert named
    assert table.fill(text, list(stored.values())) == table.unmarked(text)
    for name in named:
        assert f"python -m benchmarks.run {name}" in text
        assert recipes.find(name).is_file()
        now = msgspec.structs.replace(recipes.load(recipes.find(name)), measures=stored[name].recipe.measures)
        assert stored[name].recipe == now or "Measured by an earlier form of this recipe" in text
        assert bool(plots.panels(stored[name])) == (f"]({name}.png)" in text)
    for picture in re.findall(r"\]\(([a-z0-9_]+\.png)\)", text):
        assert (path.parent / picture).stat().st_size <= MOST_PLOT_BYTES
    assert f"]({path.name})" in (table.PAGES / "README.md").read_text()


def test_updating_a_page_keeps_its_text_and_fills_named_tables():
    text = "before\n<!-- result: claim -->\nold\n<!-- end of result -->\nafter\n"
    once = table.fill(text, [result()])
    assert once.startswith("before\n<!-- result: claim -->\n\nFrom [2026-01-02-claim.json](../../benchmarks/results/")
    assert once.endswith("<!-- end of result -->\nafter\n")
    assert "old" not in once
    assert "| `a.mean` | ≥ 0.9, ≤ 1 | 0.95 | yes |" in once
    assert table.fill(once, [result()]) == once
    with pytest.raises(ValueError, match="no result of claim; there are other"):
        table.fill(text, [result(name="other")])


def test_missing_figures_are_dashes_and_meet_no_bound():
    recipe = DemoRecipe(title="x", at_most={"a.mean": 1.0})
    shown = table.show(msgspec.structs.replace(result(), recipe=recipe, figures={"a.mean": None}))
    assert "| `a.mean` | ≤ 1 | – | **no** |" in shown


def test_curves_are_stored_in_a_line_and_read_back(tmp_path):
    stored = msgspec.structs.replace(result(), runs=[{"curve": [1.0, -2e-05, 3.0], "words": ["a, b"], "none": []}])
    path = results.save(stored, tmp_path)
    assert '"curve": [1.0, -0.00002, 3.0]' in path.read_text()
    assert results.newest(tmp_path) == [stored]


@pytest.mark.slow
def test_results_with_curves_are_drawn(tmp_path):
    walks = OverlaysRecipe(title="x", sizes=(8,), cases={"a": recipes.OverlayCase(kind="ring")})
    drawn = recipes.Plot(panels={"left": ("a",), "right": ("b",)}, axes=("round", "bytes_per_node"))
    curves = SimulateRecipe(title="x", scenario="y", seeds=(1, 2), cases={"a": (), "b": ()}, plot=drawn)
    runs = [simulated(case, seed) for case in "ab" for seed in (1, 2)]
    pairs = [compared(f"{split}/sgd/cosine/normal/calm") for split in ("iid", "by_label")]
    pairs += [compared("iid/sgd/cosine/twentyfold/calm", rounds=[], difference=[], error=[])]  # all of the run diverged
    kinds = [(walks, [walked("a", 8)]), (curves, runs), (NeverWorseRecipe(title="x"), pairs)]
    for number, (recipe, ran) in enumerate(kinds):
        path: Path = tmp_path / f"{number}.png"
        one = msgspec.structs.replace(result(), recipe=recipe, runs=ran, figures={})
        plots.draw(one, path)
        assert path.read_bytes().startswith(b"\x89PNG")
    assert plots.panels(result()) == []
