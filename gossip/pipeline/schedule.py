"""The time of a pipeline's step: formulas, and the event-by-event simulation with which they are compared.

    gpipe   every stage: all forwards, then all backwards                    keeps m micro-batches
    1f1b    stage s: w_s forwards, then one backward, one forward, ...       keeps w_s = min(m, (N − s) + w (N − 1 − s))

With w = 0 the second is the textbook's (Narayanan et al. 2021, arXiv:2104.04473), with which a stage waits a whole round trip for each
micro-batch where lines are long. Each further forward of warm-up hides one beat of it: w = ⌈2 (delay + transfer) / beat⌉ hides all.
Sources: GPipe (Huang et al. 2019, arXiv:1811.06965) and the above. All times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpipe", "1f1b"]
Way = Literal["F", "B"]
"""Forward, to the next stage; backward, to the one before."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order and the lines between them.

    Args:
        forward: seconds of a micro-batch in each of N stages.
        backward: likewise.
        delay: seconds one way between each stage and the next, N − 1 of them.
        transfer: seconds that a micro-batch occupies that line, likewise, in each direction.
        micro_batches: of a step, >= 1.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    delay: Sequence[float]
    transfer: Sequence[float]
    micro_batches: int

    @property
    def ideal(self) -> float:
        """The slowest stage's computing, without fill, drain or lines."""
        return self.micro_batches * max(f + b for f, b in zip(self.forward, self.backward, strict=True))

    @property
    def beat(self) -> float:
        """Seconds between two micro-batches in the long run."""
        return max(self.ideal / self.micro_batches, max(self.transfer, default=0.0))


def warm_up(pipe: Pipeline) -> int:
    """Forwards ahead of the textbook's that hide the longest line, for each stage that follows."""
    longest = max((d + x for d, x in zip(pipe.delay, pipe.transfer, strict=True)), default=0.0)
    return math.ceil(2.0 * longest / pipe.beat - 1e-9)


def held(pipe: Pipeline, kind: Kind, w: int) -> list[int]:
    """Return the number of micro-batches whose activations each stage stores at once."""
    n, m = len(pipe.forward), pipe.micro_batches
    return [m if kind == "gpipe" else ahead(s, n, m, w) for s in range(n)]


def ahead(stage: int, stages: int, micro_batches: int, w: int) -> int:
    """Forwards that a stage does before its first backward in 1f1b, and micro-batches that it keeps."""
    return min(micro_batches, (stages - stage) + w * (stages - 1 - stage))


def predicted(pipe: Pipeline, kind: Kind) -> float:
    """Seconds of a step: fill and drain once, then the beat. For 1f1b with `warm_up` forwards ahead."""
    m = pipe.micro_batches - 1
    lines = sum(pipe.delay) + sum(pipe.transfer)
    if kind == "1f1b":
        return sum(pipe.forward) + sum(pipe.backward) + 2.0 * lines + m * pipe.beat
    slowest = max(pipe.transfer, default=0.0)
    return sum(sum(each) + lines + m * max(*each, slowest) for each in (pipe.forward, pipe.backward))


def simulated(pipe: Pipeline, kind: Kind, w: int = 0) -> float:
    """Seconds of a step, every task and transfer one after the other where it takes place. A line carries one micro-batch at a time
    in each direction.
    """
    n, m = len(pipe.forward), pipe.micro_batches
    orders = [order(kept, m) for kept in held(pipe, kind, w)]
    done, free = [0] * n, [0.0] * n
    ready: dict[tuple[Way, int, int], float] = {("F", 0, i): 0.0 for i in range(m)}  # time at which a task's input is at its stage
    line = {(way, s): 0.0 for way in "FB" for s in range(n)}  # time at which the link for a stage's output is free
    moved = True
    while moved:
        moved = False
        for s in range(n):
            while done[s] < 2 * m and (at := ready.get((orders[s][done[s]][0], s, orders[s][done[s]][1]))) is not None:
                what, i = orders[s][done[s]]
                free[s] = max(free[s], at) + (pipe.forward if what == "F" else pipe.backward)[s]
                done[s] += 1
                moved = True
                if what == "F" and s == n - 1:
                    ready["B", s, i] = free[s]
                elif what == "F" or s > 0:
                    to, over = (s + 1, s) if what == "F" else (s - 1, s - 1)
                    line[what, s] = max(line[what, s], free[s]) + pipe.transfer[over]
                    ready[what, to, i] = line[what, s] + pipe.delay[over]
    assert all(each == 2 * m for each in done)
    return max(free)


def order(kept: int, m: int) -> list[tuple[Way, int]]:
    """The tasks of a stage that keeps 1 <= `kept` <= m micro-batches, in order: backwards in the order of micro-batches."""
    return [task(kept, m, index) for index in range(2 * m)]


def position(kept: int, m: int, way: Way, micro: int) -> int:
    """Return how many tasks such a stage does before this one."""
    if way == "F":
        return micro if micro < kept else 2 * micro - kept + 1
    return kept + 2 * micro if micro < m - kept else m + micro


def task(kept: int, m: int, index: int) -> tuple[Way, int]:
    """Return the task that such a stage does after 0 <= `index` < 2m others."""
    turn, forward = divmod(index - kept, 2)
    if index < kept:
        return "F", index
    if turn >= m - kept:
        return "B", index - m
    return ("F", kept + turn) if forward else ("B", turn)
