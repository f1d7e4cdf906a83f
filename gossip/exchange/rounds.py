"""Steps pace: rounds of local steps and exchanges, at each node on its own time. No clock: time arrives as `now`.

    computing --open--> exchanging --close--> computing (the next round)

While computing no request is answered: the vector that exchanges read is not there yet. Decision by the request's round:

    its round               we compute r                      we exchange r
    below r                 reject: late                      reject: late
    r                       defer until we open               accept; at most MAX_SERVED, and none after a committed one
    up to r + max_lead      defer                             defer
    above                   reject: early                     reject: early

One request is deferred per peer, a newer replaces it. A request for our open round computed from another member list, with another weight
or by a peer that the round does not link us to is refused as "view". A round ends when every link is resolved or at its deadline,
which is learned from how long links took; a link that missed it is skipped. A peer that has gone on to a later
round (`passed`) does not come back for ours.

Every request carries its sender's round; `progress.lead` is the highest credible one, so that the training loop can jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.timeouts import Timeouts
from starling.gossip.exchange.verdicts import (
    MAX_SERVED,
    Accept,
    Decision,
    Defer,
    DeferredDecision,
    ExchangeRequest,
    Reject,
)
from starling.gossip.wire.schema import Request

MAX_DEFERRED = 64
"""Peers with a deferred request; further ones are rejected as "full"."""


@dataclass(slots=True)
class Rounds:
    """One node's rounds.

    Args:
        timeouts: deadline and retries.
        max_lead: rounds a peer may be ahead of us and be deferred.
    """

    timeouts: Timeouts
    max_lead: int = 1
    round: int = 0
    phase: Literal["computing", "exchanging"] = "computing"
    links: dict[str, float] = field(default_factory=dict)
    """Peer -> mixing weight of the round."""
    view: bytes = b""
    """Digest of the member list the links come from."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of the links resolved so far."""
    progress: PeerProgress = field(default_factory=PeerProgress)
    """Rounds that peers reported."""
    _served: dict[str, int] = field(default_factory=dict)
    _deferred: dict[str, ExchangeRequest] = field(default_factory=dict)

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
        return self.progress.of(peer) > self.round

    def theta(self, peer: str) -> float:
        """Mixing weight of a link of this round."""
        return self.links[peer]

    def compute(self, round: int, links: Mapping[str, float], view: bytes) -> list[DeferredDecision]:
        """Local steps of `round` begin; its links and view as far as they are known. -> decisions on what was deferred"""
        self.phase = "computing"
        self.timeouts.end()
        return self._enter(round, links, view, 0.0)

    def open(
        self, round: int, links: Mapping[str, float], view: bytes, now: float, lag_s: float = 0.0
    ) -> list[DeferredDecision]:
        """Local steps are done, exchanges begin; `lag_s` as in `Timeouts.begin`. -> decisions on what was deferred"""
        self.phase = "exchanging"
        self.timeouts.begin(now, lag_s)
        self.outcomes, self._served = {}, {}
        return self._enter(round, links, view, now)

    def close(self) -> None:
        """No exchange of the open round is answered any more."""
        self.phase = "computing"
        self.timeouts.end()
        self.round, self.links, self.view = self.round + 1, {}, b""

    def forget(self, peer: str) -> None:
        """A peer is gone: discard what it reported and requested."""
        self.progress.forget(peer)
        self._deferred.pop(peer, None)
        self.timeouts.forget(peer)

    def decide(self, peer: str, request: ExchangeRequest, now: float) -> Decision:
        """Decide on a request; one that is deferred comes back as a DeferredDecision."""
        self.progress.record(peer, request.round)
        if request.round < self.round:
            return Reject("late")
        if request.round > self.round + self.max_lead:
            return Reject("early")
        if request.round > self.round or self.phase == "computing":
            if request.view == self.view and request.round == self.round and peer not in self.links:
                return Reject("view")
            if len(self._deferred) >= MAX_DEFERRED and peer not in self._deferred:
                return Reject("full")
            self._deferred[peer] = request
            return Defer()
        if request.view != self.view or peer not in self.links:
            return Reject("view")
        if isinstance(request, Request):
            if request.theta != self.links[peer]:
                return Reject("view")
            served = self._served.get(peer, 0)
            if self.outcomes.get(peer) == "committed" or served >= MAX_SERVED:
                return Reject("busy")
            self._served[peer] = served + 1
        return Accept()

    def resolved(self, peer: str, round: int, outcome: Outcome, now: float) -> None:
        """The exchange on a link of `round` ended; of another round than the open one, or a second time, means nothing."""
        if round != self.round or peer not in self.waiting:
            return
        self.outcomes[peer] = outcome
        if outcome == "committed":
            self.timeouts.answered(peer, now)
        elif outcome == "timeout":
            self.timeouts.missed(peer)

    def tick(self, now: float) -> tuple[str, ...]:
        """Past the deadline every link still waiting is a timeout. -> those peers, sorted"""
        late = tuple(peer for peer in self.waiting if now >= self.timeouts.until(peer))
        for peer in late:
            self.resolved(peer, self.round, "timeout", now)
        return late

    def _enter(self, round: int, links: Mapping[str, float], view: bytes, now: float) -> list[DeferredDecision]:
        self.round, self.links, self.view = round, dict(links), view
        deferred, self._deferred = self._deferred, {}
        verdicts = []
        for peer in sorted(deferred):
            decision = self.decide(peer, deferred[peer], now)
            if not isinstance(decision, Defer):
                verdicts.append(DeferredDecision(peer, deferred[peer], decision))
        return verdicts
