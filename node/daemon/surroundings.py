"""The swarm around a node, in any pace: its members, how they are met, and the salts by which they are ranked."""

import math
from collections.abc import Sequence
from functools import partial

import trio

from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.seeds import derive
from starling.gossip.wire.schema import Beacon, BeaconQuery, Dialed, DialMe
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.bootstrap import Bootstrap, to_share
from starling.node.daemon.membership.contacts import Contacts
from starling.node.daemon.membership.neighbors import Members
from starling.node.daemon.membership.reachability import ReachabilityService
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.state.collecting import ASKED
from starling.node.daemon.state.transfer import Transfer
from starling.node.daemon.trust.peer_policy import PeerPolicy

SETTLE_S = 3.0  # seconds that a joiner looks for members before it starts alone, or with a model of fewer than three


class Surroundings:
    """The network, members and policies around one node. `members`: as exchanges see them, perhaps fewer than those of `membership`."""

    def __init__(self, context: NodeContext, membership: Membership, members: Members, clock: SwarmClock, policy: PeerPolicy) -> None:
        self._context = context
        self.membership, self.members, self.clock, self.policy = membership, members, clock, policy
        self.beacons = BeaconService(context, members)
        self.reachability = ReachabilityService(context, membership)
        self.contacts = Contacts(context, membership)
        self._looks_until = -math.inf

    def receive(self, peer: str, message: Beacon | BeaconQuery | DialMe | Dialed) -> None:
        """Process a member's message. Raises RemoteProtocolError."""
        if isinstance(message, Beacon | BeaconQuery):
            self.beacons.receive(peer, message)
        else:
            self.reachability.receive(peer, message)

    def may_meet(self, peer: str) -> bool:
        """Return whether this node and a peer have a connection, or one of them can be dialled."""
        return self.reachability.may_meet(peer, self.membership.origins.announced)

    def may_use(self, peer: str) -> bool:
        """Return whether a member may be asked for its model."""
        return self.policy.allows(peer) and self.may_meet(peer)

    @property
    def is_cut_off(self) -> bool:
        """Return whether no member can be dialled, as far as this node knows, and it is not connected to all of them."""
        others = [peer for peer in self.membership.members if peer != self._context.me]
        hidden = self.reachability.state == "hidden" and not any(map(self.membership.origins.announced, others))
        return hidden and not all(map(self.may_meet, others))

    def to_share(self) -> tuple[str, ...]:
        """Return addresses for an invite made now; they stay the same while members do."""
        me, network = self._context.me, self._context.network
        others = sorted(
            (peer for peer in self.membership.members if peer != me and self.policy.allows(peer)),
            key=lambda peer: derive(0, "invite", me, peer),  # random order by peer: other members give other addresses
        )
        return to_share((*network.relayed, *network.addresses), others, network.answered, self.membership.origins.met)

    async def keep_in_touch(self, bootstrap: Bootstrap, transfer: Transfer) -> None:
        """Keep contact through the bootstrap addresses, and through those found later, until cancelled."""
        addresses: Sequence[str] = bootstrap.addresses
        async with trio.open_nursery() as nursery:
            opens = partial(transfer.answers, swarm=self._context.swarm)
            nursery.start_soon(partial(self.contacts.keep, addresses, bootstrap.given, opens=opens))
            async for address in bootstrap.additions(addresses):
                nursery.start_soon(partial(self.contacts.keep, (address,), (), hint=bootstrap.dialled))

    async def look_for_members(self, bootstrap: Bootstrap) -> None:
        """Wait until another member is known, or this node starts alone."""
        self._looks_until = trio.current_time() + (SETTLE_S if bootstrap.addresses else 0.0)
        with trio.move_on_at(self._looks_until):
            while len(self.membership.members) < 2:  # noqa: ASYNC110 — for a short time at the start
                await trio.sleep(0.05)

    def may_meet_more(self) -> bool:
        """Return whether this joiner may soon meet further members: it has met fewer than three, and an address to begin with has neither
        answered nor failed, or members were reported that it has not met.
        """
        met = self.membership.roster
        if len(met) > ASKED or trio.current_time() >= self._looks_until:
            return False
        return self.contacts.expects_answers or len(met) < len(self.membership.members)
