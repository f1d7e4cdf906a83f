"""SWIM-type membership: a failure detector and gossip of signed member records, without a coordinator.

A state machine without I/O: messages and time go in, messages to send and membership events come out.

    Prober         who is there: probes, helpers, suspicion (`prober`, `suspects`)
    Spreading      whose records are known: dissemination and comparisons of tables (`spreading`)
    Revocations    who may not be a member any more (`revocations`)

Each is given every message and the time; what they share is in `SwarmView`, and rumors that wait to be sent in `Dissemination`.

Byzantine members. A rumor must name its sender as source. Records are signed by the peer that they describe. A member that is accused in
its current record raises the record's version and spreads it, which supersedes any rumor about it. Refutations are at least `timeout_s`
apart, which bounds the traffic that one accuser can cause.

Reordered, duplicated or late messages do no harm: records and suspicions are merged by (incarnation, version), and an Acknowledge
counts only for an open probe. A sender that we believe dead is sent the accusation, and answers with its refutation. Hello is sent
to an unknown sender to request its record, and with each comparison to one dead member, which is how the halves of a healed partition
find each other. After `leave` nothing is sent or processed.

Admission. A peer that the member list's gate rejects is not added. If the gate requires anything at all, non-members get no records
and no rumors.

Source: Das, Gupta, Motivala 2002 (SWIM); Dadgar, Phillips, Currey 2018 (Lifeguard). Deviations: no death by rumor, suspects are probed on,
anti-entropy, signed records; those from Lifeguard in `local_health`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import InitVar, dataclass, field

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.dissemination import Dissemination
from starling.gossip.membership.events import Output, Send
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.prober import Prober
from starling.gossip.membership.revocations import Revocations
from starling.gossip.membership.sampler import Sampler
from starling.gossip.membership.spreading import Spreading
from starling.gossip.membership.swarm_view import SwarmView, Timing
from starling.gossip.membership.table import well_formed
from starling.gossip.seeds import derive
from starling.gossip.wire import schema as wire


@dataclass(slots=True)
class Detector:
    """The membership state machine of one node."""

    local: LocalRecord  # our own signed record
    member_list: MemberList  # empty
    timing: Timing
    seed: InitVar[int]  # seed of the random choices of members, 0 <= seed < 2**63
    swarm_time: InitVar[Callable[[float], float]]  # local time in seconds -> swarm time
    now: InitVar[float]  # seconds, on the clock used by all later calls
    stopped: bool = False
    view: SwarmView = field(init=False)
    prober: Prober = field(init=False)
    spreading: Spreading = field(init=False)
    revocations: Revocations = field(init=False)

    def __post_init__(self, seed: int, swarm_time: Callable[[float], float], now: float) -> None:
        sampler = Sampler(derive(seed, "membership", self.own.peer))
        self.view = view = SwarmView(self.local, self.member_list, self.timing, sampler, swarm_time)
        self.member_list.merge(self.own, now)
        dissemination = Dissemination(self.member_list, self.own.peer)
        self.prober = Prober(view, dissemination, now + self.timing.probe_s * sampler.draw())
        self.revocations = Revocations(view)
        sync_at = now + self.timing.sync_s * sampler.draw()
        self.spreading = Spreading(view, dissemination, self.prober, self.revocations, sync_at)

    @property
    def own(self) -> wire.Record:
        """Return this node's current record."""
        return self.local.record

    @property
    def last_frame(self) -> dict[str, float]:
        """Return the local time of each member's last frame."""
        return self.view.last_frame

    @property
    def rtt_s(self) -> dict[str, float]:
        """Seconds that the last answered probe to each member took, there and back; of a repeated one since its first frame."""
        return self.prober.rtt_s

    @property
    def doubt(self) -> int:
        """Return by how many times waits are extended because this node suspects itself, 0 to `local_health.MOST` - 1."""
        return self.prober.health.doubt

    @property
    def deadline(self) -> float:
        """Local time at which `tick` must be called if no message arrives before; infinite after `leave`."""
        if self.stopped:
            return math.inf
        return min(self.prober.deadline, self.spreading.deadline, self.revocations.deadline)

    def silent(self, peer: str) -> bool:
        """Return whether a probe of ours to this member went unanswered for a timeout, and no frame of it has come since."""
        return self.prober.silent(peer)

    def lately_gone(self, peer: str, now: float) -> bool:
        """Return whether a probe of this member took longer than usual, and it has not been back for four times as long."""
        return self.prober.lately_gone(peer, now)

    def probe_now(self, peers: Collection[str], now: float, *, late: bool) -> list[Output]:
        """Probe peers that are about to be waited for, or whose answers are `late`, unless they were heard within a timeout.

        Where nobody is late, a few at most and one at a time per `probe_s`, so that probes at most double.
        """
        return [] if self.stopped else self.prober.probe_now(peers, now, late=late)

    def greet(self, peer: str, now: float) -> list[Output]:
        """Send Hello to a peer that was reached by address and may be unknown: how a node joins a swarm."""
        return [] if self.stopped else [self.view.hello(peer, now)]

    def update(self, now: float, **changes: object) -> list[Output]:
        """Publish our record with these fields, `addresses` or `credential`, if they are new."""
        if self.stopped or all(getattr(self.own, name) == value for name, value in changes.items()):
            return []
        self.spreading.publish(self.local.update(**changes), now)
        return self.tick(now)

    def admit(self, record: wire.Record, source: str, now: float) -> list[Output]:
        """Add a record that passed validation when `source` sent it, and whose credential has been verified since."""
        return [] if self.stopped else self.spreading.admit(record, source, now) + self.tick(now)

    def revoke(self, revocation: wire.Revocation, now: float) -> list[Output]:
        """Apply and spread a revocation issued by this node. Raises ValueError: the revocation is invalid."""
        return [] if self.stopped else self.revocations.revoke((revocation,)) + self.tick(now)

    def leave(self, now: float) -> list[Output]:
        """Send Farewell to all members and stop."""
        if self.stopped:
            return []
        self.spreading.publish(self.local.update(status="left"), now)
        self.stopped = True
        return [Send(peer, wire.Farewell(self.own)) for peer in self.view.others()]

    def connection_lost(self, peer: str, now: float) -> list[Output]:
        """Start or advance a probe of a peer to which the connection broke or cannot be made."""
        return [] if self.stopped else self.prober.connection_lost(peer, now)

    def frame_seen(self, peer: str, now: float) -> list[Output]:
        """Take a frame of `peer` on another lane as proof that it is alive."""
        return [] if self.stopped else self._heard(peer, now)

    def receive(self, peer: str, message: wire.Control, now: float) -> list[Output]:
        """Process one message from `peer`, which the network has authenticated.

        Raises RemoteProtocolError: foreign swarm, forged record, or a record or rumor in another peer's name; the message has no effect.
        """
        if self.stopped:
            return []
        self._validate(peer, message)
        out = self._heard(peer, now)
        for part in (self.prober, self.spreading, self.revocations):
            out += part.receive(peer, message, now)
        return out + self.tick(now)

    def tick(self, now: float) -> list[Output]:
        """Perform all actions that are due at `now`."""
        if self.stopped:
            return []
        self.prober.note_lag(now - min(self.prober.deadline, self.spreading.sync_at), now)
        out = self.spreading.take_waiting(now)  # a refutation among them is in time
        for part in (self.prober, self.spreading, self.revocations):
            out += part.tick(now)
        return out

    def _heard(self, peer: str, now: float) -> list[Output]:
        out = self.prober.heard(peer, now)
        self.spreading.heard(peer, now)
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
