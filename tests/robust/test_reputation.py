"""Fault scores: decay, thresholds, bans that end, and a bounded memory that forgets the cleanest first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust.reputation import HARD, OK, SOFT, WEIGHTS, Reputation

faults = st.lists(st.tuples(st.floats(0, 400), st.sampled_from(["late", "not_finite"])), max_size=40)


@given(faults=faults, silence=st.floats(0, 10_000), more=st.floats(0, 10_000))
@settings(max_examples=60)
def test_silence_never_raises_a_score_nor_worsens_a_verdict(faults, silence, more):
    """Peers that say nothing cost nothing: only faults count."""
    reputation, now = Reputation(), 0.0
    for wait, reason in faults:
        now += wait
        reputation.fault("p", reason, now)
    early, late = now + silence, now + silence + more
    assert reputation.score("p", late) <= reputation.score("p", early)
    order = ("ok", "quarantine", "ban")
    assert order.index(reputation.verdict("p", late).state) <= order.index(reputation.verdict("p", early).state)


@given(faults=faults)
@settings(max_examples=60)
def test_the_score_is_the_sum_of_the_halving_weights(faults):
    """The closed form Σ w·2^(−age/half-life), as long as no ban wipes it."""
    reputation, now, events = Reputation(half_life_s=50.0, quarantine=1e6, ban=1e6), 0.0, []
    for wait, reason in faults:
        now += wait
        events.append((now, WEIGHTS.get(reason, HARD)))
        reputation.fault("p", reason, now)
    expected = sum(weight * 0.5 ** ((now - at) / 50.0) for at, weight in events)
    assert reputation.score("p", now) == pytest.approx(expected)


def test_one_hard_fault_is_forgiven_two_are_quarantined_four_are_banned():
    """One bad frame may be a broken cable; a series is not."""
    reputation = Reputation()
    states = [reputation.fault("p", "frame_not_msgpack", float(second)).state for second in range(4)]
    assert states == ["ok", "quarantine", "quarantine", "ban"]


def test_a_peer_that_is_late_once_a_minute_stays_for_ever():
    """An honest volunteer on a slow line must never be driven out by soft faults."""
    reputation = Reputation()
    assert all(reputation.fault("p", "late", 60.0 * minute) == OK for minute in range(10_000))
    assert reputation.faults("p") == 10_000


def test_quarantines_and_bans_end_and_bans_grow():
    """Everybody gets another chance; who abuses it waits twice as long."""
    reputation = Reputation(ban=20.0, quarantine=15.0, ban_s=100.0)

    def offend(now: float) -> float:
        reputation.fault("p", "not_finite", now)
        verdict = reputation.fault("p", "not_finite", now)
        assert verdict.state == "ban"
        return verdict.until - now

    assert offend(0.0) == 100.0
    assert reputation.verdict("p", 99.0).state == "ban"
    assert reputation.verdict("p", 100.0) == OK
    assert reputation.score("p", 100.0) == 0.0
    assert offend(1000.0) == 200.0
    assert offend(2000.0) == 400.0


def test_what_arrives_during_a_ban_changes_nothing():
    """Frames sent before the ban are still under way: they must not lengthen it."""
    reputation = Reputation(quarantine=5.0, ban=10.0)
    ban = reputation.fault("p", "not_finite", 0.0)
    assert [reputation.fault("p", "not_finite", 1.0) for _ in range(10)] == [ban] * 10


def test_a_soft_fault_does_not_shorten_a_quarantine():
    """An end once given is never moved to an earlier time, even if the clock is."""
    reputation = Reputation()
    reputation.fault("p", "not_finite", 100.0)
    until = reputation.fault("p", "not_finite", 100.0).until
    assert reputation.fault("p", "late", 50.0).until == until


def test_peers_do_not_pay_for_each_other():
    """A score belongs to one id."""
    reputation = Reputation()
    for _ in range(9):
        reputation.fault("bad", "not_finite", 0.0)
    assert reputation.verdict("good", 0.0) == OK
    assert reputation.score("good", 0.0) == 0.0


def test_a_flood_of_new_ids_does_not_wash_out_a_ban():
    """Memory is bounded, and what is forgotten is the cleanest, so an attacker cannot buy oblivion with fresh ids."""
    reputation = Reputation(remembered=50)
    for _ in range(4):
        reputation.fault("liar", "not_finite", 0.0)
    for i in range(500):
        reputation.fault(f"sybil{i}", "late", 1.0 + i)
        assert len(reputation) <= 50
    assert reputation.verdict("liar", 501.0).state == "ban"


def test_soft_weighs_less_than_hard_and_unknown_words_are_hard():
    """A new reason in the code must not be free of charge because this table was forgotten."""
    reputation = Reputation()
    reputation.fault("p", "a_reason_nobody_listed", 0.0)
    assert reputation.score("p", 0.0) == HARD > max(WEIGHTS.values()) >= SOFT


@pytest.mark.parametrize("wrong", [{"quarantine": 50.0}, {"half_life_s": 0.0}, {"remembered": 0}, {"quarantine": 0.0}])
def test_senseless_parameters_are_refused(wrong):
    """Thresholds out of order would ban before they warn."""
    with pytest.raises(ValueError, match=r"need|must"):
        Reputation(**wrong)
