"""Clock pace: in each slot a node visits the next of its edges; it answers others at any time. No clock: time arrives as `now`.

Own visits go round: the edge not visited for longest is next, edges with an unresolved transaction are passed over. One visit at a time.
Inbound requests are answered at once, at most MAX_SERVED in a slot of ours: computing goes first, and a node with many callers must not
encode without pause. A peer we are visiting is always answered; one that may have no edge to us (`welcome`) is rejected as "full".
Rounds are slot numbers here and need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.timeouts import Timeouts
from starling.gossip.exchange.verdicts import MAX_SERVED, Accept, Decision, ExchangeRequest, Reject
from starling.gossip.wire.schema import Request


@dataclass(slots=True)
class Slots:
    """One node's visits.

    Args:
        timeouts: deadline and retries of a visit.
        weight: mixing weight of every exchange, agreed in the manifest.
        view: digest that all members agree on.
        welcome: whether a peer that requests an exchange may have an edge.
    """

    timeouts: Timeouts
    weight: float
    view: bytes
    welcome: Callable[[str], bool] = lambda _peer: True
    round: int = 0
    """The current slot."""
    visiting: str | None = None
    """Whom, until it is resolved."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of this visit, once resolved."""
    progress: PeerProgress = field(default_factory=PeerProgress)
    """Slots that peers reported."""
    _served: int = 0
    _visited: dict[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The peer being visited, if any."""
        return () if self.visiting is None else (self.visiting,)

    @property
    def done(self) -> bool:
        """No visit is under way."""
        return self.visiting is None

    def theta(self, peer: str) -> float:
        """Mixing weight of an exchange."""
        return self.weight

    def next(self, edges: Iterable[str], unresolved: Collection[str]) -> str | None:
        """Whom to visit: the one not visited for longest, new ones first."""
        eligible = [peer for peer in edges if peer not in unresolved]
        return min(eligible, key=lambda peer: (self._visited.get(peer, -1), peer), default=None)

    def enter(self, slot: int) -> None:
        """A slot begins."""
        if slot != self.round:
            self.round, self._served = slot, 0

    def visit(self, peer: str, now: float) -> None:
        """A visit begins."""
        self.visiting, self.outcomes = peer, {}
        self.timeouts.begin(now)
        self._visited[peer] = self.round

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self.progress.forget(peer)
        self._visited.pop(peer, None)
        self.timeouts.forget(peer)

    def decide(self, peer: str, request: ExchangeRequest, now: float) -> Decision:
        """Decide on a request."""
        self.progress.record(peer, request.round)
        if request.view != self.view or (isinstance(request, Request) and request.theta != self.weight):
            return Reject("view")
        if not self.welcome(peer):
            return Reject("full")
        if peer == self.visiting:
            return Accept()
        if self._served >= MAX_SERVED:
            return Reject("busy")
        self._served += 1
        return Accept()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """An exchange with `peer` ended; whichever of the two began it, our visit to it is over."""
        if peer != self.visiting:
            return
        self.visiting = None
        self.timeouts.end()
        self.outcomes[peer] = outcome
        if outcome == "committed":
            self.timeouts.answered(peer, now)
        elif outcome == "timeout":
            self.timeouts.missed(peer)

    def tick(self, now: float) -> tuple[str, ...]:
        """Past the deadline the visit is a timeout. -> the peer visited"""
        late = self.waiting if now >= self.timeouts.expires else ()
        for peer in late:
            self.resolved(peer, self.round, "timeout", now)
        return late
