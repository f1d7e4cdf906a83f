"""Admission of inbound connections under load. Pure: hosts, times and numbers in, decisions out.

Two tables can be flooded at no cost: pending handshakes, and established connections of free identities. A full first table drops its
oldest, as an honest handshake takes a few round trips. A full second table drops the connection idle for longest, if at least IDLE_S; else
one of the public prefix that holds most, if that is at least two more than the newcomer's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starling.gossip.limits import Rates
from starling.node.config.schema import LimitsSection
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.limits import ORIGIN_SHARE

MAX_HANDSHAKES = 64
MAX_HANDSHAKES_PER_BLOCK = 32
MAX_PER_PEER = 3
IDLE_S = 60.0

ACCEPTS_PER_S = 10.0  # connections accepted from an address block; a handshake costs some 6 ms of a core
ACCEPTS_AT_ONCE = 400.0
MAX_BLOCKS = 1024

Handle = TypeVar("Handle")


@dataclass(slots=True)
class AcceptRate:
    """Handshakes begun per address block: 10 a second, 400 at once. A rejected connection costs almost nothing.

    The MAX_BLOCKS blocks seen last are remembered; a forgotten one starts with a full allowance.
    """

    _buckets: Rates[str] = field(default_factory=lambda: Rates(ACCEPTS_PER_S, ACCEPTS_AT_ONCE, MAX_BLOCKS))

    @property
    def blocks(self) -> int:
        """Return the number of address blocks with a token bucket."""
        return len(self._buckets)

    def allowed(self, block: str, now: float) -> bool:
        """Count a connection -> whether it may begin a handshake."""
        return self._buckets.take(block, now)


@dataclass(slots=True)
class Handshakes(Generic[Handle]):
    """Inbound connections that have not authenticated yet."""

    _under_way: dict[Handle, str] = field(default_factory=dict)  # handshakes under way by address block, the oldest first

    def begin(self, block: str, handle: Handle) -> Handle | None:
        """Add a handshake from an address block -> the handshake to cancel if there are too many."""
        victim = None
        mine = [each for each, theirs in self._under_way.items() if theirs == block]
        if len(mine) >= MAX_HANDSHAKES_PER_BLOCK:
            victim = mine[0]
        elif len(self._under_way) >= MAX_HANDSHAKES:
            victim = next(iter(self._under_way))
        if victim is not None:
            del self._under_way[victim]
        self._under_way[handle] = block
        return victim

    def end(self, handle: Handle) -> None:
        """Note that a handshake has ended."""
        self._under_way.pop(handle, None)


def is_full(established: Sequence[ConnectionInfo], block: str, limits: LimitsSection, now: float) -> bool:
    """Tell if a handshake, which costs milliseconds, is useless: the address block has all of its connections, and none is idle."""
    from_block = [info for info in established if info.inbound and info.block == block]
    return len(from_block) >= limits.connections_per_ip and all(now - info.useful_at < IDLE_S for info in from_block)


def make_room(
    established: Sequence[ConnectionInfo], newcomer: ConnectionInfo, limits: LimitsSection, now: float
) -> list[ConnectionInfo] | None:
    """Return the `established` connections, oldest first, to close so that an authenticated inbound newcomer may stay; None: it may not.

    Connections that we dialled count, but only inbound ones are closed. A public prefix of many address blocks has a share of all.
    """
    same_peer = [info for info in established if info.peer == newcomer.peer]
    leaving = same_peer[: len(same_peer) - MAX_PER_PEER + 1] if len(same_peer) >= MAX_PER_PEER else []
    staying = [info for info in established if info not in leaving]
    inbound = [info for info in staying if info.inbound]
    from_block = [info for info in inbound if info.block == newcomer.block]
    from_origin = [info for info in inbound if info.origin == newcomer.origin != ""]
    if len(from_block) >= limits.connections_per_ip:
        gone = _idlest(from_block, now)
    elif len(from_origin) >= max(1, limits.connections // ORIGIN_SHARE):
        gone = _idlest(from_origin, now)
    elif len(staying) >= limits.connections:
        gone = _idlest(inbound, now) or _greediest(inbound, newcomer)
    else:
        return leaving
    return None if gone is None else [*leaving, gone]


def _idlest(candidates: Sequence[ConnectionInfo], now: float) -> ConnectionInfo | None:
    idlest = min(candidates, key=lambda info: info.useful_at, default=None)
    return None if idlest is None or now - idlest.useful_at < IDLE_S else idlest


def _greediest(inbound: Sequence[ConnectionInfo], newcomer: ConnectionInfo) -> ConnectionInfo | None:
    """Return the idlest connection of the prefix that holds most, if that is two more than the newcomer's prefix holds or more."""
    held = Counter(info.prefix for info in inbound)
    greedy, most = held.most_common(1)[0] if held else ("", 0)
    if most < held[newcomer.prefix] + 2:
        return None
    return min((info for info in inbound if info.prefix == greedy), key=lambda info: info.useful_at)
