"""The two paces of pairwise exchanges: which requests are answered now, and when a round or visit is over. Time arrives as `now`.

Steps pace (`Rounds`): rounds of local steps and exchanges, at each node on its own time.

    computing --open--> exchanging --close--> computing (the next round)

While computing no request is answered: the vector that exchanges read does not exist yet. Decision by the request's round:

    its round               we compute r                      we exchange r
    below r                 reject: late                      reject: late
    r                       defer until we open               accept; at most MAX_SERVED, and none after a committed one
    up to r + max_lead      defer                             defer
    above                   reject: early                     reject: early

One request is deferred per peer, a newer replaces it. A request for our open round with another weight, or by a peer that the round does
not link us to, is rejected as "view". Where more than the weight must be the same at both ends (`same_roster`), so is one computed from
another roster; elsewhere two ends exchange whatever else their rosters hold, or one that comes and goes would part all others. A round ends
when every link is resolved or at its deadline, which is learned from how long links took; a link that missed it is skipped. A peer in a
later round (`passed`) does not come back for ours.
Every request carries its sender's round; `progress.lead` is the highest credible one, so that the training loop can jump.

Clock pace (`Slots`): visits rotate. In each slot a node visits the edge not visited for longest; edges with an unresolved transaction are
skipped. One visit at a time; one whose exchange is under way at its deadline gets a slot more. Inbound requests are answered at once, at
most MAX_SERVED in a slot, so that a node with many callers still computes. A peer being visited is always answered, one that asks again for
an exchange under way is not counted again; one that may have no edge to us (`welcome`) is rejected as "full". Rounds here are slot numbers
and need not agree.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

from starling.gossip.exchange.commands import MAX_SERVED, Accept, Decision, Defer, ExchangeRequest, Outcome, Reject
from starling.gossip.exchange.link_deadlines import MAX_STRETCH, LinkDeadlines
from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.wait_rules import Position
from starling.gossip.wire.schema import Request, Solicit

Deferred = list[tuple[str, ExchangeRequest]]
"""Requests that were deferred, and of whom, in order of peer id."""
MAX_DEFERRED = 64  # peers with a deferred request; a neighbor takes the place of one that is none, others are rejected as "full"


@dataclass(slots=True)
class Pace:
    """Common state of both paces."""

    link_deadlines: LinkDeadlines  # deadline and retries
    round: int = field(default=0, kw_only=True)  # this node's round, or the current slot
    outcomes: dict[str, Outcome] = field(default_factory=dict, kw_only=True)
    """Outcomes of the resolved links of the round, or of the visit, by peer."""
    progress: PeerProgress = field(default_factory=PeerProgress, kw_only=True)  # rounds (slots) that peers reported

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the peers whose links, or visit, are not resolved, sorted."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Return whether every link of the open round, or the visit, is resolved."""
        return not self.waiting

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """Record the outcome of an exchange with `peer`."""
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """Return how this node's round compares with those that peers report."""
        return "level"

    def until(self) -> dict[str, float]:
        """Return the deadline of each awaited peer; the peers are sorted."""
        waiting = self.waiting
        return self.link_deadlines.deadlines(waiting, self.position) if waiting else {}

    def tick(self, now: float) -> tuple[str, ...]:
        """Resolve links or visits past their deadline as timeouts -> those peers, sorted."""
        late = tuple(peer for peer, expires in self.until().items() if now >= expires)
        for peer in late:
            self.resolved(peer, self.round, "timeout", now)
        return late

    def contradicted(self, peer: str, round: int) -> bool:
        """Return, once, whether a message that carries `round` contradicts its sender's claim that we are late."""
        return False

    def said_late(self, peer: str, round: int) -> None:
        """Note that a peer, in `round`, called this node late."""

    def forget(self, peer: str) -> None:
        """Delete what a peer that is gone reported and requested."""
        self.progress.forget(peer)
        self.link_deadlines.forget(peer)


@dataclass(slots=True)
class Rounds(Pace):
    """The pace "steps": one node's rounds."""

    max_lead: int = 1  # rounds that a peer may be ahead of us for its request to be deferred
    phase: Literal["computing", "exchanging"] = "computing"
    links: dict[str, float] = field(default_factory=dict)  # peer -> mixing weight of the round
    view: bytes = b""  # digest of the roster from which the links were computed
    same_roster: bool = False
    """Both ends must know the same members: weights are not the same both ways, or the number of members says what a round is for."""
    _unlinked: int = 0  # consecutive rounds without links before the open one
    _served: dict[str, int] = field(default_factory=dict)
    _deferred: dict[str, ExchangeRequest] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the peers whose links are not resolved, sorted."""
        return tuple(sorted(self.links.keys() - self.outcomes.keys())) if self.phase == "exchanging" else ()

    @property
    def position(self) -> Position:
        """Return "behind" if more voters than may lie (f + 1) report a later round than the open one; "ahead" if no more than may lie (f)
        report the open round or a later one.
        """
        lead = self.progress.lead
        if lead == self.round:
            return "level"
        return "behind" if lead > self.round else "ahead"

    def contradicted(self, peer: str, round: int) -> bool:
        """Return whether a report contradicts this node's round (`PeerProgress.contradicts`), as rounds must agree in this pace."""
        return self.progress.contradicts(peer, round)

    def said_late(self, peer: str, round: int) -> None:
        self.progress.said_late(peer, round)

    def passed(self, peer: str) -> bool:
        """Note that the peer has done the open round."""
        return self.progress.of(peer) > self.round

    def theta(self, peer: str) -> float:
        """Return the mixing weight of a link of this round."""
        return self.links[peer]

    def compute(self, round: int, links: Mapping[str, float], view: bytes) -> Deferred:
        """Begin the local steps of `round`, with its links and view as far as they are known -> deferred requests, to be decided anew."""
        self.phase = "computing"
        self.link_deadlines.end()
        return self._enter(round, links, view)

    def open(self, round: int, links: Mapping[str, float], view: bytes, now: float, steps_s: float = 0.0) -> Deferred:
        """Begin the exchanges of a round, whose local steps took `steps_s` -> deferred requests, to be decided anew."""
        self.phase = "exchanging"
        self.link_deadlines.begin(now, steps_s, self.link_deadlines.exchange_s, self._unlinked, round)
        self.outcomes, self._served = {}, {}
        return self._enter(round, links, view)

    def close(self) -> None:
        """Stop answering exchanges of the open round."""
        self._unlinked = 0 if self.links else self._unlinked + 1
        self.phase = "computing"
        self.link_deadlines.end()
        self.round, self.links, self.view = self.round + 1, {}, b""

    def forget(self, peer: str) -> None:
        Pace.forget(self, peer)
        self._deferred.pop(peer, None)

    def decide(self, peer: str, request: ExchangeRequest, now: float) -> Decision:
        """Decide on a request that came at `now`; a deferred one comes back when a round begins or opens."""
        self.progress.record(peer, request.round)
        if request.round < self.round:
            self.link_deadlines.came(peer, now, request.round)
            return Reject("late")
        if request.round > self.round + self.max_lead:
            return Reject("early")
        if request.round > self.round or self.phase == "computing":
            return self._defer(peer, request)
        if peer not in self.links or (self.same_roster and request.view != self.view):
            return Reject("view")
        if isinstance(request, Request):
            if request.theta != self.links[peer]:
                return Reject("view")
            served = self._served.get(peer, 0)
            if self.outcomes.get(peer) == "committed" or served >= MAX_SERVED:
                return Reject("busy")
            self._served[peer] = served + 1
        return Accept()

    def _defer(self, peer: str, request: ExchangeRequest) -> Decision:
        """Store a request for its round, unless it is known not to be for it; peers without a link make room for those with one."""
        if request.view == self.view and request.round == self.round and peer not in self.links:
            return Reject("view")
        if len(self._deferred) >= MAX_DEFERRED and peer not in self._deferred:
            other = next((each for each in self._deferred if each not in self.links), None)
            if peer not in self.links or other is None:
                return Reject("full")
            del self._deferred[other]
        self._deferred[peer] = request
        return Defer()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """Record the outcome of an exchange on a link of `round`; ignored for another round than the open one, or the second time."""
        if round == self.round and peer in self.waiting:
            self.outcomes[peer] = outcome
            self.link_deadlines.resolve(peer, outcome, now)
            if outcome == "committed":
                self.progress.exchanged(peer)

    def _enter(self, round: int, links: Mapping[str, float], view: bytes) -> Deferred:
        self.round, self.links, self.view = round, dict(links), view
        deferred, self._deferred = self._deferred, {}
        return sorted(deferred.items(), key=itemgetter(0))


@dataclass(slots=True)
class Slots(Pace):
    """The pace "clock": one node's visits."""

    weight: float  # mixing weight of every exchange, agreed in the manifest
    view: bytes  # digest that all members agree on
    welcome: Callable[[str], bool] = lambda _peer: True  # returns whether a peer that requests an exchange may have an edge
    under_way: Callable[[str], bool] = lambda _peer: False  # returns whether an exchange with a peer is under way
    visiting: str | None = None  # the peer being visited, until the visit is resolved
    _served: int = 0
    _visited: dict[str, int] = field(default_factory=dict)
    _entered: deque[int] = field(default_factory=lambda: deque(maxlen=math.ceil(MAX_STRETCH) + 1))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the peer being visited, if any."""
        return () if self.visiting is None else (self.visiting,)

    def theta(self, peer: str) -> float:
        """Return the mixing weight of an exchange."""
        return self.weight

    @property
    def longest_s(self) -> float:
        """Return the longest time that a visit may take, in seconds."""
        return self.link_deadlines.longest_s + self.link_deadlines.deadline.max_wait_s

    def until(self) -> dict[str, float]:
        """Return the deadline of the visit, a slot later if its exchange is under way, as another one would send its payloads again.

        Not with a peer that answers no probe, or that lately let visits expire.
        """
        more_s = self.link_deadlines.deadline.max_wait_s
        return {
            peer: expires + (more_s if self.under_way(peer) and not self.link_deadlines.hurried(peer) else 0.0)
            for peer, expires in Pace.until(self).items()
        }

    def next(self, edges: Iterable[str], unresolved: Collection[str]) -> str | None:
        """Return the peer to visit: the one not visited for longest, new ones first."""
        eligible = [peer for peer in edges if peer not in unresolved]
        return min(eligible, key=lambda peer: (self._visited.get(peer, -1), peer), default=None)

    def enter(self, slot: int) -> None:
        """Begin a slot."""
        if slot != self.round:
            self.round, self._served = slot, 0
            self._entered.append(slot)

    def entered(self, before: int) -> int:
        """Return the slot entered `before` slots ago, in [0, MAX_STRETCH], skipped ones not counted; 0 before there were as many."""
        return self._entered[-1 - before] if before < len(self._entered) else 0

    def visit(self, peer: str, now: float) -> None:
        """Begin to visit a peer."""
        self.visiting, self.outcomes = peer, {}
        self.link_deadlines.begin(now)
        self._visited[peer] = self.round

    def forget(self, peer: str) -> None:
        Pace.forget(self, peer)
        self._visited.pop(peer, None)

    def decide(self, peer: str, request: ExchangeRequest, now: float) -> Decision:
        """Decide on a peer's request."""
        self.progress.record(peer, request.round)
        if request.view != self.view or (isinstance(request, Request) and request.theta != self.weight):
            return Reject("view")
        if not self.welcome(peer):
            return Reject("full")
        again = isinstance(request, Solicit) and self.under_way(peer)
        if peer != self.visiting and not again:
            if self._served >= MAX_SERVED:
                return Reject("busy")
            self._served += 1
        return Accept()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """Record the outcome of an exchange with `peer`, whichever end began it; it ends our visit to that peer."""
        if peer == self.visiting:
            self.visiting = None
            self.link_deadlines.end()
            self.outcomes[peer] = outcome
            self.link_deadlines.resolve(peer, outcome, now)
