"""Stories of whole swarms: async tests in virtual time that a seed replays."""

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

T = TypeVar("T")

PATIENCE_S = 20_000.0  # virtual seconds: a longer story counts as hanging


def virtual(*seeds: int, more: tuple[int, ...] = (), before: Callable = lambda: None) -> Callable:
    """Run an async test once per seed, which it may take, in virtual time and with a deterministic scheduler.

    more: seeds for acceptance tests only.
    before: called first, e.g. for a story that this one is compared with.
    """
    every = [*seeds, *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in more)]

    def decorate(test: Callable) -> Callable:
        others = [it for name, it in signature(test).parameters.items() if name not in {"seed", "deterministic_scheduler"}]
        takes_seed = "seed" in signature(test).parameters

        @pytest.mark.slow
        @pytest.mark.parametrize("seed", every)
        @wraps(test)
        def story(deterministic_scheduler, seed, **given):
            deterministic_scheduler(seed)
            before()
            deterministic_scheduler(seed)
            replayable(lambda: test(**given, **({"seed": seed} if takes_seed else {})), seed)

        fixtures = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("deterministic_scheduler", "seed")]
        story.__signature__ = Signature([*fixtures, *others])
        return story

    return decorate


def replayable(story: Callable[[], Awaitable[T]], seed: int) -> T:
    """Return the result of a story in virtual time; its exceptions name the seed."""

    async def bounded() -> T:
        with trio.fail_after(PATIENCE_S):
            return await story()

    try:
        return trio.run(bounded, clock=MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note(f"replays with seed = {seed}")
        raise
