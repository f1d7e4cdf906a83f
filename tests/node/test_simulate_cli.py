"""`starling simulate`: what is printed where, what is written, and that nothing is left behind."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.main import main
from starling.node.cli.research import simulate as command
from starling.node.config import toml
from starling.node.simulate import plot, pool, results
from starling.node.simulate.engines import simulate
from starling.node.simulate.results import Finished, Outcome, Row
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells

SCENARIO = """
name = "a small one"
[simulate]
nodes = 4
[task]
kind = "diagonal"
[task.params]
dim = 30
[pace]
rounds = 4
local_steps = 2
evaluate_every = 2
"""
SWEEP = '[sweep]\nseeds = [0, 1]\n[sweep.grid]\nmix.kind = ["pet", "dsgd"]\n'


def row(round, mean, **values):
    given = {"seconds": 0.5 * round, "bytes_per_node": 1000.0 * round, "exchanges_per_node": float(round), "alive": 4}
    return Row(
        round=round, loss=0.1, mean_model=mean, mean=mean, min=mean - 0.01, max=mean + 0.01, consensus_distance=0.2, **(given | values)
    )  # fmt: skip


def outcome(*means, **values):
    given = {
        "metric": "accuracy",
        "higher_is_better": True,
        "counts": {"meetings": 8, "committed": 6, "lost": 2},
        "target": None,
    }
    return Outcome(
        parameters=30, rows=tuple(row(2 * at, mean) for at, mean in enumerate(means)), undone=0, diverged=None, wall_s=0.25,
        **(given | values),
    )  # fmt: skip


class Canned:
    """Stands in for `starling.node.simulate.pool.Pool`: no process, outcomes by number of the run, then what comes instead of the rest."""

    outcomes: tuple = ()
    then: BaseException | None = None
    made: list

    def __init__(self, cells, jobs, show):
        self.cells, self.jobs, self.show = cells, jobs, show
        type(self).made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def check(self):
        self.show(0.0, "starting")

    def run(self):
        for number, found in self.outcomes:
            self.show(0.5, "half")
            yield number, found
        if self.then is not None:
            raise self.then


@pytest.fixture
def canned(monkeypatch):
    monkeypatch.setattr(pool, "Pool", Canned)
    monkeypatch.setattr(Canned, "made", [], raising=False)
    monkeypatch.setattr(Canned, "outcomes", ((0, outcome(0.1, 0.5, 0.9)),))
    monkeypatch.setattr(Canned, "then", None)
    return Canned


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def test_one_run_is_a_table_and_what_it_comes_to(canned, file, capsys):
    assert main(["simulate", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == [
        "round", "seconds", "bytes/node", "exchanges", "nodes", "loss", "accuracy", "min", "max", "mean", "model", "distance",
    ]  # fmt: skip
    assert said.out.splitlines()[3].split()[7:10] == ["0.9", "0.89", "0.91"]
    assert "8 meetings, 6 committed, 2 lost" in said.out
    assert said.err == ""


@pytest.mark.parametrize("name", ["open", "vouched"])
def test_a_preset_may_come_from_the_command_line_or_the_file(canned, file, name):
    """One way or the other the worker is handed the same run."""
    assert main(["simulate", str(file), "--preset", name, "--set", "simulate.nodes=8"]) == 0
    file.write_text(f'preset = "{name}"\n{SCENARIO}')
    assert main(["simulate", str(file), "--set", "simulate.nodes=8"]) == 0
    one, other = (pool.cells[0].scenario for pool in canned.made)
    assert one == other
    assert (one.preset, one.mix.kind, one.pace.local_steps) == (name, {"open": "gather", "vouched": "pet"}[name], 2)


def test_a_sweep_is_a_block_for_each_run_and_a_table_of_all(canned, file, capsys):
    file.write_text(SCENARIO + SWEEP)
    canned.outcomes = tuple((number, outcome(0.1, 0.2 * number)) for number in (2, 0, 1, 3))
    assert main(["simulate", str(file), "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("mix.kind = ")]
    assert titles == [f"mix.kind = {kind}, simulate.seed = {seed}" for kind in ("pet", "dsgd") for seed in (0, 1)]
    last = [line.split()[:3] for line in out.splitlines()[-4:]]
    assert last == [["pet", "0", "0"], ["pet", "1", "0.2"], ["dsgd", "0", "0.4"], ["dsgd", "1", "0.6"]]
    assert canned.made[0].jobs == 3


def test_the_target_is_said_in_rounds_seconds_and_bytes(canned, file, capsys):
    at = results.Reached(round=4, seconds=2.0, bytes_per_node=4000.0)
    canned.outcomes = ((0, outcome(0.1, 0.5, 0.9, target=at)),)
    assert main(["simulate", str(file), "--set", "simulate.target=0.8"]) == 0
    assert "0.8 was reached at round 4, 2.0 s, 4.0 kB a node" in capsys.readouterr().out
    canned.outcomes = ((0, outcome(0.1, 0.5)),)
    assert main(["simulate", str(file), "--set", "simulate.target=0.8"]) == 0
    assert "0.8 was not reached" in capsys.readouterr().out


def test_json_is_one_object_with_a_version_and_walls_apart(canned, file, capsys):
    assert main(["simulate", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == results.VERSION
    assert found["scenario"]["task"]["params"] == {"dim": 30}
    assert found["planned"] == 1
    (run,) = found["runs"]
    assert run["wall"] == {"seconds": 0.25}
    assert "wall_s" not in run
    assert [each["mean"] for each in run["rows"]] == [0.1, 0.5, 0.9]
    assert run["labels"] == {}


def test_csv_is_a_line_an_evaluation_with_its_labels(canned, file, tmp_path):
    file.write_text(SCENARIO + SWEEP)
    canned.outcomes = ((0, outcome(0.1, 0.5)), (1, outcome(0.2, 0.6)))
    target = tmp_path / "out.csv"
    assert main(["simulate", str(file), "--csv", str(target)]) == 0
    with target.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 4
    assert rows[3]["mix.kind"] == "pet"
    assert rows[3]["simulate.seed"] == "1"
    assert rows[3]["metric"] == "accuracy"
    assert float(rows[3]["mean"]) == 0.6
    assert "wall_s" not in rows[3]


def test_ctrl_c_keeps_what_is_finished(canned, file, capsys, tmp_path):
    file.write_text(SCENARIO + SWEEP)
    canned.outcomes, canned.then = ((1, outcome(0.1, 0.5)),), KeyboardInterrupt()
    target = tmp_path / "out.csv"
    assert main(["simulate", str(file), "--json", "--csv", str(target)]) == 130
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["planned"], len(found["runs"])) == (4, 1)
    assert found["runs"][0]["labels"] == {"mix.kind": "pet", "simulate.seed": 1}
    assert said.err == "starling: interrupted, 1 of 4 runs are finished\n"
    assert target.exists()


def test_a_run_that_fails_keeps_what_is_finished_and_is_the_last_line(canned, file, capsys):
    file.write_text(SCENARIO + SWEEP)
    canned.outcomes, canned.then = ((0, outcome(0.1, 0.5)),), GossipError("a simulating process was killed by signal 9")
    assert main(["simulate", str(file)]) == 1
    said = capsys.readouterr()
    assert "mix.kind = pet, simulate.seed = 0" in said.out
    assert said.err == "starling: a simulating process was killed by signal 9\n"


def test_progress_is_lines_where_no_terminal_draws_a_bar(canned, file, capsys):
    assert main(["simulate", str(file), "--progress"]) == 0
    assert "starting" in capsys.readouterr().err


def test_what_may_not_be_meant_is_noted(canned, file, capsys):
    assert main(["simulate", str(file), "--set", "mix.clip_norm=0"]) == 0
    assert capsys.readouterr().err.startswith("note: mix.clip_norm: 0 is off")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "mix.knd=pet"], "mix.knd: no such key; did you mean mix.kind?"),
        (["--set", "pace.rounds=0"], "pace.rounds: must be >= 1"),
        (["--jobs", "0"], "--jobs: must be >= 1, got 0"),
        (["--csv", "/no/where/x.csv"], "--csv: /no/where is no folder"),
        (["--plot", "picture.gif"], "--plot: must end in .png, .svg, .pdf, got 'picture.gif'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(canned, file, capsys, options, message):
    assert main(["simulate", str(file), *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"starling: {message}")
    assert said.err.count("\n") == 1
    assert canned.made == []


def test_without_matplotlib_one_line_says_what_to_install(canned, file, capsys, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    assert main(["simulate", str(file), "--plot", "x.png"]) == 2
    assert "pip install 'starling-swarm[plot]'" in capsys.readouterr().err


def test_a_typo_is_answered_with_the_command_that_shows_the_keys(canned, file, capsys):
    assert main(["simulate", str(file), "--set", "faults.los=0.1"]) == 2
    assert capsys.readouterr().err.endswith("see `starling config show scenario`\n")
    assert main(["config", "show", "scenario"]) == 0
    assert "straggler_share = 0.0" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_one_line(capsys):
    assert main(["simulate", "nowhere.toml"]) == 2
    assert capsys.readouterr().err.startswith("starling: nowhere.toml: cannot be read")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", plot.SUFFIXES)
def test_a_plot_is_drawn_with_a_line_a_variant(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    runs = [
        Finished(labels={"mix.kind": kind, "simulate.seed": seed}, outcome=outcome(0.1, 0.4 + seed / 10, 0.8))
        for kind in ("pet", "dsgd") for seed in (0, 1)
    ]  # fmt: skip
    path = tmp_path / f"picture{suffix}"
    plot.draw(runs, "a title", 0.5, path)
    assert path.stat().st_size > 5000
    if suffix == ".svg":
        text = path.read_text()
        assert text.count("mix.kind = pet") == 1
        assert "virtual seconds" in text


def test_seeds_of_one_variant_belong_together():
    runs = [Finished(labels={"k": k, "simulate.seed": seed}, outcome=outcome(0.1)) for k in (1, 2) for seed in (5, 6)]
    assert [(title, len(group)) for title, group in results.over_seeds(runs)] == [("k = 1", 2), ("k = 2", 2)]


def test_a_target_can_be_above_or_below():
    rows = [row(0, 0.1), row(2, 0.5), row(4, 0.9)]
    assert results.reached(rows, 0.4, higher_is_better=True).round == 2
    assert results.reached(rows, 0.4, higher_is_better=False).round == 0
    assert results.reached(rows, 0.95, higher_is_better=True) is None
    assert results.reached(rows, 0.0, higher_is_better=False) is None  # none is set


# --- real workers -------------------------------------------------------------------------------------------------


def starling(*arguments, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "starling.node.cli.main", *map(str, arguments)], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.real
def test_two_workers_give_what_no_worker_gives(file):
    """Who computes a run must not show in it; and equal files give equal bytes but for the clock on the wall."""
    file.write_text(SCENARIO + SWEEP)
    said, _ = starling("simulate", file, "--json", "--jobs", 2).communicate(timeout=120)
    runs = json.loads(said)["runs"]
    here = [
        Finished(labels=dict(cell.labels), outcome=simulate(cell.scenario, lambda _round, _line: None))
        for cell in cells_of(file)
    ]
    expected = json.loads(results.to_json(results.document({}, here, 4)))["runs"]
    for run in (*runs, *expected):
        assert run.pop("wall")["seconds"] > 0.0
    assert runs == expected
    assert len(runs) == 4


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_ends_all_processes_within_three_seconds(file, number):
    """Ctrl-C in the middle of a long run, and the worst case: the command itself is killed and can tidy up nothing."""
    long = ("--set", "pace.rounds=1000000", "--set", "simulate.engine=vectorised", "--progress")
    process = starling("simulate", file, *long, start_new_session=True)
    try:
        workers: list[psutil.Process] = []
        deadline = time.monotonic() + 60.0
        while not workers and time.monotonic() < deadline:
            workers = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        while b"error" not in process.stderr.readline():  # it is under way
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(number)
        process.wait(timeout=10.0)
        _, left = psutil.wait_procs(workers, timeout=3.0)
        assert left == []
        assert time.monotonic() - began < 3.0
        assert process.returncode == (130 if number == signal.SIGINT else -number)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.real
def test_a_worker_that_refuses_or_dies_says_why(file):
    cells = cells_of(file, "task=digit")
    with pool.Pool(cells, 1, lambda *_: None) as workers:
        with pytest.raises(ConfigError, match=r"task\.kind: 'digit' is unknown"):
            workers.check()
        workers._workers[0].process.kill()
        with pytest.raises(GossipError, match="was killed by signal 9, perhaps for want of memory"):
            list(workers.run())


def cells_of(file: Path, *assignments):
    return cells(toml.apply_set(toml.load(file, Scenario), assignments))


def test_the_exit_code_of_an_interruption_is_that_of_the_shell():
    assert command.INTERRUPTED == 128 + signal.SIGINT
