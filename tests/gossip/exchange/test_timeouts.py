"""The adaptive deadline, and how long each peer is waited for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.pace import Rounds
from starling.gossip.exchange.timeouts import (
    CALLS,
    FAR,
    FELT,
    HASTE,
    MISSED,
    MOST_ALONE,
    RECENT,
    STRETCH,
    UNDER_WAY,
    WHOLE,
    WITHDRAWN_ROUNDS,
    Deadline,
    Timeouts,
)

waits = st.lists(st.one_of(st.none(), st.floats(0.0, 100.0)), max_size=80)


def after(outcomes, *, low=0.25, high=10.0):
    deadline = Deadline(low, high)
    for wait in outcomes:
        deadline.observe(wait)
    return deadline


@given(outcomes=waits)
def test_the_deadline_never_leaves_its_bounds(outcomes):
    assert 0.25 <= after(outcomes).wait_s() <= 10.0


def test_until_five_answers_are_known_it_waits_as_long_as_allowed():
    assert after([0.5] * 4).wait_s() == 10.0
    assert after([0.5] * 5).wait_s() < 1.0


def test_it_is_median_plus_four_median_deviations():
    """Median 1.0; deviations .2 .1 0 .1 .2 have median .1."""
    assert after([0.8, 0.9, 1.0, 1.1, 1.2]).wait_s() == pytest.approx(1.4)


def test_answers_that_are_all_alike_leave_slack_for_the_next():
    assert after([1.0] * 32).wait_s() == pytest.approx(1.2)


def test_only_the_last_outcomes_count():
    assert after([9.0] * 50 + [1.0] * 32).wait_s() == after([1.0] * 32).wait_s()


def test_one_dead_peer_changes_nothing():
    spread = [0.8, 0.9, 1.0, 1.1, 1.2] * 6
    with_dead = [outcome for wait in spread for outcome in (wait, None)]
    assert after(with_dead).wait_s() == pytest.approx(after(spread).wait_s(), rel=0.15)


def test_it_does_not_ratchet_down_by_timing_out_the_slow_tail():
    rng = np.random.default_rng(0)
    deadline = Deadline(1e-6, 100.0)
    late = 0
    for wait in rng.exponential(1.0, 2000):
        if wait <= deadline.wait_s():
            deadline.observe(wait)
        else:
            late += 1
            deadline.observe(None)
    assert late < 0.2 * 2000
    assert deadline.wait_s() > 1.0


def test_when_the_whole_network_slows_down_the_deadline_is_learned_anew():
    deadline = after([0.3] * 32)
    late = 0
    for _ in range(100):
        if deadline.wait_s() >= 3.0:
            deadline.observe(3.0)
        else:
            late += 1
            deadline.observe(None)
    assert late < 60
    assert deadline.wait_s() == pytest.approx(3.6)


@pytest.mark.parametrize(("low", "high", "k"), [(0.0, 1.0, 4.0), (2.0, 1.0, 4.0), (0.1, 1.0, 2.0)])
def test_senseless_bounds_are_refused(low, high, k):
    with pytest.raises(ValueError):
        Deadline(low, high, k)


# --- a round or visit ----------------------------------------------------------------------------------------


def test_a_peer_at_work_is_waited_for_longer_than_one_that_was_late_the_last_time():
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(10.0, steps_s=3.0)
    assert timeouts.until("b") == 17.0
    timeouts.missed("b")
    assert timeouts.until("b") == 14.0
    assert timeouts.until("c") == timeouts.expires == 17.0
    timeouts.answered("b", 12.0)
    assert timeouts.until("b") == 17.0, "in time once is in time again"


def test_who_waited_for_a_straggler_has_an_exchange_to_do_too_and_is_given_time_for_it():
    """Over a long line an exchange takes longer than a round's local steps."""
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(10.0, steps_s=3.0, exchange_s=2.0)
    assert timeouts.until("b") == 21.0
    assert timeouts.solicit_s == pytest.approx(7.0 / 6), "which carries nothing, and need not wait so long"
    timeouts.missed("b")
    assert timeouts.until("b") == 16.0


def test_whom_a_node_meets_after_rounds_alone_is_given_the_time_of_those_twice_over():
    """It came early: it had nobody to wait for. A peer that is silent or has let links expire is busy with rounds of its own."""
    silent = set()
    timeouts = Timeouts(Deadline(0.25, 10.0), silent=lambda peer: peer in silent)
    at = rounds_with(timeouts, dict.fromkeys("bcdef", 0.01), rounds=8)
    given = {}
    for alone in (0, 3):
        timeouts.begin(at, 1.0, 0.5, alone)
        silent.clear()
        given[alone] = timeouts.until("b") - at
        silent.add("b")
        given[alone, "silent"] = timeouts.until("b") - at
    assert given[3] == pytest.approx(given[0] + 3 * 2 * 1.5)
    assert given[3, "silent"] == pytest.approx(given[0, "silent"] + 3 * 2 * 1.5)
    assert given[0, "silent"] < 1.0 < given[0]
    timeouts.begin(at, 1.0, 0.5, alone=100_000)
    assert timeouts.until("c") - at == pytest.approx(given[0] + MOST_ALONE * 2 * 1.5), (
        "as of who was all alone for a day"
    )


def test_a_link_after_rounds_alone_is_not_held_against_who_missed_it():
    timeouts = Timeouts(Deadline(0.25, 10.0))
    at = rounds_with(timeouts, dict.fromkeys("bcdef", 0.01), rounds=8)
    for _ in range(2 * MISSED):
        timeouts.begin(at, 1.0, alone=3)
        timeouts.resolve("b", "timeout", timeouts.until("b"))
        assert not timeouts.impatient("b")


def test_who_made_this_node_late_after_rounds_alone_is_not_given_their_time_again():
    timeouts = Timeouts(Deadline(0.25, 10.0))
    at = rounds_with(timeouts, dict.fromkeys("bcdef", 0.01), rounds=8)
    timeouts.begin(at, 1.0, alone=3)
    timeouts.resolve("c", "committed", at + 5.0)
    timeouts.overtaken()
    assert not timeouts.impatient("c"), "this node came too early by more"
    timeouts.begin(at, 1.0, alone=3)
    timeouts.resolve("c", "committed", at + 8.0)
    timeouts.overtaken()
    timeouts.begin(at, 1.0, alone=3)
    assert timeouts.until("c") - at < 1.0


def test_what_an_exchange_takes_is_learned_from_the_quickest_answers_and_by_no_single_peer():
    timeouts = Timeouts(Deadline(0.25, 10.0))
    assert timeouts.exchange_s == 0.0
    timeouts.begin(0.0)
    for peer, waits in {"far": (0.9, 0.8), "b": (0.3, 0.2, 4.0), "c": (0.1, 0.5)}.items():
        for wait_s in waits:
            timeouts.answered(peer, wait_s)
    assert timeouts.exchange_s == 0.2
    timeouts.missed("b")
    assert timeouts.exchange_s == 0.2, "a peer that did not come says nothing of it"
    rounds = Rounds(timeouts)
    rounds.open(0, {"d": 0.5}, b"view", 50.0, steps_s=1.0)
    assert timeouts.expires == pytest.approx(50.0 + timeouts.deadline.wait_s() + 2.0 * 1.2)


def test_a_node_that_most_peers_do_not_wait_for_is_itself_out_of_phase_and_waits_as_for_peers_in_time():
    """It has run ahead: if it hurried on it would meet nobody in any later round either. As many as may lie change nothing."""
    timeouts, others = Timeouts(Deadline(0.25, 1.0)), "bcdefgh"
    at = rounds_with(timeouts, dict.fromkeys(others, 0.01), rounds=8)
    at = rounds_with(timeouts, dict.fromkeys(others, 0.01) | {"b": None, "c": None}, rounds=MISSED, at=at)
    timeouts.begin(at, 1.0)
    assert not timeouts.out_of_phase
    assert timeouts.until("b") - at < 1.0
    timeouts.missed("d")
    assert not timeouts.out_of_phase, "one honest peer may be late"
    timeouts.missed("e")
    assert timeouts.out_of_phase
    assert timeouts.until("b") == timeouts.until("d") == timeouts.until("f") == timeouts.expires
    timeouts.answered("d", at + 0.01)
    assert timeouts.until("b") - at < 1.0


def test_a_node_that_has_run_ahead_of_all_but_as_many_as_may_lie_waits_until_others_come():
    """They do rounds meanwhile, at their own pace; with a learned deadline it would stay as many rounds ahead for good."""
    rounds = Rounds(Timeouts(Deadline(0.25, 10.0)))
    for peer in "bcdefg":
        rounds.timeouts.begin(0.0)
        rounds.timeouts.answered(peer, 0.1)
        rounds.progress.record(peer, 5)
    for peer in "bcd":
        rounds.timeouts.missed(peer)
    rounds.progress.record("g", 9)
    rounds.open(9, {"b": 0.5}, b"view", 100.0)
    assert rounds.ahead, "one that claims to be as far may lie"
    assert rounds.until() == {"b": 110.0}
    rounds.progress.record("f", 9)
    assert not rounds.ahead
    assert rounds.until()["b"] < 101.0
    rounds.progress.rounds["f"] = 5
    for peer in "c":
        rounds.timeouts.answered(peer, 100.1)
    assert rounds.until()["b"] < 101.0, "as many as may lie are late: this node is where the others are"


def test_a_peer_that_is_gone_begins_with_a_clean_slate():
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(10.0, steps_s=3.0)
    timeouts.resolve("b", "timeout", 17.0)
    timeouts.overtaken()
    assert timeouts.impatient("b")
    timeouts.forget("b")
    assert timeouts.until("b") == 17.0


def rounds_with(timeouts, waits, *, rounds=1, lag_s=1.0, at=0.0):
    """So many rounds in which peers answer after these times, in order; None: not at all. -> when the last has ended"""
    for _ in range(rounds):
        timeouts.begin(at, lag_s)
        for peer, wait in sorted(waits.items(), key=lambda it: it[1] or 9.0):
            if wait is None or at + wait >= timeouts.until(peer):
                timeouts.resolve(peer, "timeout", timeouts.until(peer))
            else:
                timeouts.resolve(peer, "committed", at + wait)
        at += 10.0
    return at


QUICK = {"b": 0.01, "c": 0.01, "d": 0.02}


def test_whom_this_node_waited_for_while_others_went_on_is_given_what_is_usual_and_nobody_else():
    timeouts = Timeouts(Deadline(0.25, 1.0))
    at = rounds_with(timeouts, QUICK | {"slow": 0.6}, rounds=8)
    assert timeouts.until("slow") == timeouts.until("b"), "slow to all is waited for"
    timeouts.overtaken()
    timeouts.begin(at, 1.0)
    assert timeouts.until("slow") - at == FELT / 2.0
    assert timeouts.until("b") - at == pytest.approx(2.25)


def test_a_peer_behind_a_relay_that_lost_patience_is_given_the_time_that_its_exchanges_take():
    """Twice those of others; else it would miss every link from then on."""
    timeouts = Timeouts(Deadline(0.5, 1.0), silent=lambda peer: peer == "gone")
    at = rounds_with(timeouts, dict.fromkeys("bcd", 0.12) | {"far": 0.24}, rounds=8, lag_s=0.03)
    at = rounds_with(timeouts, dict.fromkeys("bcd", 0.12) | {"far": None}, rounds=MISSED, lag_s=0.03, at=at)
    timeouts.begin(at, 0.03)
    assert timeouts.impatient("far")
    assert timeouts.until("far") - at == pytest.approx(4 * 0.12)
    assert timeouts.until("gone") - at == pytest.approx(2 * 0.12), "one that answers no probe is not at work"


def test_a_peer_that_was_gone_lately_is_given_what_is_usual_and_nothing_is_held_against_it():
    gone = {"flaps"}
    timeouts = Timeouts(Deadline(0.25, 1.0), lately_gone=gone.__contains__)
    at = rounds_with(timeouts, QUICK | {"flaps": 0.01}, rounds=8)
    at = rounds_with(timeouts, QUICK | {"flaps": None}, rounds=2 * MISSED, at=at)
    timeouts.begin(at, 1.0)
    assert timeouts.impatient("flaps")
    assert timeouts.until("flaps") - at == pytest.approx(FELT / 2.0)
    assert timeouts.until("b") - at > 2.0
    gone.clear()
    assert not timeouts.impatient("flaps"), "links at which it had no patience to lose are not counted"
    assert timeouts.until("flaps") - at > 1.0


def test_where_this_node_is_out_of_phase_who_was_gone_is_waited_for_like_others():
    timeouts = Timeouts(Deadline(0.25, 1.0), lately_gone=lambda peer: peer == "b")
    at = rounds_with(timeouts, QUICK, rounds=8)
    at = rounds_with(timeouts, dict.fromkeys(QUICK), at=at)
    timeouts.begin(at, 1.0)
    assert timeouts.out_of_phase
    assert not timeouts.impatient("b")


def test_patience_comes_back_after_some_rounds_and_after_more_each_time():
    timeouts, lost = Timeouts(Deadline(0.25, 1.0)), []
    at = rounds_with(timeouts, QUICK, rounds=8)
    for _ in range(4):
        at = rounds_with(timeouts, QUICK | {"slow": 0.6}, rounds=2, at=at)
        timeouts.overtaken()
        rounds = 0
        while timeouts.impatient("slow"):
            at = rounds_with(timeouts, QUICK | {"slow": 0.6}, at=at)
            rounds += 1
        lost.append(rounds)
    assert lost == [WITHDRAWN_ROUNDS * 2**each for each in range(4)]


def test_nobody_loses_it_where_all_are_as_slow_or_nobody_was_waited_for():
    for waits in (QUICK, dict.fromkeys(QUICK, 0.6)):
        timeouts = Timeouts(Deadline(0.25, 1.0))
        rounds_with(timeouts, waits, rounds=8)
        timeouts.overtaken()
        assert not any(map(timeouts.impatient, waits))


def test_who_lets_links_in_a_row_expire_is_given_what_is_usual_and_now_and_then_all_of_it_again():
    timeouts, whole = Timeouts(Deadline(0.25, 1.0)), []
    at = rounds_with(timeouts, QUICK, rounds=8)
    for number in range(MISSED + 3 * WITHDRAWN_ROUNDS):
        timeouts.begin(at, 1.0)
        for peer in QUICK:
            timeouts.resolve(peer, "committed", at + 0.01)
        wait_s = timeouts.until("silent") - at
        assert wait_s > 1.0 or wait_s == pytest.approx(FELT / 2.0)
        assert timeouts.until("b") - at > 2.0
        if wait_s > 1.0:
            whole.append(number)
        timeouts.resolve("silent", "timeout", at + wait_s)
        at += 10.0
    first = MISSED - 1
    assert whole == [*range(MISSED), first + WITHDRAWN_ROUNDS, first + 3 * WITHDRAWN_ROUNDS]


def test_links_that_expire_now_and_then_cost_a_peer_nothing():
    timeouts = Timeouts(Deadline(0.25, 1.0))
    at = rounds_with(timeouts, QUICK, rounds=8)
    for _ in range(5):
        at = rounds_with(timeouts, QUICK | {"slow": None}, rounds=MISSED - 1, at=at)
        at = rounds_with(timeouts, QUICK | {"slow": 0.6}, at=at)
        assert not timeouts.impatient("slow")


def test_who_came_after_it_was_given_up_is_given_that_time_and_a_round_more_the_next_time():
    """A peer behind a relay is late by as much each time; answers that were cut off would teach nothing of it."""
    timeouts = Timeouts(Deadline(0.25, 1.0))
    at = rounds_with(timeouts, QUICK, rounds=8, lag_s=0.1)
    at = rounds_with(timeouts, QUICK | {"far": None}, lag_s=0.1, at=at)
    timeouts.came("far", at - 10.0 + 0.6)
    timeouts.begin(at, 0.1)
    assert timeouts.until("far") - at == pytest.approx(0.6 + 0.1)
    assert timeouts.until("b") - at == pytest.approx(0.25 + 2 * 0.1)
    timeouts.resolve("far", "committed", at + 0.65)
    timeouts.begin(at, 0.1)
    assert timeouts.until("far") - at == pytest.approx(0.65 + 0.1), "as it does need it"
    for _ in range(9):
        timeouts.resolve("far", "committed", at + 0.1)
        timeouts.begin(at, 0.1)
    assert timeouts.until("far") == timeouts.until("b"), "it is in time again"


def test_how_much_later_a_peer_may_come_is_bounded_and_less_for_whom_nobody_has_patience():
    """Twice what others are given; who comes later than that, or never, is given nothing more, nor is one that answers no probe."""
    timeouts = Timeouts(Deadline(0.25, 1.0), silent=lambda peer: peer == "gone")
    given_s, missing = 0.25 + 2 * 0.1, {"far": None, "farther": None, "never": None, "gone": None}
    at = rounds_with(timeouts, QUICK, rounds=8, lag_s=0.1)
    at = rounds_with(timeouts, QUICK | missing, lag_s=0.1, at=at)
    for peer, late_s in {"far": 0.88, "farther": 0.92, "gone": 0.8, "b": 0.5}.items():
        timeouts.came(peer, at - 10.0 + late_s)
    for peer in "efghij":  # who are in time, so that those who were not are as few as may lie
        timeouts.answered(peer, at - 10.0 + 0.01)
    timeouts.begin(at, 0.1)
    assert timeouts.until("far") - at == pytest.approx(FAR * given_s)
    assert timeouts.until("farther") == timeouts.until("never") == pytest.approx(at + given_s - 0.1)
    assert timeouts.until("gone") - at < 0.1
    assert timeouts.until("b") - at == pytest.approx(given_s), "it was in time"
    timeouts.missed("far")
    timeouts.missed("far")
    timeouts.missed("far")
    assert timeouts.impatient("far")
    assert timeouts.until("far") - at == pytest.approx(FAR * timeouts.usual_s("far"))


@pytest.mark.parametrize("then", [lambda it: it.answered("b", 0.2), lambda it: it.forget("b")])
def test_what_comes_after_a_peer_was_in_time_or_was_gone_says_nothing(then):
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.begin(0.0)
    timeouts.resolve("b", "timeout", 0.1)
    then(timeouts)
    timeouts.came("b", 1.5)
    assert timeouts.until("b") == 1.0


def test_the_first_link_that_a_peer_comes_too_late_for_is_none_that_it_let_expire():
    timeouts = Timeouts(Deadline(0.25, 1.0))
    at = rounds_with(timeouts, QUICK, rounds=8, lag_s=0.1)
    for number in range(2 * MISSED - 1):
        assert not timeouts.impatient("far"), number
        at = rounds_with(timeouts, QUICK | {"far": None}, lag_s=0.1, at=at)
        if number >= MISSED - 2:
            timeouts.came("far", at - 10.0 + 0.8)
    assert timeouts.impatient("far"), "it was given what it needed, and did not come in it"
    timeouts.forget("far")
    timeouts.begin(at, 0.1)
    assert timeouts.until("far") == timeouts.until("b")
    timeouts.came("far", at + 0.8)
    assert timeouts.until("far") == timeouts.until("b"), "of whom nothing is known"


def test_a_peer_that_is_gone_has_missed_nothing():
    timeouts = Timeouts(Deadline(1.0, 1.0))
    for _ in range(MISSED - 1):
        timeouts.missed("b")
    timeouts.forget("b")
    timeouts.missed("b")
    assert not timeouts.impatient("b")


def test_each_link_of_a_round_has_its_own_deadline():
    rounds = Rounds(Timeouts(Deadline(1.0, 1.0)))
    rounds.timeouts.missed("b")
    rounds.open(0, {"b": 0.5, "c": 0.5}, b"view", 0.0, steps_s=2.0)
    assert rounds.tick(2.9) == ()
    assert rounds.tick(3.0) == ("b",)
    assert rounds.waiting == ("c",)
    assert rounds.tick(5.0) == ("c",)


def test_a_peer_that_reports_a_later_round_has_passed_ours():
    rounds = Rounds(Timeouts(Deadline(1.0, 1.0)))
    rounds.open(4, {"b": 0.5}, b"view", 0.0)
    rounds.progress.record("b", 4)
    assert not rounds.passed("b")
    rounds.progress.record("b", 5)
    assert rounds.passed("b")


def test_a_payload_that_takes_longer_than_the_bound_lengthens_the_deadline_and_is_not_repeated_while_under_way():
    timeouts = Timeouts(Deadline(0.1, 1.0))
    timeouts.transfers.observe("a", 0.2)
    timeouts.begin(0.0)
    assert (timeouts.stretch, timeouts.expires) == (1.0, 1.0)
    for _ in range(9):
        timeouts.transfers.observe("a", 3.0)
    timeouts.begin(10.0)
    assert timeouts.stretch == pytest.approx(WHOLE * 3.0)
    assert timeouts.expires == pytest.approx(10.0 + WHOLE * 3.0)
    assert timeouts.retry_s("a") >= UNDER_WAY * 3.0
    timeouts.forget("a")
    assert timeouts.stretch == 1.0


@given(st.permutations([("a", 0.1), ("b", 0.2), ("c", 0.0), ("slow", 1e6), ("slower", 1e9)]), st.integers(1, 4))
def test_fewer_than_half_of_the_peers_cannot_lengthen_it_and_nobody_beyond_a_bound(sent, times):
    timeouts = Timeouts(Deadline(0.1, 1.0))
    for peer, seconds in sent * times:
        timeouts.transfers.observe(peer, seconds)
    assert timeouts.stretch == 1.0
    for number in range(20):
        timeouts.transfers.observe(f"more{number}", 1e6)
    assert timeouts.stretch == STRETCH
    assert len(timeouts.transfers._sent) == RECENT


def test_a_peer_that_answers_no_probe_is_given_what_is_usual_and_patience_again_when_it_is_heard():
    silent = set()
    timeouts = Timeouts(Deadline(0.25, 10.0), silent=silent.__contains__)
    for _ in range(6):
        timeouts.begin(0.0, 2.0)
        timeouts.resolve("a", "committed", 0.3)
    timeouts.begin(100.0, 2.0)
    patient = timeouts.until("b")
    silent.add("b")
    assert timeouts.until("b") == pytest.approx(100.0 + timeouts.usual_s("b"))
    assert timeouts.usual_s("b") < HASTE * 0.3
    assert timeouts.until("a") == patient > 104.0
    silent.clear()
    assert timeouts.until("b") == patient


def test_a_silent_peer_still_has_what_payloads_take_as_its_answer_may_wait_behind_one():
    timeouts = Timeouts(Deadline(0.25, 10.0), silent=lambda _peer: True)
    for _ in range(6):
        timeouts.begin(0.0, 2.0)
        timeouts.resolve("a", "committed", 0.3)
    timeouts.transfers.observe("a", 0.6)
    timeouts.begin(100.0, 2.0)
    assert timeouts.until("b") == pytest.approx(100.0 + WHOLE * 0.6)


def test_who_is_waited_for_when_others_have_gone_on_is_given_the_shortest_deadline_or_what_is_usual_and_the_time_of_a_round():
    """A deadline learned from late answers is longer than the others': they would give this node up while it waits.

    What is usual alone may be milliseconds, and a process that lost the processor for longer would be given up.
    """
    timeouts = Timeouts(Deadline(0.25, 10.0))
    timeouts.resolve("a", "committed", 0.01)
    timeouts.begin(100.0, 0.02)
    assert timeouts.until("b", behind=True) == pytest.approx(100.0 + 0.25 + 0.02)
    timeouts.resolve("a", "committed", 100.3)
    timeouts.resolve("a", "committed", 100.3)
    timeouts.begin(100.0, 2.0)
    assert timeouts.until("b") == 100.0 + 10.0 + 2 * 2.0
    assert timeouts.until("b", behind=True) == pytest.approx(100.0 + HASTE * 0.3 + 2.0)
    timeouts.transfers.observe("a", 0.6)
    assert timeouts.until("b", behind=True) == pytest.approx(100.0 + WHOLE * 0.6 + 2.0)


def test_others_that_have_gone_on_give_nobody_more_time():
    timeouts = Timeouts(Deadline(0.25, 10.0), silent=lambda peer: peer == "gone")
    rounds_with(timeouts, QUICK, rounds=8)
    timeouts.begin(100.0, 0.0)
    for peer in (*QUICK, "gone"):
        assert timeouts.until(peer, behind=True) <= timeouts.until(peer)


def test_exchanges_get_the_time_that_this_nodes_engine_takes_to_make_and_read_them():
    """Else a local step of a third of a slot is enough for no visit to be in time, ever."""
    timeouts = Timeouts(Deadline(1.0, 1.0))
    assert timeouts.longest_s == 1.0
    for seconds in (0.5, 0.5, 100.0):
        timeouts.calls.observe(seconds)
    assert timeouts.longest_s == 2 * CALLS * 0.5
    timeouts.begin(0.0)
    assert timeouts.until("a") == timeouts.longest_s
    assert timeouts.retry_s("a") >= CALLS * 0.5, "what an engine is at work on is not sent again"
    for _ in range(4):
        timeouts.calls.observe(0.01)
    assert timeouts.longest_s == 1.0


def test_what_payloads_take_is_what_the_longest_takes_whoever_got_it():
    """Of two peers one may be sent requests and the other responses, a quarter as long."""
    timeouts = Timeouts(Deadline(1.0, 1.0))
    timeouts.transfers.observe("answered", 0.125, 250_000)
    timeouts.transfers.observe("asked", 0.5, 1_000_000)
    assert timeouts.longest_s == WHOLE * 0.5
    timeouts.transfers.observe("slow to read", 50.0, 1_000_000)
    assert timeouts.longest_s == WHOLE * 0.5, "one of three changes nothing"
