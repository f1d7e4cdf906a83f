"""Limits on what peers can cause: rates of events, and numbers of stored entries. Time is an argument.

Shapes: amounts are bytes, frames or whatever is counted, times are seconds on one clock.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def tolerable(peers: int) -> int:
    """Return how many of m > 0 peers may be Byzantine: f = max(1, ⌊(m − 1)/3⌋)."""
    return max(1, (peers - 1) // 3)


def keep(entries: dict[K, V], key: K, value: V, limit: int) -> None:
    """Add an entry as the most recent; of more than `limit` the oldest is dropped."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        del entries[next(iter(entries))]


@dataclass(slots=True)
class TokenBucket:
    """`rate` > 0 tokens per second are added, at most `burst` > 0 are kept; it starts full.

    Source: the leaky bucket as a meter (Turner 1986), as in RFC 2697.
    """

    rate: float
    burst: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=-inf)

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.burst > 0):
            raise ValueError(f"rate and burst must be > 0, got {self.rate} and {self.burst}")
        self._tokens = self.burst

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
            self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Use another `rate` and `burst`, both > 0, from now on; a deficit remains."""
        self._refill(now)
        self.rate, self.burst, self._tokens = rate, burst, min(burst, self._tokens)

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` >= 0 tokens -> whether there were enough; else none is taken."""
        self._refill(now)
        if amount > self._tokens:
            return False
        self._tokens -= amount
        return True

    def give_back(self, amount: float) -> None:
        """Return unused tokens."""
        self._tokens = min(self.burst, self._tokens + amount)

    def borrow(self, amount: float, now: float) -> float:
        """Take `amount` >= 0 tokens in any case. -> seconds until the balance is not negative"""
        self._refill(now)
        self._tokens -= amount
        return max(0.0, -self._tokens / self.rate)


@dataclass(slots=True)
class Rates(Generic[K]):
    """Token buckets of one rate and burst, for the `most` keys used last; a key that was forgotten begins with a full bucket."""

    per_s: float
    burst: float
    most: int
    _buckets: dict[K, TokenBucket] = field(default_factory=dict)  # in order of last use

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: K) -> TokenBucket:
        """Return the bucket of a key."""
        bucket = self._buckets.get(key) or TokenBucket(self.per_s, self.burst)
        keep(self._buckets, key, bucket, self.most)
        return bucket

    def take(self, key: K, now: float) -> bool:
        """Take one token of a key's bucket -> whether there was one."""
        return self.of(key).take(1.0, now)
