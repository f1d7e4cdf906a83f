"""`starling task check`, run as a command."""

import subprocess
import sys
import textwrap

import pytest

from starling.node.cli.main import main

pytestmark = pytest.mark.slow


TASK = textwrap.dedent("""
    from starling.node.tasks.digits import Digits

    class Mine(Digits):
        def loss(self, model, batch):
            print("in the task")
            return super({}, self).loss(model, batch)
""")


def test_a_task_in_this_folder_is_found_and_checked(here, capfd):
    (here / "mine.py").write_text(TASK.format("Mine"))
    assert main(["task", "check", "mine:Mine"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [step, "ok"] for step in ("open", "model", "batch", "step", "score", "export", "reload")
    ]


def test_errors_are_printed_with_their_line_and_exit_2(here, capfd):
    (here / "mine.py").write_text(TASK.format("Yours"))
    assert main(["task", "check", "mine:Mine"]) == 2
    out = capfd.readouterr().out
    assert "open    FAILED" in out
    assert "mine.py, line 7, in loss" in out


def test_missing_data_are_refused_before_a_process_starts(here, capsys):
    assert main(["task", "check", "digits", "--data", "photos"]) == 2
    assert "photos" in capsys.readouterr().err


def test_a_task_that_ends_the_process_is_distinguished_from_one_that_fails(here, capfd):
    (here / "mine.py").write_text("import os\nos._exit(3)\n")
    assert main(["task", "check", "mine:Mine"]) == 1
    assert "exit status 3" in capfd.readouterr().err


@pytest.mark.acceptance
def test_the_process_prints_findings_only(here):
    (here / "mine.py").write_text(TASK.format("Mine"))
    command = [sys.executable, "-P", "-m", "starling.node.engine.task_check", str(here), "mine:Mine"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('[{"step"')
    assert "in the task" in done.stderr
