"""Whom a node meets in a round: by the overlay, or drawn from all members by chance that is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.links import directions, links
from starling.gossip.overlay.ranks import ranked
from starling.gossip.seeds import derive
from starling.robust.sampling import draw

Members = Callable[[], tuple[str, ...]]
"""Everybody believed alive, this node included."""
MAX_DRAWN = 64
"""Members that are drawn; of more only those that this node meets."""


@dataclass(frozen=True, slots=True)
class LinkMap:
    """Who meets whom in a round, as far as this node knows.

    Args:
        ranks: members in order of rank.
        links: pairs of places in it, the smaller first.
    """

    ranks: tuple[str, ...] = ()
    links: tuple[tuple[int, int], ...] = ()


def own_links(ranks: Sequence[str], me: str, peers: Iterable[str]) -> LinkMap:
    """This node's own links, in the order of `ranks`, of which only those concerned are drawn where they are too many."""
    met = {me, *peers}
    if len(ranks) > MAX_DRAWN:
        some = {me, *sorted(met - {me})[: MAX_DRAWN - 1]}
        ranks = [peer for peer in ranks if peer in some]
    places = {peer: place for place, peer in enumerate(ranks)}
    if me not in places:
        return LinkMap(tuple(ranks))
    mine = places[me]
    others = (places[peer] for peer in met if peer != me and peer in places)
    return LinkMap(tuple(ranks), tuple(sorted((min(mine, other), max(mine, other)) for other in others)))


@dataclass(slots=True)
class _Drawing:
    """The last picture, and what it is of."""

    of: object = None
    link_map: LinkMap = LinkMap()


@dataclass(frozen=True, slots=True)
class OverlayNeighbors:
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
    _drawn: _Drawing = field(default_factory=_Drawing, compare=False, repr=False)

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

    def link_map(self, round: int) -> LinkMap:
        """Every link of the round, from every member's row. Made once per round and member list."""
        of = (self.members(), self.salt(round), round)
        if self._drawn.of != of:
            self._drawn.of, self._drawn.link_map = of, self._link_map(round)
        return self._drawn.link_map

    def _link_map(self, round: int) -> LinkMap:
        order = self._order(round)
        n = len(order)
        try:
            if n > MAX_DRAWN:
                return own_links(order, self.me, self.links(round))
            rows = ((rank, other) for rank in range(n) for other in self.overlay.row(rank, n, round))
            return LinkMap(order, tuple(sorted({(min(pair), max(pair)) for pair in rows})))
        except ValueError:  # there is no such overlay of so many members
            return LinkMap(order[:MAX_DRAWN])

    def _order(self, round: int) -> tuple[str, ...]:
        return ranked(self.members(), self.salt(round))


@dataclass(frozen=True, slots=True)
class RandomNeighbors:
    """K others, uniformly at random but for caps, and anew in every round. Nobody else can know whom, nor make itself be drawn.

    Args:
        members: of now.
        me: own peer id.
        k: how many.
        prefixes: under which a peer counts, see `starling.robust.sampling.labels`.
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
    _drawn: _Drawing = field(default_factory=_Drawing, compare=False, repr=False)

    def row(self, round: int) -> Mapping[str, float]:
        """Peer -> weight: all count the same."""
        others = [peer for peer in sorted(self.members()) if peer != self.me and self.welcome(peer)]
        labels = {peer: self.prefixes(peer) for peer in others} if self.per_prefix else {}
        chosen = draw(others, self.k, labels, self.per_prefix, derive(0, self.secret, "draw", self.life, round))
        return dict.fromkeys(chosen, 1.0 / (len(chosen) + 1))

    def link_map(self, round: int) -> LinkMap:
        """Whom this node asks. Whom others ask nobody else knows; nobody has a rank, so members are in order of peer id."""
        members = self.members()
        if self._drawn.of != (members, round):
            self._drawn.of = (members, round)
            self._drawn.link_map = own_links(sorted(members), self.me, self.row(round))
        return self._drawn.link_map
