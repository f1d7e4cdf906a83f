"""The members that count in a round, as some join and leave."""

from math import inf

import pytest

from starling.gossip.membership.events import Changed, Died, Joined, Left, Reborn, Suspected
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.roster import COOL_DOWN_S, FEW, MAX_RECENT, MAX_REMEMBERED, MEMORY_S, MINUTE_S, SETTLED_S, Roster
from starling.gossip.overlay.ranks import digest
from tests.harness.detectors import OpenGate, record, verify


def training(*events, every_s=0.0):
    """Return the roster of a node that trains since the first of these events, after all of them, and the time."""
    roster, now = Roster("me"), 0.0
    for event in events:
        roster.observe(event, now)
        roster.training = True
        now += every_s
    return roster, now


def test_present_members_count_and_absent_ones_do_not():
    events = (Joined("b"), Joined("z"), Joined("a"), Suspected("a"), Changed("b"), Left("z"), Joined("y"), Died("y"))
    roster, _ = training(*events, every_s=MINUTE_S)
    now = len(events) * MINUTE_S
    assert roster.members(now) == ("a", "b", "me")
    assert roster.view(now) == digest(("a", "b", "me"))


@pytest.mark.parametrize(
    ("events", "wait_s"),
    [
        ([Joined("a"), Left("a"), Reborn("a"), Joined("a")], 0.0),
        ([Joined("a"), Died("a"), Reborn("a"), Joined("a")], 0.0),
        ([Joined("a"), Reborn("a")], 0.0),
        ([Joined("a"), Left("a"), Reborn("a"), Joined("a"), Left("a"), Reborn("a"), Joined("a")], COOL_DOWN_S),
        ([Joined("a"), Reborn("a"), Reborn("a")], COOL_DOWN_S),
        ([Joined("a"), Left("a"), Reborn("a"), Joined("a"), Reborn("a")], COOL_DOWN_S),
        ([Joined("a"), Died("a"), Joined("a"), Died("a"), Joined("a")], 0.0),
        ([Left("a"), Joined("a")], 0.0),
    ],
    ids=["left", "died", "reborn", "left_twice", "reborn_twice", "left_and_reborn", "believed_dead_twice", "unknown"],
)
def test_a_peer_that_returns_repeatedly_counts_after_a_while(events, wait_s):
    roster, _ = training(*events)
    assert ("a" in roster.members(0.0)) == (wait_s == 0.0)
    assert "a" not in roster.members(wait_s - 1e-3) or wait_s == 0.0
    assert "a" in roster.members(wait_s)


def test_a_flapping_peer_counts_only_some_time_after_it_stays():
    roster, _ = training(Joined("a"))
    counted = []
    for lap in range(1000):
        for event in (Left("a"), Reborn("a"), Joined("a")):
            roster.observe(event, 0.1 * lap)
            counted.append("a" in roster.members(0.1 * lap))
    assert sum(counted) == 1, "back for the first time"
    assert "a" in roster.members(0.1 * 999 + COOL_DOWN_S)
    roster.observe(Left("a"), 2 * MEMORY_S)
    roster.observe(Joined("a"), 2 * MEMORY_S)
    assert "a" in roster.members(2 * MEMORY_S), "all is forgotten"


def test_two_nodes_agree_although_one_missed_joins_and_leaves():
    lives = [it for n in range(1, 9) for it in (record("a", n), record("a", n, 1, status="left"))] + [record("a", 9)]
    rosters = []
    for seen in (lives, lives[::3] + lives[-1:]):
        members, roster = MemberList(verify, OpenGate()), Roster("me", training=True)
        for statement in seen:
            for event in members.merge(statement, 0.0):
                roster.observe(event, 0.0)
        rosters.append(roster)
    for now in (0.0, COOL_DOWN_S - 1.0, COOL_DOWN_S):
        assert len({roster.view(now) for roster in rosters}) == 1


HERE = tuple(f"m{number}" for number in range(3))
GONE = tuple(f"gone{number}" for number in range(FEW + 1))


def among(members: int, heard=lambda _peer: inf) -> Roster:
    """Return the roster of a training node with this many members, itself included."""
    roster = Roster("me", heard=heard)
    for number in range(members - 1):
        roster.observe(Joined(f"m{number}"), 0.0)
    roster.training = True
    return roster


def observe(roster: Roster, now: float, *events) -> None:
    for event in events:
        roster.observe(event, now)


def after_visits(heard=lambda _peer: inf) -> Roster:
    """Return the roster of one of four, when more newcomers than may have been gone within a minute."""
    roster = among(1 + len(HERE), heard)
    observe(roster, 0.0, *map(Joined, GONE), *map(Suspected, GONE))
    return roster


def test_newcomers_that_stay_count_at_once_however_many_they_are():
    roster = among(4)
    observe(roster, 0.0, *(Joined(f"n{number}") for number in range(100)))
    assert len(roster.members(0.0)) == 4 + 100


def test_two_nodes_agree_on_a_burst_of_newcomers_although_one_has_just_come_itself():
    burst = [Joined(f"n{number}") for number in range(12)]
    old, new = among(4), among(4 + 8)
    observe(old, 0.0, *(Joined(f"m{number}") for number in range(3, 11)), *burst)
    observe(new, 0.0, *burst)
    assert old.view(0.0) == new.view(0.0)


@pytest.mark.parametrize("gone", [Suspected, Died, Left])
@pytest.mark.parametrize(("members", "may_go"), [(5, FEW), (12, FEW), (100, 25)])
def test_once_more_than_a_few_newcomers_are_gone_others_have_to_stay(gone, members, may_go):
    roster = among(members)
    for number in range(may_go):
        observe(roster, 0.0, Joined(f"n{number}"), gone(f"n{number}"))
    observe(roster, 0.0, Joined("in time"), Joined("n"), gone("n"), Joined("late"))
    assert "in time" in roster.members(0.0)
    assert "late" not in roster.members(SETTLED_S - 1e-3)
    assert "late" in roster.members(SETTLED_S)
    roster.observe(Joined("calm"), MINUTE_S)
    assert "calm" in roster.members(MINUTE_S)


def test_a_newcomer_that_is_suspected_before_it_has_stayed_counts_no_more_until_it_has():
    heard = {}
    roster = among(4, lambda peer: heard.get(peer, -inf))
    observe(roster, 0.0, Joined("hasty"), Joined("stays"))
    roster.observe(Suspected("hasty"), 1.0)
    roster.observe(Suspected("stays"), SETTLED_S)
    roster.observe(Suspected("m0"), SETTLED_S)
    assert roster.members(SETTLED_S) == ("m0", "m1", "m2", "me", "stays")
    heard["hasty"] = 1.0 + SETTLED_S
    assert "hasty" not in roster.members(1.0 + SETTLED_S - 1e-3)
    assert "hasty" in roster.members(1.0 + SETTLED_S)


def test_suspicions_that_prove_false_make_nobody_wait():
    roster = after_visits()
    roster.observe(Changed(GONE[0]), 0.0)
    roster.observe(Joined("n"), 0.0)
    assert "n" in roster.members(0.0)


def test_who_was_gone_before_it_had_stayed_has_to_when_it_is_back():
    roster = among(4)
    observe(roster, 0.0, Joined("n"), Suspected("n"), Died("n"), Joined("n"))
    assert "n" not in roster.members(SETTLED_S - 1e-3)
    assert "n" in roster.members(SETTLED_S)


def test_a_newcomer_that_leaves_within_a_minute_has_to_stay_when_it_is_back():
    roster = among(4)
    observe(roster, 0.0, Joined("hasty"), Joined("later"), Left("hasty"), Reborn("hasty"), Joined("hasty"))
    assert "hasty" not in roster.members(SETTLED_S - 1e-3)
    assert "hasty" in roster.members(SETTLED_S)
    observe(roster, MINUTE_S, Left("later"), Reborn("later"), Joined("later"))
    assert "later" in roster.members(MINUTE_S)


def test_a_newcomer_that_flaps_counts_only_some_time_after_it_stays():
    roster = among(4)
    observe(roster, 0.0, Joined("n"), *[Left("n"), Reborn("n"), Joined("n")] * 2, Reborn("n"))
    assert "n" not in roster.members(COOL_DOWN_S - 1e-3)
    assert "n" in roster.members(COOL_DOWN_S)


def test_one_of_many_newcomers_counts_once_it_is_heard_after_a_while():
    heard = {"late": 0.0, "silent": 0.0, "hasty": 0.0}
    roster = after_visits(lambda peer: heard.get(peer, -inf))
    for peer in GONE:
        roster.observe(Died(peer), 0.0)
    observe(roster, 0.0, *map(Joined, heard))
    roster.observe(Left("hasty"), 1.0)
    assert roster.unheard(SETTLED_S - 1e-3) == ()
    assert set(roster.unheard(SETTLED_S)) == {"late", "silent"}
    assert "late" not in roster.members(SETTLED_S)
    heard["late"] = SETTLED_S
    assert "late" in roster.members(SETTLED_S), "although it was asked for before"
    assert roster.unheard(SETTLED_S) == ("silent",)
    assert not {"silent", "hasty"} & set(roster.members(10 * SETTLED_S))
    roster.observe(Died("silent"), 11 * SETTLED_S)
    assert roster.unheard(12 * SETTLED_S) == ()


def test_a_newcomer_that_begins_anew_has_to_stay_again():
    heard = {"n": SETTLED_S}
    roster = after_visits(lambda peer: heard.get(peer, -inf))
    roster.observe(Joined("n"), 0.0)
    roster.observe(Reborn("n"), 1.0)
    assert "n" not in roster.members(SETTLED_S)
    heard["n"] = 1.0 + SETTLED_S
    assert "n" in roster.members(1.0 + SETTLED_S)


def test_members_believed_dead_are_no_newcomers():
    roster = among(8, lambda _peer: -inf)
    for peer in [f"m{number}" for number in range(7)]:
        roster.observe(Died(peer), 1.0)
        roster.observe(Joined(peer), 2.0)
    assert len(roster.members(2.0)) == 8


def test_before_training_all_count_at_once():
    roster = Roster("me")
    for event in [Joined(f"n{i}") for i in range(48)] + [Left("n0"), Reborn("n0"), Joined("n0")] * 5:
        roster.observe(event, 0.0)
    assert len(roster.members(0.0)) == 1 + 48


def test_memory_is_bounded():
    roster, _ = training(*(event for i in range(2 * MAX_REMEMBERED) for event in (Joined(f"n{i}"), Left(f"n{i}"))))
    assert roster.remembered == MAX_REMEMBERED
    assert roster.members(0.0) == ("me",)


def test_of_more_newcomers_than_are_remembered_the_first_are_forgotten():
    roster = after_visits()
    observe(roster, 0.0, *(Joined(f"n{number}") for number in range(MAX_RECENT)), Joined("last"))
    assert "n0" not in roster.members(0.0)
    assert "last" in roster.members(0.0)
