"""Async tests in virtual time: a clock that jumps to the next deadline when every task sleeps."""

from functools import wraps
from inspect import signature

import trio
from trio.testing import MockClock

BOUND_S = 100_000.0  # virtual seconds: a test that waits for ever fails here


def virtual(test):
    """Run an async test in virtual time."""

    @wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            with trio.fail_after(BOUND_S):
                await test(*args, **kwargs)

        trio.run(bounded, clock=MockClock(autojump_threshold=0))

    run.__signature__ = signature(test)
    return run
