"""Members of one manifest that admit one another, on a network in memory."""

from contextlib import asynccontextmanager

import trio

from starling.gossip.errors import GossipError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.node.admission.chain import bind, invite, terms_of
from starling.node.config.manifest import create, swarm_id
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.daemon.membership.admission import Admission
from starling.node.daemon.membership.contacts import Contacts
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.store import MemoryStore
from starling.node.identity import Identity
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from tests.harness.context import context
from tests.harness.daemons import Reports

PEOPLE = [Identity.from_seed(index.to_bytes(32, "big")) for index in range(12)]


START_S = 1_700_000_000.0


class Cost:
    """A thread in virtual time, and the number of its uses."""

    def __init__(self, each_s=0.01):
        self.each_s, self.calls = each_s, 0

    async def __call__(self, work):
        self.calls += 1
        result = work()
        await trio.sleep(self.each_s)
        return result


class Swarm:
    """Members of one manifest, on one hub."""

    def __init__(self, admission):
        self.manifest = create(Manifest(admission=admission), PEOPLE[0], int(START_S * 1000))
        self.id = swarm_id(self.manifest)
        self.hub = MemoryHub()
        self.terms = terms_of(self.manifest, self.id)
        self.nodes = []
        self.nursery = None
        self.lasts_s = 10_000.0

    @asynccontextmanager
    async def running(self, *chains):
        """Start people[0] as the creator, and one more member for each chain."""
        async with trio.open_nursery() as self.nursery:
            await self.start(0)
            for index, chain in enumerate(chains, 1):
                await self.start(index, chain)
            yield self
            self.nursery.cancel_scope.cancel()

    async def start(self, index, chain=(), operator=""):
        node = Node(self, PEOPLE[index], chain, operator)
        await node.admission.obtain()
        node.begin()
        self.nodes.append(node)
        self.nursery.start_soon(node.live, [self.nodes[0].address])
        await trio.sleep(0.2)
        return node

    def invited(self, *path):
        """Return the chain through people[i] for i in path, each with its own bearer key."""
        chain, inviter = (), PEOPLE[0]
        for index in path:
            bearer, holder = bytes([50 + index]) * 32, PEOPLE[index]
            until_ms = int((START_S + self.lasts_s) * 1000)
            invitee = Identity.from_seed(bearer).peer_id
            number = index % 2 if chain else index
            chain = invite(inviter, chain, self.terms, invitee=invitee, number=number, not_after_ms=until_ms)
            chain, inviter = bind(chain, bearer, holder.peer_id, self.id), holder
        return chain


class Node:
    """One member."""

    def __init__(self, swarm, identity, chain=(), operator="", ticket=None, offload=None):
        self.swarm, self.identity, self.peer = swarm, identity, identity.peer_id
        self.address = address_of(self.peer)
        self.told, self.cost, self.error = Reports(), Cost(), ""
        self.network, self.events = swarm.hub.join(self.peer), []
        self.context = context(
            network=self.network,
            report=self.told,
            identity=identity,
            manifest=swarm.manifest,
            swarm=swarm.id,
            seed=0,
            unix_time=lambda: START_S + trio.current_time(),
            config=NodeConfig(operator=operator),
        )
        self.store = MemoryStore(ticket=ticket)
        self.admission = Admission(self.context, self.store, chain, offload or self.cost)

    def begin(self):
        self.membership = Membership(self.context, SwarmClock(), self.admission, self.events.append)

    async def live(self, bootstrap):
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.membership.serve, lambda _peer, _message: None)
                nursery.start_soon(Contacts(self.context, self.membership).keep, bootstrap)
        except* GossipError as group:
            self.error = str(group.exceptions[0])
            while "admission" not in self.error:
                group = group.exceptions[0]
                self.error = str(group.exceptions[0])
            self.swarm.hub.crash(self.peer)
