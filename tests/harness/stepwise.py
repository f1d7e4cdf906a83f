"""A trio run in virtual time that advances only while the caller waits for it, so that a synchronous state machine can drive it."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import outcome
import trio
from trio.testing import MockClock

PATIENCE_S = 1000.0  # virtual seconds: a longer piece of work counts as hanging

Work = Callable[[], Awaitable[Any]]


class Stepwise:
    """`life` is an async function of one that it awaits: pieces of work are run in it one after the other. In between, virtual time stands
    still, as this guest of the caller gets no turns.
    """

    def __init__(self, life: Callable[[Work], Awaitable[None]]) -> None:
        self._turns: deque[Callable[[], object]] = deque()
        self._work: Work | None = None
        self._done: outcome.Outcome[Any] | None = None
        self._ended: outcome.Outcome[Any] | None = None
        self._closing = False
        trio.lowlevel.start_guest_run(
            life,
            self._serve,
            run_sync_soon_threadsafe=self._turns.append,
            done_callback=self._end,
            clock=MockClock(autojump_threshold=0),
            restrict_keyboard_interrupt_to_checkpoints=True,
        )

    def do(self, work: Work) -> Any:
        """Return the result of a piece of work. Raises what it raises, and what ended the run."""
        self._work, self._done = work, None
        self._turn_until(lambda: self._done is not None)
        if self._ended is not None:
            self.close()
            raise RuntimeError("the run has ended")
        assert self._done is not None
        return self._done.unwrap()

    def close(self) -> None:
        """End the run. Raises, once, what ended it."""
        self._closing = True
        self._turn_until(lambda: False)
        ended, self._ended = self._ended, outcome.Value(None)
        assert ended is not None
        ended.unwrap()

    def _turn_until(self, enough: Callable[[], bool]) -> None:
        while self._ended is None and not enough():
            self._turns.popleft()()

    def _end(self, result: outcome.Outcome[Any]) -> None:
        self._ended = result

    async def _serve(self) -> None:
        while not self._closing:
            work, self._work = self._work, None
            if work is None:
                await trio.lowlevel.checkpoint()
                continue
            try:
                with trio.fail_after(PATIENCE_S):
                    self._done = outcome.Value(await work())
            except Exception as error:  # noqa: BLE001 — the caller's to handle
                self._done = outcome.Error(error)
