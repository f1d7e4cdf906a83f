"""This node's stage assignment, and the swarm as its stage sees it: a crew is one member, represented by the peer with the same stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import trio

from starling.gossip.overlay.ranks import digest
from starling.gossip.pipeline import stage_assignments
from starling.node.daemon.membership.neighbors import LinkMap, OverlayNeighbors, own_links
from starling.node.daemon.membership.service import Membership

T = TypeVar("T")
POLL_S = 0.2
SETTLED_S = 2.0  # seconds after the start in which this node learns of existing members
AVOIDED_S = 600.0  # seconds for which a mute peer is avoided: by then it was repaired or replaced, or may try again
PROMISED_S = 20.0  # seconds for which a stage is reserved for a newcomer


@dataclass(slots=True)
class StagePeers:
    """The crews, by what members say; satisfies `starling.node.daemon.membership.neighbors.Members` for services of one stage.

    Attributes:
        last: the peers of our crew when it was whole last.
        carried: this node has left that one for a crew in which no others sit, so the states of its stage go along.
    """

    whom: ClassVar[str] = "whole crews"

    membership: Membership
    stages: int
    stage: int
    last: Collection[str] = ()
    carried: bool = False
    _avoided: dict[tuple[str, int | None], float] = field(default_factory=dict)  # (peer, incarnation) -> end of avoidance
    _unfollowed: dict[str, float] = field(default_factory=dict)  # peer that freed our seat -> time until which we do not go with it
    _left: dict[str, float] = field(default_factory=dict)  # peer that sits elsewhere -> time until which it is not followed
    _promised: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, int]:
        """Return peer -> claimed seat of all live members."""
        table = self.membership.table
        return {peer: table[peer].record.seat for peer in self.membership.members if table[peer].record.seat}

    @property
    def seat(self) -> int:
        """Return this node's seat; 0: none yet."""
        return self.claims.get(self.membership.me, 0)

    @property
    def crew(self) -> int:
        """Return the number of this node's crew; 0 without one."""
        return stage_assignments.place(self.seat, self.stages)[0] if self.seat else 0

    @property
    def whole(self) -> dict[int, tuple[str, ...]]:
        """Return crew -> its peers by stage, for complete crews."""
        return stage_assignments.whole(self.claims, self.stages)

    @property
    def peers(self) -> tuple[str, ...] | None:
        """Return our crew's peers by stage, with this node; None: it is incomplete, has an avoided peer, or our seat is another's."""
        peers = self.whole.get(self.crew) if self.seat else None
        if peers is None or peers[self.stage] != self.membership.me or self.avoided.intersection(peers):
            return None
        return peers

    @property
    def avoided(self) -> frozenset[str]:
        """Return peers whose stage was freed recently and that have not restarted since."""
        now, incarnation = trio.current_time(), self.membership.incarnation_of
        return frozenset(peer for (peer, then), until in self._avoided.items() if until > now and then == incarnation(peer))

    def avoid(self, peer: str) -> None:
        """Join no crew with this peer for a while."""
        self._avoided[peer, self.membership.incarnation_of(peer)] = trio.current_time() + AVOIDED_S

    def unfollow(self, peer: str) -> None:
        """Do not go with this peer for a while."""
        self._unfollowed[peer] = trio.current_time() + AVOIDED_S

    def elsewhere(self, peers: Collection[str]) -> frozenset[str]:
        """Return those that live, sit in another crew than this node, and are not avoided."""
        return self._elsewhere(peers) - self.avoided

    def _elsewhere(self, peers: Collection[str]) -> frozenset[str]:
        claims = self.claims
        return frozenset(peer for peer in peers if peer in claims and stage_assignments.place(claims[peer], self.stages)[0] != self.crew)

    def away(self, crew: int, peers: Sequence[str]) -> tuple[str, ...]:
        """Return those of a crew's peers, by stage, that have no longer its seat; nobody if this node has not either."""
        return stage_assignments.away(self.claims, self.stages, self.membership.me, crew, peers)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Return the unassigned stages of our crew."""
        held = stage_assignments.holders(self.claims)
        return tuple(s for s in range(self.stages) if self.seat and stage_assignments.seat(self.crew, s, self.stages) not in held)

    @property
    def words(self) -> str:
        """Describe this node's stage assignment."""
        where = f"stage {self.stage} of {self.stages}"
        own = self.membership.table.get(self.membership.me)
        if own is not None and own.status == "left":  # it has left, so it has no seat and needs none
            return f"left crew {stage_assignments.place(own.record.seat, self.stages)[0]}, {where}" if own.record.seat else f"{where}, left"
        if not self.seat:
            return f"{where}, looking for a crew"
        lacking = ", ".join(map(str, self.lacking))
        state = f"lacks stage {lacking}" if lacking else "whole" if self.peers is not None else "another node has this seat"
        return f"crew {self.crew}, {where}, {state}"

    def named(self, peers: tuple[str, ...]) -> bytes:
        """The crew's name while these peers live on without a restart."""
        return stage_assignments.digest((peer, self.membership.incarnation_of(peer) or 0) for peer in peers)

    def wanted(self, asker: str) -> int:
        """Return the seat that a newcomer should take, and reserve it for a while."""
        now = trio.current_time()
        self._promised = {peer: it for peer, it in self._promised.items() if it[1] > now and peer not in self.claims}
        if asker not in self._promised:
            claims = {
                self.membership.me: stage_assignments.seat(0, self.stage, self.stages)
            } | self.claims  # ours, also before it is claimed
            stage = stage_assignments.lacking(claims, self.stages, [it[0] for it in self._promised.values()])
            self._promised[asker] = (stage, now + PROMISED_S)
        return self._promised[asker][0]

    async def sit(self) -> None:
        """Claim a seat, and move to a better one, until cancelled."""
        until = trio.current_time() + SETTLED_S
        while len(self.membership.members) < 2 and trio.current_time() < until:  # noqa: ASYNC110 — for a short time at the start
            await trio.sleep(POLL_S)
        while True:
            self._note_left()
            now = trio.current_time()
            going = {peer for peer in self.last if self._unfollowed.get(peer, now) <= now} - self.avoided
            left = {peer for peer, until in self._left.items() if until > now}
            wanted = stage_assignments.chosen(self.claims, self.stages, self.membership.me, self.stage, self.avoided or left, going)
            if wanted != self.seat:
                self._move(wanted)
            await trio.sleep(POLL_S)

    def _note_left(self) -> None:
        """Record when members of our crew left it for another, so as not to follow, for a while, those that may have left because of us."""
        until = trio.current_time() + AVOIDED_S
        self._left = {peer: self._left.get(peer, until) for peer in self._elsewhere(self.last)}

    def _move(self, wanted: int) -> None:
        """Claim a seat. Stored states stay valid if a member of our last crew is in the new one, or nobody is."""
        crew = stage_assignments.place(wanted, self.stages)[0]
        there = {peer for peer, number in self.claims.items() if stage_assignments.place(number, self.stages)[0] == crew}
        self.carried = bool(self.last) and (not there or not there.isdisjoint(self.last))
        self.membership.sit(wanted)

    # the swarm as services of this stage see it

    @property
    def members(self) -> tuple[str, ...]:
        """Peers that hold our stage of a whole crew, sorted."""
        return tuple(sorted(peers[self.stage] for peers in self.whole.values()))

    @property
    def roster(self) -> tuple[str, ...]:
        """Whole crews, by name: all stages compute one schedule."""
        return tuple(map(name_of, self.whole))

    @property
    def view(self) -> bytes:
        """Return the digest of `roster`."""
        return digest(self.roster)

    def incarnation_of(self, peer: str) -> int | None:
        """Return the incarnation of a live peer."""
        return self.membership.incarnation_of(peer)

    def admits(self, peer: str) -> bool:
        """Return the membership's answer."""
        return self.membership.admits(peer)

    def silent(self, peer: str) -> bool:
        """Return the membership's answer."""
        return self.membership.silent(peer)

    def lately_gone(self, peer: str) -> bool:
        """Return the membership's answer."""
        return self.membership.lately_gone(peer)

    def probe_now(self, peers: Collection[str], *, late: bool = False) -> None:
        """Let the membership probe these peers."""
        self.membership.probe_now(peers, late=late)


def name_of(crew: int) -> str:
    """Return the name of a crew, by which overlays rank it."""
    return f"crew {crew}"


@dataclass(frozen=True, slots=True)
class CrewNeighbors:
    """Neighbours of a crew, as the peers of them that hold this node's stage. `named`: the overlay over names of crews, of ours as `me`."""

    stage_peers: StagePeers
    named: OverlayNeighbors

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight."""
        return self._met(self._ours.weights(round))

    def directions(self, round: int) -> Mapping[str, tuple[float, float]]:
        """Return the same as `OverlayNeighbors`, for peers of this stage."""
        return self._met(self._ours.directions(round))

    def link_map(self, round: int) -> LinkMap:
        """Return the links of this stage only."""
        return own_links(self.stage_peers.members, self.stage_peers.membership.me, self.weights(round))

    @property
    def _ours(self) -> OverlayNeighbors:
        named = self.named
        return OverlayNeighbors(named.overlay, lambda: self.stage_peers.roster, name_of(self.stage_peers.crew), named.salt)

    def _met(self, by_name: Mapping[str, T]) -> dict[str, T]:
        peers = {name_of(crew): peers[self.stage_peers.stage] for crew, peers in self.stage_peers.whole.items()}
        return {peers[name]: it for name, it in by_name.items() if name in peers and self.named.may_meet(peers[name])}
