"""How a node that was suspended estimates how far behind it may be, and for how long two peers suffice as evidence."""

from starling.gossip.exchange.progress import PeerProgress
from starling.gossip.exchange.suspension import ROUNDS, TIMES, Suspension


def usual(rounds=4):
    held = Suspension()
    for _ in range(rounds):
        held.ended(0.5, 0.0)
    return held


def test_a_node_that_slept_may_be_behind_by_the_rounds_that_fit_into_its_sleep():
    held = usual()
    assert held.missed_rounds == 0
    held.ended(45.0, 0.0)
    assert held.missed_rounds == 90


def test_waiting_for_a_peer_or_a_short_delay_is_no_suspension():
    held = usual()
    held.ended(45.0, 44.5)
    assert held.missed_rounds == 0
    held.ended(0.9 * TIMES * 0.5, 0.0)
    assert held.missed_rounds == 0


def test_before_a_node_knows_how_long_its_rounds_take_it_was_not_away():
    held = usual(2)
    held.ended(45.0, 0.0)
    assert held.missed_rounds == 0


def test_a_suspension_counts_once_and_for_a_limited_time():
    held = usual()
    held.ended(45.0, 0.0)
    for _ in range(ROUNDS - 1):
        held.ended(0.5, 0.0)
    assert held.missed_rounds == 90
    held.ended(0.5, 0.0)
    assert held.missed_rounds == 0
    held.ended(45.0, 0.0)
    held.caught_up()
    assert held.missed_rounds == 0


def test_two_peers_suffice_within_the_possible_lag_and_one_never():
    progress = PeerProgress({"a": 95, "b": 96, "c": 20, "d": 21, "e": 500})
    assert progress.claimed(20, 90) == 95
    assert progress.claimed(20, 75) == 21, "of those two one is beyond reach"
    assert progress.claimed(20, 0) == 20
    assert PeerProgress({"a": 95, "b": 19}).claimed(20, 90) == 20
