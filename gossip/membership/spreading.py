"""Spreading of records: merged, forwarded, and compared with others' tables.

Theory of operation

Dissemination. An accepted record or a suspicion of our own is sent at once: to all members of a small swarm
(`dissemination.SMALL_SWARM`), else to a few random ones, each of which forwards a record, and a suspicion once it is its own;
rumors are also piggybacked on probes. What this misses is found by comparing tables (`table`) with a random member every `sync_s` (scaled
by log n in large swarms) and whenever a probe shows a different digest, and sent by Sync within an allowance of each peer
(`anti_entropy`). A newcomer that knows nobody is told of all. A peer's newer records are accepted at a limited rate, after some at once
one in half of `suspicion_s`, in which a refutation is in time; comparisons for a different digest go to one member per `timeout_s`, to all
in turn.

Meeting. A member is met when a frame of it arrives, and joins then, or when a helper reached it (`introductions`). What others told of a
peer is stored and used, but passed on, in a Spread or a Sync, only when we have met it: so a record with false addresses is known to those
whom its author told, and not through them to all, and of what an honest member tells others all exists. Who hears of a newcomer probes it
at once, of a large swarm about `MEETERS` members do.

Capacity. A full member list holds a part of a larger swarm, and those of two nodes differ: such a node opens no comparison and asks for no
record, but answers those that have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starling.gossip.membership.anti_entropy import AntiEntropy
from starling.gossip.membership.dissemination import Dissemination, record_fan_out
from starling.gossip.membership.events import Announced, Joined, Output, Send
from starling.gossip.membership.fair_queue import FairQueue
from starling.gossip.membership.member_list import version_of
from starling.gossip.membership.pacing import Pacing
from starling.gossip.membership.prober import Prober
from starling.gossip.membership.revocations import Revocations
from starling.gossip.membership.swarm_view import SwarmView
from starling.gossip.membership.table import key_of
from starling.gossip.overlay.ranks import digest as digest_of
from starling.gossip.wire import schema as wire

MEETERS = 64
"""Members, on average, that probe a newcomer at once; as many does the newcomer, whose clock needs samples before its first exchange."""
LARGE_SWARM = 32  # number of members above which comparisons become rarer


@dataclass(slots=True)
class Spreading:
    """Makes the member list of one node equal to those of others."""

    view: SwarmView
    dissemination: Dissemination
    prober: Prober
    revocations: Revocations
    sync_at: float  # local time of the next comparison with a random member
    quiet_until: float = -math.inf
    """Local time until which records of a Sync are new to us only, as we have just joined."""
    anti_entropy: AntiEntropy = field(init=False)
    _pacing: Pacing = field(init=False)
    _syncs: FairQueue[bytes] = field(init=False)  # members with another digest
    _greeted_at: float = -math.inf
    _unmet: dict[str, float] = field(default_factory=dict)
    """Members whose records are to be spread when we have met them, and since when; who is met later is known by then."""

    def __post_init__(self) -> None:
        timing = self.view.timing
        self.anti_entropy = AntiEntropy(self.view.member_list, self.view.sampler, self._tellable)
        self._pacing, self._syncs = Pacing(timing.suspicion_s / 2), FairQueue(timing.timeout_s)

    @property
    def deadline(self) -> float:
        """Local time at which `tick` must be called if no message arrives before."""
        timers = self.sync_at, self.dissemination.due_at, self.view.local.refute_at
        return min(*timers, self._pacing.deadline, self._syncs.deadline)

    def publish(self, record: wire.Record, now: float) -> None:
        """Merge and disseminate a new record of ours."""
        self.view.member_list.merge(record, now)
        self.dissemination.add_record(record.peer, now)

    def admit(self, record: wire.Record, source: str, now: float) -> list[Output]:
        """Add a record that passed validation when `source` sent it, and whose credential has been verified since."""
        out = self.merge((record,), now)
        if source == record.peer and self.view.present(source):
            out += self.anti_entropy.tell(source, self.view.member_list.records, now)
        return out

    def heard(self, peer: str, now: float) -> None:
        """Spread the record of a peer that was reported to us and is met now."""
        known = peer in self.view.member_list.members
        if known and now < self._unmet.pop(peer, -math.inf) + self.view.timing.sync_s:
            self.dissemination.add_record(peer, now)

    def receive(self, peer: str, message: wire.Control, now: float) -> list[Output]:
        """Merge the records of a message, answer with those that its sender lacks, and take part in comparisons."""
        may_read = self.view.may_read
        match message:
            case wire.Hello(record, digest):
                out = self.merge((record,), now)
                return [*out, *self._greeted(peer, digest, now), *self.revocations.explain((record,), peer)]
            case wire.Probe(_, digest) | wire.Acknowledge(_, digest):
                return self._compare_digests(digest, peer, now)
            case wire.Spread(records, rumors):
                out = self.merge(records, now)
                out += self.prober.suspects.accused(rumors, peer, now)
                return [*out, *self.revocations.explain(records, peer)]
            case wire.Compare() if may_read(peer):
                return [*self.anti_entropy.answer(peer, message, now)]
            case wire.Compare():  # request its record, to tell it why it is not a member
                return [Send(peer, wire.Want((key_of(peer),)))]
            case wire.Want(keys):
                return [*self.anti_entropy.supply(peer, keys, now)] if may_read(peer) else []
            case wire.Sync(records):
                out = self.merge(records, now, quiet=True)
                out += [*self._dispute(records, peer), *self.revocations.explain(records, peer)]
                return [*out, *(self.anti_entropy.correct(peer, records, now) if may_read(peer) else ())]
            case wire.Farewell(record):
                return self.merge((record,), now)
            case _:
                return []

    def take_waiting(self, now: float) -> list[Output]:
        """Merge records that waited for their turn."""
        due = self._pacing.due(now)
        return self.merge(due, now) if due else []

    def tick(self, now: float) -> list[Output]:
        """Compare tables, refute accusations, and send what is new."""
        out: list[Output] = []
        if now >= self.sync_at:
            out += self._repair(now)
        if now >= self.view.local.refute_at:
            out += self._refute(now)
        out += self._take_turn(now)
        if now >= self.dissemination.due_at:
            out += self._spread(now)
        return out

    def merge(self, records: Sequence[wire.Record], now: float, *, quiet: bool = False) -> list[Output]:
        """Merge records and queue new ones for dissemination; with `quiet` not right after joining, when all are new to us only."""
        out: list[Output] = []
        member_list, introductions = self.view.member_list, self.view.introductions
        alone = member_list.size == 1
        for record in records:
            if record.peer == self.view.own.peer:
                outranking = self.view.local.outrank(record)
                if outranking is not None:
                    self.publish(outranking, now)
                continue
            if not member_list.is_news(record) or not self._pacing.accepts(record, now):
                continue
            before = member_list.members.get(record.peer)
            met = record.peer in self.view.last_frame
            at_once = met or member_list.size > MEETERS
            out += introductions.hold(member_list.merge(record, now), met=at_once)
            changed = member_list.members.get(record.peer) is not before
            if changed and record.status == "left":
                self.view.last_frame.pop(record.peer, None)
            if changed and not (quiet and (alone or now < self.quiet_until)):
                if met or record.status == "left":
                    self.dissemination.add_record(record.peer, now)
                else:
                    self._unmet[record.peer] = now
        if member_list.gate.changed():
            out += introductions.known(member_list.purge())
        return out + self._meet(out, now, alone=alone)

    def _meet(self, merged: Sequence[Output], now: float, *, alone: bool) -> list[Send]:
        """Probe newcomers that were reported to us, some of many; `alone`: this node knew nobody before."""
        view, n = self.view, self.view.member_list.size
        told = [
            it.peer for it in merged if isinstance(it, Announced) or (isinstance(it, Joined) and (alone or it.peer not in view.last_frame))
        ]
        if alone and told:
            self.quiet_until = now + view.timing.timeout_s
        return [self.prober.probe(peer, now) for peer in told if n <= MEETERS or view.sampler.draw() * n < MEETERS]

    def _spread(self, now: float) -> list[Output]:
        others = self.view.others()
        targets = self.view.sampler.sample(others, record_fan_out(len(others) + 1))
        records, rumors = self.dissemination.take(len(targets))
        more = self.dissemination and targets
        self.dissemination.due_at = now + self.view.timing.timeout_s / 2 if more else math.inf
        if not records and not rumors:
            return []
        return [Send(peer, wire.Spread(records, rumors)) for peer in targets]

    def _repair(self, now: float) -> list[Output]:
        """Compare tables with a random member, greet a dead one, and drop expired state."""
        view, member_list, sampler = self.view, self.view.member_list, self.view.sampler
        out: list[Output] = []
        member_list.expire_tombstones(now)
        self._pacing.forget(now)
        if member_list.gate.closed:
            out += view.introductions.known(member_list.purge())
        view.forget()
        self._unmet = {peer: at for peer, at in self._unmet.items() if now < at + view.timing.sync_s}
        self.prober.forget(now)
        self._syncs.keep(member_list.members)
        self.revocations.forget()
        others = view.others()
        self.sync_at = now + view.timing.sync_s * max(1.0, math.log2((len(others) + 1) / LARGE_SWARM) + 1)
        for peer in sampler.sample(others, 1):
            out += [] if member_list.full else [self.anti_entropy.open(peer, differs=False)]
            out += self.revocations.compare(peer)
        dead = sorted(peer for peer, member in member_list.members.items() if member.status == "dead")
        return out + [view.hello(peer, now) for peer in sampler.sample(dead, 1)]

    def _refute(self, now: float) -> list[Output]:
        accusers = self.view.local.refute(now)
        self.publish(self.view.own, now)
        return [Send(accuser, wire.Spread((self.view.own,))) for accuser in accusers]

    def _compare_digests(self, digest: bytes, peer: str, now: float) -> list[Output]:
        """On a different digest, queue a comparison with a member, or send Hello to an unknown peer, at most once per timeout."""
        if digest == self.view.member_list.digest:
            self._syncs.withdraw(peer)
        elif self.view.member_list.full:
            return []
        elif self.view.present(peer):
            self._syncs.ask(peer, digest)
        elif self.view.may_read(peer) and now >= self._greeted_at + self.view.timing.timeout_s:
            self._greeted_at = now
            return [self.view.hello(peer, now)]
        return []

    def _take_turn(self, now: float) -> list[Output]:
        """Compare tables with a member with another digest, if one's turn has come."""
        turn = self._syncs.take(now)
        if turn is None or not self.view.present(turn[0]) or turn[1] == self.view.member_list.digest:
            return []
        return [self.anti_entropy.open(turn[0], differs=True)]

    def _greeted(self, peer: str, digest: bytes, now: float) -> list[Send]:
        """Tell a newcomer that knows itself only of all members, within its allowance; compare tables with others."""
        if digest == self.view.member_list.digest or not self.view.may_read(peer):
            return []
        if digest == digest_of((peer,)):
            return self.anti_entropy.tell(peer, self.view.member_list.records, now)
        return [self.anti_entropy.open(peer, differs=True)]

    def _dispute(self, records: Iterable[wire.Record], peer: str) -> list[Output]:
        """Send our accusation of members that we believe dead to a peer that lists them, so that it probes them itself."""
        rumors: list[wire.Rumor] = []
        for record in records:
            member = self.view.member_list.members.get(record.peer)
            if member is not None and member.status == "dead" and version_of(member.record) == version_of(record):
                rumors += filter(None, (self.dissemination.rumor(record.peer),))
        return [Send(peer, wire.Spread((), tuple(rumors[: wire.MAX_RUMORS])))] if rumors else []

    def _tellable(self, record: wire.Record) -> bool:
        """Return whether we may pass a record on: our own, those of members that we met, and of those that have left."""
        return record.peer in self.view.last_frame or record.peer == self.view.own.peer or record.status == "left"
