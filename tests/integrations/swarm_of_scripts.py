"""Four training scripts in separate processes form a swarm over loopback: one is killed and restarted, one joins late."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from signal import SIGKILL

import psutil

from starling.node.node_handle import Attached
from starling.node.status.control import ControlError
from starling.node.status.final import load
from tests.harness.processes import ENVIRONMENT, ROOT, until
from tests.integrations.scripts.common import BEGUN, INVITE, SLOW

START_S = 150.0  # seconds for all scripts to import their libraries, and for the swarm to train
RUN_S = 240.0  # seconds for the rest, on a busy machine
GONE_S = 30.0
SCRIPTS = "tests.integrations.scripts"


class Script:
    """One script of tests.integrations.scripts in its own session.

    Args:
        folder: folder of its node; its output is stored next to it.
        words: module and further arguments.
        ranks: number of processes of `torchrun`; 1 is a plain script.
    """

    def __init__(self, folder, words, *, ranks=1):
        self.folder = folder
        module, *rest = words
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
        line = [sys.executable, "-m", *torchrun, f"{SCRIPTS}.{module}", str(folder), *map(str, rest)]
        number = len([*folder.parent.glob(f"{folder.name}.*.out")])
        self._out, self._errors = (folder.with_name(f"{folder.name}.{number}.{end}") for end in ("out", "errors"))
        environment = {
            **ENVIRONMENT,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                line, cwd=folder.parent, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )

    @property
    def has_begun(self):
        """Return whether the script trains as a member."""
        return BEGUN in self._out.read_text()

    def check(self):
        """Assert that the script has not failed, unless it was killed."""
        assert self.process.poll() in (None, 0, -SIGKILL), self.errors

    @property
    def errors(self):
        return self._errors.read_text()

    def kill(self):
        """Send SIGKILL to the script and its ranks, which torchrun starts in separate sessions; not to its node."""
        with suppress(psutil.NoSuchProcess):
            script = psutil.Process(self.process.pid)
            for each in [script, *script.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    if SCRIPTS in " ".join(each.cmdline()):
                        each.kill()
        self.process.wait()

    def said(self):
        """Return the last line that the script printed."""
        assert self.process.wait(RUN_S) == 0, self.errors
        return json.loads(self._out.read_text().splitlines()[-1])


class Run:
    """A swarm of four scripts in a folder.

    Attributes:
        figures: final figures of the four members.
        alone: the figure of one process with all data; None if it was not requested.
        reached: the round in which the member was killed.
        began: the rounds in which its second process and the late member began.
        took_s: seconds of the whole run.
    """

    def __init__(self, folder, kinds, *, kills, ranks=(1, 1, 1, 1), kill_round=10, alone=None):
        """`kinds` has the arguments of each member; the last one joins late. `alone` has those of the process without a swarm."""
        self.folder, self._kinds, self._ranks, self._kills = folder, kinds, ranks, kills
        self._begun, self._kill_round = [], kill_round
        began = time.monotonic()
        with self._all_end():
            finals = self._run()
            self.figures = [each["figure"] for each in finals]
            self.began = finals[kills]["first"], finals[-1]["first"]
            until("processes of nodes are left", self._gone, GONE_S)
            if alone is not None:
                self.alone = self._start("alone", [*alone, "--alone"]).said()["figure"]
        self.took_s = time.monotonic() - began

    def _run(self):
        members = [self._member(part) for part in range(3)]
        killed = Attached(self.folder / str(self._kills))
        self._until_round(killed, self._kill_round)
        slow = self.folder / SLOW
        slow.touch()
        members[self._kills].kill()
        self.reached = killed.status().round
        until("the node of the killed member goes on", lambda: not killed.running, GONE_S)
        late, again = self._member(3), self._member(self._kills)
        members[self._kills] = again
        self._wait(lambda: late.has_begun and again.has_begun)
        slow.unlink()
        return [each.said() for each in (*members, late)]

    def _member(self, part):
        module, *rest = self._kinds[part]
        if part:
            self._wait((self.folder / INVITE).exists)
        return self._start(str(part), [module, part, *rest, *(["--joins"] if part else [])], ranks=self._ranks[part])

    def _start(self, name, words, *, ranks=1):
        self._begun.append(Script(self.folder / name, words, ranks=ranks))
        return self._begun[-1]

    def _until_round(self, attached, round):
        def reached():
            with suppress(ControlError):  # it is not up yet
                return attached.running and attached.status().round >= round

        self._wait(reached)

    def _wait(self, true):
        deadline = time.monotonic() + START_S
        while not true():
            for each in self._begun:
                each.check()
            assert time.monotonic() < deadline, "\n".join(each.errors for each in self._begun)
            time.sleep(0.05)

    def _gone(self):
        own = str(self.folder)
        lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
        return not any(own in line for line in lines)

    @contextmanager
    def _all_end(self):
        try:
            yield
        finally:
            for each in self._begun:
                each.kill()

    def rounds(self):
        """Return how each node ended, and after which round."""
        finals = [load(self.folder / str(part)) for part in range(4)]
        return [(each.ended, each.snapshot.round) for each in finals]
