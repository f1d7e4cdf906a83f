"""A node's figures reach a file or a tracker once each, from a record or a running node; a failing tracker gives one line."""

import csv
import itertools
import sys

import pytest
from msgspec import structs

from starling.node.cli.main import main
from starling.node.node_handle import Attached
from starling.node.status import control
from starling.node.status.scalars import Scalar, scalars
from starling.node.tracking.catalogue import TRACKERS, run_of
from tests.harness.records import at_second, write

RUN = run_of(at_second(1))


@pytest.fixture
def recorded(tmp_path):
    """The directory of a node that has ended, and the content of its record."""
    run = [at_second(second, metric="accuracy") for second in (0, 1, 2, 5)]
    (tmp_path / "n").mkdir()
    write(tmp_path / "n" / "record.jsonl", run)
    return tmp_path / "n", list(scalars(run))


def rows(path):
    with path.open(newline="") as file:
        return [Scalar(tag, int(at), float(time), float(value)) for tag, at, time, value in itertools.islice(csv.reader(file), 1, None)]


def test_every_point_of_a_record_is_exported(recorded, tmp_path, capsys):
    folder, points = recorded
    target = tmp_path / "figures.csv"
    assert main(["track", "csv", str(target), "--dir", str(folder)]) == 0
    assert rows(target) == points
    assert f"wrote {len(points)} points" in capsys.readouterr().err
    assert main(["track", "csv", str(target), "--dir", str(folder)]) == 2
    assert "figures.csv cannot be made: File exists; name another file" in capsys.readouterr().err
    assert rows(target) == points


def test_a_running_node_is_followed_until_its_rounds_are_done(tmp_path, monkeypatch):
    """Or until Ctrl-C, which is no failure; earlier points are written."""
    told = [at_second(1), at_second(3), structs.replace(at_second(4), state="finished"), at_second(9)]
    monkeypatch.setattr(Attached, "running", property(lambda _self: True))
    monkeypatch.setattr(control, "watch", lambda _run_dir: iter(told))
    assert main(["track", "csv", str(tmp_path / "a.csv"), "--dir", str(tmp_path)]) == 0
    assert rows(tmp_path / "a.csv") == list(scalars(told[:3]))

    def interrupted(_run_dir):
        yield told[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "watch", interrupted)
    assert main(["track", "csv", str(tmp_path / "b.csv"), "--dir", str(tmp_path)]) == 0
    assert rows(tmp_path / "b.csv") == list(scalars(told[:1]))


def test_a_tracker_of_one_s_own_is_named_by_its_class(recorded, tmp_path, monkeypatch):
    folder, points = recorded
    (tmp_path / "my_tracker.py").write_text(
        "class Lines:\n"
        "    def __init__(self, target, run):\n        self.file = open(target, 'w'); print(run.peer, file=self.file)\n"
        "    def add(self, point):\n        print(point.tag, file=self.file)\n"
        "    def close(self):\n        self.file.close()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["track", "my_tracker:Lines", "out.txt", "--dir", str(folder)]) == 0
    assert (tmp_path / "out.txt").read_text().split() == [RUN.peer, *(point.tag for point in points)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tensorbord", "x"], "tracker: 'tensorbord' is unknown, choose one of csv, mlflow, tensorboard, wandb; did you mean tensorboard"),
        (["csv", "gone/x.csv"], "gone/x.csv cannot be made: No such file or directory"),
        (["nowhere:Tracker", "x"], "tracker: 'nowhere:Tracker' is not"),
    ],
)
def test_unusable_input_is_reported_in_one_line(recorded, capsys, arguments, words):
    assert main(["track", *arguments, "--dir", str(recorded[0])]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("kind", [kind for kind in TRACKERS.built_in if kind != "csv"])
def test_a_library_that_is_missing_is_named_with_its_extra(kind, recorded, tmp_path, capsys, monkeypatch):
    for name in ("tensorboard.compat.proto.event_pb2", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["track", kind, str(tmp_path / "x"), "--dir", str(recorded[0])]) == 2
    assert capsys.readouterr().err == f"starling: tracker: {kind} is not installed; `pip install 'starling-swarm[{kind}]'`\n"


def test_points_can_be_iterated_in_python(recorded):
    folder, points = recorded
    assert list(scalars(Attached(folder).snapshots())) == points


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_has_the_points_of_a_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'starling-swarm[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
    uri, points = (tmp_path / "runs").as_uri(), list(scalars([at_second(1), at_second(3)]))
    tracker = TRACKERS.build("tracker", "mlflow", {"target": uri, "run": RUN})
    for point in points:
        tracker.add(point)
    tracker.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name(RUN.name).experiment_id])
    assert run.data.tags["swarm"] == RUN.swarm
    found = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in found] == [(p.round, p.value) for p in points if p.tag == "loss"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_wandb_takes_the_points_of_a_run_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'starling-swarm[wandb]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = TRACKERS.build("tracker", "wandb", {"target": "my-project", "run": RUN})
    for point in scalars([at_second(1), at_second(3)]):
        tracker.add(point)
    summary = dict(wandb.run.summary)
    tracker.close()
    assert summary["loss"] == 0.25
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
