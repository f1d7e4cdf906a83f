"""Suspects of one node: members that left a probe unanswered or that others accuse, until they answer or are declared dead.

Theory of operation. A suspect stays in the alive set for `suspicion_s`, stretched like all waits and longer while few members accuse it
(`suspicion`), and is probed twice per timeout, or in turn where there are many, with the accusation in the probe. Any frame of its own on
any lane (connections are authenticated) or a newer record of it clears the suspicion; otherwise it is declared dead. A rumor of death
counts as a suspicion, and one about a member from which a frame came less than a timeout ago is ignored: rumors start our own probing and
never conclude it, and we pass on only what our own probes found. If this node was held up, no member is declared dead within a timeout.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starling.gossip.membership.dissemination import Dissemination
from starling.gossip.membership.events import Output, Send
from starling.gossip.membership.local_health import LocalHealth
from starling.gossip.membership.member_list import version_of
from starling.gossip.membership.suspicion import Suspicions
from starling.gossip.membership.swarm_view import SwarmView
from starling.gossip.wire import schema as wire

PROBED_AGAIN = 4


@dataclass(slots=True)
class Suspects:
    """Suspects members, notifies them and others, and declares them dead."""

    view: SwarmView
    dissemination: Dissemination
    health: LocalHealth
    judge_at: float = math.inf
    """Local time of the next judgement; infinite without suspects."""
    suspended_until: float = -math.inf  # time before which no member is declared dead, since this node was suspended
    _suspicions: Suspicions = field(default_factory=Suspicions)
    _accused_at: dict[str, float] = field(default_factory=dict)
    _probed: str = ""  # the last suspect that was probed again

    def suspect(self, peer: str, now: float) -> list[Output]:
        """Suspect an alive member; no effect on others."""
        suspected = self.view.member_list.suspect(peer, now)
        if suspected:
            self._suspicions.keep(self.view.member_list.members)
            self.judge_at = min(self.judge_at, now)
        return [*self.view.introductions.known(suspected)]

    def found_silent(self, peer: str, now: float) -> None:
        """Tell others of a suspect that left a probe of ours unanswered, once."""
        member = self.view.member_list.members.get(peer)  # None if a newcomer replaced the dead member meanwhile
        own = self.view.own.peer
        if member is not None and member.status == "suspect" and not self._suspicions.by(peer, own):
            self._suspicions.accuse(peer, own)
            self.dissemination.add_rumor(peer, now)

    def accused(self, rumors: Iterable[wire.Rumor], source: str, now: float) -> list[Output]:
        """Suspect members that a rumor accuses, unless a frame of them came lately; send the source newer records than it accuses."""
        out: list[Output] = []
        newer: list[wire.Record] = []
        view = self.view
        for rumor in rumors:
            member = view.member_list.members.get(rumor.peer)
            ours = rumor.peer == view.own.peer
            if member is None or not member.present or not (ours or view.present(source)):
                continue
            named = rumor.incarnation, rumor.version
            if named < version_of(member.record):
                newer.append(member.record)
            elif named > version_of(member.record):
                continue
            elif ours:
                view.local.note_accusation(source, now, view.timing.timeout_s)
            elif now - view.last_frame.get(rumor.peer, -math.inf) >= self.health.wait_s(rumor.peer):
                out += self.suspect(rumor.peer, now)
                self._suspicions.accuse(rumor.peer, source)
        if newer:
            out.append(Send(source, wire.Spread(tuple(newer[: wire.MAX_RECORDS]))))
        return out

    def judge(self, now: float, probe: Callable[[str, float], Send]) -> list[Output]:
        """Probe suspects again, and declare those dead whose time is up; due twice per timeout while there are suspects."""
        if now < self.judge_at:
            return []
        out: list[Output] = []
        members, timing = self.view.member_list.members, self.view.timing
        self._suspicions.keep(members)
        suspects = [(peer, m.since) for peer, m in sorted(members.items()) if m.status == "suspect"]
        waiting: list[str] = []
        for peer, since in suspects:
            if now >= since + self.health.wait_s(peer):
                self.found_silent(peer, now)
            met = peer in self.view.last_frame
            share = self._suspicions.share(peer, self.view.member_list.size) if met else 1.0
            if now < max(self.suspended_until, since + timing.suspicion_s * self.health.stretch(peer) * share):
                waiting.append(peer)
                continue
            out += self.view.introductions.known(self.view.member_list.mark_dead(peer, now))
            self.view.last_frame.pop(peer, None)
            self.dissemination.add_rumor(peer, now)
            out += self.accuse(peer, now)
        self.judge_at = now + timing.timeout_s / 2 if suspects else math.inf
        return out + [probe(peer, now) for peer in self._next(waiting)]

    def _next(self, suspects: list[str]) -> list[str]:
        """Return the suspects to probe now, a few in turn: so many at once are strangers that came and went, and each probe is a dial."""
        after = bisect_right(suspects, self._probed)
        chosen = (suspects[after:] + suspects[:after])[:PROBED_AGAIN]
        self._probed = chosen[-1] if chosen else ""
        return chosen

    def accuse(self, peer: str, now: float) -> list[Output]:
        """Send a peer our accusation of it, so that it can refute; at most once per timeout."""
        rumor = self.dissemination.rumor(peer)
        if rumor is None or now < self._accused_at.get(peer, -math.inf) + self.view.timing.timeout_s:
            return []
        self._accused_at[peer] = now
        return [Send(peer, wire.Spread((), (rumor,)))]

    def forget(self) -> None:
        """Forget peers that are no members."""
        members = self.view.member_list.members
        self._accused_at = {peer: at for peer, at in self._accused_at.items() if peer in members}
