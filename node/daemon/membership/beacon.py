"""The beacon service: the creator publishes random beacons; members spread them and derive the salts of ranks from them.

Beacons exist only where members are ranked anew (`overlay.rerank_every`); elsewhere the swarm id is the salt. The creator publishes the
beacon of the next epoch when its own round enters an epoch. A member that receives a beacon for the first time passes it on, to all members
or to a few in large swarms. A member that enters an epoch without its beacon goes on with the salt that every member can compute, emits one
event, and queries the creator and a random member; missing beacons are requested again every `membership.sync_s`. A beacon holds from the
moment it arrives, so all members that have it agree.

    a beacon not signed by the creator                   a fault of the sender
    a beacon that is known, too old or too far ahead     ignored
    more verifications than one member may cause         ignored

Without the creator only unpredictability is lost: exchanges go on, and members that disagree about a beacon compute other links for at
most an epoch.
"""

from __future__ import annotations

import trio

from starling.gossip.limits import Rates
from starling.gossip.membership.dissemination import fan_out
from starling.gossip.membership.sampler import Sampler
from starling.gossip.overlay.beacon import Beacons, signed
from starling.gossip.overlay.ranks import epoch_of, order_digest
from starling.gossip.wire.schema import Beacon, BeaconQuery
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.daemon.membership.neighbors import Members
from starling.node.identity import verify
from starling.node.interfaces import TaskStatus

# signatures verified and queries answered per member: burst, and per second
BURST, PER_S = 16.0, 2.0
MAX_SENDERS = 4096


class BeaconService:
    """Salts for the order in which the overlay ranks members; no member can predict them more than an epoch ahead."""

    def __init__(self, context: NodeContext, members: Members) -> None:
        self._context, self._members = context, members
        self._me, self._creator = context.me, context.manifest.founder
        overlay = context.manifest.overlay
        self._every = overlay.rerank_every if overlay.kind != "pull" else 0
        self._sampler = Sampler(context.secret_seed("beacon"))
        self._beacons = Beacons(context.swarm, self._creator, verify)
        self._rates: Rates[str] = Rates(PER_S, BURST, MAX_SENDERS)
        self._epoch = 0
        self._entered = trio.Event()
        self._began = False
        self._missing = False
        self._best_effort = BestEffort(context.network)

    def salt(self, round: int) -> bytes:
        """Return the salt of the ranks in a round that is under way or about to begin."""
        if not self._every:
            return self._context.swarm.encode()
        epoch = epoch_of(round, self._every)
        if epoch > self._epoch or not self._began:
            self._enter(epoch)
        return self._beacons.salt(self._context.swarm.encode(), epoch)

    def digest(self, round: int) -> bytes:
        """Return the digest that Requests carry: of the members and, where it changes, of their order in a round."""
        view = self._members.view
        return order_digest(view, self.salt(round)) if self._every else view

    def receive(self, sender: str, message: Beacon | BeaconQuery) -> None:
        """Process a beacon or a query of a member. Raises RemoteProtocolError: beacon_forged."""
        if not self._every:
            return
        if isinstance(message, Beacon) and not self._beacons.wants(message, self._epoch):
            return
        if not self._rates.take(sender, trio.current_time()):
            return
        if isinstance(message, BeaconQuery):
            for beacon in self._beacons.since(message.epoch):
                self._best_effort.send_soon(sender, beacon)
        elif self._beacons.take(sender, message, self._epoch):
            self._spread(message, {sender, self._creator})
            self._poll()

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send beacons, and request missing ones, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._best_effort.serve)
            task_status.started()
            while self._every:
                with trio.move_on_after(self._context.manifest.membership.sync_s) as waiting:
                    await self._entered.wait()
                self._entered = trio.Event()
                self._ask(1 if waiting.cancelled_caught else 0)

    def _enter(self, epoch: int) -> None:
        could_know = self._began and epoch == self._epoch + 1  # a node that just joined or jumped has received no beacon yet
        self._began, self._epoch = True, epoch
        if self._me == self._creator:
            self._publish()
        self._poll()
        if could_know and not self._missing and epoch not in self._beacons:
            self._missing = True
            text = f"no beacon from the creator for round {epoch * self._every}: neighbors are predictable until one arrives"
            self._context.report.event("beacon_missing", text, level="warning", epoch=epoch)
        self._entered.set()

    def _poll(self) -> None:
        if self._missing and self._epoch in self._beacons:
            self._missing = False
            self._context.report.event("beacon_back", "the creator publishes beacons again", epoch=self._epoch)

    def _publish(self) -> None:
        """At the creator: sign the beacon of the next epoch, and this epoch's if that was not done an epoch ago."""
        for epoch in range(max(1, self._epoch), self._epoch + 2):
            if epoch not in self._beacons:
                beacon = signed(self._context.swarm, epoch, self._context.identity.sign)
                self._beacons.take(self._me, beacon, self._epoch)
                self._spread(beacon, set())

    def _ask(self, ahead: int) -> None:
        """Request the first missing beacon of our epoch and the `ahead` epochs after it."""
        missing = [at for at in range(max(1, self._epoch), self._epoch + ahead + 1) if at not in self._beacons]
        if not missing or self._me == self._creator:
            return
        others = [peer for peer in self._members.members if peer not in {self._me, self._creator}]
        asked = [self._creator] if self._creator in self._members.members else []
        for peer in (*asked, *self._sampler.sample(others, 1)):
            self._best_effort.send_soon(peer, BeaconQuery(missing[0]))

    def _spread(self, beacon: Beacon, known_to: set[str]) -> None:
        others = [peer for peer in self._members.members if peer != self._me and peer not in known_to]
        for peer in self._sampler.sample(others, fan_out(len(others) + 1)):
            self._best_effort.send_soon(peer, beacon)
