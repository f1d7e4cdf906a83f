"""Bounds on a peer's model by how far the other peers' models were, and had come: one node's own measure, of numbers it has seen itself.

Where a node hears one peer a round there is no majority to ask at once; the majority is in the past. Honest models that exchange are
about equally far from ours whatever their data, as most of the difference is our own last local steps.

    drift       length of this node's local steps since it was last to exchange, half of that before, a quarter of that before …: about
                how far apart steps keep models that halve their difference in each exchange; where messages are lost it is too short
    reference   median of the last distances of the other peers, lately met and not refused, and of OWN times our own drift; the lower one
                of an even number. A distance grows in proportion to our drift since it was measured, as steps grow with momentum and
                models part from their common start; it never shrinks. Of fewer than VOTES there is none, and nobody is judged; but until
                this node's first VOTES exchanges are over, OWN times its drift alone bounds what is shortened
    trusted     a peer is, from its first exchange within LIMIT references without a score, until it is refused. Of any other the
                reference is UNTRUSTED times as long, and whatever is longer than LIMIT of these is a strike: a liar's distance in
                references falls as it is listened to, or while honest models part, so who is to be believed comes near first
    shortened   a difference longer than LIMIT references counts as one of the length of the reference; and the step towards a peer is as
                much shorter as its progress is less than BEHIND times the usual: 0 towards one that stayed where we began
    strike      a difference longer than FAR times the base adds 1 to the peer's score, longer than FARTHER times 1½; one of a peer that
                is last adds 1 as well; any other takes ½. The base is the reference, or FLOOR times the mean of all references so far
                where that is more: late in a run, when rates are low, a node with more data moves on and looks far. There is no second
                one before another peer was met: it may be this node that has moved
    behind      a peer whose progress (`starling.robust.progress`) is less than BEHIND times the usual: the median of the last ones of the
                other peers, lately met and not refused, and of our own, 1; the lower one of an even number. Where the usual is less than
                COMMON, or fewer than VOTES others have one, nobody is behind: ways are then more one's own steps than the swarm's
    last        the same of the least of these progresses instead of their median. Where a liar drives honest models apart some have little
                progress without a fault, so what shortens a step is no strike
    worse       a peer whose model, when last met, was rather far and did worse on our own data than those of all others
                (`starling.robust.own_loss`): a strike as well
    refused     at a score of NAMED: no step towards the peer and no flow with it for REFUSED rounds, doubled each time up to DOUBLED
                times. It is not judged meanwhile; afterwards the score is NAMED - 1, so that one strike refuses it again and four
                ordinary exchanges clear it. Exchanges go on, for the peer to come nearer: who is refused in error would otherwise be
                left to the liar that drove it away
    remembered  of a distance no more than FAR references, so that a liar does not widen the measure of others
    parted      where half of the other peers lately met were far, or more, it is not the peer: nothing is shortened and nobody is judged,
                so that the parts of a swarm that was cut meet again, and slow nodes fast ones

A peer's own distance is never part of the measure it is judged by, so one liar moves the reference by one rank at most, and a minority
of the votes cannot raise it above the largest honest one. All thresholds are ratios: the rule is the same for models and rates of any
scale. A stale or new node is far from everybody, so its own reference is large and it is back soon.

It does not see what lies within FAR references, has come half as far as the last of the others and does as well on our data. What it knows
is of this node's vectors, so it proves nothing to others and is not sent.
Distances are Euclidean norms over all coordinates, estimated where an exchange is of some; of those that differ most it is their norm.
"""

from dataclasses import dataclass, field, replace
from math import isfinite

from starling.gossip.exchange.calls import Far
from starling.gossip.limits import keep
from starling.robust.own_loss import OwnLoss, Worse

OWN = 1.5
UNTRUSTED = 0.8
VOTES = 3
LIMIT = 2.5
FAR = 4.0
FARTHER = 16.0
FLOOR = 0.5
NAMED = 3.0
REFUSED = 20
DOUBLED = 10
BEHIND = 0.5
COMMON = 0.5
LATELY = 20
"""Rounds for which a distance is compared with."""
COMPARED = 64
"""Most peers whose distances are compared: those met last."""
REMEMBERED = 4096
"""Most peers with a score: those whose changed last."""
_KEPT = 0.5  # share of a difference that an exchange of two leaves
_LARGEST = 1e300
_NOTHING = 1e-30
"""The reference of a peer that is refused: of differences next to nothing counts, also for the other end, which reads it."""
_NONE = (1.0, 0.0)
_ROUNDING = 1e-6  # relative difference of a norm between two machines


_Lag = tuple[float, float]
"""The progress of a peer that is behind, and the one that it is compared with; `_NONE`: it is not behind, or nothing is known."""


@dataclass(slots=True)
class _Record:
    """A peer's strikes and refusals."""

    score: float = 0.0
    refusals: int = 0
    trusted: bool = False
    until: int = 0  # round in which the last refusal ends


@dataclass(frozen=True, slots=True)
class _Seen:
    """A peer's last exchange."""

    round: int
    distance: float  # as remembered
    drift: float  # of this node, then
    far: bool
    refused: bool
    progress: float | None  # None: unknown

    def vote(self, drift: float) -> float:
        """Return the distance to be expected now."""
        return self.distance * max(1.0, drift / self.drift) if self.drift else self.distance


@dataclass(slots=True)
class Distances:
    """One node's knowledge of its peers' distances. Pure arithmetic; the caller computes losses and carries out refusals."""

    losses: OwnLoss = field(default_factory=OwnLoss)
    _seen: dict[str, _Seen] = field(default_factory=dict)  # by peer, in order of the last exchange
    _records: dict[str, _Record] = field(default_factory=dict)
    _exchanges: int = 0
    _drift: float = 0.0
    _references: float = 0.0  # their sum
    _count: int = 0

    def stepped(self, length: float) -> None:
        """Take the length of this node's own way since it was last to exchange; of one that is 0 or not finite nothing is learned."""
        if length > 0.0 and isfinite(length):
            self._drift = _KEPT * self._drift + length

    def reference(self, peer: str, round: int) -> float:
        """Return what a distance of a peer is compared with in a round; 0 while there is nothing to compare it with."""
        if self.refuses(peer, round):
            return _NOTHING
        measure = self._median(peer, round) or self._at_first()
        return measure if self._record(peer).trusted else UNTRUSTED * measure

    def refuses(self, peer: str, round: int) -> bool:
        """Return whether nothing is taken of a peer in a round."""
        return round < self._record(peer).until

    def _at_first(self) -> float:
        """Return what the first exchanges are compared with; 0 afterwards."""
        return OWN * self._drift if self._exchanges < VOTES else 0.0

    def _record(self, peer: str) -> _Record:
        return self._records.get(peer, _Record())

    def restart(self) -> None:
        """Forget the progress and the losses of peers, which were compared with another model of ours."""
        self.losses.restart()
        self._seen = {peer: replace(seen, progress=None) for peer, seen in self._seen.items()}

    def _others(self, peer: str, round: int) -> list[_Seen]:
        return [seen for other, seen in self._seen.items() if other != peer and seen.round >= round - LATELY]

    def _made(self, peer: str, round: int) -> list[float]:
        """Return the other peers' progress and our own in ascending order; [] of too few others."""
        made = [seen.progress for seen in self._others(peer, round) if not seen.refused and seen.progress is not None]
        return sorted([*made, 1.0]) if len(made) >= VOTES else []

    def _median(self, peer: str, round: int) -> float:
        others = self._others(peer, round)
        if 0 < len(others) <= 2 * sum(seen.far for seen in others):
            return 0.0
        votes = [seen.vote(self._drift) for seen in others if not seen.refused]
        if self._drift:
            votes.append(OWN * self._drift)
        return sorted(votes)[(len(votes) - 1) // 2] if len(votes) >= VOTES else 0.0

    def credit(self, peer: str, round: int, progress: float | None) -> float:
        """Return the share in [0, 1] of the step towards a peer of this progress: less than 1 if it is behind, 0 if it is refused."""
        if self.refuses(peer, round):
            return 0.0
        made = self._made(peer, round)
        progress, usual = _behind(progress, made[(len(made) - 1) // 2]) if made else _NONE
        return max(0.0, progress) / (BEHIND * usual) if usual else 1.0

    def met(self, peer: str, distance: float, round: int, progress: float | None = None) -> Far | None:
        """Record the distance >= 0 of an exchange in a round, and the peer's progress; return the verdict, or None if there is none.

        A progress of None is unknown. A peer that is refused is not judged.
        """
        if self.refuses(peer, round):
            self.losses.forget(peer)
            return None
        reference, strike, believed = self._median(peer, round), None, min(distance, _LARGEST)
        again = next(reversed(self._seen), None) == peer and self._seen[peer].far
        if not reference and distance <= UNTRUSTED * LIMIT * self._at_first():
            keep(self._records, peer, _Record(trusted=True), REMEMBERED)
        self._exchanges += 1
        worse = self.losses.met(peer, distance, reference, round)
        if reference and not again:
            self._references += reference
            self._count += 1
            base = max(reference, FLOOR * self._references / self._count)
            strike = self._judged(peer, distance, reference, base, _behind(progress, min(self._made(peer, round), default=0.0)), worse)
            believed = min(distance, FAR * reference)
        rounds = 0 if strike is None else strike.refused
        if rounds:
            self._records[peer].until = round + 1 + rounds
        keep(self._seen, peer, _Seen(round, believed, self._drift, again or strike is not None, rounds > 0, progress), COMPARED)
        return strike

    def _judged(self, peer: str, distance: float, reference: float, base: float, lag: _Lag, worse: Worse | None) -> Far | None:
        record = self._record(peer)
        keep(self._records, peer, record, REMEMBERED)
        near = lag == _NONE and distance <= (FAR if record.trusted else UNTRUSTED * LIMIT) * base
        if near and worse is None:
            record.score = max(0.0, record.score - 0.5)
            record.trusted = record.trusted or not record.score
            return None
        record.score += 1.5 if distance > FARTHER * base else 1.0
        score, refused = record.score, 0
        if score >= NAMED:
            refused = REFUSED << min(record.refusals, DOUBLED)
            record.score, record.refusals, record.trusted = NAMED - 1.0, record.refusals + 1, False
        return Far(distance, reference, score, refused, *lag, *(worse if near and worse else ()))


def _behind(progress: float | None, compared: float) -> _Lag:
    """Return the progress of a peer, and the one that it is compared with, if it is behind that."""
    if progress is None or compared < COMMON or progress >= BEHIND * compared:
        return _NONE
    return progress, compared


def share(distance: float, reference: float) -> float:
    """Return the share in [0, 1] of a difference that counts, by its distance and a reference; 0 of these: all of it."""
    return 1.0 if not reference or distance <= LIMIT * reference else reference / distance


def agreed(said: float, distance: float, reference: float) -> float:
    """Return the share that scales a flow: the other end's report, which knows both references, but at most our own."""
    return min(said, share(distance * (1.0 - _ROUNDING), reference))
