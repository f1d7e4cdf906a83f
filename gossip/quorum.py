"""Votes of members: who has one, and how they decide. Pure functions, used wherever a node relies on others' reports.

    elector     a peer that has exchanged with this node EXCHANGES times among its last LATELY exchanges. An identity costs nothing and a
                place in the member list little; taking part for as long as this costs what taking part costs, and strangers move nothing
    own         this node's value comes from what it has seen itself, never from a vote, and counts as one vote
    middle      the median of the own value and the electors': with f liars among n > 3·f it lies within the span of the honest values
    two_thirds  a decision that ends something: this node must want it itself, and two thirds of it and its electors, so that fewer than a
                third can neither bring nor prevent it, and no number of liars ends what this node would go on with
    credible    what at least one honest voter says too: the (f + 1)-th largest

Shapes: n voters, this node among them, f of them liars.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_high

from starling.gossip.limits import tolerable

EXCHANGES = 3
LATELY = 256
LEAST = 3
"""Electors without which votes decide nothing: of two others, one liar is half."""


@dataclass(slots=True)
class Electorate:
    """Peers with a vote at one node: at most LATELY / EXCHANGES peers, each by its own exchanges."""

    _last: deque[str] = field(default_factory=lambda: deque(maxlen=LATELY))
    _times: Counter[str] = field(default_factory=Counter)

    def exchanged(self, peer: str) -> None:
        """Count a committed exchange."""
        if len(self._last) == LATELY:
            oldest = self._last[0]
            self._times[oldest] -= 1
            if not self._times[oldest]:
                del self._times[oldest]
        self._last.append(peer)
        self._times[peer] += 1

    def has_vote(self, peer: str) -> bool:
        """Return whether the peer is an elector."""
        return self._times[peer] >= EXCHANGES

    @property
    def electors(self) -> frozenset[str]:
        """Return all peers with a vote."""
        return frozenset(peer for peer, times in self._times.items() if times >= EXCHANGES)

    @property
    def partners(self) -> frozenset[str]:
        """Return all peers of this node's last exchanges, with or without a vote."""
        return frozenset(self._times)


def middle(own: float, votes: Collection[float]) -> float | None:
    """Return the median of the own value and the electors', the higher of an even number; None: there are fewer than LEAST electors."""
    return median_high([own, *votes]) if len(votes) >= LEAST else None


def two_thirds(own: bool, votes: Mapping[str, bool], electors: Collection[str]) -> bool:
    """Return whether this node and two thirds of it and its electors agree; an elector whose vote is not known disagrees."""
    agree = own + sum(votes.get(peer, False) for peer in electors)
    return own and 3 * agree >= 2 * (1 + len(electors))


def credible(numbers: Iterable[int]) -> int:
    """Return the (f + 1)-th largest of m numbers, which f liars cannot move beyond an honest one; 0 of none or one."""
    ordered = sorted(numbers, reverse=True)
    tolerated = tolerable(len(ordered))
    return ordered[tolerated] if len(ordered) > tolerated else 0
