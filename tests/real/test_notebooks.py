"""The cells of tutorials run in order in one session: with small settings in every run, unchanged nightly.

Those of recorded-run are run by tests/tools/test_notebook.py, with an existing record.
"""

import subprocess
import sys

import psutil
import pytest

from tests.harness.processes import ENVIRONMENT, ROOT
from tools import notebook

pytestmark = [pytest.mark.real, pytest.mark.slow]

PAGES = {path.stem: code for path in sorted((ROOT / "docs/tutorials").glob("*.md")) if (code := notebook.cells(path.read_text()))}


def run(code, folder):
    """Run as one script in a separate process; return its output. It prints nothing on standard error and leaves no process behind."""
    (folder / "session.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "session.py"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=280
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not [each for each in psutil.process_iter(["cwd"]) if (each.info["cwd"] or "").startswith(str(folder))]
    return done.stdout


def with_smaller(name, settings):
    """Return the code of a page with some settings replaced."""
    code = "\n".join(PAGES[name])
    for shown, smaller in settings.items():
        assert code.count(shown) == 1, shown
        code = code.replace(shown, smaller)
    return code


@pytest.mark.usefixtures("warm_engines")
def test_four_nodes_train_a_model_with_fewer_rounds(tmp_path):
    printed = run(with_smaller("four-nodes", {"rounds=40": "rounds=10"}), tmp_path).splitlines()
    assert any(line.startswith("finished  round  10") for line in printed)
    assert printed[-1].endswith("bytes sent")


def test_algorithms_are_compared_over_fewer_rounds(capsys):
    """In this process, since importing torch takes longer than the runs."""
    code = with_smaller("simulate", {"rounds=60": "rounds=20", '"pace.evaluate_every": 20': '"pace.evaluate_every": 10'})
    exec(compile(code, "simulate.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["round", "round", "round", "dsgd", "pet", "mean", "{'meetings':"]


@pytest.mark.acceptance
@pytest.mark.parametrize("name", PAGES)
def test_unchanged_cells_run(name, tmp_path):
    assert len(run("\n".join(PAGES[name]), tmp_path).splitlines()) >= 5
