"""Rate limits: a token bucket that takes the time as an argument, and a pacer that sleeps by one.

Shapes: amounts are bytes or frames, times are seconds on one clock.
"""

import ipaddress
from dataclasses import dataclass, field
from math import inf

import trio

from starling.robust.sampling import prefix_of

ORIGIN_SHARE = 4  # one public address prefix has at most 1/ORIGIN_SHARE of a node's connections


def origin_of(host: str) -> str:
    """The IPv4 /24 or IPv6 /48 prefix of a public address; "" for others, which have no prefix limit. ValueError: no address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return prefix_of(f"/ip{address.version}/{address}") or ""


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


class Pacer:
    """Delays bytes to keep them under a cap (0: none): over any t seconds at most cap · (t + 1/8) bytes and one piece pass."""

    _BURST_S = 0.125
    _PIECE_BYTES = (4 << 10, 256 << 10)

    def __init__(self, bytes_per_s: float) -> None:
        self._bucket = TokenBucket(bytes_per_s, bytes_per_s * self._BURST_S) if bytes_per_s > 0 else None
        smallest, largest = self._PIECE_BYTES
        self.piece_bytes = (
            largest if self._bucket is None else int(min(largest, max(smallest, bytes_per_s * self._BURST_S)))
        )
        """Bytes to pass at once; small under a small cap, so that streams share it evenly."""

    async def passed(self, amount: int) -> None:
        """Account for `amount` bytes and sleep until they are within the cap."""
        if self._bucket is not None:
            await trio.sleep(self._bucket.borrow(amount, trio.current_time()))
