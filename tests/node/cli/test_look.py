"""The command line: quick, quiet, exact exit codes; and the commands that only look."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import msgspec
import pytest

from starling.gossip.errors import ConfigError, EngineError, PeerUnreachable
from starling.node.cli import main as cli
from starling.node.cli import progress
from starling.node.cli.main import COMMANDS, main
from starling.node.status import control, final
from starling.node.status.snapshot import PeerStatus, Resources, Transfer, decode, encode
from tests.harness.control_socket import answering
from tests.harness.snapshots import bare, snapshot

ROOT = Path(__file__).parents[3]


@pytest.fixture
def raising(monkeypatch):
    """A command that raises what it is given."""

    def install(error):
        def callback():
            raise error

        monkeypatch.setattr(
            cli.LazyGroup, "get_command", lambda self, context, name: click.Command("run", callback=callback)
        )

    return install


@pytest.mark.slow
@pytest.mark.real
def test_help_answers_at_once_and_imports_nothing_heavy():
    """A command line that thinks before it prints its own help is not used."""
    program = (
        "import sys; from starling.node.cli.main import main; code = main(['--help']); "
        "heavy = {'torch', 'trio', 'libp2p', 'numpy', 'textual', 'rich', 'structlog', 'cryptography'} & set(sys.modules); "
        "print(code, sorted(heavy))"
    )
    best_s = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of processors: others may be busy with something else
        best_s = min(best_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert done.stdout.endswith("0 []\n")
    for name, (_, text) in COMMANDS.items():
        assert name in done.stdout
        assert text.split(".")[0][:30] in done.stdout
    assert best_s < 0.3


def test_every_command_of_the_table_is_where_it_says():
    """The table is text: a renamed function would be noticed only when somebody calls it."""
    for target, _ in COMMANDS.values():
        module, _, attribute = target.partition(":")
        tree = ast.parse((ROOT / "src" / (module.replace(".", "/") + ".py")).read_text())
        assert attribute in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, target


@pytest.mark.parametrize("option", ["--version", "-V", "-v"])
def test_the_version_is_the_package_s(option, capsys):
    assert main([option]) == 0
    assert capsys.readouterr().out.startswith("starling 0.")


@pytest.mark.parametrize("arguments", [["nonsense"], ["status", "--nonsense"], ["status", "a", "b"]])
def test_wrong_usage_exits_with_2_and_says_so_on_standard_error(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "--help`" in said.err
    assert arguments[-1] in said.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("pace.kind: must be steps or clock"), 2, "starling: pace.kind: must be steps or clock\n"),
        (EngineError("the engine died"), 1, "starling: the engine died\n"),
        (PeerUnreachable("12D3", "refused"), 1, "starling: 12D3: refused\n"),
        (control.ControlError("no node"), 1, "starling: no node\n"),
        (BaseExceptionGroup("nursery", [ExceptionGroup("", [ConfigError("a key")])]), 2, "starling: a key\n"),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_code(raising, error, code, said, capsys):
    raising(error)
    assert main(["run"]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()])])
def test_ctrl_c_ends_without_a_traceback(raising, error, capsys):
    raising(error)
    assert main(["run"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_is_not_hidden_behind_an_expected_error(raising):
    raising(ExceptionGroup("nursery", [ConfigError("a key"), AssertionError("a bug")]))
    with pytest.raises(ExceptionGroup):
        main(["run"])


def test_a_command_may_return_its_exit_code(monkeypatch):
    monkeypatch.setattr(
        cli.LazyGroup, "get_command", lambda self, context, name: click.Command("run", callback=lambda: 1)
    )
    assert main(["run"]) == 1


def test_status_where_no_node_ever_was_says_how_to_begin(tmp_path, capsys):
    assert main(["status", "--dir", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("starling: --dir: ")
    assert "starling join" in said.err


def ended(folder, **fields):
    """A run directory as a node leaves it that ended."""
    (folder / "node.toml").touch()
    (folder / "final.json").write_text(final.encode(final.FinalStatus(**fields)))


FINISHED = {
    "ended": "finished",
    "snapshot": snapshot(
        state="finished", round=100, value=0.9563, value_round=100, metric="accuracy", problem="an old one"
    ),
    "model": "model.safetensors",
}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (FINISHED, "finished: 100 rounds, accuracy 0.956; model in {}/model.safetensors"),
        (
            {"ended": "left", "snapshot": snapshot(state="leaving", round=42, value=None)},
            "left after 42 rounds; continue with `starling run --dir {}`",
        ),
        (
            {"ended": "failed", "reason": "the engine died", "snapshot": snapshot(state="failed", round=7, value=0.5)},
            "! failed after 7 rounds, accuracy 0.500: the engine died; see `starling logs --dir {}`",
        ),
    ],
)
def test_status_of_an_ended_node_says_how_it_ended_and_where_its_model_is(fields, line, tmp_path, capsys):
    ended(tmp_path, **fields)
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == line.format(tmp_path)
    assert any(row.startswith("peer") for row in said)


def test_peers_and_json_of_an_ended_node_come_from_its_last_status(tmp_path, capsys):
    ended(tmp_path, **FINISHED)
    assert main(["status", "--dir", str(tmp_path), "--json"]) == 0
    assert decode(capsys.readouterr().out.encode()) == FINISHED["snapshot"]
    assert main(["peers", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("finished: 100 rounds")
    assert "quara03" in said


def test_a_damaged_last_status_is_one_line(tmp_path, capsys):
    (tmp_path / "node.toml").touch()
    (tmp_path / "final.json").write_text("{")
    assert main(["status", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "final.json" in said
    assert "`starling run --dir" in said


def test_a_path_in_a_suggested_command_can_be_pasted(tmp_path, capsys):
    place = tmp_path / "my node"
    place.mkdir()
    (place / "node.toml").touch()
    assert main(["status", "--dir", str(place)]) == 1
    assert f"`starling run --dir '{place}'`" in capsys.readouterr().err


def test_the_directory_may_be_named_without_dir_but_not_twice(tmp_path, capsys):
    assert main(["status", str(tmp_path), "--dir", str(tmp_path / "b")]) == 2
    assert "two directories" in capsys.readouterr().err
    assert main(["status", str(tmp_path), "--dir", str(tmp_path)]) == 2
    assert "holds no node" in capsys.readouterr().err


def test_a_pipe_of_another_encoding_gets_question_marks_not_a_traceback():
    """`starling status > file` under LC_ALL=de_DE.ISO-8859-1."""
    program = "from starling.node.cli.main import main; main(['overlay', 'show', 'ring', '-n', '4'])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout


def test_status_of_a_node_that_does_not_run_says_how_to_start_it(tmp_path, capsys):
    (tmp_path / "node.toml").touch()
    assert main(["status", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr() == (
        "",
        f"starling: no node is running in {tmp_path}; start it with `starling run --dir {tmp_path}`\n",
    )


@pytest.mark.real
def test_status_prints_the_problem_first_and_then_the_figures(tmp_path, capsys):
    with answering(tmp_path, encode(snapshot(problem="no member answers; try `starling peers`"))):
        assert main(["status", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "! no member answers; try `starling peers`"
    text = "\n".join(lines)
    for words in (
        "training", "digits-of-ten (abab", "12D3KooWmyself9", "42/200", "0.934 (round 40)", "0.213", "4, 1 with an edge",
        "80 done, 2 aborted, 1 busy, 3 timed out", "2.4 MB (12 kB/s)", "840 (312/s)", "pet on sticky", "4,810", "2 min 5 s",
    ):  # fmt: skip
        assert words in text
    assert "\x1b" not in text


@pytest.mark.real
@pytest.mark.parametrize(
    ("members", "command"), [(1, "hand on `starling invite --dir {}`"), (4, "see `starling logs --dir {}`")]
)
def test_a_problem_without_a_command_gets_one(members, command, tmp_path, capsys):
    with answering(tmp_path, encode(snapshot(problem="it is quiet here", members=members))):
        main(["status", "--dir", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[0] == f"! it is quiet here; {command.format(tmp_path)}"


COSTS = {
    "resources": Resources(cpu=0.512, memory_bytes=412_000_000, disk_bytes=3_400_000, gpu=0.25, gpu_memory_bytes=2_000_000_000),
    "distance": 0.0123, "paced_per_s": 101.5, "up_limit_bytes_per_s": 1_250_000,
}  # fmt: skip


@pytest.mark.real
def test_status_says_what_the_node_costs_and_how_far_it_is_from_its_peers(tmp_path, capsys):
    with answering(
        tmp_path, encode(snapshot(**COSTS, transfers=(Transfer("12D3KooWxalive01", "model", 52_000_000, 120_000_000),)))
    ):
        assert main(["status", "--dir", str(tmp_path)]) == 0
    said = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert "distance 0.0123 a parameter, to the peers met last" in said
    assert "sent 2.4 MB (12 kB/s of at most 1.2 MB/s)" in said
    assert "received 2.5 MB (13 kB/s)" in said
    assert "local steps 840 (312/s alone, 102/s with the swarm)" in said
    assert "transfers model with …alive01: 43 % of 120 MB" in said
    assert "machine 0.51 cores, 412 MB memory, 3.4 MB disk, GPU 25% busy, GPU memory 2.0 GB" in said


@pytest.mark.real
def test_status_of_a_node_that_does_not_tell_leaves_lines_out(tmp_path, capsys):
    """Missing is no 0."""
    with answering(tmp_path, encode(bare())):
        assert main(["status", "--dir", str(tmp_path)]) == 0
    rows = {row.split()[0] for row in capsys.readouterr().out.splitlines()}
    assert not rows & {"distance", "machine", "privacy"}


@pytest.mark.real
def test_a_long_problem_is_one_line_also_where_no_terminal_is(tmp_path, capsys):
    problem = "word " * 60 + "`starling peers`"
    with answering(tmp_path, encode(snapshot(problem=problem))):
        main(["status", "--dir", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[0] == f"! {problem}"


@pytest.mark.real
@pytest.mark.parametrize(
    ("spent", "line"),
    [
        ({"epsilon": 1.2345, "delta": 1e-5}, "privacy ε 1.234 (δ 1e-05)"),
        ({"delta": 1e-5}, "privacy ε ∞ (δ 1e-05)"),
        ({}, ""),
    ],
)
def test_status_says_what_the_node_s_data_have_cost_and_nothing_where_nothing_is_noised(tmp_path, capsys, spent, line):
    with answering(tmp_path, encode(snapshot(**spent))):
        assert main(["status", "--dir", str(tmp_path)]) == 0
    said = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines() if row.startswith("privacy")]
    assert said == ([line] if line else [])


@pytest.mark.real
def test_status_json_is_the_snapshot_on_one_line(tmp_path, capsys):
    with answering(tmp_path, encode(snapshot(loss=float("nan")))):
        assert main(["status", "--dir", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert decode(out.encode()) == msgspec.structs.replace(snapshot(), loss=None)


@pytest.mark.real
def test_peers_lists_edges_first_with_whole_ids_in_a_pipe(tmp_path, capsys):
    with answering(tmp_path, encode(snapshot())):
        assert main(["peers", "--dir", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    columns = ["peer", "state", "edge", "round", "rtt", "sent", "received", "done", "faults", "seen"]
    assert head.split() == [*columns, "standing", "score", "staleness", "clipped", "contribution"]
    assert [row.split()[0] for row in rows] == ["12D3KooWalive01", "12D3KooWquara03", "12D3KooWunkno02"]
    assert rows[2].split()[3:5] == ["–", "–"]


@pytest.mark.real
def test_peers_says_how_everybody_stands(tmp_path, capsys):
    """State and its end, faults, share of exchanges missed and clipped, contribution; no share before there was an exchange."""
    rows = (
        PeerStatus(
            "12D3KooWfine", "alive", standing="active", score=1.04, staleness=0.126, clipped=0.5, contribution=7.25
        ),
        PeerStatus("12D3KooWliar", "banned", standing="ban", shut_out_s=7000.0, why="equivocation"),
        PeerStatus("12D3KooWgone", "banned", standing="ban"),
        PeerStatus("12D3KooWpals", "alive", trusted=True, score=12.0),
    )
    with answering(tmp_path, encode(snapshot(peers=rows))):
        assert main(["peers", "--dir", str(tmp_path)]) == 0
    *lines, why = capsys.readouterr().out.splitlines()
    assert why == "…ooWliar banned: equivocation"
    told = {line.split()[0]: line.split() for line in lines[1:]}
    assert told["12D3KooWfine"][-5:] == ["active", "1.0", "13%", "50%", "7.2"]
    assert told["12D3KooWliar"][-7:] == ["ban", "1", "h", "0.0", "–", "–", "0.0"]
    assert told["12D3KooWgone"][-5:] == ["ban", "0.0", "–", "–", "0.0"]
    assert told["12D3KooWpals"][-5:] == ["trusted", "12.0", "–", "–", "0.0"]


@pytest.mark.real
def test_peers_says_who_invited_whom_where_members_are_invited(tmp_path, capsys):
    """Who is about to revoke a member's invitation sees who else falls."""
    rows = (
        PeerStatus("12D3KooWfounder", "alive"),
        PeerStatus("12D3KooWmember1", "alive", inviter="12D3KooWfounder"),
        PeerStatus("12D3KooWmember2", "alive", inviter="12D3KooWmember1"),
    )
    with answering(tmp_path, encode(snapshot(peers=rows))):
        assert main(["peers", "--dir", str(tmp_path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("invited by")
    assert [line.split()[-1] for line in lines] == ["–", "…founder", "…member1"]


@pytest.mark.real
def test_inviters_whose_ids_end_alike_are_told_apart(tmp_path, capsys):
    """A stranger can choose how its id ends."""
    inviters = [f"12D3KooW{'x' * 30}{end}strange" for end in "ab"]
    rows = tuple(PeerStatus(f"12D3KooWm{n}", "alive", inviter=inviter) for n, inviter in enumerate(inviters))
    with answering(tmp_path, encode(snapshot(peers=rows))):
        assert main(["peers", "--dir", str(tmp_path)]) == 0
    first, second = (line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:])
    assert first != second


@pytest.mark.real
def test_peers_json_is_all_of_them_and_whose_view_it_is(tmp_path, capsys):
    with answering(tmp_path, encode(snapshot())):
        assert main(["peers", "--dir", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["peer"], said["swarm"]) == (1, "12D3KooWmyself9", "ab" * 16)
    assert [peer["state"] for peer in said["peers"]] == ["alive", "quarantined", "suspect"]


@pytest.mark.real
def test_a_node_without_peers_says_so(tmp_path, capsys):
    with answering(tmp_path, encode(snapshot(peers=()))):
        assert main(["peers", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no peers known yet\n"


@pytest.mark.real
def test_a_refusal_of_the_node_is_an_error_line(tmp_path, capsys):
    with answering(tmp_path, b'{"ok":false,"error":"16 programs watch this node already; close one"}\n'):
        assert main(["status", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "starling: 16 programs watch this node already; close one\n"


@pytest.fixture
def at_a_terminal(monkeypatch):
    """Terminals at both ends, and a record of what would be started."""
    started = []

    def run(command, *, check):
        started.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", run)
    screen = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(
        "starling.node.cli.look.sys", SimpleNamespace(stdin=screen, stdout=screen, executable=sys.executable)
    )
    monkeypatch.setenv("TERM", "xterm-256color")
    return started


@pytest.mark.parametrize(
    ("given", "shown"),
    [([], ["starling-node"]), (["a", "demo"], ["a", "demo"]), (["{}/record.jsonl"], ["{}/record.jsonl"])],
)
def test_the_terminal_ui_is_a_process_that_is_handed_all_paths(given, shown, at_a_terminal, tmp_path):
    """Its exit code is ours."""
    (tmp_path / "record.jsonl").touch()
    assert main(["tui", *(each.format(tmp_path) for each in given)]) == 3
    assert at_a_terminal == [[sys.executable, "-m", "starling.tui", *(each.format(tmp_path) for each in shown)]]


def test_the_terminal_ui_of_a_record_that_is_not_there_is_one_line(at_a_terminal, tmp_path, capsys):
    assert main(["tui", str(tmp_path / "gone.jsonl")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), at_a_terminal) == ("", 1, [])
    for word in ("gone.jsonl", "not there", "`--set record.every_s=1`"):
        assert word in said.err


def test_a_dumb_terminal_is_not_drawn_upon(at_a_terminal, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    assert main(["tui"]) == 2
    assert "`starling status --dir starling-node`" in capsys.readouterr().err
    assert at_a_terminal == []


# --- what takes a while -------------------------------------------------------------------------------------------


def test_who_waits_at_a_terminal_is_told_for_what(monkeypatch, capsys):
    """After a second; the timer is not waited for here."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress.Slow("measuring") as slow:
        slow._timer.cancel()
        slow._show()
    assert "measuring" in capsys.readouterr().err
    slow._show()  # too late: it has ended
    assert capsys.readouterr().err == ""


def test_steps_are_counted_at_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress.Steps(2) as steps:
        steps.begin("first")
        steps.begin("second")
    assert "2/2  second" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "dumb"])
def test_a_pipe_and_a_dumb_terminal_see_no_progress(terminal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "dumb" if terminal else "xterm")
    with progress.Slow("measuring") as slow, progress.Steps(2) as steps:
        steps.begin("first")
        assert slow._timer is None
    assert capsys.readouterr().err == ""


def test_the_terminal_ui_without_a_terminal_names_the_command_to_try(tmp_path, capsys):
    assert main(["tui", str(tmp_path)]) == 2
    assert f"starling status --dir {tmp_path}" in capsys.readouterr().err
