"""Peer reputation: a decaying fault score, a decaying contribution, and the bans that follow from them.

    score          a fault adds its weight; the score halves every half-life, so that rare faults do not add up
    contribution   an exchange in time adds EARNED, up to MOST; it halves every `memory_s`. Missed exchanges reduce it, and so does
                   being clipped far more often than other peers. Faults are deducted from it first, so that a good record offsets
                   two hard faults at most

Faults that a healthy peer can commit (a late frame, a stale member list, a restart) weigh little. Of those that only a broken or hostile
program commits the second or third has consequences. Proven misbehaviour (`robust.evidence`) bans at once. The distance of a peer's
vectors weighs little at most, as honest minorities are far: `robust.distances` takes nothing of it for a while, and closes no
connection. Clipped more often than other peers it earns no contribution.

    probation      new, or back from a quarantine or ban
    active         at least `turns` exchanges and some contribution
    quarantine     the score reached `quarantine`: no connection for `quarantine_s`; membership records about it are still processed
    ban            the score reached `ban`: the same for `ban_s`, doubled with each earlier ban (at most 1024 times)

Only the operator can move the end of a quarantine or ban to an earlier time. The score survives a quarantine (decayed) and starts at 0
after a ban; frames from a banned peer have no effect, as they were sent before. The operator's decision overrides all others: a trusted
peer is never banned automatically, and a manual ban stays until its end.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Literal

from starling.gossip.limits import keep

SOFT = 1.0
HARD = 10.0
PROOF = 100.0

_HEALTHY = (
    "not_a_member",
    "stale",
    "late",
    "too_many_frames",
    "duplicate_reply",
    "unknown_swarm",
    "foreign_swarm",
    "invitation_overused",
    "too_much_evidence",
    "late_contradicted",
    "state_outlier",
    "state_withheld",
    "crew_mute",
    "model_far",
)
_PROVEN = ("equivocation", "state_poisoned")
WEIGHTS = MappingProxyType(dict.fromkeys(_HEALTHY, SOFT) | dict.fromkeys(_PROVEN, PROOF))
"""Weights of faults that a healthy peer can cause (behind, restarted, overloaded, its invitation stolen, its model far from two that are
alike or from ours where others are near, its line deaf one way or much slower than others' when a model is asked for), and of proven ones.
Any other reason weighs HARD: a program that follows the protocol never causes it."""

EARNED = 0.2
LATE_COSTS = 0.5
MOST = 20.0
ACTIVE = 2.0
INVITER_SHARE = 0.25  # share of a guest's fault that its inviter is charged
GUEST_MOST = 5.0  # bound of a guest's share in its inviter's score: three bad guests quarantine their host, seven ban it
MAX_GUESTS = 64  # a host has as many invitations at most
NEWEST = 0.1  # weight of the newest exchange in moving averages
UNUSUAL = 0.25  # difference to the median peer's share of clipped exchanges from which on a peer loses contribution
COMPARED = 3  # smallest number of other peers for that median


@dataclass(frozen=True, slots=True)
class Verdict:
    """Standing of a peer; connections are refused in quarantine and ban."""

    state: Literal["ok", "quarantine", "ban"]
    until: float  # end of the verdict, in seconds on the caller's clock; -inf for ok, inf for a permanent ban


OK = Verdict("ok", -math.inf)


@dataclass(frozen=True, slots=True)
class Standing:
    """A snapshot of a peer's reputation."""

    state: Literal["probation", "active", "quarantine", "ban"]  # as in the module's documentation
    until: float  # end of a quarantine or ban, else -inf
    score: float  # >= 0, higher is worse
    contribution: float  # in [0, MOST], higher is better
    staleness: float | None  # moving average share of missed exchanges, in [0, 1]; None before the first
    clipped: float | None  # moving average share of exchanges with a clipped vector, in [0, 1]; None before the first
    trusted: bool  # by the operator
    why: str  # reason of a ban


@dataclass(frozen=True, slots=True)
class Decision:
    """A ban or trust to be stored across restarts."""

    peer: str  # its id
    kind: Literal["ban", "trust"]  # ban or trust
    until: float = math.inf  # end of a ban, on the clock of `Reputation.decisions`; inf for ever, and for trust
    bans: int = 0  # number of bans so far, this one included
    why: str = ""  # reason
    invitation: str = ""  # key of the invitation by which a banned peer came, as a peer id; "" where none is known


@dataclass(slots=True)
class _Entry:
    score: float = 0.0
    at: float = -math.inf
    bans: int = 0
    verdict: Verdict = OK
    contribution: float = 0.0
    earned_at: float = -math.inf
    turns: int = 0
    stale: float | None = None
    clipped: float | None = None
    trusted: bool = False
    why: str = ""
    guests: dict[str, tuple[float, float]] = field(default_factory=dict)  # points charged for each guest, and time of the last charge


@dataclass(slots=True)
class Reputation:
    """The reputation of all peers of one node. Pure arithmetic: the time is an argument."""

    half_life_s: float = 300.0  # seconds in which a score halves
    quarantine: float = 15.0  # score at which a peer is quarantined
    ban: float = 35.0  # score at which it is banned
    quarantine_s: float = 120.0  # seconds of a quarantine
    ban_s: float = 3600.0  # seconds of a first ban
    remembered: int = 4096  # largest number of peers stored; those of least score and contribution are evicted first, banned ones last
    memory_s: float = 3600.0  # seconds in which a contribution halves
    turns: int = 20  # exchanges after which a peer is no longer on probation
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 < self.quarantine <= self.ban:
            raise ValueError(f"need 0 < quarantine <= ban, got {self.quarantine} and {self.ban}")
        if min(self.half_life_s, self.quarantine_s, self.ban_s, self.remembered, self.memory_s) <= 0:
            raise ValueError("half_life_s, quarantine_s, ban_s, remembered and memory_s must be > 0")

    @property
    def size(self) -> int:
        """Peers stored, at most `remembered`, and guests of them, at most MAX_GUESTS of each."""
        return len(self._entries) + sum(len(entry.guests) for entry in self._entries.values())

    # --- observations ---------------------------------------------------------------------------------

    def fault(self, peer: str, reason: str, now: float) -> Verdict:
        """Count a fault with the reason of its `RemoteProtocolError`; return the verdict after it."""
        return self._charge(peer, WEIGHTS.get(reason, HARD), reason, now)

    def invited(self, inviter: str, guest: str, reason: str, now: float) -> Verdict:
        """Charge `inviter` a share of a fault of its `guest`, at most GUEST_MOST per guest; return the inviter's verdict."""
        guests = self._of(inviter, now).guests
        charged, at = guests.pop(guest, (0.0, now))
        charged *= math.exp2(-max(0.0, now - at) / self.half_life_s)
        weight = min(INVITER_SHARE * WEIGHTS.get(reason, HARD), GUEST_MOST - charged)
        keep(guests, guest, (charged + weight, now), MAX_GUESTS)
        return self._charge(inviter, weight, f"invitee: {reason}", now)

    def exchanged(self, peer: str, now: float, *, clipped: bool | None = None) -> None:
        """Count an exchange in time; `clipped`: whether the received vector was clipped, None where clipping is off."""
        entry = self._turn(peer, now, missed=False)
        if clipped is not None:
            entry.clipped = _share(entry.clipped, clipped)
        self._earn(entry, -EARNED if self._unusual(entry) else EARNED, now)

    def missed(self, peer: str, now: float) -> None:
        """Count a late or missing answer: no fault, as the link may be slow, but it costs contribution."""
        self._earn(self._turn(peer, now, missed=True), -LATE_COSTS, now)

    # --- decisions of the operator ------------------------------------------------------------------------

    def shut_out(self, peer: str, now: float, until: float = math.inf, why: str = "") -> Verdict:
        """Ban a peer by the operator's decision, trusted or not; replaces the end of an earlier ban."""
        entry = self._of(peer, now)
        entry.trusted, entry.why = False, why
        self._ban(entry, until)
        return entry.verdict

    def trust(self, peer: str, now: float) -> None:
        """Exempt a peer from automatic quarantine and ban, and end a present one."""
        entry = self._of(peer, now)
        entry.trusted, entry.why, entry.verdict, entry.score = True, "", OK, 0.0

    def forgive(self, peer: str) -> bool:
        """Remove every ban, quarantine and trust of a peer; return whether there was any."""
        entry = self._entries.get(peer)
        if entry is None or (entry.verdict == OK and not entry.trusted):
            return False
        del self._entries[peer]
        return True

    def decisions(self, now: float) -> tuple[Decision, ...]:
        """Bans in force and trusted peers, to be stored across restarts, sorted by peer id."""
        decisions = []
        for peer, entry in sorted(self._entries.items()):
            if entry.trusted:
                decisions.append(Decision(peer, "trust"))
            elif entry.verdict.state == "ban" and now < entry.verdict.until:
                decisions.append(Decision(peer, "ban", entry.verdict.until, entry.bans, entry.why))
        return tuple(decisions)

    def resume(self, decisions: Iterable[Decision], now: float) -> None:
        """Restore the decisions of an earlier run; `until` on the clock of `now`."""
        for decision in decisions:
            entry = self._of(decision.peer, now)
            entry.trusted = decision.kind == "trust"
            if decision.kind == "ban":
                entry.bans, entry.why, entry.verdict = decision.bans, decision.why, Verdict("ban", decision.until)

    # --- queries ---------------------------------------------------------------------------------

    def verdict(self, peer: str, now: float) -> Verdict:
        """Return the verdict on a peer now, without side effects."""
        entry = self._entries.get(peer)
        return entry.verdict if entry is not None and now < entry.verdict.until else OK

    def standing(self, peer: str, now: float) -> Standing:
        """Return a snapshot of a peer's reputation, without side effects."""
        entry = self._entries.get(peer, _Entry())
        verdict, contribution = self.verdict(peer, now), self._contribution(entry, now)
        known = entry.turns >= self.turns and contribution >= ACTIVE
        state = verdict.state if verdict.state != "ok" else "active" if known else "probation"
        return Standing(
            state,
            verdict.until,
            self._decayed(entry, now),
            contribution,
            entry.stale,
            entry.clipped,
            entry.trusted,
            entry.why if verdict.state == "ban" else "",
        )

    # --- inside -------------------------------------------------------------------------------------------

    def _charge(self, peer: str, weight: float, reason: str, now: float) -> Verdict:
        entry = self._of(peer, now)
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
            entry.why = reason
            self._ban(entry, until)
        elif entry.score >= self.quarantine:
            self._punish(entry, Verdict("quarantine", max(now + self.quarantine_s, entry.verdict.until)))
        return self.verdict(peer, now)

    def _ban(self, entry: _Entry, until: float) -> None:
        entry.bans += 1
        entry.score = 0.0
        self._punish(entry, Verdict("ban", until))

    def _punish(self, entry: _Entry, verdict: Verdict) -> None:
        """Set a quarantine or ban; afterwards the peer starts on probation."""
        entry.verdict, entry.contribution, entry.turns = verdict, 0.0, 0

    def _turn(self, peer: str, now: float, *, missed: bool) -> _Entry:
        entry = self._of(peer, now)
        entry.turns += 1
        entry.stale = _share(entry.stale, missed)
        return entry

    def _earn(self, entry: _Entry, amount: float, now: float) -> None:
        entry.contribution = min(MOST, max(0.0, self._contribution(entry, now) + amount))
        entry.earned_at = max(entry.earned_at, now)

    def _unusual(self, entry: _Entry) -> bool:
        """Return whether a peer is clipped far more often than the median of the others."""
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
    """Exponential moving average of an event's indicator, which starts at 0."""
    before = share or 0.0
    return before + NEWEST * (float(happened) - before)
