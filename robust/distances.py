"""Bounds on a peer's model by how far the other peers' models were: one node's own measure, of numbers it has seen itself.

Where a node hears one peer a round there is no majority to ask at once; the majority is in the past. Honest models that exchange are
about equally far from ours whatever their data, as most of the difference is our own last local steps.

    reference   median of the last distances of the other peers, lately met and not refused, and of OWN times our own local steps' length;
                the lower one of an even number. Of fewer than VOTES there is none, and nobody is judged; but until this node's first VOTES
                exchanges are over, OWN times its steps alone bound what is shortened, as all have begun with one model
    shortened   a difference longer than LIMIT references counts as one of the length of the reference
    strike      a difference longer than FAR times the base adds 1 to the peer's score, longer than FARTHER times 1½; any other takes ½.
                The base is the reference, or FLOOR times the mean of all references so far where that is more: late in a run, when rates
                are low, a node with more data moves on and looks far. There is no second one before another peer was met: it may be this
                node that has moved
    refused     at a score of NAMED: no exchange for REFUSED rounds, doubled each time up to DOUBLED times; afterwards the score is
                NAMED - 1 and whatever is longer than LIMIT times the base a strike, until the score is 0: by one the peer is refused
                again, by four ordinary exchanges it is cleared. A liar's distance in references falls while honest models part; who is
                to be believed again comes as near as others do
    remembered  of a distance no more than FAR references, so that a liar does not widen the measure of others
    parted      where half of the other peers lately met were far, or more, it is not the peer: nothing is shortened and nobody is judged,
                so that the parts of a swarm that was cut meet again, and slow nodes fast ones

A peer's own distance is never part of the measure it is judged by, so one liar moves the reference by one rank at most, and a minority
of the votes cannot raise it above the largest honest one. All thresholds are ratios: the rule is the same for models and rates of any
scale. A stale or new node is far from everybody, so its own reference is large and it is back soon.

It does not see what lies within FAR references. What it knows is of this node's vectors, so it proves nothing to others and is not sent.
Distances are Euclidean norms over all coordinates, estimated where an exchange is of some.
"""

from dataclasses import dataclass, field
from math import isfinite

from starling.gossip.exchange.calls import Far
from starling.gossip.limits import keep

OWN = 1.5
VOTES = 3
LIMIT = 2.5
FAR = 4.0
FARTHER = 16.0
FLOOR = 0.5
NAMED = 3.0
REFUSED = 20
DOUBLED = 10
LATELY = 20
"""Rounds for which a distance is compared with."""
COMPARED = 64
"""Most peers whose distances are compared: those met last."""
REMEMBERED = 4096
"""Most peers with a score: those whose changed last."""
_NEWEST = 0.3  # weight of the newest in the mean length of local steps
_LARGEST = 1e300
_ROUNDING = 1e-6  # relative difference of a norm between two machines


@dataclass(slots=True)
class _Record:
    """A peer's strikes and refusals."""

    score: float = 0.0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A peer's last exchange."""

    round: int
    distance: float  # as remembered
    far: bool
    refused: bool


@dataclass(slots=True)
class Distances:
    """One node's knowledge of its peers' distances. Pure arithmetic; the caller carries out refusals."""

    _seen: dict[str, _Seen] = field(default_factory=dict)  # by peer, in order of the last exchange
    _records: dict[str, _Record] = field(default_factory=dict)
    _exchanges: int = 0
    _step: float = 0.0
    _references: float = 0.0  # their sum
    _count: int = 0

    def stepped(self, length: float) -> None:
        """Take the length of this node's own way since its last exchange; of one that is 0 or not finite nothing is learned."""
        if length > 0.0 and isfinite(length):
            self._step += (_NEWEST if self._step else 1.0) * (length - self._step)

    def reference(self, peer: str, round: int) -> float:
        """Return what a distance of a peer is compared with in a round; 0 while there is nothing to compare it with."""
        if median := self._median(peer, round):
            return median
        return OWN * self._step if self._exchanges < VOTES else 0.0

    def _median(self, peer: str, round: int) -> float:
        others = [seen for other, seen in self._seen.items() if other != peer and seen.round >= round - LATELY]
        if 0 < len(others) <= 2 * sum(seen.far for seen in others):
            return 0.0
        votes = [seen.distance for seen in others if not seen.refused]
        if self._step:
            votes.append(OWN * self._step)
        return sorted(votes)[(len(votes) - 1) // 2] if len(votes) >= VOTES else 0.0

    def met(self, peer: str, distance: float, round: int) -> Far | None:
        """Record the distance >= 0 of an exchange in a round; return the verdict, or None if there is nothing to report."""
        reference, strike, believed = self._median(peer, round), None, min(distance, _LARGEST)
        again = next(reversed(self._seen), None) == peer and self._seen[peer].far
        self._exchanges += 1
        if reference and not again:
            self._references += reference
            self._count += 1
            base = max(reference, FLOOR * self._references / self._count)
            strike, believed = self._judged(peer, distance, reference, base), min(distance, FAR * reference)
        refused = strike is not None and strike.refused > 0
        keep(self._seen, peer, _Seen(round, believed, again or strike is not None, refused), COMPARED)
        return strike

    def _judged(self, peer: str, distance: float, reference: float, base: float) -> Far | None:
        record = self._records.get(peer, _Record())
        if distance <= (LIMIT if record.refusals and record.score else FAR) * base:
            record.score = max(0.0, record.score - 0.5)
            return None
        record.score += 1.5 if distance > FARTHER * base else 1.0
        keep(self._records, peer, record, REMEMBERED)
        score, refused = record.score, 0
        if score >= NAMED:
            refused = REFUSED << min(record.refusals, DOUBLED)
            record.score, record.refusals = NAMED - 1.0, record.refusals + 1
        return Far(distance, reference, score, refused)


def share(distance: float, reference: float) -> float:
    """Return the share in [0, 1] of a difference that counts, by its distance and a reference; 0 of these: all of it."""
    return 1.0 if not reference or distance <= LIMIT * reference else reference / distance


def agreed(said: float, distance: float, reference: float) -> float:
    """Return the share that scales a flow: the other end's report, which knows both references, but at most our own."""
    return min(said, share(distance * (1.0 - _ROUNDING), reference))
