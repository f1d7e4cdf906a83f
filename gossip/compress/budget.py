"""Compute how much of the vector an exchange can afford. Pure arithmetic without torch: the daemon knows the rates."""

from collections.abc import Callable
from dataclasses import dataclass

from starling.gossip.api import Quantizer
from starling.gossip.bounds import Bytes, PositiveShare
from starling.gossip.compress.header import BLOCK, BLOCKS, HEADER

WHOLE = 1 << 20  # numbers of the longest vector that is exchanged as a whole, where its bytes fit
SHARE = 1 / 8  # share of a much longer vector that is exchanged at most
WORK = 1 / 64  # share of a node's local step time that coding exchanges of such a vector may take
LEAST_EFFORT, JUDGED = 1 / 16, 4  # smallest part of that share; calls of an exchange between two changes
FILL = 0.6  # share of a slot on the wire: the rest is for retransmission, and for the beginning of each vector (decision 112)


@dataclass(frozen=True, slots=True)
class Budget:
    """Full vectors where they fit the bytes of an exchange, else a seeded mask as large as fits; of a vector of more than a million numbers
    a million or an eighth at the most, whichever is more, and less where coding that would take a node more than a 64th of the time of its
    local steps.

    Args:
        budget_bytes: bytes one exchange may cost, both directions. Left out: from the measured rate, the slot and the volunteer's cap.
    """

    budget_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class LayeredBudget:
    """The budget of `Layered`, before the size of the vector and the quantizer are known.

    Args:
        ratio: share of the coordinates where no budget is known.
        budget_bytes: bytes one exchange may cost, both directions. Left out: from the measured rate, the slot and the volunteer's cap.
    """

    ratio: PositiveShare = 0.1
    budget_bytes: Bytes | None = None


ExtraSize = Callable[[int], int]
"""Coordinates of an exchange -> bytes that each of its messages carries beside the values of the vector."""


def nothing(_count: int) -> int:
    """Return 0."""
    return 0


def plan(budget_bytes: int, dim: int, request: Quantizer, response: Quantizer, extra_size: ExtraSize = nothing) -> float:
    """Return the ratio, in (0, 1], of the `Mask` of a vector (dim,) with which both payloads together stay within the budget; at least
    one block.

    A budget of 0 is no limit.
    """

    def cost(count: int) -> int:
        return 2 * HEADER.size + request.size(count) + response.size(count) + 2 * extra_size(count)

    if budget_bytes == 0 or cost(dim) <= budget_bytes:
        return 1.0
    blocks = -(-dim // BLOCK)
    fits, too_many = 1, max(blocks, 2)  # the whole vector has been found too long
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if cost(middle * BLOCK) + BLOCKS.size <= budget_bytes:
            fits = middle
        else:
            too_many = middle
    return fits / blocks


def affordable(dim: int) -> float:
    """Return the largest share, in (0, 1], of a vector (dim,) that an exchange is about, so that it takes little memory beside the
    vector.
    """
    return min(1.0, max(WHOLE / dim, SHARE))


@dataclass(slots=True)
class Effort:
    """The part, in [LEAST_EFFORT, 1], of what is `affordable` that exchanges of a long vector are about, by what coding them takes.

    On a fast line exchanges cost no time of the line but time of the processor, which local steps would have. So the part is as large as
    WORK of that time allows.
    """

    part: float = 1.0
    _trained: float = 0.0
    _exchanged: float = 0.0
    _calls: int = 0

    def trained(self, seconds: float) -> None:
        """A local step took so long."""
        self._trained += seconds

    def exchanged(self, seconds: float) -> None:
        """A call of an exchange took so much time of the processor."""
        self._exchanged += seconds
        self._calls += 1
        if self._calls < JUDGED or not self._trained:
            return
        if self._exchanged > 0.0:
            allowed = WORK * self._trained / self._exchanged
            self.part = min(1.0, max(LEAST_EFFORT, self.part * min(2.0, max(0.25, allowed))))
        self._trained = self._exchanged = 0.0
        self._calls = 0

    def of(self, dim: int) -> float:
        """Return the largest share, in (0, 1], of a vector (dim,) that an exchange is about."""
        return affordable(dim) * (self.part if dim > WHOLE else 1.0)


def exchange_budget(rate_bytes_per_s: float, slot_s: float, fill: float, cap_bytes_per_s: float) -> int:
    """Bytes one exchange may cost, of a share `fill` in (0, 1] of the slot > 0; 0 is no limit known, no rate measured, and no cap."""
    rates = [rate for rate in (rate_bytes_per_s, cap_bytes_per_s) if rate > 0]
    return max(1, int(min(rates) * slot_s * fill)) if rates else 0
