"""Byte budget of an exchange: the manifest's, or what an edge was measured to carry in a slot."""

import math
from statistics import median_low
from typing import Protocol

from starling.gossip.compress.budget import FILL, exchange_budget
from starling.gossip.compress.catalogue import BUDGET
from starling.node.config.schema import Manifest
from starling.node.daemon.context import Limits
from starling.node.daemon.exchange.facts import Fact, Sent
from starling.node.daemon.exchange.slow_watch import MIN_MEASURED_BYTES

SMOOTHING = 0.3
FIRST_BYTES = 256 << 10
"""Bytes of an exchange before any rate is known: on a slow line a whole model would be given up half-way."""


class Budget(Protocol):
    """Byte budget of an exchange, by peer."""

    concurrent_s: float
    """How long the local steps take beside which exchanges run, as the round waits for whichever takes longer; inf where there are none."""

    def bytes_for(self, peer: str) -> int:
        """Return how many bytes both payloads of one exchange with `peer` may take; 0 is no limit."""
        ...

    def observe(self, fact: Fact) -> None:
        """Take the time that a frame took to be sent."""
        ...

    def forget(self, peer: str) -> None:
        """Delete the measurements of a peer that is gone."""
        ...


class FixedBudget:
    """Budget of the manifest's number of bytes, whatever the link's rate."""

    def __init__(self, fixed: int) -> None:
        self.concurrent_s = math.inf
        self._fixed = fixed

    def bytes_for(self, peer: str) -> int:
        """Return the manifest's number of bytes."""
        return self._fixed

    def observe(self, fact: Fact) -> None: ...

    def forget(self, peer: str) -> None: ...


class MeasuredBudget:
    """Budget of the bytes that an edge was measured to carry in a slot, within the owner's caps; `first` while no rate is known."""

    def __init__(self, first: int, slot_s: float, limits: Limits) -> None:
        self.concurrent_s = math.inf
        self._first = first
        self._slot_s = slot_s
        self._limits = limits
        self._rates: dict[str, float] = {}

    def bytes_for(self, peer: str) -> int:
        """Return the budget by the peer's rate, or by others' if that is unknown; without a cap, `first` before any rate is known."""
        caps = [cap for cap in (self._limits.up_bytes_per_s, self._limits.down_bytes_per_s) if cap > 0]
        usual = median_low(self._rates.values()) if self._rates else 0.0
        rate = self._rates.get(peer, usual)
        if rate == math.inf and not caps:
            return 0
        return exchange_budget(rate, min(self._slot_s, self.concurrent_s), FILL, min(caps, default=0)) or self._first

    def observe(self, fact: Fact) -> None:
        """Estimate the peer's rate from a sent frame; small ones are ignored."""
        match fact:
            case Sent(message, size, seconds) if size >= MIN_MEASURED_BYTES:
                rate = size / seconds if seconds > 0 else math.inf
                known = self._rates.get(message.peer)
                smoothed = rate if known in {None, math.inf} else (1 - SMOOTHING) * known + SMOOTHING * rate
                self._rates[message.peer] = smoothed

    def forget(self, peer: str) -> None:
        """Delete the rate of a peer that is gone."""
        self._rates.pop(peer, None)


def budget_of(manifest: Manifest, limits: Limits) -> Budget:
    """Return the budget of a manifest's exchanges."""
    if fixed := manifest.compress.params().get("budget_bytes"):
        return FixedBudget(fixed)
    first = FIRST_BYTES if manifest.compress.select == BUDGET else 0
    return MeasuredBudget(first, manifest.pace.slot_s, limits)
