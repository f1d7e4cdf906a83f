"""The engine: a plain synchronous object that answers calls and does its work a slice at a time.

Its driver (`node.engine.process` behind a pipe, `node.simulate.virtual.inline_engine` under virtual time) alternates `handle` and `step`.
Expected errors are answered by `Refused` and have changed nothing; any other exception is a bug, or one of the owner's task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.edge_ledger import Ledger
from starling.node.engine.byzantine import open_session
from starling.node.engine.privacy.csprng import Csprng, Entropy
from starling.node.engine.session import Session
from starling.node.rpc import calls


class Engine:
    """Opens once, then answers.

    Args:
        clock: seconds, monotonic: `Trained.seconds` is measured with it.
        entropy: for random numbers that peers cannot predict; a test may pass its own, to draw the same noise twice.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, entropy: Entropy = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._session: Session | None = None

    @property
    def busy(self) -> bool:
        """There is a slice to do: call `step` when no call waits."""
        return self._session is not None and self._session.busy

    @property
    def session(self) -> Session:
        """What Open made. For simulations, checks and tests."""
        assert self._session is not None
        return self._session

    @property
    def vector(self) -> Tensor:
        """(d,) a copy of the model as it is. For simulations and tests: a daemon asks by calls."""
        assert self._session is not None
        return self._session.learner.x.clone()

    @property
    def ledger(self) -> Ledger:
        """The flows of all edges. For simulations and tests."""
        assert self._session is not None
        return self._session.learner.ledger

    @property
    def undone(self) -> int:
        """Local steps taken back so far. For simulations and tests."""
        return 0 if self._session is None else self._session.learner.undone

    def step(self) -> calls.Trained | calls.Evaluated | None:
        """One slice while `busy`: one local step, or a batch of an evaluation. The reply to Train or Evaluate if that was its last."""
        assert self._session is not None
        return self._session.step()

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """The reply, or None if it will come out of `step` (Train, Evaluate)."""
        try:
            if isinstance(request, calls.Open):
                return self._open(request)
            if self._session is None:
                raise LocalProtocolError("the engine is not open")  # noqa: TRY301 — answered like any other call out of turn
            return _HANDLERS[type(request)](self._session, request)
        except ConfigError as error:
            return calls.Refused("config", str(error))
        except RemoteProtocolError as error:
            return calls.Refused("peer", error.reason)
        except LocalProtocolError as error:
            return calls.Refused("state", str(error))

    def _open(self, request: calls.Open) -> calls.Opened:
        if self._session is not None:
            raise LocalProtocolError("the engine is open already")
        if request.threads:
            torch.set_num_threads(request.threads)
        self._session = open_session(request, self._clock, Csprng(self._entropy))
        return self._session.opened


def _evaluate(session: Session, _call: calls.Request) -> None:
    session.evaluate()


def _consider(session: Session, call: calls.Consider) -> calls.Reply:
    try:
        return session.consider(call)
    except ValueError as error:
        return calls.Refused("peer", str(error))


def _written(write: Callable[[], calls.Done]) -> calls.Done | calls.Refused:
    try:
        return write()
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return calls.Refused("disk", f"{name}{error.strerror or error}; training goes on, free some space (df -h)")


# Methods are looked up on the object, never on `Session`: a ByzantineSession may stand in for one.
_HANDLERS: dict[type[calls.Call], Callable[[Session, Any], calls.Reply | None]] = {
    calls.Train: lambda session, call: session.train(call),
    calls.Free: lambda session, call: session.free(call),
    calls.Offer: lambda session, call: session.offer(call),
    calls.Answer: lambda session, call: session.answer(call),
    calls.Apply: lambda session, call: session.apply(call),
    calls.Commit: lambda session, call: session.commit(call),
    calls.Drop: lambda session, call: session.drop(call),
    calls.Publish: lambda session, call: session.publish(call),
    calls.VerifyUpdate: lambda session, call: session.verify_update(call),
    calls.Mix: lambda session, call: session.mix(call),
    calls.Settle: lambda session, call: session.settle(call),
    calls.Revoke: lambda session, call: session.revoke(call),
    calls.Evaluate: _evaluate,
    calls.Save: lambda session, call: _written(lambda: session.save(call)),
    calls.Snapshot: lambda session, _call: session.snapshot(),
    calls.ReadChunk: lambda session, call: session.read_chunk(call),
    calls.Consider: _consider,
    calls.Agree: lambda session, _call: session.agree(),
    calls.Stop: lambda session, _call: _written(session.close),
}
