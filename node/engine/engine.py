"""The engine: a plain synchronous object that answers calls and does its work a slice at a time.

Its driver (`node.engine.process` behind a pipe, `node.simulate.virtual.inline_engine` under virtual time) alternates `handle` and `step`.
Expected errors are answered by `Refused` and have changed nothing; any other exception is a bug, or one of the owner's task.
"""

import os
import time
from collections.abc import Callable

from torch import Tensor

from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.node.engine.byzantine import open_session
from starling.node.engine.privacy.csprng import Csprng, Entropy
from starling.node.engine.session import Session
from starling.node.rpc import calls


class Engine:
    """Opens once, then answers.

    Args:
        clock: seconds, monotonic, for `Trained.seconds`.
        entropy: of the CSPRNG.
        work: processor seconds of the calling thread, for what exchanges cost. Left out: `clock`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        entropy: Entropy = os.urandom,
        work: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._work = work or clock
        self._entropy = entropy
        self._session: Session | None = None
        self.during = ""  # what the last slice did, for messages; "" after a call

    @property
    def busy(self) -> bool:
        """There is a slice to do: call `step` when no call waits."""
        return self._session is not None and self._session.busy

    @property
    def session(self) -> Session:
        """For simulations, checks and tests."""
        assert self._session is not None
        return self._session

    @property
    def vector(self) -> Tensor:
        """(d,) a copy of the model. For simulations and tests, as the next; a daemon asks by calls."""
        return self.session.learner.x.clone()

    @property
    def undone(self) -> int:
        """Local steps undone so far."""
        return 0 if self._session is None else self._session.learner.undone

    def step(self) -> calls.Trained | calls.Evaluated | None:
        """One slice while `busy`: a local step, or a batch of an evaluation -> the reply to Train or Evaluate if that was its last."""
        before = self.session.learner.local_steps
        try:
            return self.session.step()
        finally:
            done = self.session.learner.local_steps
            self.during = f"local step {done}" if done != before else f"the evaluation after local step {done}"

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """The reply, or None if it will come out of `step` (Train, Evaluate)."""
        self.during = ""
        try:
            if isinstance(request, calls.Open):
                return self._open(request)
            if self._session is None:
                raise LocalProtocolError("the engine is not open")  # noqa: TRY301 — answered like any other call out of turn
            began = self._work()
            reply: calls.Reply | None = getattr(self._session, str(request.__struct_config__.tag))(request)
            if isinstance(request, calls.Offer | calls.Answer | calls.Apply | calls.Commit):
                self._session.exchanges.effort.exchanged(self._work() - began)
        except ConfigError as error:
            return calls.Refused("config", str(error))
        except RemoteProtocolError as error:
            return calls.Refused("peer", error.reason)
        except LocalProtocolError as error:
            return calls.Refused("state", str(error))
        return reply

    def handle_beside(self, request: calls.Request) -> calls.Reply | None:
        """`handle` while another thread computes a gradient in `step`; None: the call must wait for the end of the step."""
        return self.handle(request) if self.session.answers_beside_gradient(request) else None

    def _open(self, request: calls.Open) -> calls.Opened:
        if self._session is not None:
            raise LocalProtocolError("the engine is open already")
        self._session = open_session(request, self._clock, Csprng(self._entropy))
        return self._session.opened
