"""The overlay for volunteers, in either pace: few peers, edges that last.

`Sticky` is a schedule of one peer per round for steps pace; `StickyEdges` names and keeps a node's edges for clock
pace, where it visits them in rotation.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from starling.gossip.bounds import Degree, Steps
from starling.gossip.errors import ConfigError
from starling.gossip.overlay.api import doublings
from starling.gossip.overlay.ranks import ranked
from starling.gossip.seeds import derive

DEGREE = 6
LEAST_CHOOSING = 3  # degree below which no edge would be left to draw where fast ones are chosen
SPARE_EDGES = 2  # edges beyond the degree that a node keeps rather than disturb a peer


@dataclass(frozen=True, slots=True)
class Sticky:
    """Symmetric one-peer matchings on the exponential graph, weight 1/2: over time a node exchanges with all at ± 2^j.

    Round t is about distance s = 2^(t mod tau). The steps i → i + s mod n fall into cycles; along each cycle neighbors
    pair up alternately, and every turn (tau rounds) the pairing moves on by one place, so that the peer ahead and the
    peer behind take turns and on an odd cycle the one left idle is another each time.

    Exact average in the tau rounds of a turn for n = 2^tau. Our own construction: one-peer exponential made symmetric
    for pairwise exchanges, defined for every n, with the same few peers all the time.

    Args:
        degree: clock pace: edges a node keeps.
        choose: clock pace: who they are. fast: a third of them drawn, the others those with whom this node's own exchanges are fastest.
            Left out: all are drawn, by hash rings.
        choose_every: choose = fast: slots between two changes of an edge; left out, 30.
    """

    seed: int
    degree: Degree = DEGREE
    choose: Literal["fast"] | None = None
    choose_every: Steps | None = None
    symmetric: ClassVar[bool] = True

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return no warnings."""
        overlay = agreed.overlay
        if overlay.choose is None:
            if overlay.choose_every is not None:
                raise ConfigError(
                    f"overlay.choose_every: has no effect without choose = fast, got {overlay.choose_every}; "
                    "try `--set overlay.choose=fast`, or leave it out"
                )
            return []
        if agreed.pace.kind != "clock":
            raise ConfigError(
                f"overlay.choose: each node chooses its fast edges, but with pace={agreed.pace.kind} all nodes must agree on edges; "
                "try `--set pace.kind=clock`"
            )
        if overlay.degree < LEAST_CHOOSING:
            raise ConfigError(
                f"overlay.degree: must be >= {LEAST_CHOOSING} with choose = fast, where one edge in three is drawn, got "
                f"{overlay.degree}; try `--set overlay.degree={LEAST_CHOOSING}`"
            )
        return []

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry, or none for an idle node."""
        if n == 1:
            return {}
        turn, j = divmod(round, doublings(n))
        distance = 1 << j
        cycles = math.gcd(distance, n)
        length = n // cycles
        place = rank // cycles * pow(distance // cycles, -1, length) % length
        place = (place - turn - derive(self.seed, "sticky", j)) % length
        if place == 0 and length % 2:
            return {}
        return {(rank + (distance if place % 2 else -distance)) % n: 0.5}

    def period(self, n: int) -> int:
        """Tau turns of every cycle: an even cycle repeats after two turns, an odd one after its length."""
        tau = doublings(n)
        lengths = [n // math.gcd(1 << j, n) for j in range(tau)]
        return max(1, tau * math.lcm(*(length if length % 2 else 2 for length in lengths)))


def rings(me: str, alive: Collection[str], count: int, salt: bytes) -> tuple[tuple[str, ...], ...]:
    """`count` independent orders of `alive` and `me`, each from `me` onwards and to be read as a ring.

    The neighbors in different rings are independent, and a join or leave does not reorder the others.
    """
    orders = (ranked((*alive, me), salt + bytes((ring,))) for ring in range(count))
    return tuple(order[order.index(me) :] + order[: order.index(me)] for order in orders)


@dataclass(slots=True)
class StickyEdges:
    """A node's lasting edges, changed as little as possible under churn. No clock, no messages.

    Theory of operation. Every member computes ⌈degree/2⌉ rings over the alive members from the same salt; its targets are the peers beside
    it in any of them, so being a target is mutual. The union of a few random rings has a spectral gap that does not shrink with n, and a
    join or leave changes one place in each ring. If all members fit into the degree, all are targets.

    Targets always get an edge; the first ring alone keeps the graph connected. An edge to a peer that is no longer a target stays while
    the peer is alive; only beyond `degree` + SPARE_EDGES edges are such edges closed, the farthest in the rings first, as near ones become
    targets again when a peer in between leaves. Without churn only targets are opened and none is closed, so this terminates.

    The other end decides as well: the shell calls `accept` when a peer opens an edge and `drop` when one refuses or closes it. A peer that
    is no longer alive is dropped without being returned: a dead peer's flow is revoked, not settled.

    Source of the rings: Law and Siu 2003, "Distributed Construction of Random Expander Networks".
    """

    degree: int  # edges to aim for, >= 1; an odd one aims for one more, since a ring gives two
    salt: bytes  # of the swarm and its epoch, so that a peer cannot choose its neighbors
    _edges: set[str] = field(default_factory=set)
    _alive: frozenset[str] = frozenset()
    _rings: tuple[tuple[str, ...], ...] = ()
    targets: tuple[str, ...] = ()
    """Peers this node would choose without history, the first ring's first. As of the last update."""

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree must be >= 1, got {self.degree}")

    @property
    def peers(self) -> tuple[str, ...]:
        """Return peers with an edge, sorted."""
        return tuple(sorted(self._edges))

    def visits(self, turn: int) -> tuple[str, ...]:
        """Return the peers of which one is visited in a turn: all."""
        return self.peers

    def measured(self, peer: str, bytes_per_s: float) -> None:
        """An exchange with a peer went at this rate, which makes no difference."""

    def update(self, me: str, alive: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """React to joins, leaves and refused edges; `alive` are the peers that `me` may have an edge to.

        Return peers to open an edge to, most wanted first, and peers whose edge to close in order.
        """
        self._rank(me, frozenset(alive) - {me})
        self._edges &= self._alive
        opened = tuple(peer for peer in self.targets if peer not in self._edges)
        self._edges.update(opened)
        closed = self._excess()
        self._edges.difference_update(closed)
        return opened, closed

    def accept(self, peer: str) -> bool:
        """Return whether an edge opened by a live peer is kept."""
        if peer in self._edges or peer in self.targets or len(self._edges) < self.degree + SPARE_EDGES:
            self._edges.add(peer)
            return True
        return False

    def drop(self, peer: str) -> None:
        """The other end refused or closed the edge."""
        self._edges.discard(peer)

    def _rank(self, me: str, alive: frozenset[str]) -> None:
        """Recompute rings and targets if the alive set changed."""
        if alive == self._alive:
            return
        self._alive = alive
        self._rings = rings(me, alive, (self.degree + 1) // 2, self.salt)
        beside = [peer for ring in self._rings for peer in (ring[1:2] + ring[-1:]) if peer != me]
        everyone = self._rings[0][1:] if len(alive) <= self.degree else ()
        self.targets = tuple(dict.fromkeys((*beside, *everyone)))

    def _excess(self) -> tuple[str, ...]:
        """Edges to other peers than targets beyond what is kept, furthest first: by the fewest seats between us in any ring, then by id."""
        excess = len(self._edges) - self.degree - SPARE_EDGES
        if excess <= 0:
            return ()
        n = len(self._alive) + 1
        others = self._edges.difference(self.targets)
        away = dict.fromkeys(others, n)
        for ring in self._rings:
            for seat, peer in enumerate(ring):
                if peer in others:
                    away[peer] = min(away[peer], seat, n - seat)
        return tuple(sorted(others, key=lambda peer: (-away[peer], peer))[:excess])
