"""Recipes can be read, and what the runner concludes from runs is right. The runs themselves are `make bench`."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks import demos, recipes, results, startup, table
from benchmarks.facts import Facts
from benchmarks.recipes import DemoRecipe, StartupRecipe
from benchmarks.results import Result
from node.cli.demo import make_plan

FACTS = Facts(
    cpu="a cpu", cores=2, memory_gb=1.5, system="Linux", python="3.11.7", torch="2", libp2p="0.8", commit="c" * 40,
    modified=False,
)  # fmt: skip
TWO = DemoRecipe(title="two cases", seeds=(1, 2), cases={"a": (), "b": ("mix=dsgd",)}, compare=("a", "b"))


def demo_run(case: str, seed: int, mean: float, **over: object) -> results.Run:
    """What a demo of two nodes prints, as far as figures are made of it."""
    exchanges = {"committed": 5}
    node = {"bytes_sent": 600, "rounds": 10, "exchanges": exchanges}
    run = {"case": case, "seed": seed, "mean": mean, "min": mean - 0.01, "wall_s": 3.0, "dense_bytes": 400}
    return {**run, "bytes_per_exchange": 100.0, "nodes": [node, node], **over}


def result(name: str = "claim", date: str = "2026-01-02T03:04:05+00:00", **over: float) -> Result:
    recipe = DemoRecipe(title="A claim.", at_least={"a.mean": 0.9}, at_most={"a.mean": 1.0})
    figures = {"a.mean": 0.95, "a.bytes_per_node": 1234567.0, **over}
    return Result(name=name, date=date, facts=FACTS, load=(0.5, 1.0), recipe=recipe, figures=figures, runs=[])


# --- recipes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", recipes.everything(), ids=lambda path: path.stem)
def test_every_recipe_can_be_read_and_bounds_only_figures_that_are_measured(path):
    """A misspelt figure would be a claim that nobody checks."""
    recipe = recipes.load(path)
    if isinstance(recipe, DemoRecipe):
        figures = demos.figures(recipe, [demo_run(case, s, 0.9) for s in recipe.seeds for case in recipe.cases])
    else:
        figures = startup.figures(
            [{**dict.fromkeys(startup.TIMES, 1.0), "memory": [dict.fromkeys(("begin", "end", "peak"), 1)]}]
        )
    results.verdicts(recipe, figures)


@pytest.mark.parametrize("path", recipes.everything(), ids=lambda path: path.stem)
def test_every_command_line_is_one_that_the_demo_takes(path):
    """So that a recipe does not fail after ten minutes because a key was renamed."""
    recipe = recipes.load(path)
    if isinstance(recipe, StartupRecipe):
        return
    for case in recipe.cases:
        sets = (*recipe.set, *recipe.cases[case])
        make_plan(recipe.nodes, "digits", recipe.rounds, None, recipe.seeds[0], sets, (), None, None)


@pytest.mark.parametrize(
    "text",
    [
        "title = 'x'",
        "kind = 'demo'",
        "kind = 'demo'\ntitle = 'x'\nnodse = 3",
        "kind = [",
        "kind = 'demo'\ntitle = 'x'\ncompare = ['a', 'b']",
    ],
)
def test_a_wrong_recipe_is_one_line_that_names_the_file(tmp_path, text):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.toml: .+"):
        recipes.load(path)


def test_a_recipe_is_found_by_name_and_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.touch()
    assert recipes.find("by_label") == recipes.FOLDER / "by_label.toml"
    assert recipes.find(str(path)) == path
    with pytest.raises(ValueError, match=r"no recipe 'by_lable'; there are by_label, "):
        recipes.find("by_lable")


# --- figures ------------------------------------------------------------------------------------------------


def test_the_command_line_of_a_demo_names_everything_that_matters():
    """The case's own settings come last: they win over the recipe's."""
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


def test_cases_are_compared_seed_by_seed():
    """The least difference belongs to one seed in both cases: another seed's luck does not hide it."""
    means = {("a", 1): 0.9, ("a", 2): 0.8, ("b", 1): 0.7, ("b", 2): 0.79}
    runs = [demo_run(case, seed, mean) for (case, seed), mean in means.items()]
    figures = demos.figures(TWO, runs)
    assert figures["a-b.mean"] == pytest.approx(0.105)
    assert figures["a-b.least"] == pytest.approx(0.01)
    assert figures["a/b.bytes_per_exchange"] == 1.0
    assert figures["a/b.bytes_per_node"] == 1.0


def test_start_up_gives_medians_and_the_worst_and_memory_the_largest_daemon():
    runs = [dict.fromkeys(startup.TIMES, value) for value in (3.0, 1.0, 2.0)]
    memory = [{"begin": 2_000_000, "end": 3_000_000, "peak": 4_000_000}, {"begin": 1, "end": 5_000_000, "peak": 1}]
    figures = startup.figures([*runs, {"memory": memory}])
    assert (figures["help_s.median"], figures["help_s.worst"]) == (2.0, 3.0)
    assert [figures[f"daemon_mb.{name}"] for name in ("begin", "end", "peak")] == [2.0, 5.0, 4.0]


@pytest.mark.slow
@pytest.mark.real
def test_the_help_command_is_timed_and_reaped():
    """Warnings are errors here: a process that nobody waited for would be one."""
    run = startup.time_help()
    assert run["help_s"] > 0
    assert run["help_cpu_s"] > 0


# --- verdicts, storing, showing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "met"), [(0.89, False), (0.9, True), (1.0, True), (1.01, False), (float("nan"), False)]
)
def test_a_figure_is_judged_by_both_of_its_bounds(value, met):
    recipe = DemoRecipe(title="x", at_least={"f": 0.9}, at_most={"f": 1.0})
    assert [verdict.met for verdict in results.verdicts(recipe, {"f": value, "g": 1.0})] == [met, None]


def test_a_bound_on_a_figure_that_nobody_measured_is_an_error():
    with pytest.raises(ValueError, match="no figure g; there are f"):
        results.verdicts(DemoRecipe(title="x", at_most={"g": 1.0}), {"f": 1.0})


def test_a_result_is_stored_by_day_and_name_and_read_as_it_was(tmp_path):
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
    """Also after a change to what a recipe can say."""
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


def test_the_page_keeps_its_words_and_gets_new_tables():
    """Twice the same: the command can run as often as one likes."""
    text = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    once = table.page(text, [result()])
    assert once.startswith(f"before\n{table.BEGIN}\n")
    assert once.endswith(f"{table.END}\nafter\n")
    assert "old" not in once
    assert table.page(once, [result()]) == once
    with pytest.raises(ValueError, match="no <!-- results"):
        table.page("no place", [])


def test_the_page_shows_what_is_stored():
    """Figures are made, not typed: `python -m benchmarks.table` would change nothing."""
    text = table.PAGE.read_text()
    assert table.page(text, results.newest(results.FOLDER)) == text
