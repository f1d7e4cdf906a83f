"""Probing of members, to find out which are alive.

Theory of operation. Every `probe_s` the next member of a shuffled lap gets a Probe. Without an Acknowledge within a timeout, `helpers`
other members are asked (ProbeFor) to probe it on our behalf, and we probe again. Without an answer within two more timeouts the member
becomes suspect. Any other frame from it since the probe ends the probe as well. A broken connection (`connection_lost`) starts or
advances a probe at once, so that a crash is detected without waiting for the lap. The timeout is `timeout_s`, stretched for members that
are far or slow, and for all while this node has reason to doubt itself (`local_health`). If a timer fires late, this node was held up and
answers may be waiting unread: open probes get another timeout. A helper's Acknowledge ends one probe, and clears no suspicion.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from starling.gossip.membership.absences import Absences
from starling.gossip.membership.dissemination import Dissemination
from starling.gossip.membership.events import ClockSample, Output, Send
from starling.gossip.membership.local_health import LocalHealth
from starling.gossip.membership.probes import OpenProbe, Probes
from starling.gossip.membership.suspects import Suspects
from starling.gossip.membership.swarm_view import SwarmView
from starling.gossip.wire import schema as wire

FEW_LOOKED_AT = 4  # with more links than these the time for a single one does not matter
LATELY = 8.0  # longest time in `suspicion_s` for which a member that was gone is called lately gone


@dataclass(slots=True)
class Prober:
    """Finds out which members are alive."""

    view: SwarmView
    dissemination: Dissemination
    probe_at: float  # local time at which the next member of the lap is probed
    rtt_s: dict[str, float] = field(default_factory=dict)
    """Seconds that the last answered probe to each member took, there and back; of a repeated one since its first frame."""
    probes: Probes = field(init=False)
    health: LocalHealth = field(init=False)
    suspects: Suspects = field(init=False)
    _silent: dict[str, float] = field(default_factory=dict)
    """Members that left a probe unanswered, and when it was sent."""
    _absences: Absences = field(init=False)
    _look_at: float = -math.inf  # not before this time, if nobody is late

    def __post_init__(self) -> None:
        timing = self.view.timing
        self.probes = Probes(self.view.sampler)
        self.health = LocalHealth(timing.timeout_s)
        self.suspects = Suspects(self.view, self.dissemination, self.health)
        self._absences = Absences(LATELY * timing.suspicion_s)

    @property
    def deadline(self) -> float:
        """Local time at which `tick` must be called if no message arrives before."""
        return min(self.probe_at, self.suspects.judge_at, self.probes.deadline)

    def silent(self, peer: str) -> bool:
        """Return whether a probe of ours to this member went unanswered for a timeout, and no frame of it has come since."""
        return peer in self._silent

    def lately_gone(self, peer: str, now: float) -> bool:
        """Return whether a probe of this member took longer than usual, and it has not been back for four times as long."""
        return self._absences.lately(peer, self.view.member_list.size - 1, now)

    def probe_now(self, peers: Collection[str], now: float, *, late: bool) -> list[Output]:
        """Probe peers that are about to be waited for, or whose answers are `late`, unless they were heard within a timeout.

        Where nobody is late, a few at most and one at a time per `probe_s`, so that probes at most double.
        """
        if not (late or (now >= self._look_at and len(peers) <= FEW_LOOKED_AT)):
            return []
        out: list[Output] = []
        for peer in sorted(peers):
            heard = now - self.view.last_frame.get(peer, -math.inf) < self.view.timing.timeout_s
            if heard or peer in self._silent or not self.view.present(peer) or self.probes.find(peer) is not None:
                continue
            out.append(self.probe(peer, now))
            if not late:
                self._look_at = now + self.view.timing.probe_s
                break
        return out

    def connection_lost(self, peer: str, now: float) -> list[Output]:
        """Start or advance a probe of a member to which the connection broke or cannot be made."""
        member = self.view.member_list.members.get(peer)
        if peer == self.view.own.peer or member is None or member.status != "alive":
            return []
        probe = self.probes.find(peer)
        if probe is None:
            return [self.probe(peer, now)]
        return [] if probe.helpers else self._unanswered(probe, now)

    def heard(self, peer: str, now: float) -> list[Output]:
        """Clear the suspicion of a peer whose frame came; send one believed dead the accusation, as only a newer record revives it."""
        self._back(peer, now)
        self.view.last_frame[peer] = now  # time of a stranger's frame, whose record may be in it, until the next anti-entropy
        member = self.view.member_list.members.get(peer)
        if member is None:
            return []
        if member.status == "dead":
            return self.suspects.accuse(peer, now)
        return [*self.view.introductions.meet(peer), *self.view.member_list.clear_suspicion(peer, now)]

    def receive(self, peer: str, message: wire.Control, now: float) -> list[Output]:
        """Answer probes, and take answers; both with their rumors."""
        match message:
            case wire.Probe(nonce, _, _, rumors):
                out = self.suspects.accused(rumors, peer, now)
                rumors = self.dissemination.take_rumors(1) if self.view.may_read(peer) else ()
                return [*out, Send(peer, self._acknowledge(nonce, "", now, rumors))]
            case wire.Acknowledge(nonce, _, theirs, reached, rumors):
                return self._acknowledged(nonce, peer, reached, theirs, now) + self.suspects.accused(rumors, peer, now)
            case wire.ProbeFor(nonce, target):
                known = self.view.present(peer) and self.view.present(target) and target != self.view.own.peer
                return [self.probe(target, now, (peer, nonce))] if known and self.probes.may_relay(peer) else []
            case _:
                return []

    def note_lag(self, lag_s: float, now: float) -> None:
        """If a timer fired so late that answers may wait unread, extend open probes and suspicions by another timeout."""
        if self.health.lagged(lag_s):
            self.suspects.suspended_until = until = now + self.view.timing.timeout_s * (1 + self.health.doubt)
            self.probes.extend(until)

    def tick(self, now: float) -> list[Output]:
        """Ask helpers for what went unanswered, judge suspects, and probe the next member of the lap."""
        out: list[Output] = []
        for probe in self.probes.overdue(now):
            if self.view.last_frame.get(probe.peer, -math.inf) > probe.sent:
                self._give_up(probe)
            else:
                out += self._unanswered(probe, now)
        out += self.suspects.judge(now, self.probe)
        if now >= self.probe_at:
            self.probe_at = now + self.view.timing.probe_s
            target = self.probes.next_target(self.view.others())
            out += [self.probe(target, now)] if target is not None else []
        return out

    def probe(self, peer: str, now: float, asker: tuple[str, int] | None = None) -> Send:
        """Open a probe of a peer, on behalf of another member (id, its nonce) if given."""
        nonce = self.probes.begin(peer, now, now + self.health.wait_s(peer), asker)
        accusation = self.dissemination.rumor(peer)
        rumors = ((accusation,) if accusation else ()) + self.dissemination.take_rumors(1)
        return Send(peer, wire.Probe(nonce, self.view.member_list.digest, self.view.swarm_time(now), rumors))

    def forget(self, now: float) -> None:
        """Forget peers that are no members, and what is over."""
        members = self.view.member_list.members
        for memory in (self.rtt_s, self._silent):
            for peer in [peer for peer in memory if peer not in members]:
                del memory[peer]
        self._absences.keep(members, now)
        self.health.keep(members)
        self.suspects.forget()

    def _unanswered(self, probe: OpenProbe, now: float) -> list[Output]:
        self._silent.setdefault(probe.peer, probe.sent)
        members = self.view.member_list.members
        member = members.get(probe.peer)
        if probe.asker is None and not probe.helpers and member is not None and member.status == "alive":
            trusted = [p for p in self.view.others() if p != probe.peer and members[p].status == "alive"]
            probe.helpers = self.view.sampler.sample(trusted, self.view.timing.helpers)
            probe.until = now + 2 * self.health.wait_s(probe.peer)
            if probe.helpers:
                message = wire.Probe(probe.nonce, self.view.member_list.digest, self.view.swarm_time(now))
                asked = (Send(helper, wire.ProbeFor(probe.nonce, probe.peer)) for helper in probe.helpers)
                return [Send(probe.peer, message), *asked]
        self._give_up(probe)
        if probe.asker is not None:
            return []
        out = self.suspects.suspect(probe.peer, now)
        self.suspects.found_silent(probe.peer, now)
        return out

    def _give_up(self, probe: OpenProbe) -> None:
        self.probes.drop(probe)
        silence = bool(probe.helpers) and max(self.view.last_frame.values(), default=-math.inf) < probe.sent
        self.health.failed(probe.nonce, probe.peer, probe.sent, silence=silence)

    def _acknowledge(self, nonce: int, reached: str, now: float, rumors: tuple[wire.Rumor, ...] = ()) -> wire.Acknowledge:
        return wire.Acknowledge(nonce, self.view.member_list.digest, self.view.swarm_time(now), reached, rumors)

    def _acknowledged(self, nonce: int, peer: str, reached: str, theirs: float, now: float) -> list[Output]:
        probe = self.probes.answered(nonce, peer, reached)
        if probe is None and (late_s := self.health.late(nonce, peer, now)) is not None:
            self.rtt_s[peer] = late_s
        if probe is not None and reached:
            return [*self.view.introductions.meet(reached)]
        if probe is None:
            return []
        out: list[Output] = []
        self.health.acknowledged(peer, now - probe.sent, in_time=not probe.helpers)
        self.rtt_s[peer] = now - probe.sent
        if not probe.helpers:  # otherwise it was sent twice, and it is unknown which one is answered
            out.append(ClockSample(peer, theirs, self.rtt_s[peer]))
        if probe.asker is not None:
            asker, their_nonce = probe.asker
            out.append(Send(asker, self._acknowledge(their_nonce, peer, now)))
        return out

    def _back(self, peer: str, now: float) -> None:
        """Note the absence of a peer, which may have been absent, when a frame of it arrives."""
        since = self._silent.pop(peer, now)
        if (probe := self.probes.find(peer)) is not None and now - probe.sent > self.health.usual_s(peer):
            since = min(since, probe.sent)
        if since < now and self.view.present(peer):  # otherwise it was declared dead, and starts anew
            self._absences.over(peer, now - since, now)
