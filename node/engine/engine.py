"""The engine: a plain synchronous object that answers calls and does its work a slice at a time.

Whoever drives it (`node.engine.process` behind a pipe, `node.simulate.virtual.inline_engine` under virtual time)
alternates `handle` and `step`.
What goes wrong is answered by `Refused` and has changed nothing; anything else that is raised is a bug.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.edge_ledger import Ledger
from starling.node.engine.byzantine import open_session
from starling.node.engine.privacy.csprng import Entropy, Secret
from starling.node.engine.session import Session
from starling.node.rpc import calls


class Engine:
    """Opens once, then answers.

    Args:
        clock: seconds, monotonic: `Trained.seconds` is measured with it.
        entropy: of the chance that peers must not know; a test may give its own, to see the same noise twice.
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
            return _dispatch(self._session, request)
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
        self._session = open_session(request, self._clock, Secret(self._entropy))
        return self._session.opened


def _dispatch(session: Session, request: calls.Request) -> calls.Reply | None:
    match request:
        case calls.Train():
            return session.train(request)
        case calls.Free():
            return session.free(request)
        case calls.Offer():
            return session.offer(request)
        case calls.Answer():
            return session.answer(request)
        case calls.Apply():
            return session.apply(request)
        case calls.Commit():
            return session.commit(request)
        case calls.Drop():
            return session.drop(request)
        case calls.Publish():
            return session.publish(request)
        case calls.Hear():
            return session.hear(request)
        case calls.Mix():
            return session.mix(request)
        case calls.Settle():
            return session.settle(request)
        case calls.Revoke():
            return session.revoke(request)
        case calls.Evaluate():
            session.evaluate()
            return None
        case calls.Save():
            return _written(lambda: session.save(request))
        case calls.Snapshot():
            return session.snapshot()
        case calls.ReadChunk():
            return session.read_chunk(request)
        case calls.Consider():
            try:
                return session.consider(request)
            except ValueError as error:
                return calls.Refused("peer", str(error))
        case calls.Agree():
            return session.agree()
        case calls.Stop():
            return _written(session.close)
        case calls.Open():
            raise LocalProtocolError("the engine is open already")


def _written(write: Callable[[], calls.Done]) -> calls.Done | calls.Refused:
    try:
        return write()
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return calls.Refused("disk", f"{name}{error.strerror or error}; training goes on, free some space (df -h)")
