"""Choose the number of torch's threads by trials.

They meet at a barrier after each operation. Where a busy process keeps one of them off its core for milliseconds, all others wait, and
many threads may be slower than one by far. Coding a payload is hundreds of short operations: it is done on one thread. Local steps are done
on as many as are fastest at present, by trials, unless the owner sets a number.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, TypeVar

import torch

STEPS = 3  # steps of a trial with each number; the median counts
HOPELESS = 3.0  # a first step so many times slower than the best median ends the trial of a number
FASTER = 0.9  # another number replaces the present one if it takes at most this share of its time
REST_S, RESTS = 10.0, 20.0  # between trials: seconds, or so many times the last trial's duration, whichever is longer

Result = TypeVar("Result")
Step = Callable[[Callable[[int], Any], int], Any]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread alone. Also a decorator."""
    threads = torch.get_num_threads()
    if threads == 1:  # also in a second thread, which must not change the setting of the first
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class FixedThreads:
    """Keeps the current number of threads, without trials. `step` returns the result of (work, round)."""

    def __init__(self) -> None:
        self.number = torch.get_num_threads()
        self.step: Step = operator.call


class Threads:
    """Finds the fastest number of torch's threads for local steps, starting from the current one.

    A trial does a few steps each with the present number and 1, 2, 4, … up to the first; the fastest replaces the present one if it is a
    tenth faster. The first begins at once. Which number wins depends on time, and the last bits of sums on the number.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.number = most = torch.get_num_threads()  # chosen last
        powers = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most]
        self._numbers = [*powers, most]
        self._due = clock()
        self._began = 0.0
        self._left: deque[int] = deque()  # numbers of threads still to be tried; the first is under trial
        self._seconds: dict[int, list[float]] = {}

    def step(self, work: Callable[[int], Result], round: int) -> Result:
        """Return the result of `work`, a local step of a round."""
        began = self._clock()
        if not self._left and began >= self._due:
            self._began, self._seconds = began, {}
            self._left = deque([self.number, *(number for number in self._numbers if number != self.number)])
        if self._left:
            torch.set_num_threads(self._left[0])
        result = work(round)
        if self._left:
            self._tried(self._clock(), began)
        return result

    def _tried(self, now: float, began: float) -> None:
        """Record a step of the trial under way."""
        number = self._left[0]
        taken = self._seconds.setdefault(number, [])
        taken.append(now - began)
        others = [median(seconds) for other, seconds in self._seconds.items() if other != number]
        if len(taken) < STEPS and not (others and taken[0] > HOPELESS * min(others)):
            return
        self._left.popleft()
        if self._left:
            return
        fastest = min(self._seconds, key=lambda each: median(self._seconds[each]))
        if median(self._seconds[fastest]) < FASTER * median(self._seconds[self.number]):
            self.number = fastest
        torch.set_num_threads(self.number)
        self._due = now + max(REST_S, RESTS * (now - self._began))


def threads_of(clock: Callable[[], float], *, fixed: bool) -> Threads | FixedThreads:
    """Return what finds the fastest number of threads, unless it is `fixed`, or there is one only."""
    return FixedThreads() if fixed or torch.get_num_threads() == 1 else Threads(clock)
