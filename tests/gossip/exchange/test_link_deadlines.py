"""How long each peer is waited for, as links end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.estimates import TRANSFER_PEERS, USUAL, Deadline
from starling.gossip.exchange.lateness import MIN_DELAY, MISSED_LINKS, WITHDRAWN_ROUNDS
from starling.gossip.exchange.link_deadlines import (
    ENGINE_CALLS,
    EXCHANGE_PAYLOADS,
    MAX_STRETCH,
    MAX_UNLINKED_ROUNDS,
    RETRY_PAYLOADS,
    LinkDeadlines,
)
from starling.gossip.exchange.pace import Rounds
from starling.gossip.exchange.wait_rules import MAX_FACTOR


def test_a_peer_at_work_is_waited_for_longer_than_one_that_was_late():
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    link_deadlines.begin(10.0, steps_s=3.0)
    assert link_deadlines.until("b") == 17.0
    link_deadlines.resolve("b", "timeout", 0.0)
    assert link_deadlines.until("b") == 14.0
    assert link_deadlines.until("c") == link_deadlines.expires == 17.0
    link_deadlines.resolve("b", "committed", 12.0)
    assert link_deadlines.until("b") == 17.0, "in time once is in time again"


def test_a_peer_that_waited_for_a_straggler_gets_time_for_its_own_exchange():
    """Over a long line an exchange takes longer than a round's local steps."""
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    link_deadlines.begin(10.0, steps_s=3.0, exchange_s=2.0)
    assert link_deadlines.until("b") == 21.0
    assert link_deadlines.solicit_s == pytest.approx(7.0 / 6), "which carries nothing, and need not wait so long"
    link_deadlines.resolve("b", "timeout", 0.0)
    assert link_deadlines.until("b") == 16.0


def test_after_solo_rounds_the_next_peer_gets_twice_their_time():
    """It came early because it had nobody to wait for. A silent peer, or one whose links expired, is busy with its own rounds."""
    silent = set()
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0), silent=lambda peer: peer in silent)
    at = rounds_with(link_deadlines, dict.fromkeys("bcdef", 0.01), rounds=8)
    given = {}
    for alone in (0, 3):
        link_deadlines.begin(at, 1.0, 0.5, alone)
        silent.clear()
        given[alone] = link_deadlines.until("b") - at
        silent.add("b")
        given[alone, "silent"] = link_deadlines.until("b") - at
    assert given[3] == pytest.approx(given[0] + 3 * 2 * 1.5)
    assert given[3, "silent"] == pytest.approx(given[0, "silent"] + 3 * 2 * 1.5)
    assert given[0, "silent"] < 1.0 < given[0]
    link_deadlines.begin(at, 1.0, 0.5, unlinked=100_000)
    assert link_deadlines.until("c") - at == pytest.approx(given[0] + MAX_UNLINKED_ROUNDS * 2 * 1.5), "as of who was all alone for a day"


def test_a_missed_exchange_after_solo_rounds_is_not_blamed():
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0))
    at = rounds_with(link_deadlines, dict.fromkeys("bcdef", 0.01), rounds=8)
    for _ in range(2 * MISSED_LINKS):
        link_deadlines.begin(at, 1.0, unlinked=3)
        link_deadlines.resolve("b", "timeout", link_deadlines.until("b"))
        assert not link_deadlines.unextended("b")


def test_a_peer_that_delayed_this_node_after_solo_rounds_gets_no_second_extension():
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0))
    at = rounds_with(link_deadlines, dict.fromkeys("bcdef", 0.01), rounds=8)
    link_deadlines.begin(at, 1.0, unlinked=3)
    link_deadlines.resolve("c", "committed", at + 5.0)
    link_deadlines.overtaken()
    assert not link_deadlines.unextended("c"), "this node came too early by more"
    link_deadlines.begin(at, 1.0, unlinked=3)
    link_deadlines.resolve("c", "committed", at + 8.0)
    link_deadlines.overtaken()
    link_deadlines.begin(at, 1.0, unlinked=3)
    assert link_deadlines.until("c") - at < 1.0


def test_exchange_seconds_are_learned_from_quick_answers_of_several_peers():
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0))
    assert link_deadlines.exchange_s == 0.0
    link_deadlines.begin(0.0)
    for peer, waits in {"far": (0.9, 0.8), "b": (0.3, 0.2, 4.0), "c": (0.1, 0.5)}.items():
        for wait_s in waits:
            link_deadlines.resolve(peer, "committed", wait_s)
    assert link_deadlines.exchange_s == 0.2
    link_deadlines.resolve("b", "timeout", 0.0)
    assert link_deadlines.exchange_s == 0.2, "a peer that did not come says nothing of it"
    rounds = Rounds(link_deadlines)
    rounds.open(0, {"d": 0.5}, b"view", 50.0, steps_s=1.0)
    assert link_deadlines.expires == pytest.approx(50.0 + link_deadlines.deadline.wait_s() + 2.0 * 1.2)


def test_a_node_that_most_peers_do_not_wait_for_waits_as_for_punctual_peers():
    """It has run ahead: hurrying on it would meet nobody in later rounds either. A possible number of liars changes nothing."""
    link_deadlines, others = LinkDeadlines(Deadline(0.25, 1.0)), "bcdefgh"
    at = rounds_with(link_deadlines, dict.fromkeys(others, 0.01), rounds=8)
    at = rounds_with(link_deadlines, dict.fromkeys(others, 0.01) | {"b": None, "c": None}, rounds=MISSED_LINKS, at=at)
    link_deadlines.begin(at, 1.0)
    assert not link_deadlines.out_of_phase
    assert link_deadlines.until("b") - at < 1.0
    link_deadlines.resolve("d", "timeout", 0.0)
    assert not link_deadlines.out_of_phase, "one honest peer may be late"
    link_deadlines.resolve("e", "timeout", 0.0)
    assert link_deadlines.out_of_phase
    assert link_deadlines.until("b") == link_deadlines.until("d") == link_deadlines.until("f") == link_deadlines.expires
    link_deadlines.resolve("d", "committed", at + 0.01)
    assert link_deadlines.until("b") - at < 1.0


def test_a_node_far_ahead_of_all_honest_peers_waits_for_them():
    """The others do rounds meanwhile at their own pace; with a learned deadline it would stay ahead for ever."""
    rounds = Rounds(LinkDeadlines(Deadline(0.25, 10.0)))
    for peer in "bcdefg":
        rounds.link_deadlines.begin(0.0)
        rounds.link_deadlines.resolve(peer, "committed", 0.1)
        rounds.progress.record(peer, 5)
    for peer in "bcd":
        rounds.link_deadlines.resolve(peer, "timeout", 0.0)
    rounds.progress.record("g", 9)
    rounds.open(9, {"b": 0.5}, b"view", 100.0)
    assert rounds.position == "ahead", "one that claims to be as far may lie"
    assert rounds.until() == {"b": 110.0}
    rounds.progress.record("f", 9)
    assert rounds.position == "level"
    assert rounds.until()["b"] < 101.0
    rounds.progress.rounds["f"] = 5
    for peer in "c":
        rounds.link_deadlines.resolve(peer, "committed", 100.1)
    assert rounds.until()["b"] < 101.0, "as many as may lie are late: this node is where the others are"


def test_a_departed_peer_s_record_is_cleared():
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    link_deadlines.begin(10.0, steps_s=3.0)
    link_deadlines.resolve("b", "timeout", 17.0)
    link_deadlines.overtaken()
    assert link_deadlines.unextended("b")
    link_deadlines.forget("b")
    assert link_deadlines.until("b") == 17.0


def rounds_with(link_deadlines, waits, *, rounds=1, lag_s=1.0, at=0.0):
    """Run this many rounds in which peers answer after these times, in order (None: not at all); return when the last one ended."""
    for _ in range(rounds):
        link_deadlines.begin(at, lag_s)
        for peer, wait in sorted(waits.items(), key=lambda it: it[1] or 9.0):
            if wait is None or at + wait >= link_deadlines.until(peer):
                link_deadlines.resolve(peer, "timeout", link_deadlines.until(peer))
            else:
                link_deadlines.resolve(peer, "committed", at + wait)
        at += 10.0
    return at


QUICK = {"b": 0.01, "c": 0.01, "d": 0.02}


def test_only_the_peer_this_node_waited_for_falls_back_to_the_usual_deadline():
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
    at = rounds_with(link_deadlines, QUICK | {"slow": 0.6}, rounds=8)
    assert link_deadlines.until("slow") == link_deadlines.until("b"), "slow to all is waited for"
    link_deadlines.overtaken()
    link_deadlines.begin(at, 1.0)
    assert link_deadlines.until("slow") - at == MIN_DELAY / 2.0
    assert link_deadlines.until("b") - at == pytest.approx(2.25)


def test_a_slow_relayed_peer_gets_the_time_of_its_exchanges():
    """Up to twice the others'; otherwise it would miss every link from then on."""
    link_deadlines = LinkDeadlines(Deadline(0.5, 1.0), silent=lambda peer: peer == "gone")
    at = rounds_with(link_deadlines, dict.fromkeys("bcd", 0.12) | {"far": 0.24}, rounds=8, lag_s=0.03)
    at = rounds_with(link_deadlines, dict.fromkeys("bcd", 0.12) | {"far": None}, rounds=MISSED_LINKS, lag_s=0.03, at=at)
    link_deadlines.begin(at, 0.03)
    assert link_deadlines.unextended("far")
    assert link_deadlines.until("far") - at == pytest.approx(4 * 0.12)
    assert link_deadlines.until("gone") - at == pytest.approx(2 * 0.12), "one that answers no probe is not at work"


def test_a_recently_absent_peer_gets_the_usual_deadline_without_blame():
    gone = {"flaps"}
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0), lately_gone=gone.__contains__)
    at = rounds_with(link_deadlines, QUICK | {"flaps": 0.01}, rounds=8)
    at = rounds_with(link_deadlines, QUICK | {"flaps": None}, rounds=2 * MISSED_LINKS, at=at)
    link_deadlines.begin(at, 1.0)
    assert link_deadlines.unextended("flaps")
    assert link_deadlines.until("flaps") - at == pytest.approx(MIN_DELAY / 2.0)
    assert link_deadlines.until("b") - at > 2.0
    gone.clear()
    assert not link_deadlines.unextended("flaps"), "links at which it had no patience to lose are not counted"
    assert link_deadlines.until("flaps") - at > 1.0


def test_an_out_of_phase_node_waits_for_returned_peers_like_others():
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0), lately_gone=lambda peer: peer == "b")
    at = rounds_with(link_deadlines, QUICK, rounds=8)
    at = rounds_with(link_deadlines, dict.fromkeys(QUICK), at=at)
    link_deadlines.begin(at, 1.0)
    assert link_deadlines.out_of_phase
    assert not link_deadlines.unextended("b")


def test_extended_deadlines_return_after_growing_numbers_of_rounds():
    link_deadlines, lost = LinkDeadlines(Deadline(0.25, 1.0)), []
    at = rounds_with(link_deadlines, QUICK, rounds=8)
    for _ in range(4):
        at = rounds_with(link_deadlines, QUICK | {"slow": 0.6}, rounds=2, at=at)
        link_deadlines.overtaken()
        rounds = 0
        while link_deadlines.unextended("slow"):
            at = rounds_with(link_deadlines, QUICK | {"slow": 0.6}, at=at)
            rounds += 1
        lost.append(rounds)
    assert lost == [WITHDRAWN_ROUNDS * 2**each for each in range(4)]


def test_extended_deadlines_stay_if_all_are_equally_slow_or_none_was_awaited():
    for waits in (QUICK, dict.fromkeys(QUICK, 0.6)):
        link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
        rounds_with(link_deadlines, waits, rounds=8)
        link_deadlines.overtaken()
        assert not any(map(link_deadlines.unextended, waits))


@pytest.mark.parametrize("outcome", ["timeout", "busy", "aborted"])
def test_a_peer_that_misses_several_exchanges_gets_the_usual_deadline_and_sometimes_the_full_one(outcome):
    """So does one that refuses in the last moment."""
    link_deadlines, whole = LinkDeadlines(Deadline(0.25, 1.0)), []
    at = rounds_with(link_deadlines, QUICK, rounds=8)
    for number in range(MISSED_LINKS + 3 * WITHDRAWN_ROUNDS):
        link_deadlines.begin(at, 1.0)
        for peer in QUICK:
            link_deadlines.resolve(peer, "committed", at + 0.01)
        wait_s = link_deadlines.until("silent") - at
        assert wait_s > 1.0 or wait_s == pytest.approx(MIN_DELAY / 2.0)
        assert link_deadlines.until("b") - at > 2.0
        if wait_s > 1.0:
            whole.append(number)
        link_deadlines.resolve("silent", outcome, at + wait_s)
        at += 10.0
    first = MISSED_LINKS - 1
    assert whole == [*range(MISSED_LINKS), first + WITHDRAWN_ROUNDS, first + 3 * WITHDRAWN_ROUNDS]


def test_refusals_without_delay_shorten_no_deadline():
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
    at = rounds_with(link_deadlines, QUICK, rounds=8)
    for _ in range(2 * MISSED_LINKS):
        link_deadlines.begin(at, 1.0)
        link_deadlines.resolve("refusing", "busy", at + 0.01)
        at += 10.0
    assert not link_deadlines.unextended("refusing")


def test_occasionally_expired_links_do_not_shorten_deadlines():
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
    at = rounds_with(link_deadlines, QUICK, rounds=8)
    for _ in range(5):
        at = rounds_with(link_deadlines, QUICK | {"slow": None}, rounds=MISSED_LINKS - 1, at=at)
        at = rounds_with(link_deadlines, QUICK | {"slow": 0.6}, at=at)
        assert not link_deadlines.unextended("slow")


def test_a_peer_that_came_too_late_gets_that_time_and_one_round_more_next_time():
    """A peer behind a relay is equally late each time; answers that were cut off would not show by how much."""
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
    at = rounds_with(link_deadlines, QUICK, rounds=8, lag_s=0.1)
    at = rounds_with(link_deadlines, QUICK | {"far": None}, lag_s=0.1, at=at)
    link_deadlines.came("far", at - 10.0 + 0.6)
    link_deadlines.begin(at, 0.1)
    assert link_deadlines.until("far") - at == pytest.approx(0.6 + 0.1)
    assert link_deadlines.until("b") - at == pytest.approx(0.25 + 2 * 0.1)
    link_deadlines.resolve("far", "committed", at + 0.65)
    link_deadlines.begin(at, 0.1)
    assert link_deadlines.until("far") - at == pytest.approx(0.65 + 0.1), "as it does need it"
    for _ in range(9):
        link_deadlines.resolve("far", "committed", at + 0.1)
        link_deadlines.begin(at, 0.1)
    assert link_deadlines.until("far") == link_deadlines.until("b"), "it is in time again"


def test_extensions_are_bounded_and_smaller_for_peers_without_an_extended_deadline():
    """At most twice the others'; a peer later than that, or that never comes or answers no probe, gets no extension."""
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0), silent=lambda peer: peer == "gone")
    given_s, missing = 0.25 + 2 * 0.1, {"far": None, "farther": None, "never": None, "gone": None}
    at = rounds_with(link_deadlines, QUICK, rounds=8, lag_s=0.1)
    at = rounds_with(link_deadlines, QUICK | missing, lag_s=0.1, at=at)
    for peer, late_s in {"far": 0.88, "farther": 0.92, "gone": 0.8, "b": 0.5}.items():
        link_deadlines.came(peer, at - 10.0 + late_s)
    for peer in "efghij":  # peers in time, so that the late ones are as few as may lie
        link_deadlines.resolve(peer, "committed", at - 10.0 + 0.01)
    link_deadlines.begin(at, 0.1)
    assert link_deadlines.until("far") - at == pytest.approx(MAX_FACTOR * given_s)
    assert link_deadlines.until("farther") == link_deadlines.until("never") == pytest.approx(at + given_s - 0.1)
    assert link_deadlines.until("gone") - at < 0.1
    assert link_deadlines.until("b") - at == pytest.approx(given_s), "it was in time"
    link_deadlines.resolve("far", "timeout", 0.0)
    link_deadlines.resolve("far", "timeout", 0.0)
    link_deadlines.resolve("far", "timeout", 0.0)
    assert link_deadlines.unextended("far")
    assert link_deadlines.until("far") - at == pytest.approx(MAX_FACTOR * link_deadlines.usual_s("far"))


@pytest.mark.parametrize("then", [lambda it: it.resolve("b", "committed", 0.2), lambda it: it.forget("b")])
def test_late_frames_of_punctual_or_absent_peers_have_no_effect(then):
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    link_deadlines.begin(0.0)
    link_deadlines.resolve("b", "timeout", 0.1)
    then(link_deadlines)
    link_deadlines.came("b", 1.5)
    assert link_deadlines.until("b") == 1.0


def test_the_first_late_link_does_not_count_as_expired():
    link_deadlines = LinkDeadlines(Deadline(0.25, 1.0))
    at = rounds_with(link_deadlines, QUICK, rounds=8, lag_s=0.1)
    for number in range(2 * MISSED_LINKS - 1):
        assert not link_deadlines.unextended("far"), number
        at = rounds_with(link_deadlines, QUICK | {"far": None}, lag_s=0.1, at=at)
        if number >= MISSED_LINKS - 2:
            link_deadlines.came("far", at - 10.0 + 0.8)
    assert link_deadlines.unextended("far"), "it was given what it needed, and did not come in it"
    link_deadlines.forget("far")
    link_deadlines.begin(at, 0.1)
    assert link_deadlines.until("far") == link_deadlines.until("b")
    link_deadlines.came("far", at + 0.8)
    assert link_deadlines.until("far") == link_deadlines.until("b"), "of whom nothing is known"


def test_a_departed_peer_has_missed_nothing():
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    for _ in range(MISSED_LINKS - 1):
        link_deadlines.resolve("b", "timeout", 0.0)
    link_deadlines.forget("b")
    link_deadlines.resolve("b", "timeout", 0.0)
    assert not link_deadlines.unextended("b")


def test_each_link_of_a_round_has_its_own_deadline():
    rounds = Rounds(LinkDeadlines(Deadline(1.0, 1.0)))
    rounds.link_deadlines.heard("b", 0.0)
    rounds.link_deadlines.resolve("b", "timeout", 0.0)
    rounds.open(0, {"b": 0.5, "c": 0.5}, b"view", 0.0, steps_s=2.0)
    assert rounds.tick(2.9) == ()
    assert rounds.tick(3.0) == ("b",)
    assert rounds.waiting == ("c",)
    assert rounds.tick(5.0) == ("c",)


def test_a_peer_that_reports_a_later_round_is_ahead():
    rounds = Rounds(LinkDeadlines(Deadline(1.0, 1.0)))
    rounds.open(4, {"b": 0.5}, b"view", 0.0)
    rounds.progress.record("b", 4)
    assert not rounds.passed("b")
    rounds.progress.record("b", 5)
    assert rounds.passed("b")


def test_long_payloads_extend_the_deadline_and_are_not_repeated_in_flight():
    link_deadlines = LinkDeadlines(Deadline(0.1, 1.0))
    link_deadlines.transfers.observe("a", 0.2)
    link_deadlines.begin(0.0)
    assert (link_deadlines.stretch, link_deadlines.expires) == (1.0, 1.0)
    for _ in range(9):
        link_deadlines.transfers.observe("a", 3.0)
    link_deadlines.begin(10.0)
    assert link_deadlines.stretch == pytest.approx(EXCHANGE_PAYLOADS * 3.0)
    assert link_deadlines.expires == pytest.approx(10.0 + EXCHANGE_PAYLOADS * 3.0)
    assert link_deadlines.retry_s("a") >= RETRY_PAYLOADS * 3.0
    link_deadlines.forget("a")
    assert link_deadlines.stretch == 1.0


@given(st.permutations([("a", 0.1), ("b", 0.2), ("c", 0.0), ("slow", 1e6), ("slower", 1e9)]), st.integers(1, 4))
def test_a_minority_cannot_extend_the_deadline_and_a_majority_only_within_a_bound(sent, times):
    link_deadlines = LinkDeadlines(Deadline(0.1, 1.0))
    for peer, seconds in sent * times:
        link_deadlines.transfers.observe(peer, seconds)
    assert link_deadlines.stretch == 1.0
    for number in range(20):
        link_deadlines.transfers.observe(f"more{number}", 1e6)
    assert link_deadlines.stretch == MAX_STRETCH
    for number in range(TRANSFER_PEERS // 2 + 1):
        link_deadlines.transfers.observe(f"quick{number}", 0.0)
    assert link_deadlines.stretch == 1.0, "only the last ones count"


def test_a_silent_peer_gets_the_usual_deadline_until_it_is_heard_again():
    silent = set()
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0), silent=silent.__contains__)
    for _ in range(6):
        link_deadlines.begin(0.0, 2.0)
        link_deadlines.resolve("a", "committed", 0.3)
    link_deadlines.begin(100.0, 2.0)
    patient = link_deadlines.until("b")
    silent.add("b")
    assert link_deadlines.until("b") == pytest.approx(100.0 + link_deadlines.usual_s("b"))
    assert link_deadlines.usual_s("b") < USUAL * 0.3
    assert link_deadlines.until("a") == patient > 104.0
    silent.clear()
    assert link_deadlines.until("b") == patient


def test_a_silent_peer_gets_the_time_of_payloads_that_may_precede_its_answer():
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0), silent=lambda _peer: True)
    for _ in range(6):
        link_deadlines.begin(0.0, 2.0)
        link_deadlines.resolve("a", "committed", 0.3)
    link_deadlines.transfers.observe("a", 0.6)
    link_deadlines.begin(100.0, 2.0)
    assert link_deadlines.until("b") == pytest.approx(100.0 + EXCHANGE_PAYLOADS * 0.6)


def test_a_peer_behind_the_others_gets_the_shortest_or_usual_deadline_plus_a_round():
    """A deadline learned from late answers exceeds the others', which would give this node up while it waits.

    The usual one alone may be milliseconds, and a briefly suspended process would be given up.
    """
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0))
    link_deadlines.resolve("a", "committed", 0.01)
    link_deadlines.begin(100.0, 0.02)
    assert link_deadlines.until("b", "behind") == pytest.approx(100.0 + 0.25 + 0.02)
    for answer_s in (0.2, 0.3, 0.6, 0.9):
        link_deadlines.begin(100.0, 2.0)
        assert link_deadlines.until("b", "behind") == 100.0 + 0.25 + 2.0, "fewer than five answers do not tell what is usual"
        link_deadlines.resolve("a", "committed", 100.0 + answer_s)
    link_deadlines.begin(100.0, 2.0)
    assert link_deadlines.until("b") > 104.0
    assert link_deadlines.until("b", "behind") == pytest.approx(100.0 + USUAL * 0.3 + 2.0)
    link_deadlines.transfers.observe("a", 0.6)
    link_deadlines.begin(100.0, 2.0)
    assert link_deadlines.until("b", "behind") == pytest.approx(100.0 + EXCHANGE_PAYLOADS * 0.6 + 2.0)


def test_peers_in_later_rounds_extend_no_deadline():
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0), silent=lambda peer: peer == "gone")
    rounds_with(link_deadlines, QUICK, rounds=8)
    link_deadlines.begin(100.0, 0.0)
    for peer in (*QUICK, "gone"):
        assert link_deadlines.until(peer, "behind") <= link_deadlines.until(peer)


def test_deadlines_include_the_time_of_this_node_s_engine():
    """Otherwise a local step of a third of a slot would make every visit late."""
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    assert link_deadlines.longest_s == 1.0
    for seconds in (0.5, 0.5, 100.0):
        link_deadlines.calls.observe(seconds)
    assert link_deadlines.longest_s == 2 * ENGINE_CALLS * 0.5
    link_deadlines.begin(0.0)
    assert link_deadlines.until("a") == link_deadlines.longest_s
    assert link_deadlines.retry_s("a") >= ENGINE_CALLS * 0.5, "what an engine is at work on is not sent again"
    for _ in range(4):
        link_deadlines.calls.observe(0.01)
    assert link_deadlines.longest_s == 1.0


def test_payload_seconds_are_the_longest_of_any_peer():
    """One of two peers may get requests and the other responses, a quarter as long."""
    link_deadlines = LinkDeadlines(Deadline(1.0, 1.0))
    link_deadlines.transfers.observe("answered", 0.125, 250_000)
    link_deadlines.transfers.observe("asked", 0.5, 1_000_000)
    assert link_deadlines.longest_s == EXCHANGE_PAYLOADS * 0.5
    link_deadlines.transfers.observe("slow to read", 50.0, 1_000_000)
    assert link_deadlines.longest_s == EXCHANGE_PAYLOADS * 0.5, "one of three changes nothing"


def missed_by(peer: str, *, rounds: int, heard: bool = True) -> tuple[LinkDeadlines, float]:
    """A peer that did not come for so many links in a row, in rounds 0, 1, …, of a second of local steps each. -> when the next begins

    `heard`: it sends messages of other rounds.
    """
    link_deadlines, at = LinkDeadlines(Deadline(0.25, 1.0)), 0.0
    for number in range(rounds):
        link_deadlines.begin(at, 1.0, round=number)
        if heard:
            link_deadlines.heard(peer, at)
        for other in QUICK:
            link_deadlines.resolve(other, "committed", at + 0.01)
        link_deadlines.resolve(peer, "timeout", link_deadlines.until(peer))
        at += 10.0
    return link_deadlines, at


def test_a_peer_that_owes_exchanges_in_a_row_gets_the_usual_deadline_until_it_comes_for_one():
    link_deadlines, at = missed_by("mute", rounds=MISSED_LINKS)
    for number in range(MISSED_LINKS, MISSED_LINKS + 4 * WITHDRAWN_ROUNDS):
        link_deadlines.begin(at, 1.0, round=number)
        link_deadlines.heard("mute", at)
        assert link_deadlines.until("mute") - at == pytest.approx(MIN_DELAY / 2.0), number
        link_deadlines.resolve("mute", "timeout", at + 1.0)
        at += 10.0
    link_deadlines.came("mute", at - 9.0, number - 1)
    link_deadlines.begin(at, 1.0, round=number + 1)
    assert link_deadlines.unextended("mute"), "a request of an earlier round is for no link of these"
    link_deadlines.came("mute", at - 8.0, number)
    link_deadlines.begin(at, 1.0, round=number + 1)
    assert not link_deadlines.unextended("mute"), "it is at work, and only late"
    assert link_deadlines.until("mute") - at > 1.0


def test_a_peer_that_owes_exchanges_in_a_row_comes_back_by_one_exchange():
    link_deadlines, at = missed_by("mute", rounds=2 * MISSED_LINKS)
    assert link_deadlines.unextended("mute")
    link_deadlines.resolve("mute", "committed", at - 10.0 + 0.01)
    for number in range(WITHDRAWN_ROUNDS):
        link_deadlines.begin(at + number, 1.0, round=2 * MISSED_LINKS + number)
    assert not link_deadlines.unextended("mute")


@pytest.mark.parametrize(("round", "needs_s"), [(MISSED_LINKS - 3, 0.25), (MISSED_LINKS - 2, 0.5)])
def test_a_request_of_an_earlier_round_does_not_lengthen_a_deadline(round, needs_s):
    link_deadlines, at = missed_by("far", rounds=MISSED_LINKS - 1)
    link_deadlines.came("far", at - 9.5, round)
    link_deadlines.begin(at, 1.0, round=MISSED_LINKS - 1)
    assert link_deadlines.until("far") - at == pytest.approx(needs_s + 1.0)


def test_a_peer_that_never_said_anything_is_given_two_exchanges_after_one_link_until_it_does():
    """One that is many times slower says something after its first deadline, and has all of it from then on."""
    link_deadlines, at = missed_by("mute", rounds=1, heard=False)
    link_deadlines.begin(at, 1.0, round=1)
    assert link_deadlines.until("mute") - at == pytest.approx(2.0 * 0.01)
    link_deadlines.heard("mute", at + 0.5)
    assert link_deadlines.until("mute") - at > 1.0


def test_a_peer_that_has_gone_mute_is_given_two_exchanges_after_three_links():
    link_deadlines, at = missed_by("mute", rounds=1)
    for number in range(1, 1 + MISSED_LINKS):
        link_deadlines.begin(at, 1.0, round=number)
        assert link_deadlines.until("mute") - at > 0.1, number
        assert not link_deadlines.mute_since()
        link_deadlines.resolve("mute", "timeout", link_deadlines.until("mute"))
        at += 10.0
    link_deadlines.begin(at, 1.0, round=number + 1)
    assert link_deadlines.until("mute") - at == pytest.approx(2.0 * 0.01)
    assert link_deadlines.mute_since() == {"mute": 10.0}
    link_deadlines.forget("mute")
    assert link_deadlines.until("mute") - at > 1.0
    assert not link_deadlines.mute_since()


def test_visits_and_pulls_do_not_wait_less_for_a_peer_that_says_nothing():
    """There a peer may have nothing to say: it answers a visit or a pull, and need not begin one."""
    link_deadlines, at = missed_by("mute", rounds=1, heard=False)
    link_deadlines.begin(at, 1.0)
    assert link_deadlines.until("mute") - at > 1.0


def test_the_first_answers_count_as_exchanges_of_the_shortest_deadline_at_most():
    """They were waited for by nodes that did not begin at once."""
    link_deadlines = LinkDeadlines(Deadline(0.25, 10.0))
    for answers in range(5):
        assert link_deadlines.exchange_s == (0.25 if answers else 0.0)
        link_deadlines.begin(0.0, 0.01)
        link_deadlines.resolve("a", "committed", 2.5)
    assert link_deadlines.exchange_s == 2.5
