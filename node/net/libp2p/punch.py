"""Protocol by which two nodes behind NATs connect without a relay, and the choice of pairs to try. Pure.

Theory of operation (the DCUtR protocol of libp2p). A NAT lets in what comes from where something was sent to. Both ends have a
connection through a relay; each knows from that relay at which address and port it is seen. Both connect to the other at the same moment,
from the port that the relay sees, so that each opens its own NAT for the other: a TCP simultaneous open.

    opener (the relayed connection was opened to it)                 answerer
        CONNECT(own addresses) ──────────────────────────────────▶
        ◀────────────────────────────────── CONNECT(own addresses)
        SYNC ────────────────────────────────────────────────────▶   connects at once, and is the handshake's initiator
        connects half a round trip later, and is its responder

A message out of order ends the attempt. Of the peer's messages only addresses are used, and those only as destinations that are rationed
like any reported by others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.limits import keep

MAX_ADDRESSES = 4
MOST_DELAY_S = 2.0  # half a round trip, in seconds, at most
FIRST_PAUSE_S, LONGEST_PAUSE_S = 65.0, 3600.0  # seconds; the first pause is longer than the one between two dials of an address
MAX_REMEMBERED = 1024

State = Literal["idle", "asked", "answered", "connecting", "over"]


@dataclass(frozen=True, slots=True)
class SayConnect:
    """Command: send CONNECT with our addresses."""


@dataclass(frozen=True, slots=True)
class SaySync:
    """Command: send SYNC to the other end."""


@dataclass(frozen=True, slots=True)
class ConnectTo:
    """Command: connect to these addresses at this time; `initiate` the handshake, or answer it."""

    addresses: tuple[str, ...]
    at: float
    initiate: bool


Command = SayConnect | SaySync | ConnectTo


@dataclass(slots=True)
class Punch:
    """State machine of one end of one attempt; the methods return commands to carry out in order, [] ends the attempt."""

    opens: bool
    state: State = "idle"
    _asked_at: float = 0.0
    _addresses: tuple[str, ...] = ()

    def begin(self, now: float) -> list[Command]:
        """Return the opener's first step."""
        if not self.opens or self.state != "idle":
            return self._end()
        self.state, self._asked_at = "asked", now
        return [SayConnect()]

    def connect(self, addresses: Sequence[str], now: float) -> list[Command]:
        """Process a received CONNECT."""
        self._addresses = tuple(addresses)[:MAX_ADDRESSES]
        if not self._addresses:
            return self._end()
        if self.opens and self.state == "asked":
            self.state = "connecting"
            delay_s = min(max(now - self._asked_at, 0.0) / 2, MOST_DELAY_S)
            return [SaySync(), ConnectTo(self._addresses, now + delay_s, initiate=False)]
        if not self.opens and self.state == "idle":
            self.state = "answered"
            return [SayConnect()]
        return self._end()

    def sync(self, now: float) -> list[Command]:
        """Process a received SYNC."""
        if self.opens or self.state != "answered":
            return self._end()
        self.state = "connecting"
        return [ConnectTo(self._addresses, now, initiate=True)]

    def _end(self) -> list[Command]:
        self.state = "over"
        return []


@dataclass(slots=True)
class Pairs:
    """Decides which peers may be tried: a failed peer waits, twice as long each time, as NATs do not change by the minute."""

    _failed: dict[str, tuple[int, float]] = field(default_factory=dict)  # peer -> (failures in a row, time of the next attempt)

    def may_try(self, peer: str, now: float) -> bool:
        """Tell if enough time has passed."""
        return now >= self._failed.get(peer, (0, now))[1]

    def failures(self, peer: str) -> int:
        """Return how many attempts with a peer failed in a row."""
        return self._failed.get(peer, (0, 0.0))[0]

    def failed(self, peer: str, now: float) -> None:
        """Note that an attempt with a peer failed."""
        times = self.failures(peer) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 10), LONGEST_PAUSE_S)
        keep(self._failed, peer, (times, now + pause_s), MAX_REMEMBERED)

    def met(self, peer: str) -> None:
        """Note a direct connection."""
        self._failed.pop(peer, None)

    def moved(self) -> None:
        """Allow new attempts with all peers: this node's addresses changed."""
        self._failed.clear()
