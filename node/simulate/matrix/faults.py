"""Faults of a round, drawn from a seed: the same crashes, leaves and joins for both engines, and lost exchanges for this one.

Shapes: N rows, of which some are alive; m exchanges of a round.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.rng import generator
from starling.node.simulate.schema import FaultsSection

FEWEST = 2  # nodes that are always left


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that crash, join or leave before a round."""

    crashed: tuple[int, ...] = ()  # rows that fell silent
    joined: tuple[tuple[int, int], ...] = ()  # (row, alive row whose model it takes), in order
    left: tuple[int, ...] = ()  # rows that left in order
    closed: tuple[tuple[int, int], ...] = ()  # pairs of rows that closed their edge in order and continue


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeFaults:
    """Faults of the exchanges of a round. Both (m,) bool."""

    lost: NDArray[np.bool_]  # nothing happens at either end
    # the initiator commits, but its proof is lost: the responder commits when the same edge exchanges the next time
    unproven: NDArray[np.bool_]


def no_faults(exchanges: int) -> ExchangeFaults:
    """Return the faults of a round in which every exchange succeeds."""
    return ExchangeFaults(*np.zeros((2, exchanges), np.bool_))


def exchange_faults(faults: FaultsSection, seed: int, round: int, exchanges: int) -> ExchangeFaults:
    """Drawn for each exchange on its own.

    An exchange takes a request and a response in one of `tries` attempts, and then a proof in one of as many.
    """
    draws = torch.rand((2, exchanges), dtype=torch.float64, generator=generator(seed, "fate", round)).numpy()
    lost = (1.0 - (1.0 - faults.loss) ** 2) ** faults.tries
    return ExchangeFaults(draws[0] < lost, draws[1] < faults.loss**faults.tries)


def churn(faults: FaultsSection, seed: int, round: int, alive: Tensor, used: Tensor, fewest: int = FEWEST) -> Change:
    """Draw which rows crash, join and leave before this round; a row that crashes, or whose model a newcomer takes, does not leave.

    `alive` and `used` are (N,) bool. A newcomer takes the lowest row never used; without one none joins. At least `fewest` are left.
    """
    if round < faults.churn_from or 0 < faults.churn_until <= round:
        return Change()
    rng = generator(seed, "churn", round)
    living, fresh = alive.nonzero().view(-1).tolist(), (~used).nonzero().view(-1).tolist()
    spare = max(0, len(living) - fewest)
    crashed = [living.pop(_below(len(living), rng)) for _ in range(min(_count(faults.crash, rng), spare))]
    joined = [(row, living[_below(len(living), rng)]) for row in fresh[: _count(faults.join, rng)]]
    left: list[int] = []
    if faults.leave:
        rng, sources = generator(seed, "leave", round), {source for _, source in joined}
        many, free = _count(faults.leave, rng), [row for row in living if row not in sources]
        chosen = torch.randperm(len(free), generator=rng)[: max(0, min(many, len(living) - fewest))]
        left = [free[place] for place in chosen.tolist()]
    return Change(tuple(sorted(crashed)), tuple(joined), tuple(sorted(left)))


def _count(rate: float, rng: torch.Generator) -> int:
    """Return a whole number whose expectation is `rate`."""
    return math.floor(rate + float(torch.rand((), dtype=torch.float64, generator=rng)))


def _below(limit: int, rng: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=rng))
