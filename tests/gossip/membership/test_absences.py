"""A member that was absent does not count until it has been back for some time."""

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.limits import tolerable
from starling.gossip.membership.absences import PROBATION, Absences
from starling.gossip.wire import schema as wire
from tests.harness.detectors import TIMING, knowing, record, sent

MOST_S = 8 * TIMING.suspicion_s


def test_an_absence_counts_until_the_member_was_back_four_times_as_long():
    absences = Absences(most_s=10.0)
    absences.over("a", 1.0, now=100.0)
    absences.over("b", 60.0, now=100.0)
    assert absences.lately("a", 9, 100.0 + 0.99 * PROBATION)
    assert not absences.lately("a", 9, 100.0 + PROBATION)
    assert absences.lately("b", 9, 109.9)
    assert not absences.lately("b", 9, 110.0)
    assert not absences.lately("stranger", 9, 100.0)


def test_a_shorter_absence_does_not_replace_a_longer_one():
    absences = Absences(most_s=100.0)
    absences.over("a", 10.0, now=100.0)
    absences.over("a", 0.1, now=101.0)
    assert absences.lately("a", 9, 139.0)


@given(others=st.integers(1, 40), gone=st.integers(1, 40))
def test_if_more_peers_seem_absent_than_may_lie_this_node_was_absent(others, gone):
    absences = Absences(most_s=10.0)
    for number in range(gone):
        absences.over(str(number), 1.0, now=100.0)
    counts = gone <= tolerable(others)
    assert all(absences.lately(str(number), others, 101.0) == counts for number in range(gone))


def test_only_members_recently_away_are_remembered():
    absences = Absences(most_s=10.0)
    for peer, gone_s in {"gone": 2.0, "back": 1.0, "lately": 2.0}.items():
        absences.over(peer, gone_s, now=100.0)
    absences.keep(["back", "lately"], 105.0)
    assert absences.peers == {"lately"}


def test_a_silent_member_counts_as_recently_absent_until_it_was_back_long_enough():
    core = knowing("a", "b", "c")
    core.probe_now(["a"], 5.0, late=True)
    core.tick(5.0 + TIMING.timeout_s)
    assert not core.lately_gone("a", 5.5), "it is silent still"
    core.frame_seen("a", 6.0)
    assert core.lately_gone("a", 6.0 + 0.99 * PROBATION)
    assert not core.lately_gone("a", 6.0 + PROBATION)
    assert not core.lately_gone("b", 6.1)


def test_a_member_that_was_silent_for_long_counts_for_eight_times_the_time_of_a_suspicion():
    core = knowing("a", "b", "c")
    core.probe_now(["a"], 5.0, late=True)
    core.tick(5.0 + TIMING.timeout_s)
    core.frame_seen("a", 15.0)
    assert core.lately_gone("a", 15.0 + 0.99 * MOST_S)
    assert not core.lately_gone("a", 15.0 + MOST_S)


def test_late_answers_after_an_absence_do_not_raise_the_round_trip():
    """On an intermittent connection queued answers arrive late; these are no round trips to adapt to."""
    core = knowing("a", "b", "c")
    for trip_s in (0.01, 0.2, 0.24, 1.0, 2.0):
        core.prober.health.acknowledged("a", trip_s, in_time=trip_s < TIMING.timeout_s)
    assert core.prober.health.wait_s("a") > 2 * TIMING.timeout_s
    ((_, probe),) = sent(core.probe_now(["a"], 5.0, late=True), wire.Probe)
    core.tick(6.0)
    assert not core.silent("a"), "it is waited for still"
    core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), 6.0)
    assert core.lately_gone("a", 9.9)


def test_a_distant_member_is_not_declared_absent():
    core = knowing("a", "b", "c")
    for _ in range(5):
        core.prober.health.acknowledged("a", 0.6, in_time=False)
    ((_, probe),) = sent(core.probe_now(["a"], 5.0, late=True), wire.Probe)
    core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), 5.0 + 0.7)
    assert not core.lately_gone("a", 6.0)


def test_a_peer_declared_dead_starts_anew_when_it_returns():
    core = knowing("a", "b", "c")
    core.probe_now(["a"], 5.0, late=True)
    for quarter in range(20, 120):
        for other in "bc":
            core.frame_seen(other, quarter / 4)
        core.tick(quarter / 4)
    assert core.member_list.members["a"].status == "dead"
    core.receive("a", wire.Hello(record("a", version=1), core.member_list.digest, 0.0), 30.0)
    assert core.member_list.members["a"].status == "alive"
    assert not core.lately_gone("a", 30.1)
