"""`starling bench never-worse`: compared runs differ in the mix alone, differences are computed as documented, and no result is lost."""

import json
import math
import os
import re
import signal
import tempfile
from concurrent.futures import Executor, Future
from functools import partial
from statistics import fmean

import pytest

from starling.gossip.errors import ConfigError
from starling.kernels import texts
from starling.kernels.never_worse import Bench, Cell, cells, keys, scenarios, wanted
from starling.kernels.paired import Pair, Results, compare, pair, standard_error
from starling.kernels.schema import NEVER_WORSE_AXES
from starling.node.cli.main import main
from starling.node.cli.research import bench_never_worse as command
from starling.node.cli.research import simulate
from starling.node.cli.signals import ended_by_signals
from starling.node.simulate import rules, worker
from starling.node.simulate.engines import simulate as run_here
from starling.node.simulate.results import Outcome, Row
from starling.node.simulate.worker import Failure
from tests.harness.cli_doubles import invoked
from tests.harness.schemas import valid

DIGITS = Cell("by_label", "sgd", "cosine", "normal", "calm")
SEVERAL = ["--cells", "by_label/*/cosine/normal/calm", "--seeds", "2", "--rounds", "4"]
ONE = ["--cells", DIGITS.name, "--seeds", "2", "--rounds", "4"]


def of_seed(seed=1, default=(0.5, 0.8), plain=(0.5, 0.7), **over):
    rounds = tuple(range(2, 2 * max(len(default), len(plain)) + 1, 2))
    given = {"higher_is_better": True, "diverged": (False, False), "committed": (1.0, 0.5), "metric": "accuracy"}
    return Pair(seed=seed, rounds=rounds, default=default, plain=plain, **(given | over))


def outcome(*means, **over):
    same = {"seconds": 0.0, "bytes_per_node": 0.0, "exchanges_per_node": 0.0, "alive": 2, "loss": None, "consensus_distance": 0.0}
    rows = tuple(Row(round=2 * at, mean=mean, mean_model=mean, min=mean, max=mean, **same) for at, mean in enumerate(means))
    given = {"metric": "accuracy", "higher_is_better": True, "counts": {"meetings": 10, "dead": 2, "committed": 6}}
    return Outcome(parameters=1, rows=rows, undone=0, target=None, wall_s=0.0, **({"diverged": None} | given | over))


class Canned(Executor):
    """Runs no simulation: the metric is a function of seed and mix, unless the test makes a run fail."""

    def __init__(self, then=None):
        self.then, self.ran = then or {}, []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if fn is worker.check:
            future.set_result(None)
            return future
        scenario = args[1]
        key = (scenario.optimizer.kind, scenario.simulate.seed, scenario.mix.kind)
        self.ran.append(key)
        happens = self.then.get(key, outcome(0.1, 0.5, 0.7 + 0.1 * (scenario.mix.kind == "pet") * scenario.simulate.seed))
        (future.set_exception if isinstance(happens, BaseException) else future.set_result)(happens)
        return future


invoke = partial(invoked, command.never_worse)


def test_every_combination_is_a_cell_and_patterns_choose():
    assert len(cells()) == math.prod(map(len, NEVER_WORSE_AXES)) == 120
    assert [cell.name for cell in cells(["iid/sgd/*/normal/calm", "by_author/muon/cosine/*/faults"])] == [
        "iid/sgd/cosine/normal/calm",
        "iid/sgd/constant/normal/calm",
        "by_author/muon/cosine/normal/faults",
        "by_author/muon/cosine/twentyfold/faults",
    ]
    assert len({cell.file for cell in cells()}) == 120


@pytest.mark.parametrize("rounds", [4, 40])
def test_both_runs_of_every_cell_can_be_simulated_and_differ_in_the_mix_alone(rounds, tmp_path):
    """Any other difference would be measured as well."""
    for cell in cells():
        path = tmp_path if cell.split in ("by_language", "by_author") else None
        default, plain = scenarios(cell, rounds, path)
        assert (default.mix.kind, plain.mix.kind) == ("pet", "dsgd")
        different = [name for name in default.__struct_fields__ if getattr(default, name) != getattr(plain, name)]
        assert different == ["mix"]
        assert default.simulate.salt
        for each in (default, plain):
            rules.check_one(each)


def test_a_cell_has_the_rate_and_faults_of_its_name():
    normal, faster = (keys(DIGITS._replace(rate=rate), 40, None) for rate in ("normal", "twentyfold"))
    assert faster["optimizer.lr"] == pytest.approx(20 * normal["optimizer.lr"])
    harsh, _ = scenarios(DIGITS._replace(faults="faults"), 40, None)
    assert (harsh.faults.loss, harsh.faults.tries, harsh.network.step_s) == (0.3, 1, 1.0)
    assert (harsh.faults.churn_from, harsh.faults.churn_until, harsh.faults.crash) == (20, 22, 1.0)
    assert scenarios(DIGITS._replace(schedule="constant"), 40, None)[0].optimizer.schedule == "constant"


@pytest.mark.slow
def test_a_given_mix_replaces_the_default_only():
    """Without a correction both runs are identical: partners, batches and faults are equal."""
    harsh = DIGITS._replace(faults="faults")
    same = [run_here(each, lambda _round, _line: None) for each in scenarios(harsh, 4, None, ["mix.kappa=0"])]
    assert same[0].rows == same[1].rows
    assert same[0].counts["lost"] > 0
    other = run_here(scenarios(harsh, 4, None, ["mix.kappa=0.2"])[0], lambda _round, _line: None)
    assert other.rows != same[0].rows


def test_a_difference_is_a_mean_over_seeds_with_its_standard_error():
    """.1 and .3 of two seeds: mean .2, sample deviation .1414, so a standard error of .1."""
    case = compare("a/b", "digits", [of_seed(1, (0.5, 0.8), (0.5, 0.7)), of_seed(2, (0.5, 0.9), (0.5, 0.6))])
    assert case.rounds == (2, 4)
    assert case.difference == pytest.approx((0.0, 0.2))
    assert case.error == pytest.approx((0.0, 0.1))
    assert (case.end, case.end_error, case.default_end, case.plain_end) == pytest.approx((0.2, 0.1, 0.85, 0.65))
    assert (case.worst, case.worst_round, case.below, case.above, case.worse) == (0.0, 2, 0, 0, False)
    assert case.committed == (1.0, 0.5)
    assert standard_error([0.1, 0.3]) == pytest.approx(0.1)
    assert standard_error([0.1]) is None


def test_runs_are_compared_in_pairs_with_equal_seeds():
    """Results differ far more between seeds than between mixes, so the error is computed from paired differences."""
    case = compare("a", "digits", [of_seed(1, (0.9,), (0.8,)), of_seed(2, (0.3,), (0.2,))])
    assert case.error == pytest.approx((0.0,), abs=1e-12)
    assert case.above == 1


def test_lower_is_better_flips_the_sign():
    case = compare("a", "text", [of_seed(default=(3.0,), plain=(3.5,), higher_is_better=False)])
    assert case.end == 0.5
    assert (case.default_end, case.plain_end) == (3.0, 3.5)


def test_a_cell_is_worse_if_any_evaluation_is_worse_by_three_standard_errors():
    """−.04 ± .01 is worse, −.02 ± .01 is not; the final evaluation has no special role."""

    def with_first(mean):
        values = ((mean - 0.01, 0.2), (mean + 0.01, 0.2))
        return compare("a", "digits", [of_seed(seed, each, (0.0, 0.0)) for seed, each in enumerate(values)])

    lost, noisy = with_first(-0.04), with_first(-0.02)
    assert (lost.worse, lost.below, lost.above, lost.worst, lost.worst_round) == (True, 1, 1, -0.04, 2)
    assert (noisy.worse, noisy.below, noisy.worst) == (False, 0, -0.02)
    assert compare("a", "digits", [of_seed(default=(0.1,), plain=(0.2,))]).worse  # one seed has no standard error


def test_evaluations_end_where_a_run_diverges_which_counts_as_worse():
    finite = of_seed(1, (0.5, 0.6, 0.7), (0.5, 0.6, 0.7))
    for diverged, worse in (((True, False), True), ((False, True), False), ((True, True), False)):
        one = of_seed(2, (0.5,) if diverged[0] else (0.5, 0.6, 0.7), (0.5, 0.6), diverged=diverged)
        case = compare("a", "digits", [finite, one])
        assert len(case.difference) == len(case.rounds) == (1 if diverged[0] else 2)
        assert (case.diverged, case.worse) == (diverged, worse)
    nothing = compare("a", "digits", [of_seed(1, (), (0.5,), diverged=(True, False))])
    assert (nothing.worst, nothing.end, nothing.worst_round, nothing.default_end, nothing.worse) == (None, None, None, None, True)


def test_comparisons_skip_the_beginning_and_exchanges_with_dead_peers():
    one = pair(7, outcome(0.1, 0.5, diverged=3), outcome(0.1, 0.4, 0.6))
    assert (one.seed, one.rounds, one.default, one.plain, one.diverged) == (7, (2, 4), (0.5,), (0.4, 0.6), (True, False))
    assert one.committed == (0.75, 0.75)


def test_results_survive_storage_and_are_reused_only_with_equal_settings(tmp_path):
    results, asked = Results(tmp_path / "new"), {"pace.rounds": "4", "--set": ""}
    assert results.read("cell", asked) == {}
    results.write("cell", asked, {2: of_seed(2), 1: of_seed(1)})
    assert results.read("cell", asked) == {1: of_seed(1), 2: of_seed(2)}
    with pytest.raises(ConfigError, match=r"^--keep: \S+cell\.json was measured with pace\.rounds = 4, now it is 5; name another"):
        results.read("cell", {**asked, "pace.rounds": "5"})
    with pytest.raises(ConfigError, match=r"measured with pace\.more = nothing, now it is 1"):
        results.read("cell", {**asked, "pace.more": "1"})
    (tmp_path / "new" / "cell.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^--keep: \S+cell\.json is no file of results"):
        results.read("cell", asked)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^--keep: \S+ cannot be written: "):
        Results(tmp_path / "file").write("cell", asked, {})


def test_stored_seeds_are_not_measured_again_and_new_ones_are_added(tmp_path):
    first = Canned()
    code, out, _ = invoke(first, *SEVERAL, "--keep", tmp_path, "--json")
    assert code == 0
    assert len(first.ran) == 12
    again, more = Canned(), Canned()
    assert invoke(again, *SEVERAL, "--keep", tmp_path, "--json")[:2] == (0, out)
    assert again.ran == []
    _, out, _ = invoke(more, "--cells", DIGITS.name, "--seeds", "3", "--rounds", "4", "--keep", tmp_path, "--json")
    assert more.ran == [("sgd", 3, "pet"), ("sgd", 3, "dsgd")]
    (case,) = valid("bench-never-worse", out)["cases"]
    assert case["seeds"] == [1, 2, 3]
    assert case["difference"] == pytest.approx([0.0, fmean([0.1, 0.2, 0.3])])


def test_ctrl_c_keeps_pairs_that_are_finished_and_the_same_command_goes_on(tmp_path):
    """A pair of which one run is missing is measured again."""
    stopped = Canned({("adamw", 2, "dsgd"): KeyboardInterrupt()})
    code, out, err = invoke(stopped, *SEVERAL, "--keep", tmp_path, "--json")
    assert code == command.INTERRUPTED == simulate.INTERRUPTED == 130
    assert [case["cell"] for case in valid("bench-never-worse", out)["cases"]] == [DIGITS.name]
    assert err.splitlines()[-1] == f"starling: interrupted, 1 of 3 cells are in {tmp_path}; the same command goes on"
    rest = Canned()
    assert invoke(rest, *SEVERAL, "--keep", tmp_path)[0] == 0
    assert rest.ran == [("adamw", 2, "pet"), ("adamw", 2, "dsgd"), *(("muon", seed, mix) for seed in (1, 2) for mix in ("pet", "dsgd"))]


@pytest.mark.parametrize(("config", "code"), [(False, 1), (True, 2)])
def test_a_failed_cell_is_reported_and_the_others_continue(config, code, tmp_path):
    failing = Canned({("adamw", 1, "dsgd"): Failure("no memory", config)})
    got, out, err = invoke(failing, *SEVERAL, "--keep", tmp_path, "--json")
    assert got == code
    assert len(json.loads(out)["cases"]) == 2
    assert err.splitlines()[-1] == "starling: bench never-worse: by_label/adamw/cosine/normal/calm, seed 1, plain: no memory"
    assert set(Results(tmp_path).read("by_label-adamw-cosine-normal-calm", _asked("by_label/adamw/cosine/normal/calm"))) == {2}


def _asked(name):
    (cell,) = cells([name])
    return Bench(4, (1, 2), (), {}, Results(None)).asked(cell)


def test_a_table_has_a_row_for_each_cell_and_counts_worse_cells(tmp_path):
    worse = {("sgd", seed, "pet"): outcome(0.1, 0.3, 0.9) for seed in (1, 2)}
    code, out, err = invoke(Canned(worse), *SEVERAL, "--keep", tmp_path)
    heading, first, *others, last = out.splitlines()
    assert code == 0
    assert heading.split()[:4] == ["cell", "metric", "default", "plain"]
    assert first.split() == [DIGITS.name, "accuracy", "0.9", "0.7", "0.2", "0", "-0.2", "0", "2", "1/2", "1/2", "75%", "worse"]
    assert not any(line.endswith("worse") for line in others)
    assert last == "At some evaluation 1 of 3 cells are worse than plain averages by more than three standard errors."
    assert re.match(r" +0%  1/3  by_label/sgd/cosine/normal/calm", err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--cells mnist/*", "--cells: 'mnist/*' is no SPLIT/OPTIMIZER/SCHEDULE/RATE/FAULTS of by_label, dirichlet, "),
        ("--seeds 0", "--seeds: must be in [1, 1000], got 0"),
        ("--rounds 3", "--rounds: must be in [4, 100000], got 3"),
        ("--jobs 0", "--jobs: must be in [1, 1024], got 0; try `starling bench never-worse --jobs 2`"),
        ("--set pace.rounds=3", "--set: must be a key of mix, got 'pace.rounds=3'; try `--set mix.kappa=0.2`"),
        ("--set mix.kapa=0.2", "mix.kapa"),
        ("--data nowhere", "--data: nowhere is no folder"),
        ("--data . --cells by_language/sgd/*", "must hold 4 files *.txt, got 0"),
    ],
)
def test_unmeasurable_cases_are_refused_in_one_line(arguments, words, here, capsys):
    assert main(["bench", "never-worse", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert list(here.iterdir()) == []


def test_a_doubtful_key_is_noted(tmp_path):
    _, _, err = invoke(Canned(), *ONE, "--keep", tmp_path, "--set", "mix.kappa=0.4")
    assert err.startswith("note: mix.kappa: ")


def test_texts_are_the_first_files_of_a_folder_or_generated_one_per_node(tmp_path):
    source = tmp_path / "data" / "text" / "languages"
    source.mkdir(parents=True)
    for number in range(5):
        (source / f"{number}.txt").write_text(f"text {number}")
    (tmp_path / "copied").mkdir()
    (tmp_path / "made").mkdir()
    need = wanted(cells(["by_*/sgd/cosine/normal/calm"]))
    assert need == {"languages": 4, "authors": 6}
    copied = texts.prepare({"languages": 4}, tmp_path / "data", tmp_path / "copied")["languages"]
    assert [file.read_text() for file in sorted(copied.path.iterdir())] == [f"text {number}" for number in range(4)]
    assert re.fullmatch(r"languages [0-9a-f]{16}", copied.shown)
    made = texts.prepare(need, None, tmp_path / "made")
    assert [len(list(made[name].path.iterdir())) for name in need] == [4, 6]
    assert all(text.shown.startswith(f"made-up {name} ") for name, text in made.items())
    letters = [set(file.read_bytes()) - {32} for file in sorted(made["languages"].path.iterdir())]
    assert all(not one & other for at, one in enumerate(letters) for other in letters[:at])
    spoken = [set(file.read_bytes().split()) for file in sorted(made["authors"].path.iterdir())]
    assert len(spoken[0] & spoken[1]) > 0.9 * len(spoken[0])


def test_data_are_read_from_the_given_folder(tmp_path, monkeypatch):
    (tmp_path / "shared" / "data" / "text").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert texts.find(tmp_path, {}) == tmp_path
    assert texts.find(None, {}).resolve() == tmp_path / "shared" / "data"
    monkeypatch.chdir(tmp_path)
    assert texts.find(None, {}) is None
    assert texts.find(None, {"STARLING_DATA": str(tmp_path)}) is None  # no texts there
    assert texts.find(None, {"STARLING_DATA": str(tmp_path / "shared" / "data")}) == tmp_path / "shared" / "data"


@pytest.mark.slow
@pytest.mark.real
def test_a_tiny_run_is_reproducible(here, monkeypatch, capsys):
    """Digits and generated texts, in a worker process."""
    monkeypatch.delenv("STARLING_DATA", raising=False)
    arguments = ["--cells", DIGITS.name, "--cells", "by_language/adamw/cosine/normal/calm", "--seeds", "1", "--rounds", "4"]
    assert main(["bench", "never-worse", *arguments, "--json"]) == 0
    digits, text = valid("bench-never-worse", capsys.readouterr().out)["cases"]
    assert digits["cell"] == DIGITS.name
    assert digits["rounds"] == text["rounds"] == [1, 2, 3, 4]
    assert (digits["metric"], text["metric"]) == ("accuracy", "bits_per_byte")
    assert text["data"].startswith("made-up languages ")
    assert digits["error"] == [None] * 4
    assert digits["difference"][0] == 0.0  # no correction exists before the first exchange
    assert any(digits["difference"])
    assert main(["bench", "never-worse", *arguments, "--json"]) == 0
    assert valid("bench-never-worse", capsys.readouterr().out)["cases"] == [digits, text]
    assert sorted(path.name for path in (here / "starling-never-worse").iterdir()) == [
        "by_label-sgd-cosine-normal-calm.json",
        "by_language-adamw-cosine-normal-calm.json",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_bench_that_is_terminated_leaves_nothing_in_the_temporary_folder(number, tmp_path, monkeypatch):
    """`timeout 60 starling bench`; under nohup a hang-up stays ignored."""
    places = []

    def prepare(_wanted, _found, folder):
        places.append(folder.exists())
        os.kill(os.getpid(), number)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(texts, "prepare", prepare)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "never-worse", "--keep", str(tmp_path / "kept.jsonl")])
    assert (ended.value.code, places) == (128 + number, [True])
    assert not [*tmp_path.glob("starling-texts-*")]


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
