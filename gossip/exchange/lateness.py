"""Records of late peers: missed exchanges, time needed, and withdrawn extensions of deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from starling.gossip.limits import tolerable

MISSED_LINKS = 3
"""Links in a row that a peer may let expire before its extended deadline is withdrawn."""
WITHDRAWN_ROUNDS = 4
"""Rounds for which an extended deadline is withdrawn the first time; twice as many each further time …"""
MAX_WITHDRAWN_ROUNDS = 1024
"""… up to this."""
MIN_DELAY = 0.25
"""Smallest delay for which a peer is called the cause that others went on, in times of a round's local steps and exchange."""
NEED_DECAY = 1.1
"""Divisor of the time that a late peer needs, at each of its answers in time."""


@dataclass(slots=True)
class Lateness:
    """Peers that let their last link expire, the time needed by those that came for it afterwards, and those that sent nothing at all."""

    last: set[str] = field(default_factory=set)
    """Peers whose last link expired."""
    _opened: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When waiting began for peers whose last link expired, and that did not come since, and the round of that link."""
    _needs_s: dict[str, float] = field(default_factory=dict)
    _heard: dict[str, float] = field(default_factory=dict)
    """When the last message about an exchange came from each peer."""
    _unheard: dict[str, list[float]] = field(default_factory=dict)
    """When the links with a peer were opened, MISSED_LINKS at most, that expired in a row without such a message."""

    def expired(self, peer: str, opened: float, round: int) -> None:
        """Record that a link of a round expired that had been open since `opened`."""
        self.last.add(peer)
        self._opened[peer] = opened, round
        links = self._unheard.get(peer, [])
        if self._heard.get(peer, -inf) < opened and len(links) < MISSED_LINKS:
            self._unheard[peer] = [*links, opened]

    def heard(self, peer: str, now: float) -> None:
        """Record a message of a peer about an exchange, of whatever round."""
        self._heard[peer] = now
        self._unheard.pop(peer, None)

    def is_mute(self, peer: str) -> bool:
        """Return whether MISSED_LINKS links in a row expired without any message of a peer; one, if there never was a message of it."""
        return len(self._unheard.get(peer, ())) >= (MISSED_LINKS if peer in self._heard else 1)

    def mute_since(self) -> dict[str, float]:
        """Return the peers without any message while MISSED_LINKS links in a row expired, and when the first of these was opened."""
        return {peer: links[0] for peer, links in self._unheard.items() if len(links) == MISSED_LINKS}

    def in_time(self, peer: str, opened: float, seconds: float) -> None:
        """Record an answer after `seconds`, in time, on a link open since `opened`."""
        self.heard(peer, opened + seconds)
        self.last.discard(peer)
        self._opened.pop(peer, None)
        if peer in self._needs_s:
            self._needs_s[peer] = max(seconds, self._needs_s[peer] / NEED_DECAY)

    def owes(self, peer: str, round: int | None = None) -> bool:
        """Return whether the last link with a peer expired, it has not come for it since, and it is of no later round than `round`."""
        return peer in self._opened and (round is None or self._opened[peer][1] <= round)

    def arrived(self, peer: str, now: float, longest_s: float) -> bool:
        """Record that a peer came for a link that had expired, if within `longest_s`. Returns whether it is the first such link."""
        needs_s = now - self._opened.pop(peer, (now, 0))[0]
        if not 0.0 < needs_s <= longest_s:
            return False
        first = peer not in self._needs_s
        self._needs_s[peer] = needs_s
        return first

    def needs_s(self, peer: str) -> float | None:
        """Return the time that a peer needed that came after its link had expired; None for others."""
        return self._needs_s.get(peer)

    def more_than_may_lie(self, known: Iterable[str]) -> bool:
        """Return whether the peers whose last link expired are two more than may be Byzantine among them and those `known`."""
        return len(self.last) > tolerable(len(self.last.union(known))) + 1

    def forget(self, peer: str) -> None:
        """Delete the records of a peer."""
        self.last.discard(peer)
        for known in (self._opened, self._needs_s, self._heard, self._unheard):
            known.pop(peer, None)


@dataclass(slots=True)
class Withdrawals:
    """Peers whose extended deadline is withdrawn, because they delayed this node, or let MISSED_LINKS links in a row expire.

    Withdrawn for WITHDRAWN_ROUNDS rounds, twice as many the next time, so that a peer takes a few rounds in all and its own edge. Whoever
    is slow to all is waited for by all, and nobody goes on without this node.
    """

    _round: int = 0  # as counted here
    # peer -> (round in which its withdrawal ends, length of the withdrawal in rounds)
    _until: dict[str, tuple[int, int]] = field(default_factory=dict)
    _missed: dict[str, int] = field(default_factory=dict)  # peer -> number of links in a row that it let expire
    _owes: set[str] = field(default_factory=set)  # let so many expire in a row, and came for none of them since
    _delays_s: dict[str, float] = field(default_factory=dict)
    """Seconds beyond what is usual that a peer lately made this node wait; half as many each round."""

    def next_round(self, lag_s: float) -> None:
        """Begin a round whose local steps and exchange take `lag_s`."""
        self._round += 1
        self._delays_s = {peer: seconds / 2.0 for peer, seconds in self._delays_s.items() if seconds > MIN_DELAY / 16.0 * lag_s}

    def active(self, peer: str) -> bool:
        """Return whether the extended deadline of a peer is withdrawn in this round."""
        return peer in self._owes or self._round < self._until.get(peer, (0, 0))[0]

    def delayed(self, peer: str, seconds: float) -> None:
        """Record that this node waited for a peer by `seconds` > 0 longer than usual."""
        self._delays_s[peer] = self._delays_s.get(peer, 0.0) + seconds

    def overtaken(self, least_s: Callable[[str], float]) -> None:
        """Withdraw the extended deadline of the peer with the longest recent delay, if that is at least `least_s` of this peer: others did
        a round meanwhile.
        """
        peer = max(self._delays_s, key=lambda it: (self._delays_s[it], it), default="")
        if self._delays_s.get(peer, 0.0) < least_s(peer):
            return
        self._withdraw(peer)
        self._delays_s.clear()

    def missed(self, peer: str, *, owed: bool) -> None:
        """Count a link that a peer let expire; after MISSED_LINKS in a row, withdraw its extended deadline.

        `owed`: it is to come for such a link later, if it is at work; so it is withdrawn until it does.
        """
        self._missed[peer] = self._missed.get(peer, 0) + 1
        if self._missed[peer] >= MISSED_LINKS:
            self._withdraw(peer)
            if owed:
                self._owes.add(peer)

    def excuse(self, peer: str) -> None:
        """Reset the count of links in a row that a peer let expire."""
        self._missed.pop(peer, None)
        self._owes.discard(peer)

    def works(self, peer: str) -> None:
        """Record that a peer came for a link that had expired: it is given its extended deadline again now and then."""
        self._owes.discard(peer)

    def _withdraw(self, peer: str) -> None:
        _, before = self._until.get(peer, (0, 0))
        rounds = min(max(2 * before, WITHDRAWN_ROUNDS), MAX_WITHDRAWN_ROUNDS)
        self._until[peer] = self._round + rounds, rounds

    def forget(self, peer: str) -> None:
        """Delete the records of a peer."""
        self._owes.discard(peer)
        for known in (self._until, self._missed, self._delays_s):
            known.pop(peer, None)
