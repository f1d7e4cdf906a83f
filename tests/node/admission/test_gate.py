"""The admission gate: which peers are admitted, which reports count as a fault of their sender, and that nodes with equal reports agree."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.member_list import MemberList
from starling.gossip.wire.schema import Record, Revocation
from starling.node.admission import credential as credentials
from starling.node.admission import gate as gates
from starling.node.admission import revocations
from starling.node.admission.chain import Terms, bind, invite
from starling.node.admission.credential import Credential, Ticket
from starling.node.admission.gate import Gatekeeper, puzzle_of
from starling.node.admission.revocations import MAX_PER_BRANCH, Revocations
from starling.node.admission.work import search
from starling.node.config.schema import AdmissionSection, Manifest
from starling.node.identity import Identity, verify_record
from tests.harness.invitations import CREATOR, END_MS, PEOPLE, SWARM, TERMS, chain_of, one_more
from tests.strategies import examples

NOW_S = 1_700_000_000.0
INVITE = AdmissionSection(kind="invite", depth=3, quota=3)


class Clock:
    def __init__(self, now_s=NOW_S):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def gate_of(section=INVITE, me=PEOPLE[11], clock=None):
    return Gatekeeper(Manifest(founder=CREATOR.peer_id, admission=section), SWARM, me.peer_id, clock or Clock())


def record_of(who, *, chain=(), ticket=None, operator="", version=0, raw=None):
    credential = credentials.encode(Credential(operator, ticket, chain)) if raw is None else raw
    return who.sign_record(Record(who.peer_id, SWARM, 1, version, "alive", ("/a",), b"", credential))


def member(length):
    """Return the record of people[length], invited through a chain of all people before it."""
    return record_of(PEOPLE[length], chain=chain_of(length))


def test_only_listed_peers_and_the_creator_are_members():
    gate = gate_of(AdmissionSection(kind="allow", members=(PEOPLE[1].peer_id,)))
    assert gate.closed
    assert gate.admits(record_of(PEOPLE[0]))
    assert gate.admits(record_of(PEOPLE[1]))
    assert not gate.admits(record_of(PEOPLE[2]))
    assert gate.fault(record_of(PEOPLE[2])) == "not_listed"


def test_open_admission_accepts_an_empty_credential():
    gate = gate_of(AdmissionSection())
    assert not gate.closed
    assert gate.admits(record_of(PEOPLE[1]))
    assert gate.admits(record_of(PEOPLE[1], operator="me"))
    assert gate.credential(record_of(PEOPLE[1], operator="me")).operator == "me"
    assert gate.fault(record_of(PEOPLE[1], raw=b"\xc1")) == "credential_malformed"


WORK = AdmissionSection(bits=3, memory_kib=8, epoch_s=3600.0)


def ticket_of(who, epoch):
    puzzle = puzzle_of(Manifest(founder=CREATOR.peer_id, admission=WORK), SWARM)
    ticket = search(puzzle, who.peer_id, epoch, range(10_000))
    assert ticket is not None
    return ticket


def test_work_is_admitted_after_its_evaluation_until_it_expires():
    clock = Clock()
    gate = gate_of(WORK, clock=clock)
    epoch = int(NOW_S // 3600)
    record = record_of(PEOPLE[1], ticket=ticket_of(PEOPLE[1], epoch))
    assert gate.fault(record) == ""
    assert not gate.admits(record)
    assert gate.unproven == [record]
    gate.prove(record, good=True)
    assert gate.admits(record)
    clock.now_s = 3600.0 * (epoch + 1.6)
    assert not gate.admits(record)
    assert gate.fault(record) == "", "an honest member may have a slow clock"
    assert gate.standing(record).reason == "work_out_of_date"


def test_invalid_or_missing_proof_of_work_is_the_senders_fault():
    gate = gate_of(WORK)
    wrong = record_of(PEOPLE[1], ticket=Ticket(int(NOW_S // 3600), 5))
    gate.prove(wrong, good=False)
    assert gate.fault(wrong) == "work_forged"
    assert gate.fault(record_of(PEOPLE[2])) == "credential_missing"


def test_work_in_another_epoch_costs_no_evaluation():
    gate = gate_of(WORK)
    for epoch in (0, int(NOW_S // 3600) - 2, int(NOW_S // 3600) + 2, 2**62):
        assert not gate.admits(record_of(PEOPLE[1], ticket=Ticket(epoch, 5)))
    assert gate.unproven == []


def test_work_waiting_for_evaluation_is_bounded():
    gate = gate_of(WORK)
    for nonce in range(2 * gates.MAX_UNPROVEN):
        raw = credentials.encode(Credential("", Ticket(int(NOW_S // 3600), nonce)))
        gate.admits(Record(PEOPLE[1].peer_id, SWARM, 1, nonce, "alive", (), b"", raw))
    assert len(gate.unproven) == gates.MAX_UNPROVEN


def test_the_invited_are_members_and_the_creator_needs_no_invitation():
    gate = gate_of()
    assert gate.admits(record_of(CREATOR))
    assert all(gate.admits(member(length)) for length in (1, 2, 3))
    assert gate.inviters(member(3)) == tuple(who.peer_id for who in PEOPLE[:3])
    assert gate.inviters(record_of(CREATOR)) == ()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (record_of(PEOPLE[1]), "credential_missing"),
        (record_of(PEOPLE[5], chain=chain_of(2)), "chain_of_another"),
        (record_of(PEOPLE[1], raw=b"x" * 100), "credential_malformed"),
        (record_of(PEOPLE[2], chain=chain_of(2)[1:]), "chain_signature"),
        (record_of(PEOPLE[4], chain=chain_of(4, terms=Terms(SWARM, CREATOR.peer_id, 4, 3))), "chain_too_deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_reports_are_faults(record, reason):
    gate = gate_of()
    assert gate.fault(record) == reason
    assert not gate.admits(record)


def test_an_expired_invitation_is_nobodys_fault():
    clock = Clock(END_MS / 1000 - 1)
    gate = gate_of(clock=clock)
    assert gate.admits(member(2))
    clock.now_s += 1
    assert not gate.admits(member(2))
    assert gate.fault(member(2)) == ""


def test_a_revocation_removes_the_subtree_only():
    gate = gate_of()
    sibling = record_of(PEOPLE[5], chain=one_more(chain_of(1), PEOPLE[1], 5, number=1))
    revocation = revocations.revoke(PEOPLE[1], chain_of(2), TERMS)
    assert gate.revoke([revocation]) == [revocation]
    assert gate.revoke([revocation]) == []
    assert gate.changed()
    assert [gate.admits(record) for record in (member(1), member(2), member(3), sibling)] == [True, False, False, True]
    assert gate.fault(member(3)) == "", "who tells of it may not have heard"
    assert gate.answer(member(3)) == revocation
    assert gate.answer(member(1)) is None


@pytest.mark.parametrize(("who", "may"), [(0, True), (1, True), (2, True), (3, False), (9, False)])
def test_only_inviters_of_a_member_can_revoke_it(who, may):
    if may:
        assert gate_of().revoke([revocations.revoke(PEOPLE[who], chain_of(3), TERMS)])
        return
    with pytest.raises(ValueError, match="revoked_by_another"):
        revocations.revoke(PEOPLE[who], chain_of(3), TERMS)


@pytest.mark.slow
@given(data=st.data())
@examples(40)
def test_a_changed_revocation_is_invalid(data):
    good = revocations.revoke(PEOPLE[1], chain_of(2), TERMS)
    part = data.draw(st.sampled_from(["chain", "signature"]))
    raw = bytearray(getattr(good, part))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"^(chain_\w+|revocation_forged)$"):
        gate_of().revoke([msgspec.structs.replace(good, **{part: bytes(raw)})])


def test_one_invalid_revocation_rejects_the_whole_message():
    gate = gate_of()
    good = revocations.revoke(CREATOR, chain_of(1), TERMS)
    with pytest.raises(ValueError, match="chain_malformed"):
        gate.revoke([good, Revocation(b"", CREATOR.peer_id, b"")])
    assert gate.admits(member(1))
    with pytest.raises(ValueError, match="nothing_to_revoke"):
        gate_of(AdmissionSection()).revoke([good])


def many_below(branch, count):
    """Return revocations of invitations that people[branch] and its first guest issued, for every number."""
    terms = Terms(SWARM, CREATOR.peer_id, 3, 64)
    above = one_more((), CREATOR, branch, terms=terms, number=branch)
    below = one_more(above, PEOPLE[branch], 10, terms=terms)
    givers = [(PEOPLE[branch], above)] * 64 + [(PEOPLE[10], below)] * 64
    return [
        revocations.revoke(giver, invite(giver, chain, terms, invitee=PEOPLE[9].peer_id, number=index % 64, not_after_ms=END_MS), terms)
        for index, (giver, chain) in enumerate(givers[:count])
    ]


@pytest.mark.slow
def test_revocations_per_member_are_bounded_in_any_order_of_arrival():
    terms = Terms(SWARM, CREATOR.peer_id, 3, 64)
    mine = revocations.revoke(CREATOR, one_more((), CREATOR, 2, terms=terms, number=2), terms)
    flood = many_below(1, MAX_PER_BRANCH + 20)
    one, other = Revocations(terms), Revocations(terms)
    one.add([*flood, mine], 0)
    for revocation in (mine, *reversed(flood)):
        other.add([revocation], 0)
    assert len(one.listed) == MAX_PER_BRANCH + 1
    assert mine in one.listed
    assert one.digest == other.digest
    assert one.listed == other.listed


def test_a_revocation_is_forgotten_when_its_invitation_expires():
    held = Revocations(TERMS)
    held.add([revocations.revoke(CREATOR, one_more((), CREATOR, 1, until=1000), TERMS)], 0)
    assert len(held.listed) == 1
    held.add([revocations.revoke(CREATOR, one_more((), CREATOR, 2, number=1), TERMS)], 1000)
    assert len(held.listed) == 1
    assert held.voids(one_more((), CREATOR, 1, until=1000), 0) is None


def test_a_number_that_is_given_again_after_its_invitation_has_ended_is_valid():
    """Nobody revokes anything meanwhile, so the old revocation is still there; the new invitation can be revoked as well."""
    held = Revocations(TERMS)
    old, new = (one_more((), CREATOR, to, until=until) for to, until in ((1, 1000), (2, 2000)))
    held.add([revocations.revoke(CREATOR, old, TERMS)], 0)
    assert held.voids(new, 999) is not None
    assert held.voids(new, 1000) is None
    again = revocations.revoke(CREATOR, new, TERMS)
    assert held.add([again], 1000) == [again]
    assert held.voids(new, 1000) == again


def users(count):
    """Return records of peers that all use the same invitation, which was issued to a bearer key."""
    bearer = b"b" * 32
    chain = invite(CREATOR, (), TERMS, invitee=Identity.from_seed(bearer).peer_id, number=0, not_after_ms=END_MS)
    return [record_of(who, chain=bind(chain, bearer, who.peer_id, SWARM)) for who in PEOPLE[4 : 4 + count]]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_an_invitation_of_several_users_admits_none_on_any_node(order):
    records = users(3)
    gate = gate_of()
    view = MemberList(lambda record: verify_record(record, SWARM), gate)
    for index, alive in zip(order, (1, 0, 0), strict=True):
        view.validate([records[index]], "teller")
        view.merge(records[index], 0.0)
        if gate.changed():
            view.purge()
        assert len(view.alive) == alive
    assert all(gate.answer(record).peer != record.peer for record in records)


def test_a_banned_peer_does_not_come_back_with_its_invitation_under_another_key():
    """A key whose peer id sorts below the first one is found within seconds."""
    records = sorted(users(4), key=lambda record: record.peer, reverse=True)
    gate = gate_of()
    assert [gate.admits(record) for record in records] == [True, False, False, False]
    assert not any(gate.admits(record) for record in records)


def test_an_invitation_used_twice_is_evidence_against_the_inviter():
    one, other = sorted(users(2), key=lambda record: record.peer)
    gate = gate_of()
    assert gate.admits(one)
    assert gate.overused == {}
    assert not gate.admits(other)
    (use,) = gate.overused.values()
    assert (use.inviter, use.number, use.first, use.second) == (CREATOR.peer_id, 0, one, other)
    assert not use.signed_twice  # a third party may have read the invite line
    assert verify_record(use.first, SWARM)
    assert verify_record(use.second, SWARM)
    assert gate.is_shared(one)
    assert gate.is_shared(other)


def test_two_invitations_with_one_number_count_as_one_used_twice():
    claims = [record_of(PEOPLE[at], chain=one_more((), CREATOR, at, number=7)) for at in (4, 5)]
    gate = gate_of()
    for record in claims:
        gate.admits(record)
    assert not any(gate.admits(record) for record in claims)
    (use,) = gate.overused.values()
    assert use.signed_twice


def test_an_expired_credential_does_not_compete():
    clock = Clock()
    gate = gate_of(clock=clock)
    short = record_of(PEOPLE[4], chain=one_more((), CREATOR, 4, number=3, until=int(NOW_S * 1000) + 1000))
    long = record_of(PEOPLE[5], chain=one_more((), CREATOR, 5, number=3))
    assert gate.admits(short)
    assert not gate.admits(long)
    clock.now_s += 1.5
    assert gate.admits(long)


def test_a_node_always_lists_itself_and_learns_whether_others_admit_it():
    gate = gate_of(me=PEOPLE[2])
    gate.revoke([revocations.revoke(CREATOR, chain_of(1), TERMS)])
    assert gate.admits(member(2))
    assert gate.standing(member(2)).reason == "invitation_revoked"


def test_memory_per_peer_is_bounded(monkeypatch):
    monkeypatch.setattr(gates, "MAX_KEPT", 10)
    gate = gate_of(WORK)
    for nonce in range(50):
        record = Record(PEOPLE[1].peer_id, SWARM, 1, nonce, "alive", (), b"", credentials.encode(Credential("", Ticket(0, nonce))))
        gate.prove(record, good=True)
    assert gate.size == 2 * 10
