"""All pairwise exchanges of one node: edges, the pace that schedules them, retries, catch-up and renewal. No I/O; time arrives as `now`.

`Edges` routes messages and engine replies; this core adds when exchanges begin, are repeated and given up. Every method returns commands
(`starling.gossip.exchange.commands`). Frames and engine calls of one peer are carried out in the order given; a call's reply comes back
through `reply`, a frame that cannot be sent through `unreachable`.

    begin_round or visit --tick until done--> end_round (or end)

`tick` begins what may begin, repeats what is not answered, and gives up links at their adaptive deadline; call it after every event and at
`deadline`.

    request that is late, early or foreign     Busy, by the pace's table
    message that breaks a rule                 RemoteProtocolError; nothing has changed
    peer that cannot be reached                its link is a timeout at once
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from starling.gossip.errors import LocalProtocolError
from starling.gossip.exchange.calls import (
    Revoke,
)
from starling.gossip.exchange.commands import (
    Command,
    Ended,
    Outcome,
    Pending,
    Role,
)
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.edges import Edges
from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.slots import Slots

MAX_ATTEMPTS = 4
"""Transactions begun on one link in one round."""
MAX_JUMP = 8
"""Rounds forward on the report of a few peers."""
MAX_LEAD = 16
"""Rounds that nodes may be ahead of each other: without a common link for a while they drift apart without a fault."""


@dataclass(slots=True)
class Pairwise(Edges):
    """The pairwise exchanges of one node; arguments as in `Edges`."""

    _computing_since: float = math.inf
    _attempts: Counter[str] = field(default_factory=Counter)  # of this round or visit
    _retry_at: dict[str, float] = field(default_factory=dict)
    _unproven: dict[str, tuple[Pending, int]] = field(default_factory=dict)  # pending answer, chase at which first seen
    _chases: int = 0

    # --- rounds and visits ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Every link of the round, or the visit, is resolved."""
        return self.pace.done

    @property
    def deadline(self) -> float:
        """When `tick` has something to do even if nothing happens; infinite if never."""
        until = self.pace.timeouts.until
        return min((min(until(peer), self._retry_at[peer]) for peer in self.pace.waiting), default=math.inf)

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Of the links of the round, or the visit, that are resolved."""
        return self.pace.outcomes

    def compute(self, round: int, links: Mapping[str, float], view: bytes, now: float) -> list[Command]:
        """Steps pace: local steps of `round` begin; requests for it are deferred until they are done.

        Args:
            round: which.
            links: peer -> mixing weight, as far as known yet.
            view: digest of the member list.
            now: seconds.
        """
        self._computing_since = now
        self._decided(self._rounds.compute(round, links, view), now)
        return self._flush()

    def begin_round(
        self, round: int, links: Mapping[str, float], view: bytes, now: float,
        directions: Mapping[str, tuple[float, float]] | None = None,
    ) -> list[Command]:  # fmt: skip
        """Steps pace: local steps of `round` are done, its exchanges begin. Then `tick` until `done`, and `end_round`.

        Args:
            round, links, view, now: as in `compute`.
            directions: peer -> (give, take) where weights are not the same both ways, as in `calls.Offer`.
        """
        self._late.clear()
        self._directions = directions or {}
        deferred = self._rounds.open(round, links, view, now, max(0.0, now - self._computing_since))
        self._computing_since = math.inf
        self._begin_waiting(now)
        self._decided(deferred, now)
        return self._flush()

    def end_round(self, now: float) -> list[Command]:
        """Steps pace: give up links that are left, and answer no exchange of the round any more; `outcomes` are final."""
        self._end(now)
        self._rounds.close()
        return self._flush()

    def next_visit(self, peers: Iterable[str]) -> str | None:
        """Clock pace: which of our neighbors to visit next; None if all have a transaction under way."""
        return self._slots.next(peers, {peer for peer, edge in self.edges.items() if edge.unresolved})

    def enter_slot(self, slot: int, now: float) -> list[Command]:
        """Clock pace: a slot begins. Exchanges begun because a peer solicited them have until the end of the next slot."""
        self._slots.enter(slot)
        for peer, edge in list(self.edges.items()):
            if edge.outstanding is not None and edge.outstanding.round < slot - 1:
                self._do(peer, edge.abort("timeout", "deadline"), now)
        return self._flush()

    def visit(self, peer: str, now: float) -> list[Command]:
        """Clock pace: begin an exchange with `peer`, or solicit one. Then `tick` until `done`."""
        edge = self._edge(peer)
        self._slots.visit(peer, now)
        if not edge.initiator:
            self._nudge(peer, now)
        self._begin_waiting(now)
        return self._flush()

    def end(self, now: float) -> list[Command]:
        """Give up what is left of the round or visit: all are timeouts."""
        self._end(now)
        return self._flush()

    def tick(self, now: float) -> list[Command]:
        """Begin, repeat and give up what is due."""
        pace = self.pace
        for peer in pace.tick(now):
            self._give_up(peer, now)
        self._give_up_passed(now)
        for peer in pace.waiting:
            due = now >= self._retry_at[peer]
            if due:
                self._retry_at[peer] = now + pace.timeouts.retry_s(peer)
                self._nudge(peer, now)
            may_begin = self._edge(peer).ready and (due or peer not in self._early)
            if may_begin and self._attempts[peer] < MAX_ATTEMPTS:
                self._attempts[peer] += 1
                self._early.discard(peer)
                self._begin(peer, now)
        return self._flush()

    def chase(self) -> list[Command]:
        """Retransmit answers whose proof of commit was lost, at growing intervals; call it once per `pace.timeouts.deadline.wait_s()`.

        An initiator that gave up is silent, and there may be no link to it any more; half a transaction would bias the swarm's mean.
        """
        self._chases += 1
        pending = {peer: edge.pending for peer, edge in self.edges.items() if edge.pending is not None}
        before, self._unproven = self._unproven, {}
        for peer, it in pending.items():
            first, since = before.get(peer, (it, self._chases))
            since = since if first is it else self._chases
            self._unproven[peer] = it, since
            age = self._chases - since
            if age & -age == age > 0 and peer not in self.pace.waiting:
                self._retry(peer)
        return self._flush()

    def left_behind(self, round: int) -> int:
        """The round that peers have reached if they left us behind, else `round`. A few peers can move us by at most MAX_JUMP."""
        progress = self._rounds.progress
        if progress.lead > round + MAX_LEAD:
            return progress.lead
        reported = [it for peer in self._late if (it := progress.of(peer)) <= round + MAX_LEAD]
        return min(max(reported, default=round), round + MAX_JUMP)

    # --- peers ----------------------------------------------------------------------------------------------

    def unreachable(self, peer: str, now: float) -> list[Command]:
        """A frame could not be sent."""
        edge = self.edges.get(peer)
        if edge is not None:
            self._do(peer, edge.abort("timeout", "unreachable"), now)
            if peer in self.pace.waiting:
                self.pace.resolved(peer, self.pace.round, "timeout", now)
                self._give_up(peer, now)
        return self._flush()

    def revoke(self, peer: str, now: float) -> list[Command]:
        """The peer left, was banned or restarted: delete its flow, settled flows too. `release` it once that is done."""
        self.pace.resolved(peer, self.pace.round, "aborted", now)
        self.pace.forget(peer)
        self._clipped.discard(peer)
        if peer in self.edges:
            self._reset(peer, now)
        else:
            self._out.append(Revoke(peer))
        return self._flush()

    # --- links of a round or visit --------------------------------------------------------------------------

    @property
    def _rounds(self) -> Rounds:
        if not isinstance(self.pace, Rounds):
            raise LocalProtocolError("rounds are for steps pace")
        return self.pace

    @property
    def _slots(self) -> Slots:
        if not isinstance(self.pace, Slots):
            raise LocalProtocolError("slots are for clock pace")
        return self.pace

    def _begin_waiting(self, now: float) -> None:
        self._attempts.clear()
        self._early.clear()
        self._retry_at = {peer: now + self.pace.timeouts.retry_s(peer) for peer in self.pace.waiting}

    def _nudge(self, peer: str, now: float) -> None:
        """Repeat what is not answered; where nothing is under way and the peer is the initiator, solicit an exchange."""
        edge = self._edge(peer)
        if edge.unresolved or edge.initiator or edge.closing:
            self._retry(peer)
        else:
            self._do(peer, edge.solicit(self.pace.round, self.pace.view), now)

    def _end(self, now: float) -> None:
        for peer in self.pace.waiting:
            self.pace.resolved(peer, self.pace.round, "timeout", now)
            self._give_up(peer, now)

    def _give_up(self, peer: str, now: float) -> None:
        """A link was resolved as a timeout."""
        edge = self._edge(peer)
        if not edge.unresolved:
            self._missed(edge, "timeout")
        self._do(peer, edge.abort("timeout", "deadline"), now)

    def _give_up_passed(self, now: float) -> None:
        """Steps pace: a peer that has gone on to a later round does not come back for a link of ours."""
        pace = self.pace
        if not isinstance(pace, Rounds):
            return
        for peer in pace.waiting:
            edge = self._edge(peer)
            under_way = any(it is not None and it.round == pace.round for it in (edge.outstanding, edge.pending))
            if pace.passed(peer) and not under_way:
                self._missed(edge, "busy")
                self._late.add(peer)
                pace.resolved(peer, pace.round, "busy", now)

    def _missed(self, edge: Edge, outcome: Outcome) -> None:
        """An exchange that was due did not begin, so no transaction reports its end."""
        self.totals[outcome] += 1
        role: Role = "initiator" if edge.initiator else "responder"
        self._out.append(Ended(edge.peer, self.pace.round, 0, outcome, "", role))
