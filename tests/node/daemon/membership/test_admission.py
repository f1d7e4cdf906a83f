"""Admission over a network in memory, in virtual time: who is admitted, what strangers receive, and what forgeries cost."""

from itertools import pairwise

import pytest
import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.membership.member_list import MAX_MEMBERS
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Hello, Probe, Record, Spread, Sync
from starling.node.admission import credential as credentials
from starling.node.admission.chain import bind, invite
from starling.node.admission.credential import Credential, Ticket
from starling.node.admission.gate import puzzle_of
from starling.node.config.schema import AdmissionSection
from starling.node.daemon.context import in_thread
from starling.node.daemon.membership.admission import WASTED_AT_ONCE
from starling.node.daemon.membership.origins import ELSEWHERE_SHARE, ORIGIN_SHARE
from starling.node.identity import Identity
from starling.node.net.memory_network import address_of
from starling.robust.reputation import SOFT, WEIGHTS
from tests.harness.admission_swarm import PEOPLE, START_S, Node, Swarm
from tests.harness.daemons import agreed, until

pytestmark = pytest.mark.trio

INVITE = AdmissionSection(kind="invite", depth=2, quota=2)
WORK = AdmissionSection(bits=4, memory_kib=8, epoch_s=60.0)


class Stranger:
    """A peer outside the swarm that sends arbitrary frames and records what it receives."""

    def __init__(self, swarm, identity=PEOPLE[11]):
        self.swarm, self.identity, self.peer, self.heard = swarm, identity, identity.peer_id, []
        self.network = swarm.hub.join(self.peer)
        swarm.nursery.start_soon(self._listen)

    async def _listen(self):
        async for inbound in self.network.inbound("control"):
            self.heard.append(decode("control", inbound.peer, inbound.frame))

    def record(self, credential=b"", version=0):
        unsigned = Record(self.peer, self.swarm.id, 1, version, "alive", (address_of(self.peer),), b"", credential)
        return self.identity.sign_record(unsigned)

    async def say(self, node, *messages):
        await self.network.dial(node.address)
        for message in messages:
            await self.network.send(node.peer, "control", encode(message))
        await trio.sleep(1.0)

    @property
    def records(self):
        return [record for message in self.heard if isinstance(message, Sync | Spread) for record in message.records]


async def test_invited_members_find_each_other_and_know_their_inviters(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1), swarm.invited(1, 2), swarm.invited(3)):
        await until(lambda: agreed(swarm.nodes), 10.0)
        ids = [node.peer for node in swarm.nodes]
        membership = swarm.nodes[3].membership
        assert [membership.origins.inviter_of(peer) for peer in ids] == [None, ids[0], ids[1], ids[0]]
        assert all(node.told.faults == [] for node in swarm.nodes)


@pytest.mark.parametrize(("admission", "credential"), [(INVITE, b""), (INVITE, b"rubbish"), (WORK, b"")])
async def test_a_stranger_is_refused_without_information(autojump_clock, admission, credential):
    swarm = Swarm(admission)
    async with swarm.running(swarm.invited(1) if admission is INVITE else ()):
        stranger = Stranger(swarm)
        record = stranger.record(credential)
        await stranger.say(swarm.nodes[0], Hello(record, b"other-digest", 0.0), Sync(()), Sync((record,)), Probe(1, b"other-digest", 0.0))
        assert stranger.peer not in swarm.nodes[0].membership.table
        assert stranger.records == []
        assert {type(message).__name__ for message in stranger.heard} == {"Acknowledge"}
        reason = "credential_malformed" if credential else "credential_missing"
        assert (stranger.peer, reason) in swarm.nodes[0].told.faults
        assert agreed(swarm.nodes)


async def test_an_intercepted_chain_admits_no_other_peer(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1)):
        stranger = Stranger(swarm)
        stolen = swarm.nodes[1].admission.credential
        await stranger.say(swarm.nodes[0], Hello(stranger.record(stolen), b"other-digest", 0.0))
        assert stranger.peer not in swarm.nodes[0].membership.table
        assert (stranger.peer, "chain_of_another") in swarm.nodes[0].told.faults


async def test_a_revocation_reaches_all_and_removes_the_subtree_with_a_reason(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1), swarm.invited(1, 2), swarm.invited(3)):
        await until(lambda: agreed(swarm.nodes), 10.0)
        creator, one, two, three = swarm.nodes
        assert set(creator.membership.revoke(one.peer)) == {one.peer, two.peer}
        await until(lambda: agreed([creator, three]), 1.0)
        await until(lambda: one.error and two.error, 15.0)
        assert "invitation was revoked" in one.error
        assert "`starling join INVITE`" in two.error
        assert three.store.revoked == creator.store.revoked == creator.admission.gate.revoked
        late = await swarm.start(4, swarm.invited(4))
        await until(lambda: agreed([creator, three, late]), 20.0)
        await until(lambda: late.admission.gate.digest == creator.admission.gate.digest, 60.0)
        assert all(node.told.faults == [] for node in (creator, three, late))


async def test_a_leaked_invite_is_voided_by_its_number_before_or_after_it_is_used(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1)):
        creator, one = swarm.nodes
        creator.store.given = {1: swarm.invited(1), 7: swarm.invited(7)}
        assert creator.membership.revoke("7") == ()
        assert creator.membership.revoke("1") == (one.peer,)
        await until(lambda: one.error, 15.0)


async def test_a_number_that_was_never_given_is_not_void_before_it_is(autojump_clock):
    swarm = Swarm(INVITE)
    swarm.lasts_s = 60.0
    async with swarm.running():
        creator = swarm.nodes[0]
        creator.store.given = {1: swarm.invited(1), 3: swarm.invited(3)}
        with pytest.raises(ConfigError, match="no invitation 2 that is valid; valid are: 1, 3;"):
            creator.membership.revoke("2")
        two = await swarm.start(2, swarm.invited(2))
        await until(lambda: agreed([creator, two]), 10.0)
        await trio.sleep(swarm.lasts_s)
        with pytest.raises(ConfigError, match="no invitation 1 that is valid; valid are: none;"):
            creator.membership.revoke("1")


@pytest.mark.parametrize(
    ("who", "whom", "kind", "says"),
    [
        (1, PEOPLE[0].peer_id, GossipError, "only the creator"),
        (1, PEOPLE[2].peer_id, GossipError, "only the creator"),
        (1, PEOPLE[9].peer_id, ConfigError, "no member"),
        (2, "5", ConfigError, "no invitation 5 that is valid; valid are: none"),
        (2, "9" * 5000, ConfigError, "no invitation"),
        (1, "", ConfigError, "no member"),
    ],
    ids=["creator", "cousin", "unknown", "number", "large", "empty"],
)
async def test_revoking_a_foreign_invitation_gives_one_line(autojump_clock, who, whom, kind, says):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1), swarm.invited(2)):
        await until(lambda: agreed(swarm.nodes), 10.0)
        with pytest.raises(GossipError, match=says) as error:
            swarm.nodes[who].membership.revoke(whom)
        assert error.type is kind  # the command line's exit code: 2 for input that is wrong, 1 for what is not allowed
        assert "`starling peers`" in str(error.value)
        assert agreed(swarm.nodes)


async def test_an_invitation_used_twice_admits_neither_and_both_get_the_reason(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1)):
        chain = swarm.invited(1)
        bearer = b"b" * 32
        leaked = invite(
            PEOPLE[1], chain, swarm.terms, invitee=Identity.from_seed(bearer).peer_id, number=0, not_after_ms=int(START_S * 1000) + 10**9
        )
        one, other = [await swarm.start(at, bind(leaked, bearer, PEOPLE[at].peer_id, swarm.id)) for at in (5, 6)]
        await until(lambda: one.error and other.error, 20.0)
        assert all("another node uses the same invitation" in node.error for node in (one, other))
        await until(lambda: agreed(swarm.nodes[:2]), 20.0)
        assert swarm.nodes[0].told.faults == [(PEOPLE[1].peer_id, "invitation_overused")]
        assert len(swarm.nodes[1].told.named("invitation_overused")) == 1
        assert swarm.nodes[1].told.faults == []
        assert WEIGHTS["invitation_overused"] == SOFT


async def test_signing_one_invitation_twice_is_blamed(autojump_clock):
    swarm = Swarm(INVITE)
    async with swarm.running(swarm.invited(1)):
        for at in (5, 6):
            given = invite(
                PEOPLE[1], swarm.invited(1), swarm.terms, invitee=PEOPLE[at].peer_id, number=0, not_after_ms=int(START_S * 1000) + 10**9
            )
            await swarm.start(at, given)
        await until(lambda: swarm.nodes[0].told.faults, 20.0)
        assert swarm.nodes[0].told.faults == [(PEOPLE[1].peer_id, "invitation_signed_twice")]
        assert "invitation_signed_twice" not in WEIGHTS  # so the fault counts as HARD


async def test_membership_ends_when_the_invitation_expires(autojump_clock):
    swarm = Swarm(INVITE)
    swarm.lasts_s = 40.0
    async with swarm.running(swarm.invited(1)):
        await until(lambda: agreed(swarm.nodes), 10.0)
        await trio.sleep(40.0)
        assert "ended on 2023-11-14" in swarm.nodes[1].error
        await until(lambda: agreed(swarm.nodes[:1]), 10.0)


@pytest.mark.parametrize(
    ("admission", "chain", "operator", "says"),
    [
        (INVITE, (), "", "this node has no invitation"),
        (INVITE, (1,), "", "the invitation is for 12D3"),
        (AdmissionSection(kind="allow", members=(PEOPLE[1].peer_id,)), (), "", "is not among the members"),
        (AdmissionSection(), (), "a\nb", "operator: must be printable"),
    ],
)
async def test_a_node_that_would_be_refused_does_not_start(autojump_clock, admission, chain, operator, says):
    swarm = Swarm(admission)
    with pytest.raises(ConfigError, match=says) as error:
        Node(swarm, PEOPLE[5], swarm.invited(*chain) if chain else (), operator)
    assert "\n" not in str(error.value)
    assert "`starling " in str(error.value)


@pytest.mark.slow
async def test_members_with_proof_of_work_find_each_other_and_renew_in_time(autojump_clock):
    swarm = Swarm(WORK)
    async with swarm.running((), ()):
        await until(lambda: agreed(swarm.nodes), 10.0)
        [node.events.clear() for node in swarm.nodes]
        for _ in range(18):
            await trio.sleep(10.0)
            assert agreed(swarm.nodes)
        assert all(node.events == [] for node in swarm.nodes)
        assert all(node.told.faults == [] for node in swarm.nodes)
        own = {node.membership.table[node.peer].record.credential for node in swarm.nodes}
        assert {credentials.decode(raw).ticket.epoch for raw in own} == {int((START_S + trio.current_time()) // 60)}
        others, tickets = 2, 4
        assert all(node.cost.calls <= tickets * (others + 8) for node in swarm.nodes)


@pytest.mark.slow
async def test_forged_work_is_its_sender_s_fault_and_costs_a_bounded_number_of_evaluations(autojump_clock):
    swarm = Swarm(WORK)
    async with swarm.running(()):
        victim, stranger = swarm.nodes[0], Stranger(swarm)
        before, epoch = victim.cost.calls, int(START_S // 60)
        good = puzzle_of(swarm.manifest, swarm.id)
        nonces = (n for n in range(10**6) if not good.is_solved(stranger.peer, Ticket(epoch, n)))
        await stranger.network.dial(victim.address)
        for version in range(1000):
            raw = credentials.encode(Credential("", Ticket(epoch, next(nonces))))
            await stranger.network.send(victim.peer, "control", encode(Spread((stranger.record(raw, version),))))
        await trio.sleep(10.0)
        assert 1 <= victim.cost.calls - before <= WASTED_AT_ONCE + 15
        assert {reason for _, reason in victim.told.faults} == {"work_forged"}
        assert agreed(swarm.nodes)


@pytest.mark.slow
async def test_forgeries_from_one_prefix_do_not_use_up_others_budget(autojump_clock):
    swarm = Swarm(WORK)
    async with swarm.running(()):
        victim, stranger = swarm.nodes[0], Stranger(swarm)
        swarm.hub.origins[stranger.peer] = "8.8.8.0/24"
        await stranger.network.dial(victim.address)
        for nonce in range(500):
            raw = credentials.encode(Credential("", Ticket(int(START_S // 60), 10**6 + nonce)))
            await stranger.network.send(victim.peer, "control", encode(Spread((stranger.record(raw, nonce),))))
        newcomer = await swarm.start(5)
        await until(lambda: newcomer.peer in victim.membership.members, 5.0)


@pytest.mark.slow
async def test_work_in_a_thread_yields_to_a_cancellation_at_once():
    swarm = Swarm(AdmissionSection(bits=17, memory_kib=512, epoch_s=1e7))
    node = Node(swarm, PEOPLE[1], offload=in_thread)
    began = trio.current_time()
    with trio.move_on_after(0.3):
        await node.admission.obtain()
    assert trio.current_time() - began < 2.0


@pytest.mark.parametrize("kept", ["good", "wrong", "old"])
async def test_valid_work_of_an_earlier_run_is_reused(autojump_clock, kept):
    swarm = Swarm(AdmissionSection(bits=8, memory_kib=8, epoch_s=60.0))
    first = Node(swarm, PEOPLE[1])
    await first.admission.obtain()
    ticket = first.store.ticket
    assert ticket is not None
    ticket = {"good": ticket, "wrong": Ticket(ticket.epoch, ticket.nonce + 1), "old": ticket}[kept]
    await trio.sleep(100.0 if kept == "old" else 1.0)
    swarm.hub.crash(first.peer)
    again = Node(swarm, PEOPLE[1], ticket=ticket)
    await again.admission.obtain()
    assert (again.cost.calls == 1) == (kept == "good")
    assert credentials.decode(again.admission.credential).ticket == again.store.ticket
    assert again.admission.gate.standing(again.admission._record()).state == "good"


async def test_long_work_reports_its_progress(autojump_clock):
    swarm = Swarm(AdmissionSection(bits=9, memory_kib=8, epoch_s=600.0))
    node = Node(swarm, PEOPLE[1])
    node.cost.each_s = 0.4  # a slow machine: batches stay short
    await node.admission.obtain()
    told = node.told.named("working")
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert told[0] >= 1.0
    assert all(later > 1.5 * earlier for earlier, later in pairwise(gaps)), "not a line a second for hours"


@pytest.mark.slow
async def test_one_prefix_cannot_fill_the_list_of_members(autojump_clock):
    swarm = Swarm(AdmissionSection())
    async with swarm.running():
        membership = swarm.nodes[0].membership
        army = [f"/ip4/9.9.9.{n % 256}/tcp/{4000 + n}" for n in range(MAX_MEMBERS)]

        def take_in(count, address, first):
            for n in range(count):
                identity = Identity.from_seed((first + n).to_bytes(32, "big"))
                record = Record(identity.peer_id, swarm.id, 1, 0, "alive", (address(n),), b"")
                membership._view.merge(record, 0.0)
            return len(membership.table)

        taken = take_in(1000, lambda n: army[n], 10_000)
        assert taken == MAX_MEMBERS // ORIGIN_SHARE + 1
        taken = take_in(MAX_MEMBERS, lambda n: f"/ip4/10.0.{n % 256}.{n // 256}/tcp/1", 100_000)
        assert taken == MAX_MEMBERS // ORIGIN_SHARE + MAX_MEMBERS // ELSEWHERE_SHARE
        assert take_in(10, lambda n: f"/ip4/192.168.{n}.1/tcp/1", 200_000) == taken
        assert take_in(10, lambda n: f"/ip4/8.8.{n}.1/tcp/1", 300_000) == taken + 10


async def test_a_peer_counts_for_its_observed_prefix_and_its_operator(autojump_clock):
    swarm = Swarm(AdmissionSection())
    async with swarm.running():
        peer = (await swarm.start(1, operator="acme")).peer
        membership = swarm.nodes[0].membership
        await until(lambda: peer in membership.members, 5.0)
        assert membership.origins.operator_of(peer) == "acme"
        assert "operator acme" in membership.origins.prefixes(peer)
        swarm.hub.origins[peer] = "8.8.8.0/24"
        assert membership.origins.prefixes(peer) == {"8.8.8.0/24", "operator acme"}
