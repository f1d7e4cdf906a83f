"""SWIM-type membership: who is here, agreed by gossip, with nobody in charge. A state machine: messages and time in, sendings out.

Theory of operation

Probing. Every `probe_s` one member, each once per shuffled lap, gets a Probe. No Acknowledge within `timeout_s`: `helpers`
others are asked (ProbeFor) to probe it for us, and we ask again. No answer within two more timeouts: we suspect it. Any other
frame of its since the probe ends the inquiry as well: it lives, and is only slow to answer. A broken connection (`lost`) starts
or advances a probe at once, so that a crash is not found by chance.

Doubt. A suspect stays in the alive set for `suspicion_s`, is probed twice per timeout with the accusation in the probe, and is
cleared by any frame of its own on any lane (connections are authenticated) or by a newer record of it. Else it is dead. Who is
accused of something in its current record raises its version and spreads it: a live member outruns any rumor about it.

Liars. Everyone speaks for himself: a rumor names its sender as source. A rumor of death is taken as a suspicion, and one about a
member that we heard less than a timeout ago not at all; so others' words start our own inquiry and never end it. A helper's word
that a member lives ends one probe, it does not clear a suspicion. Records are signed by whom they are about. Refutations are at
least `timeout_s` apart, so that one liar's frame does not become a flood.

News. An accepted record or a new doubt goes out at once: to all where members are few (`news.SMALL_SWARM`), else to about
log2 n random ones, each of whom does the same; rumors also ride on probes. What this misses is found by Sync, a full exchange
of records with a random member every `sync_s` (scaled by log n in large swarms) and whenever a probe shows another digest.

Messages out of order, twice or too late do no harm: records and beliefs are merged by (incarnation, version), and an
acknowledgement counts only for a probe still open. Who believes a sender dead tells it so, and gets its refutation back. From
one that we do not know we ask the records by Hello. One dead member per Sync gets Hello too: that is how the halves of a
healed partition meet. Ends: after `leave` nothing is sent or heard.

Admission. Whom the view's gate does not admit is not taken in; if the gate asks anything at all, strangers get no records and no rumors.
Who tells us of one that is revoked, or that uses another's invitation, is told why we do not believe in it. Revocations are passed on at
once like news; with each anti-entropy their digest is compared, and who lacks some gets all.

Source: Das, Gupta, Motivala 2002 (SWIM). Deviations: no death by rumor, suspects are probed on, anti-entropy, signed records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.dissemination import MAX_FRAME_RECORDS, MAX_FRAME_RUMORS, News, fan_out
from starling.gossip.membership.events import ClockSample, Joined, Output, Send
from starling.gossip.membership.local_record import Ourselves
from starling.gossip.membership.member_list import View, life
from starling.gossip.membership.probes import MAX_RELAYS, OpenProbe, Probes
from starling.gossip.membership.revocations import all_revoked, explain
from starling.gossip.membership.sampler import Chance
from starling.gossip.membership.validate import screen
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import (
    Acknowledge,
    Control,
    Farewell,
    Hello,
    Probe,
    ProbeFor,
    Record,
    Revocation,
    Revoked,
    Rumor,
    Spread,
    Sync,
)

_FIRST_PROBES = 8  # members a newcomer probes at once: its clock needs samples before its first exchange
_LARGE_SWARM = 32  # from here on Sync becomes rarer


@dataclass(frozen=True, slots=True)
class Timing:
    """The clockwork, seconds (and how many helpers). Meanings as in the manifest's section `membership`."""

    probe_s: float
    timeout_s: float
    suspicion_s: float
    sync_s: float
    helpers: int


@dataclass(slots=True)
class Detector:
    """The membership of one node.

    Args:
        ourselves: speaks for us.
        view: empty.
        timing: the clockwork.
        seed: root of this core's chance.
        swarm_time: from our clock to the swarm's.
        now: seconds, on the clock of all later calls.
    """

    ourselves: Ourselves
    view: View
    timing: Timing
    seed: int
    swarm_time: Callable[[float], float]
    now: float
    heard: dict[str, float] = field(default_factory=dict)
    """When each member's last frame came."""
    rtt_s: dict[str, float] = field(default_factory=dict)
    """Last measured round trip to each member."""
    gone: bool = False
    _news: News = field(init=False)
    _chance: Chance = field(init=False)
    _probes: Probes = field(init=False)
    _told: dict[str, float] = field(default_factory=dict)
    _probe_at: float = 0.0
    _sync_at: float = 0.0
    _beat_at: float = math.inf
    _wave_at: float = math.inf
    _mismatch_at: float = -math.inf
    _answered_at: float = -math.inf
    _quiet_until: float = -math.inf

    def __post_init__(self) -> None:
        self._chance = Chance(derive(self.seed, "membership", self.own.peer))
        self._probes = Probes(self._chance)
        self.view.merge(self.own, self.now)
        self._news = News(self.view, self.own.peer)
        self._probe_at = self.now + self.timing.probe_s * self._chance.draw()
        self._sync_at = self.now + self.timing.sync_s * self._chance.draw()

    @property
    def own(self) -> Record:
        """Our record."""
        return self.ourselves.own

    @property
    def deadline(self) -> float:
        """When `tick` has something to do, if nothing is received before."""
        if self.gone:
            return math.inf
        timers = self._probe_at, self._sync_at, self._beat_at, self._wave_at, self.ourselves.refute_at
        return min(*timers, self._probes.deadline)

    def greet(self, peer: str, now: float) -> list[Output]:
        """Say Hello to a peer that we reached but may not know: the way into a swarm."""
        return [] if self.gone else [self._hello(peer, now)]

    def readdress(self, addresses: tuple[str, ...], now: float) -> list[Output]:
        """Our addresses changed."""
        if self.gone or addresses == self.own.addresses:
            return []
        self._say(self.ourselves.restate(addresses=addresses), now)
        return self.tick(now)

    def present(self, credential: bytes, now: float) -> list[Output]:
        """We have a new credential."""
        if self.gone or credential == self.own.credential:
            return []
        self._say(self.ourselves.restate(credential=credential), now)
        return self.tick(now)

    def welcome(self, record: Record, source: str, now: float) -> list[Output]:
        """A record that `source` told, which passed the screen and waited for its credential to be examined, is admitted by now."""
        if self.gone:
            return []
        out = self._merge((record,), now)
        if source == record.peer and self._present(source):
            out += self._sync(source, self.view.records, reply=True)
        return out + self.tick(now)

    def revoke(self, revocation: Revocation, now: float) -> list[Output]:
        """We revoke an invitation.

        Raises:
            ValueError: it is no revocation that anybody would believe.
        """
        if self.gone:
            return []
        return self._revoke((revocation,)) + self.tick(now)

    def leave(self, now: float) -> list[Output]:
        """Say Farewell to everyone; the last thing this core does."""
        if self.gone:
            return []
        self._say(self.ourselves.restate(status="left"), now)
        self.gone = True
        return [Send(peer, Farewell(self.own)) for peer in self._others()]

    def lost(self, peer: str, now: float) -> list[Output]:
        """The network says that the connection to `peer` broke, or that none can be made: inquire at once."""
        member = self.view.members.get(peer)
        if self.gone or peer == self.own.peer or member is None or member.status != "alive":
            return []
        probe = self._probes.of(peer)
        if probe is None:
            return [self._probe(peer, now)]
        return [] if probe.helpers else self._unanswered(probe, now)

    def met(self, peer: str, now: float) -> list[Output]:
        """A frame of `peer` came on another lane: it lives, whatever became of our probes."""
        return [] if self.gone else self._note(peer, now)

    def receive(self, peer: str, message: Control, now: float) -> list[Output]:
        """One message from `peer`, which the network has authenticated.

        Raises:
            RemoteProtocolError: foreign swarm, forged record, or word in another's name; then the message had no effect.
        """
        if self.gone:
            return []
        screen(peer, message, self.own.swarm, self.view)
        out = self._note(peer, now)
        match message:
            case Hello(record=record, view=digest):
                out += self._merge((record,), now)
                if self._may_read(peer):
                    out += self._sync(peer, self.view.records, reply=digest != self.view.digest)
                out += self._explain((record,), peer)
            case Probe(nonce=nonce, view=digest, rumors=rumors):
                out += self._listen(rumors, peer, now)
                told = self._news.take_rumors(1) if self._may_read(peer) else ()
                answer = Acknowledge(nonce, self.view.digest, self.swarm_time(now), "", told)
                out.append(Send(peer, answer))
                out += self._compare(digest, peer, now)
            case Acknowledge(nonce=nonce, view=digest, swarm_time=theirs, peer=reached, rumors=rumors):
                out += self._acknowledged(nonce, peer, reached, theirs, now)
                out += self._listen(rumors, peer, now)
                out += self._compare(digest, peer, now)
            case ProbeFor(nonce=nonce, peer=target):
                out += self._probe_for(peer, nonce, target, now)
            case Spread(records=records, rumors=rumors):
                out += self._merge(records, now)
                out += self._listen(rumors, peer, now)
                out += self._explain(records, peer)
            case Sync(records=records, reply=reply):
                out += self._merge(records, now, quiet=True)
                out += self._dispute(records, peer)
                out += self._explain(records, peer)
                if reply and self._may_read(peer):
                    held = {record.peer: life(record) for record in records}
                    missing = [r for r in self.view.records if life(r) > held.get(r.peer, (-1, -1))]
                    out += self._sync(peer, missing, reply=False) if missing else []
            case Farewell(record=record):
                out += self._merge((record,), now)
            case Revoked(revocations=revocations, known=known, reply=reply):
                try:
                    out += self._revoke(revocations)
                except ValueError as error:
                    raise RemoteProtocolError(peer, str(error)) from error
                if reply and known != self.view.gate.digest and self._present(peer):
                    out += self._tell_revoked(peer, now, reply=not revocations)
        return out + self.tick(now)

    def tick(self, now: float) -> list[Output]:
        """Do all that is due."""
        if self.gone:
            return []
        out: list[Output] = []
        for probe in self._probes.overdue(now):
            if self.heard.get(probe.peer, -math.inf) > probe.sent:
                self._probes.give_up(probe)
            else:
                out += self._unanswered(probe, now)
        if now >= self._beat_at:
            out += self._judge(now)
        if now >= self._probe_at:
            self._probe_at = now + self.timing.probe_s
            target = self._probes.next_in_lap(self._others())
            out += [self._probe(target, now)] if target is not None else []
        if now >= self._sync_at:
            out += self._anti_entropy(now)
        if now >= self.ourselves.refute_at:
            out += self._refute(now)
        if now >= self._wave_at:
            out += self._wave(now)
        return out

    # --- probing ------------------------------------------------------------------------------------------

    def _probe(self, peer: str, now: float, asker: tuple[str, int] | None = None) -> Send:
        nonce = self._probes.begin(peer, now, now + self.timing.timeout_s, asker)
        accusation = self._news.rumor(peer)
        rumors = ((accusation,) if accusation else ()) + self._news.take_rumors(1)
        return Send(peer, Probe(nonce, self.view.digest, self.swarm_time(now), rumors))

    def _unanswered(self, probe: OpenProbe, now: float) -> list[Output]:
        member = self.view.members.get(probe.peer)
        if probe.asker is None and not probe.helpers and member is not None and member.status == "alive":
            trusted = [p for p in self._others() if p != probe.peer and self.view.members[p].status == "alive"]
            probe.helpers = self._chance.sample(trusted, self.timing.helpers)
            probe.until = now + 2 * self.timing.timeout_s
            if probe.helpers:
                again = Send(probe.peer, Probe(probe.nonce, self.view.digest, self.swarm_time(now)))
                return [again, *(Send(helper, ProbeFor(probe.nonce, probe.peer)) for helper in probe.helpers)]
        self._probes.give_up(probe)
        return self._suspect(probe.peer, now) if probe.asker is None else []

    def _probe_for(self, asker: str, nonce: int, target: str, now: float) -> list[Output]:
        known = self._present(asker) and self._present(target)
        if not known or target == self.own.peer or self._probes.relays >= MAX_RELAYS:
            return []
        return [self._probe(target, now, asker=(asker, nonce))]

    def _acknowledged(self, nonce: int, peer: str, reached: str, theirs: float, now: float) -> list[Output]:
        probe = self._probes.answered(nonce, peer, reached)
        if probe is None or reached:
            return []
        out: list[Output] = []
        if not probe.helpers:  # else it was sent twice, and which one is answered is unknown
            self.rtt_s[peer] = now - probe.sent
            out.append(ClockSample(peer, theirs, self.rtt_s[peer]))
        if probe.asker is not None:
            asker, their_nonce = probe.asker
            out.append(Send(asker, Acknowledge(their_nonce, self.view.digest, self.swarm_time(now), peer)))
        return out

    # --- doubt --------------------------------------------------------------------------------------------

    def _suspect(self, peer: str, now: float) -> list[Output]:
        out: list[Output] = [*self.view.suspect(peer, now)]
        if out:
            self._news.add_rumor(peer)
            self._wave_at = now
            self._beat_at = min(self._beat_at, now)
        return out

    def _judge(self, now: float) -> list[Output]:
        """Twice per timeout while there are suspects: ask them once more, bury those whose time is up.

        If this comes late it was us who slept, and words of suspects may wait unread: nobody is buried this time.
        """
        out: list[Output] = []
        slept = now - self._beat_at > self.timing.timeout_s
        suspects = [(peer, m.since) for peer, m in sorted(self.view.members.items()) if m.status == "suspect"]
        for peer, since in suspects:
            if slept or now < since + self.timing.suspicion_s:
                out.append(self._probe(peer, now))
                continue
            out += self.view.bury(peer, now)
            self._news.add_rumor(peer)
            self._wave_at = now
            out += self._tell(peer, now)
        self._beat_at = now + self.timing.timeout_s / 2 if suspects else math.inf
        return out

    def _listen(self, rumors: Iterable[Rumor], source: str, now: float) -> list[Output]:
        out: list[Output] = []
        newer: list[Record] = []
        for rumor in rumors:
            member = self.view.members.get(rumor.peer)
            ours = rumor.peer == self.own.peer
            if member is None or not member.present or not (ours or self._present(source)):
                continue
            named = rumor.incarnation, rumor.version
            if named < life(member.record):
                newer.append(member.record)
            elif named > life(member.record):
                continue
            elif ours:
                self.ourselves.accused(source, now, self.timing.timeout_s)
            elif now - self.heard.get(rumor.peer, -math.inf) >= self.timing.timeout_s:
                out += self._suspect(rumor.peer, now)
        if newer:
            out.append(Send(source, Spread(tuple(newer[:MAX_FRAME_RECORDS]))))
        return out

    def _refute(self, now: float) -> list[Output]:
        accusers = self.ourselves.refute(now)
        self._say(self.own, now)
        return [Send(accuser, Spread((self.own,))) for accuser in accusers]

    def _dispute(self, records: Iterable[Record], peer: str) -> list[Output]:
        """Who lists somebody that we believe dead hears our doubt, and makes an inquiry of its own."""
        rumors = []
        for record in records:
            member = self.view.members.get(record.peer)
            if member is not None and member.status == "dead" and life(member.record) == life(record):
                rumors.append(self._news.rumor(record.peer))
        doubts = tuple(rumor for rumor in rumors[:MAX_FRAME_RUMORS] if rumor is not None)
        return [Send(peer, Spread((), doubts))] if doubts else []

    def _tell(self, peer: str, now: float) -> list[Output]:
        """Let a peer know what we hold against it, so that it can refute; not more often than once a timeout."""
        rumor = self._news.rumor(peer)
        if rumor is None or now < self._told.get(peer, -math.inf) + self.timing.timeout_s:
            return []
        self._told[peer] = now
        return [Send(peer, Spread((), (rumor,)))]

    # --- news and anti-entropy ------------------------------------------------------------------------------

    def _merge(self, records: Sequence[Record], now: float, *, quiet: bool = False) -> list[Output]:
        """Take records in and pass on what was new. `quiet`: not in a newcomer's first moments, when all is new to it only."""
        out: list[Output] = []
        alone = len(self.view.alive) == 1
        for record in records:
            if record.peer == self.own.peer:
                outranking = self.ourselves.reclaim(record)
                if outranking is not None:
                    self._say(outranking, now)
                continue
            before = self.view.members.get(record.peer)
            out += self.view.merge(record, now)
            if self.view.members.get(record.peer) is not before and not (quiet and (alone or now < self._quiet_until)):
                self._news.add_record(record.peer)
                self._wave_at = now
        if self.view.gate.changed():
            out += self.view.purge()
        if alone and any(isinstance(event, Joined) for event in out):
            self._quiet_until = now + self.timing.timeout_s
            out += [self._probe(peer, now) for peer in self._chance.sample(self._others(), _FIRST_PROBES)]
        return out

    def _wave(self, now: float) -> list[Output]:
        others = self._others()
        targets = self._chance.sample(others, fan_out(len(others) + 1))
        records, rumors = self._news.take(len(targets))
        self._wave_at = now + self.timing.timeout_s / 2 if self._news and targets else math.inf
        if not records and not rumors:
            return []
        return [Send(peer, Spread(records, rumors)) for peer in targets]

    def _anti_entropy(self, now: float) -> list[Output]:
        self.view.forget(now)
        out: list[Output] = [*self.view.purge()] if self.view.gate.closed else []
        for memory in (self.heard, self.rtt_s, self._told):
            for peer in [peer for peer in memory if peer not in self.view.members]:
                del memory[peer]
        others = self._others()
        self._sync_at = now + self.timing.sync_s * max(1.0, math.log2((len(others) + 1) / _LARGE_SWARM) + 1)
        for peer in self._chance.sample(others, 1):
            out += self._sync(peer, self.view.records, reply=True)
            if self.view.gate.revoked:
                out.append(Send(peer, Revoked((), self.view.gate.digest, reply=True)))
        dead = sorted(peer for peer, member in self.view.members.items() if member.status == "dead")
        return out + [self._hello(peer, now) for peer in self._chance.sample(dead, 1)]

    def _compare(self, digest: bytes, peer: str, now: float) -> list[Output]:
        """Another digest: exchange records with a member, greet a stranger; not more often than once a timeout."""
        if digest == self.view.digest or now < self._mismatch_at + self.timing.timeout_s:
            return []
        if not self._may_read(peer):
            return []
        self._mismatch_at = now
        if not self._present(peer):
            return [self._hello(peer, now)]
        return self._sync(peer, self.view.records, reply=True)

    def _sync(self, peer: str, records: Sequence[Record], *, reply: bool) -> list[Output]:
        """All records; those of a large swarm in several frames, the last of which asks for theirs."""
        starts = range(0, len(records), MAX_FRAME_RECORDS)
        last = len(starts) - 1
        frames = (records[start : start + MAX_FRAME_RECORDS] for start in starts)
        return [Send(peer, Sync(tuple(frame), reply and i == last)) for i, frame in enumerate(frames)]

    # --- admission ------------------------------------------------------------------------------------------

    def _may_read(self, peer: str) -> bool:
        """Whether records and rumors are for this peer."""
        return not self.view.gate.closed or peer in self.view.members

    def _explain(self, records: Iterable[Record], peer: str) -> list[Send]:
        return explain(self.view.gate, (record for record in records if record.peer != self.own.peer), peer)

    def _revoke(self, revocations: Sequence[Revocation]) -> list[Output]:
        """Act upon those that are new, and pass them on; those who are put out hear it too."""
        new = self.view.gate.revoke(revocations)
        if not new:
            return []
        self.view.gate.changed()
        gone = self.view.purge()
        others = self._others()
        told = Revoked(tuple(new), self.view.gate.digest)
        targets = [*self._chance.sample(others, fan_out(len(others) + 1)), *(event.peer for event in gone)]
        return [*gone, *(Send(peer, told) for peer in targets)]

    def _tell_revoked(self, peer: str, now: float, *, reply: bool) -> list[Send]:
        """All revocations; not more often than once a timeout."""
        if now < self._answered_at + self.timing.timeout_s:
            return []
        self._answered_at = now
        return all_revoked(self.view.gate, peer, reply=reply)

    # --- ourselves and small things -------------------------------------------------------------------------

    def _say(self, record: Record, now: float) -> None:
        """Something new of ourselves goes out."""
        self.view.merge(record, now)
        self._news.add_record(record.peer)
        self._wave_at = now

    def _note(self, peer: str, now: float) -> list[Output]:
        """A frame from the peer itself: it lives. Who we believe dead is told so, for only its newer record undoes that."""
        member = self.view.members.get(peer)
        if member is None:
            return []
        self.heard[peer] = now
        return self._tell(peer, now) if member.status == "dead" else [*self.view.clear(peer, now)]

    def _hello(self, peer: str, now: float) -> Send:
        return Send(peer, Hello(self.own, self.view.digest, self.swarm_time(now)))

    def _present(self, peer: str) -> bool:
        member = self.view.members.get(peer)
        return member is not None and member.present

    def _others(self) -> list[str]:
        return [peer for peer in self.view.alive if peer != self.own.peer]
