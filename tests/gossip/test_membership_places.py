"""Seats: of one place, such as an address prefix, no more members are remembered than it has seats, whoever comes and goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from starling.gossip.membership.member_list import View
from tests.harness.detectors import record, verify

SEATS = 3
MOST = 7


def place_of(record):
    return record.addresses[0], SEATS


steps = st.lists(
    st.tuples(
        st.sampled_from("abcdefghijkl"),
        st.sampled_from(["/1", "/2", "/3"]),
        st.sampled_from(["join", "leave", "die", "forget"]),
    ),
    max_size=60,
)


@given(steps)
@settings(max_examples=150)
def test_no_place_has_more_members_than_seats_and_the_list_has_an_end(steps):
    """Tombstones count: else an army that dies and comes again fills the list. A living member never gives way to a newcomer."""
    view, entered = View(verify, place=place_of, max_members=MOST), {}
    for now, (peer, address, step) in enumerate(steps):
        before = set(view.alive)
        match step:
            case "join":
                view.merge(record(peer, now + 1, addresses=(address,)), float(now))
                assert before <= set(view.alive)
            case "leave":
                view.merge(record(peer, now + 1, status="left", addresses=(address,)), float(now))
            case "die":
                view.suspect(peer, float(now))
                view.bury(peer, float(now))
            case _:
                view.tombstone_s = 10.0
                view.forget(float(now))
        entered = {p: entered.get(p, address) for p in view.members}
        assert max(Counter(entered.values()).values(), default=0) <= SEATS
        assert len(view.members) <= MOST
        graves = Counter(entered[p] for p, member in view.members.items() if not member.present)
        assert +view._graves == graves
        assert +view._seats == Counter(entered.values())


def test_a_member_is_charged_where_it_came_in():
    """Else whoever moves after joining makes room for the next of its army."""
    view = View(verify, place=place_of)
    for peer in "abc":
        view.merge(record(peer, addresses=("/1",)), 0.0)
        view.merge(record(peer, version=1, addresses=("/2",)), 0.0)
    assert view.merge(record("d", addresses=("/1",)), 0.0) == []
    assert view.merge(record("d", addresses=("/2",)), 0.0)


def test_the_oldest_tombstone_of_a_full_place_gives_way_and_no_other():
    view = View(verify, place=place_of)
    view.merge(record("z", status="left", addresses=("/2",)), 0.0)
    for now, peer in enumerate("abc"):
        view.merge(record(peer, status="left", addresses=("/1",)), 1.0 + now)
    view.merge(record("d", addresses=("/1",)), 9.0)
    assert sorted(view.members) == ["b", "c", "d", "z"]
