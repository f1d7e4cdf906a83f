"""Who may stay: what each peer did wrong, what it did right, and what follows from it.

Two numbers, and neither ever grows by saying nothing:

    score          what it did wrong. A fault adds its weight; the score halves every half-life and changes in no other way, so a rare
                   fault never adds up
    contribution   what it did right. An exchange in time earns `EARNED`, up to `MOST`; it halves every `memory_s`. Being late costs
                   it, and so does being clipped far more often than others are. Faults are paid from it first, so that a good
                   past buys two hard faults and no more: a sleeper has nothing left for the third

Faults that a healthy peer can commit (it is late, its view is old, it restarted) weigh little; what only a broken or hostile program
sends weighs so much that the second or third one counts; what is proven (`robust.evidence`) bans at once. How far away a peer's vectors
are is no fault: honest minorities are far. It only earns nothing while others are not clipped as often.

    probation      new, or back from a quarantine or ban: nothing known that speaks for it
    active         `turns` exchanges and some contribution
    quarantine     score reached `quarantine`: for `quarantine_s` no connection; what others tell of it in membership is still heard
    ban            score reached `ban`: the same for `ban_s`, twice as long for each earlier ban (at most 1024 times)

An end once given is never moved to an earlier time, but by the owner. The score outlives a quarantine (decayed) and starts at 0 after a
ban; what still arrives from a banned peer is counted but changes nothing, for it was sent before. The owner's word stands above
all: who is trusted is never shut out by this node itself, who is banned by hand stays banned until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Literal

SOFT = 1.0
HARD = 10.0
PROOF = 100.0

WEIGHTS = MappingProxyType(
    {
        "not_a_member": SOFT,
        "stale": SOFT,
        "late": SOFT,
        "too_many_frames": SOFT,
        "duplicate_reply": SOFT,
        "unknown_swarm": SOFT,
        "foreign_swarm": SOFT,
        "invitation_overused": SOFT,
        "too_much_evidence": SOFT,
        "equivocation": PROOF,
        "state_poisoned": PROOF,
    }
)
"""What a healthy peer can be (behind, restarted, overloaded, robbed of an invitation), and what is proven. Every other reason is HARD: no
program that follows the protocol gives cause for it."""

EARNED = 0.2
LATE_COSTS = 0.5
MOST = 20.0
ACTIVE = 2.0
INVITER_SHARE = 0.25
"""Of an invitee's fault, borne by who invited it."""
NEWEST = 0.1
"""Weight of the newest exchange in a share of exchanges."""
UNUSUAL = 0.25
"""How much more often than the median peer one must be clipped for that to count."""
COMPARED = 3
"""Other peers needed to know what is usual."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a peer stands.

    Args:
        state: ok, or quarantine or ban, which differ in how long they last: no connection until then.
        until: when that ends on the clock the times came from; -inf for ok, inf for a ban without end.
    """

    state: Literal["ok", "quarantine", "ban"]
    until: float


OK = Verdict("ok", -math.inf)


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is known of how a peer behaves.

    Args:
        state: see the module.
        until: when a quarantine or ban ends, else -inf.
        score: >= 0, higher is worse.
        contribution: in [0, MOST], higher is better.
        staleness: share of recent exchanges that it let pass, in [0, 1]; None before the first.
        clipped: share of recent exchanges in which what it sent was clipped, in [0, 1]; None before the first.
        trusted: by the owner.
        why: of a ban, for a person.
    """

    state: Literal["probation", "active", "quarantine", "ban"]
    until: float
    score: float
    contribution: float
    staleness: float | None
    clipped: float | None
    trusted: bool
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be kept over a restart.

    Args:
        peer: about whom.
        kind: ban or trust.
        until: when a ban ends, on the clock of `Reputation.decisions`; inf for no end, and for trust.
        bans: how many there were, this one included.
        why: for a person.
    """

    peer: str
    kind: Literal["ban", "trust"]
    until: float = math.inf
    bans: int = 0
    why: str = ""


@dataclass(slots=True)
class _Entry:
    score: float = 0.0
    at: float = -math.inf
    faults: int = 0
    bans: int = 0
    verdict: Verdict = OK
    contribution: float = 0.0
    earned_at: float = -math.inf
    turns: int = 0
    stale: float | None = None
    clipped: float | None = None
    trusted: bool = False
    why: str = ""


@dataclass(slots=True)
class Reputation:
    """What a node knows of how its peers behave. Pure arithmetic: the time is an argument.

    Args:
        half_life_s: seconds in which a score halves.
        quarantine: score at which a peer is quarantined.
        ban: score at which it is banned.
        quarantine_s: seconds of a quarantine.
        ban_s: seconds of a first ban.
        remembered: most peers remembered; the one there is least to say of is forgotten first, a punished one last.
        memory_s: seconds in which a contribution halves.
        turns: exchanges after which a peer is no longer new.
    """

    half_life_s: float = 300.0
    quarantine: float = 15.0
    ban: float = 35.0
    quarantine_s: float = 120.0
    ban_s: float = 3600.0
    remembered: int = 4096
    memory_s: float = 3600.0
    turns: int = 20
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 < self.quarantine <= self.ban:
            raise ValueError(f"need 0 < quarantine <= ban, got {self.quarantine} and {self.ban}")
        if min(self.half_life_s, self.quarantine_s, self.ban_s, self.remembered, self.memory_s) <= 0:
            raise ValueError("half_life_s, quarantine_s, ban_s, remembered and memory_s must be > 0")

    # --- what peers do ------------------------------------------------------------------------------------

    def fault(self, peer: str, reason: str, now: float) -> Verdict:
        """Count a fault and say how the peer stands after it.

        Args:
            peer: whose fault.
            reason: the word of `RemoteProtocolError`; unknown words weigh HARD.
            now: seconds.
        """
        return self._charge(peer, WEIGHTS.get(reason, HARD), reason, now)

    def invited(self, inviter: str, reason: str, now: float) -> Verdict:
        """A peer that `inviter` invited is at fault: it bears its share. -> how the inviter stands after it"""
        return self._charge(inviter, INVITER_SHARE * WEIGHTS.get(reason, HARD), f"invitee: {reason}", now)

    def exchanged(self, peer: str, now: float, *, clipped: bool | None = None) -> None:
        """An exchange was done in time; `clipped`: whether what the peer sent was too long, None where nothing is clipped."""
        entry = self._turn(peer, now, missed=False)
        if clipped is not None:
            entry.clipped = _share(entry.clipped, clipped)
        self._earn(entry, -EARNED if self._unusual(entry) else EARNED, now)

    def missed(self, peer: str, now: float) -> None:
        """The peer was late or did not answer: no fault, for it may have a slow line, and no merit."""
        self._earn(self._turn(peer, now, missed=True), -LATE_COSTS, now)

    # --- what the owner decides ---------------------------------------------------------------------------

    def shut_out(self, peer: str, now: float, until: float = math.inf, why: str = "") -> Verdict:
        """Ban a peer by the owner's word, trusted or not; replaces the end of an earlier ban."""
        entry = self._of(peer, now)
        entry.trusted, entry.why = False, why
        entry.bans += 1
        self._disgrace(entry, Verdict("ban", until))
        return entry.verdict

    def trust(self, peer: str, now: float) -> None:
        """Never shut a peer out by own decision; one that is shut out now is not any longer."""
        entry = self._of(peer, now)
        entry.trusted, entry.why, entry.verdict, entry.score = True, "", OK, 0.0

    def forgive(self, peer: str) -> bool:
        """Undo every ban, quarantine and trust: the peer is new. -> whether there was any"""
        entry = self._entries.get(peer)
        if entry is None or (entry.verdict == OK and not entry.trusted):
            return False
        del self._entries[peer]
        return True

    def decisions(self, now: float) -> tuple[Decision, ...]:
        """Bans in force and trust, to be kept over a restart, by peer id."""
        kept = []
        for peer, entry in sorted(self._entries.items()):
            if entry.trusted:
                kept.append(Decision(peer, "trust"))
            elif entry.verdict.state == "ban" and now < entry.verdict.until:
                kept.append(Decision(peer, "ban", entry.verdict.until, entry.bans, entry.why))
        return tuple(kept)

    def resume(self, decisions: Iterable[Decision], now: float) -> None:
        """Take over what an earlier run kept; `until` on the clock of `now`."""
        for decision in decisions:
            entry = self._of(decision.peer, now)
            entry.trusted = decision.kind == "trust"
            if decision.kind == "ban":
                entry.bans, entry.why, entry.verdict = decision.bans, decision.why, Verdict("ban", decision.until)

    # --- what is known ------------------------------------------------------------------------------------

    def verdict(self, peer: str, now: float) -> Verdict:
        """How a peer stands now; asking changes nothing."""
        entry = self._entries.get(peer)
        return entry.verdict if entry is not None and now < entry.verdict.until else OK

    def standing(self, peer: str, now: float) -> Standing:
        """All about a peer; asking changes nothing."""
        entry = self._entries.get(peer, _Entry())
        verdict, contribution = self.verdict(peer, now), self._contribution(entry, now)
        known = entry.turns >= self.turns and contribution >= ACTIVE
        state = verdict.state if verdict.state != "ok" else "active" if known else "probation"
        return Standing(
            state, verdict.until, self._decayed(entry, now), contribution, entry.stale, entry.clipped, entry.trusted,
            entry.why if verdict.state == "ban" else "",
        )  # fmt: skip

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

    # --- inside -------------------------------------------------------------------------------------------

    def _charge(self, peer: str, weight: float, reason: str, now: float) -> Verdict:
        entry = self._of(peer, now)
        entry.faults += 1
        if self.verdict(peer, now).state == "ban":
            return entry.verdict
        paid = min(weight, self._contribution(entry, now))
        self._earn(entry, -paid, now)
        entry.score = self._decayed(entry, now) + weight - paid
        entry.at = max(entry.at, now)
        if entry.trusted:
            return OK
        if entry.score >= self.ban:
            until = max(now + self.ban_s * 2.0 ** min(entry.bans, 10), entry.verdict.until)
            entry.bans += 1
            entry.why = reason
            self._disgrace(entry, Verdict("ban", until))
        elif entry.score >= self.quarantine:
            score = entry.score
            self._disgrace(entry, Verdict("quarantine", max(now + self.quarantine_s, entry.verdict.until)))
            entry.score = score
        return self.verdict(peer, now)

    def _disgrace(self, entry: _Entry, verdict: Verdict) -> None:
        """Whatever comes after it begins on probation."""
        entry.verdict, entry.score = verdict, 0.0
        entry.contribution, entry.turns = 0.0, 0

    def _turn(self, peer: str, now: float, *, missed: bool) -> _Entry:
        entry = self._of(peer, now)
        entry.turns += 1
        entry.stale = _share(entry.stale, missed)
        return entry

    def _earn(self, entry: _Entry, amount: float, now: float) -> None:
        entry.contribution = min(MOST, max(0.0, self._contribution(entry, now) + amount))
        entry.earned_at = max(entry.earned_at, now)

    def _unusual(self, entry: _Entry) -> bool:
        """Clipped far more often than the median of the others: relative, so that a far minority among its like is not."""
        if entry.clipped is None or entry.clipped <= UNUSUAL:
            return False
        others = [e.clipped for e in self._entries.values() if e is not entry and e.clipped is not None]
        return len(others) >= COMPARED and entry.clipped > median(others) + UNUSUAL

    def _decayed(self, entry: _Entry, now: float) -> float:
        return entry.score * math.exp2(-max(0.0, now - entry.at) / self.half_life_s)

    def _contribution(self, entry: _Entry, now: float) -> float:
        return entry.contribution * math.exp2(-max(0.0, now - entry.earned_at) / self.memory_s)

    def _of(self, peer: str, now: float) -> _Entry:
        entry = self._entries.get(peer)
        if entry is None:
            self._make_room(now)
            entry = self._entries[peer] = _Entry()
        return entry

    def _make_room(self, now: float) -> None:
        if len(self._entries) < self.remembered:
            return

        def weight(peer: str) -> tuple[bool, float, int, float]:
            entry = self._entries[peer]
            worth = self._decayed(entry, now) + self._contribution(entry, now)
            return (entry.trusted, max(now, entry.verdict.until), entry.bans, worth)

        del self._entries[min(self._entries, key=weight)]


def _share(share: float | None, happened: bool) -> float:
    """A moving share of events; the first counts like any other, so that one event is no habit."""
    before = share or 0.0
    return before + NEWEST * (float(happened) - before)
