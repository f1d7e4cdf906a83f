"""The cost of frames full of fresh records: signatures are verified within a budget, off the event loop, once each. In virtual time, a
signature takes as long as on a processor.
"""

from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest
import trio

from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Acknowledge, Hello, Probe, Record, Spread, Sync
from starling.node.daemon.membership import records, service
from starling.node.identity import verify_record
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from tests.harness.daemons import until
from tests.harness.detectors import OpenGate
from tests.harness.members import SWARM, Node

pytestmark = pytest.mark.trio
SIGNATURE_S = 0.0002
FLOOD_PER_S = 190.0  # frames a second, below the rate at which a peer is disconnected


class Processor:
    """One processor shared by all: a signature verified on the event loop blocks everybody, one verified in a thread nobody."""

    def __init__(self, clock):
        self._clock = clock
        self._in_thread = False
        self.on_loop = self.in_thread = 0

    def verify(self, record, swarm):
        if self._in_thread:
            self.in_thread += 1
        else:
            self.on_loop += 1
            self._clock.jump(SIGNATURE_S)
        return record.swarm == swarm and (record.signature == b"good" or verify_record(record, swarm))

    async def offload(self, work):
        self._in_thread, before = True, self.in_thread
        result = work()
        self._in_thread = False
        await trio.sleep((self.in_thread - before) * SIGNATURE_S)
        return result


@pytest.fixture
def processor(autojump_clock, monkeypatch):
    """Tests request `autojump_clock` too, since pytest-trio only uses clocks among a test's own arguments."""
    processor = Processor(autojump_clock)
    monkeypatch.setattr(service, "verify_record", processor.verify)
    monkeypatch.setattr(records.RecordVerifier, "offload", property(lambda _self: processor.offload, lambda *_: None))
    return processor


def record_of(peer, version=0):
    return Record(peer, SWARM, 1, version, "alive", (address_of(peer),), b"good")


class ClosedGate(OpenGate):
    """Admits no newcomer."""

    closed = True

    def admits(self, record):
        return not record.peer.isupper()

    def learn(self, record, credential):
        """Ignore the reports."""


class Voice:
    """A peer that sends what the test asks for and records when its probes are answered."""

    def __init__(self, hub, name):
        self.name, self.network = name, hub.join(name)
        self.answered: dict[int, float] = {}
        self.learned: set[str] = set()

    async def say(self, victim, message):
        await self.network.send(victim.peer, "control", encode(message))

    async def join(self, victim):
        await self.network.dial(victim.address)
        await self.say(victim, Hello(record_of(self.name), bytes(8), 0.0))
        await until(lambda: self.name in victim.membership.members, 5.0)

    async def listen(self):
        async for inbound in self.network.inbound("control"):
            match decode("control", inbound.peer, inbound.frame):
                case Acknowledge(nonce=nonce):
                    self.answered[nonce] = trio.current_time()
                case Probe(nonce=nonce):
                    await self.network.send(inbound.peer, "control", encode(Acknowledge(nonce, bytes(8), 0.0)))
                case Sync(records=records) | Spread(records=records):
                    self.learned |= {record.peer for record in records}

    async def flood(self, victim, seconds):
        for frame in range(int(seconds * FLOOD_PER_S)):
            fresh = tuple(record_of(f"{self.name} {frame} {each}") for each in range(56))
            await self.say(victim, Spread(fresh))
            await trio.sleep(1 / FLOOD_PER_S)


async def answered_within(asker, victim, seconds, limit_s=1.0):
    """Return the share of ten probes a second that are answered in time."""
    sent = {}
    for nonce in range(int(seconds * 10)):
        sent[nonce] = trio.current_time()
        await asker.say(victim, Probe(nonce, bytes(8), 0.0))
        await trio.sleep(0.1)
    await trio.sleep(limit_s)
    return sum(asker.answered.get(nonce, 1e9) <= at + limit_s for nonce, at in sent.items()) / len(sent)


@asynccontextmanager
async def victim_and(hub, *names):
    """Start a node and peers that are its members; those with names in capitals only connect."""
    victim, voices = Node(hub, 0), [Voice(hub, name) for name in names]
    async with trio.open_nursery() as nursery:
        await nursery.start(victim.live)
        for voice in voices:
            nursery.start_soon(voice.listen)
            await (voice.network.dial(victim.address) if voice.name.isupper() else voice.join(victim))
        yield victim, *voices
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["MALLORY", "mallory"])
async def test_honest_probes_are_answered_while_frames_of_fresh_records_pour_in(autojump_clock, processor, name):
    """The flood has twice as many signatures as a processor can verify."""
    async with victim_and(MemoryHub(), "asker", name) as (victim, asker, noisy), trio.open_nursery() as nursery:
        nursery.start_soon(noisy.flood, victim, 4.0)
        assert await answered_within(asker, victim, 4.0) >= 0.95
        assert processor.on_loop + processor.in_thread <= 2 * 56 + records.UNMET_AT_ONCE
        assert len(victim.membership.table) <= 3 + records.UNMET_AT_ONCE
        nursery.cancel_scope.cancel()


async def test_a_member_that_raises_the_versions_of_others_costs_no_more_than_its_budget(autojump_clock, processor):
    """Fresh records of existing members cost no introduction tokens, but signature checks."""
    async with victim_and(MemoryHub(), "asker", "mallory", *(f"m{each}" for each in range(20))) as (victim, asker, noisy, *many):
        before, began = (processor.on_loop, processor.in_thread), trio.current_time()

        async def versions():
            for version in count(1):
                await noisy.say(victim, Spread(tuple(record_of(each.name, version) for each in many)))
                await trio.sleep(1 / FLOOD_PER_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(versions)
            assert await answered_within(asker, victim, 10.0) >= 0.95
            on_loop, in_thread = processor.on_loop - before[0], processor.in_thread - before[1]
            took = trio.current_time() - began
            assert on_loop <= records.LOOP_AT_ONCE + took * records.LOOP_PER_S
            assert records.SOURCE_AT_ONCE / 2 < in_thread <= records.SOURCE_AT_ONCE + took * records.SOURCE_PER_S
            nursery.cancel_scope.cancel()


async def test_another_member_s_records_are_read_while_a_flood_waits(autojump_clock, processor, monkeypatch):
    monkeypatch.setattr(records, "THREAD_PER_S", 20.0)
    async with victim_and(MemoryHub(), "asker", "mallory", *(f"m{each}" for each in range(12))) as (victim, asker, noisy, *many):
        for version in range(1, 40):
            await noisy.say(victim, Spread(tuple(record_of(each.name, version) for each in many)))
        await trio.sleep(0.1)
        await asker.say(victim, Spread(tuple(record_of(each.name, 100) for each in many)))
        newest = lambda: {victim.membership.table[each.name].record.version for each in many}  # noqa: E731
        await until(lambda: newest() == {100}, 2.0)


async def test_a_record_is_verified_once_however_often_it_is_sent_also_a_forged_one(autojump_clock, processor):
    async with victim_and(MemoryHub(), "asker") as (victim, asker):
        forged = msgspec.structs.replace(record_of("asker", 9), signature=b"bad")
        before = processor.on_loop
        for _ in range(50):
            await asker.say(victim, Spread((forged,)))
        await trio.sleep(1.0)
        assert victim.told.faults == [("asker", "record_forged")] * 50
        assert processor.on_loop - before == 1


async def test_records_that_wait_for_the_thread_are_verified_once_however_often_they_are_sent(autojump_clock, processor):
    """Found by the adversarial search: a frame sent forty times before its records were verified cost forty times as much."""
    many = [f"m{each}" for each in range(2 * records.FEW)]
    async with victim_and(MemoryHub(), "asker", *many) as (victim, asker, *_):
        before = processor.in_thread
        for _ in range(40):
            await asker.say(victim, Spread(tuple(record_of(each, 1) for each in many)))
        await trio.sleep(5.0)
        assert {victim.membership.table[each].record.version for each in many} == {1}
        assert processor.in_thread - before == len(many)


async def test_a_stranger_may_send_only_its_own_record(autojump_clock, processor):
    async with victim_and(MemoryHub(), "STRANGER") as (victim, stranger):
        await stranger.say(victim, Spread((record_of("a"), record_of("STRANGER"), record_of("b"))))
        await trio.sleep(1.0)
        assert victim.membership.members == tuple(sorted((victim.peer, "STRANGER")))
        await stranger.say(victim, Spread((record_of("a"), record_of("b"))))
        await until(lambda: {"a", "b"} <= set(victim.membership.members), 1.0)


async def test_strangers_together_have_one_budget_and_members_keep_theirs(autojump_clock, processor):
    """Each stranger sends a Hello with a new version every tenth of a second; only the strangers' share is verified."""
    names = [f"S{each}" for each in range(60)]
    async with victim_and(MemoryHub(), "asker", *names) as (victim, asker, *strangers):
        victim.membership._view.gate = ClosedGate()
        before, began = processor.on_loop + processor.in_thread, trio.current_time()
        for version in range(50):
            for stranger in strangers:
                await stranger.say(victim, Hello(record_of(stranger.name, version), bytes(8), 0.0))
            await trio.sleep(0.1)
        spent = processor.on_loop + processor.in_thread - before
        took = trio.current_time() - began
        assert records.STRANGERS_AT_ONCE < spent <= records.STRANGERS_AT_ONCE + (took + 1.0) * records.STRANGERS_PER_S
        await asker.say(victim, Spread((record_of("asker", 1),)))
        await until(lambda: victim.membership.table["asker"].record.version == 1, 1.0)


async def test_a_member_may_name_few_unmet_peers_and_more_as_they_are_met(autojump_clock, processor):
    hub = MemoryHub()
    async with victim_and(hub, "asker", "teller") as (victim, _, teller):
        few, began = int(records.UNMET_AT_ONCE), trio.current_time()
        await teller.say(victim, Spread(tuple(record_of(f"p{each:02}") for each in range(30))))
        present = lambda: {peer for peer in victim.membership.members if peer[0] == "p"}  # noqa: E731
        await until(lambda: len(present()) == few, 1.0)
        met = Voice(hub, "p00")
        await met.join(victim)
        await until(lambda: victim.membership.last_frame("p00") is not None, 1.0)
        await teller.say(victim, Spread(tuple(record_of(f"q{each:02}") for each in range(30))))
        await until(lambda: sum(peer[0] == "q" for peer in victim.membership.members) == 1, 1.0)
        await until(lambda: present() == {"p00"}, 60.0)
        again = tuple(record_of(f"p{each:02}", 1) for each in range(30))
        await teller.say(victim, Spread(again))
        await trio.sleep(0.5)
        assert len(present()) <= 1 + (trio.current_time() - began) * records.UNMET_PER_S, "a death gives no token back"


async def test_a_peer_named_by_the_owner_may_name_all_others(autojump_clock, processor):
    """A joiner learns all members from the one it was given, without meeting them."""
    async with victim_and(MemoryHub(), "KNOWN") as (victim, known):
        victim.membership.greet("KNOWN", given=True)
        for half in "pq":
            await known.say(victim, Sync(tuple(record_of(f"{half}{each:02}") for each in range(50))))
        await until(lambda: len(victim.membership.members) == 101, 2.0)
