"""examples/own-loop/notebook.md in a Jupyter kernel: cells are run, repeated, interrupted; the kernel is restarted."""

import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")
jupyter_client = pytest.importorskip("jupyter_client", reason="needs jupyter_client: pip install jupyter_client")

from starling.node.node_handle import Attached  # noqa: E402
from starling.node.status.control import ControlError  # noqa: E402
from starling.node.status.final import load  # noqa: E402
from tests.harness.processes import ENVIRONMENT, ROOT, until  # noqa: E402
from tools import notebook  # noqa: E402

pytestmark = [
    pytest.mark.real,
    pytest.mark.acceptance,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client"),
]

PAGE = ROOT / "examples" / "own-loop" / "notebook.md"
CELL_S = 150.0
LOCAL = '"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 2}'
READ, JOIN, TRAIN, END = range(4)


def cells(**changed):
    """Return the code of the notebook, on loopback."""
    code = notebook.cells(PAGE.read_text())
    code[JOIN] = code[JOIN].replace('"evaluate": accuracy', f'"evaluate": accuracy, {LOCAL}')
    for old, new in changed.items():
        assert any(old in each for each in code), old
        code = [each.replace(old, new) for each in code]
    return code


class Kernel:
    """A notebook that is open in a folder."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=ENVIRONMENT)
        self._meet()

    def _meet(self):
        self._client = self.manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=CELL_S)

    def run(self, code, *, stop_at=None):
        """Run a cell; return its output, and the name of the exception. The stop button is pressed when it prints `stop_at`."""
        said, pressed = [], []

        def hear(message):
            said.append(message["content"].get("text", ""))
            if stop_at is not None and stop_at in "".join(said) and not pressed:
                pressed.append(True)
                self.manager.interrupt_kernel()

        reply = self._client.execute_interactive(code, timeout=CELL_S, output_hook=hear, store_history=False)
        return "".join(said), reply["content"].get("ename")

    def restart(self):
        """Restart, losing all memory."""
        self._client.stop_channels()
        self.manager.restart_kernel(now=True)
        self._meet()

    def close(self):
        self._client.stop_channels()
        self.manager.shutdown_kernel()


@contextmanager
def opened(folder):
    kernel = Kernel(folder)
    try:
        yield kernel
    finally:
        kernel.close()


def gone(folder):
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return not any(str(folder) in line for line in lines)


def round_of(folder):
    with suppress(ControlError):
        return Attached(folder / "notebook-node").status().round
    return -1


def test_a_notebook_and_a_script_train_one_model(tmp_path):
    """Cells are run, repeated, and interrupted; both members know all digits in the end."""
    other = tmp_path / "other"
    other.mkdir()
    of_script = cells(
        **{
            "own[1] < 5": "own[1] >= 5",
            "quorum=1": "quorum=2",
            "print(swarm.invite())": "print(swarm.invite(), flush=True)",
            "optimizer.zero_grad()": "optimizer.zero_grad()\n    time.sleep(0.1 if Path('slow').exists() else 0.0)",
        }
    )
    (other / "other.py").write_text("\n".join(["import time", *of_script]))
    (other / "slow").touch()
    script = subprocess.Popen([sys.executable, "other.py"], cwd=other, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    try:
        code, folder = cells(), tmp_path / "notebook"
        folder.mkdir()
        (folder / "invite.txt").write_text(script.stdout.readline())
        with opened(folder) as kernel:
            for each in code[:TRAIN]:
                assert kernel.run(each)[1] is None
            assert kernel.run(code[TRAIN], stop_at="round 10")[1] == "KeyboardInterrupt"
            stopped = round_of(other)
            until("the other waits for who has stopped", lambda: round_of(other) > stopped + 3)
            assert kernel.run(code[JOIN])[1] is None  # again
            (other / "slow").unlink()
            printed, raised = kernel.run(code[TRAIN])
            assert raised is None, printed
            assert "round 10  accuracy" not in printed
            assert "round 60" in printed
            printed, raised = kernel.run(code[END])
            assert raised is None
            assert float(printed.split()[2].rstrip(",")) > 0.8
        said = script.communicate(timeout=CELL_S)[0]
        assert script.returncode == 0
        assert float(said.splitlines()[-1].split()[2].rstrip(",")) > 0.8
    finally:
        script.kill()
        script.communicate()
    assert load(folder / "notebook-node").ended == "finished"
    until("a node is left", lambda: gone(tmp_path))


def test_restarting_a_kernel_ends_its_node_and_training_resumes(tmp_path):
    code, folder = cells(**{"rounds=60": "rounds=0"}), tmp_path / "notebook"
    with opened(folder) as kernel:
        for each in code[:TRAIN]:
            kernel.run(each)
        kernel.run(code[TRAIN], stop_at="round 10")
        kernel.restart()
        until("the node outlives its kernel", lambda: gone(folder))
        assert load(folder / "notebook-node").ended == "left"
        reached = load(folder / "notebook-node").snapshot.round
        assert reached >= 10
        for each in code[:TRAIN]:
            assert kernel.run(each)[1] is None
        assert int(kernel.run("print(swarm.round)")[0].split()[-1]) >= reached
    until("the node outlives its notebook", lambda: gone(folder))
