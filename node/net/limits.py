"""The address prefix by which peers are counted, and a pacer of bytes by a token bucket."""

import ipaddress

import trio

from starling.gossip.limits import TokenBucket
from starling.robust.sampling import prefix_of

ORIGIN_SHARE = 4  # one public address prefix has at most 1/ORIGIN_SHARE of a node's connections


def origin_of(host: str) -> str:
    """Return the IPv4 /24 or IPv6 /48 prefix of a public address; "" for others, which have no prefix limit. ValueError: no address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return prefix_of(f"/ip{address.version}/{address}") or ""


class Pacer:
    """Delays bytes to keep them under a cap (0: none): over any t seconds at most cap · (t + 1/8) bytes and one piece pass.

    Of a cap that changes this holds since the change, but for a piece of the cap before; what waits keeps its order.
    """

    _BURST_S = 0.125
    _PIECE_BYTES = (4 << 10, 1 << 20)

    def __init__(self, bytes_per_s: float) -> None:
        self._bucket = TokenBucket(bytes_per_s, bytes_per_s * self._BURST_S) if bytes_per_s > 0 else None
        self._changed = trio.Event()

    @property
    def capped(self) -> bool:
        """Tell if there is a cap."""
        return self._bucket is not None

    @property
    def piece_bytes(self) -> int:
        """Return how many bytes to send at once; few under a small cap, so that streams share it evenly."""
        smallest, largest = self._PIECE_BYTES
        return largest if self._bucket is None else int(min(largest, max(smallest, self._bucket.burst)))

    def change(self, bytes_per_s: float) -> None:
        """Set another cap from now on, also for bytes that are waiting."""
        if bytes_per_s <= 0:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(bytes_per_s, bytes_per_s * self._BURST_S)
        else:
            self._bucket.change(bytes_per_s, bytes_per_s * self._BURST_S, trio.current_time())
        self._changed.set()
        self._changed = trio.Event()

    async def passed(self, amount: int) -> None:
        """Account for `amount` bytes and sleep until they are within the cap."""
        if self._bucket is None:
            return
        left = self._bucket.borrow(amount, trio.current_time()) * self._bucket.rate  # bytes that others send before
        while self._bucket is not None:
            rate, since = self._bucket.rate, trio.current_time()
            with trio.move_on_after(left / rate) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                return
            left = max(0.0, left - (trio.current_time() - since) * rate)
