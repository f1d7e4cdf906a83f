"""One run in several frameworks: inputs, and parsing of their output. The frameworks are not installed here."""

import json
import re
import sys

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.world import World
from starling.node.cli.main import main as starling
from tests.harness.processes import ROOT, until_ended

RUNS = ROOT / "benchmarks" / "peers" / "scripts"


def test_the_shared_input_has_every_sample_once_and_a_model(tmp_path):
    world = World(nodes=3)
    world.write(tmp_path / "world.npz")
    held = np.load(tmp_path / "world.npz")
    assert sum(len(held[f"y{shard}"]) for shard in range(3)) == 1437
    assert [held[f"w{number}"].shape for number in range(4)] == [(64, 64), (64,), (10, 64), (10,)]
    assert sum(held[f"w{number}"].nbytes for number in range(4)) == world.bytes_of_parameters() == 19_240
    assert json.loads(held["settings"].tobytes())["nodes"] == 3
    assert held["test_y"].shape == (360,)


def test_runs_read_the_shared_input_without_this_project(tmp_path, monkeypatch):
    """Local steps from the model in the file learn its shard; the scripts' shared code imports nothing of this project."""
    World(nodes=2).write(tmp_path / "world.npz")
    monkeypatch.syspath_prepend(RUNS)
    monkeypatch.delitem(sys.modules, "common", raising=False)
    import common

    given = common.World(str(tmp_path / "world.npz"))
    model, before = given.model(), given.accuracy(given.model())
    optimizer, batches = given.sgd(model), given.batches(0)
    for _ in range(50):
        common.step(model, optimizer, next(batches))
    assert given.accuracy(model) > before + 0.2
    assert not re.search(r"(from|import) starling", "".join(path.read_text() for path in RUNS.glob("*.py")))


def test_every_peer_has_its_script_and_the_version_of_the_page():
    page = (ROOT / "docs" / "comparison.md").read_text()
    others = {name: peer for name, peer in command.PEERS.items() if name != "starling"}
    assert {"byzfl", "flower", "hivemind", "nvflare"} <= {*others}
    for peer in others.values():
        assert (RUNS / peer.script).is_file()
        assert peer.package.partition("==")[2] in page


def test_this_project_s_run_is_a_valid_command(capsys):
    words = command.demo(World(nodes=2, rounds=1))
    assert starling([*words, "--nodes", "1"]) == 2
    assert "--nodes" in capsys.readouterr().err  # all other words are accepted


def test_an_invalid_report_is_an_error_and_the_others_run(monkeypatch, capsys, tmp_path):
    assert command.values_of("hivemind", 'noise\n{"values": [0.5, 0.7]}\n') == [0.5, 0.7]
    assert command.values_of("starling", '{"nodes": [{"value": 0.9}]}') == [0.9]
    with pytest.raises(RuntimeError, match="no report"):
        command.values_of("flower", "Killed")

    def run(name, world):
        if name == "flower":
            raise RuntimeError("no network")
        return command.Outcome(
            peer=name, seed=world.seed, version="1", mean=0.9, least=0.8, bytes_per_node=None, seconds=1.0, cpu_s=1.0, load=(0.0, 0.0)
        )

    monkeypatch.setattr(command, "run", run)
    assert command.main(["flower", "hivemind", "--seeds", "1", "4", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "flower, seed 4: no network" in printed.err
    assert "hivemind 1, seed 1: accuracy 0.900, least 0.800; not counted" in printed.out
    (stored,) = tmp_path.glob("*-peers.json")
    assert [(one["peer"], one["seed"]) for one in json.loads(stored.read_bytes())["runs"]] == [("hivemind", 1), ("hivemind", 4)]
    with pytest.raises(SystemExit):
        command.main(["keras"])


def test_child_processes_end_with_their_run(tmp_path):
    """Otherwise the next framework would run beside the last one's daemon."""
    file = tmp_path / "pid"
    leaves = f"import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, file=open({str(file)!r}, 'w'))"
    output, _ = command.counted([sys.executable, "-c", f"{leaves}; print('done')"], tmp_path)
    assert output == "done\n"
    until_ended(int(file.read_text()), 10.0)
    with pytest.raises(RuntimeError, match="ended with 3"):
        command.counted([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
