"""The node of a script in the test's process: a thread drives an engine round by round, as a daemon does.

There are no peers. An exchange halves the parameters: so mixed and trained parameters differ in bits that a test can compute.
"""

import os
import select
import socket
import threading
import time

import torch
from msgspec import structs

from starling.gossip.mix.borne import corrected
from starling.node.config.initial_model import of_file
from starling.node.config.schema import OptimizerSection
from starling.node.engine.script import start_file
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.script import swarm
from starling.node.script.member import Parts
from starling.node.script.optimizers import unwrapped
from tests.harness.engines import manifest, open_request

POLL_S = 0.05
LEAVES_S = 2.0  # seconds in which others hear that a script leaves
END_S = 30.0  # seconds for a thread to end after its script


def optimizer_of(model):
    """Return an optimizer with all parameters; it only determines which ones are trained."""
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)


class Node:
    """A member's node, whose initial model is `model`.

    Attributes:
        before, after: copies of the parameters (d,) that the script gave at each round's end, and of the mixed ones.
        losses: mean of each round, as reported by the script.
        steps: local steps reported by the script.
        figures: results of evaluations.
    """

    pace = "steps"

    def __init__(self, folder, model, *, rounds=3, steps=2, optimizer="adamw", mix="dsgd", evaluates=False, c=None):
        folder.mkdir(exist_ok=True)
        parts = Parts(model, unwrapped(optimizer_of(model)))
        self.layout = parts.parameters.layout
        start = folder / "start.safetensors"
        parts.parameters.read(x := torch.empty(self.layout.dim, dtype=self.layout.dtype))
        start_file.write(start, self.layout, x)
        agreed = manifest(
            "script",
            2,
            mix=mix,
            pace=self.pace,
            rounds=rounds,
            local_steps=steps,
            optimizer=OptimizerSection(kind=optimizer),
            params={"metric": "loss", "higher_is_better": False, "start": str(of_file("start", start))},
        )
        self.folder, self._rounds, self._steps, self._evaluates = folder, rounds, steps, evaluates
        call = open_request(agreed, checkpoint=folder / "checkpoint")
        self._call = structs.replace(call, script=True, start=str(start))
        self._open()
        if c is not None:
            replica = self._engine.replica
            replica.state = corrected(replica.state, c)
        self.before, self.after, self.losses, self.figures = [], [], [], []
        self._over, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def steps(self):
        return self._engine.driver.trainer.steps

    def left(self):
        """Return whether the script has left: granted steps are not done."""
        deadline = time.monotonic() + LEAVES_S
        while self._engine.due_s is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self._engine.due_s is not None

    @property
    def x(self):
        """Return the node's model (d,)."""
        return self._engine.vector

    def join(self):
        """Wait until all rounds are done."""
        self._thread.join(END_S)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self._over.set()
        self._thread.join(END_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self):
        try:
            self._train()
            self._done(calls.Save(final=True))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self._error = error
        finally:
            self._engine.handle(calls.Stop())

    def _open(self):
        self._engine = Worker()
        opened = self._engine.handle(self._call)
        assert isinstance(opened, calls.Opened), opened

    def _train(self, first=0):
        for number in range(first, self._rounds):
            trained = self._done(calls.Train(number, self._steps, turn=number))
            if trained is None:
                break
            self.losses.append(trained.figures.loss)
            self.before.append(self.x)
            self._engine.replica.x.mul_(0.5)
            self._done(calls.Mix(number))
            self.after.append(self.x)
            if self._evaluates:
                self.figures.append(self._done(calls.Evaluate(number)))

    def _done(self, call):
        """Make a call; return None if the test has ended."""
        reply = self._engine.handle(call)
        while reply is None and self._spoken_to():
            reply = self._engine.step()
        assert not isinstance(reply, calls.Refused), reply
        return reply

    def _spoken_to(self):
        """Wait for a message of the script; return False if the test has ended."""
        poll = select.poll()
        for each in self._engine.sources:
            poll.register(each, select.POLLIN)
        while not poll.poll(1000 * POLL_S):
            if self._over.is_set():
                return False
        return True


class Clocked(Node):
    """Runs in clock pace: scripts continue during exchanges, which take some time and move parameters a little."""

    pace = "clock"

    def _train(self):
        self._done(calls.Free(on=True, round=0))
        while self.steps < self._rounds * self._steps and self._spoken_to():
            self._engine.step()
            self._engine.replica.x.mul_(0.9)
            time.sleep(POLL_S)


class Lost(Node):
    """Loses its engine after its rounds; another engine continues from the checkpoint for as many rounds, or the node ends."""

    def __init__(self, *given, again, **keys):
        super().__init__(*given, **keys)
        self._again = again

    def _train(self):
        super()._train()
        self._done(calls.Save())
        for each in self._engine.sources:
            with socket.socket(fileno=os.dup(each)) as end:
                end.shutdown(socket.SHUT_RDWR)
        if self._again:
            self._open()
            first, self._rounds = self._rounds, 2 * self._rounds
            super()._train(first)


class Silent(Node):
    """Grants no steps."""

    def _train(self):
        while self._spoken_to():
            self._engine.step()


def beside(monkeypatch):
    """Connect every Swarm to the engine in its folder instead of starting a node; return the arguments for starting one."""
    asked = []

    def started(*given):
        asked.append(given)

    monkeypatch.setattr(swarm, "started", started)
    return asked
