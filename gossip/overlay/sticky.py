"""The overlay for volunteers, in either pace: few peers, edges that last.

`Sticky` is a schedule of one peer per round for steps pace; `StickyEdges` names and keeps a node's edges for clock
pace, where it visits them in rotation.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from starling.gossip.overlay.api import doublings
from starling.gossip.overlay.ranks import ranked
from starling.gossip.seeds import derive

SPARE_EDGES = 2
"""Edges beyond the degree that a node keeps rather than disturb a peer."""


@dataclass(frozen=True, slots=True)
class Sticky:
    """Symmetric one-peer matchings on the exponential graph, weight 1/2: over time a node exchanges with all at ± 2^j.

    Round t is about distance s = 2^(t mod tau). The steps i → i + s mod n fall into cycles; along each cycle neighbors
    pair up alternately, and every turn (tau rounds) the pairing moves on by one place, so that the peer ahead and the
    peer behind take turns and on an odd cycle the one left idle is another each time.

    Exact average in the tau rounds of a turn for n = 2^tau. Our own construction: one-peer exponential made symmetric
    for pairwise exchanges, defined for every n, with the same few peers all the time.

    Args:
        seed: root seed of the swarm, 0 <= seed < 2**63: where the pairings of each distance begin.
    """

    seed: int
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """One entry, or none for an idle node."""
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

    Theory of operation. Every member computes ⌈degree/2⌉ rings over the living from the same salt; its targets are the
    peers beside it in any of them, so if j is a target of i, i is one of j. The union of a few random rings has a
    spectral gap that does not shrink with n, and a join or leave changes one place in each ring. If all members fit
    into the degree, all are targets.

    Targets always get an edge; the first ring alone keeps the graph connected. An edge to a peer that is no longer a
    target stays while the peer lives; only beyond `degree` + SPARE_EDGES edges are such edges closed, those first whose peers are
    farthest in the rings, as near ones become targets again when a peer in between leaves. With members at rest
    only targets are opened and none is closed, so opening and closing come to an end.

    The other end decides as well: the shell calls `accept` when a peer opens an edge and `drop` when one refuses or closes
    it. A peer that is no longer alive is forgotten without being named: a dead peer's flow is revoked, not settled.

    Source of the rings: Law and Siu 2003, "Distributed Construction of Random Expander Networks".

    Args:
        degree: edges to aim for, >= 1; an odd one aims for one more, since a ring gives two.
        salt: of the swarm and its epoch, so that a peer cannot choose its neighbors.
    """

    degree: int
    salt: bytes
    _edges: set[str] = field(default_factory=set)
    _alive: frozenset[str] = frozenset()
    _rings: tuple[tuple[str, ...], ...] = ()
    _targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree must be >= 1, got {self.degree}")

    @property
    def peers(self) -> tuple[str, ...]:
        """Peers with an edge, sorted."""
        return tuple(sorted(self._edges))

    @property
    def targets(self) -> tuple[str, ...]:
        """Peers this node would choose had it no history, the first ring's first. As of the last update."""
        return self._targets

    def update(self, me: str, alive: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Members came or went, or edges were refused: what to do about it.

        Args:
            me: this node.
            alive: peers that an edge may lead to.

        Returns:
            (open, close): peers to open an edge to, most wanted first, and peers whose edge to close in order.
        """
        self._look(me, frozenset(alive) - {me})
        self._edges &= self._alive
        opened = tuple(peer for peer in self._targets if peer not in self._edges)
        self._edges.update(opened)
        closed = self._excess()
        self._edges.difference_update(closed)
        return opened, closed

    def accept(self, peer: str) -> bool:
        """A living peer opened an edge to us: True if we hold it from now on."""
        if peer in self._edges or peer in self._targets or len(self._edges) < self.degree + SPARE_EDGES:
            self._edges.add(peer)
            return True
        return False

    def drop(self, peer: str) -> None:
        """The other end refused or closed the edge."""
        self._edges.discard(peer)

    def _look(self, me: str, alive: frozenset[str]) -> None:
        """Recompute rings and targets if the living changed."""
        if alive == self._alive:
            return
        self._alive = alive
        self._rings = rings(me, alive, (self.degree + 1) // 2, self.salt)
        beside = [peer for ring in self._rings for peer in (ring[1:2] + ring[-1:]) if peer != me]
        everyone = self._rings[0][1:] if len(alive) <= self.degree else ()
        self._targets = tuple(dict.fromkeys((*beside, *everyone)))

    def _excess(self) -> tuple[str, ...]:
        """Strangers beyond what is kept, furthest first: by the fewest seats between us in any ring, then by id."""
        excess = len(self._edges) - self.degree - SPARE_EDGES
        if excess <= 0:
            return ()
        n = len(self._alive) + 1
        strangers = self._edges.difference(self._targets)
        away = dict.fromkeys(strangers, n)
        for ring in self._rings:
            for seat, peer in enumerate(ring):
                if peer in strangers:
                    away[peer] = min(away[peer], seat, n - seat)
        return tuple(sorted(strangers, key=lambda peer: (-away[peer], peer))[:excess])
