"""The member list: records merge like a semilattice, and states belong to one version of a record."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.events import Changed, Died, Joined, Left, Reborn, Suspected
from starling.gossip.membership.member_list import MemberList
from starling.gossip.overlay.ranks import digest
from tests.harness.detectors import OpenGate, record, verify

records = st.builds(
    record,
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["alive", "left"]),
    st.sampled_from([("/1",), ("/2",), ()]),
)


def list_of(*statements, **options):
    members = MemberList(verify, OpenGate(), **options)
    for statement in statements:
        members.merge(statement, 0.0)
    return members


def held(members):
    return {peer: (member.record, member.status) for peer, member in members.members.items()}


@given(st.lists(records, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(statements, chance):
    shuffled = list(statements)
    chance.shuffle(shuffled)
    assert held(list_of(*statements)) == held(list_of(*shuffled))
    assert list_of(*statements).digest == list_of(*shuffled).digest


@given(st.lists(records, max_size=6), st.lists(records, max_size=6), st.lists(records, max_size=6))
def test_merging_merged_views_is_associative_and_idempotent(one, two, three):
    left = list_of(*list_of(*one, *two).records, *three)
    right = list_of(*one, *list_of(*two, *three).records)
    assert held(left) == held(right)
    assert all(left.merge(statement, 1.0) == [] for statement in (*one, *two, *three))


@given(st.lists(records, min_size=1, max_size=8), records)
def test_no_resurrection_by_a_record_that_is_not_newer(statements, late):
    members = list_of(*statements)
    for peer in list(members.alive):
        members.suspect(peer, 1.0)
        members.mark_dead(peer, 2.0)
    buried = members.members.get(late.peer)
    assert members.alive == ()
    members.merge(late, 3.0)
    newer = (
        buried is None
        or late.incarnation > buried.record.incarnation
        or (late.incarnation == buried.record.incarnation and late.version > buried.record.version and buried.status != "left")
    )
    if late.peer in members.alive:
        assert newer or late != buried.record
    if newer and late.status == "alive":
        assert late.peer in members.alive


@given(st.lists(st.sampled_from(["suspect", "bury", "merge"]), max_size=6))
def test_a_refutation_always_wins(beliefs):
    members = list_of(record("a", 1, 0))
    for belief in beliefs:
        match belief:
            case "suspect":
                members.suspect("a", 1.0)
            case "bury":
                members.mark_dead("a", 1.0)
            case _:
                members.merge(record("a", 1, 0), 1.0)
    members.merge(record("a", 1, 1), 2.0)
    assert members.members["a"].status == "alive"


@pytest.mark.parametrize(
    ("before", "then", "events", "status"),
    [
        ([], record("a"), [Joined("a")], "alive"),
        ([], record("a", status="left"), [], "left"),
        ([record("a")], record("a"), [], "alive"),
        ([record("a")], record("a", version=1), [], "alive"),
        ([record("a")], record("a", version=1, addresses=("/b",)), [Changed("a")], "alive"),
        ([record("a")], record("a", version=1, status="left"), [Left("a")], "left"),
        ([record("a")], record("a", 2), [Reborn("a")], "alive"),
        ([record("a")], record("a", 2, status="left"), [Reborn("a"), Left("a")], "left"),
        ([record("a", version=1)], record("a"), [], "alive"),
        ([record("a", status="left")], record("a"), [], "left"),
        ([record("a", status="left")], record("a", version=9), [], "left"),
        ([record("a", version=9)], record("a", status="left"), [Left("a")], "left"),
        ([record("a", status="left")], record("a", 2), [Reborn("a"), Joined("a")], "alive"),
        ([record("a"), "suspect"], record("a", version=1), [Changed("a")], "alive"),
        ([record("a"), "suspect"], record("a"), [], "suspect"),
        ([record("a"), "suspect"], record("a", 2), [Reborn("a")], "alive"),
        ([record("a"), "suspect", "bury"], record("a"), [], "dead"),
        ([record("a"), "suspect", "bury"], record("a", version=1), [Joined("a")], "alive"),
        ([record("a"), "suspect", "bury"], record("a", 2), [Reborn("a"), Joined("a")], "alive"),
        ([record("a"), "suspect", "bury"], record("a", version=1, status="left"), [], "left"),
    ],
)
def test_effects_of_a_record_on_the_list(before, then, events, status):
    members = MemberList(verify, OpenGate())
    for step in before:
        if step == "suspect":
            assert members.suspect("a", 0.0) == [Suspected("a")]
        elif step == "bury":
            assert members.mark_dead("a", 0.0) == [Died("a")]
        else:
            members.merge(step, 0.0)
    assert members.merge(then, 1.0) == events
    assert members.members["a"].status == status


def test_status_changes_apply_only_in_order():
    members = list_of(record("a"))
    assert members.mark_dead("a", 1.0) == members.clear_suspicion("a", 1.0) == members.suspect("b", 1.0) == []
    assert members.suspect("a", 1.0) == [Suspected("a")]
    assert members.suspect("a", 1.0) == []
    assert members.clear_suspicion("a", 1.0) == [Changed("a")]


def test_suspicion_does_not_change_the_digest_but_death_does():
    members = list_of(record("a"), record("b"))
    before = members.digest
    members.suspect("a", 1.0)
    assert members.digest == before == digest(["b", "a"])
    members.mark_dead("a", 2.0)
    assert members.digest == digest(["b"])


def test_a_digest_separates_adjacent_names():
    assert len({digest(peers) for peers in permutations(["ab", "c"])}) == 1
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_a_forged_record_is_the_senders_fault():
    forged = record("a", version=1)
    forged = type(forged)("a", forged.swarm, 1, 1, "alive", (), b"wrong")
    members = list_of(record("a", version=2))
    members.validate([forged], "byzantine")
    with pytest.raises(RemoteProtocolError, match="byzantine: record_forged"):
        list_of(record("a")).validate([forged], "byzantine")


def test_the_list_is_bounded_and_the_oldest_tombstone_makes_room():
    members = list_of(record("a"), record("b"), record("c"), max_members=3)
    assert members.merge(record("d"), 1.0) == []
    members.suspect("b", 1.0)
    members.mark_dead("b", 2.0)
    assert members.merge(record("d"), 3.0) == [Joined("d")]
    assert set(members.members) == {"a", "c", "d"}


def test_tombstones_expire_and_are_not_sent_as_records():
    members = list_of(record("a"), record("b"), record("c", status="left"), tombstone_s=10.0)
    members.suspect("a", 1.0)
    members.mark_dead("a", 2.0)
    assert [r.peer for r in members.records] == ["b", "c"]
    members.expire_tombstones(11.0)
    assert set(members.members) == {"a", "b"}
    members.expire_tombstones(12.5)
    assert set(members.members) == {"b"}
