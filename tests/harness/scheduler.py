"""Trio's scheduler shuffles ready tasks on purpose and has no public way to seed that: its private names are used here only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trio._core import _run as run
from trio._core._run import _r as chance


@contextmanager
def reproducible() -> Iterator[Callable[[int], None]]:
    """Yield a function to call with a seed before `trio.run`: the order in which trio wakes ready tasks is then reproducible."""
    name = "_ALLOW_DETERMINISTIC_SCHEDULING"
    allowed, before = getattr(run, name), chance.getstate()
    setattr(run, name, True)
    try:
        yield chance.seed
    finally:
        setattr(run, name, allowed)
        chance.setstate(before)
