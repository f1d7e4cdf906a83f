"""Commands that pages show are read from the pages. How a block of commands is tested, its info string says:

    ```bash run OPTIONS    every line is run as it stands; OPTIONS are added to `starling simulate`, for a shorter run
    ```bash NAME           a test reads the lines by that name
    ```bash type           typed by tests/real/test_typed.py, which says more
    ```bash gallery        run by tools/gallery.py, as it stands, with --json; a figure outside what its page accepts is a failure
    ```bash not-run: WHY   each command of ours exists with its options and settings (tests/real/test_readme.py), but is not run

Blocks in Python and TOML have such a string too; `text` is for what is printed or drawn.

Commands that only print (QUICK) are run also where they stand between words. A command stands in no other kind of block.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.schema import Manifest
from starling.node.simulate import executors, rules, sweep
from tests.harness import pages
from tests.harness.pages import PAGES
from tests.harness.processes import ENVIRONMENT, PATIENCE_S, ROOT
from tests.harness.programs import needs
from tests.harness.tui.terminal import Terminal

PROGRAMS = "starling|python|pytest|pip|make|docker|docker-compose|kubectl|git|curl|sudo|export|source"
INLINE = re.compile(r"`(starling [^`]+)`")
QUICK = re.compile(r"starling (?:config show|manifest (?:show|check)|overlay \w+|examples|help|\w+ --help)\b")
GIVEN = {"KIND": "torus", "MANIFEST.toml": "examples/digits.toml", "…": "ring,base_k"}  # placeholders that a reader replaces
NOT_ALONE = re.compile(r"^starling (?:overlay|manifest|manifest check|overlay show)$|--dir")  # commands that need more than the page shows


def to_run() -> Iterator[tuple[str, str]]:
    """Return (command as shown, options for a shorter run) of all pages."""
    for page in PAGES:
        for block in pages.blocks(page, "run"):
            for line in block.lines:
                yield line, block.options if line.startswith("starling simulate") else ""
        for found in INLINE.finditer(pages.prose(page)):
            line = " ".join(found[1].split())
            if QUICK.match(line) and not NOT_ALONE.search(line):
                yield line, ""


COMMANDS = sorted(set(to_run()))


class Here(ThreadPoolExecutor):
    """Executes the runs of a sweep one after the other in this process."""

    def __init__(self, jobs: int, threads: int) -> None:
        super().__init__(1)

    def reports(self) -> tuple[()]:
        return ()


def test_pages_have_commands_to_run():
    """Otherwise a change of the markup could leave this file without tests."""
    assert len(COMMANDS) >= 20
    assert sum(line.startswith("starling simulate") for line, _ in COMMANDS) >= 8


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_named_block_is_read_by_a_test(page):
    """A test that names the page uses the block's name."""
    names = {block.info for block in pages.blocks(page) if block.language == "bash" and block.info}
    for name in {name for name in names if name.split()[0] not in {"run", "type", "not-run:"}}:
        readers = [
            path
            for path in (ROOT / "tests").rglob("*.py")
            if f'"{name}"' in (text := path.read_text()) and (page.name in text or page.name == "README.md")
        ]
        assert readers, f"no test reads the block {name!r} of {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_block_is_executed_or_says_why_not(page):
    """Its info string names what runs it, or has `not-run:` and a reason."""
    for block in pages.blocks(page):
        assert block.language, f"no language: {block.text[:80]!r}; `text` if nobody types it"
        assert block.info or block.language in ("text", "math"), f"neither run nor marked: {block.text[:80]!r}"
        assert not block.info.startswith("not-run") or re.fullmatch(r"not-run: \S.{5,}", block.info), block.info
    assert re.findall(rf"^ +(?:```.*|(?:{PROGRAMS}) .+)$", pages.prose(page), re.MULTILINE) == [], "not in a block"


def test_toml_blocks_are_accepted_files(tmp_path):
    """`scenario` and `manifest`; a package's pyproject.toml is read by tests/node/test_plugins.py."""
    found = [block for page in PAGES for block in pages.blocks(page) if block.language == "toml"]
    assert {block.reader for block in found} <= {"scenario", "manifest", "package", "type"}
    for number, block in enumerate(found):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        if block.info == "scenario":
            rules.check(sweep.read(path, [])[1])
        elif block.info == "manifest":
            manifests.check(presets.load(Manifest, path, []))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("line", "options"), COMMANDS)
def test_a_command_runs_as_it_stands(line, options, tmp_path, monkeypatch, capsys):
    """In a folder with the examples of a checkout. Its results are tested elsewhere.

    In this process, since imports of a new one take longer than most of the commands.
    """
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    typed = line.partition(" > ")[0]
    if "--jobs" not in typed:
        monkeypatch.setattr(executors, "Processes", Here)
    program, *words = [GIVEN.get(word, word) for word in f"{typed} {options}".split()]
    code = main(words)
    said = capsys.readouterr()
    assert (program, code) == ("starling", 0), said.err
    assert said.out or " check " in typed
    written = re.findall(r"--(?:csv|plot) (\S+)", typed)
    assert all((tmp_path / made).stat().st_size for made in written)


@needs("make")
@pytest.mark.parametrize(
    "target", ["check", "test", "acceptance", "bench", "fuzz", "demo", "mutants", "dist", "libraries", "docs", "gallery", "changelog"]
)
def test_make_targets_on_pages_exist(target):
    """A dry run: make prints what it would do, with existing programs of the virtual environment."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = set(re.findall(r"(?:^|\s)\.venv/bin/([\w-]+)", done.stdout, re.MULTILINE))
    assert used
    assert {program for program in used if shutil.which(program, path=ENVIRONMENT["PATH"]) is None} == set()


@pytest.mark.real
@pytest.mark.slow
@needs("tmux")
def test_starling_tui_opens_in_a_terminal(tmp_path):
    """Without a running node it says so, and q ends it."""
    (tmp_path / "starling-2").mkdir()
    (tmp_path / "starling-2" / "node.toml").touch()
    terminal = Terminal([shutil.which("starling", path=ENVIRONMENT["PATH"]), "tui", str(tmp_path / "starling-2")])
    try:
        terminal.shows("no node is running in", timeout_s=PATIENCE_S)
        terminal.run("send-keys", "q")
        terminal.shows("no node is running in", present=False, timeout_s=PATIENCE_S)
    finally:
        terminal.run("kill-server")
