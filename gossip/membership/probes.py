"""The probes a member has open, its own and those on behalf of others, and whose turn it is next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.membership.sampler import Chance

MAX_RELAYS = 64
"""Open probes on behalf of others."""


@dataclass(slots=True)
class OpenProbe:
    """A question not answered yet.

    Args:
        nonce: its number.
        peer: whom it asks.
        sent: when it was first asked.
        until: when we stop waiting, or go on to helpers.
        helpers: who was asked to ask for us; none yet, if empty.
        asker: for whom we ask, and that one's nonce; None for ourselves.
    """

    nonce: int
    peer: str
    sent: float
    until: float
    helpers: tuple[str, ...] = ()
    asker: tuple[str, int] | None = None


@dataclass(slots=True)
class Probes:
    """All open probes of one member."""

    chance: Chance
    _open: dict[int, OpenProbe] = field(default_factory=dict)
    _nonces: int = 0
    _lap: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """When the first of them is overdue."""
        return min((probe.until for probe in self._open.values()), default=math.inf)

    @property
    def relays(self) -> int:
        """How many are on behalf of others."""
        return sum(probe.asker is not None for probe in self._open.values())

    def begin(self, peer: str, now: float, until: float, asker: tuple[str, int] | None = None) -> int:
        """A new question; its nonce."""
        nonce, self._nonces = self._nonces, self._nonces + 1
        self._open[nonce] = OpenProbe(nonce, peer, now, until, asker=asker)
        return nonce

    def overdue(self, now: float) -> list[OpenProbe]:
        """Those to be given up, or helped."""
        return [probe for probe in self._open.values() if now >= probe.until]

    def of(self, peer: str) -> OpenProbe | None:
        """Our own oldest open question to a peer."""
        return next((probe for probe in self._open.values() if probe.peer == peer and probe.asker is None), None)

    def give_up(self, probe: OpenProbe) -> None:
        """No longer wait."""
        del self._open[probe.nonce]

    def answered(self, nonce: int, sender: str, reached: str) -> OpenProbe | None:
        """The probe that this answer closes; None if it closes none.

        Args:
            nonce: of the answer.
            sender: whose frame it is.
            reached: whom a helper says it reached, "" if the sender speaks for itself.
        """
        probe = self._open.get(nonce)
        if probe is None or probe.peer != (reached or sender) or (reached and sender not in probe.helpers):
            return None
        return self._open.pop(nonce)

    def next_in_lap(self, others: Sequence[str]) -> str | None:
        """Whose turn it is: each of the members once, in an order new for every lap."""
        present = set(others)
        for _ in range(2):
            while self._lap:
                peer = self._lap.pop()
                if peer in present:
                    return peer
            self._lap = list(self.chance.sample(others, len(others)))
        return None
