"""The neighbors of a node in a round: named by the overlay, or drawn from all members with randomness that only this node has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

from starling.gossip.overlay.api import LastingEdges, Overlay
from starling.gossip.overlay.links import directions, links
from starling.gossip.overlay.ranks import ranked
from starling.gossip.seeds import derive
from starling.robust.sampling import draw

AliveMembers = Callable[[], tuple[str, ...]]
MAX_DRAWN = 64  # most members on a link map; in larger swarms it has only this node and its neighbors


class Members(Protocol):
    """The member list as other services see it."""

    whom: ClassVar[str]  # what members are called in messages

    @property
    def members(self) -> tuple[str, ...]:
        """Return the peers believed alive, this node included, sorted."""

    @property
    def roster(self) -> tuple[str, ...]:
        """Return the members from which the links of a round are computed, sorted, this node included."""

    @property
    def view(self) -> bytes:
        """Return the digest of `roster`."""

    def incarnation_of(self, peer: str) -> int | None:
        """Return the incarnation of an alive peer, None for others."""

    def admits(self, peer: str) -> bool:
        """Return whether a peer's frame may be read. Raises RemoteProtocolError: not_a_member."""

    def silent(self, peer: str) -> bool:
        """Return whether a probe of this node went unanswered, and the peer has not been heard since."""

    def lately_gone(self, peer: str) -> bool:
        """Return whether the peer was silent and has only been back for a short time."""

    def probe_now(self, peers: Collection[str], *, late: bool = False) -> None:
        """Probe peers that are about to be waited for, or are `late` with an answer."""


@dataclass(frozen=True, slots=True)
class LinkMap:
    """Links of the overlay in one round, as far as known: pairs of indices into `ranks`, members by rank; the smaller first."""

    ranks: tuple[str, ...] = ()
    links: tuple[tuple[int, int], ...] = ()


def own_links(ranks: Sequence[str], me: str, peers: Iterable[str]) -> LinkMap:
    """Return this node's own links; with more than MAX_DRAWN members only this node and its neighbors are listed."""
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


class _Last(dict[object, LinkMap]):
    """The last link map, by its arguments."""

    def get_or(self, key: object, make: Callable[[], LinkMap]) -> LinkMap:
        if key not in self:
            self.clear()
            self[key] = make()
        return self[key]


@dataclass(frozen=True, slots=True)
class OverlayNeighbors:
    """Neighbors that the overlay names."""

    overlay: Overlay
    members: AliveMembers
    me: str
    salt: Callable[[int], bytes]  # round -> salt of the ranks
    rows: bool = False
    """`weights` are this node's row of the mixing matrix, for pulled exchanges; else of links, equal at both ends."""
    may_meet: Callable[[str], bool] = lambda _peer: True
    """Whether this node and a peer can have a connection; the same at both ends. Who cannot is left out of `weights`."""
    _last: _Last = field(default_factory=_Last, compare=False, repr=False)

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight."""
        named = self.row(round) if self.rows else self.links(round)
        return {peer: weight for peer, weight in named.items() if self.may_meet(peer)}

    def links(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> weight, equal at both ends."""
        return dict(links(self.overlay, self._order(round), self.me, round))

    def directions(self, round: int) -> Mapping[str, tuple[float, float]]:
        """Return neighbor -> (weight it gives, weight we give); empty where the overlay is symmetric."""
        return {} if self.overlay.symmetric else directions(self.overlay, self._order(round), self.me, round)

    def row(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> weight we give to its model."""
        order = self._order(round)
        if self.me not in order:
            return {}
        row = self.overlay.row(order.index(self.me), len(order), round)
        return {order[rank]: weight for rank, weight in row.items()}

    def link_map(self, round: int) -> LinkMap:
        """Return all links of the round, from every member's row; cached for the round and member list."""
        return self._last.get_or((self.members(), self.salt(round), round), lambda: self._link_map(round))

    def _link_map(self, round: int) -> LinkMap:
        order = self._order(round)
        n = len(order)
        try:
            if n > MAX_DRAWN:
                return own_links(order, self.me, self.links(round))
            rows = ((rank, other) for rank in range(n) for other in self.overlay.row(rank, n, round))
            return LinkMap(order, tuple(sorted({(min(pair), max(pair)) for pair in rows})))
        except ValueError:  # the overlay does not exist for so many members
            return LinkMap(order[:MAX_DRAWN])

    def _order(self, round: int) -> tuple[str, ...]:
        return ranked(self.members(), self.salt(round))


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits how many drawn peers may share one label."""

    per_label: int = 0  # 0: no limit
    labels: Callable[[str], Collection[str]] = lambda _peer: ()  # peer -> its labels, see `starling.robust.sampling.labels`

    def known(self, peers: Iterable[str]) -> Mapping[str, Collection[str]]:
        """Return the labels by peer, where there is a limit."""
        return {peer: self.labels(peer) for peer in peers} if self.per_label else {}


def secret_draws(secret: bytes, incarnation: int) -> Callable[[int], int]:
    """Return the seed of each round's draw, secret to this node and different after each restart."""
    return partial(derive, 0, secret, "draw", incarnation)


@dataclass(frozen=True, slots=True)
class RandomNeighbors:
    """K other members, uniformly at random within caps, drawn anew every round. Other nodes can neither predict nor influence the draw."""

    members: AliveMembers
    me: str
    k: int  # neighbors per round
    caps: Caps
    allowed: Callable[[str], bool]  # returns whether a peer may be drawn
    seed: Callable[[int], int]  # round -> seed of the draw, which no other node knows
    _last: _Last = field(default_factory=_Last, compare=False, repr=False)

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight, the same for all."""
        others = [peer for peer in sorted(self.members()) if peer != self.me and self.allowed(peer)]
        chosen = draw(others, self.k, self.caps.known(others), self.caps.per_label, self.seed(round))
        return dict.fromkeys(chosen, 1.0 / (len(chosen) + 1))

    def link_map(self, round: int) -> LinkMap:
        """Return the links of this node alone, since those of others are unknown; there are no ranks, so members are sorted by peer id."""
        members = self.members()
        return self._last.get_or((members, round), lambda: own_links(sorted(members), self.me, self.weights(round)))


@dataclass(frozen=True, slots=True)
class LastingNeighbors:
    """Peers with a lasting edge, in pace "clock"."""

    members: AliveMembers
    me: str
    edges: LastingEdges
    weight: float  # of each exchange

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight, the same for all."""
        return dict.fromkeys(self.edges.peers, self.weight)

    def link_map(self, round: int) -> LinkMap:
        """Return the links of this node alone, since those of others are unknown."""
        return own_links(self.members(), self.me, self.edges.peers)


class Neighbors(Protocol):
    """The peers that a node exchanges with in a round."""

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight."""

    def link_map(self, round: int) -> LinkMap:
        """Return the links of the round, as far as they are known here."""


class NamedNeighbors(Neighbors, Protocol):
    """Neighbors that an overlay names."""

    def directions(self, round: int) -> Mapping[str, tuple[float, float]]:
        """Return neighbor -> (weight it gives, weight we give); empty where the overlay is symmetric."""
