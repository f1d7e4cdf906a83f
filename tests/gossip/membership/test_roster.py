"""The members that count in a round, as some join and leave."""

import pytest

from starling.gossip.membership.events import Changed, Died, Joined, Left, Reborn, Suspected
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.roster import COOL_DOWN_S, MANY, MAX_REMEMBERED, MEMORY_S, MINUTE_S, SETTLED_S, Roster
from starling.gossip.overlay.ranks import digest
from tests.harness.detectors import OpenGate, record, verify


def training(*events, every_s=0.0):
    """Return the roster of a training node after these events, and the time."""
    roster, now = Roster("me", training=True), 0.0
    for event in events:
        roster.observe(event, now)
        now += every_s
    return roster, now


def test_present_members_count_and_absent_ones_do_not():
    roster, _ = training(Joined("b"), Joined("z"), Joined("a"), Suspected("a"), Changed("b"), Left("z"), Joined("y"), Died("y"))
    assert roster.members(0.0) == ("a", "b", "me")
    assert roster.view(0.0) == digest(("a", "b", "me"))


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


def test_newcomers_wait_until_their_edges_are_stable():
    roster, now = training(*(Joined(f"n{i}") for i in range(MANY)))
    roster.observe(Joined("late"), now)
    assert len(roster.members(now)) == 1 + MANY
    assert "late" not in roster.members(now + SETTLED_S - 1e-3)
    assert "late" in roster.members(now + SETTLED_S)
    roster.observe(Joined("hasty"), now)
    roster.observe(Left("hasty"), now + 1.0)
    assert "hasty" not in roster.members(now + 2 * SETTLED_S)
    roster.observe(Joined("calm"), now + 2 * MINUTE_S)
    assert "calm" in roster.members(now + 2 * MINUTE_S)


def test_before_training_all_count_at_once():
    roster = Roster("me")
    for event in [Joined(f"n{i}") for i in range(3 * MANY)] + [Left("n0"), Reborn("n0"), Joined("n0")] * 5:
        roster.observe(event, 0.0)
    assert len(roster.members(0.0)) == 1 + 3 * MANY


def test_memory_is_bounded():
    roster, _ = training(*(event for i in range(2 * MAX_REMEMBERED) for event in (Joined(f"n{i}"), Left(f"n{i}"))))
    assert roster.remembered == MAX_REMEMBERED
    assert roster.members(0.0) == ("me",)
