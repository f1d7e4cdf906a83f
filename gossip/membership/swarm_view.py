"""State that the parts of one node's detector share: its record, member list, and last frames per peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starling.gossip.membership.events import Send
from starling.gossip.membership.introductions import Introductions
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.sampler import Sampler
from starling.gossip.wire import schema as wire


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals in seconds, and the number of helpers of an indirect probe; as in the manifest's section `membership`."""

    probe_s: float
    timeout_s: float
    suspicion_s: float
    sync_s: float
    helpers: int


@dataclass(slots=True)
class SwarmView:
    """One node's view of the swarm."""

    local: LocalRecord
    member_list: MemberList
    timing: Timing
    sampler: Sampler
    swarm_time: Callable[[float], float]  # local time in seconds -> swarm time
    last_frame: dict[str, float] = field(default_factory=dict)  # local time of each member's last frame
    introductions: Introductions = field(default_factory=Introductions)

    @property
    def own(self) -> wire.Record:
        """Return this node's current record."""
        return self.local.record

    def present(self, peer: str) -> bool:
        """Return whether a peer is in the alive set."""
        member = self.member_list.members.get(peer)
        return member is not None and member.present

    def others(self) -> list[str]:
        """Return the alive set without this node."""
        return [peer for peer in self.member_list.alive if peer != self.own.peer]

    def may_read(self, peer: str) -> bool:
        """Return whether a peer may be sent records and rumors: any peer, if the gate requires nothing."""
        return not self.member_list.gate.closed or peer in self.member_list.members

    def hello(self, peer: str, now: float) -> Send:
        """Return the request for an unknown peer's record, which names our own."""
        return Send(peer, wire.Hello(self.own, self.member_list.digest, self.swarm_time(now)))

    def forget(self) -> None:
        """Forget when frames of strangers came."""
        for peer in [peer for peer in self.last_frame if peer not in self.member_list.members]:
            del self.last_frame[peer]
