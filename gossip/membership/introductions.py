"""Reported peers that this node has not met: they join when they are met.

A record proves that a peer was a member, not that it still is: old records have valid signatures too, and newcomers are not told of deaths.
So events of a peer that this node knows only from reports are not published; only the network gets its addresses, to contact it:

    record from others    ──▶ Told            it is probed, and in the table that is compared with others'
    its own frame, or a helper of ours reached it  ──▶ Joined, after Reborn if it was known in an earlier life
    silence               ──▶ nothing         it never joined, so it does not die

A dead peer is met again only by a frame that arrives after its death.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from starling.gossip.membership.events import Announced, Died, Joined, Left, MemberEvent, Reborn, Suspected


@dataclass(slots=True)
class Introductions:
    """Handles members reported by others."""

    hearsay: dict[str, bool] = field(default_factory=dict)
    """Members that others told of and that were not met; whether this node knew an earlier life of the peer."""

    def hold(self, events: Iterable[MemberEvent], *, met: bool) -> list[MemberEvent]:
        """Return the events of one record to report; `met`: its peer was met."""
        events = list(events)
        joined = next((event.peer for event in events if isinstance(event, Joined)), None)
        if joined is not None and not met:
            reborn = any(isinstance(event, Reborn) for event in events)
            self.hearsay[joined] = reborn or self.hearsay.get(joined, False)
            return [Announced(joined)]
        return self.known(events)

    def known(self, events: Iterable[MemberEvent]) -> list[MemberEvent]:
        """Return the events about peers that are not known from reports only; new addresses of such a peer are reported again."""
        out: list[MemberEvent] = []
        for event in events:
            if event.peer not in self.hearsay:
                out.append(event)
            elif isinstance(event, Died | Left):
                del self.hearsay[event.peer]
            elif not isinstance(event, Suspected):
                out.append(Announced(event.peer))
        return out

    def meet(self, peer: str) -> list[MemberEvent]:
        """Note that a peer was met -> events that follow."""
        reborn = self.hearsay.pop(peer, None)
        return [] if reborn is None else [*([Reborn(peer)] if reborn else ()), Joined(peer)]
