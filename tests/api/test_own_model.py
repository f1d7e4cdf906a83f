"""The code of docs/own-model*.md runs unchanged: four whole nodes, simulated in virtual time."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.harness import pages

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("own-model.md", "own-model-adapters.md", "tutorials/lora.md")


def examples():
    """Return (needed package, name of the task's file, its text, the script that follows it) of each example on the pages."""
    for page in PAGES:
        blocks = pages.blocks(DOCS / page)
        shown = [block for block in blocks if block.language == "python" and block.reader != "not-run:"]
        for task, script in zip(shown[::2], shown[1::2], strict=True):
            assert script.info == "script"
            yield pytest.param(task.options or "torch", task.reader, task.text, script.text, id=Path(task.reader).stem)


def write_books(folder):
    folder.mkdir()
    for page in ("operating", "robustness", "simulating", "algorithms"):
        (folder / f"{page}.txt").write_bytes((DOCS / f"{page}.md").read_bytes())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers
@pytest.mark.parametrize(("needs", "file", "text", "script"), list(examples()))
def test_an_example_of_the_pages_runs_and_learns(needs, file, text, script, tmp_path, monkeypatch, capsys):
    for package in needs.split(","):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'starling-swarm[{package}]'")
    assert len(text.splitlines()) <= 40
    (tmp_path / file).write_text(text)
    write_books(tmp_path / "books")
    (tmp_path / "script.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kept = list(sys.path)
    try:
        runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
    finally:
        sys.path[:] = kept
        sys.modules.pop(file.removesuffix(".py"), None)
    figures = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(figures) >= 2
    assert figures[-1] < 0.99 * figures[0]
