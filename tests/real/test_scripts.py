"""Training scripts as members, in processes of their own over loopback, as docs/your-own-loop.md shows."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from starling.node.attach import Attached
from starling.node.status.final import load
from tests.harness import pages
from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "your-own-loop.md"
WAIT_S = 120.0
JOIN = 'starling.Swarm("second", sys.argv[1], model=model, optimizer=optimizer)'
LOCAL = 'listen="/ip4/127.0.0.1/tcp/0", config={"lan": False, "linger_s": 1}'


def text(name="first.py", **changed):
    """The page's script, on loopback."""
    (shown,) = [block.text for block in pages.blocks(PAGE) if block.reader == name]
    for old, new in changed.items():
        assert old in shown, old
        shown = shown.replace(old, new)
    return "import sys\n" + shown.replace("local_steps=10)", f"local_steps=10, {LOCAL})")


def joining(script):
    """The same script as a member that was invited."""
    created = re.search(r"starling\.Swarm\.create\(.*?\) as swarm", script, re.DOTALL).group()
    second = script.replace(
        created, f'starling.Swarm("second", sys.argv[1], model=model, optimizer=optimizer, {LOCAL}) as swarm'
    )
    return second.replace("        print(swarm.invite(), flush=True)\n", "")


def started(folder, name, script, *arguments):
    (folder / name).write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, name, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process):
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out


def gone(folder):
    """Whether no process of a node in this folder is left."""
    return not [
        each for each in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(each.info["cmdline"] or ())
    ]


@pytest.mark.slow
def test_two_scripts_of_the_page_train_one_model(tmp_path):
    script = text()
    first = started(tmp_path, "first.py", script)
    invite = first.stdout.readline().strip()
    assert invite.startswith("starling1:")
    second = started(tmp_path, "second.py", joining(script), invite)
    ended(second)
    ended(first)
    finals = [load(tmp_path / name) for name in ("first", "second")]
    assert [each.ended for each in finals] == ["finished", "finished"]
    assert [each.snapshot.round for each in finals] == [30, 30]
    assert finals[0].snapshot.local_steps == 300
    assert gone(tmp_path)


@pytest.mark.slow
def test_a_script_that_is_killed_goes_on_where_it_was_and_leaves_no_process(tmp_path):
    """SIGKILL: the node leaves in order; the same script again is the same member, in a later round."""
    script = text(
        **{"rounds=30": "rounds=200", "            swarm.step(loss)": "            swarm.step(loss); time.sleep(0.003)"}
    )
    script = script.replace("import sys\n", "import sys, time\n")
    first = started(tmp_path, "first.py", script)
    invite = first.stdout.readline().strip()
    second = started(tmp_path, "second.py", joining(script), invite)
    attached = Attached(tmp_path / "second")
    until(lambda: attached.running and attached.status().round > 10)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    until(lambda: not attached.running)
    reached = attached.status().round
    again = started(tmp_path, "second.py", joining(script), invite)
    until(lambda: attached.running and attached.status().round > reached + 5)
    assert attached.status().peer == attached.last.snapshot.peer if attached.last else True
    for each in (first, again):
        each.send_signal(signal.SIGINT)
    began = time.monotonic()
    for each in (first, again):
        each.communicate(timeout=30)
    assert time.monotonic() - began < 8.0
    until(lambda: gone(tmp_path))


def until(holds):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except Exception:  # noqa: BLE001 - a node that is coming up or going down
            pass
        time.sleep(0.2)
    pytest.fail("it never held")


def test_the_page_shows_what_there_is():
    assert Path(PAGE).exists()
