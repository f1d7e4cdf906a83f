"""What goes wrong in a round, as plain data: drawn from a seed, or written down by hand.

Shapes: N rows, of which some are alive; m meetings of a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.rng import generator


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what goes wrong.

    Args:
        loss: probability that a message is lost, each on its own, in [0, 1).
        tries: how often a message that got no answer is sent in all, >= 1.
        crashes: nodes that fall silent per round, in expectation; the whole part is certain, >= 0.
        joins: nodes that come per round, likewise.
        churn_from: first round with crashes and joins.
        churn_until: first round without again.
        fewest: no crash leaves fewer nodes alive than that, >= 1.
    """

    loss: float = 0.0
    tries: int = 1
    crashes: float = 0.0
    joins: float = 0.0
    churn_from: int = 0
    churn_until: int = 2**31
    fewest: int = 4

    def __post_init__(self) -> None:
        if not 0.0 <= self.loss < 1.0:
            raise ValueError(f"loss must be in [0, 1), got {self.loss}")
        if self.tries < 1 or self.fewest < 1:
            raise ValueError(f"tries and fewest must be >= 1, got {self.tries} and {self.fewest}")
        if not (0.0 <= self.crashes < math.inf and 0.0 <= self.joins < math.inf):
            raise ValueError(f"crashes and joins must be finite and >= 0, got {self.crashes} and {self.joins}")


@dataclass(frozen=True, slots=True)
class Change:
    """Who is no longer there and who is new, before a round.

    Args:
        crashed: rows that fell silent.
        joined: (row, alive row whose model it takes), in order.
        left: rows that said goodbye.
        closed: pairs of rows that closed their edge in order and go on.
    """

    crashed: tuple[int, ...] = ()
    joined: tuple[tuple[int, int], ...] = ()
    left: tuple[int, ...] = ()
    closed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of the meetings of a round. All (m,) bool, on the CPU.

    Args:
        lost: nothing happens at either end.
        unproven: the initiator committed, the proof for the responder is lost: it commits at the next contact on the edge, or never,
            if the edge is void before that.
        forth_lost: only where messages are swapped without a transaction: what the initiator sent does not arrive.
        back_lost: likewise, what the responder sent.
    """

    lost: Tensor
    unproven: Tensor
    forth_lost: Tensor
    back_lost: Tensor

    def of(self, places: NDArray[np.int64]) -> Fate:
        """What becomes of some of the meetings."""
        at = torch.from_numpy(places)
        return Fate(self.lost[at], self.unproven[at], self.forth_lost[at], self.back_lost[at])


def kind(meetings: int) -> Fate:
    """Nothing goes wrong."""
    return Fate(*torch.zeros((4, meetings), dtype=torch.bool))


def fate(faults: Faults, seed: int, round: int, meetings: int) -> Fate:
    """Drawn for each meeting on its own.

    An exchange takes a request and a response in one of `tries` attempts, and then a proof in one of as many.
    """
    chance = torch.rand((4, meetings), dtype=torch.float64, generator=generator(seed, "fate", round))
    one_way = faults.loss**faults.tries
    lost = (1.0 - (1.0 - faults.loss) ** 2) ** faults.tries
    return Fate(chance[0] < lost, chance[1] < one_way, chance[2] < one_way, chance[3] < one_way)


def churn(faults: Faults, seed: int, round: int, alive: Tensor, used: Tensor) -> Change:
    """Who crashes and who joins before this round.

    Args:
        faults: rates.
        seed: of the run.
        round: >= 0.
        alive: (N,) bool.
        used: (N,) bool: rows that were alive at any time. A newcomer takes the lowest row never used; without one nobody joins.
    """
    if not faults.churn_from <= round < faults.churn_until:
        return Change()
    chance = generator(seed, "churn", round)
    living, fresh = alive.nonzero().view(-1).tolist(), (~used).nonzero().view(-1).tolist()
    many = min(_count(faults.crashes, chance), max(0, len(living) - faults.fewest))
    crashed = [living.pop(_below(len(living), chance)) for _ in range(many)]
    joined = [(row, living[_below(len(living), chance)]) for row in fresh[: _count(faults.joins, chance)]]
    return Change(tuple(sorted(crashed)), tuple(joined))


def _count(rate: float, chance: torch.Generator) -> int:
    """A whole number whose expectation is `rate`."""
    return math.floor(rate + float(torch.rand((), dtype=torch.float64, generator=chance)))


def _below(limit: int, chance: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=chance))
