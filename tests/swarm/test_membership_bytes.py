"""The bytes that membership costs a node, for any number of members: detectors in virtual time, with records of real length.

pytest -s -m acceptance tests/swarm/test_membership_bytes.py
"""

import hashlib
import random
from collections import Counter

import pytest

from starling.gossip.membership.events import Send
from starling.gossip.membership.member_list import MAX_MEMBERS, MemberList
from starling.gossip.wire import schema as wire
from starling.gossip.wire.frames import encode
from tests.harness import detectors
from tests.harness.detectors import SWARM, TIMING, Detector, DetectorSwarm, LocalRecord, OpenGate

MOST = 20_000  # bytes per node and minute
MINUTE_S = 60.0
SETTLING_S = 10.0
WHOLE, WATCHED = 10_000, 40
LONG = pytest.mark.timeout(3000)  # takes a minute or two of processor time


def name(number):
    """Return a name as long as a peer id."""
    return ("12D3KooW" + hashlib.sha256(str(number).encode()).hexdigest())[:52]


def record_of(peer, incarnation=1, version=0, status="alive"):
    """Return a record with two addresses and a signature of real length."""
    signature = (b"by " + peer.encode()).ljust(64, b".")
    addresses = ("/ip4/203.0.113.200/tcp/54321", "/ip4/192.168.100.100/tcp/54321")
    return wire.Record(peer, SWARM, incarnation, version, status, addresses, signature)


@pytest.fixture(autouse=True)
def long_signatures(monkeypatch):
    monkeypatch.setattr(detectors, "sign", lambda it: record_of(it.peer, it.incarnation, it.version, it.status))
    monkeypatch.setattr(detectors, "verify", lambda it: it.signature == record_of(it.peer).signature)


def swarm_of(n, **options):
    return DetectorSwarm(n, peers=[name(each) for each in range(n)], record_of=record_of, **options)


@pytest.mark.parametrize("n", [32, pytest.param(256, marks=[pytest.mark.acceptance, LONG])])
@pytest.mark.slow
def test_members_cost_a_node_few_bytes_under_churn(n):
    """A quiet minute, and one in which one member joins, one leaves and one crashes; bytes of all nodes, per node."""
    swarm = swarm_of(n)
    swarm.run(SETTLING_S, swarm.agreed)
    swarm.run(swarm.now + SETTLING_S)
    assert swarm.agreed()
    cost = {}
    for kind in ("quiet", "changes"):
        before, began = swarm.octets.total(), swarm.now
        if kind == "changes":
            swarm.add(name(n))
            swarm.run(began + 20.0)
            leaver = name(1)
            swarm.do(leaver, swarm.nodes[leaver].leave(swarm.now))
            del swarm.nodes[leaver]
            swarm.run(began + 40.0)
            swarm.crash(name(2))
        swarm.run(began + MINUTE_S)
        cost[kind] = (swarm.octets.total() - before) / n
    print(  # noqa: T201
        f"{n} members: {cost['quiet']:,.0f} bytes a node in a quiet minute, {cost['changes']:,.0f} in one with three changes"
    )
    assert swarm.agreed()
    assert cost["quiet"] <= MOST / 3
    assert cost["changes"] <= MOST


@pytest.mark.slow
def test_members_beyond_a_list_s_capacity_cost_no_bytes():
    """Permanently different tables are not compared all the time."""
    swarm = swarm_of(64, max_members=24)
    swarm.run(SETTLING_S)
    before = swarm.octets.total()
    swarm.run(swarm.now + MINUTE_S)
    assert all(it.member_list.full for it in swarm.nodes.values())
    assert (swarm.octets.total() - before) / 64 <= MOST / 3
    gone = name(0)
    swarm.crash(gone)
    swarm.run(swarm.now + MINUTE_S)
    assert all(gone not in it.member_list.alive for it in swarm.nodes.values())
    assert all(it.member_list.full for it in swarm.nodes.values()), "a death makes room, for another"


class Part:
    """Some whole detectors among many members, of which the others are simulated.

    The whole ones know all members, as after hours. Actions of the others are random: each probes one member per second and starts a
    comparison now and then, so as many of both arrive as leave, with the digest that all have. Others answer probes and equal comparisons
    like a detector. Each whole detector receives as many copies of a change as members send on average.
    """

    def __init__(self, n, watched):
        self.n, self.now, self.chance = n, 0.0, random.Random(1)
        self.records = {name(each): record_of(name(each)) for each in range(n)}
        self.cores = {name(each): self._core(name(each)) for each in range(watched)}
        self.octets = Counter()
        self.frames = []
        (self.digest,) = {it.member_list.digest for it in self.cores.values()}

    def _core(self, peer):
        local = LocalRecord(self.records[peer], detectors.sign)
        core = Detector(local, MemberList(detectors.verify, OpenGate()), TIMING, 1, lambda t: t, 0.0)
        for other, record in self.records.items():
            if other != peer:
                core.member_list.merge(record, 0.0)
                core.last_frame[other] = 0.0
        return core

    def stranger(self):
        while (peer := self.chance.choice(list(self.records))) in self.cores:
            pass
        return peer

    def do(self, source, outputs):
        for output in outputs:
            if isinstance(output, Send):
                message = output.message
                self.octets[type(message).__name__] += len(encode(message))
                self.octets["copies"] += isinstance(message, wire.Spread)
                if output.peer in self.cores:
                    self.frames.append((output.peer, source, message))
                elif isinstance(message, wire.Probe):
                    self.frames.append((source, output.peer, wire.Acknowledge(message.nonce, self.digest, self.now)))

    def run(self, seconds, tick_s=0.05):
        """Advance time; frames take one tick."""
        until = self.now + seconds
        peers = list(self.cores)
        while self.now < until:
            self.now += tick_s
            frames, self.frames = self.frames, []
            for to, source, message in frames:
                self.do(to, self.cores[to].receive(source, message, self.now))
            for peer in peers:
                core = self.cores[peer]
                if self.chance.random() < tick_s / TIMING.probe_s:
                    self.do(peer, core.receive(self.stranger(), wire.Probe(self.chance.randrange(2**32), self.digest, self.now), self.now))
                if self.chance.random() < tick_s / TIMING.sync_s:
                    self.do(peer, core.receive(self.stranger(), wire.Compare((core.member_list.table.branch(""),)), self.now))
                if core.deadline <= self.now:
                    self.do(peer, core.tick(self.now))

    def change(self, record, copies):
        """Give all others a member's new record, which they spread."""
        self.records[record.peer] = record
        if record.status == "left":
            del self.records[record.peer]
        held = MemberList(detectors.verify, OpenGate())
        for each in self.records.values():
            held.merge(each, 0.0)
        self.digest = held.digest
        for _ in range(copies * len(self.cores)):
            to = self.chance.choice(list(self.cores))
            self.do(to, self.cores[to].receive(self.stranger(), wire.Spread((record,)), self.now))


@LONG
@pytest.mark.acceptance
@pytest.mark.slow
def test_ten_thousand_members_cost_a_node_few_bytes():
    """Forty whole detectors, each with all members in its table, and the others simulated."""
    assert WHOLE < MAX_MEMBERS
    part = Part(WHOLE, WATCHED)
    part.run(SETTLING_S)
    part.octets.clear()
    part.run(MINUTE_S)
    copies = part.octets.pop("copies", 0)
    quiet = part.octets.total() / WATCHED
    assert not copies
    part.octets.clear()
    part.change(record_of(name(WHOLE - 1), 1, 1, "left"), 5)
    part.run(MINUTE_S)
    copies = part.octets.pop("copies")
    change = part.octets.total() / WATCHED - quiet
    print(  # noqa: T201
        f"{WHOLE} members: {quiet:,.0f} bytes a node in a quiet minute, and {change:,.0f} for each change, "
        f"{copies / WATCHED:.1f} copies of it"
    )
    assert {it.member_list.digest for it in part.cores.values()} == {part.digest}
    assert quiet <= MOST / 3
    assert quiet + 5 * change <= MOST
