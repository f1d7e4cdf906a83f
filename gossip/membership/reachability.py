"""Reachability of a node, from the results of other members' dials. No clock, no messages.

Theory of operation. A node cannot see its own router. It asks members to dial it, each at the address where that member sees it, and counts
one vote of each source: a public address prefix, or else a peer. A connection that a peer opened is a vote too.

    unknown ──NEED say yes──▶ reachable        yes wins: somebody honest among NEED has come through
       │  └──NEED say no, and fewer yes──▶ hidden
       └◀──every vote is older than VALID_S, or the node's own addresses changed

NEED = f + 1 sources for f = 1 liar; in a swarm with fewer sources all of them, as there is nobody else to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from starling.gossip.limits import keep

State = Literal["unknown", "reachable", "hidden"]
NEED = 2
AT_ONCE = 3  # asked and not answered
PATIENCE_S = 15.0  # for an answer
AGAIN_S = 60.0  # seconds until a source that did not answer is asked again
REFRESH_S = 300.0  # age of a vote at which its source is asked again
VALID_S = 900.0
MAX_KEPT = 256


class _Vote(NamedTuple):
    reached: bool
    seen: str  # our host as this source sees it; "" if it was not reported
    at: float


@dataclass(slots=True)
class Reachability:
    """A node's knowledge of its own reachability."""

    state: State = "unknown"
    _votes: dict[str, _Vote] = field(default_factory=dict)  # by source
    _asked: dict[str, float] = field(default_factory=dict)  # by source

    def ask(self, sources: Mapping[str, str], now: float) -> tuple[str, ...]:
        """Peers to ask now, of different sources; `sources`: peer -> its source, in the order in which they are taken."""
        waiting = sum(now - at < PATIENCE_S for at in self._asked.values())
        chosen: list[str] = []
        for peer, source in sources.items():
            if waiting + len(chosen) >= AT_ONCE:
                break
            vote = self._votes.get(source)
            if (vote is not None and now - vote.at < REFRESH_S) or now - self._asked.get(source, -AGAIN_S) < AGAIN_S:
                continue
            keep(self._asked, source, now, MAX_KEPT)
            chosen.append(peer)
        return tuple(chosen)

    def vote(self, source: str, reached: bool, now: float, seen: str = "") -> None:
        """A source tried to dial us, where it sees us at the host `seen`."""
        self._asked.pop(source, None)
        self._votes.pop(source, None)
        keep(self._votes, source, _Vote(reached, seen, now), MAX_KEPT)

    def moved(self) -> None:
        """Reset after our addresses changed: earlier reports no longer apply."""
        self.state = "unknown"
        self._votes.clear()
        self._asked.clear()

    def poll(self, sources: int, now: float) -> State:
        """Return the state now, with so many sources among the members."""
        self._votes = {source: vote for source, vote in self._votes.items() if now - vote.at < VALID_S}
        need = max(1, min(NEED, sources))
        yes = sum(vote.reached for vote in self._votes.values())
        no = len(self._votes) - yes
        if yes >= need:
            self.state = "reachable"
        elif no >= need and no > yes:
            self.state = "hidden"
        elif not self._votes:
            self.state = "unknown"
        return self.state

    @property
    def seen(self) -> str:
        """The host at which NEED sources or more reached us, by most of them; "" for none."""
        hosts: dict[str, int] = {}
        for vote in self._votes.values():
            if vote.reached and vote.seen:
                hosts[vote.seen] = hosts.get(vote.seen, 0) + 1
        most = max(hosts, key=lambda host: (hosts[host], host), default="")
        return most if hosts.get(most, 0) >= NEED else ""
