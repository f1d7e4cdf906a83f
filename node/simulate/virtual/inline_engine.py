"""The engine without its process: the same calls, in the daemon's own event loop, for virtual time.

Under a clock that jumps when every task sleeps, a thread or a process would count as idle; so here work is done inline and
costs virtual seconds. The order of events is that of `starling.node.engine.process`: a call waits for at most one slice of work.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from starling.gossip.errors import EngineError
from starling.node.daemon.engine.client import concurrent
from starling.node.engine.worker import Worker
from starling.node.rpc.calls import Evaluate, Evaluated, Reply, Request, Stop, Train, Trained


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is in progress."""

    request: Request
    reply: Reply | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def answer(self, reply: Reply | None) -> None:
        self.reply = reply
        self.done.set()


class InlineEngine:
    """Satisfies `starling.node.interfaces.EngineHandle`. Made by `open_inline`.

    A local step or a slice of an evaluation costs `step_cost_s` > 0 virtual seconds, any call `call_cost_s` >= 0.
    """

    def __init__(self, worker: Worker, *, step_cost_s: float, call_cost_s: float) -> None:
        if step_cost_s <= 0.0:
            raise ValueError(f"step_cost_s must be > 0 or time stands still, got {step_cost_s}")
        self._worker, self.step_cost_s, self._call_cost_s = worker, step_cost_s, call_cost_s
        self._calls: deque[_Call] = deque()
        self._called = trio.Event()
        self._running: dict[type[Trained | Evaluated], _Call] = {}  # answered by the reply of that type
        self._scope = trio.CancelScope()
        self._ended = ""

    async def call(self, request: Request) -> Reply:
        """Make one call and return its reply. Raises EngineError: the engine was killed, or stopped before it replied."""
        call = _Call(request)
        if not self._ended:
            self._calls.append(call)
            self._called.set()
            await call.done.wait()
        if call.reply is None:
            raise EngineError(self._ended)
        return call.reply

    def kill(self) -> None:
        """End it as a crash would: calls under way raise EngineError."""
        self._ended = "the engine was killed"
        self._scope.cancel()

    async def run(self) -> None:
        """Work and answer until stopped or killed."""
        under_way: list[_Call] = []
        try:
            with self._scope:
                while not self._ended:
                    if self._calls:
                        under_way = [self._calls.popleft()]
                        await trio.sleep(self._call_cost_s)
                        self._handle(under_way.pop())
                    elif self._worker.busy:
                        await trio.sleep(self.step_cost_s)
                        reply = self._worker.step()
                        if reply is not None:
                            self._running.pop(Trained if isinstance(reply, Trained) else Evaluated).answer(reply)
                    else:
                        self._called = trio.Event()
                        await self._called.wait()
        finally:
            self._ended = self._ended or "the engine was closed"
            for call in (*under_way, *self._calls, *self._running.values()):
                call.answer(None)

    def _handle(self, call: _Call) -> None:
        reply = self._worker.handle(call.request)
        if reply is None:
            assert isinstance(call.request, Train | Evaluate), call.request
            self._running[Trained if isinstance(call.request, Train) else Evaluated] = call
            return
        call.answer(reply)
        if isinstance(call.request, Stop):
            self._ended = "the engine was stopped"


@asynccontextmanager
async def open_inline(worker: Worker, *, step_cost_s: float, call_cost_s: float = 0.0) -> AsyncIterator[InlineEngine]:
    """Run `worker` inline while the body runs. Its first call must be `Open`."""
    engine = InlineEngine(worker, step_cost_s=step_cost_s, call_cost_s=call_cost_s)
    async with concurrent(engine.run):
        yield engine
