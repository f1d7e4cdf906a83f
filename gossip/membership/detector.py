"""SWIM-type membership: a failure detector and gossip of signed member records, without a coordinator.

A state machine without I/O: messages and time go in, messages to send and membership events come out.

Theory of operation

Probing. Every `probe_s` the next member of a shuffled lap gets a Probe. Without an Acknowledge within a timeout, `helpers` other
members are asked (ProbeFor) to probe it on our behalf, and we probe again. Without an answer within two more timeouts the member
becomes suspect. Any other frame from it since the probe ends the probe as well. A broken connection (`connection_lost`) starts or
advances a probe at once, so that a crash is detected without waiting for the lap. The timeout is `timeout_s`, stretched for members that
are far or slow, and for all while this node has reason to doubt itself (`local_health`). If a timer fires late, this node was held up and
answers may be waiting unread: open probes get another timeout, and no member is declared dead within one.

Suspicion. A suspect stays in the alive set for `suspicion_s`, stretched likewise and longer while few members accuse it (`suspicion`), and
is probed twice per timeout, with the accusation in the probe. Any frame of its own on any lane (connections are authenticated) or a newer
record of it clears the suspicion; otherwise it is declared dead. A member that is accused in its current record raises the record's version
and spreads it, which supersedes any rumor about it.

Byzantine members. A rumor must name its sender as source. A rumor of death counts as a suspicion, and one about a member from which
a frame came less than a timeout ago is ignored: rumors start our own probing and never conclude it, and we pass on only what our own
probes found. A helper's Acknowledge ends one probe; it does not clear a suspicion. Records are signed by the peer that they describe.
Refutations are at least `timeout_s` apart, which bounds the traffic that one accuser can cause.

Dissemination. An accepted record or a suspicion of our own is sent at once: to all members of a small swarm
(`dissemination.SMALL_SWARM`), else to a few random ones, each of which forwards a record, and a suspicion once it is its own;
rumors are also piggybacked on probes. What this misses is found by comparing tables (`table`) with a random member every `sync_s` (scaled
by log n in large swarms) and whenever a probe shows a different digest, and sent by Sync within an allowance of each peer
(`anti_entropy`). A newcomer that knows nobody is told of all. A peer's newer records are accepted at a limited rate, after some at once
one in half of `suspicion_s`, in which a refutation is in time; comparisons for a different digest, and lists of revocations, go to one
member per `timeout_s`, to all in turn.

Meeting. A member is met when a frame of it arrives, and joins then, or when a helper reached it (`introductions`). What others told of a
peer is stored and used, but passed on, in a Spread or a Sync, only when we have met it: so a record with false addresses is known to those
whom its author told, and not through them to all, and of what an honest member tells others all exists. Who hears of a newcomer probes it
at once, of a large swarm about `_MEETERS` members do.

Capacity. A full member list holds a part of a larger swarm, and those of two nodes differ: such a node opens no comparison and asks for no
record, but answers those that have room.

Reordered, duplicated or late messages do no harm: records and suspicions are merged by (incarnation, version), and an Acknowledge
counts only for an open probe. A sender that we believe dead is sent the accusation, and answers with its refutation. Hello is sent
to an unknown sender to request its record, and with each comparison to one dead member, which is how the halves of a healed partition
find each other. After `leave` nothing is sent or processed.

Admission. A peer that the member list's gate rejects is not added. If the gate requires anything at all, non-members get no records
and no rumors. A peer that reports a revoked member, or one that uses another peer's invitation, is sent the reason for the
rejection. Revocations are forwarded at once; their digest is compared with every anti-entropy exchange, and missing ones are sent.

Source: Das, Gupta, Motivala 2002 (SWIM); Dadgar, Phillips, Currey 2018 (Lifeguard). Deviations: no death by rumor, suspects are probed on,
anti-entropy, signed records; those from Lifeguard in `local_health`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.absences import Absences
from starling.gossip.membership.anti_entropy import AntiEntropy
from starling.gossip.membership.dissemination import Dissemination, fan_out, record_fan_out
from starling.gossip.membership.events import ClockSample, Joined, Output, Send, Told
from starling.gossip.membership.fair_turns import FairTurns
from starling.gossip.membership.introductions import Introductions
from starling.gossip.membership.local_health import LocalHealth
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList, version_of
from starling.gossip.membership.pacing import Pacing
from starling.gossip.membership.probes import OpenProbe, Probes
from starling.gossip.membership.sampler import Sampler
from starling.gossip.membership.suspicion import Suspicions
from starling.gossip.membership.table import key_of, well_formed
from starling.gossip.overlay.ranks import digest as digest_of
from starling.gossip.seeds import derive
from starling.gossip.wire import schema as wire

_MEETERS = 64
"""Members, on average, that probe a newcomer at once; as many does the newcomer, whose clock needs samples before its first exchange."""
_FEW_LOOKED_AT = 4  # with more links than these the time for one of them does not matter
_LATELY = 8.0  # longest time in `suspicion_s` for which a member that was gone is called lately gone
_LARGE_SWARM = 32  # from here on comparisons become rarer
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals in seconds, and the number of helpers of an indirect probe; as in the manifest's section `membership`."""

    probe_s: float
    timeout_s: float
    suspicion_s: float
    sync_s: float
    helpers: int


@dataclass(slots=True)
class Detector:
    """The membership state machine of one node."""

    local: LocalRecord  # our own signed record
    member_list: MemberList  # empty
    timing: Timing
    seed: int  # of the random choices of members, 0 <= seed < 2**63
    swarm_time: Callable[[float], float]  # local time in seconds -> swarm time
    now: float  # seconds, on the clock used by all later calls
    last_frame: dict[str, float] = field(default_factory=dict)  # local time of each member's last frame
    rtt_s: dict[str, float] = field(default_factory=dict)
    """Seconds that the last answered probe to each member took, there and back; of a repeated one since its first frame."""
    stopped: bool = False
    _dissemination: Dissemination = field(init=False)
    _anti_entropy: AntiEntropy = field(init=False)
    _sampler: Sampler = field(init=False)
    _probes: Probes = field(init=False)
    _pacing: Pacing = field(init=False)
    _health: LocalHealth = field(init=False)
    _suspicions: Suspicions = field(default_factory=Suspicions)
    _introductions: Introductions = field(default_factory=Introductions)
    _accused_at: dict[str, float] = field(default_factory=dict)
    _probe_at: float = 0.0
    _sync_at: float = 0.0
    _suspects_at: float = math.inf
    _judge_at: float = -math.inf  # before then no member is declared dead: this node was held up
    _spread_at: float = math.inf
    _greeted_at: float = -math.inf
    _syncs: FairTurns[bytes] = field(init=False)  # members with another digest
    _lists: FairTurns[tuple[bytes, bool]] = field(init=False)
    """Members with another digest of revocations, and whether they are asked for theirs."""
    _quiet_until: float = -math.inf
    _unmet: dict[str, float] = field(default_factory=dict)
    """Members whose records are to be spread when we have met them, and since when; who is met later is known by then."""
    _silent: dict[str, float] = field(default_factory=dict)
    """Members that left a probe unanswered, and when it was sent."""
    _absences: Absences = field(init=False)
    _look_at: float = -math.inf  # not before, where nobody is late

    def __post_init__(self) -> None:
        self._sampler = Sampler(derive(self.seed, "membership", self.own.peer))
        self._probes = Probes(self._sampler)
        self._pacing = Pacing(self.timing.suspicion_s / 2)
        self._health = LocalHealth(self.timing.timeout_s)
        self._absences = Absences(_LATELY * self.timing.suspicion_s)
        self._syncs, self._lists = FairTurns(self.timing.timeout_s), FairTurns(self.timing.timeout_s)
        self.member_list.merge(self.own, self.now)
        self._dissemination = Dissemination(self.member_list, self.own.peer)
        self._anti_entropy = AntiEntropy(self.member_list, self._sampler, self._tellable)
        self._probe_at = self.now + self.timing.probe_s * self._sampler.draw()
        self._sync_at = self.now + self.timing.sync_s * self._sampler.draw()

    @property
    def own(self) -> wire.Record:
        """Our current record."""
        return self.local.record

    @property
    def doubt(self) -> int:
        """How many times longer than usual this node waits for others because it doubts itself, 0 to `local_health.MOST` - 1."""
        return self._health.doubt

    @property
    def deadline(self) -> float:
        """Local time at which `tick` must be called if no message arrives before; infinite after `leave`."""
        if self.stopped:
            return math.inf
        timers = self._probe_at, self._sync_at, self._suspects_at, self._spread_at, self.local.refute_at
        parts = self._probes, self._pacing, self._syncs, self._lists
        return min(*timers, *(part.deadline for part in parts))

    def silent(self, peer: str) -> bool:
        """Whether a probe of ours to this member went unanswered for a timeout, and no frame of it has come since."""
        return peer in self._silent

    def lately_gone(self, peer: str, now: float) -> bool:
        """Whether a probe of this member took longer than usual, and the member has not been back for four times as long."""
        return self._absences.lately(peer, self.member_list.size - 1, now)

    def look(self, peers: Collection[str], now: float, *, late: bool) -> list[Output]:
        """Probe peers that are about to be waited for, or whose answers are `late`, unless they were heard within a timeout.

        Where nobody is late, a few at most and one at a time per `probe_s`, so that probes at most double.
        """
        if self.stopped or not (late or (now >= self._look_at and len(peers) <= _FEW_LOOKED_AT)):
            return []
        out: list[Output] = []
        for peer in sorted(peers):
            heard = now - self.last_frame.get(peer, -math.inf) < self.timing.timeout_s
            if heard or peer in self._silent or not self._present(peer) or self._probes.find(peer) is not None:
                continue
            out.append(self._probe(peer, now))
            if not late:
                self._look_at = now + self.timing.probe_s
                break
        return out

    def greet(self, peer: str, now: float) -> list[Output]:
        """Send Hello to a peer that was reached by address and may be unknown: how a node joins a swarm."""
        return [] if self.stopped else [self._hello(peer, now)]

    def update(self, now: float, **changes: object) -> list[Output]:
        """Publish our record with these fields, `addresses` or `credential`, if they are new."""
        if self.stopped or all(getattr(self.own, name) == value for name, value in changes.items()):
            return []
        self._publish(self.local.update(**changes), now)
        return self.tick(now)

    def admit(self, record: wire.Record, source: str, now: float) -> list[Output]:
        """Add a record that passed validation when `source` sent it, and whose credential has been verified since."""
        if self.stopped:
            return []
        out = self._merge((record,), now)
        if source == record.peer and self._present(source):
            out += self._anti_entropy.tell(source, self.member_list.records, now)
        return out + self.tick(now)

    def revoke(self, revocation: wire.Revocation, now: float) -> list[Output]:
        """Apply and spread a revocation issued by this node. Raises ValueError: the revocation is invalid."""
        if self.stopped:
            return []
        return self._revoke((revocation,)) + self.tick(now)

    def leave(self, now: float) -> list[Output]:
        """Send Farewell to all members and stop."""
        if self.stopped:
            return []
        self._publish(self.local.update(status="left"), now)
        self.stopped = True
        return [Send(peer, wire.Farewell(self.own)) for peer in self._others()]

    def connection_lost(self, peer: str, now: float) -> list[Output]:
        """The connection to `peer` broke or cannot be made: start or advance a probe."""
        member = self.member_list.members.get(peer)
        if self.stopped or peer == self.own.peer or member is None or member.status != "alive":
            return []
        probe = self._probes.find(peer)
        if probe is None:
            return [self._probe(peer, now)]
        return [] if probe.helpers else self._unanswered(probe, now)

    def frame_seen(self, peer: str, now: float) -> list[Output]:
        """A frame of `peer` came on another lane: proof that it is alive."""
        return [] if self.stopped else self._mark_alive(peer, now)

    def receive(self, peer: str, message: wire.Control, now: float) -> list[Output]:
        """Process one message from `peer`, which the network has authenticated.

        Raises RemoteProtocolError: foreign swarm, forged record, or a record or rumor in another peer's name; the message has no effect.
        """
        if self.stopped:
            return []
        self._validate(peer, message)
        out = self._mark_alive(peer, now)
        match message:
            case wire.Hello(record, digest):
                out += self._merge((record,), now)
                out += self._greeted(peer, digest, now)
                out += self._explain((record,), peer)
            case wire.Probe(nonce, digest, _, rumors):
                out += self._process_rumors(rumors, peer, now)
                rumors = self._dissemination.take_rumors(1) if self._may_read(peer) else ()
                answer = wire.Acknowledge(nonce, self.member_list.digest, self.swarm_time(now), "", rumors)
                out += [Send(peer, answer), *self._compare_digests(digest, peer, now)]
            case wire.Acknowledge(nonce, digest, theirs, reached, rumors):
                out += self._acknowledged(nonce, peer, reached, theirs, now)
                out += self._process_rumors(rumors, peer, now)
                out += self._compare_digests(digest, peer, now)
            case wire.ProbeFor(nonce, target):
                known = self._present(peer) and self._present(target) and target != self.own.peer
                out += [self._probe(target, now, (peer, nonce))] if known and self._probes.may_relay(peer) else []
            case wire.Spread(records, rumors):
                out += self._merge(records, now)
                out += self._process_rumors(rumors, peer, now)
                out += self._explain(records, peer)
            case wire.Compare():
                if self._may_read(peer):
                    out += self._anti_entropy.answer(peer, message, now)
                else:  # its record, so that it can be told why it is no member
                    out.append(Send(peer, wire.Want((key_of(peer),))))
            case wire.Want(keys):
                out += self._anti_entropy.supply(peer, keys, now) if self._may_read(peer) else []
            case wire.Sync(records):
                out += self._merge(records, now, quiet=True)
                out += self._dispute(records, peer)
                out += self._explain(records, peer)
                out += self._anti_entropy.correct(peer, records, now) if self._may_read(peer) else []
            case wire.Farewell(record):
                out += self._merge((record,), now)
            case wire.Revoked(revocations, digest, reply):
                try:
                    out += self._revoke(revocations)
                except ValueError as error:
                    raise RemoteProtocolError(peer, str(error)) from error
                if reply and self._present(peer):
                    self._lists.ask(peer, (digest, not revocations))
        return out + self.tick(now)

    def tick(self, now: float) -> list[Output]:
        """Perform all actions that are due at `now`."""
        if self.stopped:
            return []
        self._note_lag(now)
        due = self._pacing.due(now)
        out = self._merge(due, now) if due else []
        for probe in self._probes.overdue(now):
            if self.last_frame.get(probe.peer, -math.inf) > probe.sent:
                self._give_up(probe)
            else:
                out += self._unanswered(probe, now)
        if now >= self._suspects_at:
            out += self._check_suspects(now)
        if now >= self._probe_at:
            self._probe_at = now + self.timing.probe_s
            target = self._probes.next_target(self._others())
            out += [self._probe(target, now)] if target is not None else []
        if now >= self._sync_at:
            out += self._repair(now)
        if now >= self.local.refute_at:
            out += self._refute(now)
        out += self._take_turns(now)
        if now >= self._spread_at:
            out += self._spread(now)
        return out

    def _validate(self, peer: str, message: wire.Control) -> None:
        """Raise if any part of a message is invalid, before any part of it is applied."""
        match message:
            case wire.Hello(record) | wire.Farewell(record):
                if record.peer != peer:
                    raise RemoteProtocolError(peer, "record_of_another")
                if record.swarm != self.own.swarm:
                    raise RemoteProtocolError(peer, "foreign_swarm")
                self.member_list.validate((record,), peer)
            case wire.Spread(records) | wire.Sync(records):
                self.member_list.validate(records, peer)
            case wire.Compare() if not well_formed(message):
                raise RemoteProtocolError(peer, "comparison_malformed")
        if any(rumor.source != peer for rumor in getattr(message, "rumors", ())):
            raise RemoteProtocolError(peer, "rumor_of_another")

    def _note_lag(self, now: float) -> None:
        """If a timer fires late, answers may wait unread: give open probes and suspects another timeout."""
        if self._health.lagged(now - min(self._probe_at, self._sync_at, self._suspects_at, self._probes.deadline)):
            self._judge_at = now + self.timing.timeout_s * (1 + self._health.doubt)
            self._probes.extend(self._judge_at)

    def _probe(self, peer: str, now: float, asker: tuple[str, int] | None = None) -> Send:
        nonce = self._probes.begin(peer, now, now + self._health.wait_s(peer), asker)
        accusation = self._dissemination.rumor(peer)
        rumors = ((accusation,) if accusation else ()) + self._dissemination.take_rumors(1)
        return Send(peer, wire.Probe(nonce, self.member_list.digest, self.swarm_time(now), rumors))

    def _unanswered(self, probe: OpenProbe, now: float) -> list[Output]:
        self._silent.setdefault(probe.peer, probe.sent)
        member = self.member_list.members.get(probe.peer)
        if probe.asker is None and not probe.helpers and member is not None and member.status == "alive":
            trusted = [p for p in self._others() if p != probe.peer and self.member_list.members[p].status == "alive"]
            probe.helpers = self._sampler.sample(trusted, self.timing.helpers)
            probe.until = now + 2 * self._health.wait_s(probe.peer)
            if probe.helpers:
                again = Send(probe.peer, wire.Probe(probe.nonce, self.member_list.digest, self.swarm_time(now)))
                return [again, *(Send(helper, wire.ProbeFor(probe.nonce, probe.peer)) for helper in probe.helpers)]
        self._give_up(probe)
        if probe.asker is not None:
            return []
        out = self._suspect(probe.peer, now)
        self._accuse_of_silence(probe.peer, now)
        return out

    def _give_up(self, probe: OpenProbe) -> None:
        self._probes.drop(probe)
        silence = bool(probe.helpers) and max(self.last_frame.values(), default=-math.inf) < probe.sent
        self._health.failed(probe.nonce, probe.peer, probe.sent, silence=silence)

    def _acknowledged(self, nonce: int, peer: str, reached: str, theirs: float, now: float) -> list[Output]:
        probe = self._probes.answered(nonce, peer, reached)
        if probe is None and (late_s := self._health.late(nonce, peer, now)) is not None:
            self.rtt_s[peer] = late_s
        if probe is not None and reached:
            return [*self._introductions.meet(reached)]
        if probe is None:
            return []
        out: list[Output] = []
        self._health.acknowledged(peer, now - probe.sent, in_time=not probe.helpers)
        self.rtt_s[peer] = now - probe.sent
        if not probe.helpers:  # else it was sent twice, and which one is answered is unknown
            out.append(ClockSample(peer, theirs, self.rtt_s[peer]))
        if probe.asker is not None:
            asker, their_nonce = probe.asker
            out.append(Send(asker, wire.Acknowledge(their_nonce, self.member_list.digest, self.swarm_time(now), peer)))
        return out

    def _suspect(self, peer: str, now: float) -> list[Output]:
        suspected = self.member_list.suspect(peer, now)
        if suspected:
            self._suspicions.keep(self.member_list.members)
            self._suspects_at = min(self._suspects_at, now)
        return [*self._introductions.known(suspected)]

    def _accuse_of_silence(self, peer: str, now: float) -> None:
        """Tell others of a suspect that left a probe of ours unanswered, once."""
        member = self.member_list.members.get(peer)  # none where a newcomer took the place of the dead meanwhile
        if member is not None and member.status == "suspect" and not self._suspicions.by(peer, self.own.peer):
            self._suspicions.accuse(peer, self.own.peer)
            self._spread_rumor(peer, now)

    def _spread_rumor(self, peer: str, now: float) -> None:
        self._dissemination.add_rumor(peer)
        self._spread_at = now

    def _check_suspects(self, now: float) -> list[Output]:
        """Twice per timeout while there are suspects: probe them again, and declare those dead whose time is up."""
        out: list[Output] = []
        self._suspicions.keep(self.member_list.members)
        suspects = [(peer, m.since) for peer, m in sorted(self.member_list.members.items()) if m.status == "suspect"]
        for peer, since in suspects:
            if now >= since + self._health.wait_s(peer):
                self._accuse_of_silence(peer, now)
            share = self._suspicions.share(peer, self.member_list.size) if peer in self.last_frame else 1.0
            if now < max(self._judge_at, since + self.timing.suspicion_s * self._health.stretch(peer) * share):
                out.append(self._probe(peer, now))
                continue
            out += self._introductions.known(self.member_list.mark_dead(peer, now))
            self.last_frame.pop(peer, None)
            self._spread_rumor(peer, now)
            out += self._accuse(peer, now)
        self._suspects_at = now + self.timing.timeout_s / 2 if suspects else math.inf
        return out

    def _process_rumors(self, rumors: Iterable[wire.Rumor], source: str, now: float) -> list[Output]:
        out: list[Output] = []
        newer: list[wire.Record] = []
        for rumor in rumors:
            member = self.member_list.members.get(rumor.peer)
            ours = rumor.peer == self.own.peer
            if member is None or not member.present or not (ours or self._present(source)):
                continue
            named = rumor.incarnation, rumor.version
            if named < version_of(member.record):
                newer.append(member.record)
            elif named > version_of(member.record):
                continue
            elif ours:
                self.local.note_accusation(source, now, self.timing.timeout_s)
            elif now - self.last_frame.get(rumor.peer, -math.inf) >= self._health.wait_s(rumor.peer):
                out += self._suspect(rumor.peer, now)
                self._suspicions.accuse(rumor.peer, source)
        if newer:
            out.append(Send(source, wire.Spread(tuple(newer[: wire.MAX_RECORDS]))))
        return out

    def _refute(self, now: float) -> list[Output]:
        accusers = self.local.refute(now)
        self._publish(self.own, now)
        return [Send(accuser, wire.Spread((self.own,))) for accuser in accusers]

    def _dispute(self, records: Iterable[wire.Record], peer: str) -> list[Output]:
        """Send our accusation of members that we believe dead to a peer that lists them, so that it probes them itself."""
        rumors: list[wire.Rumor] = []
        for record in records:
            member = self.member_list.members.get(record.peer)
            if member is not None and member.status == "dead" and version_of(member.record) == version_of(record):
                rumors += filter(None, (self._dissemination.rumor(record.peer),))
        return [Send(peer, wire.Spread((), tuple(rumors[: wire.MAX_RUMORS])))] if rumors else []

    def _accuse(self, peer: str, now: float) -> list[Output]:
        """Send a peer our accusation of it, so that it can refute; at most once per timeout."""
        rumor = self._dissemination.rumor(peer)
        if rumor is None or now < self._accused_at.get(peer, -math.inf) + self.timing.timeout_s:
            return []
        self._accused_at[peer] = now
        return [Send(peer, wire.Spread((), (rumor,)))]

    def _merge(self, records: Sequence[wire.Record], now: float, *, quiet: bool = False) -> list[Output]:
        """Merge records and queue new ones for dissemination; with `quiet` not right after joining, when all are new to us only."""
        out: list[Output] = []
        alone = self.member_list.size == 1
        for record in records:
            if record.peer == self.own.peer:
                outranking = self.local.outrank(record)
                if outranking is not None:
                    self._publish(outranking, now)
                continue
            if not self.member_list.is_news(record) or not self._pacing.accepts(record, now):
                continue
            before = self.member_list.members.get(record.peer)
            met = record.peer in self.last_frame
            at_once = met or self.member_list.size > _MEETERS
            out += self._introductions.hold(self.member_list.merge(record, now), met=at_once)
            changed = self.member_list.members.get(record.peer) is not before
            if changed and record.status == "left":
                self.last_frame.pop(record.peer, None)
            if changed and not (quiet and (alone or now < self._quiet_until)):
                if met or record.status == "left":
                    self._spread_record(record.peer, now)
                else:
                    self._unmet[record.peer] = now
        if self.member_list.gate.changed():
            out += self._introductions.known(self.member_list.purge())
        told = [
            it.peer
            for it in out
            if isinstance(it, Told) or (isinstance(it, Joined) and (alone or it.peer not in self.last_frame))
        ]
        if alone and told:
            self._quiet_until = now + self.timing.timeout_s
        n = self.member_list.size
        return out + [self._probe(peer, now) for peer in told if n <= _MEETERS or self._sampler.draw() * n < _MEETERS]

    def _spread(self, now: float) -> list[Output]:
        others = self._others()
        targets = self._sampler.sample(others, record_fan_out(len(others) + 1))
        records, rumors = self._dissemination.take(len(targets))
        self._spread_at = now + self.timing.timeout_s / 2 if self._dissemination and targets else math.inf
        if not records and not rumors:
            return []
        return [Send(peer, wire.Spread(records, rumors)) for peer in targets]

    def _repair(self, now: float) -> list[Output]:
        self.member_list.expire_tombstones(now)
        self._pacing.forget(now)
        out: list[Output] = (
            [*self._introductions.known(self.member_list.purge())] if self.member_list.gate.closed else []
        )
        for memory in (self.last_frame, self.rtt_s, self._accused_at):
            for peer in [peer for peer in memory if peer not in self.member_list.members]:
                del memory[peer]
        self._unmet = {peer: at for peer, at in self._unmet.items() if now < at + self.timing.sync_s}
        self._silent = {peer: since for peer, since in self._silent.items() if peer in self.member_list.members}
        self._absences.keep(self.member_list.members, now)
        self._health.keep(self.member_list.members)
        others = self._others()
        for turns in (self._syncs, self._lists):
            turns.keep(self.member_list.members)
        self._sync_at = now + self.timing.sync_s * max(1.0, math.log2((len(others) + 1) / _LARGE_SWARM) + 1)
        for peer in self._sampler.sample(others, 1):
            out += [] if self.member_list.full else [self._anti_entropy.open(peer, differs=False)]
            if self.member_list.gate.revoked:
                out.append(Send(peer, wire.Revoked((), self.member_list.gate.digest, reply=True)))
        dead = sorted(peer for peer, member in self.member_list.members.items() if member.status == "dead")
        return out + [self._hello(peer, now) for peer in self._sampler.sample(dead, 1)]

    def _compare_digests(self, digest: bytes, peer: str, now: float) -> list[Output]:
        """On a different digest, have a member wait for its turn of a comparison, or send Hello to an unknown peer, one in a timeout."""
        if digest == self.member_list.digest:
            self._syncs.withdraw(peer)
        elif self.member_list.full:
            return []
        elif self._present(peer):
            self._syncs.ask(peer, digest)
        elif self._may_read(peer) and now >= self._greeted_at + self.timing.timeout_s:
            self._greeted_at = now
            return [self._hello(peer, now)]
        return []

    def _take_turns(self, now: float) -> list[Output]:
        """Compare tables with a member with another digest, and send our revocations to one; at most once per timeout each."""
        out: list[Output] = []
        gate, sync, asked = self.member_list.gate, self._syncs.take(now), self._lists.take(now)
        if sync is not None and self._present(sync[0]) and sync[1] != self.member_list.digest:
            out.append(self._anti_entropy.open(sync[0], differs=True))
        if asked is not None and self._present(asked[0]) and asked[1][0] != gate.digest:
            parts = _parts(gate.revoked, wire.MAX_REVOCATIONS)
            out += [Send(asked[0], wire.Revoked(part, gate.digest, asked[1][1] and last)) for part, last in parts]
        return out

    def _greeted(self, peer: str, digest: bytes, now: float) -> list[Send]:
        """Tell a newcomer that knows itself only of all members, within its allowance; compare tables with others."""
        if digest == self.member_list.digest or not self._may_read(peer):
            return []
        if digest == digest_of((peer,)):
            return self._anti_entropy.tell(peer, self.member_list.records, now)
        return [self._anti_entropy.open(peer, differs=True)]

    def _tellable(self, record: wire.Record) -> bool:
        """Whether we may pass a record on: our own, those of members that we met, and of those that have left."""
        return record.peer in self.last_frame or record.peer == self.own.peer or record.status == "left"

    def _may_read(self, peer: str) -> bool:
        """Whether this peer may be sent records and rumors."""
        return not self.member_list.gate.closed or peer in self.member_list.members

    def _explain(self, records: Iterable[wire.Record], peer: str) -> list[Send]:
        """Proofs for a peer that listed members our gate rejects: revocations, and the records that used an invitation first."""
        gate = self.member_list.gate
        answers = [gate.answer(it) for it in records if it.peer != self.own.peer] if gate.closed else []
        void = tuple(answer for answer in answers if isinstance(answer, wire.Revocation))[: wire.MAX_REVOCATIONS]
        first = tuple(answer for answer in answers if isinstance(answer, wire.Record))[: wire.MAX_RECORDS]
        out = [Send(peer, wire.Revoked(void, gate.digest))] if void else []
        return out + ([Send(peer, wire.Spread(first))] if first else [])

    def _revoke(self, revocations: Sequence[wire.Revocation]) -> list[Output]:
        """Apply new revocations and forward them, also to the members that they remove."""
        new = self.member_list.gate.revoke(revocations)
        if not new:
            return []
        self.member_list.gate.changed()
        removed = self.member_list.purge()
        known = self._introductions.known(removed)
        others = self._others()
        notice = wire.Revoked(tuple(new), self.member_list.gate.digest)
        targets = [*self._sampler.sample(others, fan_out(len(others) + 1)), *(event.peer for event in removed)]
        return [*known, *(Send(peer, notice) for peer in targets)]

    def _publish(self, record: wire.Record, now: float) -> None:
        """Merge and disseminate a new record of ours."""
        self.member_list.merge(record, now)
        self._spread_record(record.peer, now)

    def _spread_record(self, peer: str, now: float) -> None:
        self._dissemination.add_record(peer)
        self._spread_at = now

    def _back(self, peer: str, now: float) -> None:
        """A frame came from the peer, which may have been gone."""
        since = self._silent.pop(peer, now)
        if (probe := self._probes.find(peer)) is not None and now - probe.sent > self._health.usual_s(peer):
            since = min(since, probe.sent)
        if since < now and self._present(peer):  # else it was declared dead, and begins anew
            self._absences.over(peer, now - since, now)

    def _mark_alive(self, peer: str, now: float) -> list[Output]:
        """A frame came from the peer: clear a suspect; send one believed dead the accusation, as only a newer record revives it."""
        self._back(peer, now)
        self.last_frame[peer] = now  # of a stranger, whose record may be in this frame, until the next anti-entropy
        member = self.member_list.members.get(peer)
        if member is None:
            return []
        if now < self._unmet.pop(peer, -math.inf) + self.timing.sync_s:
            self._spread_record(peer, now)
        if member.status == "dead":
            return self._accuse(peer, now)
        return [*self._introductions.meet(peer), *self.member_list.clear_suspicion(peer, now)]

    def _hello(self, peer: str, now: float) -> Send:
        return Send(peer, wire.Hello(self.own, self.member_list.digest, self.swarm_time(now)))

    def _present(self, peer: str) -> bool:
        member = self.member_list.members.get(peer)
        return member is not None and member.present

    def _others(self) -> list[str]:
        return [peer for peer in self.member_list.alive if peer != self.own.peer]


def _parts(items: Sequence[T], size: int) -> list[tuple[tuple[T, ...], bool]]:
    """At most `size` items each, and whether it is the last part; one empty part of no items."""
    starts = range(0, max(1, len(items)), size)
    return [(tuple(items[start : start + size]), start == starts[-1]) for start in starts]
