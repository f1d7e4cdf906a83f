"""Members on a network in memory: membership only, without training."""

import trio

from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.contacts import Contacts
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.store import MemoryStore
from starling.node.identity import Identity
from starling.node.net.memory_network import address_of
from tests.harness.context import context
from tests.harness.daemons import Reports

SWARM = "s" + "a" * 32


class Node:
    """One member with all its parts."""

    def __init__(self, hub, index, incarnation=1, swarm=SWARM, manifest=None):
        self.identity = Identity.from_seed(index.to_bytes(32, "big"))
        self.peer = self.identity.peer_id
        self.address = address_of(self.peer)
        self.network = hub.join(self.peer)
        self.told = Reports()
        self.clock = SwarmClock()
        node = context(
            network=self.network, report=self.told, identity=self.identity, swarm=swarm, incarnation=incarnation, manifest=manifest
        )
        self.events = []
        self.membership = Membership(node, self.clock, Admission(node, MemoryStore()), self.events.append)
        self.contacts = Contacts(node, self.membership)
        self.scope = trio.CancelScope()

    def take_events(self):
        events, self.events[:] = list(self.events), []
        return events

    async def live(self, bootstrap=(), task_status=trio.TASK_STATUS_IGNORED):
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.membership.serve, lambda _peer, _message: None)
                nursery.start_soon(self.contacts.keep, bootstrap)
                task_status.started()
