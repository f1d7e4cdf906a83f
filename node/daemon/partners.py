"""Whom a node meets in a round: by the overlay, or drawn from all members by chance that is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gossip.overlay.api import Overlay
from gossip.overlay.links import directions, links
from gossip.overlay.ranks import ranked
from gossip.seeds import derive
from robust.sampling import draw

Members = Callable[[], tuple[str, ...]]
"""Everybody believed alive, this node included."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """Those that the overlay names.

    Args:
        overlay: which.
        members: of now.
        me: own peer id.
        salt: mixes into the ranks of a round.
    """

    overlay: Overlay
    members: Members
    me: str
    salt: Callable[[int], bytes]

    def links(self, round: int) -> Mapping[str, float]:
        """Peer -> weight, the same at both ends."""
        return dict(links(self.overlay, self._order(round), self.me, round))

    def directions(self, round: int) -> Mapping[str, tuple[float, float]]:
        """Peer -> (weight it gives, weight we give), where these are not the same."""
        return {} if self.overlay.symmetric else directions(self.overlay, self._order(round), self.me, round)

    def row(self, round: int) -> Mapping[str, float]:
        """Peer -> weight we give to what it says."""
        order = self._order(round)
        if self.me not in order:
            return {}
        row = self.overlay.row(order.index(self.me), len(order), round)
        return {order[rank]: weight for rank, weight in row.items()}

    def _order(self, round: int) -> tuple[str, ...]:
        return ranked(self.members(), self.salt(round))


@dataclass(frozen=True, slots=True)
class Drawn:
    """K others, uniformly at random but for caps, and anew in every round. Nobody else can know whom, nor make itself be drawn.

    Args:
        members: of now.
        me: own peer id.
        k: how many.
        prefixes: under which a peer counts, see `robust.sampling.labels`.
        per_prefix: most of one prefix; 0: any.
        welcome: whether a peer may be drawn.
        secret: bytes that only this node has.
        life: of this start, so that chance does not come again.
    """

    members: Members
    me: str
    k: int
    prefixes: Callable[[str], Collection[str]]
    per_prefix: int
    welcome: Callable[[str], bool]
    secret: bytes
    life: int

    def row(self, round: int) -> Mapping[str, float]:
        """Peer -> weight: all count the same."""
        others = [peer for peer in sorted(self.members()) if peer != self.me and self.welcome(peer)]
        labels = {peer: self.prefixes(peer) for peer in others} if self.per_prefix else {}
        chosen = draw(others, self.k, labels, self.per_prefix, derive(0, self.secret, "draw", self.life, round))
        return dict.fromkeys(chosen, 1.0 / (len(chosen) + 1))
