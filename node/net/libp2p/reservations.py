"""Choose the relays that a node asks for a reservation if it cannot be dialled. Pure: peers and times in, decisions out.

WANTED relays at a time: one that ends leaves the other. A reservation is renewed when half of its time is over, and at least every RENEW_S,
as a relay may have given it to another; a relay that refuses, or does not answer, is tried again after AGAIN_S, twice as long each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.limits import keep

WANTED = 2
RENEW_S = 300.0
LEAST_S, MOST_S = 60.0, 3600.0  # bounds on the duration that a relay states
AGAIN_S, MOST_AGAIN_S = 10.0, 1280.0
MAX_REFUSED = 256


@dataclass(slots=True)
class Reservations:
    """Decides on one node's relay reservations."""

    _held: dict[str, tuple[float, float]] = field(default_factory=dict)  # relay -> (time to renew, end of the reservation)
    _refused: dict[str, tuple[int, float]] = field(default_factory=dict)  # peer -> (refusals in a row, time to ask again)
    _asking: set[str] = field(default_factory=set)

    def held(self, now: float) -> tuple[str, ...]:
        """Return relays with a reservation, the oldest first."""
        return tuple(relay for relay, (_, ends_at) in self._held.items() if now < ends_at)

    def ask(self, candidates: Sequence[str], now: float) -> tuple[str, ...]:
        """Return the peers to ask now, and note that they are asked; `candidates`: connected peers that may be relays, the best first."""
        for relay in [each for each, (_, ends_at) in self._held.items() if ends_at <= now]:
            del self._held[relay]
        chosen = [
            relay
            for relay, (renew_at, _) in self._held.items()
            if renew_at <= now and relay not in self._asking and self._may_ask(relay, now)
        ]
        missing = WANTED - len(self._held) - len(self._asking - self._held.keys())
        for peer in candidates:
            if missing <= 0:
                break
            if peer not in self._held and peer not in self._asking and self._may_ask(peer, now):
                chosen.append(peer)
                missing -= 1
        self._asking.update(chosen)
        return tuple(chosen)

    def granted(self, relay: str, lasts_s: float, now: float) -> None:
        """Note that a relay gave or renewed a reservation."""
        self._asking.discard(relay)
        self._refused.pop(relay, None)
        lasts_s = min(max(lasts_s, LEAST_S), MOST_S)
        self._held[relay] = now + min(lasts_s / 2, RENEW_S), now + lasts_s

    def refused(self, relay: str, now: float) -> None:
        """Note that a relay refused or did not answer; an existing reservation lasts until its end."""
        self._asking.discard(relay)
        times = self._refused.get(relay, (0, 0.0))[0] + 1
        pause_s = min(AGAIN_S * 2.0 ** min(times - 1, 10), MOST_AGAIN_S)
        keep(self._refused, relay, (times, now + pause_s), MAX_REFUSED)

    def lost(self, relay: str) -> None:
        """Delete the reservation at a relay whose connection is closed."""
        self._held.pop(relay, None)

    def _may_ask(self, peer: str, now: float) -> bool:
        return now >= self._refused.get(peer, (0, now))[1]
