"""Stories of whole swarms: async tests in virtual time that a seed replays."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

T = TypeVar("T")

PATIENCE_S = 20_000.0  # virtual: a story that takes longer hangs


def virtual(*seeds: int, more: tuple[int, ...] = ()) -> Callable:
    """Run `async def test(seed)` once per seed, in virtual time and with a scheduler that replays.

    more: seeds for which it is run among the acceptance tests only.
    """
    every = [*seeds, *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in more)]

    def decorate(test: Callable) -> Callable:
        @pytest.mark.slow
        @pytest.mark.parametrize("seed", every)
        def story(deterministic_scheduler, seed):
            deterministic_scheduler(seed)
            replayable(lambda: test(seed), seed)

        story.__name__, story.__doc__ = test.__name__, test.__doc__
        return story

    return decorate


def replayable(story: Callable[[], Awaitable[T]], seed: int) -> T:
    """The result of a story in virtual time; what it raises says the seed."""

    async def bounded() -> T:
        with trio.fail_after(PATIENCE_S):
            return await story()

    try:
        return trio.run(bounded, clock=MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note(f"replays with seed = {seed}")
        raise
