"""Training scripts as members, in separate processes over loopback, as docs/your-own-loop.md shows."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from starling.node.node_handle import Attached
from starling.node.status.final import load
from tests.harness import pages
from tests.harness.processes import ROOT

pytestmark = pytest.mark.usefixtures("warm_engines")

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "your-own-loop.md"
WAIT_S = 120.0
WORKERS_S = 600.0  # each epoch has two workers, which import torch anew where they are spawned
JOIN = 'starling.Swarm("second", sys.argv[1], model=model, optimizer=optimizer)'
LOCAL = 'listen="/ip4/127.0.0.1/tcp/0", config={"lan": False, "linger_s": 1}'


def text(name="first.py", page=PAGE, **changed):
    """Return the page's script, on loopback."""
    shown = pages.block(page, name).text
    for old, new in changed.items():
        assert old in shown, old
        shown = shown.replace(old, new)
    return "import sys\n" + shown.replace("local_steps=10)", f"local_steps=10, {LOCAL})")


def joining(script):
    """Return the same script as an invited member."""
    created = re.search(r"starling\.Swarm\.create\(.*?\) as swarm", script, re.DOTALL).group()
    second = script.replace(created, f'starling.Swarm("second", sys.argv[1], model=model, optimizer=optimizer, {LOCAL}) as swarm')
    return re.sub(r"^ +print\(swarm\.invite\(\), flush=True\)\n", "", second, flags=re.MULTILINE)


def started(folder, name, script, *arguments):
    (folder / name).write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, name, *arguments], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process):
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out


def gone(folder):
    """Return whether no process of a node in this folder is left."""
    return not [each for each in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(each.info["cmdline"] or ())]


@pytest.mark.slow
def test_scripts_of_both_pages_train_one_model(tmp_path):
    first = started(tmp_path, "first.py", text(page=README))
    invite = first.stdout.readline().strip()
    assert invite.startswith("starling1:")
    script = text(**{"nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))": "nn.Linear(8, 1)"})
    second = started(tmp_path, "second.py", joining(script), invite)
    ended(second)
    ended(first)
    finals = [load(tmp_path / name) for name in ("first", "second")]
    assert [each.ended for each in finals] == ["finished", "finished"]
    assert [each.snapshot.round for each in finals] == [30, 30]
    assert finals[0].snapshot.local_steps == 300
    assert gone(tmp_path)


@pytest.mark.slow
def test_a_killed_script_resumes_and_leaves_no_process(tmp_path):
    """On SIGKILL the node leaves in order; the restarted script is the same member, in a later round."""
    script = text(**{"rounds=30": "rounds=200", "            swarm.step(loss)": "            swarm.step(loss); time.sleep(0.003)"})
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


def test_the_loop_of_the_readme_has_twelve_lines():
    assert len(pages.block(README, "first.py").lines) == 12
    assert 'starling.Swarm("second", invite, model=model, optimizer=optimizer)' in README.read_text()


ALONE = """
import os, sys, time
import torch
from torch import nn
import starling

def main():
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = torch.randn(256, 8)
    y = x.sin().sum(1, keepdim=True)
    swarm = starling.Swarm.create("alone", model=model, optimizer=optimizer, rounds=0, local_steps=5, quorum=1, {LOCAL})
    {LOADER}
    while True:
        for a, b in loader:
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
            swarm.step()
        if swarm.round >= {ROUNDS}:
            print("enough rounds", flush=True)
            {END}

if __name__ == "__main__":
    main()
"""
BATCHES = "loader = [(x[at : at + 32], y[at : at + 32]) for at in range(0, 256, 32)]"


def alone(end, loader=BATCHES, rounds=20):
    given = {"{LOCAL}": LOCAL, "{LOADER}": loader, "{END}": end, "{ROUNDS}": str(rounds)}
    script = ALONE
    for name, text in given.items():
        script = script.replace(name, text)
    return script


def with_workers(start, more=""):
    """Return a loader of 8 batches with two worker processes."""
    return (
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, num_workers=2, "
        f"multiprocessing_context='{start}'{more})"
    )


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("return", 0),
        ("raise ValueError('of the script')", 1),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
    ],
)
def test_a_script_s_node_leaves_in_order_however_the_script_ends(tmp_path, end, code):
    process = started(tmp_path, "alone.py", alone(end))
    assert process.stdout.readline() == "enough rounds\n"
    began = time.monotonic()
    process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    until(lambda: gone(tmp_path))
    assert time.monotonic() - began < 8.0
    assert load(tmp_path / "alone").ended == "left"


@pytest.mark.acceptance
def test_under_nohup_a_hang_up_is_ignored(tmp_path):
    process = started(tmp_path, "alone.py", "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + alone("pass"))
    assert process.stdout.readline() == "enough rounds\n"
    attached = Attached(tmp_path / "alone")
    process.send_signal(signal.SIGHUP)
    reached = attached.status().round
    until(lambda: attached.status().round > reached + 10)
    process.kill()
    process.communicate()
    until(lambda: gone(tmp_path))


@pytest.mark.acceptance
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader_do_not_disturb_a_swarm(tmp_path, start):
    """Twenty epochs, each with new workers: one node, no deadlock."""
    process = started(tmp_path, "alone.py", alone("return", with_workers(start), rounds=20 * 8 // 5))
    out, err = process.communicate(timeout=WORKERS_S)
    assert (process.returncode, out) == (0, "enough rounds\n"), err
    until(lambda: gone(tmp_path))


@pytest.mark.acceptance
def test_workers_that_outlive_a_killed_script_do_not_keep_its_node_alive(tmp_path):
    """They inherit the pipe that shows the node its script, and notice its end only when they look."""
    end = "time.sleep(2.0); os.kill(os.getpid(), 9)"
    process = started(tmp_path, "alone.py", alone(end, with_workers("fork", ", persistent_workers=True")))
    assert process.stdout.readline() == "enough rounds\n"
    assert len(psutil.Process(process.pid).children()) == 3, "a node and two workers"
    process.wait(WAIT_S)
    began = time.monotonic()
    until(lambda: gone(tmp_path))
    assert time.monotonic() - began < 8.0
    assert load(tmp_path / "alone").ended == "left"
    process.communicate(timeout=WAIT_S)  # until the workers too have closed what they inherited


STOPPED = """
import os, signal, sys, time, traceback
from pathlib import Path
import torch
from torch import nn
import starling

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1.0)

class Interrupted(torch.optim.AdamW):
    def step(self, closure=None):
        if Path("in the step").exists():
            Path("in the step").unlink()
            press()
        return super().step(closure)

def cell(swarm):
    while not swarm.finished:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        swarm.step()
        time.sleep({PAUSE})

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = Interrupted(model.parameters(), lr=3e-3)
x = torch.randn(256, 8)
y = x.sin().sum(1, keepdim=True)
swarm = {SWARM}
print(swarm.invite(), flush=True)
while True:
    try:
        cell(swarm)
        break
    except KeyboardInterrupt as stopped:
        print(*[frame.name for frame in traceback.extract_tb(stopped.__traceback__)], flush=True)
swarm.close()
"""


@pytest.mark.acceptance
def test_a_script_can_continue_after_ctrl_c_in_a_step_or_a_wait(tmp_path):
    """Before training, inside the optimizer, and in the wait at a round's end for the other script; the node still answers."""
    given = f"model=model, optimizer=optimizer, {LOCAL}"
    script = STOPPED.replace("{SWARM}", f'starling.Swarm.create("first", rounds=30, local_steps=4, quorum=2, {given})')
    first = started(tmp_path, "first.py", script.replace("{PAUSE}", "0.01"))
    invite = first.stdout.readline().strip()
    node = Attached(tmp_path / "first")
    until(lambda: node.status().state == "waiting")
    time.sleep(1.0)

    def stopped_in(name):
        assert name in first.stdout.readline().split()
        assert node.status().peer

    first.send_signal(signal.SIGINT)
    stopped_in("finished")
    joined = STOPPED.replace("{SWARM}", f'starling.Swarm("second", sys.argv[1], {given})')
    slow = joined.replace("{PAUSE}", "1.0 if Path('slow').exists() else 0.01").replace('"in the step"', '"nowhere"')
    (tmp_path / "slow").touch()
    second = started(tmp_path, "second.py", slow, invite)
    until(lambda: node.status().round >= 1)
    first.send_signal(signal.SIGINT)
    stopped_in("_granted")
    (tmp_path / "in the step").touch()
    stopped_in("press")
    (tmp_path / "slow").unlink()
    assert not ended(first)
    ended(second)
    finals = [load(tmp_path / name) for name in ("first", "second")]
    assert [each.ended for each in finals] == ["finished", "finished"]
    assert [each.snapshot.local_steps for each in finals] == [30 * 4, 30 * 4]
    assert gone(tmp_path)


@pytest.mark.acceptance
def test_a_late_joiner_gets_the_swarms_model_and_trains(tmp_path):
    step = "            swarm.step(loss)"
    waits = f"{step}\n            time.sleep(0.1 if swarm.round > 40 and not Path('joined').exists() else 0.0)"
    script = text(**{"rounds=30": "rounds=120", step: waits, "local_steps=10": "local_steps=10, quorum=1"})
    script = script.replace("import sys\n", "import sys, time\nfrom pathlib import Path\n")
    first = started(tmp_path, "first.py", script)
    invite = first.stdout.readline().strip()
    attached, late = Attached(tmp_path / "first"), Attached(tmp_path / "second")
    until(lambda: attached.running and attached.status().round > 40)
    second = started(tmp_path, "second.py", joining(script), invite)
    until(lambda: late.running and late.status().round > 40)
    (tmp_path / "joined").touch()
    ended(second)
    ended(first)
    finals = [load(tmp_path / name).snapshot for name in ("first", "second")]
    assert [each.round for each in finals] == [120, 120]
    assert 0 < finals[1].local_steps < 900
