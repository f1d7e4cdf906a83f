"""Who may stay: a decaying score of faults per peer, quarantine above one threshold, a ban above the next.

A fault adds its weight; the score halves every half-life and changes in no other way, so saying nothing never harms and
a rare fault never adds up. Faults that a healthy peer can commit (it is late, its view is old, it restarted) weigh
little; what only a broken or hostile program sends weighs so much that the second or third one counts.

    score below `quarantine`          ok
    `quarantine` reached              quarantine for `quarantine_s`: no edges, no exchanges, membership still heard
    `ban` reached                     ban for `ban_s`, twice as long for each earlier ban (at most 1024 times)

An end once given is never moved to an earlier time. The score outlives a quarantine (decayed) and starts at 0 after a
ban; what still arrives from a banned peer is counted but changes nothing, for it was sent before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

SOFT = 1.0
HARD = 10.0

WEIGHTS = MappingProxyType(
    {
        "not_a_member": SOFT,
        "stale": SOFT,
        "late": SOFT,
        "too_many_frames": SOFT,
        "duplicate_reply": SOFT,
        "unknown_swarm": SOFT,
        "foreign_swarm": SOFT,
    }
)
"""What a healthy peer can be: behind, restarted, overloaded. Every other reason is HARD: no program that follows the
protocol gives cause for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a peer stands.

    Args:
        state: ok, quarantine (no exchanges) or ban (no connection).
        until: when that ends on the clock the times came from; -inf for ok.
    """

    state: Literal["ok", "quarantine", "ban"]
    until: float


OK = Verdict("ok", -math.inf)


@dataclass(slots=True)
class _Entry:
    score: float = 0.0
    at: float = -math.inf
    faults: int = 0
    bans: int = 0
    verdict: Verdict = OK


@dataclass(slots=True)
class Reputation:
    """The scores of the peers a node has had trouble with. Pure arithmetic: the time is an argument.

    Args:
        half_life_s: seconds in which a score halves.
        quarantine: score at which a peer is quarantined.
        ban: score at which it is banned.
        quarantine_s: seconds of a quarantine.
        ban_s: seconds of a first ban.
        remembered: most peers remembered; the cleanest is forgotten first, a punished one last.
    """

    half_life_s: float = 300.0
    quarantine: float = 15.0
    ban: float = 35.0
    quarantine_s: float = 120.0
    ban_s: float = 3600.0
    remembered: int = 4096
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 < self.quarantine <= self.ban:
            raise ValueError(f"need 0 < quarantine <= ban, got {self.quarantine} and {self.ban}")
        if min(self.half_life_s, self.quarantine_s, self.ban_s, self.remembered) <= 0:
            raise ValueError("half_life_s, quarantine_s, ban_s and remembered must be > 0")

    def fault(self, peer: str, reason: str, now: float) -> Verdict:
        """Count a fault and say how the peer stands after it.

        Args:
            peer: whose fault.
            reason: the word of `RemoteProtocolError`; unknown words weigh HARD.
            now: seconds.
        """
        entry = self._entries.get(peer)
        if entry is None:
            self._make_room(now)
            entry = self._entries[peer] = _Entry()
        entry.faults += 1
        if self.verdict(peer, now).state == "ban":
            return entry.verdict
        entry.score = self._decayed(entry, now) + WEIGHTS.get(reason, HARD)
        entry.at = max(entry.at, now)
        if entry.score >= self.ban:
            entry.verdict = Verdict("ban", max(now + self.ban_s * 2.0 ** min(entry.bans, 10), entry.verdict.until))
            entry.bans += 1
            entry.score = 0.0
        elif entry.score >= self.quarantine:
            entry.verdict = Verdict("quarantine", max(now + self.quarantine_s, entry.verdict.until))
        return self.verdict(peer, now)

    def verdict(self, peer: str, now: float) -> Verdict:
        """How a peer stands now; asking changes nothing."""
        entry = self._entries.get(peer)
        return entry.verdict if entry is not None and now < entry.verdict.until else OK

    def score(self, peer: str, now: float) -> float:
        """The decayed score, >= 0; 0 for a peer without faults."""
        entry = self._entries.get(peer)
        return 0.0 if entry is None else self._decayed(entry, now)

    def faults(self, peer: str) -> int:
        """Faults counted since the peer is remembered."""
        entry = self._entries.get(peer)
        return 0 if entry is None else entry.faults

    def __len__(self) -> int:
        return len(self._entries)

    def _decayed(self, entry: _Entry, now: float) -> float:
        halvings = max(0.0, now - entry.at) / self.half_life_s
        return entry.score * math.exp2(-halvings)

    def _make_room(self, now: float) -> None:
        if len(self._entries) < self.remembered:
            return

        def guilt(peer: str) -> tuple[float, int, float]:
            entry = self._entries[peer]
            return (max(now, entry.verdict.until), entry.bans, self._decayed(entry, now))

        del self._entries[min(self._entries, key=guilt)]
