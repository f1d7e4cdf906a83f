"""Steps pace: rounds of local steps and exchanges, at each node on its own time. No clock: time arrives as `now`.

    computing --open--> exchanging --close--> computing (the next round)

While computing nobody is answered: the vector that exchanges read is not there yet. Which wish gets what:

    its round               we compute r                      we exchange r
    below r                 late                              late
    r                       parked till we open               now; at most MAX_SERVED, and none after a committed one
    up to r + max_lead      parked                            parked
    above                   early                             early

One wish is parked per peer, a newer replaces it. A wish for our open round computed from another member list, with another weight
or by a peer that the round does not link us to is refused as "view". A round ends when every link is resolved or at its deadline,
which is learned from how long links took; a link that missed it is skipped, nobody is asked why. A peer that has gone on to a later
round (`passed`) does not come back for ours.

Every message tells how far its sender is; `heard.lead` is the highest credible one, so that the training loop can jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.progress import Heard
from starling.gossip.exchange.timeouts import Waits
from starling.gossip.exchange.verdicts import MAX_SERVED, Admission, Now, Park, Refuse, Verdict, Wish
from starling.gossip.wire.schema import Request

MAX_PARKED = 64
"""Peers with a parked wish; more are told "full"."""


@dataclass(slots=True)
class Rounds:
    """One node's rounds.

    Args:
        waits: deadline and retries.
        max_lead: rounds a peer may run ahead of us and be parked.
    """

    waits: Waits
    max_lead: int = 1
    round: int = 0
    phase: Literal["computing", "exchanging"] = "computing"
    links: dict[str, float] = field(default_factory=dict)
    """Peer -> mixing weight of the round."""
    view: bytes = b""
    """Digest of the member list the links come from."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of the links resolved so far."""
    heard: Heard = field(default_factory=Heard)
    """What peers said of how far they are."""
    _served: dict[str, int] = field(default_factory=dict)
    _parked: dict[str, Wish] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Peers whose links are not resolved, sorted."""
        return tuple(sorted(self.links.keys() - self.outcomes.keys())) if self.phase == "exchanging" else ()

    @property
    def done(self) -> bool:
        """Every link of the open round is resolved."""
        return not self.waiting

    def passed(self, peer: str) -> bool:
        """The peer has done the open round."""
        return self.heard.of(peer) > self.round

    def theta(self, peer: str) -> float:
        """Mixing weight of a link of this round."""
        return self.links[peer]

    def compute(self, round: int, links: Mapping[str, float], view: bytes) -> list[Verdict]:
        """Local steps of `round` begin; its links and view as far as they are known. -> decisions on what was parked"""
        self.phase = "computing"
        self.waits.end()
        return self._enter(round, links, view, 0.0)

    def open(
        self, round: int, links: Mapping[str, float], view: bytes, now: float, lag_s: float = 0.0
    ) -> list[Verdict]:
        """Local steps are done, exchanges begin; `lag_s` as in `Waits.begin`. -> decisions on what was parked"""
        self.phase = "exchanging"
        self.waits.begin(now, lag_s)
        self.outcomes, self._served = {}, {}
        return self._enter(round, links, view, now)

    def close(self) -> None:
        """No exchange of the open round is answered any more."""
        self.phase = "computing"
        self.waits.end()
        self.round, self.links, self.view = self.round + 1, {}, b""

    def forget(self, peer: str) -> None:
        """A peer is gone: what it said counts no more."""
        self.heard.forget(peer)
        self._parked.pop(peer, None)
        self.waits.forget(peer)

    def admit(self, peer: str, wish: Wish, now: float) -> Admission:
        """Decide on a wish; one that is parked comes back as a Verdict."""
        self.heard.note(peer, wish.round)
        if wish.round < self.round:
            return Refuse("late")
        if wish.round > self.round + self.max_lead:
            return Refuse("early")
        if wish.round > self.round or self.phase == "computing":
            if wish.view == self.view and wish.round == self.round and peer not in self.links:
                return Refuse("view")
            if len(self._parked) >= MAX_PARKED and peer not in self._parked:
                return Refuse("full")
            self._parked[peer] = wish
            return Park()
        if wish.view != self.view or peer not in self.links:
            return Refuse("view")
        if isinstance(wish, Request):
            if wish.theta != self.links[peer]:
                return Refuse("view")
            served = self._served.get(peer, 0)
            if self.outcomes.get(peer) == "committed" or served >= MAX_SERVED:
                return Refuse("busy")
            self._served[peer] = served + 1
        return Now()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """The exchange on a link of `round` ended; of another round than the open one, or a second time, means nothing."""
        if round != self.round or peer not in self.waiting:
            return
        self.outcomes[peer] = outcome
        if outcome == "committed":
            self.waits.answered(peer, now)
        elif outcome == "timeout":
            self.waits.missed(peer)

    def tick(self, now: float) -> tuple[str, ...]:
        """Past the deadline every link still waiting is a timeout. -> those peers, sorted"""
        late = tuple(peer for peer in self.waiting if now >= self.waits.until(peer))
        for peer in late:
            self.resolved(peer, self.round, "timeout", now)
        return late

    def _enter(self, round: int, links: Mapping[str, float], view: bytes, now: float) -> list[Verdict]:
        self.round, self.links, self.view = round, dict(links), view
        parked, self._parked = self._parked, {}
        verdicts = []
        for peer in sorted(parked):
            admission = self.admit(peer, parked[peer], now)
            if not isinstance(admission, Park):
                verdicts.append(Verdict(peer, parked[peer], admission))
        return verdicts
