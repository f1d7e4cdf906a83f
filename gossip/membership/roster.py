"""Members that count in a round: those alive, except flapping ones.

Nodes compute the links of a round from their rosters, and two with different ones do not exchange. Every change is a moment in which some
differ, so nobody may change the roster often:

    who appears for the first time    counts at once; while of the newcomers of the last minute more than FEW, or one in MEMBERS_EACH
                                      members, are gone, when this node has heard it SETTLED_S after it appeared
    who is suspected sooner than that counts again when this node has heard it SETTLED_S later; so does who left in its first minute
    who comes back                    counts at once else; a second time within MEMORY_S, when it has been here for COOL_DOWN_S
    who leaves or dies                counts no more

To come back takes a newer incarnation (`starling.gossip.membership.member_list`), which no node overlooks: nodes that hear of a peer's
comings and goings one by one or a few at a time agree on whether it counts, but for its first few. Who was only believed dead comes back at
once, as other nodes may never have believed it. It is not to come that costs others' rounds, but to come and go, for which a key is enough:
so a burst of newcomers that stay does not wait, as nodes that saw more or fewer of them come would compute other links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from starling.gossip.membership.events import Changed, Died, Joined, Left, MemberEvent, Reborn, Suspected
from starling.gossip.overlay.ranks import digest

COOL_DOWN_S = 60.0
MEMORY_S = 600.0
FEW, MEMBERS_EACH, MINUTE_S = 4, 4, 60.0
"""Newcomers of the last minute that may be gone before others have to stay, and members to one more; by chance some always are."""
SETTLED_S = 5.0
MAX_RECENT = 1024  # newcomers of the last minute that are remembered
MAX_REMEMBERED = 4096  # peers known to have been here before


@dataclass(frozen=True, slots=True)
class _Past:
    away: bool = False  # it left, or its new incarnation has not arrived yet
    back: float = -inf  # when it last came back


_NEVER = _Past()


@dataclass(slots=True)
class Roster:
    """The members that count, by peer id; `now` is local time in seconds."""

    own: str  # our id, which always counts
    heard: Callable[[str], float] = field(default=lambda _peer: inf, kw_only=True)
    """Returns when this node last had a frame of a peer."""
    training: bool = False
    """Else all count at once: the swarm gathers, or this node has just learned of all members."""
    _counts_from: dict[str, float] = field(default_factory=dict)  # live member -> time from which it counts
    _past: dict[str, _Past] = field(default_factory=dict)  # peers that left, restarted, or counted and were believed dead
    _newcomers: dict[str, float] = field(default_factory=dict)  # newcomer of the last minute -> time at which it appeared
    _gone: set[str] = field(default_factory=set)  # those of them that are suspected, dead or left
    _to_stay: dict[str, float] = field(default_factory=dict)  # newcomer -> time from which it counts once it is heard
    _listed: tuple[tuple[str, ...], bytes] = ((), b"")
    _until: float = -inf  # time at which the list next changes without an event

    @property
    def remembered(self) -> int:
        """Number of peers known to have been here before, at most MAX_REMEMBERED."""
        return len(self._past)

    def observe(self, event: MemberEvent, now: float) -> None:
        """Record a member's change."""
        peer = event.peer
        self._count(event)
        match event:
            case Joined():
                self._joined(peer, now)
            case Reborn() if peer in self._counts_from:
                self._counts_from[peer] = max(self._counts_from[peer], now + self._come_back(peer, now))
            case Reborn() if peer in self._to_stay:
                self._to_stay[peer] = max(self._to_stay[peer], now + SETTLED_S)
            case Suspected() if peer in self._counts_from and now < self._newcomers.get(peer, -inf) + SETTLED_S:
                del self._counts_from[peer]
                self._to_stay[peer] = now + SETTLED_S
            case Reborn() | Left():
                self._absent(peer)
                self._remember(peer, away=True)
            case Died():
                if peer in self._counts_from:
                    self._remember(peer, away=False)
                self._absent(peer)
            case _:
                return
        self._until = -inf

    def members(self, now: float) -> tuple[str, ...]:
        """Return the members that count, sorted."""
        return self._list(now)[0]

    def view(self, now: float) -> bytes:
        """Return the digest of the members that count."""
        return self._list(now)[1]

    def unheard(self, now: float) -> tuple[str, ...]:
        """Return the newcomers that count as soon as this node hears them."""
        return tuple(peer for peer, start in self._to_stay.items() if start <= now and self.heard(peer) < start)

    def _come_back(self, peer: str, now: float) -> float:
        """Return the seconds until a peer with a new incarnation counts."""
        again = now - self._past.get(peer, _NEVER).back < MEMORY_S
        self._remember(peer, away=False, back=now)
        return COOL_DOWN_S if again and self.training else 0.0

    def _joined(self, peer: str, now: float) -> None:
        self._forget(now)
        known, away = peer in self._past, self._past.get(peer, _NEVER).away
        wait_s = self._come_back(peer, now) if away else 0.0
        stays = away and peer in self._gone if known else self._must_stay(peer, now)
        if stays:
            self._to_stay[peer] = now + max(SETTLED_S, wait_s)
        else:
            self._counts_from[peer] = now + wait_s

    def _must_stay(self, peer: str, now: float) -> bool:
        """Remember a newcomer -> whether it has to stay before it counts."""
        if not self.training:
            return False
        self._newcomers.setdefault(peer, now)
        return peer in self._gone or len(self._gone) > max(FEW, (1 + len(self._counts_from)) // MEMBERS_EACH)

    def _forget(self, now: float) -> None:
        """Forget newcomers that came more than a minute ago, and the first of too many."""
        while self._newcomers:
            oldest, since = next(iter(self._newcomers.items()))
            if len(self._newcomers) < MAX_RECENT and now - since < MINUTE_S:
                break
            del self._newcomers[oldest]
            self._gone.discard(oldest)

    def _count(self, event: MemberEvent) -> None:
        """Note whether a newcomer is here."""
        match event:
            case Changed():
                self._gone.discard(event.peer)
            case Suspected() | Died() | Left() if event.peer in self._newcomers:
                self._gone.add(event.peer)

    def _absent(self, peer: str) -> None:
        self._counts_from.pop(peer, None)
        self._to_stay.pop(peer, None)

    def _remember(self, peer: str, *, away: bool, back: float | None = None) -> None:
        before = self._past.pop(peer, _NEVER)
        self._past[peer] = _Past(away, before.back if back is None else back)  # now the most recent
        if len(self._past) > MAX_REMEMBERED:
            del self._past[next(iter(self._past))]

    def _list(self, now: float) -> tuple[tuple[str, ...], bytes]:
        for peer in [peer for peer, start in self._to_stay.items() if start <= now and self.heard(peer) >= start]:
            self._counts_from[peer] = self._to_stay.pop(peer)
            self._until = -inf
        if now >= self._until:
            peers = tuple(sorted({self.own, *(peer for peer, start in self._counts_from.items() if start <= now)}))
            self._until = min((start for start in self._counts_from.values() if start > now), default=inf)
            self._listed = peers, digest(peers)
        return self._listed
