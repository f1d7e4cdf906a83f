"""The command line is quick and quiet and has exact exit codes; commands that only read a node's state."""

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
from starling.node.config.schema import NodeConfig
from starling.node.status import control, final
from starling.node.status.snapshot import PeerStatus, Resources, Transfer, decode, encode
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import refused
from tests.harness.control_socket import answering
from tests.harness.snapshots import bare, snapshot

ROOT = Path(__file__).parents[3]


@pytest.fixture
def raising(monkeypatch):
    """Return a command that raises the given error."""

    def install(error):
        def callback():
            raise error

        monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, context, name: click.Command("run", callback=callback))

    return install


@pytest.mark.slow
@pytest.mark.real
def test_help_answers_at_once_and_imports_nothing_heavy():
    """Help that takes seconds would put users off."""
    program = (
        "import sys; from starling.node.cli.main import main; code = main(['--help']); "
        "heavy = {'torch', 'trio', 'libp2p', 'numpy', 'textual', 'rich', 'cryptography'} & set(sys.modules); "
        "print(code, sorted(heavy))"
    )
    best_s = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # in processor time, since other processes may be busy
        best_s = min(best_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert done.stdout.endswith("0 []\n")
    for name, (_, text) in COMMANDS.items():
        assert name in done.stdout
        assert text.split(".")[0][:30] in done.stdout
    assert best_s < 0.3


def test_every_command_of_the_table_can_be_imported():
    """The table names functions as text, so a renamed function would be noticed only when it is called."""
    for target, _ in COMMANDS.values():
        module, _, attribute = target.partition(":")
        tree = ast.parse((ROOT / "node" / "cli" / (module.replace(".", "/") + ".py")).read_text())
        assert attribute in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, target


@pytest.mark.parametrize("option", ["--version", "-V", "-v"])
def test_the_version_is_the_package_s(option, capsys):
    assert main([option]) == 0
    assert capsys.readouterr().out.startswith("starling 0.")


@pytest.mark.parametrize("arguments", [["nonsense"], ["status", "--nonsense"], ["status", "a", "b"]])
def test_wrong_usage_exits_with_2_and_says_so_on_standard_error(arguments, capsys):
    refused(capsys, arguments, "--help`", arguments[-1])


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


@pytest.mark.real
def test_a_full_disk_below_standard_output_is_one_line():
    program = [sys.executable, "-m", "starling.node.cli.main", "config", "show"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "starling: standard output or a file cannot be written: No space left on device; look with `df -h`\n"


@pytest.mark.parametrize(("name", "arguments", "code"), [("stdin", ["join", "-"], 2), ("stdout", ["status"], 0), ("stderr", ["status"], 0)])
def test_a_closed_standard_stream_is_an_empty_one(name, arguments, code, tmp_path, monkeypatch):
    """As `starling status >&-` and services start it: Python has no such stream then."""
    place = RunDir.create(tmp_path)
    place.write_config(NodeConfig())
    place.keep_final(final.FinalStatus(ended="left", snapshot=snapshot()))
    monkeypatch.setattr(sys, name, None)
    assert main([*arguments, "--dir", str(tmp_path)]) == code
    getattr(sys, name).close()


def test_another_error_of_the_system_is_not_hidden(raising):
    raising(OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        main(["run"])


def test_a_command_may_return_its_exit_code(monkeypatch):
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, context, name: click.Command("run", callback=lambda: 1))
    assert main(["run"]) == 1


def test_status_in_an_unused_directory_says_how_to_begin(tmp_path, capsys):
    refused(capsys, ["status", "--dir", tmp_path], "starling: --dir: ", "starling join")


@pytest.fixture
def shown(tmp_path, capsys):
    """Return what a command prints about a node that answers with a snapshot."""

    def ask(command, *options, **status):
        with answering(tmp_path, encode(snapshot(**status))):
            assert main([command, "--dir", str(tmp_path), *options]) == 0
        (tmp_path / control.SOCKET_NAME).unlink()
        return capsys.readouterr().out

    return ask


def ended(folder, **fields):
    """A run directory as a node leaves it when it ends."""
    (folder / "node.toml").touch()
    (folder / "final.json").write_text(final.encode(final.FinalStatus(**fields)))


FINISHED = {
    "ended": "finished",
    "snapshot": snapshot(state="finished", round=100, value=0.9563, value_round=100, metric="accuracy", problem="an old one"),
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
            {"ended": "left", "snapshot": snapshot(state="leaving", round=1, value=None, task="script")},
            "left after 1 round; continue by running the script again",
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
    refused(capsys, ["status", tmp_path], "final.json", "`starling run --dir", code=1)


def test_a_path_in_a_suggested_command_can_be_pasted(tmp_path, capsys):
    place = tmp_path / "my node"
    place.mkdir()
    (place / "node.toml").touch()
    refused(capsys, ["status", "--dir", place], f"`starling run --dir '{place}'`", code=1)


def test_the_directory_may_be_named_without_dir_but_not_twice(tmp_path, capsys):
    refused(capsys, ["status", tmp_path, "--dir", tmp_path / "b"], "two directories")
    refused(capsys, ["status", tmp_path, "--dir", tmp_path], "holds no node")


def test_characters_outside_a_pipe_s_encoding_become_question_marks():
    """`starling status > file` under LC_ALL=de_DE.ISO-8859-1."""
    program = "from starling.node.cli.main import main; main(['overlay', 'show', 'ring', '-n', '4'])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout


def test_status_of_a_node_that_does_not_run_says_how_to_start_it(tmp_path, capsys):
    (tmp_path / "node.toml").touch()
    line = f"starling: no node is running in {tmp_path}; start it with `starling run --dir {tmp_path}`\n"
    assert refused(capsys, ["status", "--dir", tmp_path], code=1) == line


@pytest.mark.real
def test_status_prints_the_problem_first_and_then_the_figures(shown, tmp_path):
    text = shown("status", problem="no member answers; try `starling peers`")
    assert text.splitlines()[0] == f"! no member answers; try `starling peers --dir {tmp_path}`"
    for words in (
        "training",
        "digits-of-ten (abab",
        "12D3KooWmyself9",
        "42/200",
        "0.934 (round 40)",
        "0.213",
        "4, 1 with an edge",
        "80 done, 2 aborted, 1 busy, 3 timed out",
        "2.4 MB (12 kB/s)",
        "840 (312/s)",
        "pet on sticky",
        "4,810",
        "2 min 5 s",
    ):
        assert words in text
    assert "\x1b" not in text


LONG = "word " * 60 + "`starling peers`"


@pytest.mark.real
@pytest.mark.parametrize(
    ("problem", "members", "line"),
    [
        ("it is quiet", 1, "! it is quiet; hand on `starling invite --dir {}`"),
        ("it is quiet", 4, "! it is quiet; see `starling logs --dir {}`"),
        (LONG, 4, f"! {LONG}".replace("peers", "peers --dir {}")),
        ("look at it with `starling task check`", 4, "! look at it with `starling task check`"),
    ],
)
def test_a_problem_is_one_line_and_one_without_a_command_gets_one(problem, members, line, tmp_path, shown):
    """Without a terminal too."""
    assert shown("status", problem=problem, members=members).splitlines()[0] == line.format(tmp_path)


COSTS = {
    "resources": Resources(cpu=0.512, memory_bytes=412_000_000, disk_bytes=3_400_000, gpu=0.25, gpu_memory_bytes=2_000_000_000, threads=2),
    "distance": 0.0123,
    "paced_per_s": 101.5,
    "up_limit_bytes_per_s": 1_250_000,
    "transfers": (Transfer("12D3KooWxalive01", "model", 52_000_000, 120_000_000),),
    "behind": 3,
}


@pytest.mark.real
@pytest.mark.parametrize(
    ("status", "rows"),
    [
        (
            COSTS,
            [
                "distance 0.0123 a parameter, to the peers met last",
                "sent 2.4 MB (12 kB/s of at most 1.2 MB/s)",
                "received 2.5 MB (13 kB/s)",
                "local steps 840 (312/s computing, 102/s with waiting)",
                "pace 3 rounds behind others",
                "transfers model with …alive01: 43 % of 120 MB",
                "machine 0.51 cores, 2 threads, 412 MB memory, 3.4 MB disk, GPU 25% busy, GPU memory 2.0 GB",
            ],
        ),
        ({"epsilon": 1.2345, "delta": 1e-5}, ["privacy ε 1.234 (δ 1e-05)"]),
        ({"delta": 1e-5}, ["privacy ε ∞ (δ 1e-05)"]),
        ({"agreed": (("unprotected", "mix.defended = false: …"),)}, ["unprotected mix.defended = false: …"]),
    ],
)
def test_status_says_what_the_node_costs_and_how_far_it_is_from_its_peers(status, rows, shown):
    said = [" ".join(row.split()) for row in shown("status", **status).splitlines()]
    assert set(rows) <= set(said)


@pytest.mark.real
def test_status_leaves_out_lines_whose_figures_are_missing(tmp_path, capsys):
    """A missing figure is not shown as 0."""
    with answering(tmp_path, encode(bare())):
        assert main(["status", "--dir", str(tmp_path)]) == 0
    rows = {row.split()[0] for row in capsys.readouterr().out.splitlines()}
    assert not rows & {"distance", "machine", "privacy", "transfers", "unprotected"}


@pytest.mark.real
def test_json_is_the_snapshot_or_its_peers_on_one_line(shown):
    out = shown("status", "--json", loss=float("nan"))
    assert out.count("\n") == 1
    assert decode(out.encode()) == msgspec.structs.replace(snapshot(), loss=None)


@pytest.mark.real
def test_peers_json_lists_all_peers_and_the_observing_node(shown):
    said = json.loads(shown("peers", "--json"))
    assert (said["version"], said["peer"], said["swarm"]) == (1, "12D3KooWmyself9", "ab" * 16)
    assert [peer["state"] for peer in said["peers"]] == ["alive", "quarantined", "suspect"]


@pytest.mark.real
def test_peers_lists_edges_first_with_whole_ids_in_a_pipe(shown):
    head, *rows = shown("peers").splitlines()
    columns = ["peer", "state", "edge", "round", "rtt", "sent", "received", "done", "faults", "seen"]
    assert head.split() == [*columns, "standing", "score", "staleness", "clipped", "contribution"]
    assert [row.split()[0] for row in rows] == ["12D3KooWalive01", "12D3KooWquara03", "12D3KooWunkno02"]
    assert rows[2].split()[3:5] == ["–", "–"]
    assert shown("peers", peers=()) == "no peers known yet\n"


@pytest.mark.real
def test_peers_shows_the_standing_of_each(shown):
    """State and its end, faults, share of exchanges missed and clipped, contribution; no share before the first exchange."""
    rows = (
        PeerStatus("12D3KooWfine", "alive", standing="active", score=1.04, staleness=0.126, clipped=0.5, contribution=7.25),
        PeerStatus("12D3KooWevil", "banned", standing="ban", shut_out_s=7000.0, why="equivocation"),
        PeerStatus("12D3KooWgone", "banned", standing="ban"),
        PeerStatus("12D3KooWpals", "alive", trusted=True, score=12.0),
    )
    *lines, why = shown("peers", peers=rows).splitlines()
    assert why == "…ooWevil banned: equivocation"
    standing = {line.split()[0]: " ".join(line.split()) for line in lines[1:]}
    assert standing["12D3KooWfine"].endswith(" active 1.0 13% 50% 7.2")
    assert standing["12D3KooWevil"].endswith(" ban 1 h 0.0 – – 0.0")
    assert standing["12D3KooWgone"].endswith(" ban 0.0 – – 0.0")
    assert standing["12D3KooWpals"].endswith(" trusted 12.0 – – 0.0")


@pytest.mark.real
def test_peers_shows_the_inviter_of_each_where_members_are_invited(shown):
    """The owner sees which other peers a revocation removes; ids are shown whole, since anyone can choose how an id ends."""
    invited = {"12D3KooWcreator": "", "12D3KooWmember1": "12D3KooWcreator", "12D3KooWmember2": "12D3KooWmember1"}
    head, *lines = shown("peers", peers=tuple(_rows(invited))).splitlines()
    assert head.endswith("invited by")
    assert [line.split()[-1] for line in lines] == ["–", "…creator", "…member1"]
    alike = {f"12D3KooWm{n}": f"12D3KooW{'x' * 30}{end}strange" for n, end in enumerate("ab")}
    first, second = (line.split()[-1] for line in shown("peers", peers=tuple(_rows(alike))).splitlines()[1:])
    assert first != second


def _rows(invited):
    return [PeerStatus(peer, "alive", inviter=inviter) for peer, inviter in invited.items()]


@pytest.mark.real
def test_a_refusal_of_the_node_is_an_error_line(tmp_path, capsys):
    with answering(tmp_path, b'{"ok":false,"error":"16 programs watch this node already; close one"}\n'):
        refused(capsys, ["status", "--dir", tmp_path], "starling: 16 programs watch this node already; close one", code=1)


@pytest.fixture
def at_a_terminal(monkeypatch):
    """Pretend that both ends are terminals, and record which program this process would become."""
    started = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    screen = SimpleNamespace(isatty=lambda: True, flush=lambda: None)
    monkeypatch.setattr("starling.node.cli.inspect_node.sys", SimpleNamespace(stdin=screen, stdout=screen, executable=sys.executable))
    monkeypatch.setenv("TERM", "xterm-256color")
    return started


@pytest.mark.parametrize(
    ("given", "shown"), [([], ["starling-node"]), (["a", "demo"], ["a", "demo"]), (["{}/record.jsonl"], ["{}/record.jsonl"])]
)
def test_the_process_becomes_the_terminal_ui_of_all_paths(given, shown, at_a_terminal, here):
    (here / "record.jsonl").touch()
    for place in ("starling-node", "a", "demo/node-0"):
        (here / place).mkdir(parents=True)
        (here / place / "node.toml").touch()
    assert main(["tui", *(each.format(here) for each in given)]) == 0
    assert at_a_terminal == [[sys.executable, "-m", "starling.tui", *(each.format(here) for each in shown)]]


def test_the_terminal_ui_of_a_record_that_is_not_there_is_one_line(at_a_terminal, tmp_path, capsys):
    refused(capsys, ["tui", tmp_path / "gone.jsonl"], "gone.jsonl", "not there", "`--set record.every_s=1`")
    assert at_a_terminal == []


def test_a_dumb_terminal_is_not_drawn_upon(at_a_terminal, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    refused(capsys, ["tui"], "`starling status --dir starling-node`")
    assert at_a_terminal == []


class AtOnce(SimpleNamespace):
    """A timer that fires as soon as it is started."""

    ident = None

    def start(self):
        self.show()

    def cancel(self):
        pass


@pytest.mark.parametrize(("lively", "term", "shown"), [(True, "xterm-256color", True), (False, "xterm", False), (True, "dumb", False)])
def test_progress_is_shown_at_a_terminal_and_not_in_a_pipe(lively, term, shown, monkeypatch, capsys):
    """For work that takes more than a second, and for counted steps."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: lively, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(progress.threading, "Timer", lambda after_s, show: AtOnce(show=show))
    with progress.slow("measuring"):
        pass
    assert ("measuring" in capsys.readouterr().err) == shown
    with progress.on_stderr(progress.Display) as display:
        display.show(0.5, "2/2  second")
    assert ("2/2  second" in capsys.readouterr().err) == shown


def test_short_work_shows_no_progress(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress.slow("measuring"):
        pass
    assert capsys.readouterr().err == ""


def test_the_terminal_ui_without_a_terminal_names_the_command_to_try(tmp_path, capsys):
    refused(capsys, ["tui", tmp_path], f"starling status --dir {tmp_path}")


@pytest.mark.parametrize("name", ["record.jsonl", "gone.jsonl"])
def test_the_web_page_refuses_a_record_and_names_the_terminal_ui(name, tmp_path, capsys):
    (tmp_path / "record.jsonl").touch()
    refused(capsys, ["web", tmp_path / name], "no run directory", f"`starling tui {tmp_path / name}`")


def test_a_port_of_the_page_is_a_number_in_range(tmp_path, capsys):
    refused(capsys, ["web", "--port", "65536", tmp_path], "--port", "65535")
