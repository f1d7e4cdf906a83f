"""Clock pace: in each slot a node visits the next of its edges; it answers others at any time. No clock: time arrives as `now`.

Own visits go round: the edge not visited for longest is next, edges with an unresolved transaction are passed over. One visit at a time.
Inbound wishes are answered at once, at most MAX_SERVED in a slot of ours: computing goes first, and a node with many callers must not
encode all day. A peer we are visiting is always answered. One that we want no edge with (`welcome`) is told "full". Rounds are slot
numbers here and need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.progress import Heard
from starling.gossip.exchange.timeouts import Waits
from starling.gossip.exchange.verdicts import MAX_SERVED, Admission, Now, Refuse, Wish
from starling.gossip.wire.schema import Request


@dataclass(slots=True)
class Slots:
    """One node's visits.

    Args:
        waits: deadline and retries of a visit.
        weight: mixing weight of every exchange, agreed in the manifest.
        view: digest that all members agree on.
        welcome: whether a peer that calls may have an edge.
    """

    waits: Waits
    weight: float
    view: bytes
    welcome: Callable[[str], bool] = lambda _peer: True
    round: int = 0
    """The current slot."""
    visiting: str | None = None
    """Whom, until it is resolved."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of this visit, once resolved."""
    heard: Heard = field(default_factory=Heard)
    """What peers said of how far they are."""
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
        self.waits.begin(now)
        self._visited[peer] = self.round

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self.heard.forget(peer)
        self._visited.pop(peer, None)
        self.waits.forget(peer)

    def admit(self, peer: str, wish: Wish, now: float) -> Admission:
        """Decide on a wish."""
        self.heard.note(peer, wish.round)
        if wish.view != self.view or (isinstance(wish, Request) and wish.theta != self.weight):
            return Refuse("view")
        if not self.welcome(peer):
            return Refuse("full")
        if peer == self.visiting:
            return Now()
        if self._served >= MAX_SERVED:
            return Refuse("busy")
        self._served += 1
        return Now()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """An exchange with `peer` ended; whichever of the two began it, our visit to it is over."""
        if peer != self.visiting:
            return
        self.visiting = None
        self.waits.end()
        self.outcomes[peer] = outcome
        if outcome == "committed":
            self.waits.answered(peer, now)
        elif outcome == "timeout":
            self.waits.missed(peer)

    def tick(self, now: float) -> tuple[str, ...]:
        """Past the deadline the visit is a timeout. -> the peer visited"""
        late = self.waiting if now >= self.waits.expires else ()
        for peer in late:
            self.resolved(peer, self.round, "timeout", now)
        return late
