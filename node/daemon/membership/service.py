"""The membership service: connects the detector (`gossip.membership.detector`) to the control lane, the clock and the network's events.

Nothing here decides who is alive, which the detector does, or who may be a member, which `node.admission.gate` does. A frame that cannot be
sent is dropped, since the detector repeats what matters; the detector is notified that the peer could not be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import ClassVar

import trio

from starling.gossip.errors import GossipError, RemoteProtocolError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.membership.detector import Detector
from starling.gossip.membership.events import MemberEvent, Output
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import Member, MemberList
from starling.gossip.membership.swarm_view import Timing
from starling.gossip.wire.schema import Control, Record
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.daemon.membership.control_lane import ControlLane, OtherControl, ended
from starling.node.daemon.membership.origins import Origins
from starling.node.daemon.membership.outputs import Outputs
from starling.node.daemon.membership.own_key import OwnKey
from starling.node.daemon.membership.records import RecordVerifier
from starling.node.identity import verify_record
from starling.node.interfaces import TaskStatus
from starling.node.net.api import Disconnected

MAX_SENDING = 32  # messages being sent to one peer; more are dropped
NAMED_ONLY = (
    "this node announces host names only, which count as one address prefix (admission.per_prefix) for peers that are not connected to it; "
    "announce an address as well, `--announce /ip4/ADDRESS/tcp/PORT`"
)


class Membership:
    """Keeps the member list of one node; owns the network's events and its control lane, and feeds the swarm clock.

    `changed` is called with every change of a member.
    """

    whom: ClassVar[str] = "members"

    def __init__(self, context: NodeContext, clock: SwarmClock, admission: Admission, changed: Callable[[MemberEvent], object]) -> None:
        identity, swarm, section = context.identity, context.swarm, context.manifest.membership
        self._network = context.network
        self._report = context.report
        self._admission = admission
        self.origins = Origins(context.network, admission.gate, lambda: self.table)
        self._view = MemberList(self._is_signed, admission.gate, self.origins.quota)
        self._records = RecordVerifier(
            self._view, admission.gate, lambda record: verify_record(record, swarm), admission.offload, self.read
        )
        own = Record(identity.peer_id, swarm, context.incarnation, 0, "alive", context.network.announced, b"", admission.credential)
        timing = Timing(section.probe_s, section.timeout_s, section.suspicion_s, section.sync_s, section.helpers)
        self._core = Detector(
            LocalRecord(identity.sign_record(own), identity.sign_record),
            self._view,
            timing,
            context.manifest.seed,
            clock.time,
            trio.current_time(),
        )
        self._best_effort = BestEffort(context.network, per_peer=MAX_SENDING, unreachable=self._lost)
        self._outputs = Outputs(
            context.network, clock, self._view, self._best_effort, changed, lambda peer: self._core.last_frame.get(peer, -inf)
        )
        self._own_key = OwnKey(context, self._core.local)
        self._lane = ControlLane(context.network, context.report, self._records, self.origins)
        self._wake = trio.Event()
        self._context = context
        announced = context.network.addresses
        if context.manifest.admission.per_prefix and announced and all(it.startswith("/dns") for it in announced):
            context.report.event("named_only", NAMED_ONLY, level="warning")

    @property
    def me(self) -> str:
        """Return this node's peer id."""
        return self._network.peer_id

    @property
    def is_twice(self) -> bool:
        """Return whether another node runs with this node's key."""
        return self._own_key.is_twice

    @property
    def members(self) -> tuple[str, ...]:
        """Return the peers believed alive, sorted, this node included."""
        return self._view.alive

    @property
    def roster(self) -> tuple[str, ...]:
        """Return the members from which the links of a round are computed, sorted, this node included."""
        return self._outputs.roster.members(trio.current_time())

    @property
    def view(self) -> bytes:
        """Return the digest of `roster`."""
        return self._outputs.roster.view(trio.current_time())

    def settle(self) -> None:
        """Note that training begins: from now on members that come or go change the roster only after a while, and strangers wait."""
        self._outputs.roster.training = True
        self._network.ration(lambda: self.roster)

    @property
    def table(self) -> Mapping[str, Member]:
        """Return all members known, including dead ones and those that left."""
        return self._view.members

    def incarnation_of(self, peer: str) -> int | None:
        """Return the incarnation of an alive peer, None for others."""
        return self._view.members[peer].record.incarnation if peer in self._view.alive else None

    def admits(self, peer: str) -> bool:
        """Return whether a frame of another lane may be read, because its sender is a member. Raises RemoteProtocolError: not_a_member.

        The frame proves that the sender is alive. A sender believed dead is sent that claim and is a member again once it refutes it; our
        mistake is no fault of the sender.
        """
        member = self._view.members.get(peer)
        if member is None:
            raise RemoteProtocolError(peer, "not_a_member")
        self.seen(peer)
        return member.present

    def silent(self, peer: str) -> bool:
        """Return whether a probe of this node went unanswered, and the peer has not been heard since."""
        return self._core.silent(peer)

    def lately_gone(self, peer: str) -> bool:
        """Return whether a probe of this member took longer than usual a short time ago."""
        return self._core.lately_gone(peer, trio.current_time())

    def probe_now(self, peers: Collection[str], *, late: bool = False) -> None:
        """Probe peers that are about to be waited for, or whose answers are late."""
        outputs = self._core.probe_now(peers, trio.current_time(), late=late)
        if outputs:
            self._do(outputs)

    def may_read(self, peer: str) -> bool:
        """Return whether a peer may read what members share; every peer may where admission is open.

        Raises RemoteProtocolError: not_a_member.
        """
        return not self._view.gate.closed or self.admits(peer)

    def revoke(self, holder: str) -> tuple[str, ...]:
        """Revoke the invitation of a peer id, or one of ours by its number -> the members that lose their membership.

        Raises GossipError: it is not ours to revoke.
        """
        before, admission = self.members, self._admission
        revocation = admission.revocation(admission.chain_of(holder, self._view.members.get(holder)))
        self._do(self._core.revoke(revocation, trio.current_time()))
        self._check_admission()
        return tuple(peer for peer in before if peer not in self.members)

    def last_frame(self, peer: str) -> float | None:
        """Return when the last control frame of a peer was received, on trio's clock."""
        return self._core.last_frame.get(peer)

    def rtt(self, peer: str) -> float | None:
        """Return the round-trip time of a peer's last answered probe, in seconds; of a repeated probe since its first frame."""
        return self._core.rtt_s.get(peer)

    async def serve(self, other: Callable[[str, OtherControl], object], task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled. Raises GossipError: this node may no longer be a member.

        `other` is called with members' control messages that are not about membership, and may raise RemoteProtocolError.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lane.serve, self, other)
            nursery.start_soon(self._watch_connections)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._records.serve)
            core, now = self._core, trio.current_time
            nursery.start_soon(self._admission.examine, lambda record, sender: self._do(core.admit(record, sender, now())))
            nursery.start_soon(self._admission.renew, lambda credential: self._do(core.update(now(), credential=credential)))
            await nursery.start(self._best_effort.serve)
            task_status.started()

    def sit(self, seat: int) -> None:
        """Announce our stage of a crew in our record."""
        self._do(self._core.update(trio.current_time(), seat=seat))

    def greet(self, peer: str, *, given: bool) -> None:
        """Send Hello to a peer that has been dialled; `given`: its owner named the peer."""
        if given:
            self._records.greeted.add(peer)
        self._do(self._core.update(now := trio.current_time(), addresses=self._network.announced))
        self._do(self._core.greet(peer, now))

    def begin_anew(self) -> None:
        """Take a new incarnation, so that a node with our identity hears of it and reports itself."""
        later = max(int(self._context.unix_time() * 1000), self._core.own.incarnation + 1)
        self._do(self._core.update(trio.current_time(), incarnation=later, version=0))

    async def leave(self) -> None:
        """Notify all members that this node leaves for good. The caller sets the deadline."""
        await self._outputs.send_all(self._core.leave(trio.current_time()))

    def read(self, peer: str, message: Control) -> None:
        """Process a message about membership whose records are verified."""
        now = trio.current_time()
        try:
            self._do(self._core.receive(peer, message, now))
        except RemoteProtocolError as error:
            self._report.fault(error.peer, error.reason)
        self._admission.queue(self.origins.source(peer), peer, now)
        self._check_admission()
        self._own_key.check()

    def _is_signed(self, record: Record) -> bool:
        return self._records.is_signed(record)

    async def _watch_connections(self) -> None:
        async for event in self._network.events():
            if isinstance(event, Disconnected):
                self._lost(event.peer)
        await ended("events")

    def seen(self, peer: str) -> None:
        """Note that a peer is alive."""
        outputs = self._core.frame_seen(peer, trio.current_time())
        if outputs:
            self._do(outputs)

    def _lost(self, peer: str) -> None:
        self._do(self._core.connection_lost(peer, trio.current_time()))

    async def _tick(self) -> None:
        while True:
            self._wake = trio.Event()
            with trio.move_on_at(self._core.deadline):
                await self._wake.wait()
            now = trio.current_time()
            self._do(self._core.update(now, addresses=self._network.announced) + self._core.tick(now))
            self.probe_now(self._outputs.roster.unheard(now), late=True)
            self._check_admission()

    def _check_admission(self) -> None:
        if self._admission.gate.closed and (why := self._admission.check(self._core.own)) and not self._core.stopped:
            raise GossipError(f"admission: {why}")

    def _do(self, outputs: Sequence[Output]) -> None:
        """Carry out the detector's outputs without waiting."""
        self._outputs.carry_out(outputs)
        self._wake.set()
