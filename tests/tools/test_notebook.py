"""Tutorials as notebooks; tests/real/test_notebooks.py runs their cells."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.records import recorded
from tools import notebook

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted((ROOT / "docs/tutorials").glob("*.md")) if notebook.cells(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_has_all_text_and_code_of_its_page(page):
    made = json.loads(notebook.notebook(page.read_text()))
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    assert code == [each.strip() for each in notebook.cells(page.read_text())]
    assert len(code) >= 3
    for each in code:
        ast.parse(each)
    text = "\n".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert page.read_text().splitlines()[0] in text
    assert "```python" not in text
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


def test_three_tutorials_are_notebooks():
    assert {page.stem for page in PAGES} == {"four-nodes", "recorded-run", "simulate"}


def test_the_command_writes_a_notebook(tmp_path):
    target = tmp_path / "x.ipynb"
    subprocess.run([sys.executable, ROOT / "tools/notebook.py", PAGES[0], target], check=True)
    assert target.read_text() == notebook.notebook(PAGES[0].read_text())


@pytest.mark.slow
def test_a_record_is_read_with_pandas_as_the_tutorial_says(tmp_path, monkeypatch, capsys):
    """All blocks except the demo's, whose records are prepared here; the test below runs the demo."""
    pytest.importorskip("pandas")
    for number in (0, 1):
        recorded(tmp_path / f"my-demo/node-{number}/record.jsonl", number=number, seconds=20)
    monkeypatch.chdir(tmp_path)
    first, *blocks = notebook.cells((ROOT / "docs/tutorials/recorded-run.md").read_text())
    assert "--dir my-demo" in first
    session = {}
    for block in blocks:
        exec(compile(block, "recorded-run.md", "exec"), session)
    printed = capsys.readouterr().out
    assert session["moments"].groupby("node")["round"].max().to_dict() == {"node-0": 20, "node-1": 20}
    assert len(session["events"]) == 2 * 21  # each once
    assert session["curve"]("loss_curve").notna().all()
    assert "committed" in printed
