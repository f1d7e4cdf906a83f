"""The detector's timeouts: for distant members, while the node suspects itself, and by the number of accusers."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.events import Suspected
from starling.gossip.membership.local_health import MAX_GIVEN_UP, MOST, LocalHealth
from starling.gossip.membership.suspicion import ENOUGH, LONE, Suspicions, share
from starling.gossip.wire import schema as wire
from tests.harness.detectors import TIMING, detector, quiet, record, sent

SECONDS = st.floats(0.0, 1e6)
EVENTS = st.one_of(
    st.tuples(st.just("acknowledged"), st.sampled_from("ab"), SECONDS, st.booleans()),
    st.tuples(st.just("failed"), st.sampled_from("ab"), st.booleans()),
    st.tuples(st.just("late"), st.sampled_from("ab"), SECONDS),
    st.tuples(st.just("lagged"), SECONDS),
)


@given(st.lists(EVENTS, max_size=40))
def test_a_wait_is_always_between_one_and_nine_timeouts(events):
    health = LocalHealth(0.5)
    for nonce, event in enumerate(events):
        match event:
            case ("acknowledged", peer, trip_s, in_time):
                health.acknowledged(peer, trip_s, in_time=in_time)
            case ("failed", peer, silence):
                health.failed(nonce, peer, 0.0, silence=silence)
            case ("late", peer, now):
                health.late(nonce - 1, peer, now)
            case ("lagged", lag_s):
                health.lagged(lag_s)
        assert 0 <= health.doubt < MOST
        for peer in "abc":
            assert 0.5 * (1 + health.doubt) <= health.wait_s(peer) <= 0.5 * MOST
    health.keep("b")
    assert health.stretch("a") == 1 + health.doubt


@given(st.lists(st.floats(0.001, 4.0), min_size=9, max_size=16), st.lists(st.floats(5.0, 1e6), max_size=4))
def test_a_wait_exceeds_most_round_trips_and_ignores_a_few_long_ones(trips, outliers):
    health = LocalHealth(0.5)
    for trip in (*outliers, *trips):
        health.acknowledged("a", trip, in_time=True)
    assert health.wait_s("a") >= min(sorted(trips)[len(trips) // 2 - 2], 4.5)
    assert health.wait_s("a") <= max(0.5, 5 * max(trips))


def test_a_late_round_trip_counts_once_and_only_from_the_member_itself():
    health = LocalHealth(0.5)
    health.failed(7, "a", 10.0, silence=False)
    health.late(7, "b", 11.0)
    assert health.stretch("a") == health.stretch("b") == 1.0
    health.late(7, "a", 11.0)
    assert health.wait_s("a") == pytest.approx(1.0 + 4 * 0.5)
    for nonce in range(2 * MAX_GIVEN_UP):
        health.failed(nonce, "a", 0.0, silence=False)
    assert health.late(MAX_GIVEN_UP - 1, "a", 1.0) is None, "forgotten, as the oldest are"
    assert health.late(MAX_GIVEN_UP, "a", 1.0) == 1.0


def test_local_health_worsens_by_silence_and_lag_and_recovers_by_timely_answers():
    health = LocalHealth(0.5)
    health.failed(1, "a", 0.0, silence=False)
    assert (health.doubt, health.lagged(0.2)) == (0, False)
    health.failed(2, "a", 0.0, silence=True)
    health.failed(3, "a", 0.0, silence=True)
    assert (health.doubt, health.lagged(0.6)) == (2, True)
    assert health.doubt == 2
    health.lagged(1.6)
    assert health.doubt == 4
    health.acknowledged("a", 0.1, in_time=False)
    assert health.doubt == 4
    health.acknowledged("a", 0.1, in_time=True)
    assert health.doubt == 3


@given(st.integers(1, 50), st.integers(1, 5000))
def test_more_accusers_shorten_a_suspects_time_down_to_what_it_takes_without_them(accusers, n):
    assert 1.0 <= share(accusers + 1, n) <= share(accusers, n) <= LONE
    assert share(accusers, 2) == 1.0, "there is nobody else to accuse"
    assert share(ENOUGH + 1, n) == 1.0
    assert share(1, n) == (LONE if n > 2 else 1.0)
    assert n <= 2 or share(min(ENOUGH, n - 2), n) > 1.0, "one fewer than enough"


def test_an_accuser_counts_once():
    suspicions = Suspicions()
    for _ in range(9):
        suspicions.accuse("a", "liar")
    assert suspicions.share("a", 100) == LONE
    for each in range(100):
        suspicions.accuse("a", f"n{each}")
    assert suspicions.share("a", 100) == 1.0
    assert sum(suspicions.by("a", f"n{each}") for each in range(100)) < 10
    suspicions.keep({})
    assert suspicions.share("a", 100) == LONE


def knowing(*others, met=True):
    core = detector("me")
    core.receive("a", wire.Sync(tuple(record(peer) for peer in others)), 0.0)
    core.last_frame.update(dict.fromkeys(others if met else (), -inf))
    for peer in others if met else ():
        core.view.introductions.meet(peer)
    quiet(core)
    return core


def accused_by(core, *accusers):
    """Let `p` be silent to this node and to this many others; return when it is declared dead."""
    core.connection_lost("p", 1.0)
    told, now = [], 1.0
    while now < 60.0:
        if now == 1.0:
            out = core.tick(now)
            for accuser in accusers:
                out += core.receive(accuser, wire.Spread((), (wire.Rumor("p", 1, 0, "suspect", accuser),)), now)
        else:
            core.frame_seen("a", now)
            out = core.tick(now)
        told += [now for _, spread in sent(out, wire.Spread) if spread.rumors]
        if core.member_list.members["p"].status == "dead":
            return now, told
        now = max(core.deadline, now + 0.01)
    return inf, told


def test_more_accusers_shorten_a_suspects_time_and_rumors_are_forwarded_after_a_failed_probe():
    core = knowing("a", "b", "c", "d", "p")
    (alone, told), wait = accused_by(core), TIMING.timeout_s
    assert alone == pytest.approx(1.0 + 3 * wait + LONE * TIMING.suspicion_s, abs=wait)
    assert told[0] == pytest.approx(1.0 + 3 * wait)
    few, _ = accused_by(knowing("a", "b", "c", "d", "p"), "a")
    enough, told = accused_by(knowing("a", "b", "c", "d", "p"), "a", "b", "c")
    assert alone > few > enough
    assert enough == pytest.approx(1.0 + TIMING.suspicion_s, abs=wait)
    assert told[0] == pytest.approx(1.0 + wait, abs=0.02), "not before our own probe of it had its time"


def test_an_unmet_suspect_gets_no_more_time_than_others_accused_by_as_many():
    died_at, _ = accused_by(knowing("a", "b", "c", "d", "p", met=False))
    assert died_at == pytest.approx(1.0 + 3 * TIMING.timeout_s + TIMING.suspicion_s, abs=TIMING.timeout_s)


def test_repeated_accusations_of_one_member_do_not_hasten_a_death():
    assert accused_by(knowing("a", "b", "c", "d", "p"), *["a"] * 9)[0] == accused_by(knowing("a", "b", "c", "d", "p"), "a")[0]


def test_a_suspended_node_reads_its_messages_before_suspecting_members():
    core = knowing("a", "b")
    ((_, probe),) = sent(core.connection_lost("a", 0.0), wire.Probe)
    core.receive("b", wire.Probe(1, core.member_list.digest, 0.0), 6.0)  # the first of the waiting messages
    assert core.doubt == MOST - 1
    assert core.deadline >= 6.0 + MOST * TIMING.timeout_s, "the probe is open still"
    core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), 6.01)
    assert core.doubt == MOST - 2


def test_a_distant_member_gets_a_longer_timeout():
    core, now = knowing("a", "b"), 0.0
    for _ in range(3):
        ((_, probe), *_) = sent(core.connection_lost("a", now), wire.Probe)
        core.tick(now + TIMING.timeout_s)
        core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), now + 0.6)
        now += 1.0
    core.connection_lost("a", now)
    assert core.deadline > now + 0.6
    core.connection_lost("b", now)
    assert core.deadline == now + TIMING.timeout_s, "others are not waited for longer"


def test_a_node_to_which_all_are_silent_suspects_itself_first():
    core = knowing("a", "b", "c", "d")
    for peer in "ab":
        core.connection_lost(peer, 1.0)
    while core.deadline < 2.6:
        core.tick(core.deadline)
    assert core.doubt == 2
    assert core.member_list.members["a"].status == "suspect"
    assert [peer for peer in "cd" if Suspected(peer) in core.tick(2.6)] == []
