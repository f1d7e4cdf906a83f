"""Every command that takes a node's directory refuses any other directory in one line, and creates nothing in it."""

import sys
from pathlib import Path

import pytest

from starling.node.cli.main import COMMANDS, main

TOO_LONG = "n" * 300
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
COMMAND_LINES = (
    "run",
    "pause",
    "resume",
    "limits",
    "leave",
    "status",
    "status --watch",
    "status --json",
    "peers",
    "logs",
    "logs -f",
    "eval",
    "ask hello",
    "export mine.safetensors",
    "track csv figures.csv",
    "invite",
    "revoke 3",
    f"ban {PEER}",
    f"unban {PEER}",
    f"trust {PEER}",
    "manifest show",
    "manifest show --dir",
    "manifest check",
    "config show --dir",
    "upgrade-check",
    "tui",
    "web",
)
NO_NODE_NEEDED = {"demo", "join", "create", "doctor", "plan", "examples", "task", "simulate", "overlay", "bench", "completion"}
MANIFEST = {"manifest show", "manifest check"}
TAKEN = {
    "my demo": {"tui", "web"},  # these show all nodes of a demo's folder
    "file": {"tui", "upgrade-check"} | MANIFEST,  # these read a record or a manifest
    "missing": MANIFEST,  # these take it for a file's name
}
FOUND = {
    "missing": "missing does not exist",
    "file": "file is a file",
    "empty": "empty holds no node, as there is no node.toml in it",
    "photos": "photos holds no node, as there is no node.toml in it",
    "my demo": "my demo is the folder of a demo; name one of its nodes, as in `starling status --dir 'my demo/node-0'`",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # `track` looks for modules in the current folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("starling.node.cli.inspect_node.is_lively", lambda _: True)
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "beach.jpg").write_bytes(b"")
    (tmp_path / "my demo" / "node-0").mkdir(parents=True)
    return tmp_path


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_directory_without_a_node_gives_one_line_with_a_remedy(line, here, capsys):
    before = everything(here)
    for place, found in FOUND.items():
        if line in TAKEN.get(place, ()):
            continue
        code = main([*line.split(), place])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith(("starling: --dir: ", "starling: DIR: ", "starling: DIR|MANIFEST: "))
        assert found in err
        assert "in `starling status --dir" in err or "`starling join INVITE`" in err
    assert everything(here) == before


@pytest.mark.parametrize("line", ["run", "logs", "config show --dir", "upgrade-check", "tui", "web"])
def test_an_invalid_file_name_gives_one_line(line, here, capsys):
    assert main([*line.split(), TOO_LONG]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be read: File name too long; look with `ls -ld nnn" in err


def test_the_table_names_every_command_that_takes_a_node():
    assert {line.split()[0] for line in COMMAND_LINES} | NO_NODE_NEEDED == set(COMMANDS)


def test_without_a_node_config_show_prints_the_defaults(here, capsys):
    """Only without a directory: for a directory that was named, defaults would mislead."""
    assert main(["config", "show", "node"]) == 0
    assert "(defaults)" in capsys.readouterr().out
    Path("starling-node").mkdir()
    assert main(["config", "show", "node"]) == 0
    assert "(defaults)" in capsys.readouterr().out
