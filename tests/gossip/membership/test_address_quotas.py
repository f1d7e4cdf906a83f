"""Quotas: an address group, such as a prefix, has at most its quota of listed members, whoever joins and leaves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.member_list import MemberList
from tests.harness.detectors import OpenGate, record, verify
from tests.strategies import examples

SEATS = 3
MOST = 7


def quota_of(record):
    return record.addresses[0], SEATS


steps = st.lists(
    st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from(["/1", "/2", "/3"]), st.sampled_from(["join", "leave", "die", "forget"])),
    max_size=60,
)


@given(steps)
@examples(150)
def test_no_address_group_exceeds_its_quota_and_the_list_is_bounded(steps):
    members, entered = MemberList(verify, OpenGate(), address_quota=quota_of, max_members=MOST), {}
    for now, (peer, address, step) in enumerate(steps):
        before = set(members.alive)
        match step:
            case "join":
                members.merge(record(peer, now + 1, addresses=(address,)), float(now))
                assert before <= set(members.alive)
            case "leave":
                members.merge(record(peer, now + 1, status="left", addresses=(address,)), float(now))
            case "die":
                members.suspect(peer, float(now))
                members.mark_dead(peer, float(now))
            case _:
                members.tombstone_s = 10.0
                members.expire_tombstones(float(now))
        entered = {p: entered.get(p, address) for p in members.members}
        assert max(Counter(entered.values()).values(), default=0) <= SEATS
        assert len(members.members) <= MOST
    members.expire_tombstones(1e9)
    seated = Counter(entered[peer] for peer in members.members)
    for number, address in enumerate(("/1", "/2", "/3") * SEATS):  # whoever came and went, no seat is lost
        room = seated[address] < SEATS and seated.total() < MOST
        members.merge(record(f"new {number}", addresses=(address,)), 1e9)
        assert (f"new {number}" in members.members) == room
        seated[address] += room


def test_a_member_counts_in_the_group_of_its_first_record():
    members = MemberList(verify, OpenGate(), address_quota=quota_of)
    for peer in "abc":
        members.merge(record(peer, addresses=("/1",)), 0.0)
        members.merge(record(peer, version=1, addresses=("/2",)), 0.0)
    assert members.merge(record("d", addresses=("/1",)), 0.0) == []
    assert members.merge(record("d", addresses=("/2",)), 0.0)


def test_the_oldest_tombstone_of_a_full_group_is_evicted_and_no_other():
    members = MemberList(verify, OpenGate(), address_quota=quota_of)
    members.merge(record("z", status="left", addresses=("/2",)), 0.0)
    for now, peer in enumerate("abc"):
        members.merge(record(peer, status="left", addresses=("/1",)), 1.0 + now)
    members.merge(record("d", addresses=("/1",)), 9.0)
    assert sorted(members.members) == ["b", "c", "d", "z"]
