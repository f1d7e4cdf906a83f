"""`--help`: commands in groups, a valid example under each, exit codes."""

import re
import shlex
from pathlib import Path

import click
import pytest

from starling.node.cli.main import COMMANDS, EXAMPLES, EXIT_CODES, GROUPS, main, starling
from tests.harness.cli_doubles import leaves, refused

LEAVES = dict(leaves(starling))


def test_every_command_is_in_one_group_and_groups_are_shown_in_order(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    headings = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert headings == ["Options", *GROUPS, "Examples", "Exit codes"]
    assert re.findall(r"^  ([a-z-]+) {2,}[A-Z]", out, re.MULTILINE) == list(COMMANDS)
    for code in EXIT_CODES:
        assert re.search(rf"^  {code} ", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80


def test_every_exit_code_is_on_the_page_with_what_it_means():
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    documented = dict(re.findall(r"^\| (\d[\d, ]*) \| (.*) \|$", page, re.MULTILINE))
    assert list(documented) == [*map(str, EXIT_CODES), "143, 129"]
    for code, text in EXIT_CODES.items():
        assert text.split(";")[0].split(",")[0] in documented[str(code)]


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_s_help_ends_with_examples_of_itself(name, capsys):
    words = name.split("-", 1) if name.split("-")[0] in {"bench", "config", "manifest", "overlay", "task"} else [name]
    assert main([*words, "--help"]) == 0
    _, examples = capsys.readouterr().out.split("\nExamples:\n")
    lines = re.findall(r"^  (\S.*)$", examples, re.MULTILINE)
    assert lines
    assert all(" ".join(["starling", *words]) in line for line in lines)


@pytest.mark.parametrize("line", [line for command in LEAVES.values() for line, _ in command.examples] + [line for line, _ in EXAMPLES])
def test_every_example_is_a_valid_command_line(line):
    """click accepts its names and options; nothing is run."""
    typed = re.search(r"starling [^|>)\"]*", line)[0]
    _, *words = shlex.split(typed)
    command, context = starling, click.Context(starling)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    assert command.make_context("example", words)


@pytest.mark.parametrize(
    ("typed", "same"),
    [(["help"], ["--help"]), (["help", "status"], ["status", "--help"]), (["config", "help", "show"], ["config", "show", "--help"])],
)
def test_help_is_a_command_too(typed, same, capsys):
    assert main(typed) == 0
    said = capsys.readouterr().out
    assert main(same) == 0
    assert said == capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["manifest", "chek"], "`starling manifest check`"),
        (["overlay", "compere"], "`starling overlay compare`"),
        (["bench", "rule"], "`starling bench rules`"),
        (["status", "--drr"], "--dir"),
    ],
)
def test_unknown_subcommands_and_options_get_a_suggestion(typed, meant, capsys):
    said = refused(capsys, typed)
    assert re.search(rf"[Dd]id you mean '?{re.escape(meant)}", said)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stauts", "`starling status`"),
        ("STATUS", "`starling status`"),
        ("peer", "`starling peers`"),
        ("log", "`starling logs`"),
        ("zzz", None),
    ],
)
def test_an_unknown_command_gives_one_line_with_a_suggestion(typed, meant, capsys):
    said = refused(capsys, [typed], f"no such command '{typed}'", meant or "")
    assert ("did you mean" in said) == (meant is not None)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_color_disables_colors(name, value, monkeypatch, capsys):
    """The test asks the console that prints every table; a pipe gets no colors anyway."""
    from starling.node.cli import common

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    common.console().print("word", style="bold red")
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv(name, value)
    common.console().print("word", style="bold red")
    assert capsys.readouterr().out == "word\n"
