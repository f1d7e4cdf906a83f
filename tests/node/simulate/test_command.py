"""`starling simulate`: its outputs, and that no process or file is left behind."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import psutil
import pytest

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.main import main
from starling.node.cli.research import simulate as command
from starling.node.config import toml
from starling.node.simulate import plot, results, worker
from starling.node.simulate.engines import simulate
from starling.node.simulate.executors import DIED, Processes
from starling.node.simulate.results import Finished, Outcome, Row
from starling.node.simulate.runs import Sweep
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from starling.node.simulate.worker import Failure
from tests.harness.cli_doubles import invoked, refused
from tests.harness.processes import lives, until
from tests.harness.texts import words

SCENARIO = """
name = "a small one"
[simulate]
nodes = 4
[task]
kind = "diagonal"
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
    )


def outcome(*means, **values):
    given = {"metric": "accuracy", "higher_is_better": True, "counts": {"meetings": 8, "committed": 6, "lost": 2}, "target": None}
    return Outcome(
        parameters=30,
        rows=tuple(row(2 * at, mean) for at, mean in enumerate(means)),
        undone=0,
        diverged=None,
        wall_s=0.25,
        **(given | values),
    )


class Canned(Executor):
    """An executor that computes nothing: outcomes by the number of the run, and an exception for all others."""

    def __init__(self, outcomes=None, then=None):
        self.outcomes = {0: outcome(0.1, 0.5, 0.9)} if outcomes is None else outcomes
        self.then = then
        self.scenarios = []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if fn is worker.check:
            self.scenarios = list(args[0])
            future.set_result(None)
        elif args[0] in self.outcomes:
            future.set_result(self.outcomes[args[0]])
        else:
            future.set_exception(self.then or AssertionError(f"run {args[0]} is not expected"))
        return future


invoke = partial(invoked, command.simulate)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def test_one_run_gives_a_table_and_a_summary(file):
    code, out, err = invoke(Canned(), file)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == [*words("round seconds bytes/node exchanges nodes loss accuracy min max mean model distance")]
    assert out.splitlines()[3].split()[7:10] == ["0.9", "0.89", "0.91"]
    assert "8 meetings, 6 committed, 2 lost" in out


@pytest.mark.parametrize("name", ["open", "vouched"])
def test_a_preset_may_come_from_the_command_line_or_the_file(file, name):
    """The executor gets the same run in both cases."""
    first, second = Canned(), Canned()
    invoke(first, file, "--preset", name, "--set", "simulate.nodes=8")
    file.write_text(f'preset = "{name}"\n{SCENARIO}')
    invoke(second, file, "--set", "simulate.nodes=8")
    (one,), (other,) = first.scenarios, second.scenarios
    assert one == other
    assert (one.preset, one.mix.kind, one.pace.local_steps) == (name, {"open": "gather", "vouched": "pet"}[name], 2)


def test_a_sweep_gives_a_block_per_run_and_a_table_of_all(file):
    file.write_text(SCENARIO + SWEEP)
    _, out, _ = invoke(Canned({number: outcome(0.1, 0.2 * number) for number in (2, 0, 1, 3)}), file)
    titles = [line for line in out.splitlines() if line.startswith("mix.kind = ")]
    assert titles == [f"mix.kind = {kind}, simulate.seed = {seed}" for kind in ("pet", "dsgd") for seed in (0, 1)]
    last = [line.split()[:3] for line in out.splitlines()[-4:]]
    assert last == [["pet", "0", "0"], ["pet", "1", "0.2"], ["dsgd", "0", "0.4"], ["dsgd", "1", "0.6"]]


def test_the_target_is_reported_in_rounds_seconds_and_bytes(file):
    at = results.Reached(round=4, seconds=2.0, bytes_per_node=4000.0)
    reached, missed = outcome(0.1, 0.5, 0.9, target=at), outcome(0.1, 0.5)
    assert "0.8 was reached at round 4, 2.0 s, 4.0 kB a node" in invoke(Canned({0: reached}), file, "--set", "simulate.target=0.8")[1]
    assert "0.8 was not reached" in invoke(Canned({0: missed}), file, "--set", "simulate.target=0.8")[1]


def test_json_is_one_object_with_a_version_and_separate_elapsed_times(file):
    found = json.loads(invoke(Canned(), file, "--json")[1])
    assert found["version"] == results.VERSION
    assert found["scenario"]["task"]["dim"] == 30
    assert found["planned"] == 1
    (run,) = found["runs"]
    assert run["wall"] == {"seconds": 0.25}
    assert "wall_s" not in run
    assert [each["mean"] for each in run["rows"]] == [0.1, 0.5, 0.9]
    assert run["labels"] == {}


def test_csv_has_a_line_per_evaluation_with_its_labels(file, tmp_path):
    file.write_text(SCENARIO + SWEEP.replace("0, 1", "0").replace('"pet", ', ""))
    target = tmp_path / "out.csv"
    invoke(Canned({0: outcome(0.2, 0.6)}), file, "--csv", target)
    with target.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 2
    assert rows[1]["mix.kind"] == "dsgd"
    assert rows[1]["simulate.seed"] == "0"
    assert rows[1]["metric"] == "accuracy"
    assert float(rows[1]["mean"]) == 0.6
    assert "wall_s" not in rows[1]


@pytest.mark.parametrize("option", ["--csv", "--aggregate"])
def test_results_of_an_earlier_run_are_replaced_only_with_force(file, tmp_path, capsys, option):
    """Hours of computing are not lost to a command that is typed again."""
    target = tmp_path / "out.csv"
    target.write_text("of yesterday")
    refused(capsys, ["simulate", file, option, target], option, "exists", "`--force`")
    assert target.read_text() == "of yesterday"
    assert invoke(Canned(), file, option, target, "--force")[0] == 0
    assert "accuracy" in target.read_text()


def test_a_disk_that_fills_up_during_the_runs_is_a_failure_after_the_table(file, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(GossipError, match="cannot be written: No space left") as failed:
        invoke(Canned(), file, "--csv", tmp_path / "out.csv")
    assert failed.type is GossipError  # exit code 1: the input was right


def test_an_aggregate_has_mean_and_deviation_over_seeds(file, tmp_path):
    """Two seeds at .4 and .8: mean .6, sample standard deviation √(2·.2²) = .2828."""
    file.write_text(SCENARIO + SWEEP)
    target = tmp_path / "out.csv"
    executor = Canned({number: outcome(0.1, value) for number, value in enumerate((0.4, 0.8, 0.3, 0.3))})
    invoke(executor, file, "--aggregate", target)
    with target.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["mix.kind"], row["round"], row["runs"]) for row in rows] == [
        ("pet", "0", "2"),
        ("pet", "2", "2"),
        ("dsgd", "0", "2"),
        ("dsgd", "2", "2"),
    ]
    assert float(rows[1]["mean_mean"]) == pytest.approx(0.6)
    assert float(rows[1]["mean_sd"]) == pytest.approx(0.08**0.5)
    assert float(rows[3]["mean_sd"]) == 0.0
    assert rows[1]["attack_success_mean"] == ""  # there is no attack


def test_ctrl_c_keeps_what_is_finished(file, tmp_path):
    file.write_text(SCENARIO + SWEEP)
    target = tmp_path / "out.csv"
    executor = Canned({0: outcome(0.1, 0.5)}, KeyboardInterrupt())
    code, out, err = invoke(executor, file, "--json", "--csv", target)
    found = json.loads(out)
    assert code == 130
    assert (found["planned"], len(found["runs"])) == (4, 1)
    assert found["runs"][0]["labels"] == {"mix.kind": "pet", "simulate.seed": 0}
    assert err == "starling: interrupted, 1 of 4 runs are finished\n"
    assert target.exists()


def test_a_failed_run_is_named_with_its_reason_and_the_others_continue(file):
    file.write_text(SCENARIO + SWEEP)
    outcomes = {0: outcome(0.1, 0.5), 1: Failure("no data", config=True), 3: outcome(0.1, 0.7)}
    code, out, err = invoke(Canned(outcomes, GossipError("killed")), file)
    assert code == 2  # one of the failures is an error in the settings
    assert "mix.kind = pet, simulate.seed = 0" in out
    assert "mix.kind = dsgd, simulate.seed = 1" in out
    assert err.splitlines() == [
        "starling: no data (in the run with mix.kind = pet, simulate.seed = 1)",
        "starling: killed (in the run with mix.kind = dsgd, simulate.seed = 0)",
    ]


def test_progress_is_printed_as_lines_without_a_terminal(file):
    assert "starting" in invoke(Canned(), file, "--progress")[2]


def test_doubtful_settings_are_noted(file):
    assert invoke(Canned(), file, "--set", "mix.clip_norm=0")[2].startswith("note: mix.clip_norm: with 0 one Byzantine peer can ruin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "mix.knd=pet"], "mix.knd: no such key; did you mean mix.kind?"),
        (["--set", "pace.rounds=0"], "pace.rounds: must be >= 1"),
        (["--jobs", "0"], "--jobs: must be >= 1, got 0"),
        (["--csv", "/no/where/x.csv"], "--csv: /no/where is no folder"),
        (["--aggregate", "/no/where/x.csv"], "--aggregate: /no/where is no folder"),
        (["--plot", "picture.gif"], "--plot: must end in .png, .svg, .pdf, got 'picture.gif'"),
        (["--csv", "/"], "--csv: / exists; name another file"),
        (["--group", "mix.kind"], "--group: 'mix.kind' is not swept here; there is no [sweep]"),
    ],
)
def test_errors_are_reported_before_a_start(file, capsys, options, message):
    assert main(["simulate", str(file), *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"starling: {message}")
    assert said.err.count("\n") == 1


def test_without_matplotlib_one_line_says_what_to_install(file, capsys, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    assert main(["simulate", str(file), "--plot", "x.png"]) == 2
    assert "pip install 'starling-swarm[plot]'" in capsys.readouterr().err


def test_an_unknown_key_is_answered_with_the_command_that_lists_keys(file, capsys):
    assert main(["simulate", str(file), "--set", "faults.los=0.1"]) == 2
    assert capsys.readouterr().err.endswith("see `starling config show scenario`\n")
    assert main(["config", "show", "scenario"]) == 0
    assert "straggler_share = 0.0" in capsys.readouterr().out


def test_a_missing_scenario_file_gives_one_line(capsys):
    assert main(["simulate", "nowhere.toml"]) == 2
    assert capsys.readouterr().err.startswith("starling: nowhere.toml: cannot be read")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", plot.SUFFIXES)
def test_a_plot_has_a_line_per_variant(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    runs = [
        Finished(labels={"mix.kind": kind, "simulate.seed": seed}, outcome=outcome(0.1, 0.4 + seed / 10, 0.8))
        for kind in ("pet", "dsgd")
        for seed in (0, 1)
    ]
    path = tmp_path / f"picture{suffix}"
    plot.save(plot.figure(runs, "a title", 0.5), path)
    assert path.stat().st_size > 5000


@pytest.mark.slow
def test_thirty_variants_are_distinguishable_in_the_legend():
    """The legend has the differing values once each, and no two lines look alike."""
    pytest.importorskip("matplotlib")
    runs = [
        Finished(labels={"task.kind": "digits", "mix.kind": kind, "optimizer.lr": lr, "simulate.seed": 0}, outcome=outcome(0.1, lr))
        for kind in ("pet", "dsgd", "choco")
        for lr in (0.1 * step for step in range(1, 11))
    ]
    figure = plot.figure(runs, "a title", 0.0, x="bytes")
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert legend.get_title().get_text() == "mix.kind, optimizer.lr"
    assert texts[0] == "pet, 0.1"
    assert len(set(texts)) == 30
    (axes,) = figure.axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 30
    assert axes.xaxis.get_major_formatter()(2_500_000.0) == "2.5 MB"
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1
    assert box.y0 >= 0.0
    assert box.y1 <= figure.bbox.y1


def test_a_band_is_the_standard_deviation_over_ungrouped_keys():
    pytest.importorskip("matplotlib")
    runs = [
        Finished(labels={"mix.kind": kind, "simulate.seed": seed}, outcome=outcome(0.1, value))
        for kind, seed, value in (("pet", 0, 0.4), ("pet", 1, 0.8), ("dsgd", 0, 0.2), ("dsgd", 1, 0.2))
    ]
    (axes,) = plot.figure(runs, "", 0.0, x="rounds", group=("mix.kind",)).axes
    assert axes.lines[0].get_ydata()[1] == pytest.approx(0.6)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert max(band) == pytest.approx(0.6 + 0.08**0.5)
    assert min(band) == pytest.approx(0.1)  # at the first evaluation all values agree
    (together,) = plot.figure(runs, "", 0.0, x="rounds", group=("simulate.seed",)).axes
    assert together.lines[0].get_ydata()[1] == pytest.approx(0.3)


def test_seeds_of_one_variant_are_grouped():
    runs = [Finished(labels={"k": k, "simulate.seed": seed}, outcome=outcome(0.1)) for k in (1, 2) for seed in (5, 6)]
    assert [(title, len(group)) for title, group in results.variants(runs)] == [("1", 2), ("2", 2)]


def test_a_target_can_be_above_or_below():
    rows = [row(0, 0.1), row(2, 0.5), row(4, 0.9)]
    assert results.reached(rows, 0.4, higher_is_better=True).round == 2
    assert results.reached(rows, 0.4, higher_is_better=False).round == 0
    assert results.reached(rows, 0.95, higher_is_better=True) is None
    assert results.reached(rows, 0.0, higher_is_better=False) is None  # none is set


def starling(*arguments, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "starling.node.cli.main", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.mark.slow
@pytest.mark.real
def test_worker_processes_do_not_change_results(file):
    """The result does not depend on which process computed a run: output is equal except for elapsed time."""
    file.write_text(SCENARIO + SWEEP)
    said, _ = starling("simulate", file, "--json", "--jobs", 2).communicate(timeout=120)
    runs = json.loads(said)["runs"]
    here = [Finished(labels=dict(cell.labels), outcome=simulate(cell.scenario, lambda _round, _line: None)) for cell in cells_of(file)]
    expected = json.loads(results.to_json({}, here, 4))["runs"]
    for run in (*runs, *expected):
        assert run.pop("wall")["seconds"] > 0.0
    assert runs == expected
    assert len(runs) == 4


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_ends_all_processes_within_three_seconds(file, number):
    """Ctrl-C during a long run, and the worst case: the command is killed and cannot clean up."""
    long = ("--set", "pace.rounds=1000000", "--set", "simulate.engine=matrix", "--progress")
    process = starling("simulate", file, *long, start_new_session=True)
    try:
        workers: list[psutil.Process] = []
        deadline = time.monotonic() + 60.0
        while not workers and time.monotonic() < deadline:
            workers = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        while b"error" not in process.stderr.readline():  # the run has started
            assert process.poll() is None
        began = time.monotonic()
        process.send_signal(number)
        process.wait(timeout=10.0)
        until(f"still there: {workers}", lambda: not any(map(lives, workers)), 3.0)
        assert time.monotonic() - began < 3.0
        assert process.returncode == (130 if number == signal.SIGINT else -number)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.real
def test_a_dead_worker_process_fails_only_its_own_run(file):
    """That run reports the reason, the other runs finish, and nothing is left behind."""
    file.write_text(SCENARIO + SWEEP)
    first = True

    def show(_fraction, line):
        nonlocal first
        if first and "error" in line:
            first = False
            spawned()[0].kill()

    with Processes(1) as processes:
        sweep = Sweep(cells_of(file, "pace.rounds=60", "pace.evaluate_every=1"), processes, show)
        sweep.check()
        sweep.run()
        workers = spawned()
    _, left = psutil.wait_procs(workers, timeout=3.0)
    assert left == []
    assert [failed.failure.reason for failed in sweep.failed.values()] == [DIED]
    assert len(sweep.finished) == 3


@pytest.mark.slow
@pytest.mark.real
def test_errors_that_only_torch_finds_are_reported_before_the_first_run(file):
    with Processes(1) as processes, pytest.raises(ConfigError, match=r"task\.kind: 'digit' is unknown"):
        Sweep(cells_of(file, "task=digit"), processes).check()


def test_an_error_in_a_task_fails_its_run_with_file_and_line(file):
    (cell,) = cells_of(file)

    def broken(_round, _line):
        raise TypeError("not\na number")

    found = worker.run(0, cell.scenario, broken)
    assert isinstance(found, Failure)
    assert found.reason.startswith("TypeError: not a number (test_command.py:")
    assert not found.config


def spawned():
    """Return the worker processes of this process."""
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def cells_of(file: Path, *assignments):
    return cells(toml.apply_set(toml.load(file, Scenario), assignments))


def test_the_exit_code_of_an_interruption_is_that_of_the_shell():
    assert command.INTERRUPTED == 128 + signal.SIGINT
