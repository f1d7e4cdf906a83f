"""The engine without its process: the same calls, in the daemon's own event loop, for virtual time.

Under a clock that jumps when every task sleeps, a thread or a process would count as idle; so here work is done inline and
costs virtual seconds. The order of things is that of `starling.node.engine.process`: a call waits for at most one slice of work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from starling.gossip.errors import EngineError
from starling.node.daemon.engine.client import beside
from starling.node.engine.process import Worker
from starling.node.rpc.calls import Evaluate, Evaluated, Reply, Request, Stop, Train, Trained


class _Waiter:
    """A call under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = trio.Event()
        self.reply: Reply | None = None

    def answer(self, reply: Reply) -> None:
        self.reply = reply
        self.done.set()


class InlineEngine:
    """Satisfies `starling.node.interfaces.EngineHandle`. Made by `open_inline`.

    Args:
        worker: the engine.
        step_cost_s: virtual seconds of a local step or a slice of an evaluation, > 0.
        call_cost_s: virtual seconds of any call, >= 0.
    """

    def __init__(self, worker: Worker, *, step_cost_s: float, call_cost_s: float) -> None:
        if step_cost_s <= 0.0:
            raise ValueError(f"step_cost_s must be > 0 or time stands still, got {step_cost_s}")
        self._worker = worker
        self._step_cost_s = step_cost_s
        self._call_cost_s = call_cost_s
        self._calls: deque[_Waiter] = deque()
        self._called = trio.Event()
        self._running: dict[type[Trained | Evaluated], _Waiter] = {}  # answered by the reply of that type
        self._scope = trio.CancelScope()
        self._ended: str | None = None

    async def call(self, request: Request) -> Reply:
        """One call, one reply.

        Raises:
            EngineError: the engine was killed, or stopped before it replied.
        """
        if self._ended is not None:
            raise EngineError(self._ended)
        waiter = _Waiter(request)
        self._calls.append(waiter)
        self._called.set()
        await waiter.done.wait()
        if waiter.reply is None:
            raise EngineError(self._ended)
        return waiter.reply

    def kill(self) -> None:
        """End it as a crash would: calls under way raise EngineError."""
        self._ended = "the engine was killed"
        self._scope.cancel()

    async def run(self) -> None:
        """Work and answer until stopped or killed."""
        under_way: list[_Waiter] = []
        try:
            with self._scope:
                while self._ended is None:
                    if self._calls:
                        under_way = [self._calls.popleft()]
                        await trio.sleep(self._call_cost_s)
                        self._handle(under_way.pop())
                    elif self._worker.busy:
                        await trio.sleep(self._step_cost_s)
                        reply = self._worker.step()
                        if isinstance(reply, Trained | Evaluated):
                            self._running.pop(type(reply)).answer(reply)
                    else:
                        self._called = trio.Event()
                        await self._called.wait()
        finally:
            self._ended = self._ended or "the engine was closed"
            for waiter in (*under_way, *self._calls, *self._running.values()):
                waiter.done.set()

    def _handle(self, waiter: _Waiter) -> None:
        reply = self._worker.handle(waiter.request)
        match waiter.request:
            case Train() if reply is None:
                self._running[Trained] = waiter
            case Evaluate() if reply is None:
                self._running[Evaluated] = waiter
            case request:
                assert reply is not None, request
                waiter.answer(reply)
                if isinstance(request, Stop):
                    self._ended = "the engine was stopped"


@asynccontextmanager
async def open_inline(worker: Worker, *, step_cost_s: float, call_cost_s: float = 0.0) -> AsyncIterator[InlineEngine]:
    """Run `worker` inline while the body runs. Its first call must be `Open`."""
    engine = InlineEngine(worker, step_cost_s=step_cost_s, call_cost_s=call_cost_s)
    async with beside(engine.run):
        yield engine
