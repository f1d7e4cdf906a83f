"""Keep an engine running: start it, open it, and restart it from its last checkpoint when it dies or stops answering.

A restart voids every flow, as the checkpoint holds none: the exchange service resets its edges before anything else uses the new engine.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress

import trio
from msgspec import structs

from starling.gossip.errors import ConfigError, EngineError
from starling.node.daemon.engine.client import ProcessEngine
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls

MAX_RESTARTS = 5  # restarts within RESTART_WINDOW_S; after more the node gives up
RESTART_WINDOW_S = 600.0

StartEngine = Callable[[], AbstractAsyncContextManager[EngineHandle]]


class EngineSupervisor:
    """An EngineHandle over consecutive engines, processes or inline, that `start` opens; `open_request` is the first call to each.

    One that does not reply for `silence_s` counts as dead.
    """

    def __init__(self, *, start: StartEngine, open_request: calls.Open, silence_s: float, report: Reporter) -> None:
        self._start = start
        self._open_request = open_request
        self._silence_s = silence_s
        self._report = report
        self._engine: EngineHandle | None = None
        self._up = trio.Event()
        self._down = trio.Event()
        self._restarts: list[float] = []
        self._end = EngineError("")  # why the last engine died
        self._place_before = ""  # step and line of code at which the previous engine died
        self.restarts = 0
        self.opened: calls.Opened | None = None
        self.pid: int | None = None  # process id of the engine; None without a process, or while none runs
        self.reset: Callable[[], Awaitable[None]] | None = None  # called after a restart, before `ready` returns

    @property
    def activity(self) -> str:
        """Return what is shown while no engine runs; "" while one does."""
        if self._engine is not None:
            return ""
        return "starting the engine (importing torch)" if self.opened is None else "restarting the engine"

    async def call(self, request: calls.Request) -> calls.Reply:
        """Send one call to the current engine. Raises EngineError: there is none, or it died or stopped answering during this call."""
        engine = self._engine
        if engine is None:
            raise EngineError("the engine is starting")
        try:
            with trio.fail_after(self._silence_s):
                return await engine.call(request)
        except trio.TooSlowError:
            silent = EngineError(f"the engine was silent for {self._silence_s:.0f} s")
            self._lost(engine, silent)
            raise silent from None
        except EngineError as error:
            self._lost(engine, error)
            raise

    @property
    def engine(self) -> EngineHandle | None:
        """Return the current engine, if one runs."""
        return self._engine

    async def ready(self) -> calls.Opened:
        """Wait until an engine runs -> its reply when it opened the task."""
        await self._up.wait()
        assert self.opened is not None
        return self.opened

    async def limit(self, threads: int) -> None:
        """Do local steps on so many threads, in this engine and in later ones; 0: as many as are fastest."""
        self._open_request = structs.replace(self._open_request, threads=threads)
        with suppress(EngineError):
            await self.call(calls.Limit(threads))

    async def serve(self) -> None:
        """Keep an engine up until cancelled. Raises ConfigError: the engine refuses the configuration; EngineError: it keeps dying."""
        while True:
            self._down = trio.Event()
            async with self._start() as engine:
                self.pid = engine.pid if isinstance(engine, ProcessEngine) else None
                try:
                    if await self._open(engine):
                        await self._down.wait()
                finally:
                    self.pid = None
            now = trio.current_time()
            if self._end.refused:
                raise ConfigError(str(self._end))
            self._give_up_at_one_place()
            self._restarts = [at for at in self._restarts if now - at < RESTART_WINDOW_S] + [now]
            self.restarts += 1
            if len(self._restarts) > MAX_RESTARTS:
                times = f"{len(self._restarts)} times in {RESTART_WINDOW_S / 60:.0f} minutes"
                raise EngineError(f"the engine died {times}, the last time because {self._end}")
            self._report.event(
                "engine_restarting", f"restarting the engine from its last checkpoint: {self._end}", level="warning", reason=str(self._end)
            )

    def _give_up_at_one_place(self) -> None:
        """Raise EngineError if the engine died like the one before it, at the same line of code in the same step: it would die again."""
        place = self._end.place
        if place and place == self._place_before:
            raise EngineError(
                f"the engine died twice at the same step: {self._end}; fix the cause, then `starling run` goes on from the checkpoint"
            )
        self._place_before = place

    async def _open(self, engine: EngineHandle) -> bool:
        try:
            with trio.fail_after(self._silence_s):
                open_request = self._open_request
                reply = await engine.call(open_request)
                if open_request is not self._open_request:
                    await engine.call(calls.Limit(self._open_request.threads))
        except EngineError as error:
            self._end = EngineError(str(error))  # it died outside of local steps
            return False
        except trio.TooSlowError:
            self._end = EngineError(f"the engine did not open the task within {self._silence_s:.0f} s")
            return False
        if isinstance(reply, calls.Refused):
            raise ConfigError(reply.reason)
        if not isinstance(reply, calls.Opened):
            raise EngineError("the engine did not open")
        if reply.damaged:
            text = f"goes on from the checkpoint before it, as the newest cannot be read and is set aside as .bad: {reply.damaged}"
            self._report.event("checkpoint_damaged", text, level="warning")
        again, self.opened, self._engine = self.opened is not None, reply, engine
        if again and self.reset is not None:
            await self.reset()
        self._up.set()
        return True

    def _lost(self, engine: EngineHandle, error: EngineError) -> None:
        if self._engine is engine:
            self._end, self._engine = error, None
            self._up = trio.Event()
            self._down.set()
