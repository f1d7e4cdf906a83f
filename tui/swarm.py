"""One view of a swarm, merged from the snapshots of all attached nodes. Pure.

Only attached nodes of the chosen one's swarm count: the last snapshot of a node that vanished is out of date. The state of an attached
member is its own; that of any other is the one that most attached nodes report, and at a tie that of the last contact. Sums are over
attached nodes alone and are shown with their number; a share of the swarm's steps needs more than one attached node.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus, StatusSnapshot
from starling.tui.drawing.palette import NODE_SIGNS, PEER_SIGNS
from starling.tui.source import Reading
from starling.tui.view import labels_of

Pair = tuple[str, str]  # two peer ids, the smaller first


@dataclass(frozen=True, slots=True)
class Member:
    """One member, merged from the reports of all attached nodes."""

    peer: str  # its id
    label: str  # distinct from those of all others
    state: str  # a word
    sign: str  # for the state
    role: str  # of the sign's color
    attached: bool  # whether its own snapshot is known
    own: bool  # whether it is the chosen node
    round: int | None  # the latest known
    edges: int  # number known
    known_by: int  # attached nodes that know it, itself included

    @property
    def here(self) -> bool:
        """Return whether the member takes part, as far as known."""
        return self.state not in ("dead", "left", "banned", "failed")


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm. None: not known."""

    members: tuple[Member, ...] = ()  # in the order of rank where ranks are known
    edges: tuple[Pair, ...] = ()  # pairs of which at least one end reports an edge
    links: tuple[Pair, ...] | None = None  # pairs that exchange in the chosen node's round
    round: int | None = None  # the chosen node's
    attached: int = 0  # number of attached members
    distances: tuple[float, ...] = ()  # consensus distances measured by the attached nodes
    values: tuple[float, ...] = ()  # last evaluations of the attached nodes
    steps_per_s: float | None = None  # local steps of the attached nodes together, waiting for peers included
    sent_per_s: float | None = None  # bytes of the attached nodes together
    share: float | None = None  # the chosen node's part of the attached nodes' local steps, 0 to 1


def merge(readings: Sequence[Reading], selected: int) -> Swarm:
    """Return the swarm of the node whose reading is selected; the index is ignored without readings."""
    chosen = readings[selected].snapshot if readings else None
    if chosen is None:
        return Swarm()
    current = [reading.snapshot for reading in readings if reading.live or reading.ended]
    attached = _Attached(chosen, {it.peer: it for it in current if it is not None and it.swarm == chosen.swarm})
    return Swarm(
        members=attached.members(labels_of(readings)),
        edges=attached.edges,
        links=_links(chosen, attached.by_peer.values()),
        round=chosen.round,
        attached=len(attached.by_peer),
        distances=attached.known(lambda it: it.distance),
        values=attached.known(lambda it: it.value),
        steps_per_s=_sum(attached.known(lambda it: it.paced_per_s)),
        sent_per_s=_sum(attached.known(lambda it: it.up_bytes_per_s)),
        share=attached.share,
    )


@dataclass(frozen=True, slots=True)
class _Attached:
    """The chosen node's snapshot, and those of all attached nodes of its swarm."""

    chosen: StatusSnapshot
    by_peer: dict[str, StatusSnapshot]

    @property
    def edges(self) -> tuple[Pair, ...]:
        """Return the pairs of which at least one end reports an edge, sorted."""
        return tuple(sorted({_pair(it.peer, row.peer) for it in self.by_peer.values() for row in it.peers if row.edge}))

    @property
    def share(self) -> float | None:
        """Return the chosen node's share of all local steps; None: it is alone, or there are none yet."""
        steps = sum(it.local_steps for it in self.by_peer.values())
        several = len(self.by_peer) > 1 and self.chosen.peer in self.by_peer
        return self.chosen.local_steps / steps if several and steps else None

    def known(self, figure: Callable[[StatusSnapshot], float | None]) -> tuple[float, ...]:
        """Return a figure of every node that has it."""
        return tuple(value for it in self.by_peer.values() if (value := figure(it)) is not None)

    def members(self, labels: Mapping[str, str]) -> tuple[Member, ...]:
        """Return all members that any of them knows, in order."""
        degree = Counter(peer for pair in self.edges for peer in pair)
        reports: dict[str, list[PeerStatus]] = defaultdict(list)
        for row in (row for it in self.by_peer.values() for row in it.peers):
            reports[row.peer].append(row)
        return tuple(
            _member(peer, self.chosen.peer, labels[peer], self.by_peer.get(peer), reports[peer], degree[peer])
            for peer in _order(self.chosen, self.by_peer)
        )


def _sum(figures: Sequence[float]) -> float | None:
    return sum(figures) if figures else None


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one <= other else (other, one)


def _order(chosen: StatusSnapshot, snapshots: dict[str, StatusSnapshot]) -> list[str]:
    """Ranked members by rank, then the rest: attached ones in their order, others by id."""
    rest = [*snapshots, *sorted({peer.peer for snapshot in snapshots.values() for peer in snapshot.peers}), chosen.peer]
    return list(dict.fromkeys((*chosen.ranks, *rest)))


def _links(chosen: StatusSnapshot, snapshots: Iterable[StatusSnapshot]) -> tuple[Pair, ...] | None:
    """Merged from all nodes in the chosen one's round, as a node may know only its own."""
    same = [s for s in snapshots if s.round == chosen.round and s.ranks]
    if not same:
        return None
    pairs = {
        _pair(s.ranks[one], s.ranks[other])
        for s in same
        for one, other in s.links
        if 0 <= one < len(s.ranks) and 0 <= other < len(s.ranks) and one != other
    }
    return tuple(sorted(pairs))


def _member(peer: str, chosen: str, label: str, own: StatusSnapshot | None, rows: Sequence[PeerStatus], edges: int) -> Member:
    known = len(rows) + (own is not None)
    if own is not None:
        sign, role = NODE_SIGNS[own.state]
        return Member(peer, label, own.state, sign, role, True, peer == chosen, own.round, edges, known)
    state = _majority(rows)
    sign, role = PEER_SIGNS[state] if state else ("–", "dim")
    latest = max((row.round for row in rows if row.round is not None), default=None)
    return Member(peer, label, state or show.MISSING, sign, role, False, peer == chosen, latest, edges, known)


def _majority(rows: Sequence[PeerStatus]) -> str:
    """Return the state that most report; at a tie that of the last contact."""
    if not rows:
        return ""
    votes = Counter(row.state for row in rows)
    most = max(votes.values())
    winners = [row for row in rows if votes[row.state] == most]
    return min(winners, key=lambda row: (row.last_seen_s is None, row.last_seen_s or 0.0, row.state)).state
