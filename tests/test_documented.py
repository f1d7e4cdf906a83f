"""Every command that a page shows is run: here as it stands, or by the test that tests/documented.py names."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.documented import BLOCKS, FAMILIES, LINES, MENTIONS, PAGES, README, ROOT, By, Run, bare, commands, how
from tests.harness.processes import ENVIRONMENT, PATIENCE_S

ALL = list(commands())
DIRECT = sorted({command.line for command in ALL if isinstance(how(command), Run)})
OURS = re.compile(r"^starling ([a-z]+)")
NAMED = sorted(
    {by.test for table in (BLOCKS, LINES, FAMILIES, MENTIONS) for by in table.values() if isinstance(by, By)}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_in_the_table(page):
    """What is missing gets an entry in tests/documented.py: Run if it ends within seconds, else By."""
    here = str(page.relative_to(ROOT))
    assert [command.line for command in ALL if command.page == here and how(command) is None] == []


def test_nothing_is_in_the_table_that_no_page_shows():
    lines, inline = {command.line for command in ALL}, {bare(command.line) for command in ALL if command.inline}
    blocks = {f"{command.page.rpartition('/')[2]}#{command.block}" for command in ALL if command.block}
    assert set(BLOCKS) - blocks == set()
    assert set(LINES) - lines == set()
    assert set(MENTIONS) - inline == set()
    assert {pattern for pattern in FAMILIES if not any(re.fullmatch(pattern, line) for line in lines)} == set()


@pytest.mark.parametrize("test", NAMED)
def test_every_test_that_is_named_is_there(test):
    file, _, function = test.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_the_tests_named_for_our_commands_use_them():
    """By their names at least: an entry that points at just any test is noticed. Tests of blocks read these from the page."""
    for command in ALL:
        entry, ours = how(command), OURS.match(command.line)
        if isinstance(entry, By) and ours and entry not in BLOCKS.values() and not entry.test.startswith(README):
            assert re.search(rf"\b{ours[1]}\b", (ROOT / entry.test.partition("::")[0]).read_text()), command


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("line", DIRECT)
def test_a_command_runs_as_it_stands(line, tmp_path):
    """From a folder in which the examples are where a checkout has them. Whether they come to something is the business of others."""
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    entry = LINES[line]
    typed, into, file = line.partition(" > ")
    for placeholder, word in entry.given.items():
        typed = typed.replace(placeholder, word)
    done = subprocess.run(
        ["bash", "-c", f"set -f; {typed} {entry.smaller}{into}{file}"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout or file
    assert all((tmp_path / made).stat().st_size for made in entry.makes)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["check", "test", "acceptance", "bench", "fuzz", "demo"])
def test_make_knows_how(target):
    """Dry: what it would do, with programs of the virtual environment that are there."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = set(re.findall(r"(?:^|\s)\.venv/bin/([\w-]+)", done.stdout, re.MULTILINE))
    assert used
    assert {program for program in used if shutil.which(program, path=ENVIRONMENT["PATH"]) is None} == set()


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="needs apt")
def test_the_system_packages_are_known_to_apt():
    line = next(command.line for command in ALL if command.block == "system")
    packages = line.partition(" install ")[2].split()
    if "Candidate" not in (
        policy := subprocess.run(["apt-cache", "policy", *packages], capture_output=True, text=True, check=True).stdout
    ):
        pytest.skip("apt has no lists here")
    assert {name for name in packages if not re.search(rf"^{re.escape(name)}:$", policy, re.MULTILINE)} == set()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_starling_tui_opens_in_a_terminal(tmp_path):
    """Where no node runs yet it says so, and q ends it."""
    from tests.harness.tui.terminal import Terminal

    terminal = Terminal([shutil.which("starling", path=ENVIRONMENT["PATH"]), "tui", str(tmp_path / "starling-2")])
    try:
        terminal.shows("no node is running in", timeout_s=PATIENCE_S)
        terminal.run("send-keys", "q")
        terminal.shows("no node is running in", present=False, timeout_s=PATIENCE_S)
    finally:
        terminal.run("kill-server")
