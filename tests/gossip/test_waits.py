"""How long whom: patience with those who were in time, less with those who were late."""

from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.timeouts import Deadline, Timeouts


def test_a_peer_at_work_is_waited_for_longer_than_one_that_was_late_the_last_time():
    """Who waits for a straggler is late in turn by as much: its own peers must have more patience with it, or all drift apart."""
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(10.0, lag_s=3.0)
    assert timeouts.until("b") == 17.0
    timeouts.missed("b")
    assert timeouts.until("b") == 14.0
    assert timeouts.until("c") == timeouts.expires == 17.0
    timeouts.answered("b", 12.0)
    assert timeouts.until("b") == 17.0, "in time once is in time again"


def test_a_peer_that_is_gone_begins_with_a_clean_slate():
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(10.0, lag_s=3.0)
    timeouts.missed("b")
    timeouts.forget("b")
    assert timeouts.until("b") == 17.0


def test_each_link_of_a_round_has_its_own_deadline():
    """The one that was late is given up first; the round goes on for the other."""
    rounds = Rounds(Timeouts(Deadline(1.0, 1.0)))
    rounds.timeouts.missed("b")
    rounds.open(0, {"b": 0.5, "c": 0.5}, b"view", 0.0, lag_s=2.0)
    assert rounds.tick(2.9) == ()
    assert rounds.tick(3.0) == ("b",)
    assert rounds.waiting == ("c",)
    assert rounds.tick(5.0) == ("c",)


def test_who_speaks_of_a_later_round_has_passed_ours():
    rounds = Rounds(Timeouts(Deadline(1.0, 1.0)))
    rounds.open(4, {"b": 0.5}, b"view", 0.0)
    rounds.progress.record("b", 4)
    assert not rounds.passed("b")
    rounds.progress.record("b", 5)
    assert rounds.passed("b")
