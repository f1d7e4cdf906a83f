"""`simulate(...)` from Python: arguments, results and refusals."""

import csv
import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate import executors, worker
from starling.node.simulate.api import simulate
from starling.node.simulate.worker import Failure

SMALL = {"task.dim": 20, "pace.evaluate_every": 2, "pace.local_steps": 2}
KEYS = {"task": "diagonal", "mix": "dsgd", "overlay": "ring", "nodes": 4, "rounds": 4, "set": SMALL}


def test_keyword_arguments_equal_the_keys_of_a_file(tmp_path):
    """Both ways give the same scenario, and so the same figures."""
    file = tmp_path / "s.toml"
    file.write_text(
        '[simulate]\nnodes = 4\n[task]\nkind = "diagonal"\ndim = 20\n[mix]\nkind = "dsgd"\n[overlay]\nkind = "ring"\n'
        "[pace]\nrounds = 4\nlocal_steps = 2\nevaluate_every = 2\n[sweep]\nseeds = [3, 4]\n"
    )
    by_keys, by_file = simulate(**KEYS, seeds=(3, 4)), simulate(file)
    assert by_keys.scenario == by_file.scenario
    assert [run.outcome.rows for run in by_keys.finished] == [run.outcome.rows for run in by_file.finished]
    assert [run.labels for run in by_keys.finished] == [{"simulate.seed": 3}, {"simulate.seed": 4}]
    assert simulate(by_file.scenario, seeds=(4,)).finished[0].outcome.rows == by_keys.finished[1].outcome.rows


def test_any_executor_computes_the_same():
    with ThreadPoolExecutor(1) as executor:
        there = simulate(**KEYS, executor=executor)
    here = simulate(**KEYS)
    assert there.finished[0].outcome.rows == here.finished[0].outcome.rows


@pytest.mark.slow
def test_both_engines_are_reached_by_name():
    virtual, matrix = (simulate(**KEYS, engine=name).finished[0].outcome for name in ("virtual", "matrix"))
    assert "busy" in virtual.counts
    assert "meetings" in matrix.counts


def test_progress_goes_from_0_to_all_rounds():
    fractions: list[float] = []
    simulate(**KEYS, progress=lambda fraction, _line: fractions.append(fraction))
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


def test_results_can_be_stored_and_plotted(tmp_path):
    runs = simulate(**KEYS, seeds=(0, 1))
    document = json.loads(runs.to_json())
    assert (document["planned"], len(document["runs"])) == (2, 2)
    assert len(list(csv.DictReader(runs.to_csv().splitlines()))) == 6
    if find_spec("matplotlib") is not None:
        figure = runs.plot(tmp_path / "x.png", x="rounds")
        assert (tmp_path / "x.png").stat().st_size > 5000
        assert len(figure.axes) == 1
        with pytest.raises(ConfigError, match=r"--x: must be one of rounds, bytes, seconds, got 'hours'"):
            runs.plot(x="hours")


def test_a_data_frame_has_a_row_per_evaluation_or_the_missing_package_is_named():
    runs = simulate(**KEYS, seeds=(0, 1))
    if find_spec("pandas") is None:
        with pytest.raises(ConfigError, match="needs pandas"):
            runs.frame()
    else:
        frame = runs.frame()
        assert len(frame) == 6
        assert list(frame["simulate.seed"].unique()) == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mix": "pets"}, r"mix\.kind: .*did you mean pet\?"),
        ({"jobs": 0}, r"jobs: must be >= 1"),
        ({"rounds": 0}, r"pace\.rounds: must be >= 1"),
        ({"task": "digit"}, r"task\.kind: 'digit' is unknown"),
        ({"set": {"mix.knd": "pet"}}, r"mix\.knd: no such key"),
    ],
)
def test_errors_are_one_line(given, message):
    with pytest.raises(ConfigError, match=message):
        simulate(**(KEYS | given))


class Failing(Executor):
    """An executor whose runs all fail."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(None if fn is worker.check else Failure("the swarm came to a halt"))
        return future


def test_where_no_run_finishes_the_reason_is_raised():
    with pytest.raises(GossipError, match="the swarm came to a halt"):
        simulate(**KEYS, executor=Failing())


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.real
def test_a_dask_cluster_computes_the_same():
    """One scheduler and one worker process of dask, as `starling simulate --cluster` uses them."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`: pip install 'starling-swarm[cluster]'")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as local,
        executors.cluster(local.scheduler_address) as executor,
    ):
        there = simulate(**KEYS, executor=executor, seeds=(0, 1))
    assert [run.outcome.rows for run in there.finished] == [run.outcome.rows for run in simulate(**KEYS, seeds=(0, 1)).finished]


@pytest.mark.slow
@pytest.mark.real
def test_an_unreachable_cluster_gives_one_line():
    pytest.importorskip("distributed", reason="needs the extra `cluster`: pip install 'starling-swarm[cluster]'")
    with pytest.raises(ConfigError, match=r"no dask scheduler answers at 'tcp://127\.0\.0\.1:1'"), executors.cluster("tcp://127.0.0.1:1"):
        pass
