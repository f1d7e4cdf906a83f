"""A recorded run is exported to TensorBoard: every point once, with its round and time."""

import subprocess
import sys

import pytest
from msgspec import structs

from starling.node.status.record import line
from starling.node.status.scalars import Scalar, scalars
from tests.harness.records import at_second, write
from tests.harness.tui.terminal import ROOT
from tools.tensorboard_export import main


def test_every_point_of_a_curve_is_reported_once():
    run = [at_second(second, metric="accuracy") for second in (0, 3, 4, 9)]
    found = list(scalars(run))
    assert [each.round for each in found if each.tag == "loss"] == list(range(10))
    assert [each.round for each in found if each.tag == "evaluation/accuracy"] == [0, 5]
    assert [each.round for each in found if each.tag == "swarm/members"] == [0, 3, 4, 9]
    assert Scalar("loss", 3, 1e9 + 3, 0.25) in found


def test_unknown_figures_make_no_chart_and_a_round_one_point():
    found = list(scalars([at_second(1), structs.replace(at_second(1), time_s=1e9 + 9)]))
    assert not any(each.tag.startswith("resources/") for each in found)
    assert sum(each.tag == "exchanges/committed" for each in found) == 1


def test_a_restarted_node_restarts_its_curves():
    found = list(scalars([at_second(3), structs.replace(at_second(1), time_s=1e9 + 100)]))
    assert [each.round for each in found if each.tag == "loss"] == [0, 1, 2, 3, 0, 1]
    assert max(each.time_s for each in found) == 1e9 + 100


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for name in ("node-0", "node-1"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "record.jsonl", [at_second(second) for second in (0, 1, 2, 5)])
    logdir = tmp_path / "logs"
    assert main([str(tmp_path / "node-0"), str(tmp_path / "node-1" / "record.jsonl"), str(logdir)]) == 0
    assert "points in" in capsys.readouterr().out
    for name in ("node-0", "node-1"):
        found = EventAccumulator(str(logdir / name)).Reload()
        assert [(each.step, each.wall_time) for each in found.Scalars("loss")] == [(n, 1e9 + n) for n in range(6)]
        assert found.Scalars("loss")[1].value == pytest.approx(0.5)


def test_a_file_that_is_no_record_gives_one_line(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    (tmp_path / "a.jsonl").write_bytes(b"hello\n")
    assert main([str(tmp_path / "a.jsonl"), str(tmp_path / "logs")]) == 2
    assert main([str(tmp_path), str(tmp_path / "logs")]) == 2
    (tmp_path / "b.jsonl").write_bytes(line(None, at_second(1)))
    (tmp_path / "taken").touch()
    assert main([str(tmp_path / "b.jsonl"), str(tmp_path / "taken" / "logs")]) == 1
    found = capsys.readouterr().err.splitlines()
    assert len(found) == 3
    assert all(text.startswith("starling: ") for text in found)


def test_without_the_extra_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    write(tmp_path / "record.jsonl", [at_second(0)])
    assert main([str(tmp_path), str(tmp_path / "logs")]) == 1
    (found,) = capsys.readouterr().err.splitlines()
    assert "pip install 'starling-swarm[tensorboard]'" in found


@pytest.mark.slow
def test_its_help_needs_no_optional_packages():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "tensorboard_export.py"), "--help"], capture_output=True, text=True, check=True
    )
    assert "RECORD" in done.stdout
