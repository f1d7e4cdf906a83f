"""Open probes of one node, its own and those it relays, and the order in which members are probed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.membership.sampler import Sampler

MAX_RELAYS, MAX_RELAYS_OF_ONE = 64, 16  # largest number of open probes for all other peers, and for one of them


@dataclass(slots=True)
class OpenProbe:
    """A probe without an answer yet."""

    nonce: int
    peer: str
    sent: float  # local time of the first Probe
    until: float  # local time at which it fails, or helpers are asked
    helpers: tuple[str, ...] = ()  # members asked to probe on our behalf; empty before that
    asker: tuple[str, int] | None = None
    """The peer on whose behalf we probe, and its nonce; None for a probe of our own."""


@dataclass(slots=True)
class Probes:
    """All open probes of one node."""

    sampler: Sampler
    _open: dict[int, OpenProbe] = field(default_factory=dict)
    _nonces: int = 0
    _lap: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """Local time at which the first of them is overdue."""
        return min((probe.until for probe in self._open.values()), default=math.inf)

    @property
    def relayed(self) -> int:
        """Open probes on behalf of others, at most MAX_RELAYS."""
        return sum(probe.asker is not None for probe in self._open.values())

    def may_relay(self, asker: str) -> bool:
        """Tell if a probe on behalf of this peer may be opened."""
        askers = [probe.asker[0] for probe in self._open.values() if probe.asker is not None]
        return len(askers) < MAX_RELAYS and askers.count(asker) < MAX_RELAYS_OF_ONE

    def begin(self, peer: str, now: float, until: float, asker: tuple[str, int] | None = None) -> int:
        """Open a probe; return its nonce."""
        nonce, self._nonces = self._nonces, self._nonces + 1
        self._open[nonce] = OpenProbe(nonce, peer, now, until, asker=asker)
        return nonce

    def overdue(self, now: float) -> list[OpenProbe]:
        """Return the probes whose time is up."""
        return [probe for probe in self._open.values() if now >= probe.until]

    def extend(self, until: float) -> None:
        """Extend all open probes to at least this time."""
        for probe in self._open.values():
            probe.until = max(probe.until, until)

    def find(self, peer: str) -> OpenProbe | None:
        """Return our own oldest open probe of a peer, or None."""
        return next((probe for probe in self._open.values() if probe.peer == peer and probe.asker is None), None)

    def drop(self, probe: OpenProbe) -> None:
        """Close a probe without an answer."""
        del self._open[probe.nonce]

    def answered(self, nonce: int, sender: str, reached: str) -> OpenProbe | None:
        """Close and return the probe that an Acknowledge answers, if any; `reached` is the target a helper names, "" from the target."""
        probe = self._open.get(nonce)
        if probe is None or probe.peer != (reached or sender) or (reached and sender not in probe.helpers):
            return None
        return self._open.pop(nonce)

    def next_target(self, others: Sequence[str]) -> str | None:
        """Return the member to probe next: each once per lap, in a new random order for every lap; None without members."""
        present = set(others)
        for _ in range(2):
            while self._lap:
                peer = self._lap.pop()
                if peer in present:
                    return peer
            self._lap = list(self.sampler.sample(others, len(others)))
        return None
