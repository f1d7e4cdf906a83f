"""Waits of a node for each member: longer for a far or slow one, and for all while the node suspects itself.

Theory of operation. Every wait of the detector is a multiple of `timeout_s` or `suspicion_s`. All of them stretch by one factor for each
member, 1 <= stretch <= MOST, the larger of two:

    of the member   (median + SPREADS · MAD of its last round trips) / timeout_s
    of this node    1 + doubt, an integer of 0 to MOST - 1

    doubt   rises by 1      a probe failed although helpers were asked, and since it was sent no frame came from anybody
            at least lag    a timer fired `lag` · timeout_s late: what came meanwhile waits unread
            falls by 1      a member acknowledged a probe of ours in time

A round trip is also measured where the acknowledgement comes after helpers were asked or after the probe was given up; else a link of
600 ms could never be learned from probes of 500 ms. A member that answers late on purpose is found dead later, by a factor of MOST at
most, and no other member is.

Source: Dadgar, Phillips, Currey 2018 (Lifeguard, arXiv:1707.00788), local health multiplier. Deviations: round trips are measured; the
lag of timers counts; any frame counts as an answer of helpers; probes stay as frequent, as they cost little; refuting an accusation does
not count, since two liars could then keep a node in doubt of itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from statistics import median

from starling.gossip.limits import keep
from starling.gossip.robust_deadline import late_after

MOST = 9
SPREADS = 4.0
WINDOW = 16  # round trips remembered of a member
SLACK, FIRST_SLACK = (0.1, 0.5)  # smallest spread as a share of the median: of many round trips, and of one alone (RFC 6298)
MAX_GIVEN_UP = 1024  # probes of which a late acknowledgement is still measured


@dataclass(slots=True)
class LocalHealth:
    """Round trips of members, and this node's doubt in itself. Times are local seconds."""

    timeout_s: float
    doubt: int = 0
    _trips: dict[str, deque[float]] = field(default_factory=dict)
    _given_up: dict[int, tuple[str, float]] = field(default_factory=dict)  # nonce -> probed peer, and time

    def stretch(self, peer: str) -> float:
        """Factor of all waits for this member, in [1, MOST]."""
        return max(1.0 + self.doubt, self._trip_s(peer) / self.timeout_s)

    def wait_s(self, peer: str) -> float:
        """Return the seconds that an answer of this member may take."""
        return self.timeout_s * self.stretch(peer)

    def usual_s(self, peer: str) -> float:
        """Return the longest usual seconds of an answer of this member: less than `wait_s`, which a few late ones lengthen."""
        trips = self._trips.get(peer, (0.0,))
        return max(self.timeout_s * (1 + self.doubt), 2.0 * median(trips))

    def acknowledged(self, peer: str, trip_s: float, *, in_time: bool) -> None:
        """A member acknowledged a probe of ours after so long, >= 0; `in_time`: before helpers were asked."""
        self._trips.setdefault(peer, deque(maxlen=WINDOW)).append(trip_s)
        self.doubt = max(0, self.doubt - in_time)

    def failed(self, nonce: int, peer: str, sent: float, *, silence: bool) -> None:
        """A probe sent at that time failed; `silence`: helpers were asked too, and no frame from anybody has arrived since."""
        keep(self._given_up, nonce, (peer, sent), MAX_GIVEN_UP)
        self._raise(self.doubt + silence)

    def late(self, nonce: int, peer: str, now: float) -> float | None:
        """Return an acknowledgement came from a member for a probe that is not open -> how many seconds it took; None: not of this
        member.
        """
        probed, sent = self._given_up.get(nonce, ("", 0.0))
        if probed != peer:
            return None
        del self._given_up[nonce]
        self.acknowledged(peer, now - sent, in_time=False)
        return now - sent

    def lagged(self, lag_s: float) -> bool:
        """Return whether a timer fired so late that this node was suspended and expected answers may have arrived already."""
        if lag_s <= self.timeout_s / 2:
            return False
        self._raise(max(self.doubt, math.ceil(min(lag_s / self.timeout_s, MOST))))
        return True

    def keep(self, peers: Container[str]) -> None:
        """Forget all other members."""
        self._trips = {peer: trips for peer, trips in self._trips.items() if peer in peers}

    def _raise(self, doubt: int) -> None:
        self.doubt = min(doubt, MOST - 1)

    def _trip_s(self, peer: str) -> float:
        trips = self._trips.get(peer)
        if not trips:
            return 0.0
        return min(late_after(trips, SPREADS, max(SLACK, FIRST_SLACK / len(trips))), MOST * self.timeout_s)
