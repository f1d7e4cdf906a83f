"""The prefix that addresses are counted by, and a pacer of bytes, which sleeps by a token bucket."""

import ipaddress

import trio

from starling.gossip.limits import TokenBucket
from starling.robust.sampling import prefix_of

ORIGIN_SHARE = 4  # one public address prefix has at most 1/ORIGIN_SHARE of a node's connections


def origin_of(host: str) -> str:
    """The IPv4 /24 or IPv6 /48 prefix of a public address; "" for others, which have no prefix limit. ValueError: no address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return prefix_of(f"/ip{address.version}/{address}") or ""


class Pacer:
    """Delays bytes to keep them under a cap (0: none): over any t seconds at most cap · (t + 1/8) bytes and one piece pass."""

    _BURST_S = 0.125
    _PIECE_BYTES = (4 << 10, 1 << 20)

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
