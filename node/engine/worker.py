"""The engine: a synchronous object that answers calls and works in slices between them.

Its driver (`node.engine.process` behind a pipe, `node.simulate.virtual.inline_engine` under virtual time) alternates `handle` and `step`.
Expected errors are answered by `Refused` and have changed nothing; any other exception is a bug, or one of the owner's task.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from torch import Tensor

from starling.gossip.errors import ConfigError, GossipError, LocalProtocolError, RemoteProtocolError
from starling.gossip.replica import Replica
from starling.node.engine.gossip_session import GossipSession
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.engine.privacy.csprng import Csprng, Entropy
from starling.node.engine.script.driver import ScriptDriver
from starling.node.engine.task_driver import TaskDriver
from starling.node.rpc import calls

Driver = TaskDriver | ScriptDriver
"""Driver of local steps: a task in this process, or the owner's script."""


_KINDS: Mapping[type[GossipError], str] = MappingProxyType(
    {ConfigError: "config", RemoteProtocolError: "peer", LocalProtocolError: "state"}  # other expected errors are subclasses of ConfigError
)
EXPECTED = tuple(_KINDS)
"""Errors that are answered."""


class Unopened:
    """Placeholder for a driver before Open."""

    busy = long_steps = False
    sources: Sequence[int] = ()
    due_s: float | None = None
    undone = 0
    during = ""

    def step(self) -> None: ...

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """Raise LocalProtocolError: Open must come first."""
        raise LocalProtocolError("the engine is not open")


class Worker:
    """The engine: handles Open once, then all other calls.

    Args:
        clock: seconds, monotonic, for `Trained.seconds`.
        entropy: of the CSPRNG.
        work: processor seconds of the calling thread, for what exchanges cost. Left out: `clock`.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, entropy: Entropy = os.urandom, work: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self._work = work or clock
        self._entropy = entropy
        self._driver: Driver | Unopened = Unopened()
        self._in_slice = False

    @property
    def busy(self) -> bool:
        """Tell if there is a slice to do: call `step` when no call waits."""
        return self._driver.busy

    @property
    def sources(self) -> Sequence[int]:
        """Return descriptors of files that make it `busy` when there is something to read."""
        return self._driver.sources

    @property
    def due_s(self) -> float | None:
        """Return the seconds until it will be `busy` by itself; None: not until it is called."""
        return self._driver.due_s

    @property
    def long_steps(self) -> bool:
        """Tell if calls must not wait for a gradient."""
        return self._driver.long_steps

    @property
    def is_open(self) -> bool:
        """Tell if Open was answered."""
        return not isinstance(self._driver, Unopened)

    @property
    def driver(self) -> Driver:
        """Return the driver, which does local steps."""
        assert not isinstance(self._driver, Unopened)
        return self._driver

    @property
    def opened(self) -> TaskDriver:
        """Return the driver of a task."""
        return cast("TaskDriver", self.driver)

    @property
    def trainer(self) -> TaskTrainer:
        """Return the trainer, for simulations, checks and tests, like the next property; a daemon uses calls."""
        return self.opened.trainer

    @property
    def replica(self) -> Replica:
        """Return the node's copy of the model."""
        return self.driver.session.replica

    @property
    def session(self) -> GossipSession:
        """Return the session, which answers calls."""
        return self.driver.session

    @property
    def vector(self) -> Tensor:
        """Return a copy (d,) of the model; between rounds of broadcasts, of the outer parameters."""
        return self.replica.settled.clone()

    @property
    def undone(self) -> int:
        """Return the number of local steps undone so far."""
        return self._driver.undone

    @property
    def during(self) -> str:
        """Return what the slice that raised did, for messages; "" if it was a call."""
        return self._driver.during if self._in_slice else ""

    @property
    def step(self) -> Callable[[], calls.Trained | calls.Evaluated | calls.Refused | None]:
        """Return what does one slice while `busy` -> the reply to Train or Evaluate if that was its last."""
        self._in_slice = True
        return self._driver.step

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """Answer a call; None: the reply will come out of `step` (Train, Evaluate)."""
        self._in_slice = False
        try:
            reply = self._open(request) if isinstance(request, calls.Open) else self._driver.handle(request)
        except EXPECTED as error:
            reply = calls.Refused(_KINDS.get(type(error), "config"), getattr(error, "reason", str(error)))
        return reply

    def handle_in_background(self, request: calls.Request) -> calls.Reply | None:
        """Handle a call while another thread computes a gradient in `step`; None: the call must wait for the end of the step."""
        return self.handle(request) if self.opened.answers_in_background(request) else None

    def _open(self, request: calls.Open) -> calls.Opened:
        if self.is_open:
            raise LocalProtocolError("the engine is open already")
        make = ScriptDriver if request.script else TaskDriver
        driver = self._driver = make(request, self._clock, self._work, Csprng(self._entropy))
        return driver.reply
